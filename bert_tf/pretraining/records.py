"""Instances to TFRecord files, whole or not at all, each with a sidecar that says how it was made.

The input is cut into shards of documents. A shard is a run of its own, with its own seed, in whichever process; its
records stream to a part file, because only once all are made it is known in which order they are written.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import multiprocessing
import os
import random
import tempfile
from array import array
from concurrent.futures.process import BrokenProcessPool

import bert_tf
from bert_tf import files
from bert_tf.errors import UserError
from bert_tf.pretraining import documents, instances, masking

logger = logging.getLogger("bert_tf")

SIDECAR_SUFFIX = ".meta.json"
# What a reader relies on, all of it in every sidecar.
SIDECAR_KINDS = {
    "instances": int, "bytes": int, "vocab_file": str, "vocab_sha256": str, "vocab_size": int, "do_lower_case": bool,
    "strip_accents": bool, "max_seq_length": int, "max_predictions_per_seq": int,
}
LOGGED_INSTANCES = 20


def features(max_seq_length, max_predictions_per_seq):
    """The features of a record: a dict from name to (dtype, number of values)."""
    return {
        "input_ids": ("int64", max_seq_length),
        "input_mask": ("int64", max_seq_length),
        "segment_ids": ("int64", max_seq_length),
        "masked_lm_positions": ("int64", max_predictions_per_seq),
        "masked_lm_ids": ("int64", max_predictions_per_seq),
        "masked_lm_weights": ("float32", max_predictions_per_seq),
        "next_sentence_labels": ("int64", 1),
    }


def _varint(number):
    """A number of at least 0 in protobuf's base 128."""
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + _varint(high) if high else bytes([low])


_FIELD, _VALUE, _INT64_LIST, _FLOAT_LIST = b"\x0a", b"\x12", b"\x1a", b"\x12"


class Serializer:
    """Instances to the bytes of a padded `tf.train.Example`, many times as fast as through `tf.train`.

    The features stand in the order in which the original's files hold them, so files are equal byte for byte.
    """

    def __init__(self, settings, vocab_size):
        self._length, self._predictions = settings.max_seq_length, settings.max_predictions_per_seq
        # Of every id, and of every field's length: at most 11 bytes a piece or prediction, and the features' names.
        longest = 1024 + 16 * (self._length + self._predictions)
        self._varints = [_varint(number) for number in range(max(vocab_size, longest))]
        self._labels = [self._feature(b"next_sentence_labels", _INT64_LIST, bytes([label])) for label in (0, 1)]
        self._mask = functools.cache(self._mask_of)
        self._weights = functools.cache(self._weights_of)

    def __call__(self, instance):
        """The bytes of an `Instance`."""
        pieces, predictions = len(instance.input_ids), len(instance.masked_lm_ids)
        no_piece, no_prediction = bytes(self._length - pieces), bytes(self._predictions - predictions)
        feature, pack = self._feature, self._pack
        return self._field(_FIELD, b"".join((
            feature(b"masked_lm_ids", _INT64_LIST, pack(instance.masked_lm_ids) + no_prediction),
            feature(b"input_ids", _INT64_LIST, pack(instance.input_ids) + no_piece),
            feature(b"masked_lm_positions", _INT64_LIST, pack(instance.masked_lm_positions) + no_prediction),
            self._labels[instance.is_random_next],
            self._mask(pieces),
            self._weights(predictions),
            feature(b"segment_ids", _INT64_LIST, bytes(instance.segment_ids) + no_piece),
        )))

    def _pack(self, numbers):
        varints = self._varints
        return b"".join([varints[number] for number in numbers])

    def _field(self, tag, content):
        return tag + self._varints[len(content)] + content

    def _feature(self, name, kind, values):
        field = self._field
        return field(_FIELD, field(_FIELD, name) + field(_VALUE, field(kind, field(_FIELD, values))))

    def _mask_of(self, pieces):
        return self._feature(b"input_mask", _INT64_LIST, b"\x01" * pieces + bytes(self._length - pieces))

    def _weights_of(self, predictions):
        one, zero = b"\x00\x00\x80?", bytes(4)  # float32, little-endian
        values = one * predictions + zero * (self._predictions - predictions)
        return self._feature(b"masked_lm_weights", _FLOAT_LIST, values)


@dataclasses.dataclass(frozen=True)
class Part:
    """A shard's serialised instances in the file `path`: number `n` ends at `ends[n]`; they are written in `order`."""

    path: str
    ends: array
    order: array
    counts: instances.Counts

    def records(self):
        """Yields the serialised instances in their final order."""
        with open(self.path, "rb", buffering=0) as file:
            for number in self.order:
                start = self.ends[number - 1] if number else 0
                file.seek(start)
                yield file.read(self.ends[number] - start)


def make_part(spans, settings, path, tokenizer):
    """Makes the instances of the documents in `spans` and returns the `Part` that holds them in the file `path`.

    Memory holds the shard's documents, and of each instance only where it lies.
    """
    counts, rng = instances.Counts(), random.Random(settings.random_seed)
    found = documents.read(spans, tokenizer.encode, counts)
    vocabulary = masking.MaskingVocabulary.of(tokenizer.vocab)
    serialize, ends, end = Serializer(settings, tokenizer.vocab_size), array("Q"), 0
    with open(path, "wb") as file:
        for instance in instances.create(found, vocabulary, settings, rng, counts):
            end += file.write(serialize(instance))
            ends.append(end)
    order = array("Q", range(len(ends)))
    masking.shuffle(order, rng)
    return Part(path, ends, order, counts)


def _start_worker(tokenizer):
    global _worker_tokenizer
    _worker_tokenizer = tokenizer


def _work(job):
    return make_part(*job, _worker_tokenizer)


def make_parts(shards, settings, folder, tokenizer, num_workers=1):
    """Yields the `Part` of every shard (a list of spans), in order; their files lie in `folder`.

    The parts are the same for any number of worker processes, which are started afresh, never forked: the calling
    process may hold TensorFlow's threads.
    """
    jobs = [(spans, settings.of_shard(shard), os.path.join(folder, str(shard))) for shard, spans in enumerate(shards)]
    num_workers = min(num_workers, len(jobs))
    if num_workers == 1:
        for job in jobs:
            yield make_part(*job, tokenizer)
        return
    with concurrent.futures.ProcessPoolExecutor(
        num_workers, multiprocessing.get_context("spawn"), _start_worker, (tokenizer,)
    ) as pool:
        try:
            yield from pool.map(_work, jobs)
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was ended from outside, out of memory perhaps: fewer --num_workers or more "
                "--num_shards take less"
            ) from error


def check_outputs(paths, inputs):
    """Checks before any work that record files can be written to `paths`; `UserError` otherwise."""
    for number, path in enumerate(paths):
        files.check_output(path, "output_file", [*inputs, *paths[:number]])
        if path.endswith(SIDECAR_SUFFIX):
            raise UserError(f"--output_file={path} ends in {SIDECAR_SUFFIX}, as only files that describe records do")


def create(input_files, output_files, vocab_file, tokenizer, settings, num_shards=1, num_workers=1):
    """Makes records of `input_files` and returns the `Counts` of the run.

    The instances, shard after shard, are dealt in turn to `output_files`; each gets a sidecar. All files appear at the
    end or none does. `UserError` for an empty input file, text that is not UTF-8, and a corpus without an instance.
    """
    spans = documents.whole(input_files)
    made_from = {
        "input_files": [{"name": span.path, "bytes": span.stop} for span in spans],
        "vocab_file": vocab_file,
        "vocab_sha256": files.sha256(vocab_file),
        "vocab_size": tokenizer.vocab_size,
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.basic_tokenizer.strip_accents,
        **dataclasses.asdict(settings),
        "num_shards": num_shards,
    }
    # Part files take about the room of the records: they lie beside them, where that is on this machine.
    beside = None if files.is_remote(output_files[0]) else os.path.dirname(output_files[0]) or "."
    names = [name for path in output_files for name in (path, path + SIDECAR_SUFFIX)]
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bert_tf-", dir=beside))
            unfinished = stack.enter_context(_together(names))
            parts = make_parts(documents.cut(spans, num_shards), settings, folder, tokenizer, num_workers)
            stack.enter_context(contextlib.closing(parts))  # no worker writes any more when the folder goes
            shards = []
            dealt = _deal(_records_of(parts, shards), unfinished[::2], tokenizer.inv_vocab)
            counts = sum(shards, instances.Counts())
            empty = sum(not shard.documents for shard in shards)
            if empty:
                logger.warning("%d of %d shards hold no document: there are too few to fill them", empty, num_shards)
            if 0 in dealt:
                logger.warning("%d of %d output files hold no record", dealt.count(0), len(dealt))
            for records, sidecar, number in zip(unfinished[::2], unfinished[1::2], dealt):
                made = {"made_by": f"bert_tf {bert_tf.__version__} create_pretraining_data", "instances": number}
                made |= {"bytes": files.size_of(records), **made_from, "run": dataclasses.asdict(counts)}
                with files.replacing(sidecar) as file:
                    file.write(json.dumps(made, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"--output_file={output_files[0]}: cannot be written ({error.strerror})") from error
    return counts


@contextlib.contextmanager
def _together(paths):
    """Gives names beside `paths` to write to; together they are renamed into place at the end, or else removed."""
    unfinished = [f"{path}.tmp-{os.getpid()}" for path in paths]
    try:
        yield unfinished
        for name, path in zip(unfinished, paths):
            files.gfile().rename(name, path, overwrite=True) if files.is_remote(path) else os.replace(name, path)
    except BaseException:
        for name in unfinished:
            with contextlib.suppress(Exception):
                files.gfile().remove(name) if files.is_remote(name) else os.remove(name)
        raise


def _records_of(parts, counts):
    """Yields the records of all `parts`, removing each when done; their counts are appended to `counts`."""
    for part in parts:
        counts.append(part.counts)
        yield from part.records()
        os.remove(part.path)


def _deal(records, paths, inv_vocab):
    """Writes `records` to the TFRecord files `paths` in turn, logs the first, returns how many each file got."""
    first = next(records, None)
    if first is None:
        raise UserError("--input_file: the text yields no instance; it takes a line with at least one word")
    import tensorflow as tf  # only now: what is wrong with the text is said at once

    dealt = [0] * len(paths)
    try:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(tf.io.TFRecordWriter(path)) for path in paths]
            for number, record in enumerate(itertools.chain([first], records)):
                if number < LOGGED_INSTANCES:
                    _log(number, tf.train.Example.FromString(record).features.feature, inv_vocab)
                writers[number % len(paths)].write(record)
                dealt[number % len(paths)] += 1
    except tf.errors.OpError as error:
        raise UserError(f"--output_file: {error.message}") from error
    return dealt


def _log(number, feature, inv_vocab):
    ids = feature["input_ids"].int64_list.value[:sum(feature["input_mask"].int64_list.value)]
    num_masked = int(sum(feature["masked_lm_weights"].float_list.value))
    masked = zip(feature["masked_lm_positions"].int64_list.value, feature["masked_lm_ids"].int64_list.value)
    logger.info(
        "instance %d (%s next): %s\n  masked: %s",
        number + 1,
        "random" if feature["next_sentence_labels"].int64_list.value[0] else "actual",
        " ".join(inv_vocab[piece] for piece in ids),
        " ".join(f"{position}={inv_vocab[label]}" for position, label in list(masked)[:num_masked]),
    )


def record_files(patterns, flag):
    """The record files that a comma-separated list of names and globs stands for, in order: sidecars are dropped.

    Errors as `files.expand`, which names `flag`; also where nothing but sidecars is left.
    """
    paths = [path for path in files.expand(patterns, flag) if not path.endswith(SIDECAR_SUFFIX)]
    if not paths:
        raise UserError(f"--{flag}={patterns}: only {SIDECAR_SUFFIX} files match, no records")
    return paths


def read_sidecar(path):
    """What the sidecar of the record file `path` says, as a dict; None where there is none.

    `UserError` for a sidecar that is not one, or that describes another file than the one that stands there.
    """
    name = path + SIDECAR_SUFFIX
    if not files.exists(name):
        return None
    try:
        sidecar = json.loads(files.read_text(name))
        bad = [key for key, kind in SIDECAR_KINDS.items() if not isinstance(sidecar[key], kind)]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{name}: does not describe records; remove it, or make {path} again") from error
    if bad:
        raise UserError(f"{name}: {bad[0]} is {sidecar[bad[0]]!r}; remove the file, or make {path} again")
    size = files.size_of(path)
    if size != sidecar["bytes"]:
        raise UserError(
            f"{name}: describes records of {sidecar['bytes']} bytes, {path} has {size}; it was cut short or replaced: "
            "make it again, or remove the sidecar if the records are right"
        )
    return sidecar


def check_sidecars(paths, max_seq_length, max_predictions_per_seq, vocab_size):
    """Checks the sidecars of the record files `paths` against what is asked for and returns them; None for a file
    without one.

    `vocab_size` is the model's. `UserError`, with both numbers, where the records were made with another length or
    number of predictions, with a larger vocabulary, or (two files) with different vocabularies.
    """
    asked = {"max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions_per_seq}
    sidecars = [read_sidecar(path) for path in paths]
    first = None
    for path, sidecar in zip(paths, sidecars):
        if sidecar is None:
            continue
        first = first or (path, sidecar)
        for name, number in asked.items():
            if sidecar[name] != number:
                raise UserError(
                    f"{path}: made with --{name}={sidecar[name]}, asked for {number}; make it again or ask for what "
                    "it holds"
                )
        if sidecar["vocab_size"] > vocab_size:
            raise UserError(
                f"{path}: made with a vocabulary of {sidecar['vocab_size']} ({sidecar['vocab_file']}), the model's "
                f"has {vocab_size}"
            )
        if sidecar["vocab_sha256"] != first[1]["vocab_sha256"]:
            raise UserError(
                f"{path} and {first[0]} were made with different vocabularies "
                f"({sidecar['vocab_file']}, {first[1]['vocab_file']}); their ids do not mean the same"
            )
    return sidecars
