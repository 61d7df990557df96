"""Examples to the ids that the model reads, and to batches.

Shapes: N examples, T tokens of all examples, B batch, S sequence.
"""

import array
import dataclasses
import hashlib
import logging

import numpy as np

from bert_tf import batching, packing

logger = logging.getLogger("bert_tf")

MIN_SEQ_LENGTH = 3  # [CLS], [SEP] and a token
LOGGED_EXAMPLES = 5


@dataclasses.dataclass(frozen=True)
class Features:
    """The N examples of the file `path` without padding: n has the ids from `row_splits[n]` to `row_splits[n + 1]`.

    `input_ids` int32 [T], `row_splits` int64 [N + 1]; `first_lengths` int32 [N] counts the ids of segment 0, which
    come first; `label_ids` [N] are int32 classes or float32 scores (0 in test files); `lines` int32 [N].
    """

    path: str
    input_ids: np.ndarray
    row_splits: np.ndarray
    first_lengths: np.ndarray
    label_ids: np.ndarray
    lines: np.ndarray

    def __len__(self):
        return len(self.label_ids)

    @property
    def lengths(self):
        """The number of ids of each example, int64 [N]."""
        return np.diff(self.row_splits)

    @property
    def digest(self):
        """A hexadecimal number that features share which are equal to a model."""
        hashed = hashlib.sha256()
        for values in (self.input_ids, self.row_splits, self.first_lengths, self.label_ids):
            hashed.update(values)
        return hashed.hexdigest()

    def where(self, number):
        """The file and line of an example."""
        return f"{self.path}:{self.lines[number]}"


def convert_example(example, tokenizer, max_seq_length):
    """`(input_ids, ids in segment 0, ids cut off)` of an example.

    The longer text gives first until all fit. A second text that comes to no token, or is cut to none, is none at all.
    Source: the original.
    """
    a = tokenizer.encode(example.text_a)
    b = tokenizer.encode(example.text_b) if example.text_b else []
    dropped = packing.truncate_seq_pair(a, b, max_seq_length - (3 if b else 2))
    input_ids, _ = packing.pack(a, b or None, tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"])
    return input_ids, len(a) + 2, dropped


def convert(examples, path, tokenizer, max_seq_length, task):
    """The `Features` of an iterable of the examples of a file; what was cut off or is empty is counted and said."""
    input_ids, row_splits, first_lengths = array.array("i"), array.array("q", [0]), array.array("i")
    label_ids, lines = array.array("i" if task.labels else "f"), array.array("i")
    truncated, empty = 0, 0
    for example in examples:
        ids, first_length, dropped = convert_example(example, tokenizer, max_seq_length)
        if len(label_ids) < LOGGED_EXAMPLES:
            _log(path, example, tokenizer.convert_ids_to_tokens(ids), task)
        input_ids.extend(ids)
        row_splits.append(len(input_ids))
        first_lengths.append(first_length)
        label_ids.append(example.label or 0)
        lines.append(example.line)
        truncated += dropped > 0
        empty += len(ids) == 2
    logger.info("%s: %d examples, %d tokens, %d cut to --max_seq_length=%d", path, len(label_ids), len(input_ids),
                truncated, max_seq_length)
    if empty:
        logger.warning("%s: %d examples hold no token", path, empty)
    return Features(path, *map(np.asarray, (input_ids, row_splits, first_lengths, label_ids, lines)))


def _log(path, example, tokens, task):
    label = "no label" if example.label is None else task.labels[example.label] if task.labels else example.label
    logger.info("%s:%d (%s): %s", path, example.line, label, " ".join(tokens))


def make_batch(features, numbers, sizes):
    """The batch of the examples `numbers` int64 [B], cut to its own length, with token places.

    `input_ids`, `input_mask`, `segment_ids` int32 [B, S], `label_ids` [B], `example_weights` float32 [B] (ones),
    `token_indices` int32 as in `batching.unpad`.
    """
    starts, ends = features.row_splits[numbers], features.row_splits[numbers + 1]
    places = np.arange(sizes.max_seq_length)
    real = places < (ends - starts)[:, None]
    input_ids = np.zeros(real.shape, np.int32)
    input_ids[real] = features.input_ids[(starts[:, None] + places)[real]]
    second = real & (places >= features.first_lengths[numbers][:, None])
    batch = {"input_ids": input_ids, "input_mask": real.astype(np.int32), "segment_ids": second.astype(np.int32),
             "label_ids": features.label_ids[numbers], "example_weights": np.ones(len(numbers), np.float32)}
    return batching.unpad(batch, sizes)
