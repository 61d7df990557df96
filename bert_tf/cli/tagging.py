"""What the flags of run_ner.py set in motion: checks of all that is read, training, evaluation, prediction.

Shapes: K words of all sentences, C labels.
"""

import dataclasses
import functools
import logging
import os

import numpy as np

from bert_tf import files, model_dir, modeling, run_dir
from bert_tf.cli import common, fine_tuning, repeats, training
from bert_tf.errors import UserError
from bert_tf.tagging import answers, examples, features, reports, scores
from bert_tf.tagging.objective import Objective

logger = logging.getLogger("bert_tf")

KIND = "tags"  # of the model, in its folder's model.json
PREDICTIONS, TEST_RESULTS = "predictions.conll", "test_results.txt"
TEST = "_test"  # what ends the names of the test file's reports
# All that a run leaves beside its model.
RESULTS = (run_dir.RESULTS, PREDICTIONS, TEST_RESULTS,
           *(name.format(suffix) for name in reports.NAMES for suffix in ("", TEST)))
# The files of each kind in --data_dir: one of the names with one of the endings.
NAMES = {"train": ("train",), "dev": ("dev", "devel", "valid", "validation"), "test": ("test",)}
ENDINGS = (".conll", ".tsv", ".txt", ".bio", ".iob", ".jsonl", ".json")


@dataclasses.dataclass(frozen=True)
class Data:
    """A file's sentences, their labels in BIO (None in a file without), and its windows as a model reads them."""

    path: str
    sentences: list
    gold: list | None
    features: features.Features


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is decided before features are made: the model's files, the windows, the labels and their scheme."""

    base: fine_tuning.Base
    max_seq_length: int
    doc_stride: int
    document_context: bool
    labels: list
    scheme: str


def run(values):
    """Does what the flags ask for: with one seed or several."""
    repeats.run(values, training.make_runtime(values).kind, run_once,
                lambda metrics: "f1" if "f1" in metrics else "macro_f1", RESULTS)


def run_once(values):
    """Checks all that can be checked, then trains, evaluates and predicts as asked -> the evaluation's metrics."""
    runtime = training.make_runtime(values)
    start_from = None if values.init_checkpoint is None else model_dir.find(values.init_checkpoint)
    base = fine_tuning.find_base(values, start_from)
    sentences = {kind: read(values, path, kind) for kind, path in asked_files(values).items()}
    setup = prepare(values, base, sentences)
    values.max_seq_length = setup.max_seq_length  # for the parts that all scripts share
    data = {kind: make_data(values, setup, kind, *sentences[kind]) for kind in sentences}
    objective = Objective(len(setup.labels))
    sizes = training.make_sizes(values, runtime)
    course = prepare_training(values, runtime, setup, data, sizes, start_from) if values.do_train else None
    with runtime.start().scope():
        model = modeling.BertForTokenClassification(base.config, len(setup.labels), dtype=runtime.policy)
        predict = answers.build_predict(model, objective, runtime, sizes)

        def evaluate():
            logits = predict(data["dev"].features, values.predict_batch_size)
            return measure(setup, data["dev"], logits, predicted(setup, data["dev"], logits))

        step = fine_tuning.give_weights(values, runtime, model, objective, base, course, evaluate,
                                        functools.partial(write_model_dir, values, setup))
        metrics = {}
        if values.do_eval:
            logits = predict(data["dev"].features, values.predict_batch_size)
            said = predicted(setup, data["dev"], logits)
            metrics = measure(setup, data["dev"], logits, said)
            if runtime.is_chief:
                write_evaluation(values, setup, step, metrics, data["dev"], said)
        if values.do_predict:
            logits = predict(data["test"].features, values.predict_batch_size)
            if runtime.is_chief:
                write_predictions(values, setup, data["test"], logits)
    return metrics


def asked_files(values):
    """The paths of the files that the flags ask for, by kind: train, dev, test."""
    wanted = {"train": values.do_train, "dev": common.evaluates(values), "test": values.do_predict}
    return {kind: find_file(values, kind) for kind in wanted if wanted[kind]}


def find_file(values, kind):
    """The path of a kind of file: the flag's, else the one in --data_dir; `UserError` for none and for several."""
    given = values[f"{kind}_file"].value
    if given:
        if not files.exists(given):
            raise UserError(f"--{kind}_file={given}: no such file")
        return given
    paths = [os.path.join(values.data_dir, name + ending) for name in NAMES[kind] for ending in ENDINGS]
    there = [path for path in paths if files.exists(path)]
    if len(there) != 1:
        found = f"both {there[0]} and {there[1]}" if there else f"no {', '.join(NAMES[kind])} with an ending of " \
            f"{' '.join(ENDINGS)}"
        raise UserError(f"--data_dir={values.data_dir} holds {found}; name the file with --{kind}_file")
    return there[0]


def read(values, path, kind):
    """`(path, sentences)` of a file; one to be predicted need not have labels."""
    is_labelled = True if kind != "test" else False if values.unlabelled_test else None
    columns = columns_of(values)._replace(is_labelled=is_labelled)
    return path, examples.read(path, columns)


def columns_of(values):
    """What the flags say of the files' columns."""
    return examples.Columns(values.token_column, values.label_column)


def prepare(values, base, sentences):
    """The `Setup` of flags, folders and what was read: labels are those of the model's folder, else of training."""
    is_tagger = base.info.get("kind") == KIND
    noted = base.info if is_tagger else {}

    def agreed(flag, usual):
        found = base.agreed(values, flag, noted.get(flag))
        return usual if found is None else found

    if not values.do_train and not {"labels", "scheme"} <= noted.keys():
        raise UserError(f"{base.prefix}: not the folder of a tagger, whose {model_dir.INFO} names the labels; "
                        "fine-tune the model with run_ner.py")
    lengths = base.length(values, 128, features.SPECIAL + 1, is_tagger), agreed("doc_stride", 64)
    features.check_lengths(*lengths)
    if values.do_train:
        path, rows = sentences["train"]
        scheme = examples.find_scheme(rows, path)
        labels = order_labels({label for row in rows for label in examples.to_bio(row.labels, scheme)}, scheme)
    else:
        scheme, labels = noted["scheme"], noted["labels"]
    if scheme == scores.PLAIN and not values["best_metric"].present:
        values.best_metric = "macro_f1"
    return Setup(base, *lengths, agreed("document_context", False), labels, scheme)


def order_labels(labels, scheme):
    """The labels in order; of every type that begins or goes on both, since another file may need the other."""
    if scheme == scores.PLAIN:
        return sorted(labels)
    types = sorted({label[1:] for label in labels if label != answers.OUTSIDE})
    return [answers.OUTSIDE, *(prefix + name for name in types for prefix in "BI")]


def make_data(values, setup, kind, path, sentences):
    """The `Data` of a file of a kind; its features from the cache where nothing has changed since they were made."""
    is_labelled = sentences[0].labels is not None
    tokenizer, lengths = setup.base.tokenizer, (setup.max_seq_length, setup.doc_stride, setup.document_context)
    settings = {**features.decided_by(tokenizer, setup.labels, columns_of(values), *lengths), "scheme": setup.scheme,
                "is_labelled": is_labelled}

    def make():
        return features.convert(sentences, path, tokenizer, setup.labels, *lengths, values.num_workers).arrays

    try:
        if is_labelled:
            examples.check_scheme(sentences, setup.scheme, path)
            sentences = [row._replace(labels=examples.to_bio(row.labels, setup.scheme)) for row in sentences]
        arrays = fine_tuning.kept(values, "tagging", path, [setup.base.vocab_file], settings, make)
    except UserError as error:
        raise UserError(f"{error}{' (--unlabelled_test passes them over)' * (kind == 'test')}") from error
    return Data(path, sentences, [row.labels for row in sentences] if is_labelled else None,
                features.Features(path, **arrays))


def prepare_training(values, runtime, setup, data, sizes, start_from):
    """The `Course` of training on `data["train"]`."""
    rows, dev = data["train"].features, data.get("dev")
    return fine_tuning.make_course(
        values, runtime, rows, lambda numbers: features.make_batch(rows, numbers, sizes),
        fine_tuning.make_plan(values, len(rows)), start_from, fingerprint(values, setup, rows), metric_names(setup),
        dev and dev.features.digest)


def fingerprint(values, setup, rows):
    """All that decides the trajectory of a run, besides what is so for every script."""
    names = ("num_train_epochs", "warmup_proportion", "original_steps", "group_by_length")
    return {"script": "run_ner", "labels": setup.labels, "examples": rows.digest,
            "config": setup.base.config.to_dict(), **{name: values[name].value for name in names}}


def write_model_dir(values, setup, **info):
    """Makes --output_dir a tagger of its own; results of other weights do not stay beside it."""
    for name in RESULTS:
        files.remove(os.path.join(values.output_dir, name))
    names = ("max_seq_length", "doc_stride", "document_context", "labels", "scheme")
    info = {"task": "ner", "kind": KIND, **{name: getattr(setup, name) for name in names},
            **fine_tuning.casing(setup.base.tokenizer), **info}
    model_dir.write(values.output_dir, setup.base.config, info, setup.base.vocab_file)


def predicted(setup, data, logits):
    """The labels that logits float32 [K, C] say, a list for each sentence."""
    return answers.by_sentence(answers.decisions(logits), setup.labels, data.sentences)


def metric_names(setup):
    """The names of what `measure` returns."""
    return [*scores.metric_names(setup.scheme), "loss"]


def measure(setup, data, logits, said):
    """The scores of predicted labels by name, and `loss`, the mean negative log-likelihood of a word's label."""
    likelihoods = answers.probabilities(logits)[np.arange(len(logits)), data.features.label_ids]
    return {**scores.evaluate(data.gold, said, setup.scheme),
            "loss": float(-np.log(np.maximum(likelihoods, np.finfo(np.float32).tiny)).mean())}


def write_evaluation(values, setup, step, metrics, data, said):
    """Writes `eval_results.txt`, and what the mistakes are."""
    files.make_folder(values.output_dir)
    logger.info("evaluation at step %d:", step)
    run_dir.write_results(values.output_dir, {"global_step": step, **metrics})
    reports.write(values.output_dir, data.path, data.sentences, data.gold, said, setup.scheme)
    used, wanted = ({label for labels in rows for label in labels} for rows in (said, data.gold))
    if len(used) == 1 < len(wanted):
        logger.warning("%s: every word is taken for %s; train for more epochs, or try another --seed or "
                       "--learning_rate", data.path, *used)


def write_predictions(values, setup, data, logits):
    """Writes the test file's lines with a column of predicted labels; where it has labels, how good these are too."""
    files.make_folder(values.output_dir)
    for name in (TEST_RESULTS, *(name.format(TEST) for name in reports.NAMES)):  # of another file, perhaps
        files.remove(os.path.join(values.output_dir, name))
    said = predicted(setup, data, logits)
    path = os.path.join(values.output_dir, PREDICTIONS)
    answers.write_predictions(path, data.path, data.sentences, said)
    logger.info("%s: %d words of %d sentences", path, len(logits), len(said))
    if data.gold is not None:
        run_dir.write_results(values.output_dir, measure(setup, data, logits, said), TEST_RESULTS)
        reports.write(values.output_dir, data.path, data.sentences, data.gold, said, setup.scheme, TEST)
