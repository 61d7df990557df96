"""Measures how fast answers are found from a SQuAD model's logits, beside the original's way done plainly.

    python scripts/benchmark_squad_answers.py --predict_file=dev-v1.1.json --vocab_file=vocab.txt

The questions and windows are a real file's, the logits made up: "peaked" as of a trained model, which is sure of a few
places, and "random". Both ways answer the same questions in this one process, in turn, `--repeats` times, and must
agree in every text, order and probability. The table holds medians; speeds are questions per second of processor
time, which other programs on the machine disturb less than the clock.

Shapes: N questions, W windows, S sequence.
"""

import collections
import math
import statistics
import sys
import time
import typing

import numpy as np

from bert_tf import files
from bert_tf.cli import app
from bert_tf.squad import answers, examples, features
from bert_tf.tokenization import FullTokenizer


def define_flags(values):
    from absl import flags

    flags.DEFINE_string("predict_file", None, "Questions in SQuAD's JSON.", flag_values=values)
    flags.DEFINE_string("vocab_file", None, "The vocabulary.", flag_values=values)
    flags.DEFINE_bool("do_lower_case", True, "Whether to lower-case.", flag_values=values)
    flags.DEFINE_bool("version_2_with_negative", False, "Whether questions may have no answer.", flag_values=values)
    for name, value, meaning in [("max_seq_length", 384, "Tokens of a window."),
                                 ("doc_stride", 128, "Tokens between the starts of windows."),
                                 ("max_query_length", 64, "Tokens of a question."),
                                 ("n_best_size", 20, "Answers kept for a question."),
                                 ("max_answer_length", 30, "Tokens of an answer."),
                                 ("num_questions", 1000, "How many questions, the first ones of the file."),
                                 ("repeats", 3, "How often each way is timed.")]:
        flags.DEFINE_integer(name, value, meaning, lower_bound=1, flag_values=values)
    flags.DEFINE_integer("seed", 12345, "What the logits are made from.", flag_values=values)
    flags.mark_flags_as_required(["predict_file", "vocab_file"], flag_values=values)


class Answer(typing.NamedTuple):
    """An answer as both ways give it: `nbest` is a list of `(text, probability, start_logit, end_logit)`."""

    text: str
    nbest: list
    null_odds: float | None

    @classmethod
    def of(cls, answer):
        """That of an `answers.Answer`."""
        nbest = [(entry.text, *entry[2:]) for entry in answer.nbest]
        return cls(answer.text, nbest, answer.null_odds)


class Candidate(typing.NamedTuple):
    """A possible answer: places in a window, or no answer, where `window` is None."""

    window: int | None
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self):
        return self.start_logit + self.end_logit


def find(examples, features, tokenizer, start_logits, end_logits, settings):
    """The `Answer`s that `answers.find` must give, in its terms: one window after the other, one pair at a time."""
    windows_of = collections.defaultdict(list)
    for window, number in enumerate(features.example_numbers.tolist()):
        windows_of[number].append(window)
    found = []
    for number, example in enumerate(examples):
        candidates, null = [], None
        for window in windows_of[number]:
            starts, ends = start_logits[window].tolist(), end_logits[window].tolist()
            candidates += window_candidates(features, window, starts, ends, settings)
            if null is None or starts[0] + ends[0] < null.score:
                null = Candidate(None, 0, 0, starts[0], ends[0])
        if settings.version_2_with_negative:
            candidates.append(null or Candidate(None, 0, 0, 0.0, 0.0))
        candidates.sort(key=lambda candidate: candidate.score, reverse=True)
        found.append(choose(example, features, tokenizer, candidates, settings))
    return found


def best_places(logits, count):
    """The places of the greatest logits, the first of equal ones first."""
    ranked = sorted(enumerate(logits), key=lambda pair: pair[1], reverse=True)
    return [place for place, _ in ranked[:count]]


def window_candidates(features, window, start_logits, end_logits, settings):
    """The candidates of a window, by start, then by end."""
    first, end_of_window = features.row_splits[window:window + 2].tolist()
    words = features.words[first:end_of_window].tolist()
    is_max_context = features.is_max_context[first:end_of_window].tolist()
    candidates = []
    starts = best_places(start_logits, settings.n_best_size)
    ends = best_places(end_logits, settings.n_best_size)
    for start in starts:
        for end in ends:
            if start >= len(words) or end >= len(words) or words[start] < 0 or words[end] < 0:
                continue
            if not is_max_context[start] or end < start or end - start + 1 > settings.max_answer_length:
                continue
            if -math.inf in (start_logits[start], end_logits[end]):
                continue
            candidates.append(Candidate(window, start, end, start_logits[start], end_logits[end]))
    return candidates


def choose(example, features, tokenizer, candidates, settings):
    """The `Answer` from a question's candidates, best first."""
    nbest, texts = [], set()
    for candidate in candidates:
        if len(nbest) >= settings.n_best_size:
            break
        text = "" if candidate.window is None else text_of(example, features, tokenizer, candidate)
        if text not in texts:
            texts.add(text)
            nbest.append((text, candidate))
    null = next((candidate for candidate in candidates if candidate.window is None), None)
    if null and "" not in texts:
        nbest.append(("", null))
    if not nbest:
        nbest.append(("empty", Candidate(None, 0, 0, 0.0, 0.0)))
    probabilities = softmax([candidate.score for _, candidate in nbest])
    rows = [(text, probability, candidate.start_logit, candidate.end_logit)
            for (text, candidate), probability in zip(nbest, probabilities)]
    if not null:
        return Answer(nbest[0][0], rows, None)
    text, best = next(((text, candidate) for text, candidate in nbest if text), ("", None))
    null_odds = null.score - best.start_logit - best.end_logit if best else answers.NO_CANDIDATE_ODDS
    return Answer("" if null_odds > settings.null_score_diff_threshold else text, rows, null_odds)


def softmax(scores):
    greatest = max(scores)
    likelihoods, total = [], 0.0
    for score in scores:
        likelihoods.append(math.exp(score - greatest))
        total += likelihoods[-1]
    return [likelihood / total for likelihood in likelihoods]


def text_of(example, features, tokenizer, candidate):
    """The text of a candidate: its pieces joined, then looked up in the words that they come from."""
    first = int(features.row_splits[candidate.window])
    tokens = slice(first + candidate.start, first + candidate.end + 1)
    pieces = tokenizer.convert_ids_to_tokens(features.input_ids[tokens].tolist())
    pred_text = " ".join(" ".join(pieces).replace(" ##", "").replace("##", "").split())
    words = features.words[tokens].tolist()
    orig_text = " ".join(example.context.doc_tokens[words[0]:words[-1] + 1])
    return aligned(pred_text, orig_text, tokenizer.basic_tokenizer)


def aligned(pred_text, orig_text, basic_tokenizer):
    """The part of `orig_text` that `pred_text` is, found by counting the characters that are no blanks."""
    tokenized = " ".join(basic_tokenizer.tokenize(orig_text))
    start = tokenized.find(pred_text)
    if start < 0:
        return orig_text
    counted = {at: number for number, at in enumerate(places_of_characters(tokenized))}
    places = places_of_characters(orig_text)
    if len(counted) != len(places):
        return orig_text
    end = start + len(pred_text) - 1
    if start not in counted or end not in counted:
        return orig_text
    return orig_text[places[counted[start]]:places[counted[end]] + 1]


def places_of_characters(text):
    return [at for at, character in enumerate(text) if character != " "]


def make_logits(features, max_seq_length, kind, rng):
    """Start and end logits, float32 [W, S] each: "random", or "peaked" at a start and an end close behind it.

    As trained models do it: neighbours of a peak are likely too, other tokens hardly, and each second window is surest
    of [CLS], which stands for no answer.
    """
    shape = (2, len(features), max_seq_length)
    if kind == "random":
        return rng.normal(0.0, 3.0, shape).astype(np.float32)
    logits = rng.normal(-6.0, 1.5, shape)
    starts = rng.integers(0, features.lengths)
    lasts = np.minimum(starts + rng.geometric(0.3, len(features)) - 1, features.lengths - 1)
    for side, places in enumerate((starts, lasts)):
        distances = np.abs(np.arange(max_seq_length) - places[:, None])
        logits[side] += 12.0 * np.exp(-distances / 1.5)
        logits[side, ::2, 0] += 14.0
    return logits.astype(np.float32)


def load(values, tokenizer):
    """The first `--num_questions` examples of the file, and their features."""
    questions = examples.read(values.predict_file, False, values.version_2_with_negative,
                              is_scored=False)[:values.num_questions]
    made = features.convert(questions, values.predict_file, tokenizer, values.max_seq_length, values.doc_stride,
                            values.max_query_length, is_training=False)
    return questions, made


def seconds(way, *arguments):
    """`(what way(*arguments) gives, seconds of processor time)`."""
    start = time.process_time()
    result = way(*arguments)
    return result, time.process_time() - start


def measure(values, questions, made, tokenizer, kind):
    """Median questions per second of the plain way and ours."""
    settings = answers.Settings(values.n_best_size, values.max_answer_length, values.version_2_with_negative)
    logits = make_logits(made, values.max_seq_length, kind, np.random.default_rng(values.seed))
    taken = collections.defaultdict(list)
    for _ in range(values.repeats):
        expected, plain = seconds(find, questions, made, tokenizer, *logits, settings)
        found, ours = seconds(answers.find, questions, made, tokenizer, *logits, settings)
        if list(map(Answer.of, found)) != expected:
            raise AssertionError(f"{kind}: the answers differ")
        taken["plain"].append(plain)
        taken["ours"].append(ours)
    return tuple(len(questions) / statistics.median(taken[way]) for way in ("plain", "ours"))


def run(values):
    for path in (values.predict_file, values.vocab_file):
        files.size_of(path)
    tokenizer = FullTokenizer(values.vocab_file, values.do_lower_case)
    questions, made = load(values, tokenizer)
    print(f"{values.predict_file}: {len(questions)} questions, {len(made)} windows; all answers equal")
    print(f"{'logits':10}{'plain: questions/s':>20}{'answers.find':>14}{'ratio':>8}")
    for kind in ("peaked", "random"):
        plain, ours = measure(values, questions, made, tokenizer, kind)
        print(f"{kind:10}{plain:20.0f}{ours:14.0f}{ours / plain:8.1f}")


if __name__ == "__main__":
    sys.exit(app.main(define_flags, run, description=__doc__))
