"""Sentences to the windows of ids that the model reads, with the place of every word, and to batches.

Shapes: N sentences, K words of all sentences, W windows, T tokens of all windows, D tokens of a text, B batch,
S sequence.
"""

import array
import bisect
import dataclasses
import itertools
import logging
import typing

import numpy as np

from bert_tf import packing, parallel
from bert_tf.errors import UserError
from bert_tf.tagging import examples
from bert_tf.unpadded import Unpadded
from bert_tf.windows import find_max_context

logger = logging.getLogger("bert_tf")

SPECIAL = 2  # [CLS] and [SEP]
LOGGED_WINDOWS = 5
CHUNK = 2048  # sentences that a process converts at a time
LARGE = 8  # chunks from which on starting processes takes less time than they save


@dataclasses.dataclass(frozen=True)
class Features(Unpadded):
    """The W windows of the file `path` without padding: w has the ids from `row_splits[w]` to `row_splits[w + 1]`.

    `input_ids` int32 [T], `row_splits` int64 [W + 1]; `sentence_numbers` int32 [W] never decrease. `words` int32 [T]
    is the number of a word among all K of the file at its first token in the one window that it is predicted in, -1 at
    all other tokens: each of 0 to K - 1 stands in it once. `label_ids` int32 [K] are the words' classes, -1 in files
    without labels, `lines` int32 [K] their lines.
    """

    sentence_numbers: np.ndarray
    words: np.ndarray
    label_ids: np.ndarray
    lines: np.ndarray

    @property
    def digest(self):
        """A hexadecimal number that features share which are equal to a model."""
        return self.digest_of("words", "label_ids")

    def where(self, number):
        """The file, and the line in it of the first word that a window predicts."""
        words = self.words[self.row_splits[number]:self.row_splits[number + 1]]
        return f"{self.path}:{self.lines[words[words >= 0][0]]}"


class Lengths(typing.NamedTuple):
    """How many tokens windows have and start apart, and whether neighbouring sentences fill them."""

    max_seq_length: int
    doc_stride: int
    document_context: bool

    @property
    def room(self):
        """The tokens of words that a window has place for."""
        return self.max_seq_length - SPECIAL


class Job(typing.NamedTuple):
    """What a process converts: `count` sentences, after `before` others that only surround them, as the rest do.

    `sentences` are lists of words, `documents` the document of each. In the file the first sentence to convert has the
    number `number`, the first word of all `first_word`.
    """

    number: int
    count: int
    before: int
    first_word: int
    sentences: list[list[str]]
    documents: list[int]


class Text(typing.NamedTuple):
    """Sentences as tokens, one behind the other.

    `input_ids` [D]; `word_starts` are the tokens that the words begin at, `sentence_starts` the words that the
    sentences begin at, both with the end of all. `num_pieces` says of each word how many tokens it comes to: what is
    more than the room of a window is cut off, and a word of none stands as [UNK], to keep its place.
    """

    input_ids: list[int]
    word_starts: list[int]
    sentence_starts: list[int]
    num_pieces: list[int]

    @classmethod
    def of(cls, sentences, tokenizer, room):
        """The text of lists of words."""
        words, unknown = list(itertools.chain.from_iterable(sentences)), [tokenizer.vocab["[UNK]"]]
        ids_of = {word: tokenizer.encode(word) for word in set(words)}
        pieces = list(map(ids_of.__getitem__, words))
        kept = [ids[:room] or unknown for ids in pieces]
        return cls(list(itertools.chain.from_iterable(kept)), list(itertools.accumulate(map(len, kept), initial=0)),
                   list(itertools.accumulate(map(len, sentences), initial=0)), list(map(len, pieces)))


class Counts(typing.NamedTuple):
    """How many sentences are in several windows and how many hold nothing known, how many words are cut or empty."""

    long: int = 0
    unknown: int = 0
    cut: int = 0
    empty: int = 0


class Part(typing.NamedTuple):
    """What some sentences come to.

    `tokens` int32 [2, T]: `input_ids`, `words`. `windows` int32 [2, W]: lengths, `sentence_numbers`.
    """

    tokens: np.ndarray
    windows: np.ndarray
    counts: Counts


def check_lengths(max_seq_length, doc_stride):
    """`UserError` for a length that leaves words no room, and for a stride that leads nowhere."""
    if max_seq_length <= SPECIAL:
        raise UserError(f"--max_seq_length={max_seq_length} must be greater than {SPECIAL}, to leave words room")
    if doc_stride < 1:
        raise UserError(f"--doc_stride={doc_stride} must be at least 1")


def convert(sentences, path, tokenizer, labels, max_seq_length, doc_stride, document_context=False, num_processes=1):
    """The `Features` of the list of a file's `examples.Sentence`s; what is cut or unknown is counted and said.

    `labels` are the names of the classes in order. A long sentence comes to overlapping windows of whole words, which
    begin about `doc_stride` tokens apart; with `document_context` its neighbours in the document fill every window, on
    both sides alike. A window in which no word counts is left out. Many sentences are shared among `num_processes`;
    the result is the same for any number. `UserError` with file and line for a label that is not among `labels`, and
    as `check_lengths`.
    """
    check_lengths(max_seq_length, doc_stride)
    lengths = Lengths(max_seq_length, doc_stride, document_context)
    label_ids = find_label_ids(sentences, path, labels)
    made, counts = _assemble(sentences, path, label_ids, tokenizer, lengths, num_processes)
    _say(made, sentences, counts, lengths)
    for number in range(min(LOGGED_WINDOWS, len(made))):
        _log(made, number, tokenizer, labels)
    return made


def of_sentences(sentences, tokenizer, max_seq_length, doc_stride, document_context=False):
    """The `Features` of lists of words that come from no file and have no labels; says nothing.

    A sentence without a word has no window. `lines` are the numbers of the sentences, from 1.
    """
    rows = [examples.Sentence(words, None, [number] * len(words), 0) for number, words in enumerate(sentences, 1)]
    lengths = Lengths(max_seq_length, doc_stride, document_context)
    return _assemble(rows, "text", find_label_ids(rows, "text", ()), tokenizer, lengths)[0]


def decided_by(tokenizer, labels, columns, max_seq_length, doc_stride, document_context=False):
    """What decides the features of a file besides its bytes and the vocabulary's, as plain values by name."""
    return {"do_lower_case": tokenizer.do_lower_case, "strip_accents": tokenizer.basic_tokenizer.strip_accents,
            "labels": list(labels), **columns._asdict(), "max_seq_length": max_seq_length, "doc_stride": doc_stride,
            "document_context": document_context}


def find_label_ids(sentences, path, labels):
    """The classes int32 [K] of the words of `examples.Sentence`s, -1 without labels; errors as `convert`."""
    made, numbers = array.array("i"), {label: number for number, label in enumerate(labels)}
    for sentence in sentences:
        try:
            made.extend([-1] * len(sentence.tokens) if sentence.labels is None else
                        map(numbers.__getitem__, sentence.labels))
        except KeyError as error:
            line = sentence.lines[sentence.labels.index(error.args[0])]
            raise UserError(f"{path}:{line}: the label {error.args[0]!r} is not among the {len(labels)} of the "
                            f"training set: {examples.listed(labels)}") from error
    return np.asarray(made)


def convert_sentences(job, tokenizer, lengths):
    """The `Part` of a `Job`."""
    room = lengths.room
    text = Text.of(job.sentences, tokenizer, room)
    cls_id, sep_id, unknown = (tokenizer.vocab[token] for token in ("[CLS]", "[SEP]", "[UNK]"))
    tokens, windows, num_long, num_unknown = [np.zeros((2, 0), np.int32)], [], 0, 0
    for row in range(job.before, job.before + job.count):
        first, last = text.sentence_starts[row:row + 2]
        laid_out = lay_out(text, first, last, document_of(text, job.documents, row), lengths) if first < last else []
        for start, end, words in laid_out:
            input_ids, _ = packing.pack(text.input_ids[start:end], None, cls_id, sep_id)
            window = np.full((2, len(input_ids)), -1, np.int32)
            window[0] = input_ids
            window[1, [text.word_starts[word] - start + 1 for word in words]] = words
            window[1] += (window[1] >= 0) * job.first_word
            tokens.append(window)
            windows.append((len(input_ids), job.number + row - job.before))
        num_long += len(laid_out) > 1
        held = text.input_ids[text.word_starts[first]:text.word_starts[last]]
        num_unknown += bool(held) and held.count(unknown) == len(held)
    own = text.num_pieces[text.sentence_starts[job.before]:text.sentence_starts[job.before + job.count]]
    counts = Counts(num_long, num_unknown, sum(number > room for number in own), own.count(0))
    return Part(np.concatenate(tokens, axis=1), np.array(windows, np.int32).reshape(-1, 2).T.copy(), counts)


def document_of(text, documents, row):
    """`(first, one after the last)` of the tokens of the document that a sentence is in."""
    rows = bisect.bisect_left(documents, documents[row]), bisect.bisect_right(documents, documents[row])
    return tuple(text.word_starts[text.sentence_starts[number]] for number in rows)


def lay_out(text, first, last, document, lengths):
    """The windows of the words of a `Text` from `first` to before `last`, in a list of `(start, end, words)`.

    The window holds the tokens from `start` to before `end`; `words` are those that count there, which is where most
    tokens stand around their first one. A window without such is left out. `document` is as from `document_of`.
    """
    borders = cut_windows(text.word_starts, first, last, lengths.room, lengths.doc_stride)
    if lengths.document_context:
        borders = [fill_window(text.word_starts, *border, document, lengths.room) for border in borders]
    if len(borders) == 1:
        return [(*borders[0], range(first, last))]
    origin = min(start for start, _ in borders)
    best = find_max_context(*(np.array(borders) - origin).T.tolist())
    best = best[np.array(text.word_starts[first:last]) - origin]
    laid_out = [(*border, (first + np.flatnonzero(best == number)).tolist()) for number, border in enumerate(borders)]
    return [window for window in laid_out if window[2]]


def cut_windows(word_starts, first, last, room, doc_stride):
    """`(start, end)` of the tokens of each window over the words from `first` to before `last`, in a list.

    Each holds as many whole words as have `room`, which every one has, and begins at the last word that is at most
    `doc_stride` tokens after the beginning of the one before, if that is another word and none is left out between.
    """
    borders, word = [], first
    while True:
        start = word_starts[word]
        end_word = bisect.bisect_right(word_starts, start + room, word, last + 1) - 1
        borders.append((start, word_starts[end_word]))
        if end_word == last:
            return borders
        following = bisect.bisect_right(word_starts, start + doc_stride, word, last) - 1
        word = min(max(following, word + 1), end_word)


def fill_window(word_starts, start, end, document, room):
    """`(start, end)` of a window that whole words of its `document` (first, one after the last token) have filled.

    Both sides get as many tokens, unless the document has fewer on one.
    """
    free = room - (end - start)
    before = min(start - document[0], max(free // 2, free - (document[1] - end)))
    start = word_starts[bisect.bisect_left(word_starts, start - before)]
    return start, word_starts[bisect.bisect_right(word_starts, min(start + room, document[1])) - 1]


def _jobs(sentences, lengths):
    """Yields the `Job`s of a list of `examples.Sentence`s."""
    # A word has a token at least, so that a window sees no more words beyond a sentence than it has room for.
    reach = lengths.room if lengths.document_context else 0
    word_starts = [*itertools.accumulate((len(sentence.tokens) for sentence in sentences), initial=0)]
    for number in range(0, len(sentences), CHUNK):
        after = min(number + CHUNK, len(sentences))
        first = max(bisect.bisect_right(word_starts, word_starts[number] - reach) - 1, 0) if reach else number
        last = min(bisect.bisect_left(word_starts, word_starts[after] + reach), len(sentences)) if reach else after
        rows = sentences[first:last]
        yield Job(number, after - number, number - first, word_starts[first], [row.tokens for row in rows],
                  [row.document for row in rows])


def _assemble(sentences, path, label_ids, tokenizer, lengths, num_processes=1):
    """`(Features, Counts)` of the list of the `examples.Sentence`s of a file."""
    # Arrays that grow, so that the parts need not be held beside the whole.
    tokens, windows, counts = [array.array("i") for _ in range(2)], [array.array("i") for _ in range(2)], Counts()
    is_large = len(sentences) > (LARGE - 1) * CHUNK
    for part in parallel.ordered_map(convert_sentences, _jobs(sentences, lengths), num_processes if is_large else 1,
                                     tokenizer, lengths):
        for whole, values in zip((*tokens, *windows), (*part.tokens, *part.windows)):
            whole.frombytes(values.tobytes())
        counts = Counts(*map(sum, zip(counts, part.counts)))
    (input_ids, words), (sizes, numbers) = map(np.asarray, tokens), map(np.asarray, windows)
    lines = np.fromiter(itertools.chain.from_iterable(sentence.lines for sentence in sentences), np.int32)
    row_splits = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return Features(path, input_ids, row_splits, numbers, words, label_ids, lines), counts


def _say(made, sentences, counts, lengths):
    """Logs what the sentences of a file came to."""
    logger.info("%s: %d sentences, %d words, %d windows, %d tokens", made.path, len(sentences), len(made.lines),
                len(made), len(made.input_ids))
    if lengths.document_context and sentences and not sentences[-1].document:
        logger.info("%s: no sign of a new document; all sentences are context of one another", made.path)
    if counts.long:
        logger.info("%s: %d sentences longer than --max_seq_length=%d are in several windows", made.path, counts.long,
                    lengths.max_seq_length)
    if counts.long and lengths.doc_stride >= lengths.room:
        logger.warning("%s: the windows of long sentences have room for %d tokens and do not overlap with "
                       "--doc_stride=%d", made.path, lengths.room, lengths.doc_stride)
    for count, what in ((counts.cut, f"words are longer than a window and cut to {lengths.room} tokens"),
                        (counts.empty, "words have no visible character and stand as [UNK]"),
                        (counts.unknown, "sentences hold nothing but [UNK]")):
        if count:
            logger.warning("%s: %d %s", made.path, count, what)


def _log(made, number, tokenizer, labels):
    """Says what a window has come to: its tokens, with the label of each word after its first."""
    of_window = slice(made.row_splits[number], made.row_splits[number + 1])
    tokens = tokenizer.convert_ids_to_tokens(made.input_ids[of_window].tolist())
    label_ids = [made.label_ids[word] if word >= 0 else -1 for word in made.words[of_window]]
    logger.info("%s: %s", made.where(number), " ".join(
        token if label < 0 else f"{token}/{labels[label]}" for token, label in zip(tokens, label_ids)))


def make_batch(features, numbers, sizes):
    """The batch of the windows `numbers` int64 [B], cut to its own length, with token places.

    `input_ids`, `input_mask`, `segment_ids` (0), and `words` and `label_ids`, -1 where nothing is predicted, int32
    [B, S]; `example_weights` float32 [B] (ones), `token_indices` int32 as in `batching.unpad`.
    """
    # It loads TensorFlow, which the processes that convert sentences need not wait for.
    from bert_tf import batching

    real, tokens, input_ids = features.lay_out(numbers, sizes.max_seq_length)
    words = np.full(real.shape, -1, np.int32)
    words[real] = features.words[tokens]
    label_ids = np.where(words >= 0, features.label_ids[words], -1)
    batch = batching.unpad({"input_ids": input_ids, "input_mask": real.astype(np.int32),
                            "segment_ids": np.zeros(real.shape, np.int32),
                            "example_weights": np.ones(len(numbers), np.float32)}, sizes)
    length = batch["input_ids"].shape[1]
    return {**batch, "words": words[:, :length], "label_ids": label_ids[:, :length]}
