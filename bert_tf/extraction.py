"""Contextual vectors of lines of text: the encoder's layers at every token, or pooled into one vector a line.

Lines stream: a window of them is sorted by length, so that a batch holds little padding, computed, put back into
order and written. Shapes: B batch, S sequence, H hidden, N lines, T tokens of all lines.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import re
import shutil
import tempfile
import zipfile

import numpy as np
import tensorflow as tf

from bert_tf import files, packing
from bert_tf.errors import UserError

MIN_SEQ_LENGTH = 3  # [CLS], [SEP] and a token
DEFAULT_LAYERS = "-1,-2,-3,-4"  # of the flag, whose script imports this module late
WINDOW_BYTES = 1 << 27
WINDOW_BATCHES = 64

_PAIR = re.compile(r"^(.*) \|\|\| (.*)$")


@dataclasses.dataclass(frozen=True)
class Row:
    """One line as the model reads it: ids and segments with [CLS] and [SEP], and how many tokens were cut off."""

    input_ids: list
    segment_ids: list
    dropped: int


@dataclasses.dataclass
class Counts:
    """What was read: lines, tokens (with [CLS] and [SEP]), lines cut short, tokens cut off."""

    lines: int = 0
    tokens: int = 0
    truncated: int = 0
    dropped: int = 0


def read_texts(path):
    """An iterator of `(text_a, text_b)` over the lines of a file, `text_b` None unless the line is `A ||| B`.

    Lines are stripped; a blank one is an example too, as in the original. `UserError` at once when the file cannot be
    read or is empty, later for a line that is not UTF-8.
    """
    lines = files.read_lines(path)
    first = next(lines, None)
    if first is None:
        raise UserError(f"{path}: the file is empty")
    return (_split(line) for _, line in itertools.chain([first], lines))


def _split(line):
    line = line.strip()
    pair = _PAIR.match(line)
    return (pair[1], pair[2]) if pair else (line, None)


def make_row(tokenizer, text_a, text_b, max_seq_length):
    """The `Row` of a text or pair, cut from the end (of the longer text, where there are two) to `max_seq_length`."""
    a = tokenizer.encode(text_a)
    b = tokenizer.encode(text_b) if text_b else []
    dropped = packing.truncate_seq_pair(a, b, max_seq_length - (3 if b else 2))
    input_ids, segment_ids = packing.pack(a, b or None, tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"])
    return Row(input_ids, segment_ids, dropped)


def parse_layers(text, num_hidden_layers):
    """The layer indices of a comma-separated list (-1 is the last); `UserError` for one that the model lacks."""
    if text == DEFAULT_LAYERS and num_hidden_layers < 4:
        fitting = ",".join(str(-number) for number in range(1, num_hidden_layers + 1))
        raise UserError(f"--layers={text} (the default): the model has {num_hidden_layers} layers; pass "
                        f"--layers={fitting}")
    layers = []
    for part in text.split(","):
        try:
            layers.append(int(part))
        except ValueError as error:
            raise UserError(f"--layers={text}: {part.strip()!r} is no whole number") from error
        if not -num_hidden_layers <= layers[-1] < num_hidden_layers:
            raise UserError(f"--layers={text}: the model has {num_hidden_layers} layers, so an index lies between "
                            f"{-num_hidden_layers} and {num_hidden_layers - 1}")
        if layers.count(layers[-1]) > 1:
            raise UserError(f"--layers={text}: layer {layers[-1]} is named twice")
    return layers


class Extractor:
    """Computes the vectors of rows with a `BertModel`.

    `extractor(rows)` yields, row by row, an array [number of layers, tokens, H], or [number of layers, H] with a
    pooling over all tokens of the row, [CLS] and [SEP] included: "cls" the first, "mean", "max".
    """

    def __init__(self, model, layers, batch_size, pooling="none"):
        self.model, self.layers, self.batch_size, self.pooling = model, layers, batch_size, pooling
        matrix = tf.TensorSpec([None, None], tf.int32)
        self._compute = tf.function(self._compute_batch, input_signature=[matrix] * 3)

    def __call__(self, rows):
        for window in self._windows(rows):
            order = sorted(range(len(window)), key=lambda index: len(window[index].input_ids))
            vectors = [None] * len(window)
            for start in range(0, len(order), self.batch_size):
                indices = order[start:start + self.batch_size]
                for index, value in zip(indices, self._run([window[index] for index in indices]), strict=True):
                    vectors[index] = value
            yield from vectors

    def _windows(self, rows):
        """Lists of rows whose vectors fit into `WINDOW_BYTES` together, or that fill one batch."""
        window, size = [], 0
        for row in rows:
            vectors = len(row.input_ids) if self.pooling == "none" else 1
            window.append(row)
            size += vectors * len(self.layers) * self.model.config.hidden_size * 4
            full = len(window) >= self.batch_size and size >= WINDOW_BYTES
            if full or len(window) >= self.batch_size * WINDOW_BATCHES:
                yield window
                window, size = [], 0
        if window:
            yield window

    def _run(self, rows):
        length = max(len(row.input_ids) for row in rows)
        values = self._compute(
            tf.constant([packing.pad(row.input_ids, length) for row in rows], tf.int32),
            tf.constant([packing.pad([1] * len(row.input_ids), length) for row in rows], tf.int32),
            tf.constant([packing.pad(row.segment_ids, length) for row in rows], tf.int32),
        ).numpy()
        if self.pooling != "none":
            return [values[:, index] for index in range(len(rows))]
        return [values[:, index, :len(row.input_ids)] for index, row in enumerate(rows)]

    def _compute_batch(self, input_ids, input_mask, token_type_ids):
        outputs = self.model(input_ids, input_mask, token_type_ids)["all_encoder_layers"]
        return tf.stack([self._pool(outputs[layer], input_mask) for layer in self.layers])

    def _pool(self, values, input_mask):  # [B, S, H], [B, S] -> [B, S, H] or [B, H]
        real = tf.cast(input_mask, tf.float32)[:, :, None]
        if self.pooling == "cls":
            return values[:, 0]
        if self.pooling == "mean":
            return tf.reduce_sum(values * real, axis=1) / tf.reduce_sum(real, axis=1)
        if self.pooling == "max":
            return tf.reduce_max(tf.where(real > 0, values, values.dtype.min), axis=1)
        return values


class JsonWriter:
    """One JSON object a line, as the original writes it; pooled lines hold `layers` in place of `features`."""

    def __init__(self, path, layers, inv_vocab, pooled):
        self.path, self.layers, self.inv_vocab, self.pooled = path, layers, inv_vocab, pooled

    def write(self, rows_and_vectors):
        with files.replacing(self.path) as file:
            for index, (row, vectors) in enumerate(rows_and_vectors):
                # A float32 times a million is exact in float64, so this rounds as Python's `round` does.
                values = np.round(vectors.astype(np.float64), 6).tolist()
                line = {"linex_index": index}
                if self.pooled:
                    line["layers"] = self._layers(values)
                else:
                    tokens = [self.inv_vocab[number] for number in row.input_ids]
                    line["features"] = [{"token": token, "layers": self._layers(at_token)}
                                        for token, at_token in zip(tokens, zip(*values), strict=True)]
                file.write(json.dumps(line) + "\n")

    def _layers(self, values):
        return [{"index": layer, "values": value} for layer, value in zip(self.layers, values, strict=True)]


class NpzWriter:
    """A NumPy `.npz`: `layer_-1` and so on, float32 [T, H] with `input_ids` int32 [T] and `row_splits` int64 [N + 1].

    Line n has the tokens from `row_splits[n]` to `row_splits[n + 1]`. Pooled: the layers alone, [N, H]. Arrays are
    spooled to disk, so that memory is bounded.
    """

    def __init__(self, path, layers, hidden_size, pooled):
        self.path, self.layers, self.hidden_size, self.pooled = path, layers, hidden_size, pooled

    def write(self, rows_and_vectors):
        shapes = {f"layer_{layer}": (np.float32, (self.hidden_size,)) for layer in self.layers}
        if not self.pooled:
            shapes |= {"input_ids": (np.int32, ()), "row_splits": (np.int64, ())}
        beside = None if files.is_remote(self.path) else os.path.dirname(self.path) or "."
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(files.replacing(self.path, "wb"))
            spools = {name: stack.enter_context(tempfile.TemporaryFile(dir=beside)) for name in shapes}
            self._spool(rows_and_vectors, spools)
            with zipfile.ZipFile(file, "w") as archive:
                for name, (dtype, shape) in shapes.items():
                    self._add(archive, name, spools[name], np.dtype(dtype), shape)

    def _spool(self, rows_and_vectors, spools):
        total = 0
        if not self.pooled:
            spools["row_splits"].write(np.int64(0).tobytes())
        for row, vectors in rows_and_vectors:
            for layer, values in zip(self.layers, vectors, strict=True):
                spools[f"layer_{layer}"].write(values.tobytes())
            if not self.pooled:
                total += len(row.input_ids)
                spools["input_ids"].write(np.array(row.input_ids, np.int32).tobytes())
                spools["row_splits"].write(np.int64(total).tobytes())

    def _add(self, archive, name, spool, dtype, shape):
        count = spool.tell() // (dtype.itemsize * int(np.prod(shape, dtype=int)))
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count, *shape)}
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            spool.seek(0)
            np.lib.format.write_array_header_1_0(member, header)
            shutil.copyfileobj(spool, member, 1 << 20)


def extract(texts, tokenizer, extractor, writer, max_seq_length):
    """Writes the vectors of `texts` (pairs as `read_texts` yields them), whole or not at all; returns `Counts`."""
    counts = Counts()
    pending = collections.deque()  # rows whose vectors have not come out yet

    def rows():
        for text_a, text_b in texts:
            row = make_row(tokenizer, text_a, text_b, max_seq_length)
            counts.lines += 1
            counts.tokens += len(row.input_ids)
            counts.truncated += row.dropped > 0
            counts.dropped += row.dropped
            pending.append(row)
            yield row

    try:
        writer.write((pending.popleft(), vectors) for vectors in extractor(rows()))
    except OSError as error:
        raise UserError(f"{writer.path}: cannot be written ({error.strerror or error})") from error
    return counts
