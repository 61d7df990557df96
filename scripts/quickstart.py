"""Pretrains a small BERT on Python's own manual with the project's scripts and shows what it learned.

    bash scripts/quickstart.sh

Every command is printed as it is run, so that it can be repeated on other text. The same command again trains no
more: it goes on where it was stopped, or shows the results. The same --seed gives the same model.
"""

import json
import os
import shlex
import subprocess
import sys
import time

from absl import flags

from bert_tf import files
from bert_tf.cli import app
from bert_tf.errors import UserError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Short sequences: that a word depends on its neighbours is learned in a few hundred steps with 32 positions, and
# with 40 or 64 not in all the time there is.
LENGTHS = {"max_seq_length": 32, "max_predictions_per_seq": 5}
VOCAB_SIZE = 2000
TRAIN_DUPES, HELDOUT_DUPES = 30, 5  # so often each sentence is masked, differently each time
TRAIN_BATCH_SIZE, EVAL_BATCH_SIZE = 64, 32
LEARNING_RATE, WARMUP = 1e-3, 0.07  # warm-up as a share of the steps

# A BERT of a hundredth of Base's size: no dropout, since all of the training is two epochs of the records, and
# wider initial weights, since a product over 128 values is smaller than one over Base's 768.
CONFIG = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 512, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 32, "type_vocab_size": 2, "initializer_range": 0.07,
}

SENTENCES = (
    "If the file does not exist, an exception is [MASK].",
    "This method should [MASK] a new object.",
    "Raise a TypeError if the argument [MASK] not a string.",
    "A class is an [MASK] of its metaclass.",
    "The expression is evaluated in the [MASK] namespace.",
)
FILLERS = 5


def define_flags(values):
    flags.DEFINE_string("output_dir", "quickstart", "The folder for everything that is made.", values)
    flags.DEFINE_integer("seed", 12345, "Decides masks, initial weights and the order of the data.", lower_bound=0,
                         upper_bound=2**31 - 1, flag_values=values)
    flags.DEFINE_integer("num_train_steps", 1500, "Steps of training.", lower_bound=2, flag_values=values)
    flags.DEFINE_bool("overwrite_output_dir", False, "Remove an earlier run and start anew.", values)


class Paths:
    """Where everything is that is made in a folder."""

    def __init__(self, folder):
        self.train, self.train_records = os.path.join(folder, "train.txt"), os.path.join(folder, "train.tfrecord")
        self.heldout = os.path.join(folder, "heldout.txt")
        self.heldout_records = os.path.join(folder, "heldout.tfrecord")
        self.vocab, self.bert_config = os.path.join(folder, "vocab.txt"), os.path.join(folder, "bert_config.json")
        self.untrained, self.model = os.path.join(folder, "untrained"), os.path.join(folder, "model")
        self.log = os.path.join(folder, "log.txt")


def run_script(name, log=None, **values):
    """Prints the command of a script of the project and runs it; where it fails, so does this program.

    What it says goes to the screen, or with `log` to the end of that file, whose last line is shown if it fails.
    """
    words = [name, *(f"--{flag}={value}" for flag, value in values.items())]
    print(f"\n$ python {shlex.join(words)}", flush=True)
    command = [sys.executable, os.path.join(ROOT, words[0]), *words[1:]]
    if log is None:
        status = subprocess.run(command).returncode
    else:
        with open(log, "ab") as file:
            status = subprocess.run(command, stdout=file, stderr=file).returncode
        if status:
            print(f"{files.read_text(log).splitlines()[-1]} (what went before: {log})", file=sys.stderr)
    if status:
        raise SystemExit(status)


def refuse_other_run(paths, values):
    """`UserError` where the folder holds a run of other flags, before that run's text and records are replaced."""
    for folder, names in ((paths.untrained, ("seed",)), (paths.model, ("seed", "num_train_steps"))):
        path = os.path.join(folder, "run.json")
        if not files.exists(path):
            continue
        advice = "--overwrite_output_dir starts anew, another --output_dir leaves it as it is"
        try:
            earlier = json.loads(files.read_text(path))
            different = [f"--{name}={earlier[name]} (now {values[name].value})" for name in names
                         if earlier[name] != values[name].value]
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: tells no settings of a run; {advice}") from error
        if different:
            raise UserError(f"{values.output_dir} holds a run with {', '.join(different)}; {advice}")


def make_data(paths, seed):
    """Text, vocabulary and records, which take seconds and come out the same every time."""
    log = paths.log
    run_script("scripts/prepare_pydoc_text.py", log, train_file=paths.train, heldout_file=paths.heldout)
    run_script("scripts/train_vocab.py", log, input_file=paths.train, vocab_file=paths.vocab, vocab_size=VOCAB_SIZE)
    for text, records, dupes in ((paths.train, paths.train_records, TRAIN_DUPES),
                                 (paths.heldout, paths.heldout_records, HELDOUT_DUPES)):
        run_script("create_pretraining_data.py", log, input_file=text, output_file=records, vocab_file=paths.vocab,
                   dupe_factor=dupes, random_seed=seed, **LENGTHS)
    with files.replacing(paths.bert_config) as file:
        file.write(json.dumps(CONFIG, indent=2) + "\n")


def train(paths, values):
    """Trains one step at a rate of 0, for a model to compare with, and then in earnest; evaluates both."""
    model = {"bert_config_file": paths.bert_config, "seed": values.seed, **LENGTHS}
    settings = {"do_train": True, "train_batch_size": TRAIN_BATCH_SIZE, "learning_rate": LEARNING_RATE, **model}
    if values.overwrite_output_dir:
        settings["overwrite_output_dir"] = True
    evaluation = {"do_eval": True, "input_file": paths.heldout_records, "eval_batch_size": EVAL_BATCH_SIZE,
                  "max_eval_steps": count_evaluated(paths) // EVAL_BATCH_SIZE}
    # Warm-up starts at a rate of 0: the one step saves the initial weights as they are.
    run_script("run_pretraining.py", paths.log, output_dir=paths.untrained, num_train_steps=1, num_warmup_steps=1,
               **settings, **evaluation)
    steps = values.num_train_steps
    run_script("run_pretraining.py", output_dir=paths.model, input_file=paths.train_records, num_train_steps=steps,
               num_warmup_steps=int(WARMUP * steps), **settings)
    run_script("run_pretraining.py", paths.log, output_dir=paths.model, **model, **evaluation)


def count_evaluated(paths):
    """How many held-out records are evaluated: all but those that fill no batch."""
    with open(f"{paths.heldout_records}.meta.json", encoding="utf-8") as file:
        return json.load(file)["instances"] // EVAL_BATCH_SIZE * EVAL_BATCH_SIZE


def read_results(folder):
    """The numbers of a folder's `eval_results.txt`."""
    lines = files.read_text(os.path.join(folder, "eval_results.txt")).splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


def measure_chance(paths):
    """How often one is right on the held-out records with the most frequent answer -> for masked pieces, for pairs."""
    import numpy as np

    from bert_tf.pretraining import reading

    limits = reading.Limits(**LENGTHS, vocab_size=VOCAB_SIZE, type_vocab_size=CONFIG["type_vocab_size"])
    batch = reading.RecordFiles([paths.heldout_records], limits).read(np.arange(count_evaluated(paths)))
    masked = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
    return [np.bincount(answers).max() / answers.size for answers in (masked, batch["next_sentence_labels"])]


def report(paths):
    """Prints accuracies beside chance, and what each model puts into masked sentences."""
    app.load_tensorflow()
    import fill_masks

    before, after = read_results(paths.untrained), read_results(paths.model)
    print(f"\nOn {count_evaluated(paths)} held-out records, the share of right answers\n\n"
          f"{'':24}{'most frequent answer':>20}{'before training':>18}{'after':>8}")
    for label, name, chance in zip(("masked pieces", "next sentence or random"),
                                   ("masked_lm_accuracy", "next_sentence_accuracy"), measure_chance(paths)):
        print(f"{label:24}{chance:>20.1%}{before[name]:>18.1%}{after[name]:>8.1%}")
    models = {name: fill_masks.MaskFiller(folder)
              for name, folder in (("before", paths.untrained), ("after", paths.model))}
    print(f"\nThe {FILLERS} likeliest fillers, with their probabilities")
    for sentence in SENTENCES:
        print(f"\n  {sentence}")
        for name, filler in models.items():
            (fillers,) = filler.fill(sentence, FILLERS)
            columns = (f"{piece} {probability:.3f}" for piece, probability in fillers)
            print(f"    {name:8}" + "".join(f"{column:20}" for column in columns).rstrip())
    print(f"\nThe loss curve: {os.path.join(paths.model, 'curves.png')}\n"
          f"More sentences: python scripts/fill_masks.py --init_checkpoint={shlex.quote(paths.model)} "
          f"\"The {fill_masks.MASK} is open.\"")


def run(values):
    files.make_folder(values.output_dir)
    paths = Paths(values.output_dir)
    if not values.overwrite_output_dir:
        refuse_other_run(paths, values)
    started = time.perf_counter()
    make_data(paths, values.seed)
    train(paths, values)
    report(paths)
    print(f"It took {time.perf_counter() - started:.0f} seconds.")


if __name__ == "__main__":
    sys.exit(app.main(define_flags, run, description=__doc__))
