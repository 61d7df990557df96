"""Which classifier and which data the flags of run_classifier.py name: from folders, files and each other."""

import dataclasses
import logging
import os

from bert_tf import checkpoint, model_dir, predictor
from bert_tf.classification import columns, custom, examples, features, tasks
from bert_tf.cli import fine_tuning, models
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

MAX_SEQ_LENGTH = 128


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is decided before any data is read: the model's files, the task, how text becomes ids."""

    base: fine_tuning.Base
    task: tasks.Task
    language: str | None
    max_seq_length: int
    pooling: str


def prepare(values, start_from):
    """The `Setup` of the flags and of the folders of the checkpoints in --output_dir and at --init_checkpoint."""
    base = fine_tuning.find_base(values, start_from)
    is_classifier = "labels" in base.info
    task = find_task(values, base.info, base.prefix)
    pooling = base.agreed(values, "pooling", base.info.get("pooling", "cls") if is_classifier else None)
    return Setup(base, task, find_language(values, task),
                 base.length(values, MAX_SEQ_LENGTH, features.MIN_SEQ_LENGTH, is_classifier), pooling or "cls")


def find_task(values, info, prefix):
    """The task of --task_name, else of the model's folder; `UserError` where the folder's labels are others.

    Training may turn a model to another task; evaluating and predicting may not, unless the labels are the same.
    """
    known = "labels" in info and "task" in info
    if values.task_name is None and not known and not values.dataset:
        raise UserError("--task_name is missing: it says which task's files --data_dir holds")
    name = values.task_name or (custom.NAME if values.dataset and not known else info["task"])
    task = named_task(values, name, info if known and not values.do_train else {})
    if known and not values.do_train:
        if info["labels"] != list(task.labels) or info.get("kind", task.kind) != task.kind:
            raise UserError(f"--task_name={task.name}, but {prefix} was trained on {info['task']}, whose labels are "
                            f"{info['labels'] or 'scores'}, not {list(task.labels) or 'scores'}")
        if info["task"] != task.name:
            logger.warning("%s was trained on %s, not on %s", prefix, info["task"], task.name)
    return task


def named_task(values, name, info):
    """The task of a name, its data where the flags say; `info` is of the folder whose model is to be asked."""
    is_custom = name.lower() == custom.NAME
    task = None if is_custom else tasks.find(name)
    if not is_custom and not values.dataset:
        return task
    said = info.get("columns", {}) | columns_said(values)
    asked = columns.Asked(as_tuple(said.get("text_columns")), as_tuple(said.get("label_column")), said.get("header"))
    kind = info.get("kind") if values.label_kind == "auto" else values.label_kind
    paths = {split: values[f"{split}_file"].value for split in ("train", "dev", "test")}
    dataset = values.dataset and values.dataset.removeprefix("tfds:")
    separator = said.get("label_separator", values.label_separator)
    source = custom.Source(values.data_dir, paths, dataset, asked, kind, separator, values.labels_file)
    return custom.make_task(source, info.get("labels"), task)


def columns_said(values):
    """What the flags say of the columns of a custom task's files, by flag; only those that are given."""
    names = ("text_columns", "label_column", "header", "label_separator")
    return {name: values[name].value for name in names if values[name].present}


def as_tuple(text):
    """The parts of a text between commas; () of None."""
    return tuple(text.split(",")) if text else ()


def find_language(values, task):
    """The language of --language, else the task's usual one; `UserError` for a task that has but one."""
    if values.language and not task.language:
        raise UserError(f"--language={values.language}: {task.name} is in one language")
    return values.language or task.language


def find_tables(values, setup, kind):
    """`(path, table)` of a kind of split by its name ("dev": dev and, where it is there, dev_mismatched)."""
    def find(split):
        return examples.find_table(setup.task, split, values.data_dir, setup.language)

    first, *others = setup.task.splits_of(kind) or [kind]
    tables = {first: find(first)}
    for split in others:
        try:
            tables[split] = find(split)
        except UserError as error:
            logger.info("%s; it is left out", error)
    return tables


def read_examples(setup, path, table):
    """The examples of a file."""
    return examples.read(path, table, setup.task, setup.language)


def read_features(values, setup, path, table):
    """The `Features` of a file, from the cache where nothing has changed since they were made."""
    def make():
        return features.convert(read_examples(setup, path, table), path, setup.base.tokenizer, setup.max_seq_length,
                                setup.task, values.num_workers).arrays

    made = features.Features(path, **fine_tuning.kept(
        values, "features", path, [setup.base.vocab_file],
        features.decided_by(setup.task, table, setup.language, setup.base.tokenizer, setup.max_seq_length), make))
    if setup.base.config.type_vocab_size < 2 and (made.first_lengths < made.lengths).any():
        raise UserError(f"{path} holds pairs of texts, the model has one segment (type_vocab_size in its config)")
    return made


def find_teacher(values, setup, runtime):
    """The checkpoint of --teacher; `UserError` where it has other labels, would be removed, or cannot be asked."""
    prefix = model_dir.find(values.teacher)
    if runtime.kind in ("multi_worker", "tpu"):
        raise UserError(f"--teacher: a teacher is asked by one process, not with --strategy={runtime.kind}")
    if values.overwrite_output_dir and models.is_in_folder(prefix, values.output_dir):
        raise UserError(f"--overwrite_output_dir would remove --teacher={values.teacher}; move one of them")
    info = model_dir.read_info(prefix)
    if info.get("labels") != list(setup.task.labels) or info.get("kind", setup.task.kind) != setup.task.kind:
        raise UserError(f"--teacher={values.teacher} has the labels {info.get('labels')}, {setup.task.name} "
                        f"{list(setup.task.labels)}; a teacher must know the same, in the same order")
    return prefix


def ask_teacher(values, setup, prefix, path, table):
    """The logits float32 [N, C] of a teacher for the examples of the training file, in their order."""
    logger.info("%s: the teacher is %s", path, prefix)

    def make():
        teacher = predictor.Classifier(prefix, precision=values.precision, batch_size=values.predict_batch_size)
        rows = features.convert(read_examples(setup, path, table), path, teacher.tokenizer, teacher.max_seq_length,
                                setup.task, values.num_workers)
        return {"logits": teacher.logits(rows)}

    settings = {"table": repr(table.columns), "teacher": checkpoint.digest(prefix), "precision": values.precision}
    vocab_file = os.path.join(os.path.dirname(prefix), model_dir.VOCAB)
    return fine_tuning.kept(values, "teacher", path, [vocab_file], settings, make)["logits"]
