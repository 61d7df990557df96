"""Records to batches: random access to TFRecord files, every value checked before a model sees it.

Shapes: B batch, S sequence, P masked positions, N records.
"""

import dataclasses
import functools
import hashlib
import threading

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf import batching, files
from bert_tf.errors import UserError
from bert_tf.pretraining import records

# Bytes of a TFRecord around its content: length and its checksum before, the content's checksum after.
HEADER, FOOTER = 12, 4


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the values of a record must fit: the model's sizes and the run's flags."""

    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int
    type_vocab_size: int


class RecordFiles:
    """TFRecord files as one array of N records.

    All files are read through once when opened, checksums included: a file that is cut short, damaged, empty or made
    with other settings is a `UserError` before any work. Memory holds 16 bytes for each record.
    """

    def __init__(self, paths, limits):
        self.paths = paths
        self.limits = limits
        indices = [_index(path) for path in paths]
        for path, (lengths, _) in zip(paths, indices):
            if not lengths.size:
                raise UserError(f"{path}: holds no record")
        self._ends = [np.cumsum(lengths + HEADER + FOOTER) for lengths, _ in indices]
        self._firsts = np.cumsum([0] + [lengths.size for lengths, _ in indices])
        self._open = functools.lru_cache(maxsize=64)(files.open_binary)
        self._lock = threading.Lock()  # a feed that is being given up may still read while the next one begins
        self.digest = hashlib.sha256(b"".join(hashes.tobytes() for _, hashes in indices)).hexdigest()
        for first in self._firsts[:-1]:
            self.read(np.array([first]))

    def __len__(self):
        return int(self._firsts[-1])

    def where(self, number):
        """`file: record k` of a record number, both counted from 0; k as TensorFlow counts."""
        file, row = self._locate(number)
        return f"{self.paths[file]}: record {row}"

    def read(self, numbers):
        """The features of the records `numbers` int64 [B] as int32 and float32 arrays, checked against the limits."""
        contents = [self._content(number) for number in numbers]
        schema = records.features(self.limits.max_seq_length, self.limits.max_predictions_per_seq)
        try:
            parsed = tf.io.parse_example(contents, {name: tf.io.FixedLenFeature([length], dtype)
                                                    for name, (dtype, length) in schema.items()})
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # the latter from TensorFlow quoting the record
            raise UserError(self._explain(numbers, contents, schema)) from None
        batch = {name: values.numpy() for name, values in parsed.items()}
        self._check(numbers, batch)
        batch = {name: values.astype(np.int32) if values.dtype == np.int64 else values
                 for name, values in batch.items()}
        batch["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
        return batch

    def _locate(self, number):
        """Which file a record number lies in, and which of its records it is."""
        file = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return file, number - self._firsts[file]

    def _content(self, number):
        file, row = self._locate(number)
        start = int(self._ends[file][row - 1]) if row else 0
        size = int(self._ends[file][row]) - start - HEADER - FOOTER
        with self._lock:
            source = self._open(self.paths[file])
            source.seek(start + HEADER)
            return source.read(size)

    def _explain(self, numbers, contents, schema):
        """Which record does not fit the flags, and how."""
        for number, content in zip(numbers, contents):
            try:
                example = tf.train.Example.FromString(content)
            except DecodeError:
                return f"{self.where(number)} is no tf.train.Example"
            for name, (dtype, length) in schema.items():
                kind = "float_list" if dtype == "float32" else "int64_list"
                held = len(getattr(example.features.feature[name], kind).value)
                if held != length and name == "next_sentence_labels":
                    return f"{self.where(number)} holds {held} values of {name}, not 1"
                if held != length:
                    flag = "max_predictions_per_seq" if name.startswith("masked_lm") else "max_seq_length"
                    return (f"{self.where(number)} holds {held} values of {name}, --{flag}={length} asks for "
                            f"{length}; give the flag that the records were made with")
        return f"{self.where(numbers[0])} cannot be read"

    def _check(self, numbers, batch):
        """Refuses the first record that holds a value which no model of these limits can take."""
        limits = self.limits
        ranges = (("input_ids", limits.vocab_size), ("masked_lm_ids", limits.vocab_size), ("input_mask", 2),
                  ("segment_ids", limits.type_vocab_size), ("masked_lm_positions", limits.max_seq_length),
                  ("next_sentence_labels", 2))
        for name, end in ranges:
            bad = ((batch[name] < 0) | (batch[name] >= end)).any(axis=1)
            if bad.any():
                row = int(bad.argmax())
                value = next(value for value in batch[name][row] if not 0 <= value < end)
                raise UserError(f"{self.where(numbers[row])}: {name} holds {value}, allowed is 0 to {end - 1}")
        bad = ~(np.isfinite(batch["masked_lm_weights"]) & (batch["masked_lm_weights"] >= 0)).all(axis=1)
        if bad.any():
            raise UserError(f"{self.where(numbers[int(bad.argmax())])}: masked_lm_weights holds a weight below 0 "
                            "or no number")


def make_batch(record_files, numbers, sizes):
    """The batch of the records `numbers`: features cut to the batch's own length, token places, example weights."""
    batch = record_files.read(numbers)
    batch["example_weights"] = np.ones(len(numbers), np.float32)
    return batching.unpad(batch, sizes, positions=batch["masked_lm_positions"])


def _index(path):
    """The content lengths and content hashes int64 [N] of a file's records; checksums are verified."""
    def measure(contents):
        return tf.strings.length(contents), tf.strings.to_hash_bucket_fast(contents, 2**63 - 1)

    stream = tf.data.TFRecordDataset(path, buffer_size=1 << 20)
    lengths, hashes, count = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    try:
        for length, content_hash in stream.batch(1024).map(measure):
            lengths.append(length.numpy().astype(np.int64))
            hashes.append(content_hash.numpy())
            count += len(lengths[-1])
    except tf.errors.DataLossError as error:
        damaged = _first_damaged(stream, count)
        doubt = "" if damaged else ", or this is no TFRecord file"
        raise UserError(f"{path}: record {damaged} is damaged or cut short{doubt}; make the file again") from error
    except tf.errors.OpError as error:
        raise UserError(f"{path}: cannot be read ({error.message})") from error
    return np.concatenate(lengths), np.concatenate(hashes)


def _first_damaged(stream, start):
    """The number of the record, from `start` on, at which reading fails."""
    number = start
    try:
        for _ in stream.skip(start):
            number += 1
    except tf.errors.DataLossError:
        pass
    return number
