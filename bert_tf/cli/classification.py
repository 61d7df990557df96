"""What the flags of run_classifier.py set in motion: checks of all that is read, training, evaluation, prediction."""

import dataclasses
import fractions
import functools
import logging
import math
import os

import keras

from bert_tf import batching, files, model_dir, modeling, run_dir, tokenization
from bert_tf.classification import answers, examples, features, scores, tasks
from bert_tf.classification.objective import build_objective
from bert_tf.cli import models, repeats, training
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

MAX_SEQ_LENGTH = 128
TEST_RESULTS = "test_results{}.tsv"


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is decided before any data is read: the task, the model's files, how text becomes ids.

    `prefixes` are the newest checkpoint in --output_dir and --init_checkpoint, as far as there are such.
    """

    prefixes: list
    task: tasks.Task
    language: str | None
    config: modeling.BertConfig
    vocab_file: str
    tokenizer: tokenization.FullTokenizer
    max_seq_length: int
    pooling: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long training is: steps, those of warm-up, and the examples that they take in all."""

    num_train_steps: int
    num_warmup_steps: int
    num_examples: int


def run(values):
    """Does what the flags ask for: for one task or several, with one seed or several."""
    names = (values.task_name or "").split(",")
    if len(names) == 1:
        run_task(values)
        return
    commands = {name: one_of_several(values, name) for name in names}
    for command in commands.values():  # before any of them takes an hour
        check_files(command)
    rows = {}
    for name, command in commands.items():
        logger.info("task %s: %s", name, command.output_dir)
        rows[name] = run_task(command)
        keras.utils.clear_session()
    repeats.write_table(os.path.join(values.output_dir, repeats.TASKS), "task", rows)


def one_of_several(values, name):
    """The flags for one task among several: its files and its results lie in folders of its name."""
    task = tasks.find(name)
    return repeats.changed(values, task_name=task.name, data_dir=os.path.join(values.data_dir, task.name),
                           output_dir=os.path.join(values.output_dir, task.name))


def check_files(values):
    """`UserError` where a file of the task that the flags ask for is not there."""
    task = tasks.find(values.task_name)
    for kind, wanted in (("train", values.do_train), ("dev", values.do_eval), ("test", values.do_predict)):
        if wanted:
            examples.find_table(task, (task.splits_of(kind) or [kind])[0], values.data_dir,
                                find_language(values, task))


def run_task(values):
    """Does what the flags ask for with one task, and returns the metrics of the evaluation, {} without one."""
    repeats.check(values, training.make_runtime(values).kind)
    if values.num_seeds == 1:
        return run_once(values)
    if values.task_name is None:
        raise UserError("--task_name is missing: --num_seeds needs to know by which score the best is chosen")
    best_by = values.best_metric if values["best_metric"].present else official_metric(tasks.find(values.task_name))
    metrics = repeats.over_seeds(values, run_once, best_by)
    if values.do_predict:
        run_once(repeats.changed(values, do_train=False, do_eval=False))
    return metrics


def official_metric(task):
    """The metric that a task's results are told by."""
    return f"eval_{task.scores[0]}" if task.scores else "eval_accuracy"


def run_once(values):
    """Checks all that can be checked, then trains, evaluates and predicts as asked -> the metrics of the evaluation."""
    runtime = training.make_runtime(values)
    start_from = None if values.init_checkpoint is None else model_dir.find(values.init_checkpoint)
    setup = prepare(values, start_from)
    values.max_seq_length = setup.max_seq_length  # for the parts that all scripts share
    wanted = {"train": values.do_train, "dev": values.do_eval or values.do_train and values.eval_every_steps,
              "test": values.do_predict}
    data = {kind: read_data(values, setup, kind) for kind in wanted if wanted[kind]}
    if values.do_train:
        rows = data["train"]["train"]
        plan = make_plan(values, len(rows))
        feed = training_feed(values, runtime, rows, plan)
        start = training.find_start(values, runtime, feed, start_from, fingerprint(values, setup, rows),
                                    scores.metric_names(setup.task))
    with runtime.start().scope():
        model = modeling.BertForClassification(setup.config, setup.task.num_classes, pooling=setup.pooling,
                                               dtype=runtime.policy)
        objective = build_objective(setup.task)
        predict = answers.build_predict(model, objective, runtime, training.make_sizes(values, runtime))
        evaluate = functools.partial(measure, values, setup.task, objective, predict, data.get("dev"))
        if values.do_train:
            state = training.prepare(values, runtime, model, start, plan.num_train_steps, plan.num_warmup_steps)
            logger.info("%d steps, %d of warm-up, over %d examples", plan.num_train_steps, plan.num_warmup_steps,
                        plan.num_examples)
            step = training.run(values, runtime, state, objective, feed, plan.num_train_steps, evaluate,
                                functools.partial(write_model_dir, values, setup))
        else:
            step = models.restore(values, model, setup.prefixes[0])
        metrics = evaluate() if values.do_eval else {}
        if values.do_eval:
            write_metrics(values, runtime, step, metrics)
        if values.do_predict:
            write_predictions(values, runtime, predict, data["test"])
    return metrics


def prepare(values, start_from):
    """The `Setup` of the flags and of the folders of the newest checkpoint in --output_dir and --init_checkpoint."""
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
    if values.task_name is None and not known:
        raise UserError("--task_name is missing: it says which task's files --data_dir holds")
    task = tasks.find(info["task"] if values.task_name is None else values.task_name)
    if known and not values.do_train:
        if info["labels"] != list(task.labels):
            raise UserError(f"--task_name={task.name}, but {prefix} was trained on {info['task']}, whose labels are "
                            f"{info['labels'] or 'scores'}, not {list(task.labels) or 'scores'}")
        if info["task"] != task.name:
            logger.warning("%s was trained on %s, not on %s", prefix, info["task"], task.name)
    return task


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
    noted = info.get("max_seq_length") if "labels" in info else None
    given = values.max_seq_length
    if None not in (given, noted) and given != noted and not values.do_train:
        raise UserError(f"--max_seq_length={given}, but {prefix} was trained with {noted}; leave the flag out")
    length = next((choice for choice in (given, noted) if choice is not None), MAX_SEQ_LENGTH)
    if not features.MIN_SEQ_LENGTH <= length <= config.max_position_embeddings:
        raise UserError(f"--max_seq_length={length} must lie between {features.MIN_SEQ_LENGTH} and the model's "
                        f"{config.max_position_embeddings} positions (max_position_embeddings in its config)")
    return length


def find_pooling(values, info, prefix):
    """What the classifier reads: as --pooling says, else as the classifier's folder does, else the first token."""
    noted = info.get("pooling", "cls") if "labels" in info else None
    given = values.pooling
    if None not in (given, noted) and given != noted and not values.do_train:
        raise UserError(f"--pooling={given}, but {prefix} was trained with {noted}; leave the flag out")
    return given or noted or "cls"


def read_data(values, setup, kind):
    """The features of a kind of split ("dev": dev and, where its file is there, dev_mismatched) by its name."""
    def find(split):
        return examples.find_table(setup.task, split, values.data_dir, setup.language)

    first, *others = setup.task.splits_of(kind) or [kind]
    tables = {first: find(first)}
    for split in others:
        try:
            tables[split] = find(split)
        except UserError as error:
            logger.info("%s; it is left out", error)
    made = {}
    for split, (path, table) in tables.items():
        rows = examples.read(path, table, setup.task, setup.language)
        made[split] = features.convert(rows, path, setup.tokenizer, setup.max_seq_length, setup.task)
        if setup.config.type_vocab_size < 2 and (made[split].first_lengths < made[split].lengths).any():
            raise UserError(f"{path} holds pairs of texts, the model has one segment (type_vocab_size in its config)")
    return made


def make_plan(values, num_examples):
    """The `Plan` of training on `num_examples` for --num_train_epochs."""
    batch_size = values.train_batch_size
    if values.original_steps:
        steps = int(num_examples / batch_size * values.num_train_epochs)
        total = steps * batch_size
    else:
        # As the flag is written: a tenth of 30 examples is 3, which in floating point is a little more.
        total = math.ceil(num_examples * fractions.Fraction(str(values.num_train_epochs)))
        steps = math.ceil(total / batch_size)
    if not steps:
        raise UserError(f"--num_train_epochs={values.num_train_epochs} of {num_examples} examples do not fill a batch "
                        f"of {batch_size}, so that --original_steps makes no step")
    return Plan(steps, int(steps * values.warmup_proportion), total)


def training_feed(values, runtime, rows, plan):
    """The batches of training: all examples in an order that seed and epoch decide, the last batch short."""
    sizes = training.make_sizes(values, runtime)
    lengths = rows.lengths if values.group_by_length else None

    def order(start):
        return batching.training_order(len(rows), values.train_batch_size, values.seed, start, end=plan.num_examples,
                                       lengths=lengths)

    return training.training_feed(values, runtime, order, lambda numbers: features.make_batch(rows, numbers, sizes),
                                  rows.where)


def fingerprint(values, setup, rows):
    """All that decides the trajectory of a run, besides what is so for every script."""
    names = ("num_train_epochs", "warmup_proportion", "original_steps", "group_by_length")
    return {"script": "run_classifier", "task": setup.task.name, "examples": rows.digest,
            "config": setup.config.to_dict(), "pooling": setup.pooling, **{name: values[name].value for name in names}}


def write_model_dir(values, setup, **info):
    """Makes --output_dir a classifier of its own; predictions of an earlier run do not stay beside it."""
    for split in setup.task.splits_of("test"):
        files.remove(results_path(values, split))
    tokenizer = setup.tokenizer
    info |= {"task": setup.task.name, "labels": list(setup.task.labels), "max_seq_length": setup.max_seq_length,
             "pooling": setup.pooling, "do_lower_case": tokenizer.do_lower_case,
             "strip_accents": tokenizer.basic_tokenizer.strip_accents}
    model_dir.write(values.output_dir, setup.config, info, setup.vocab_file)


def measure(values, task, objective, predict, dev):
    """The metrics of all development sets by name; those of dev_mismatched end in `_mismatched`."""
    metrics = {}
    for split, rows in dev.items():
        logits = predict(rows, values.eval_batch_size)
        found = scores.evaluate(task, objective, logits, rows.label_ids, values.eval_batch_size)
        metrics |= {name + split.removeprefix("dev"): value for name, value in found.items()}
    return metrics


def write_metrics(values, runtime, step, metrics):
    """Writes `eval_results.txt`."""
    if runtime.is_chief:
        files.make_folder(values.output_dir)
        logger.info("evaluation at step %d:", step)
        run_dir.write_results(values.output_dir, {"global_step": step, **metrics})


def write_predictions(values, runtime, predict, test):
    """Writes `test_results.tsv` and the like: a line of probabilities, or a score, for each example."""
    for split, rows in test.items():
        answered = answers.probabilities(predict(rows, values.predict_batch_size))
        if runtime.is_chief:
            files.make_folder(values.output_dir)
            answers.write_test_results(results_path(values, split), answered)
            logger.info("%s: %d predictions", results_path(values, split), len(answered))


def results_path(values, split):
    """Where the predictions of a test split go."""
    return os.path.join(values.output_dir, TEST_RESULTS.format(split.removeprefix("test")))
