"""What a trained model answers: for each question the best texts of its windows, and the files they go to.

Shapes: N questions, W windows, T tokens of all windows, S sequence, w windows of a block, n positions that are looked
at in a window, K candidates of a block.
"""

import bisect
import dataclasses
import functools
import json
import math
import operator
import os
import typing

import numpy as np

from bert_tf import files
from bert_tf.errors import UserError
from bert_tf.squad import final_text

PREDICTIONS, NBEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"
NOWHERE = (-1, -1)  # start and end of no answer
NO_CANDIDATE_ODDS = 1_000_000.0  # where the original starts its search for the least null score
PLACEHOLDERS = {"original": "empty", "offsets": ""}  # the text of a question of 1.1 without any candidate
PAIRS = 1 << 20  # pairs of positions looked at in one go
WORDS = 1 << 14  # words whose tokens are remembered
# An entry of an n-best list as `json.dumps` indents it.
_ENTRY = """        {{
            "text": {},
            "probability": {!r},
            "start_logit": {!r},
            "end_logit": {!r}
        }}"""
_quoted = json.encoder.encode_basestring_ascii


@dataclasses.dataclass(frozen=True)
class Settings:
    """How answers are found; the names and values are the original's but for `answer_text`.

    "original" puts an answer together from its pieces and looks that up in the words it came from; "offsets" cuts it
    out of the context from the first character of its first token to the last of its last.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    answer_text: str = "original"


class Entry(typing.NamedTuple):
    """One of the best texts for a question, "" for no answer.

    `span` are its first character in the context's text and the one behind its last, None where it is in none. In the
    original's way the text may differ from those characters in its white space: a blank between words.
    """

    text: str
    span: tuple[int, int] | None
    probability: float
    start_logit: float
    end_logit: float


class Answer(typing.NamedTuple):
    """The answer to a question: its text, span and probability as in `Entry`, and what it was chosen from.

    `null_odds`, of 2.0 only, is how much better no answer scores than `best_non_null`, the best of `nbest` that is a
    text (None without any). `null_probability` is that of no answer, 0.0 where it is not among `nbest`.
    """

    text: str
    span: tuple[int, int] | None
    probability: float
    nbest: list[Entry]
    null_odds: float | None

    @property
    def best_non_null(self):
        return _best_text(self.nbest)

    @property
    def null_probability(self):
        return next((entry.probability for entry in self.nbest if not entry.text), 0.0)


class _Candidates(typing.NamedTuple):
    """Answers that a block of windows may hold, by question, best first; of equal ones the earlier window's first.

    `questions` int64 [K]; `starts`, `ends` int64 [K] are numbers among all T tokens, -1 for no answer; logits float64
    [K].
    """

    questions: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray


def find(examples, features, tokenizer, start_logits, end_logits, settings):
    """The `Answer`s to the N `examples` of `features`, a list; `tokenizer` is the one that made the features.

    `start_logits`, `end_logits` float32 [W, S] belong to the windows in their order; S is at least the longest
    window's length. All S positions compete for the places of the best `n_best_size`, as in the original; where a
    model computed none -inf stands, which is never an answer. `UserError` for logits that are too few or too many, NaN
    or +inf.

    In 2.0 an n-best list has one entry more than `n_best_size` where no answer was not among them. A question without
    any candidate, such as one about a context without tokens, is answered "empty" in 1.1, as in the original ("" with
    "offsets"), and "" in 2.0, where the original ends with an error, with null odds of 1,000,000. Source: the
    original's `write_predictions`.
    """
    _check(examples, features, start_logits, end_logits, settings)
    read = READERS[settings.answer_text](features, tokenizer)
    splits = np.searchsorted(features.example_numbers, np.arange(len(examples) + 1)).tolist()
    width = min(settings.n_best_size, start_logits.shape[1])
    answers = []
    for first, last in _blocks(splits, PAIRS // width ** 2):
        found = _find_candidates(features, slice(splits[first], splits[last]), start_logits, end_logits, settings)
        bounds = np.searchsorted(found.questions, np.arange(first, last + 1)).tolist()
        for example, start, end in zip(examples[first:last], bounds, bounds[1:]):
            candidates = list(zip(*(values[start:end].tolist() for values in found[1:])))
            answers.append(_answer(functools.partial(read, example.context), candidates, settings))
    return answers


def with_threshold(answers, null_score_diff_threshold):
    """The answers that another threshold decides on: "" where `null_odds` are greater."""
    return [_decide(answer.nbest, answer.null_odds, null_score_diff_threshold) for answer in answers]


def _check(examples, features, start_logits, end_logits, settings):
    """`UserError` for logits that are not those of the windows, or no numbers."""
    if not len(start_logits) == len(end_logits) == len(features):
        raise UserError(f"{features.path}: {len(features)} windows, but results for {len(start_logits)} (starts) and "
                        f"{len(end_logits)} (ends); predict all windows of this file again")
    longest = features.lengths.max(initial=0)
    if not start_logits.shape[1] == end_logits.shape[1] >= longest:
        raise UserError(f"{features.path}: windows of up to {longest} tokens, but results for {start_logits.shape[1]} "
                        f"(starts) and {end_logits.shape[1]} (ends); predict with the same --max_seq_length")
    bad = ~((start_logits < np.inf).all(axis=1) & (end_logits < np.inf).all(axis=1))  # NaN is less than nothing
    reason = "NaN or infinite logits"
    if settings.version_2_with_negative and not bad.any():
        bad = np.isneginf(start_logits[:, 0]) | np.isneginf(end_logits[:, 0])
        reason = "infinite logits of [CLS], which stands for no answer"
    if bad.any():
        window = int(bad.argmax())
        qas_id = examples[features.example_numbers[window]].qas_id
        raise UserError(f"{features.where(window)} (id {qas_id!r}): {reason}; the model has diverged: take an earlier "
                        "checkpoint, or train with a lower --learning_rate")


def _blocks(splits, most):
    """Yields runs of questions, `(first, behind the last)`, of at most `most` windows together, or of one question."""
    first = 0
    while first < len(splits) - 1:
        last = max(first + 1, bisect.bisect_right(splits, splits[first] + most) - 1)
        yield first, last
        first = last


def _find_candidates(features, windows, start_logits, end_logits, settings):
    """The `_Candidates` of a slice of windows; in 2.0 no answer is one, with the logits of the window it is worst in.

    A pair of a window's best starts and ends is a candidate if both are in the document, the start in its maximal
    context, and the answer is of 1 to `max_answer_length` tokens.
    """
    first_tokens, lengths = features.row_splits[:-1][windows, None], features.lengths[windows, None]
    sides = []
    for logits in (start_logits[windows], end_logits[windows]):
        places = _best_places(logits, settings.n_best_size)
        values = np.take_along_axis(logits, places, axis=1)
        tokens = first_tokens + np.minimum(places, lengths - 1)
        sides.append((tokens, values, (places < lengths) & (values > -np.inf) & (features.words[tokens] >= 0)))
    (starts, start_values, may_start), (ends, end_values, may_end) = sides
    may_start &= features.is_max_context[starts]
    behind = ends[:, None, :] - starts[:, :, None]  # [w, n, n]
    window, row, column = np.nonzero(may_start[:, :, None] & may_end[:, None, :] & (behind >= 0)
                                     & (behind < settings.max_answer_length))
    questions = features.example_numbers[windows].astype(np.int64)
    found = _Candidates(questions[window], starts[window, row], ends[window, column],
                        start_values[window, row].astype(np.float64), end_values[window, column].astype(np.float64))
    if settings.version_2_with_negative:
        null = _null_candidates(questions, start_logits[windows, 0], end_logits[windows, 0])
        found = _Candidates(*map(np.concatenate, zip(found, null)))
    order = np.lexsort((-(found.start_logits + found.end_logits), found.questions))  # stable
    return _Candidates(*(values[order] for values in found))


def _best_places(logits, count):
    """The places int64 [w, n] of the `count` greatest of `logits` [w, S], greatest first, of equal ones the first."""
    width = logits.shape[1]
    count = min(count, width)
    least = np.partition(logits, width - count, axis=1)[:, width - count, None]
    rows, places = np.nonzero(logits >= least)  # more than `count` where several equal the least
    order = np.lexsort((-logits[rows, places], rows))  # stable
    firsts = np.searchsorted(rows, np.arange(len(logits)))
    return places[order][firsts[:, None] + np.arange(count)]


def _null_candidates(questions, start_logits, end_logits):
    """No answer as a candidate of each question, from logits float32 [w] of [CLS]: the least, of equal ones the first.

    It comes after all texts that score as much.
    """
    start_logits, end_logits = start_logits.astype(np.float64), end_logits.astype(np.float64)
    order = np.lexsort((start_logits + end_logits, questions))
    least = order[np.flatnonzero(np.diff(questions, prepend=-1))]
    nowhere = np.full(len(least), -1)
    return _Candidates(questions[least], nowhere, nowhere, start_logits[least], end_logits[least])


def _answer(read, candidates, settings):
    """The `Answer` from `(start, end, start_logit, end_logit)` of candidates, best first.

    `read(start, end)` gives a candidate's text and span; of equal texts the first counts.
    """
    found = {}
    for start, end, *logits in candidates:
        if len(found) == settings.n_best_size:
            break
        text, span = read(start, end)
        found.setdefault(text, (span, *logits))
    if settings.version_2_with_negative:
        null = min(candidates, default=(*NOWHERE, 0.0, 0.0))  # no text starts at so low a number
        found.setdefault("", (None, *null[2:]))
    nbest = _with_probabilities(found or {PLACEHOLDERS[settings.answer_text]: (None, 0.0, 0.0)})
    null_odds = _null_odds(nbest) if settings.version_2_with_negative else None
    return _decide(nbest, null_odds, settings.null_score_diff_threshold)


def _with_probabilities(found):
    """The `Entry`s of `(span, start_logit, end_logit)` by text: the softmax over their scores."""
    scores = [start_logit + end_logit for _, start_logit, end_logit in found.values()]
    greatest = max(scores)
    likelihoods = [math.exp(score - greatest) for score in scores]
    total = functools.reduce(operator.add, likelihoods)  # as the original adds: `sum` rounds less since Python 3.12
    return [Entry(text, span, likelihood / total, *logits)
            for (text, (span, *logits)), likelihood in zip(found.items(), likelihoods)]


def _best_text(nbest):
    """The first entry that is a text; None without any."""
    return next((entry for entry in nbest if entry.text), None)


def _null_odds(nbest):
    """How much no answer's score is above the best text's."""
    best = _best_text(nbest)
    if best is None:
        return NO_CANDIDATE_ODDS
    null = next(entry for entry in nbest if not entry.text)
    return null.start_logit + null.end_logit - best.start_logit - best.end_logit


def _decide(nbest, null_odds, threshold):
    """The `Answer` that an n-best list gives: no answer where its odds are above the threshold, else the best text."""
    prefers_null = null_odds is not None and null_odds > threshold
    chosen = next((entry for entry in nbest if prefers_null != bool(entry.text)), nbest[0])
    return Answer(*chosen[:3], nbest, null_odds)


def _original_reader(features, tokenizer):
    """A function `read(context, start, end)` of a candidate's text and span, in the original's way."""
    vocabulary, tokenize = list(tokenizer.inv_vocab.values()), tokenizer.basic_tokenizer.fast_tokenize
    normalize = functools.lru_cache(WORDS)(lambda word: " ".join(tokenize(word)))

    def read(context, start, end):
        if start < 0:
            return "", None
        pieces = map(vocabulary.__getitem__, features.input_ids[start:end + 1].tolist())
        first, last = features.words.item(start), features.words.item(end)
        words = context.doc_tokens[first:last + 1]
        places = final_text.locate(final_text.join_pieces(pieces), words, normalize)
        (head, start_character), (tail, end_character) = places
        span = context.word_starts[first + head] + start_character, context.word_starts[first + tail] + end_character
        return final_text.cut(words, *places), span

    return read


def _offsets_reader(features, tokenizer):
    """A function `read(context, start, end)` of a candidate's text and span, cut out by the offsets of its tokens."""
    def read(context, start, end):
        if start < 0:
            return "", None
        span = features.char_starts.item(start), features.char_ends.item(end)
        return context.text[slice(*span)], span

    return read


READERS = {"original": _original_reader, "offsets": _offsets_reader}


def write(folder, examples, answers, version_2_with_negative):
    """Writes `predictions.json`, `nbest_predictions.json` and, of 2.0, `null_odds.json`: the original's bytes."""
    ids = [example.qas_id for example in examples]
    _write_json(os.path.join(folder, PREDICTIONS), dict(zip(ids, [answer.text for answer in answers], strict=True)))
    if version_2_with_negative:
        _write_json(os.path.join(folder, NULL_ODDS), dict(zip(ids, [answer.null_odds for answer in answers])))
    with files.replacing(os.path.join(folder, NBEST)) as file:
        # By hand, for `json` takes its slow way to indent.
        separator = "{\n"
        for qas_id, answer in zip(ids, answers):
            entries = ",\n".join(_ENTRY.format(_quoted(text), *numbers) for text, _, *numbers in answer.nbest)
            file.write(f"{separator}    {_quoted(qas_id)}: [\n{entries}\n    ]")
            separator = ",\n"
        file.write("\n}\n" if answers else "{}\n")


def _write_json(path, content):
    with files.replacing(path) as file:
        file.write(json.dumps(content, indent=4) + "\n")
