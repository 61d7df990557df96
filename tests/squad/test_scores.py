import functools
import itertools
import json
import logging
import math
import random
import re
import types

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bert_tf.errors import UserError
from bert_tf.squad import examples as squad_examples
from bert_tf.squad import scores

SQUAD_1 = ["squad_v1/xquad/xquad.en.json", "squad_v1/xquad_split/train-v1.1.json",
           "squad_v1/xquad_split/dev-v1.1.json", "squad_v1/tydiqa_goldp/tydiqa.goldp.en.train.json",
           "squad_v1/tydiqa_goldp/tydiqa.goldp.en.dev.json"]
SQUAD_2 = ["squad_v2/cs224n/train-v2.0.json", "squad_v2/cs224n/dev-v2.0.json", "squad_v2/mini/train-v2.0.json",
           "squad_v2/mini/dev-v2.0.json"]
CHINESE = ["squad_v1/xquad/xquad.zh.json", "squad_zh/cmrc2018/cmrc2018_trial.json",
           "squad_zh/cmrc2018/cmrc2018_dev.json", "squad_zh/drcd/DRCD_dev.json"]


def ask(*answers, impossible=False, name="q"):
    return squad_examples.SquadExample(name, "Who?", squad_examples.Context.of("A text."), answers, impossible)


def score(gold, said, version_2_with_negative=False, language="en"):
    """Exact match and F1 of one text for one question with the gold answers `gold`."""
    answers = [gold] if isinstance(gold, str) else gold
    found = scores.by_question([ask(*answers, impossible=not answers)], {"q": said}, version_2_with_negative, language)
    return tuple(found[:, 0].tolist())


def perturbed(answer, context, r):
    """A text that may be predicted where `answer` is right, or nothing."""
    start = r.randrange(len(context.text))
    wrong = context.text[start:start + r.randint(1, 30)]
    cut = r.randint(0, len(answer))
    return r.choice([answer, answer[:cut], answer[cut:], f"{answer} {wrong}", f"{wrong} {answer}", wrong + answer,
                     answer.upper(), answer.title(), f"“{answer}”", f"({answer}).", answer.replace(" ", ", "),
                     f"the {answer}", f"An {answer} a", f" {answer}\n", "", wrong])


def made_up(path, version_2_with_negative, seed=1):
    """The examples of a file, a prediction for each as a bad model would give it, and null odds."""
    r = random.Random(seed)
    asked = squad_examples.read(str(path), False, version_2_with_negative)
    predicted = {example.qas_id: perturbed(r.choice(example.answers or ("",)), example.context, r)
                 for example in asked}
    return asked, predicted, {example.qas_id: r.gauss(-2 + 3 * example.is_impossible, 2) for example in asked}


def peer(asked, predicted, null_odds=None, threshold=math.inf):
    """What Hugging Face's copy of the official script of 2.0 finds."""
    metrics = pytest.importorskip("transformers.data.metrics.squad_metrics")
    golds = [types.SimpleNamespace(qas_id=example.qas_id, answers=[{"text": text} for text in example.answers])
             for example in asked]
    return metrics.squad_evaluate(golds, predicted, null_odds, threshold)


@pytest.mark.parametrize("gold, said, exact, f1", [
    ("the Cat's  Paw!", "cats paw", 1, 1), ("cat", "a cat sat", 0, 2 / 3), ("b b c", "b c c", 0, 2 / 3),
    ("cat", "dog", 0, 0), ("cat", "", 0, 0), ("x-ray", "xray", 1, 1), ("x ray", "xray", 0, 0),
    ("theatre an", "theatre", 1, 1), ("Ⅳ", "ⅳ", 1, 1), ("a\u00a0cat", "Cat", 1, 1), ("“cat”", "cat", 0, 0),
    (("dog", "black cat"), "cat", 0, 2 / 3), (("dog", "cat"), "CAT", 1, 1)])
def test_english_by_hand(gold, said, exact, f1):
    for version_2_with_negative in (False, True):
        assert score(gold, said, version_2_with_negative) == (exact, pytest.approx(f1))


def test_what_is_left_of_a_text_may_be_nothing():
    # The script of 1.1 finds no word in common, that of 2.0 the same nothing.
    assert score("The", "a") == (1, 0)
    assert score((), "the", True) == (1, 1)
    # It compares with "" only where no gold answer holds a word.
    assert score(("the", "."), "!", True) == (1, 1)
    assert score(("the", "cat"), "the", True) == (0, 0)


@pytest.mark.parametrize("gold, said, exact, f1", [
    ("北京市", "北京", 0, 0.8), ("北京，市。", "北京市", 1, 1), ("甲乙丙丁", "甲乙丁丙", 0, 0.5),
    ("iPhone 4S手机", "iphone 4s", 0, 2 * 2 / (4 + 2)), ("1,000米", "1,000", 0, 2 / 3), ("1,000", "1000", 0, 0),
    ("“甲”", "甲", 1, 1), ("「甲」", "『甲』", 1, 1), ("甲", "", 0, 0), ("甲.", "甲", 0, 2 / 3),
    ("don't甲", "n't", 0, 0.5), ('"abc"', 'abc"', 0, 2 * 2 / (3 + 2)), (("乙", "甲乙"), "甲", 0, 2 / 3),
    ("——", "—", 0, 2 / 3)])
def test_chinese_by_hand(gold, said, exact, f1):
    assert score(gold, said, language="zh") == (exact, pytest.approx(f1))


@pytest.mark.parametrize("run, words", [
    ("u.s. $3.50, o.k.", ["u.s.", "$", "3.50", ",", "o.k", "."]),
    ('"a" ("b")', ["``", "a", "''", "(", "``", "b", "''", ")"]),
    ("i can't; 'we' cannot...", ["i", "ca", "n't", ";", "'", "we", "'", "can", "not", "..."]),
    ("rock'n'roll's 1990–95", ["rock'n'roll", "'s", "1990", "–", "95"]), ("", []), (" ", [])])
def test_words_by_hand(run, words):
    assert scores.words(run) == words


@pytest.mark.parametrize("path", SQUAD_1 + CHINESE)
def test_scores_of_1_1_are_those_of_an_independent_implementation(shared, path):
    asked, predicted, _ = made_up(shared(f"data/{path}"), False)
    expected = peer(asked, predicted)
    assert 20 < expected["exact"] < expected["f1"] < 90
    assert scores.evaluate(asked, predicted) == pytest.approx(
        {"exact_match": expected["exact"], "f1": expected["f1"]}, rel=1e-12)


@pytest.mark.parametrize("path", SQUAD_2)
def test_scores_of_2_0_are_those_of_an_independent_implementation(shared, path):
    asked, non_null, null_odds = made_up(shared(f"data/{path}"), True)
    predicted = {name: "" if null_odds[name] > 0.5 else text for name, text in non_null.items()}
    # What is best is found over all texts, whatever threshold the predictions in use were made with.
    expected = peer(asked, non_null, null_odds, 0.5)
    found = scores.evaluate(asked, predicted, null_odds, non_null, True)
    assert list(found) == list(expected)
    assert scores.metric_names(True, asked) == [name for name in found if not name.endswith(("total", "thresh"))]
    assert found == pytest.approx(expected, rel=1e-12)
    assert [found[f"best_{name}_thresh"] for name in scores.METRICS] == [
        expected[f"best_{name}_thresh"] for name in scores.METRICS]
    assert found["best_f1"] > 100 * found["NoAns_total"] / found["total"] > 20
    assert scores.threshold(asked, non_null, null_odds) == found["best_f1_thresh"]
    # Without the texts it is found over the predictions, as the official script does.
    assert scores.evaluate(asked, predicted, null_odds, None, True) == pytest.approx(
        peer(asked, predicted, null_odds), rel=1e-12)


@pytest.mark.parametrize("run", ["L64_ties", "L64_ties_thr-2.5", "L384_continuous", "L64_continuous_thr-2.5"])
def test_scores_of_the_original_s_predictions(shared, run):
    asked = squad_examples.read(str(shared("goldens/squad/dev-v2.0.json")), False, True)
    predicted = json.loads(shared(f"goldens/squad/pred_v2.0_{run}_predictions.json").read_text())
    odds = json.loads(shared(f"goldens/squad/pred_v2.0_{run.split('_thr')[0]}_null_odds.json").read_text())
    found = scores.evaluate(asked, predicted, odds, version_2_with_negative=True)
    assert found == pytest.approx(peer(asked, predicted, odds), rel=1e-12)


def cmrc_segments(text, punctuation="-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"):
    """CMRC 2018's segments of a text, by NLTK's tokenizer, and the text whose equality is an exact match."""
    kept = [character for character in text.lower().strip() if character not in punctuation]
    segments, run = [], ""
    for character in [*kept, "一"]:
        if "一" <= character <= "龥":
            segments += [*(nltk_words(run) if run else []), character]
            run = ""
        else:
            run += character
    return segments[:-1], "".join(kept)


@functools.cache
def nltk_words(run):
    return pytest.importorskip("nltk").word_tokenize(run, preserve_line=True)


def replayed_chinese(gold, said):
    """Exact match and F1 as CMRC 2018 has them, found by comparing from every pair of places on."""
    (a, text_a), (b, text_b) = cmrc_segments(gold), cmrc_segments(said)
    common = 0
    for i, j in itertools.product(range(len(a)), range(len(b))):
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a[i:], b[j:])) if a[i] == b[j] else ()
        common = max(common, len(list(same)))
    return text_a == text_b, 2 * common / (len(a) + len(b)) if common else 0


@pytest.mark.parametrize("path", CHINESE)
def test_chinese_scores_are_those_of_a_plain_replay(shared, path):
    asked, predicted, _ = made_up(shared(f"data/{path}"), False)
    each = [[replayed_chinese(gold, predicted[example.qas_id]) for gold in set(example.answers)] for example in asked]
    expected = np.array([np.max(pairs, axis=0) for pairs in each]).T
    np.testing.assert_allclose(scores.by_question(asked, predicted, language="zh"), expected, rtol=1e-12)
    found = scores.evaluate(asked, predicted, language="zh")
    assert 20 < found["exact_match"] < found["f1"] < 90
    assert list(found.values()) == pytest.approx((100 * expected.mean(axis=1)).tolist(), rel=1e-12)


@pytest.mark.parametrize("path", SQUAD_1[2:3] + CHINESE)
def test_words_are_nltk_s_in_all_contexts(shared, path):
    contexts = {example.context.text for example in squad_examples.read(str(shared(f"data/{path}")), False, False)}
    runs = {run for text in contexts for run in re.findall("[^一-龥]+", scores.remove_punctuation(text))}
    marked = [run for run in runs if not run.strip().isalnum()]
    assert len(marked) > 40
    assert [run for run in marked if scores.words(run) != nltk_words(run)] == []


TEXTS = st.sampled_from(["", "x", "x y", "y z", "the"])
QUESTION = st.tuples(st.sampled_from(["", "x", "x y", "z z x"]), TEXTS, st.integers(-3, 3))


@hypothesis.given(st.lists(QUESTION, min_size=1, max_size=8), st.sampled_from(scores.METRICS))
def test_the_threshold_reaches_the_best_of_all(questions, metric):
    asked = [ask(*[gold] * bool(gold), impossible=not gold, name=str(number))
             for number, (gold, _, _) in enumerate(questions)]
    # A text for a question without an answer counts as one, even if nothing is left of it when it is compared.
    texts = {str(number): "x" if said == "the" and not gold else said
             for number, (gold, said, _) in enumerate(questions)}
    odds = {str(number): float(odd) for number, (_, _, odd) in enumerate(questions)}

    def reached(threshold):
        said = {name: "" if odds[name] > threshold else text for name, text in texts.items()}
        return scores.evaluate(asked, said, version_2_with_negative=True)[metric]

    best = max(map(reached, (-99.0, *odds.values())))
    found = scores.threshold(asked, texts, odds, metric)
    assert reached(found) == pytest.approx(best)
    official = scores.evaluate(asked, texts, odds, version_2_with_negative=True)
    assert official[f"best_{metric}"] >= best - 1e-9
    if len(set(odds.values())) == len(odds) and min(odds.values()) > 0:
        assert official[f"best_{metric}"] == pytest.approx(best)
        assert found == official[f"best_{metric}_thresh"]


def test_where_nothing_should_be_answered_the_threshold_is_below_all_odds():
    asked = [ask(impossible=True, name="a"), ask("x", name="b")]
    texts, odds = {"a": "y", "b": "z"}, {"a": -7.0, "b": -3.0}
    found = scores.evaluate(asked, texts, odds, version_2_with_negative=True)
    assert (found["exact"], found["best_exact"], found["best_exact_thresh"]) == (0.0, 50.0, 0.0)
    assert scores.threshold(asked, texts, odds, "exact") == np.nextafter(-7.0, -8.0)
    assert scores.threshold(asked, texts, {"a": 7.0, "b": 3.0}, "exact") == 0.0


def test_missing_predictions_count_as_wrong_and_are_said(caplog):
    asked = [ask("x", name="a"), ask("y", name="b"), ask("z", name="c")]
    with caplog.at_level(logging.WARNING):
        assert scores.evaluate(asked, {"b": "y", "other": "x"}) == {
            "exact_match": pytest.approx(100 / 3), "f1": pytest.approx(100 / 3)}
    assert caplog.messages == ["2 of 3 questions have no prediction, which counts as wrong (a, c)"]
    asked = [ask(impossible=True, name="a"), ask(impossible=True, name="b")]
    assert scores.evaluate(asked, {"a": ""}, version_2_with_negative=True)["NoAns_exact"] == 50.0


def test_questions_without_a_gold_answer_are_left_out_and_said(caplog):
    asked = [ask("x", name="a"), ask(name="b"), ask(name="c", impossible=True)]
    predicted = dict.fromkeys("abc", "x")
    with caplog.at_level(logging.WARNING):
        found = scores.evaluate(asked, predicted, dict.fromkeys("abc", 0.0), version_2_with_negative=True)
    assert (found["exact"], found["total"]) == (50.0, 2)
    assert caplog.messages == ["1 of 3 questions have no gold answer and are not scored"]
    assert np.isnan(scores.by_question(asked, predicted, True)).tolist() == [[False, True, False]] * 2
    with pytest.raises(UserError, match="no question has a gold answer"):
        scores.evaluate([ask()], {"q": "x"})


def test_names_of_a_group_without_questions_are_left_out():
    found = list(scores.evaluate([ask("x")], {"q": "x"}))
    assert scores.metric_names(False, [ask("x")]) == found == ["exact_match", "f1"]
    assert scores.evaluate([ask("x")], {"q": "x"}, {"q": -1.0}, version_2_with_negative=True) == {
        "exact": 100.0, "f1": 100.0, "total": 1, "HasAns_exact": 100.0, "HasAns_f1": 100.0, "HasAns_total": 1,
        "best_exact": 100.0, "best_exact_thresh": -1.0, "best_f1": 100.0, "best_f1_thresh": -1.0}
    assert scores.metric_names(True, [ask("x")]) == [
        "exact", "f1", "HasAns_exact", "HasAns_f1", "best_exact", "best_f1"]
