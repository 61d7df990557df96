"""Questions and their contexts to the windows of ids that the model reads, and to batches.

Shapes: N examples, W windows, T tokens of all windows, D tokens of a context, B batch, S sequence.
"""

import array
import dataclasses
import logging
import typing

import numpy as np

from bert_tf import packing, parallel
from bert_tf.errors import UserError
from bert_tf.unpadded import Unpadded
from bert_tf.windows import find_max_context

logger = logging.getLogger("bert_tf")

SPECIAL = 3  # [CLS] and the two [SEP]
LOGGED_WINDOWS = 5
CHUNK = 1024  # examples that a process converts at a time
LARGE = 8  # chunks from which on starting processes takes less time than they save


@dataclasses.dataclass(frozen=True)
class Features(Unpadded):
    """The W windows of the file `path` without padding: w has the ids from `row_splits[w]` to `row_splits[w + 1]`.

    `input_ids` int32 [T], `row_splits` int64 [W + 1]; `first_lengths` int32 [W] counts the ids of segment 0, which
    come first; `example_numbers` int32 [W] never decrease. Of each token, `words` int32 [T] is its word in
    `doc_tokens`, `char_starts` and `char_ends` int32 [T] the characters of the context that it comes from, all -1
    outside the document, and `is_max_context` bool [T] whether no window has more around it, False outside the
    document. `start_positions` and `end_positions` int32 [W] are the answer's first and last place in the window, 0
    without one. `places` bytes [N] say where in the file the examples stand.
    """

    first_lengths: np.ndarray
    example_numbers: np.ndarray
    words: np.ndarray
    char_starts: np.ndarray
    char_ends: np.ndarray
    is_max_context: np.ndarray
    start_positions: np.ndarray
    end_positions: np.ndarray
    places: np.ndarray

    @property
    def digest(self):
        """A hexadecimal number that features share which are equal to a model."""
        return self.digest_of("first_lengths", "start_positions", "end_positions")

    def where(self, number):
        """The file and the place in it of a window's question."""
        return f"{self.path}: {self.places[self.example_numbers[number]].decode()}"


class Lengths(typing.NamedTuple):
    """How many tokens windows and questions may have, and how many windows start apart."""

    max_seq_length: int
    doc_stride: int
    max_query_length: int


class Document(typing.NamedTuple):
    """The tokens of a context: ids, words, first character and the one after the last, all int32 [D]."""

    input_ids: np.ndarray
    words: np.ndarray
    char_starts: np.ndarray
    char_ends: np.ndarray

    @classmethod
    def of(cls, context, tokenizer):
        """The tokens of an `examples.Context`: those of its words one after the other."""
        input_ids, spans = tokenizer.encode_with_offsets(context.text)
        starts, ends = np.array(spans, np.int32).reshape(-1, 2).T
        words = np.searchsorted(np.array(context.word_starts, np.int32), starts, side="right") - 1
        return cls(np.array(input_ids, np.int32), words.astype(np.int32), starts, ends)


class Window(typing.NamedTuple):
    """The tokens of a window, int32 [5, S] as in `Part`, and the answer's first and last place among them."""

    tokens: np.ndarray
    start_position: int
    end_position: int


class Counts(typing.NamedTuple):
    """How many questions were cut and how many have no window, windows that lack the answer, answers that are lost.

    A window lacks the answer that its question has and that is not wholly in it; an answer that all lack is lost.
    """

    cut: int = 0
    without_window: int = 0
    lacking: int = 0
    lost: int = 0


class Part(typing.NamedTuple):
    """What some examples come to.

    `tokens` int32 [5, T]: `input_ids`, `words`, `char_starts`, `char_ends`, `is_max_context`. `windows` int32 [5, W]:
    lengths, `first_lengths`, `example_numbers`, `start_positions`, `end_positions`.
    """

    tokens: np.ndarray
    windows: np.ndarray
    counts: Counts


def check_lengths(max_seq_length, doc_stride, max_query_length):
    """`UserError` for lengths that leave the question or the context no room, and for a stride that leads nowhere."""
    if max_query_length < 1 or doc_stride < 1:
        raise UserError(f"--max_query_length={max_query_length} and --doc_stride={doc_stride} must be at least 1")
    if max_seq_length <= max_query_length + SPECIAL:
        raise UserError(f"--max_seq_length={max_seq_length} must be greater than --max_query_length="
                        f"{max_query_length} + {SPECIAL}, to leave the context room")


def convert(examples, path, tokenizer, max_seq_length, doc_stride, max_query_length, is_training, num_processes=1,
            drop_windows_without_answer=False):
    """The `Features` of the list of a file's `SquadExample`s; what was cut or has no window is counted and said.

    In training answers have positions, and `drop_windows_without_answer` leaves out the windows of answered questions
    that do not hold the answer. Many examples are shared among `num_processes`; the result is the same for any number.
    `UserError` as `check_lengths`.
    """
    check_lengths(max_seq_length, doc_stride, max_query_length)
    lengths = Lengths(max_seq_length, doc_stride, max_query_length)
    jobs = [(number, examples[number:number + CHUNK]) for number in range(0, len(examples), CHUNK)]
    parts = parallel.ordered_map(convert_examples, jobs, num_processes if len(jobs) >= LARGE else 1, tokenizer,
                                 lengths, is_training, drop_windows_without_answer)
    made, counts = _assemble(path, examples, parts)
    _say(made, counts, lengths, drop_windows_without_answer)
    for number in range(min(LOGGED_WINDOWS, len(made))):
        _log(made, number, tokenizer)
    return made


def of_examples(examples, tokenizer, max_seq_length, doc_stride, max_query_length):
    """The `Features` of `SquadExample`s that come from no file and have no answers; says nothing."""
    lengths = Lengths(max_seq_length, doc_stride, max_query_length)
    return _assemble("text", examples, [convert_examples((0, examples), tokenizer, lengths)])[0]


def decided_by(tokenizer, max_seq_length, doc_stride, max_query_length, is_training, version_2_with_negative,
               drop_windows_without_answer=False):
    """What decides the features of a file besides its bytes and the vocabulary's, as plain values by name."""
    return {"do_lower_case": tokenizer.do_lower_case, "strip_accents": tokenizer.basic_tokenizer.strip_accents,
            "max_seq_length": max_seq_length, "doc_stride": doc_stride, "max_query_length": max_query_length,
            "is_training": is_training, "version_2_with_negative": version_2_with_negative,
            "drop_windows_without_answer": drop_windows_without_answer}


def convert_examples(job, tokenizer, lengths, is_training=False, drops_lacking=False):
    """The `Part` of a job: the number of its first example, and the examples."""
    tokens, windows, counts, context = [], [], [], None
    for number, example in enumerate(job[1], start=job[0]):
        if example.context is not context:
            context, document = example.context, Document.of(example.context, tokenizer)
        asked = tokenizer.encode(example.question_text)
        question = asked[:lengths.max_query_length]
        is_answered = is_training and example.start_position is not None
        answer = find_answer_tokens(example, document, tokenizer) if is_answered else None
        laid_out = lay_out(question, document, answer, tokenizer, lengths)
        holding = [window for window in laid_out if window.start_position]
        lacking = len(laid_out) - len(holding) if is_answered else 0
        counts.append(Counts(len(asked) > len(question), not laid_out, lacking, bool(lacking) and not holding))
        for window in holding if is_answered and drops_lacking else laid_out:
            tokens.append(window.tokens)
            windows.append((window.tokens.shape[1], len(question) + 2, number, *window[1:]))
    return Part(np.concatenate([np.zeros((5, 0), np.int32), *tokens], axis=1),
                np.array(windows, np.int32).reshape(-1, 5).T.copy(), Counts(*map(sum, zip(*counts))))


def lay_out(question, document, answer, tokenizer, lengths):
    """The list of the `Window`s of a question.

    `question` are ids, `answer` the first and the last token in the document, or None. An answer that is not wholly in
    a window is at 0 there, on [CLS]. A document without a token makes no window. Source: the original.
    """
    starts, ends = cut_windows(len(document.input_ids), lengths.max_seq_length - len(question) - SPECIAL,
                               lengths.doc_stride)
    best, windows, before = find_max_context(starts, ends), [], len(question) + 2
    for number, (start, end) in enumerate(zip(starts, ends)):
        input_ids, _ = packing.pack(question, document.input_ids[start:end].tolist(), tokenizer.vocab["[CLS]"],
                                    tokenizer.vocab["[SEP]"])
        tokens = np.full((5, len(input_ids)), -1, np.int32)
        tokens[0] = input_ids
        tokens[1:4, before:-1] = [row[start:end] for row in document[1:]]
        tokens[4] = 0
        tokens[4, before:-1] = best[start:end] == number
        is_inside = answer is not None and start <= answer[0] and answer[1] < end
        windows.append(Window(tokens, *(place - start + before if is_inside else 0 for place in answer or (0, 0))))
    return windows


def cut_windows(num_tokens, room, doc_stride):
    """`(starts, ends)` of the windows over so many tokens, as lists; each has `room`, the last ends with them."""
    stride = min(doc_stride, room)
    starts = range(0, max(num_tokens - room, 0) + stride, stride) if num_tokens else ()
    return list(starts), [min(start + room, num_tokens) for start in starts]


def find_answer_tokens(example, document, tokenizer):
    """`(first, last)` of the tokens of an example's answer; None where it has no token.

    Where the tokens of its words hold those of its text, they are those, else all: of "(1895-1943)." only "1895".
    Source: the original's `_improve_answer_span`, which takes the first of several such places; this the nearest to
    where the answer is. In Chinese, where a sentence is one word, the first is often another.
    """
    first = int(np.searchsorted(document.words, example.start_position))
    last = int(np.searchsorted(document.words, example.end_position, side="right")) - 1
    held, wanted = document.input_ids[first:last + 1].tolist(), tokenizer.encode(example.orig_answer_text)
    places = [first + place for place in range(len(held) + 1 - len(wanted))
              if wanted and held[place:place + len(wanted)] == wanted]
    if places:
        first = min(places, key=lambda place: abs(document.char_starts[place] - example.answer_start))
        last = first + len(wanted) - 1
    return (first, last) if held else None


def _assemble(path, examples, parts):
    """`(Features, Counts)` of the `Part`s of a file."""
    # Arrays that grow, so that the parts need not be held beside the whole.
    tokens, windows = ([array.array("i") for _ in range(5)] for _ in range(2))
    counts = Counts()
    for part in parts:
        for whole, values in zip((*tokens, *windows), (*part.tokens, *part.windows)):
            whole.frombytes(values.tobytes())
        counts = Counts(*map(sum, zip(counts, part.counts)))
    input_ids, words, char_starts, char_ends, is_max_context = map(np.asarray, tokens)
    lengths, first_lengths, example_numbers, start_positions, end_positions = map(np.asarray, windows)
    row_splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    places = np.array([example.where.encode() for example in examples], "S")
    return Features(path, input_ids, row_splits, first_lengths, example_numbers, words, char_starts, char_ends,
                    is_max_context.astype(bool), start_positions, end_positions, places), counts


def _say(made, counts, lengths, drops_lacking):
    """Logs what the questions of a file came to."""
    logger.info("%s: %d questions, %d windows, %d tokens, %d questions cut to --max_query_length=%d", made.path,
                len(made.places), len(made), len(made.input_ids), counts.cut, lengths.max_query_length)
    room = lengths.max_seq_length - lengths.max_query_length - SPECIAL
    if lengths.doc_stride >= room:
        logger.warning("%s: the windows of long questions have room for %d tokens of the context and do not overlap "
                       "with --doc_stride=%d", made.path, room, lengths.doc_stride)
    if counts.lacking:
        logger.info("%s: %d windows of answered questions do not hold the answer%s", made.path, counts.lacking,
                    " and are left out" if drops_lacking else "")
    if counts.lost:
        logger.warning("%s: %d answers are wholly in no window; a longer --max_seq_length or a shorter --doc_stride "
                       "may help", made.path, counts.lost)
    if counts.without_window:
        logger.warning("%s: %d questions have no window, for their context holds no token", made.path,
                       counts.without_window)


def _log(made, number, tokenizer):
    """Says what a window has come to."""
    tokens = tokenizer.convert_ids_to_tokens(
        made.input_ids[made.row_splits[number]:made.row_splits[number + 1]].tolist())
    start, end = made.start_positions[number], made.end_positions[number]
    answer = f"{' '.join(tokens[start:end + 1])!r} at {start} to {end}" if start else "no answer"
    logger.info("%s (%s): %s", made.where(number), answer, " ".join(tokens))


def make_batch(features, numbers, sizes):
    """The batch of the windows `numbers` int64 [B], cut to its own length, with token places.

    `input_ids`, `input_mask`, `segment_ids` int32 [B, S], `start_positions`, `end_positions` int32 [B],
    `example_weights` float32 [B] (ones), `token_indices` int32 as in `batching.unpad`.
    """
    # It loads TensorFlow, which the processes that convert examples need not wait for.
    from bert_tf import batching

    real, _, input_ids = features.lay_out(numbers, sizes.max_seq_length)
    second = real & (np.arange(sizes.max_seq_length) >= features.first_lengths[numbers][:, None])
    batch = {"input_ids": input_ids, "input_mask": real.astype(np.int32), "segment_ids": second.astype(np.int32),
             "start_positions": features.start_positions[numbers], "end_positions": features.end_positions[numbers],
             "example_weights": np.ones(len(numbers), np.float32)}
    return batching.unpad(batch, sizes)
