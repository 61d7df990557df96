"""How good answers are: exact match and F1 as the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018 have them.

Shapes: N questions.
"""

import collections
import difflib
import logging
import re
import string
import typing

import numpy as np

from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

METRICS = "exact", "f1"
GROUPS = "", "HasAns_", "NoAns_"  # all questions, those with an answer, those without
NAMED_QUESTIONS = 5

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# All that CMRC 2018 takes for punctuation: of ASCII little, and one of two single quotation marks.
_NO_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CHARACTERS_AND_RUNS = re.compile("[\u4e00-\u9fa5]|[^\u4e00-\u9fa5]+")
# Where the Penn Treebank cuts a run: at marks, commas outside numbers, the full stop of the end, and apostrophes.
_MARK = r"""(?:\.{2,} | (?<!\.)\.(?=[\])}>"'»\ ]*+\s*$) | [;@\#$%&?!\[\](){}<>"«»‘„\u2012-\u2015] | ,(?!\d))"""
_CUT = rf"""(?:{_MARK} | (?:n't|'(?:s|m|d|ll|re|ve)?)(?=\s|$|{_MARK})
            | (?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w))"""
_WORDS = re.compile(rf"{_CUT} | can(?=not\b) | (?:gim|lem)(?=me\b) | (?:gon|wan)(?=na\b) | got(?=ta\b)"
                    rf"| \S(?:(?!{_CUT})\S)*", re.VERBOSE)


def normalize_answer(text):
    """A text as SQuAD compares it: in lower case, without punctuation, articles and needless white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def remove_punctuation(text):
    """A text as CMRC 2018 compares it: in lower case and without what it takes for punctuation."""
    return text.lower().strip().translate(_NO_CHINESE_PUNCTUATION)


def segment(text):
    """A text as CMRC 2018 counts it: every Chinese character, and between them words."""
    return [piece for run in _CHARACTERS_AND_RUNS.findall(text) for piece in words(run)]


def words(run):
    """The words of a text without Chinese as NLTK's tokenizer cuts them, `"` as `` where it opens and '' where not.

    Apostrophes or commas in a row may be cut otherwise. CMRC 2018's script cuts sentences apart first, which changes
    no answer in its files or DRCD's and would need a trained model.
    """
    found = []
    for word in _WORDS.finditer(run):
        text = word[0]
        if text == '"':
            before = run[:word.start()]
            text = "``" if before in ("", '"') or before[-1] in " ([{<" else "''"
        found.append(text)
    return found


def count_common(gold, said):
    """How many segments of one list are also in the other, whatever their order."""
    return (collections.Counter(gold) & collections.Counter(said)).total()


def longest_common(gold, said):
    """How many segments the longest piece has that stands in both lists."""
    return difflib.SequenceMatcher(None, gold, said, autojunk=False).find_longest_match().size


class Rules(typing.NamedTuple):
    """How texts are compared: the form that must be equal, the segments of that form, and how many of them agree."""

    normalize: typing.Callable
    split: typing.Callable
    count: typing.Callable


LANGUAGES = {"en": Rules(normalize_answer, str.split, count_common),
             "zh": Rules(remove_punctuation, segment, longest_common)}


def by_question(examples, predicted, version_2_with_negative=False, language="en"):
    """Exact match and F1 of each of N `SquadExample`s, float64 [2, N] from 0 to 1, by the gold answer it is best for.

    `predicted` are texts by id; a question without one scores 0, one of which nothing is known to be right NaN. SQuAD
    2.0's script differs from 1.1's: it ignores gold answers of nothing but articles and punctuation, it compares with
    "" where there are no others, and F1 is 1 where all that is left of both texts is nothing.
    """
    rules, scores = LANGUAGES[language], np.full([2, len(examples)], np.nan)
    for number, example in enumerate(examples):
        if is_scored(example):
            text = predicted.get(example.qas_id)
            scores[:, number] = 0 if text is None else _score(example.answers, text, rules, version_2_with_negative)
    return scores


def is_scored(example):
    """Whether it is known what is right: a gold answer, or that there is none."""
    return bool(example.answers) or example.is_impossible


def _score(answers, text, rules, version_2_with_negative):
    """The exact match and the F1 of a text, the better of all `answers`."""
    said, golds = rules.normalize(text), set(map(rules.normalize, answers))
    if version_2_with_negative:
        golds = golds - {""} or {""}
    exact, segments = float(said in golds), rules.split(said)
    f1 = max(_f1(rules.split(gold), segments, rules.count) for gold in golds)
    return exact, max(f1, exact) if version_2_with_negative else f1


def _f1(gold, said, count):
    common = count(gold, said)
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def metric_names(version_2_with_negative, examples):
    """The names of the percentages that `evaluate` returns for `SquadExample`s, in its order."""
    if not version_2_with_negative:
        return ["exact_match", "f1"]
    is_impossible = {example.is_impossible for example in filter(is_scored, examples)}
    groups = [group for group, is_there in zip(GROUPS, (True, False in is_impossible, True in is_impossible))
              if is_there]
    return [f"{group}{name}" for group in (*groups, "best_") for name in METRICS]


def evaluate(examples, predicted, null_odds=None, non_null=None, version_2_with_negative=False, language="en"):
    """The scores of texts for `SquadExample`s, by their names in the official scripts: percentages and counts.

    `predicted`, `null_odds` and `non_null` are by question id. `exact_match` or `exact`, `f1` and so on are those of
    `predicted` as it stands, whatever threshold it was made with. A question without a prediction counts as wrong, one
    without a gold answer not at all; both are said. `UserError` where no question has one.

    For 2.0, `best_exact`, `best_exact_thresh` and so on are those of the official search: "" is said where the null
    odds exceed the threshold, else the text of `non_null`, a question's best answer other than none. Without
    `non_null` it is that of `predicted`, as in the official script: then what is "" there stays so at any threshold.
    Left out are scores of a group without questions and, without `null_odds`, of the search.
    """
    scored = _select(examples, predicted)
    scores = by_question(scored, predicted, version_2_with_negative, language)
    if not version_2_with_negative:
        return dict(zip(metric_names(False, scored), (100 * scores.mean(axis=1)).tolist()))
    is_impossible = np.array([example.is_impossible for example in scored])
    results = {}
    for group, chosen in zip(GROUPS, (np.ones_like(is_impossible), ~is_impossible, is_impossible)):
        if chosen.any():
            means = (100 * scores[:, chosen].mean(axis=1)).tolist()
            results |= {f"{group}{name}": mean for name, mean in zip(METRICS, means)}
            results[f"{group}total"] = int(chosen.sum())
    if null_odds is not None:
        odds, totals = _answered(scored, predicted if non_null is None else non_null, null_odds, language)
        for name, row in zip(METRICS, totals):
            best = row.argmax()
            results[f"best_{name}"] = float(100 * row[best] / len(scored))
            results[f"best_{name}_thresh"] = float(odds[best - 1]) if best else 0.0
    return results


def threshold(examples, non_null, null_odds, metric="f1", language="en"):
    """The null odds above which to say "", so that `metric`, "exact" or "f1", is highest; texts and odds by id.

    It is the `best_f1_thresh` of `evaluate` unless that does not keep its promise: the official search names 0.0 where
    it is best to answer nothing, also where odds are below, and may part questions of equal odds.
    """
    odds, totals = _answered(list(filter(is_scored, examples)), non_null, null_odds, language)
    row = totals[METRICS.index(metric)]
    row[1:-1][odds[1:] == odds[:-1]] = -np.inf
    best = row.argmax()
    return float(odds[best - 1]) if best else min(0.0, float(np.nextafter(odds[0], -np.inf)))


def _select(examples, predicted):
    """The examples that are scored; says how many are not, and how many of them have no prediction."""
    scored = list(filter(is_scored, examples))
    if not scored:
        raise UserError("no question has a gold answer, so that nothing can be scored; predict without --do_eval")
    if len(scored) < len(examples):
        logger.warning("%d of %d questions have no gold answer and are not scored", len(examples) - len(scored),
                       len(examples))
    missing = [example.qas_id for example in scored if example.qas_id not in predicted]
    if missing:
        logger.warning("%d of %d questions have no prediction, which counts as wrong (%s%s)", len(missing),
                       len(scored), ", ".join(missing[:NAMED_QUESTIONS]), ", ..." * (len(missing) > NAMED_QUESTIONS))
    return scored


def _answered(examples, texts, null_odds, language):
    """What it sums to, exact match and F1 float64 [2, N + 1], if only the first 0 to N questions are answered.

    First are those of least null odds, float64 [N], which are returned before it. As the official script has it, any
    text but "" is wrong for a question without an answer.
    """
    odds = np.array([null_odds[example.qas_id] for example in examples], np.float64)
    is_impossible = np.array([example.is_impossible for example in examples])
    is_said = np.array([texts.get(example.qas_id) != "" for example in examples])
    gains = np.where(is_impossible, -1.0 * is_said, by_question(examples, texts, True, language))
    order = np.argsort(odds, kind="stable")
    unanswered = np.full([2, 1], is_impossible.sum())
    return odds[order], np.concatenate([unanswered, gains[:, order]], axis=1).cumsum(axis=1)
