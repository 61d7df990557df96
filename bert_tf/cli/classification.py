"""What the flags of run_classifier.py set in motion: checks of all that is read, training, evaluation, prediction."""

import functools
import logging
import os

import keras

from bert_tf import checkpoint, files, model_dir, modeling, run_dir
from bert_tf.classification import answers, examples, features, reports, scores, submission, tasks
from bert_tf.classification.objective import Distillation, balanced_class_weights, build_objective, log_odds
from bert_tf.cli import classifier, common, fine_tuning, repeats, training
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

TEST_RESULTS, PREDICTIONS = "test_results{}.tsv", "predictions{}.tsv"
MISMATCHED = "_mismatched"  # MNLI's second sets
# All that a run leaves beside its model.
RESULTS = (run_dir.RESULTS, *(name.format(suffix) for name in (TEST_RESULTS, PREDICTIONS, *reports.NAMES)
                              for suffix in ("", MISMATCHED)), *(row.file for row in submission.TEST_SETS))


def run(values):
    """Does what the flags ask for: for one task or several, with one seed or several."""
    names = (values.task_name or "").split(",")
    if len(names) == 1:
        run_task(values)
        return
    repeats.check(values, training.make_runtime(values).kind)
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
    for kind, wanted in (("train", values.do_train), ("dev", common.evaluates(values)), ("test", values.do_predict)):
        if wanted:
            examples.find_table(task, (task.splits_of(kind) or [kind])[0], values.data_dir,
                                classifier.find_language(values, task))


def run_task(values):
    """Does what the flags ask for with one task, and returns the metrics of the evaluation, {} without one."""
    return repeats.run(values, training.make_runtime(values).kind, run_once, official_metric, RESULTS)


def official_metric(metrics):
    """The one of a run's metrics that its task's results are told by."""
    official = (name for name in metrics if name not in ("loss", "eval_loss", "eval_accuracy"))
    usual = "eval_accuracy" if "eval_accuracy" in metrics else "eval_loss"
    return next((name for name in official if not name.endswith(MISMATCHED)), usual)


def run_once(values):
    """Checks all that can be checked, then trains, evaluates and predicts as asked -> the evaluation's metrics."""
    runtime = training.make_runtime(values)
    start_from = None if values.init_checkpoint is None else model_dir.find(values.init_checkpoint)
    setup = classifier.prepare(values, start_from)
    values.max_seq_length = setup.max_seq_length  # for the parts that all scripts share
    tables = find_tables(values, setup)
    data = {kind: {split: classifier.read_features(values, setup, path, table)
                   for split, (path, table) in tables[kind].items()} for kind in tables}
    objective = make_objective(values, setup.task, data)
    course = None
    if values.do_train:
        course = prepare_training(values, runtime, setup, data, tables["train"]["train"], start_from)
    with runtime.start().scope():
        model = modeling.BertForClassification(setup.base.config, setup.task.num_classes, pooling=setup.pooling,
                                               dtype=runtime.policy)
        if course and setup.task.kind == "multi":
            model.classifier.output_bias.assign(log_odds(data["train"]["train"].label_ids))
        predict = answers.build_predict(model, objective, runtime, training.make_sizes(values, runtime))

        def evaluate():
            return measure(values, setup, objective, data["dev"], predict_all(predict, data["dev"],
                                                                              values.eval_batch_size))

        step = fine_tuning.give_weights(values, runtime, model, objective, setup.base, course, evaluate,
                                        functools.partial(write_model_dir, values, setup))
        metrics = {}
        if values.do_eval:
            logits = predict_all(predict, data["dev"], values.eval_batch_size)
            metrics = measure(values, setup, objective, data["dev"], logits)
            if runtime.is_chief:
                write_evaluation(values, setup, step, metrics, tables["dev"], data["dev"], logits)
        if values.do_predict:
            logits = predict_all(predict, data["test"], values.predict_batch_size)
            if runtime.is_chief:
                write_predictions(values, setup, data["test"], logits)
    return metrics


def find_tables(values, setup):
    """`(path, table)` of all that the flags ask for: by kind (train, dev, test), then by split (dev_mismatched)."""
    wanted = {"train": values.do_train, "dev": common.evaluates(values), "test": values.do_predict}
    return {kind: classifier.find_tables(values, setup, kind) for kind in wanted if wanted[kind]}


def make_objective(values, task, data):
    """What is minimised, as the flags say."""
    weights = values.class_weights
    if weights == "balanced":
        weights = balanced_class_weights(task, data["train"]["train"].label_ids) if values.do_train else None
    elif weights is not None:
        try:
            weights = [float(weight) for weight in weights.split(",")]
        except ValueError as error:
            raise UserError(f"--class_weights={values.class_weights} must be balanced, or a number for each label "
                            "with commas between them") from error
    return build_objective(task, values.label_smoothing, weights,
                           Distillation(values.distillation_temperature, values.distillation_alpha))


def prepare_training(values, runtime, setup, data, table, start_from):
    """The `Course` of training on the features of `table`; a teacher is asked here."""
    rows, sizes = data["train"]["train"], training.make_sizes(values, runtime)
    teacher = classifier.find_teacher(values, setup, runtime) if values.teacher else None
    ask = functools.partial(classifier.ask_teacher, values, setup, teacher, *table)
    teach = functools.cache(ask) if teacher else None

    def make(numbers):
        batch = features.make_batch(rows, numbers, sizes)
        return batch if teach is None else {**batch, "teacher_logits": teach()[numbers]}

    evaluated_on = " ".join(dev.digest for dev in data.get("dev", {}).values()) or None
    course = fine_tuning.make_course(values, runtime, rows, make, fine_tuning.make_plan(values, len(rows)), start_from,
                                     fingerprint(values, setup, rows, teacher), scores.metric_names(setup.task),
                                     evaluated_on)
    if teach:
        teach()  # now, before the model is built that learns from it
    return course


def fingerprint(values, setup, rows, teacher):
    """All that decides the trajectory of a run, besides what is so for every script."""
    names = ["num_train_epochs", "warmup_proportion", "original_steps", "group_by_length", "label_smoothing",
             "class_weights"]
    if teacher:
        names += ["distillation_temperature", "distillation_alpha"]
    return {"script": "run_classifier", "task": setup.task.name, "labels": list(setup.task.labels),
            "examples": rows.digest,
            "config": setup.base.config.to_dict(), "pooling": setup.pooling,
            "teacher": teacher and checkpoint.digest(teacher), **{name: values[name].value for name in names}}


def write_model_dir(values, setup, **info):
    """Makes --output_dir a classifier of its own; results of other weights do not stay beside it."""
    for name in RESULTS:
        files.remove(os.path.join(values.output_dir, name))
    info |= {"task": setup.task.name, "kind": setup.task.kind, "labels": list(setup.task.labels),
             "max_seq_length": setup.max_seq_length, "pooling": setup.pooling,
             **({"columns": said} if (said := classifier.columns_said(values)) else {}),
             **fine_tuning.casing(setup.base.tokenizer)}
    model_dir.write(values.output_dir, setup.base.config, info, setup.base.vocab_file)


def predict_all(predict, data, batch_size):
    """The logits of every split of a kind by its name."""
    return {split: predict(rows, batch_size) for split, rows in data.items()}


def measure(values, setup, objective, dev, logits):
    """The metrics of all development sets by name; those of dev_mismatched end in `_mismatched`."""
    metrics = {}
    for split, rows in dev.items():
        found = scores.evaluate(setup.task, objective, logits[split], rows.label_ids, values.eval_batch_size)
        metrics |= {name + suffix_of(split): value for name, value in found.items()}
    return metrics


def write_evaluation(values, setup, step, metrics, tables, dev, logits):
    """Writes `eval_results.txt`, and of every development set what its mistakes are."""
    files.make_folder(values.output_dir)
    logger.info("evaluation at step %d:", step)
    run_dir.write_results(values.output_dir, {"global_step": step, **metrics})
    for split, rows in dev.items():
        reports.write(values.output_dir, setup.task, logits[split], rows,
                      classifier.read_examples(setup, *tables[split]), suffix_of(split))
        same = reports.collapsed(setup.task, logits[split], rows.label_ids)
        if same:
            logger.warning("%s: every example is taken for %s; the training has collapsed, try another --seed, a "
                           "lower --learning_rate or more epochs", rows.path, same)


def write_predictions(values, setup, test, logits):
    """Writes what is predicted for every test set: as the original does, as a table, and for GLUE's leaderboard."""
    files.make_folder(values.output_dir)
    for split, rows in test.items():
        paths = [os.path.join(values.output_dir, name) for name in names_of_predictions(setup.task, split)]
        answers.write_test_results(paths[0], answers.probabilities(logits[split], setup.task.kind))
        answers.write_predictions(paths[1], setup.task, logits[split], rows.lines, rows.truncated)
        for path in paths[2:]:
            submission.write(path, setup.task, answers.decisions(logits[split], setup.task.kind), rows.lines)
        logger.info("%s: %d predictions", paths[1], len(rows))


def names_of_predictions(task, split):
    """The files that the predictions of a test split go to: the original's, the table, and GLUE's where it has one."""
    leaderboard = submission.find(task, split)
    return [TEST_RESULTS.format(suffix_of(split)), PREDICTIONS.format(suffix_of(split)),
            *([leaderboard.file] if leaderboard else [])]


def suffix_of(split):
    """What the names of a split's files and metrics end in: "_mismatched", or nothing."""
    return split[len(split.partition("_")[0]):]
