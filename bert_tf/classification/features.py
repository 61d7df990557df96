"""Examples to the ids that the model reads, and to batches.

Shapes: N examples, T tokens of all examples, C classes, B batch, S sequence.
"""

import array
import dataclasses
import itertools
import logging
import typing

import numpy as np

from bert_tf import packing, parallel
from bert_tf.unpadded import Unpadded

logger = logging.getLogger("bert_tf")

MIN_SEQ_LENGTH = 3  # [CLS], [SEP] and a token
LOGGED_EXAMPLES = 5
CHUNK = 4096  # examples that a process converts at a time
LARGE = 8  # chunks from which on starting processes takes less time than they save
# How `Features.label_ids` are held for each kind of task.
LABEL_TYPES = {"single": "i", "multi": "b", "regression": "f"}


@dataclasses.dataclass(frozen=True)
class Features(Unpadded):
    """The N examples of the file `path` without padding: n has the ids from `row_splits[n]` to `row_splits[n + 1]`.

    `input_ids` int32 [T], `row_splits` int64 [N + 1]; `first_lengths` int32 [N] counts the ids of segment 0, which
    come first; `label_ids` are int32 classes [N], int8 [N, C] of 0 and 1 where an example has several, or float32
    scores [N] (0 in files without labels); `lines` int32 [N]; `truncated` bool [N] where ids were cut off.
    """

    first_lengths: np.ndarray
    label_ids: np.ndarray
    lines: np.ndarray
    truncated: np.ndarray

    @property
    def digest(self):
        """A hexadecimal number that features share which are equal to a model."""
        return self.digest_of("first_lengths", "label_ids")

    def where(self, number):
        """The file and line of an example."""
        return f"{self.path}:{self.lines[number]}"


class Ids(typing.NamedTuple):
    """What texts come to: the arrays of `Features`, with `lengths` in place of `row_splits`."""

    input_ids: array.array
    lengths: array.array
    first_lengths: array.array
    truncated: array.array

    @classmethod
    def none(cls):
        """Those of no text."""
        return cls(*map(array.array, "iiib"))


def convert_pair(text_a, text_b, tokenizer, max_seq_length):
    """`(input_ids, ids in segment 0, ids cut off)` of a text, or with `text_b` of a pair.

    The longer text gives first until all fit. A second text that comes to no token, or is cut to none, is none at all.
    Source: the original.
    """
    a = tokenizer.encode(text_a)
    b = tokenizer.encode(text_b) if text_b else []
    dropped = packing.truncate_seq_pair(a, b, max_seq_length - (3 if b else 2))
    input_ids, _ = packing.pack(a, b or None, tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"])
    return input_ids, len(a) + 2, dropped


def convert_texts(texts, tokenizer, max_seq_length):
    """The `Ids` of an iterable of pairs `(text_a, text_b or None)`."""
    made = Ids.none()
    for text_a, text_b in texts:
        input_ids, first_length, dropped = convert_pair(text_a, text_b, tokenizer, max_seq_length)
        made.input_ids.extend(input_ids)
        made.lengths.append(len(input_ids))
        made.first_lengths.append(first_length)
        made.truncated.append(dropped > 0)
    return made


def of_texts(texts, tokenizer, max_seq_length):
    """The `Features` of pairs `(text_a, text_b or None)` that come from no file and have no label; says nothing."""
    made = convert_texts(texts, tokenizer, max_seq_length)
    numbers = range(len(made.lengths))
    return _assemble("text", made, np.zeros(len(numbers), np.int32), np.arange(1, len(numbers) + 1, dtype=np.int32))


def convert(examples, path, tokenizer, max_seq_length, task, num_processes=1):
    """The `Features` of an iterable of the examples of a file; what was cut off or is empty is counted and said.

    The examples of a large file are shared among `num_processes`; the result is the same for any number.
    """
    label_ids, lines = array.array(LABEL_TYPES[task.kind]), array.array("i")

    def texts_of(example):
        if len(lines) < LOGGED_EXAMPLES:
            _log(path, example, tokenizer, max_seq_length, task)
        label_ids.extend(_label_values(example.label, task))
        lines.append(example.line)
        return example.text_a, example.text_b

    texts = map(texts_of, examples)
    chunks = iter(lambda: list(itertools.islice(texts, CHUNK)), [])
    first = list(itertools.islice(chunks, LARGE))
    parts = parallel.ordered_map(convert_texts, itertools.chain(first, chunks),
                                 num_processes if len(first) == LARGE else 1, tokenizer, max_seq_length)
    made = Ids.none()
    for part in parts:
        for whole, values in zip(made, part):
            whole.extend(values)
    _say(path, made, max_seq_length)
    label_ids = np.asarray(label_ids)
    labels = label_ids.reshape(-1, task.num_classes) if task.kind == "multi" else label_ids
    return _assemble(path, made, labels, np.asarray(lines))


def decided_by(task, table, language, tokenizer, max_seq_length):
    """What decides the features of a file besides its bytes and the vocabulary's, as plain values by name."""
    reader = {name: getattr(table, name) for name in ("text", "label", "header", "language", "separator")}
    labels = {name: getattr(task, name) for name in ("kind", "labels", "aliases", "loses_tabs")}
    return {**labels, "table": {**reader, "rows": table.rows.__name__}, "language": language,
            "do_lower_case": tokenizer.do_lower_case, "strip_accents": tokenizer.basic_tokenizer.strip_accents,
            "max_seq_length": max_seq_length}


def _label_values(label, task):
    """What stands for a label, or for None, in `Features.label_ids`: one number, or one for each class."""
    if task.kind == "multi":
        return [number in (label or ()) for number in range(task.num_classes)]
    return [label or 0]


def _assemble(path, made, label_ids, lines):
    """`Features` of `Ids`."""
    row_splits = np.concatenate([[0], np.cumsum(made.lengths, dtype=np.int64)])
    return Features(path, np.asarray(made.input_ids), row_splits, np.asarray(made.first_lengths), label_ids, lines,
                    np.asarray(made.truncated).astype(bool))


def _say(path, made, max_seq_length):
    """Logs what the texts of a file came to."""
    logger.info("%s: %d examples, %d tokens, %d cut to --max_seq_length=%d", path, len(made.lengths),
                len(made.input_ids), sum(made.truncated), max_seq_length)
    empty = sum(length == 2 and not cut for length, cut in zip(made.lengths, made.truncated))
    if empty:
        logger.warning("%s: %d examples hold no token", path, empty)


def _log(path, example, tokenizer, max_seq_length, task):
    """Says what an example has come to."""
    names = {"single": lambda label: task.labels[label], "regression": str,
             "multi": lambda label: ", ".join(task.labels[number] for number in label) or "none of the labels"}
    label = "no label" if example.label is None else names[task.kind](example.label)
    input_ids, *_ = convert_pair(example.text_a, example.text_b, tokenizer, max_seq_length)
    logger.info("%s:%d (%s): %s", path, example.line, label, " ".join(tokenizer.convert_ids_to_tokens(input_ids)))


def make_batch(features, numbers, sizes):
    """The batch of the examples `numbers` int64 [B], cut to its own length, with token places.

    `input_ids`, `input_mask`, `segment_ids` int32 [B, S], `label_ids` [B] or float32 [B, C], `example_weights` float32
    [B] (ones), `token_indices` int32 as in `batching.unpad`.
    """
    # It loads TensorFlow, which the processes that convert texts need not wait for.
    from bert_tf import batching

    real, _, input_ids = features.lay_out(numbers, sizes.max_seq_length)
    second = real & (np.arange(sizes.max_seq_length) >= features.first_lengths[numbers][:, None])
    label_ids = features.label_ids[numbers]
    batch = {"input_ids": input_ids, "input_mask": real.astype(np.int32), "segment_ids": second.astype(np.int32),
             "label_ids": label_ids.astype(np.float32) if label_ids.ndim == 2 else label_ids,
             "example_weights": np.ones(len(numbers), np.float32)}
    return batching.unpad(batch, sizes)
