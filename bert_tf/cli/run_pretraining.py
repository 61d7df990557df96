"""Pretrains BERT on the records of create_pretraining_data.py, evaluates it, and goes on after a stop.

Trains the masked language model and next sentence losses and writes checkpoints in the original's format to
--output_dir. The same command again goes on where it stopped, or says that it is complete.
"""

import logging
import os

from absl import flags

from bert_tf.cli import app, common
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

RESULTS = "eval_results.txt"
SHORTEST_SEQUENCE = 5  # [CLS] a [SEP] b [SEP]

FLAGS = (
    ("string", "bert_config_file", None, "bert_config.json, the model's shape (default: the one beside "
     "--init_checkpoint)."),
    ("string", "input_file", None, "Record files: names and globs, separated by commas."),
    ("string", "output_dir", None, "The folder for checkpoints and results."),
    ("string", "init_checkpoint", None, "The checkpoint to start from; without it training starts from random weights."),
    ("string", "vocab_file", None, "The records' vocabulary, to be copied into --output_dir (default: the one that "
     "the records' .meta.json names)."),
    ("integer", "max_seq_length", 128, "Tokens in a record; as the records were made."),
    ("integer", "max_predictions_per_seq", 20, "Masked pieces in a record; as the records were made."),
    ("bool", "do_train", False, "Whether to train."),
    ("bool", "do_eval", False, "Whether to evaluate, on the same --input_file."),
    ("integer", "train_batch_size", 32, "Examples in a training step."),
    ("integer", "eval_batch_size", 8, "Examples in an evaluation batch."),
    ("float", "learning_rate", 5e-5, "The rate that warm-up rises to."),
    ("integer", "num_train_steps", 100000, "Steps at which training is complete."),
    ("integer", "num_warmup_steps", 10000, "Steps over which the rate rises from 0."),
    ("integer", "save_checkpoints_steps", 1000, "Steps between two checkpoints."),
    ("integer", "iterations_per_loop", None, "Steps in one call to the device. Default: about a second's worth."),
    ("integer", "max_eval_steps", 100, "Evaluation batches; past the last record they begin again at the first."),
    ("integer", "shuffle_buffer", 0, "Records that are shuffled at a time; 0: all of them, anew in each epoch. The "
     "original's is 100."),
    ("bool", "allow_missing", False, "Accept an --init_checkpoint that lacks variables of the model."),
    ("bool", "allow_case_mismatch", False, "Accept records whose casing is not the checkpoint's."),
)


def main(argv=None):
    """Runs the script and returns its exit status."""
    return app.main(define_flags, run, argv, __doc__)


def define_flags(values):
    """The original's flags with its defaults, and the ones that all training scripts share."""
    common.define(values, FLAGS, common.RUNTIME, common.FOLDER, common.OBSOLETE)
    flags.mark_flags_as_required(["input_file", "output_dir"], flag_values=values)


def run(values):
    """Checks all that can be checked, then trains and evaluates as asked."""
    check_flags(values)
    common.note_obsolete(values)
    app.load_tensorflow()
    from bert_tf import checkpoint, modeling
    from bert_tf.pretraining import reading, records
    from bert_tf.runtime import Runtime

    runtime = Runtime(values.precision, values.xla, values.seed, values.deterministic)
    start_from = None if values.init_checkpoint is None else checkpoint.find(values.init_checkpoint)
    config_file = find_config(values, start_from)
    config = modeling.BertConfig.from_json_file(config_file)
    check_lengths(values, config, config_file)
    paths = records.record_files(values.input_file, "input_file")
    sidecars = records.check_sidecars(paths, values.max_seq_length, values.max_predictions_per_seq, config.vocab_size)
    sidecar = next(filter(None, sidecars), {})
    if len({each["do_lower_case"] for each in sidecars if each}) > 1 and not values.allow_case_mismatch:
        raise UserError(f"--input_file={values.input_file}: some records were made with --do_lower_case, others not; make "
                        "them alike (--allow_case_mismatch goes on regardless)")
    check_against_checkpoint(values, sidecar, start_from)
    vocab_file = find_vocabulary(values, config, sidecar) if values.do_train else None
    limits = reading.Limits(values.max_seq_length, values.max_predictions_per_seq, config.vocab_size,
                            config.type_vocab_size)
    record_files = reading.RecordFiles(paths, limits)
    logger.info("%d records in %d files", len(record_files), len(paths))
    runtime.start()
    model = modeling.BertForPreTraining(config, dtype=runtime.policy)
    step = train(values, runtime, model, record_files, start_from, sidecar, vocab_file) if values.do_train else None
    if values.do_eval:
        evaluate(values, runtime, model, record_files, start_from, step)


def check_flags(values):
    """`UserError` for flags that contradict themselves or each other; nothing is read for it."""
    if not values.do_train and not values.do_eval:
        raise UserError("nothing to do: give --do_train, --do_eval or both")
    common.require_at_least(values, 1, "train_batch_size", "eval_batch_size", "num_train_steps", "max_eval_steps",
                            "max_predictions_per_seq", "save_checkpoints_steps")
    common.require_at_least(values, 0, "num_warmup_steps", "keep_checkpoint_max", "shuffle_buffer")
    if values.iterations_per_loop is not None:
        common.require_at_least(values, 1, "iterations_per_loop")
    if not 0.0 < values.learning_rate < float("inf"):
        raise UserError(f"--learning_rate={values.learning_rate} must be above 0")
    if values.resume and values.overwrite_output_dir:
        raise UserError("--resume and --overwrite_output_dir contradict each other; give one of them")
    if values.do_train and values.num_warmup_steps >= values.num_train_steps:
        logger.warning("--num_warmup_steps=%d: the rate still rises when training ends at --num_train_steps=%d",
                       values.num_warmup_steps, values.num_train_steps)


def find_config(values, start_from):
    """The path of the config: the flag's, else beside --init_checkpoint or, when going on, in --output_dir."""
    from bert_tf import files, model_dir

    in_output_dir = os.path.join(values.output_dir, model_dir.CONFIG)
    if values.bert_config_file or start_from:
        return model_dir.find_file(start_from or "", model_dir.CONFIG, values.bert_config_file, "bert_config_file")
    if files.exists(in_output_dir):
        return in_output_dir
    raise UserError("--bert_config_file is missing: without --init_checkpoint it says which model to build")


def check_lengths(values, config, config_file):
    """`UserError` for a sequence length that no record or no model of this config has."""
    if values.max_seq_length < SHORTEST_SEQUENCE:
        raise UserError(f"--max_seq_length={values.max_seq_length}: a record takes at least {SHORTEST_SEQUENCE} tokens")
    if values.max_seq_length > config.max_position_embeddings:
        raise UserError(f"--max_seq_length={values.max_seq_length} is beyond the model's {config.max_position_embeddings} "
                        f"positions (max_position_embeddings in {config_file})")


def check_against_checkpoint(values, sidecar, start_from):
    """Refuses records of another casing than the checkpoint's, warns of another vocabulary."""
    if not start_from or not sidecar:
        return
    from bert_tf import model_dir, tokenization

    lowered = sidecar.get("do_lower_case")
    if lowered is not None and not values.allow_case_mismatch:
        tokenization.check_casing([], lowered, start_from)
        noted = model_dir.read_info(start_from).get("do_lower_case", lowered)
        if noted != lowered:
            raise UserError(f"the records were made with --do_lower_case={lowered}, {start_from} says {noted}; make them "
                            "again (--allow_case_mismatch goes on regardless)")
    vocab_file = model_dir.find_file(start_from, model_dir.VOCAB, None, "vocab_file", required=False)
    if vocab_file and model_dir.sha256(vocab_file) != sidecar.get("vocab_sha256"):
        logger.warning("the records were made with another vocabulary (%s) than the one beside the checkpoint, %s: "
                       "ids that do not mean the same ruin the weights", sidecar.get("vocab_file"), vocab_file)


def find_vocabulary(values, config, sidecar):
    """The vocabulary to put into --output_dir, --vocab_file or the one that the records name; None without either.

    `UserError` for a --vocab_file that is none, is larger than the model's, or is not the records'.
    """
    from bert_tf import files, model_dir, tokenization

    vocab_file = values.vocab_file
    if vocab_file:
        size = max(tokenization.load_vocab(vocab_file).values()) + 1
        if size > config.vocab_size:
            raise UserError(f"--vocab_file={vocab_file} has {size} pieces, the model {config.vocab_size} (vocab_size "
                            "in its config)")
        if sidecar and model_dir.sha256(vocab_file) != sidecar["vocab_sha256"]:
            raise UserError(f"--vocab_file={vocab_file} is not the vocabulary that the records were made with "
                            f"({sidecar['vocab_file']})")
        return vocab_file
    named = sidecar.get("vocab_file")
    if named and files.exists(named) and model_dir.sha256(named) == sidecar["vocab_sha256"]:
        return named
    logger.info("the vocabulary that the records were made with is not where they say, if they say: --vocab_file "
                "would copy it into %s", values.output_dir)
    return None


def train(values, runtime, model, record_files, start_from, sidecar, vocab_file):
    """Trains to --num_train_steps, from the newest checkpoint in --output_dir if there is one -> the last step."""
    from bert_tf import batching, optimization, run_dir
    from bert_tf.pretraining import objective, reading
    from bert_tf.training import journal, loop, state

    settings = fingerprint(values, model.config, record_files, start_from)
    newest = run_dir.find(values.output_dir, settings, values.resume, values.overwrite_output_dir)
    if values.overwrite_output_dir and start_from and is_in_folder(start_from, values.output_dir):
        raise UserError(f"--overwrite_output_dir would remove --init_checkpoint={start_from}; move one of them")
    optimizer = optimization.create_optimizer(values.learning_rate, values.num_train_steps, values.num_warmup_steps)
    training = state.TrainingState(model, optimizer)
    if newest:
        training.resume(newest, values.train_batch_size)
        logger.info("going on from %s", newest)
    else:
        initialize(values, model, start_from)
    run_dir.begin(values.output_dir, settings, values.overwrite_output_dir)
    if training.step >= values.num_train_steps:
        logger.info("complete at step %d", training.step)
        return training.step
    write_model_dir(values, model.config, sidecar, vocab_file)
    decayed, exempt = optimizer.decay_groups()
    logger.info("%s parameters; weight decay %s on %d variables, none on %d (%s)", f"{model.count_params():,}",
                optimizer.weight_decay_rate, len(decayed), len(exempt), ", ".join(optimizer.exclude_from_weight_decay))
    sizes = batching.Sizes(values.max_seq_length, values.xla)
    feed = batching.Feed(
        lambda: batching.training_order(len(record_files), values.train_batch_size, values.seed,
                                        training.examples_seen, values.shuffle_buffer),
        lambda numbers: reading.make_batch(record_files, numbers, sizes))
    schedule = loop.Schedule(values.output_dir, values.num_train_steps, values.train_batch_size,
                             values.save_checkpoints_steps, values.keep_checkpoint_max, values.iterations_per_loop)
    callbacks = [journal.Bar(), journal.Log(values.output_dir), journal.Curves(values.output_dir)]
    saved = loop.train(training, objective, feed, runtime, schedule, callbacks)
    logger.info("trained to step %d: %s", training.step, saved)
    return training.step


def fingerprint(values, config, record_files, start_from):
    """All that decides the trajectory of a run."""
    from bert_tf import checkpoint

    names = ("seed", "train_batch_size", "learning_rate", "num_train_steps", "num_warmup_steps", "max_seq_length",
             "max_predictions_per_seq", "shuffle_buffer", "precision", "xla", "deterministic")
    return {"script": "run_pretraining", "records": record_files.digest, "config": config.to_dict(),
            "init_checkpoint": checkpoint.digest(start_from) if start_from else None,
            **{name: values[name].value for name in names}}


def initialize(values, model, start_from):
    """Gives the model the weights of --init_checkpoint, and says which it left at random."""
    from bert_tf import checkpoint

    if start_from is None:
        logger.info("no --init_checkpoint: training starts from random weights")
        return
    report = checkpoint.restore(model, start_from, values.allow_missing)
    logger.info("%s", report.summary())
    if report.missing or report.misshapen:
        logger.warning("random weights in what the checkpoint lacks: %s",
                       checkpoint.shorten(report.missing + report.misshapen))


def is_in_folder(prefix, folder):
    """Whether a checkpoint lies in a folder, however the two are written."""
    return os.path.realpath(os.path.dirname(prefix) or ".") == os.path.realpath(folder)


def write_model_dir(values, config, sidecar, vocab_file):
    """Makes --output_dir a folder that other scripts can use: config, casing and, where it can be had, vocabulary."""
    from bert_tf import model_dir

    info = {"task": "pretraining", "max_seq_length": values.max_seq_length}
    if sidecar:
        info |= {name: sidecar[name] for name in ("do_lower_case", "strip_accents")}
    model_dir.write(values.output_dir, config, info, vocab_file)


def evaluate(values, runtime, model, record_files, start_from, step):
    """Evaluates the weights just trained, else the newest of --output_dir, else --init_checkpoint."""
    from bert_tf import batching, checkpoint, files, run_dir
    from bert_tf.pretraining import objective, reading
    from bert_tf.training import evaluation

    if step is None:
        prefix = checkpoint.latest(values.output_dir) or start_from
        if prefix is None:
            raise UserError(f"nothing to evaluate: {values.output_dir} holds no checkpoint and no --init_checkpoint is given")
        report = checkpoint.restore(model, prefix, values.allow_missing)
        logger.info("%s", report.summary())
        untrained = report.missing + report.misshapen
        if untrained and not values.allow_missing:
            raise UserError(f"{prefix}: heads that were never trained cannot be evaluated: "
                            f"{checkpoint.shorten(untrained)} (--allow_missing goes on regardless)")
        step = report.global_step or 0
    wanted = values.max_eval_steps * values.eval_batch_size
    if wanted > len(record_files):
        logger.info("evaluating %d examples of %d records: the first come again, as in the original", wanted,
                    len(record_files))
    sizes = batching.Sizes(values.max_seq_length, values.xla)
    feed = batching.Feed(
        lambda: batching.evaluation_order(len(record_files), values.eval_batch_size, values.max_eval_steps),
        lambda numbers: reading.make_batch(record_files, numbers, sizes))
    files.make_folder(values.output_dir)
    results = {"global_step": step, **evaluation.evaluate(model, objective, feed, runtime)}
    logger.info("evaluation at step %d:", step)
    run_dir.write_results(os.path.join(values.output_dir, RESULTS), results)
