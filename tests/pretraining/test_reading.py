import concurrent.futures
import gzip
import struct

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, tokenization
from bert_tf.errors import UserError
from bert_tf.pretraining import reading, records
from bert_tf.pretraining.instances import Settings

LIMITS = reading.Limits(max_seq_length=16, max_predictions_per_seq=3, vocab_size=40, type_vocab_size=2)


def features(seed=0):
    rng = np.random.RandomState(seed)
    length = rng.randint(6, 17)
    real = (np.arange(16) < length).astype(int)
    return {"input_ids": rng.randint(5, 40, 16) * real, "input_mask": real,
            "segment_ids": (np.arange(16) > length // 2) * real, "masked_lm_positions": rng.randint(1, 6, 3),
            "masked_lm_ids": rng.randint(5, 40, 3), "masked_lm_weights": np.array([1.0, 1.0, 0.0]),
            "next_sentence_labels": np.array([rng.randint(0, 2)])}


def serialize(values):
    def feature(name, array):
        if name == "masked_lm_weights":
            return tf.train.Feature(float_list=tf.train.FloatList(value=array))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value) for value in array]))

    return tf.train.Example(features=tf.train.Features(
        feature={name: feature(name, array) for name, array in values.items()})).SerializeToString()


def write(path, contents):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for content in contents:
            writer.write(content)
    return str(path)


@pytest.fixture
def paths(tmp_path):
    return [write(tmp_path / f"{name}.tfrecord", [serialize(features(seed)) for seed in seeds])
            for name, seeds in (("one", range(5)), ("two", [5]), ("three", range(6, 18)))]


def test_any_record_of_any_file_equals_what_was_written(paths):
    record_files = reading.RecordFiles(paths, LIMITS)
    assert len(record_files) == 18
    order = np.random.RandomState(0).permutation(18)
    batch = record_files.read(order)
    for row, number in enumerate(order):
        for name, values in features(number).items():
            np.testing.assert_array_equal(batch[name][row], values if values.size > 1 else values[0], err_msg=name)
    assert {name: array.dtype for name, array in batch.items() if array.dtype != np.int32} == {
        "masked_lm_weights": np.float32}
    assert batch["next_sentence_labels"].shape == (18,)
    assert [record_files.where(number) for number in (0, 4, 5, 6, 17)] == [
        f"{paths[file]}: record {row}" for file, row in ((0, 0), (0, 4), (1, 0), (2, 0), (2, 11))]


def test_random_access_equals_reading_from_front_to_back(goldens, tmp_path, monkeypatch):
    monkeypatch.chdir(goldens / "pretrain_data")
    tokenizer = tokenization.FullTokenizer("vocab.txt", do_lower_case=True)
    settings = Settings(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=4, random_seed=12345)
    path = str(tmp_path / "records")
    records.create(["multi/onedoc.txt"], [path], "vocab.txt", tokenizer, settings)
    record_files = reading.RecordFiles([path], reading.Limits(64, 10, 1500, 2))
    sequential = list(tf.data.TFRecordDataset(path))
    assert len(record_files) == len(sequential) > 20
    schema = {name: tf.io.FixedLenFeature([length], dtype)
              for name, (dtype, length) in records.features(64, 10).items()}
    parsed = tf.io.parse_example(sequential, schema)
    order = np.random.RandomState(1).permutation(len(sequential))
    for name, values in record_files.read(order).items():
        np.testing.assert_array_equal(values.reshape(len(order), -1), parsed[name].numpy()[order], err_msg=name)


def test_golden_records_are_all_accepted(shared):
    record_files = reading.RecordFiles([str(shared("goldens/pretrain_data/pretrain_plain.tfrecord"))],
                                       reading.Limits(64, 10, 1500, 2))
    batch = record_files.read(np.arange(len(record_files)))
    assert len(record_files) == 2018 and batch["input_ids"].max() == 1499


def test_many_threads_read_what_one_does(paths):
    record_files = reading.RecordFiles(paths, LIMITS)
    expected = record_files.read(np.arange(18))["input_ids"]
    orders = [np.random.RandomState(seed).permutation(18) for seed in range(60)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for order, batch in zip(orders, pool.map(record_files.read, orders)):
            np.testing.assert_array_equal(batch["input_ids"], expected[order])


def test_the_digest_knows_every_byte_and_the_order(paths, tmp_path):
    digest = reading.RecordFiles(paths, LIMITS).digest
    assert digest == reading.RecordFiles(paths, LIMITS).digest
    changed = features(5)
    changed["masked_lm_weights"][1] = 0.5
    other = write(tmp_path / "other", [serialize(changed)])
    assert digest != reading.RecordFiles(paths[::-1], LIMITS).digest
    assert digest != reading.RecordFiles([paths[0], other, paths[2]], LIMITS).digest


BAD_VALUES = [
    ("input_ids", 3, 40, "input_ids holds 40, allowed is 0 to 39"),
    ("input_ids", 3, -1, "input_ids holds -1"),
    ("input_ids", 0, 2**40, "input_ids holds 1099511627776"),
    ("input_ids", 0, 2**32, "input_ids holds 4294967296"),
    ("masked_lm_ids", 2, 40, "masked_lm_ids holds 40"),
    ("masked_lm_positions", 0, 16, "masked_lm_positions holds 16, allowed is 0 to 15"),
    ("masked_lm_positions", 0, -2, "masked_lm_positions holds -2"),
    ("segment_ids", 5, 2, "segment_ids holds 2, allowed is 0 to 1"),
    ("input_mask", 5, 2, "input_mask holds 2"),
    ("next_sentence_labels", 0, 2, "next_sentence_labels holds 2"),
    ("next_sentence_labels", 0, -1, "next_sentence_labels holds -1"),
    ("masked_lm_weights", 1, float("nan"), "masked_lm_weights holds a weight below 0 or no number"),
    ("masked_lm_weights", 1, float("inf"), "masked_lm_weights"),
    ("masked_lm_weights", 1, -1.0, "masked_lm_weights"),
]


@pytest.mark.parametrize("name, place, value, message", BAD_VALUES)
def test_a_value_that_no_model_can_take_is_refused_with_file_and_record(paths, tmp_path, name, place, value, message):
    values = features(3)
    values[name][place] = value
    bad = write(tmp_path / "bad.tfrecord", [serialize(features(1)), serialize(features(2)), serialize(values)])
    record_files = reading.RecordFiles([paths[0], bad], LIMITS)
    record_files.read(np.array([0, 5, 6]))
    with pytest.raises(UserError) as error:
        record_files.read(np.array([0, 7, 1]))
    assert f"{bad}: record 2" in str(error.value) and message in str(error.value)


def changed(**arrays):
    return serialize({**features(3), **{name: np.array(array) for name, array in arrays.items()}})


def without(name):
    return serialize({key: values for key, values in features(3).items() if key != name})


BAD_RECORDS = [
    (changed(input_ids=np.ones(8)), "8 values of input_ids", "--max_seq_length=16"),
    (changed(segment_ids=np.ones(17)), "17 values of segment_ids", "--max_seq_length=16"),
    (changed(masked_lm_weights=np.ones(5)), "5 values of masked_lm_weights", "--max_predictions_per_seq=3"),
    (changed(masked_lm_positions=[1]), "1 values of masked_lm_positions", "--max_predictions_per_seq=3"),
    (changed(next_sentence_labels=[1, 0]), "2 values of next_sentence_labels", "1"),
    (without("input_mask"), "input_mask", "record"),
    (without("next_sentence_labels"), "next_sentence_labels", "record"),
    (serialize({}), "input_ids", "record"),
    (b"", "input_ids", "record"),
    (b"\xff\xff\xffnot an example", "no tf.train.Example", "record"),
    (serialize({**features(3), "input_ids": []}), "0 values of input_ids", "record"),
]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("content, part, other", BAD_RECORDS)
def test_a_record_of_another_form_is_refused_with_file_and_record(tmp_path, content, part, other, first):
    good = serialize(features(1))
    path = write(tmp_path / "bad.tfrecord", [content, good] if first else [good, content])
    with pytest.raises(UserError) as error:
        reading.RecordFiles([path], LIMITS).read(np.array([0, 1]))
    for expected in (f"{path}: record {0 if first else 1}", part, other):
        assert expected in str(error.value)
    assert "\n" not in str(error.value)
    if "next_sentence_labels" in part:
        assert "--max_seq_length" not in str(error.value)


def test_ids_stored_as_numbers_with_a_point_are_refused(tmp_path):
    example = tf.train.Example.FromString(serialize(features(3)))
    example.features.feature["input_ids"].float_list.value[:] = [1.0] * 16
    path = write(tmp_path / "bad.tfrecord", [example.SerializeToString()])
    with pytest.raises(UserError, match="record 0.*input_ids"):
        reading.RecordFiles([path], LIMITS)


class TestDamagedFiles:
    @pytest.mark.parametrize("cut", [1, 4, 5, 30, 200])
    def test_a_file_cut_short(self, paths, tmp_path, cut):
        content = open(paths[0], "rb").read()
        size = struct.unpack("<Q", content[:8])[0] + 16
        (tmp_path / "cut").write_bytes(content[:-cut])
        number = 4 if cut < size else 3
        with pytest.raises(UserError, match=f"cut: record {number} is damaged or cut short"):
            reading.RecordFiles([paths[1], str(tmp_path / "cut")], LIMITS)

    @pytest.mark.parametrize("record, place", [(0, 0), (0, 9), (0, 40), (2, 3), (2, 100), (4, -1)])
    def test_a_flipped_bit(self, paths, tmp_path, record, place):
        content = bytearray(open(paths[0], "rb").read())
        start = 0
        for _ in range(record):
            start += struct.unpack("<Q", content[start:start + 8])[0] + 16
        content[start + place if place >= 0 else place] ^= 4
        (tmp_path / "flipped").write_bytes(content)
        with pytest.raises(UserError, match=f"flipped: record {record} is damaged"):
            reading.RecordFiles([str(tmp_path / "flipped")], LIMITS)

    def test_no_record_no_file_a_folder_a_gzip_file_and_text(self, paths, tmp_path):
        (tmp_path / "empty").write_bytes(b"")
        (tmp_path / "folder").mkdir()
        (tmp_path / "packed.gz").write_bytes(gzip.compress(open(paths[0], "rb").read()))
        (tmp_path / "text").write_text("Some lines of text.\n" * 20)
        for name, message in (("empty", "holds no record"), ("missing", "cannot be read"),
                              ("folder", "cannot be read"), ("packed.gz", "record 0 is damaged"),
                              ("text", "record 0 is damaged")):
            with pytest.raises(UserError, match=f"{name}: {message}") as error:
                reading.RecordFiles([paths[0], str(tmp_path / name)], LIMITS)
            assert "\n" not in str(error.value)

    def test_a_file_that_shrinks_while_it_is_read(self, paths, tmp_path):
        long = write(tmp_path / "long", [serialize(features(seed)) for seed in range(60)])
        record_files = reading.RecordFiles([*paths, long], LIMITS)
        with open(long, "r+b") as file:
            file.truncate(50)
        with pytest.raises(UserError, match="long: record 59"):
            record_files.read(np.array([18 + 59]))


def test_a_batch_is_cut_and_weighs_every_example(paths):
    record_files = reading.RecordFiles(paths, LIMITS)
    batch = reading.make_batch(record_files, np.array([0, 1, 2]), batching.Sizes(16, False))
    whole = record_files.read(np.array([0, 1, 2]))
    assert (batch["example_weights"] == 1).all() and batch["example_weights"].dtype == np.float32
    needed = batching.computed_places(whole["input_mask"], whole["masked_lm_positions"])
    length = batch["input_ids"].shape[1]
    assert not needed[:, length:].any()
    assert set(np.flatnonzero(needed[:, :length])) <= set(batch["token_indices"])
