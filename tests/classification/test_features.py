import dataclasses
import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, feature_cache, packing, tokenization
from bert_tf.classification import examples, features, tasks
from bert_tf.classification.examples import Example

VOCABULARIES = {"en": "checkpoints/minilm_l6/vocab.txt", "zh": "vocab/bert-base-chinese/vocab.txt",
                "tiny": "goldens/tiny_ckpt/vocab.txt"}


def convert(task, split, data_dir, tokenizer, max_seq_length):
    path, table = examples.find_table(task, split, data_dir, task.language)
    rows = examples.read(path, table, task, task.language)
    return features.convert(rows, path, tokenizer, max_seq_length, task)


@pytest.fixture(scope="module")
def recorded(shared):
    with gzip.open(shared("goldens/classifier/features.json.gz")) as file:
        return json.load(file)


@pytest.fixture(scope="module")
def mrpc(shared):
    """The features of MRPC's development set."""
    tokenizer = tokenization.FullTokenizer(shared(VOCABULARIES["en"]))
    return convert(tasks.find("MRPC"), "dev", shared("data/glue/MRPC"), tokenizer, 64)


def whole_batch(made, max_seq_length):
    """All features as one batch, padded to `max_seq_length` as the original's are."""
    batch = features.make_batch(made, np.arange(len(made)), batching.Sizes(max_seq_length, xla=False))
    for name in ("input_ids", "input_mask", "segment_ids"):
        batch[name] = np.pad(batch[name], [[0, 0], [0, max_seq_length - batch[name].shape[1]]])
    return batch


@pytest.mark.parametrize("number", range(11))
def test_recorded_features(shared, recorded, number):
    row = recorded["tasks"][number]
    task = tasks.find(row["task"])
    for run in row["runs"]:
        tokenizer = tokenization.FullTokenizer(shared(VOCABULARIES[run["vocab"]]), run["do_lower_case"])
        length = run["max_seq_length"]
        made = convert(task, row["split"], shared("goldens/glue_data") / task.name, tokenizer, length)
        batch = whole_batch(made, length)
        for name in ("input_ids", "input_mask", "segment_ids"):
            np.testing.assert_array_equal(batch[name], [wanted[name] for wanted in run["features"]])
        assert batch["label_ids"].tolist() == [wanted["label_id"] for wanted in run["features"]]
        assert batch["example_weights"].tolist() == [float(wanted["is_real_example"]) for wanted in run["features"]]


def test_recorded_records(shared):
    task, tokenizer = tasks.find("MRPC"), tokenization.FullTokenizer(shared(VOCABULARIES["en"]))
    batch = whole_batch(convert(task, "train", shared("goldens/glue_data/MRPC"), tokenizer, 32), 32)
    path = str(shared("goldens/classifier/mrpc_train_L32.tf_record"))
    records = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(path)]
    assert len(records) == len(batch["input_ids"])
    for name in ("input_ids", "input_mask", "segment_ids", "label_ids"):
        held = np.array([record.features.feature[name].int64_list.value for record in records])
        np.testing.assert_array_equal(batch[name].reshape(len(records), -1), held)


def test_recorded_truncation(shared):
    for len_a, len_b, limit, new_a, new_b in json.loads(
            shared("goldens/classifier/truncate_seq_pair.json").read_text()):
        a, b = list(range(len_a)), list(range(len_b))
        packing.truncate_seq_pair(a, b, limit)
        assert (a, b) == (list(range(new_a)), list(range(new_b)))


class Letters:
    """A tokenizer of one id a letter, "." for nothing."""

    vocab = {"[CLS]": 1, "[SEP]": 2}

    def encode(self, text):
        return [ord(letter) for letter in text.replace(".", "")]

    def convert_ids_to_tokens(self, ids):
        return list(map(chr, ids))


@pytest.mark.parametrize("text_a, text_b, length, ids, first_length, dropped", [
    ("ab", None, 8, "1ab2", 4, 0), ("ab", "", 8, "1ab2", 4, 0), ("ab", ".", 8, "1ab2", 4, 0),
    ("ab", "c", 8, "1ab2c2", 4, 0), ("abcdef", None, 4, "1ab2", 4, 4), ("abc", "de", 6, "1ab2d2", 4, 2),
    ("a", "b", 4, "1a2", 3, 1), ("a", "b", 3, "12", 2, 2), (".", "b", 8, "12b2", 2, 0), (".", ".", 8, "12", 2, 0)])
def test_packing_at_the_edges(text_a, text_b, length, ids, first_length, dropped):
    found = features.convert_pair(text_a, text_b, Letters(), length)
    expected = [int(letter) if letter.isdigit() else ord(letter) for letter in ids]
    assert found == (expected, first_length, dropped)


def test_what_was_cut_and_what_is_empty_is_said(caplog):
    rows = [Example(1, "abc", None, 0), Example(2, "abcdef", None, 1), Example(3, ".", "", 0)]
    with caplog.at_level("INFO"):
        made = features.convert(rows, "there", Letters(), 5, tasks.find("CoLA"))
    assert made.lengths.tolist() == [5, 5, 2] and made.label_ids.tolist() == [0, 1, 0]
    assert made.truncated.dtype == bool and made.truncated.tolist() == [False, True, False]
    assert "there: 3 examples, 12 tokens, 1 cut to --max_seq_length=5" in caplog.text
    assert "there: 1 examples hold no token" in caplog.text


def test_scores_are_kept_as_numbers():
    made = features.convert([Example(1, "a", "b", 3.25), Example(2, "a", "b", None)], "", Letters(), 8,
                            tasks.find("STS-B"))
    assert made.label_ids.dtype == np.float32 and made.label_ids.tolist() == [3.25, 0.0]


MOODS = tasks.Task("moods", {}, ("joy", "rage", "calm"), kind="multi")


def test_several_labels_are_zeros_and_ones(caplog):
    rows = [Example(1, "a", None, (2, 0)), Example(2, "b", None, ()), Example(3, "c", None, None)]
    with caplog.at_level("INFO"):
        made = features.convert(rows, "there", Letters(), 8, MOODS)
    assert made.label_ids.dtype == np.int8 and made.label_ids.tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0]]
    batch = features.make_batch(made, np.array([2, 0]), batching.Sizes(8, xla=False))
    assert batch["label_ids"].dtype == np.float32 and batch["label_ids"].tolist() == [[0, 0, 0], [1, 0, 1]]
    assert "there:1 (calm, joy): " in caplog.text and "there:2 (none of the labels): " in caplog.text
    assert "there:3 (no label): " in caplog.text


def test_no_example_is_features_too():
    made = features.convert([], "there", Letters(), 8, MOODS)
    assert len(made) == 0 and made.label_ids.shape == (0, 3) and made.row_splits.tolist() == [0]


def test_texts_by_themselves_are_the_same_ids():
    rows = [Example(1, "abcdef", "gh", 0), Example(2, "b", None, 0)]
    made, wanted = (features.of_texts([row[1:3] for row in rows], Letters(), 6),
                    features.convert(rows, "", Letters(), 6, tasks.find("CoLA")))
    for name in ("input_ids", "row_splits", "first_lengths", "truncated"):
        np.testing.assert_array_equal(getattr(made, name), getattr(wanted, name))
    assert made.where(1) == "text:2"


@pytest.mark.parametrize("num_processes", [2, 3])
def test_the_same_bytes_for_any_number_of_processes(shared, monkeypatch, num_processes):
    task, tokenizer = tasks.find("MRPC"), tokenization.FullTokenizer(shared(VOCABULARIES["en"]))
    path, table = examples.find_table(task, "dev", shared("data/glue/MRPC"))
    monkeypatch.setattr(features, "CHUNK", 32)
    alone, together = (features.convert(examples.read(path, table, task), path, tokenizer, 40, task, count)
                       for count in (1, num_processes))
    assert alone.truncated.any() and alone.arrays.keys() == together.arrays.keys()
    for name, array in alone.arrays.items():
        assert array.dtype == together.arrays[name].dtype
        np.testing.assert_array_equal(array, together.arrays[name])


def test_a_small_file_starts_no_process(monkeypatch):
    started = []
    monkeypatch.setattr(features.parallel, "ordered_map",
                        lambda function, jobs, count, *common: started.append(count) or
                        (function(job, *common) for job in jobs))
    monkeypatch.setattr(features, "CHUNK", 2)
    for rows in (15, 16):
        features.convert([Example(1, "a", None, 0)] * (rows - 2), "", Letters(), 8, tasks.find("CoLA"), 3)
    assert started == [1, 1]
    features.convert([Example(1, "a", None, 0)] * 16, "", Letters(), 8, tasks.find("CoLA"), 3)
    assert started == [1, 1, 3]


def test_processes_that_convert_texts_do_not_load_tensorflow():
    program = "import sys, bert_tf.classification.features; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_features_come_back_from_a_cache(mrpc, tmp_path):
    for _ in range(2):
        arrays = feature_cache.load_or_make(str(tmp_path), "MRPC-dev", "0" * 64, lambda: mrpc.arrays)
    again = features.Features(mrpc.path, **arrays)
    assert arrays is not mrpc.arrays and again.digest == mrpc.digest and again.where(407) == mrpc.where(407)


def test_what_decides_features(shared):
    """Each of these makes other features, and must show."""
    tokenizer, cased = (tokenization.FullTokenizer(shared(VOCABULARIES["tiny"]), lowered) for lowered in (True, False))
    task = tasks.find("XNLI")
    table, other = task.splits["dev"]
    usual = (task, table, "zh", tokenizer, 32)
    relabelled = dataclasses.replace(task, labels=task.labels[::-1])
    found = {feature_cache.fingerprint([], features.decided_by(*chosen)) for chosen in (
        usual, (relabelled, *usual[1:]), (task, other, *usual[2:]), (*usual[:2], "de", *usual[3:]),
        (*usual[:3], cased, 32), (*usual[:4], 33))}
    assert len(found) == 6


def test_a_batch_by_hand(mrpc):
    numbers = np.array([7, 3, 3, 400])
    batch = features.make_batch(mrpc, numbers, batching.Sizes(64, xla=False))
    longest = max(mrpc.lengths[numbers])
    assert longest <= batch["input_ids"].shape[1] < longest + 8
    for row, number in enumerate(numbers):
        ids = mrpc.input_ids[mrpc.row_splits[number]:mrpc.row_splits[number + 1]]
        padding = batch["input_ids"].shape[1] - len(ids)
        first = mrpc.first_lengths[number]
        assert batch["input_ids"][row].tolist() == [*ids, *[0] * padding]
        assert batch["input_mask"][row].tolist() == [1] * len(ids) + [0] * padding
        assert batch["segment_ids"][row].tolist() == [0] * first + [1] * (len(ids) - first) + [0] * padding
        assert ids[first - 1] == ids[-1] == 102  # [SEP] ends both segments
    assert {name: array.dtype for name, array in batch.items()} == {
        "input_ids": np.int32, "input_mask": np.int32, "segment_ids": np.int32, "label_ids": np.int32,
        "example_weights": np.float32, "token_indices": np.int32}
    places = np.flatnonzero(batch["input_mask"])
    np.testing.assert_array_equal(batch["token_indices"][:len(places)], places)


def test_memory_of_an_example_is_its_ids_and_little_more(mrpc):
    assert sum(array.nbytes for array in mrpc.arrays.values()) == 4 * mrpc.lengths.sum() + 21 * len(mrpc) + 8


def test_an_example_is_named_by_its_line(shared, mrpc):
    assert mrpc.where(0) == f"{shared('data/glue/MRPC')}/dev.tsv:2"
    assert mrpc.where(407).endswith("dev.tsv:409")


def test_the_digest_tells_features_apart(mrpc):
    again = dataclasses.replace(mrpc, path="elsewhere", input_ids=mrpc.input_ids.copy(), lines=mrpc.lines + 1)
    assert again.digest == mrpc.digest
    again.input_ids[5] += 1
    assert again.digest != mrpc.digest
    assert dataclasses.replace(mrpc, label_ids=1 - mrpc.label_ids).digest != mrpc.digest
