import json
import os
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import files
from bert_tf.errors import UserError
from bert_tf.pretraining import instances, records
from bert_tf.tokenization import FullTokenizer

SETTINGS = instances.Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=1)


@pytest.fixture
def data(goldens, monkeypatch):
    monkeypatch.chdir(goldens / "pretrain_data")
    return FullTokenizer("vocab.txt")


def _create(outputs, tokenizer, inputs=("multi/part-a.txt", "multi/part-b.txt"), run_settings=SETTINGS, **shards):
    outputs = [str(path) for path in outputs]
    return records.create(list(inputs), outputs, "vocab.txt", tokenizer, run_settings, **shards)


def _instance(pieces, predictions, largest):
    rng = random.Random(pieces * 31 + predictions)
    length_a = rng.randint(1, pieces - 4)
    return instances.Instance(
        [rng.randint(0, largest) for _ in range(pieces)],
        [0] * (length_a + 2) + [1] * (pieces - length_a - 2),
        sorted(rng.sample(range(pieces), predictions)),
        [rng.randint(0, largest) for _ in range(predictions)],
        rng.random() < 0.5,
    )


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from([5, 64, 128, 129, 512]), st.sampled_from([1, 20, 200]),
       st.sampled_from([6, 127, 128, 30522]))
def test_the_bytes_are_an_example_of_the_features(data, length, most, vocab_size):
    import tensorflow as tf

    pieces = data.draw(st.integers(5, length))
    predictions = data.draw(st.integers(1, min(most, pieces)))
    instance = _instance(pieces, predictions, vocab_size - 1)
    serialize = records.Serializer(
        instances.Settings(max_seq_length=length, max_predictions_per_seq=most), vocab_size
    )
    table = records.features(length, most)
    parsed = tf.io.parse_single_example(
        serialize(instance), {name: tf.io.FixedLenFeature([size], dtype) for name, (dtype, size) in table.items()}
    )
    want = {
        "input_ids": instance.input_ids,
        "input_mask": [1] * pieces,
        "segment_ids": instance.segment_ids,
        "masked_lm_positions": instance.masked_lm_positions,
        "masked_lm_ids": instance.masked_lm_ids,
        "masked_lm_weights": [1.0] * predictions,
        "next_sentence_labels": [int(instance.is_random_next)],
    }
    assert set(parsed) == set(want)
    for name, values in want.items():
        assert parsed[name].numpy().tolist() == values + [0] * (table[name][1] - len(values)), name


def _lengths(path):
    """The number of bytes of every record of a TFRecord file."""
    content, lengths = path.read_bytes(), []
    while content:
        lengths.append(struct.unpack("<Q", content[:8])[0])
        content = content[lengths[-1] + 16:]
    return lengths


def test_the_same_bytes_for_any_number_of_workers(data, tmp_path):
    made = []
    for workers in (1, 2, 3):
        paths = [tmp_path / f"{workers}.{number}" for number in range(2)]
        counts = _create(paths, data, ["corpus.txt"], num_shards=5, num_workers=workers)
        assert sum(len(_lengths(path)) for path in paths) == counts.instances
        made.append((counts, [path.read_bytes() for path in paths],
                     [(tmp_path / f"{path.name}.meta.json").read_bytes() for path in paths]))
    assert made[0] == made[1] == made[2]
    assert counts.documents == 225 and counts.sentences == 2713


def test_a_second_shard_of_the_same_text_draws_otherwise(data, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(open("multi/onedoc.txt").read().strip() + "\n\n")
    _create([tmp_path / "one"], data, [str(text)])
    _create([tmp_path / "two"], data, [str(text)] * 2, num_shards=2)
    one, two = (tmp_path / "one").read_bytes(), (tmp_path / "two").read_bytes()
    # The first shard has the run's own seed, so it is the run on its text alone.
    assert two.startswith(one)
    assert two != one + one and len(two) > len(one)


def test_more_shards_than_documents_and_more_files_than_instances(data, tmp_path, caplog):
    paths = [tmp_path / str(number) for number in range(30)]
    counts = _create(paths, data, ["multi/onedoc.txt"], num_shards=4)
    assert counts.instances == sum(len(_lengths(path)) for path in paths) < 30
    assert "3 of 4 shards hold no document" in caplog.text
    assert f"{30 - counts.instances} of 30 output files hold no record" in caplog.text


def test_nothing_is_left_of_a_run_that_fails(data, tmp_path, monkeypatch):
    before = tmp_path / "b"
    before.write_text("an older run's")

    def fail(*_):
        raise OSError(28, "No space left on device")

    for owner, name in ((records, "_log"), (files, "sha256")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises((UserError, OSError), match="No space left on device"):
                _create([tmp_path / "a", before], data)
        assert os.listdir(tmp_path) == ["b"] and before.read_text() == "an older run's"


def test_bad_text_in_a_worker_is_one_line_and_leaves_nothing(data, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"some words here\n\n" * 50 + b"bad \xff\n")
    with pytest.raises(UserError, match=r"text\.txt:101: byte 0xff is not UTF-8"):
        _create([tmp_path / "out"], data, [str(text)], num_shards=3, num_workers=2)
    assert os.listdir(tmp_path) == ["text.txt"]


class Deadly(FullTokenizer):
    """Ends the process that it works in, as a machine out of memory does."""

    def encode(self, text):
        os._exit(9)


def test_a_worker_that_dies_ends_the_run_with_one_line(data, tmp_path):
    with pytest.raises(UserError, match="a worker process was ended from outside"):
        _create([tmp_path / "out"], Deadly("vocab.txt"), ["corpus.txt"], num_shards=4, num_workers=2)
    assert not os.listdir(tmp_path)


def test_a_corpus_without_an_instance_is_refused(data, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"\n \n\x01\n")
    with pytest.raises(UserError, match="yields no instance"):
        _create([tmp_path / "out"], data, [str(text)])
    assert os.listdir(tmp_path) == ["text.txt"]


def test_the_sidecar_says_how_the_records_were_made(data, tmp_path):
    counts = _create([tmp_path / "a", tmp_path / "b"], data)
    sidecar = records.read_sidecar(str(tmp_path / "a"))
    assert sidecar["instances"] == len(_lengths(tmp_path / "a"))
    assert sidecar["instances"] + records.read_sidecar(str(tmp_path / "b"))["instances"] == counts.instances
    assert sidecar["bytes"] == (tmp_path / "a").stat().st_size
    assert sidecar["vocab_file"] == "vocab.txt" and sidecar["vocab_size"] == 1500
    assert sidecar["vocab_sha256"].startswith("f585d349107f7f84")
    assert sidecar["do_lower_case"] is True and sidecar["max_seq_length"] == 32 and sidecar["random_seed"] == 12345
    assert sidecar["input_files"][0] == {"name": "multi/part-a.txt", "bytes": 11168}
    assert sidecar["run"]["documents"] == counts.documents


def test_sidecars_are_no_records(data, tmp_path):
    _create([tmp_path / "a", tmp_path / "b"], data)
    assert records.record_files(f"{tmp_path}/*", "input_file") == [str(tmp_path / "a"), str(tmp_path / "b")]
    with pytest.raises(UserError, match="only .meta.json files match"):
        records.record_files(f"{tmp_path}/*.json", "input_file")
    with pytest.raises(UserError, match="no file matches"):
        records.record_files(f"{tmp_path}/none*", "input_file")


def test_sidecars_are_checked(data, tmp_path):
    paths = [str(tmp_path / name) for name in "ab"]
    _create(paths, data)
    (tmp_path / "google").write_bytes((tmp_path / "a").read_bytes())
    checked = records.check_sidecars([*paths, str(tmp_path / "google")], 32, 5, 1504)
    assert [sidecar and sidecar["max_seq_length"] for sidecar in checked] == [32, 32, None]
    for asked, message in (
        ((32, 10, 1500), "a: made with --max_predictions_per_seq=5, asked for 10"),
        ((128, 5, 1500), "a: made with --max_seq_length=32, asked for 128"),
        ((32, 5, 1499), "a: made with a vocabulary of 1500 .vocab.txt., the model's has 1499"),
    ):
        with pytest.raises(UserError, match=message):
            records.check_sidecars(paths, *asked)


@pytest.mark.parametrize("change, message", [
    (lambda sidecar: "{", "does not describe records"),
    (lambda sidecar: "[]", "does not describe records"),
    (lambda sidecar: json.dumps(sidecar | {"bytes": 1}), "describes records of 1 bytes"),
    (lambda sidecar: json.dumps({"bytes": sidecar["bytes"]}), "does not describe records"),
    (lambda sidecar: json.dumps(sidecar | {"vocab_size": "many"}), "b.meta.json: vocab_size is 'many'"),
    (lambda sidecar: json.dumps(sidecar | {"vocab_sha256": "0"}), "made with different vocabularies"),
])
def test_a_sidecar_that_does_not_fit(data, tmp_path, change, message):
    paths = [str(tmp_path / name) for name in "ab"]
    _create(paths, data)
    name = tmp_path / "b.meta.json"
    name.write_text(change(json.loads(name.read_text())))
    with pytest.raises(UserError, match=message):
        records.check_sidecars(paths, 32, 5, 1500)


def test_files_behind_a_scheme_are_read_and_written_alike(data, goldens, tmp_path):
    # Through tf.io.gfile, whose readline() drops every "\r": part-a.txt has them.
    inputs = ["multi/part-a.txt", "multi/part-b.txt"]
    for name, num_shards in (("one", 1), ("three", 3)):
        _create([tmp_path / name], data, inputs, num_shards=num_shards)
        remote = [f"file://{goldens}/pretrain_data/{path}" for path in inputs]
        records.create(remote, [f"file://{tmp_path}/remote"], "vocab.txt", data, SETTINGS, num_shards)
        assert (tmp_path / "remote").read_bytes() == (tmp_path / name).read_bytes()
        assert records.read_sidecar(f"file://{tmp_path}/remote")["instances"] == len(_lengths(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == sorted(
        f"{name}{suffix}" for name in ("one", "three", "remote") for suffix in ("", ".meta.json")
    )
