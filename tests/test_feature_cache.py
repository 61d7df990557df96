"""Features kept in a file: reused when nothing changed, made again when anything did or the file is damaged."""

import logging
import os

import numpy as np
import pytest

from bert_tf import feature_cache

ARRAYS = {"input_ids": np.array([5, 6, 7], np.int32), "row_splits": np.array([0, 3]),
          "label_ids": np.array([[0, 1]], np.int8), "truncated": np.array([True]),
          "none": np.zeros([0, 2], np.float32)}
KEY = feature_cache.fingerprint([], {"a": 1})
OTHER = feature_cache.fingerprint([], {"a": 2})


def load(folder, name="dev", key=KEY, is_chief=True, arrays=ARRAYS):
    """What the cache gives, and how often it had it made."""
    made = []

    def make():
        made.append(True)
        logging.getLogger("bert_tf").warning("3 blank lines left out")
        return arrays

    return feature_cache.load_or_make(str(folder), name, key, make, is_chief), len(made)


def test_features_are_made_once(tmp_path, caplog):
    assert load(tmp_path / "new/folder") == (ARRAYS, 1)
    caplog.clear()
    with caplog.at_level("INFO"):
        found, made = load(tmp_path / "new/folder")
    assert made == 0 and set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    path, warning = [record.getMessage() for record in caplog.records]
    assert path.endswith(".npz: these features were made before and nothing has changed")
    assert warning == "3 blank lines left out" and caplog.records[1].levelname == "WARNING"


def test_the_fingerprint_is_of_bytes_and_settings(tmp_path):
    data, vocab = tmp_path / "data", tmp_path / "vocab"
    data.write_bytes(b"a\tb\n")
    vocab.write_bytes(b"a\n")
    settings = {"labels": ("x", "y"), "max_seq_length": 8, "aliases": {"z": "x"}, "language": None}

    def found(**changed):
        return feature_cache.fingerprint([data, vocab], settings | changed)

    first = found()
    assert found() == first and found(aliases=dict(z="x")) == first
    others = [found(labels=("y", "x")), found(max_seq_length=9), found(language="zh")]
    data.write_bytes(b"a\tc\n")
    others.append(found())
    data.write_bytes(b"a\tb\n")
    vocab.write_bytes(b"a\nb\n")
    others += [found(), feature_cache.fingerprint([vocab, data], settings)]
    assert len({first, *others}) == 7


def test_the_version_of_the_format_counts(monkeypatch):
    monkeypatch.setattr(feature_cache, "FORMAT", feature_cache.FORMAT + 1)
    assert feature_cache.fingerprint([], {"a": 1}) != KEY


def test_what_another_fingerprint_left_is_removed_and_nothing_else(tmp_path):
    for name in ("dev", "dev_mismatched", "train"):
        load(tmp_path, name)
    (tmp_path / "dev-notes.npz").write_text("mine")
    before = set(os.listdir(tmp_path))
    assert load(tmp_path, key=OTHER)[1] == 1
    assert before - set(os.listdir(tmp_path)) == {f"dev-{KEY[:32]}.npz"}
    assert set(os.listdir(tmp_path)) - before == {f"dev-{OTHER[:32]}.npz"}
    assert load(tmp_path, key=KEY)[1] == 1


@pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_file_with_a_changed_byte_is_made_again(tmp_path, caplog, place):
    load(tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)
    found, _ = load(tmp_path)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    assert load(tmp_path)[1] == 0


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive"])
def test_what_is_no_such_file_is_said_and_made_again(tmp_path, caplog, content):
    load(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content or path.read_bytes()[:-40])
    assert load(tmp_path) == (ARRAYS, 1)
    assert f"{path}: damaged, the features are made again" in caplog.text
    assert load(tmp_path)[1] == 0


def test_a_file_under_anothers_name_is_not_trusted(tmp_path, caplog):
    load(tmp_path)
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / f"dev-{OTHER[:32]}.npz")
    assert load(tmp_path, key=OTHER)[1] == 1 and "it holds something else than was written" in caplog.text


def test_pickles_are_not_loaded(tmp_path, caplog):
    np.savez(tmp_path / f"dev-{KEY[:32]}.npz", input_ids=np.array([{"an": "object"}], object), checksum=np.array("0"))
    assert load(tmp_path)[1] == 1 and "allow_pickle=False" in caplog.text


def test_only_the_chief_writes(tmp_path):
    assert load(tmp_path, is_chief=False)[1] == 1 and not os.listdir(tmp_path)
    load(tmp_path, key=OTHER)
    assert load(tmp_path, key=OTHER, is_chief=False)[1] == 0
    load(tmp_path, is_chief=False)
    assert os.listdir(tmp_path) == [f"dev-{OTHER[:32]}.npz"]


def test_a_folder_that_cannot_be_written_to_ends_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert load(tmp_path / "file/features") == (ARRAYS, 1)
    assert "the features are not kept" in caplog.text


@pytest.mark.parametrize("name", ["../../dev", "/etc/dev", "a/b\\c", "..", "", "Überschrift\n", "x" * 300])
def test_no_name_leaves_the_folder(tmp_path, name):
    folder = tmp_path / "inner"
    load(folder, name)
    assert os.listdir(tmp_path) == ["inner"] and len(os.listdir(folder)) == 1
    assert load(folder, name)[1] == 0


def test_a_run_that_fails_while_making_keeps_nothing(tmp_path):
    def make():
        raise ValueError("bad row")

    with pytest.raises(ValueError, match="bad row"):
        feature_cache.load_or_make(str(tmp_path), "dev", KEY, make)
    assert not os.listdir(tmp_path) and len(logging.getLogger("bert_tf").handlers) == 0
