"""Which classifier and which data the flags of run_classifier.py name: from folders, files and each other."""

import dataclasses
import hashlib
import logging
import os

from bert_tf import checkpoint, feature_cache, files, model_dir, modeling, predictor, tokenization
from bert_tf.classification import columns, custom, examples, features, tasks
from bert_tf.cli import models
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

MAX_SEQ_LENGTH = 128


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is decided before any data is read: the task, the model's files, how text becomes ids.

    `prefixes` are the checkpoint that --output_dir stands for and --init_checkpoint, as far as there are such.
    """

    prefixes: list
    task: tasks.Task
    language: str | None
    config: modeling.BertConfig
    vocab_file: str
    tokenizer: tokenization.FullTokenizer
    max_seq_length: int
    pooling: str


def prepare(values, start_from):
    """The `Setup` of the flags and of the folders of the checkpoints in --output_dir and at --init_checkpoint."""
    begins = values.do_train and values.overwrite_output_dir
    newest = None if begins else model_dir.latest(values.output_dir)
    prefixes = [prefix for prefix in (newest, start_from) if prefix]
    if not prefixes and not values.do_train:
        raise UserError(f"nothing to evaluate: {values.output_dir} holds no checkpoint, and no --init_checkpoint is "
                        "given")
    infos = [(prefix, model_dir.read_info(prefix)) for prefix in prefixes]
    prefix, info = next((row for row in infos if row[1]), (prefixes[0] if prefixes else None, {}))
    task = find_task(values, info, prefix)
    config_file = find_file(values, prefixes, model_dir.CONFIG, "bert_config_file")
    config = modeling.BertConfig.from_json_file(config_file)
    vocab_file = find_file(values, prefixes, model_dir.VOCAB, "vocab_file")
    tokenizer = model_dir.load_tokenizer(vocab_file, config, prefix, values.do_lower_case, values.allow_case_mismatch)
    return Setup(prefixes, task, find_language(values, task), config, vocab_file, tokenizer,
                 find_length(values, info, prefix, config), find_pooling(values, info, prefix))


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
    asked = columns.Asked(as_tuple(values.text_columns), as_tuple(values.label_column), values.header)
    kind = info.get("kind") if values.label_kind == "auto" else values.label_kind
    paths = {split: values[f"{split}_file"].value for split in ("train", "dev", "test")}
    dataset = values.dataset and values.dataset.removeprefix("tfds:")
    source = custom.Source(values.data_dir, paths, dataset, asked, kind, values.label_separator, values.labels_file)
    return custom.make_task(source, info.get("labels"), task)


def as_tuple(text):
    """The parts of a text between commas; () of None."""
    return tuple(text.split(",")) if text else ()


def find_language(values, task):
    """The language of --language, else the task's usual one; `UserError` for a task that has but one."""
    if values.language and not task.language:
        raise UserError(f"--language={values.language}: {task.name} is in one language")
    return values.language or task.language


def find_file(values, prefixes, name, flag):
    """The path that a flag gives, else of the file `name` beside the first checkpoint that has one."""
    given = values[flag].value
    for path in [given] if given else [os.path.join(os.path.dirname(prefix), name) for prefix in prefixes]:
        if files.exists(path):
            return path
    raise UserError(f"--{flag}={given}: no such file" if given else f"--{flag} is missing, and no {name} lies beside "
                    f"{' or '.join(prefixes) or 'a checkpoint'}")


def find_length(values, info, prefix, config):
    """The sequence length of --max_seq_length, else of the classifier's folder, else the original's."""
    length = agreed(values, "max_seq_length", info.get("max_seq_length") if "labels" in info else None, prefix)
    length = MAX_SEQ_LENGTH if length is None else length
    if not features.MIN_SEQ_LENGTH <= length <= config.max_position_embeddings:
        raise UserError(f"--max_seq_length={length} must lie between {features.MIN_SEQ_LENGTH} and the model's "
                        f"{config.max_position_embeddings} positions (max_position_embeddings in its config)")
    return length


def find_pooling(values, info, prefix):
    """What the classifier reads: as --pooling says, else as the classifier's folder does, else the first token."""
    return agreed(values, "pooling", info.get("pooling", "cls") if "labels" in info else None, prefix) or "cls"


def agreed(values, flag, noted, prefix):
    """What a flag says, else what the classifier's folder noted; None without either.

    Only training may turn a model to something else: `UserError` where the two differ.
    """
    given = values[flag].value
    if None not in (given, noted) and given != noted and not values.do_train:
        raise UserError(f"--{flag}={given}, but {prefix} was trained with {noted}; leave the flag out")
    return noted if given is None else given


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
        return features.convert(read_examples(setup, path, table), path, setup.tokenizer, setup.max_seq_length,
                                setup.task, values.num_workers).arrays

    made = features.Features(path, **kept(
        values, "features", path, [setup.vocab_file],
        features.decided_by(setup.task, table, setup.language, setup.tokenizer, setup.max_seq_length), make))
    if setup.config.type_vocab_size < 2 and (made.first_lengths < made.lengths).any():
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


def ask_teacher(values, setup, prefix):
    """The logits float32 [N, C] of a teacher for the training file's examples, in their order."""
    ((path, table),) = find_tables(values, setup, "train").values()
    logger.info("%s: the teacher is %s", path, prefix)

    def make():
        teacher = predictor.Predictor(prefix, precision=values.precision, batch_size=values.predict_batch_size)
        rows = features.convert(read_examples(setup, path, table), path, teacher.tokenizer, teacher.max_seq_length,
                                setup.task, values.num_workers)
        return {"logits": teacher.logits(rows)}

    settings = {"table": repr(table.columns), "teacher": checkpoint.digest(prefix), "precision": values.precision}
    vocab_file = os.path.join(os.path.dirname(prefix), model_dir.VOCAB)
    return kept(values, "teacher", path, [vocab_file], settings, make)["logits"]


def kept(values, what, path, others, settings, make):
    """What `make()` makes of the file `path`, the files `others` and `settings`: from the cache, if it is there.

    `what` says in a word what that is.
    """
    if not values.features_dir or not files.exists(path):  # a dataset's path is none
        return make()
    place = hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:8]
    return feature_cache.load_or_make(values.features_dir, f"{what}-{os.path.basename(path)}-{place}",
                                      feature_cache.fingerprint([path, *others], settings), make)
