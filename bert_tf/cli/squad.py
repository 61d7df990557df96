"""What the flags of run_squad.py set in motion: checks of all that is read, training, evaluation, answers."""

import dataclasses
import functools
import hashlib
import logging
import os

import numpy as np

from bert_tf import files, model_dir, modeling, run_dir
from bert_tf.cli import common, fine_tuning, repeats, training
from bert_tf.errors import UserError
from bert_tf.squad import answers, examples, features, outputs, reports, scores
from bert_tf.squad.objective import Objective

logger = logging.getLogger("bert_tf")

KIND = "span"  # of the model, in its folder's model.json
MISTAKES = "mistakes.tsv"
# All that a run leaves beside its model.
RESULTS = (run_dir.RESULTS, answers.PREDICTIONS, answers.NBEST, answers.NULL_ODDS, MISTAKES)


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is decided before any data is read: the model's files, the windows, what is asked and how it is scored."""

    base: fine_tuning.Base
    max_seq_length: int
    doc_stride: int
    max_query_length: int
    version_2_with_negative: bool
    language: str
    threshold: float


@dataclasses.dataclass(frozen=True)
class Data:
    """A file's questions, and its windows as a model reads them."""

    examples: list
    features: features.Features


def run(values):
    """Does what the flags ask for: with one seed or several."""
    repeats.run(values, training.make_runtime(values).kind, run_once,
                lambda metrics: "best_f1" if "best_f1" in metrics else "f1", RESULTS)


def run_once(values):
    """Checks all that can be checked, then trains, evaluates and answers as asked -> the evaluation's metrics."""
    runtime = training.make_runtime(values)
    start_from = None if values.init_checkpoint is None else model_dir.find(values.init_checkpoint)
    setup = prepare(values, start_from)
    values.max_seq_length = setup.max_seq_length  # for the parts that all scripts share
    objective = Objective(values.span_softmax)
    sizes = training.make_sizes(values, runtime, static=values.span_softmax == "all")
    asked = {path: read_asked(values, setup, path) for path in asked_files(values)}
    course = prepare_training(values, runtime, setup, sizes, start_from, asked) if values.do_train else None
    with runtime.start().scope():
        model = modeling.BertForQuestionAnswering(setup.base.config, dtype=runtime.policy)
        predict = outputs.build_predict(model, objective, runtime, sizes)
        find = functools.cache(functools.partial(find_answers, values, setup, predict, asked))

        def evaluate():
            find.cache_clear()  # the weights are others than before
            return measure(setup, asked[eval_file(values)].examples, find(eval_file(values)))

        step = fine_tuning.give_weights(values, runtime, model, objective, setup.base, course, evaluate,
                                        functools.partial(write_model_dir, values, setup))
        find.cache_clear()
        metrics = {}
        if values.do_eval:
            metrics = evaluate()
            found = find(eval_file(values))
            setup = with_best_threshold(values, setup, asked[eval_file(values)].examples, found)
            if runtime.is_chief:
                write_evaluation(values, setup, step, metrics, asked[eval_file(values)], found)
        elif values.do_train:
            setup = with_noted_threshold(values, setup)
        if values.do_predict:
            found = find(values.predict_file)
            if runtime.is_chief:
                write_predictions(values, setup, asked[values.predict_file].examples, found)
    return {name: value for name, value in metrics.items() if not name.endswith("total")}


def prepare(values, start_from):
    """The `Setup` of the flags and of the folders of the checkpoints in --output_dir and at --init_checkpoint."""
    base = fine_tuning.find_base(values, start_from)
    is_reader = base.info.get("kind") == KIND
    noted = base.info if is_reader else {}

    def agreed(flag, usual):
        found = base.agreed(values, flag, noted.get(flag))
        return usual if found is None else found

    if base.config.type_vocab_size < 2:
        raise UserError("a question and its context are two segments, the model has one (type_vocab_size in its "
                        "config)")
    setup = Setup(base, base.length(values, 384, features.SPECIAL + 2, is_reader), agreed("doc_stride", 128),
                  agreed("max_query_length", 64), agreed("version_2_with_negative", False),
                  values.language or noted.get("language", "en"), find_threshold(values, base, noted))
    features.check_lengths(setup.max_seq_length, setup.doc_stride, setup.max_query_length)
    return setup


def find_threshold(values, base, noted):
    """The threshold for no answer: the flag's, else what the model's folder noted, else the original's.

    What is noted was found for the folder's weights: others that are trained or asked for, and scores that are to find
    it anew, are told at the original's.
    """
    given, name = values.null_score_diff_threshold, "null_score_diff_threshold"
    if given is not None or values.do_train or values.do_eval or name not in noted:
        return float(given or 0.0)
    if not model_dir.is_evaluated(noted, base.prefixes[0], values.use_ema):
        logger.warning("%s: the threshold for no answer was found for other weights of the folder; 0 is used, "
                       "--%s gives another", base.prefixes[0], name)
        return 0.0
    return float(noted[name])


def eval_file(values):
    """The file that is evaluated on."""
    return values.eval_file or values.predict_file


def asked_files(values):
    """The files whose questions the model will be asked, each once."""
    return dict.fromkeys([eval_file(values)] * common.evaluates(values) + [values.predict_file] * values.do_predict)


def read_asked(values, setup, path):
    """The `Data` of a file to be answered; one that is only predicted need not have answers."""
    is_scored = path == eval_file(values) and common.evaluates(values)
    found = examples.read(path, False, setup.version_2_with_negative, is_scored)
    if is_scored and not any(map(scores.is_scored, found)):
        raise UserError(f"{path}: no question has a gold answer, so that nothing can be scored; predict without "
                        "--do_eval")
    return Data(found, make_features(values, setup, path, False, lambda: found))


def make_features(values, setup, path, is_training, read):
    """The `Features` of a file, from the cache where nothing has changed since they were made of `read()`."""
    tokenizer, drops = setup.base.tokenizer, is_training and values.drop_windows_without_answer
    lengths = setup.max_seq_length, setup.doc_stride, setup.max_query_length
    settings = features.decided_by(tokenizer, *lengths, is_training, setup.version_2_with_negative, drops)

    def make():
        return features.convert(read(), path, tokenizer, *lengths, is_training, values.num_workers, drops).arrays

    return features.Features(path, **fine_tuning.kept(values, "squad", path, [setup.base.vocab_file], settings, make))


def prepare_training(values, runtime, setup, sizes, start_from, asked):
    """The `Course` of training; `asked` has the `Data` to be evaluated on."""
    def read():
        return examples.read(values.train_file, True, setup.version_2_with_negative)

    rows = make_features(values, setup, values.train_file, True, read)
    if not len(rows):
        raise UserError(f"{values.train_file}: no window to train on; all contexts are without a word"
                        + ", or --drop_windows_without_answer left all windows out"
                        * values.drop_windows_without_answer)
    dev = asked[eval_file(values)] if common.evaluates(values) else None
    names = scores.metric_names(setup.version_2_with_negative, dev.examples if dev else [])
    return fine_tuning.make_course(
        values, runtime, rows, lambda numbers: features.make_batch(rows, numbers, sizes),
        fine_tuning.make_plan(values, len(rows), num_counted=len(rows.places)), start_from,
        fingerprint(values, setup, rows), names, dev and digest_of(values, setup, dev))


def digest_of(values, setup, dev):
    """A hexadecimal number that two evaluations share which are of the same questions, by the same rules."""
    names = ("n_best_size", "max_answer_length", "null_score_diff_threshold", "answer_text")
    rules = [setup.language, *(values[name].value for name in names)]
    gold = [(example.qas_id, example.answers, example.is_impossible) for example in dev.examples]
    return hashlib.sha256(repr((dev.features.digest, rules, gold)).encode()).hexdigest()


def fingerprint(values, setup, rows):
    """All that decides the trajectory of a run, besides what is so for every script."""
    names = ("num_train_epochs", "warmup_proportion", "original_steps", "group_by_length", "span_softmax")
    return {"script": "run_squad", "examples": rows.digest, "config": setup.base.config.to_dict(),
            **{name: values[name].value for name in names}}


def write_model_dir(values, setup, **info):
    """Makes --output_dir a model of its own; results of other weights do not stay beside it."""
    for name in RESULTS:
        files.remove(os.path.join(values.output_dir, name))
    names = ("max_seq_length", "doc_stride", "max_query_length", "version_2_with_negative", "language")
    info = {"task": "squad", "kind": KIND, **{name: getattr(setup, name) for name in names},
            **fine_tuning.casing(setup.base.tokenizer), **info}
    model_dir.write(values.output_dir, setup.base.config, info, setup.base.vocab_file)


def find_answers(values, setup, predict, asked, path):
    """The `answers.Answer`s to all questions of a file, by the model as it is now."""
    settings = answers.Settings(values.n_best_size, values.max_answer_length, setup.version_2_with_negative,
                                setup.threshold, values.answer_text)
    data = asked[path]
    logits = predict(data.features, values.predict_batch_size)
    return answers.find(data.examples, data.features, setup.base.tokenizer, *logits, settings)


def texts_of(questions, found):
    """The answers' texts by the questions' ids."""
    return {question.qas_id: answer.text for question, answer in zip(questions, found)}


def odds_of(questions, found):
    """Of 2.0, what a threshold decides between, by the questions' ids: the best text, "" for none, and null odds."""
    ids, best = [question.qas_id for question in questions], [answer.best_non_null for answer in found]
    return {"non_null": dict(zip(ids, [entry.text if entry else "" for entry in best])),
            "null_odds": dict(zip(ids, [answer.null_odds for answer in found]))}


def measure(setup, questions, found):
    """The official scores of the answers by name; of 2.0 at the threshold in use and at the best ones."""
    odds = odds_of(questions, found) if setup.version_2_with_negative else {}
    return scores.evaluate(questions, texts_of(questions, found), **odds, language=setup.language,
                           version_2_with_negative=setup.version_2_with_negative)


def with_best_threshold(values, setup, questions, found):
    """The `Setup` with the threshold under which F1 is best, unless a flag gives one or all questions have answers."""
    if not setup.version_2_with_negative or values.null_score_diff_threshold is not None:
        return setup
    best = scores.threshold(questions, **odds_of(questions, found), language=setup.language)
    logger.info("no answer is given where the null odds exceed %.6g, which makes F1 best on %s", best,
                eval_file(values))
    return dataclasses.replace(setup, threshold=best)


def with_noted_threshold(values, setup):
    """The `Setup` with what --output_dir notes of its weights, where a flag says nothing: of new ones nothing."""
    if values.null_score_diff_threshold is not None:
        return setup
    noted = model_dir.read_folder(values.output_dir).get("null_score_diff_threshold", 0.0)
    return dataclasses.replace(setup, threshold=float(noted))


def write_evaluation(values, setup, step, metrics, data, found):
    """Writes `eval_results.txt` and the mistakes; notes a threshold that was found where --output_dir is the model."""
    files.make_folder(values.output_dir)
    logger.info("evaluation at step %d:", step)
    run_dir.write_results(values.output_dir, {"global_step": step, **metrics})
    said = answers.with_threshold(found, setup.threshold)
    per_question = scores.by_question(data.examples, texts_of(data.examples, said), setup.version_2_with_negative,
                                      setup.language)
    num_windows = np.bincount(data.features.example_numbers, minlength=len(data.examples))
    reports.write_mistakes(os.path.join(values.output_dir, MISTAKES), data.examples, said, num_windows,
                           per_question)
    if not any(answer.text for answer in said):
        logger.warning("%s: every question is taken to have no answer; train for more epochs, or try another --seed "
                       "or --learning_rate", eval_file(values))
    usual = model_dir.read_folder(values.output_dir).get("use_ema", False)
    if setup.version_2_with_negative and values.null_score_diff_threshold is None and (
            values.use_ema in (None, usual)):  # else it is for other weights than the folder's
        model_dir.note(values.output_dir, null_score_diff_threshold=setup.threshold)


def write_predictions(values, setup, questions, found):
    """Writes the answers as the original does."""
    files.make_folder(values.output_dir)
    said = answers.with_threshold(found, setup.threshold)
    answers.write(values.output_dir, questions, said, setup.version_2_with_negative)
    unanswered = sum(not answer.text for answer in said)
    logger.info("%s: %d answers, %d of them none", os.path.join(values.output_dir, answers.PREDICTIONS), len(said),
                unanswered)
