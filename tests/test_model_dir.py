import hashlib
import json
import os

import pytest

from bert_tf import files, model_dir, modeling
from bert_tf.errors import UserError

CONFIG = modeling.BertConfig(vocab_size=9, extra={"directionality": "bidi"})


def test_what_is_written_is_read_back(tmp_path):
    (tmp_path / "v").write_bytes("[PAD]\r\né\n".encode())
    info = {"do_lower_case": False, "task": "pretraining", "labels": ["é", "b"]}
    model_dir.write(tmp_path, CONFIG, info, tmp_path / "v")
    assert modeling.BertConfig.from_json_file(tmp_path / "bert_config.json") == CONFIG
    assert (tmp_path / "vocab.txt").read_bytes() == (tmp_path / "v").read_bytes()
    assert model_dir.read_info(f"{tmp_path}/model.ckpt-3") == info
    assert sorted(os.listdir(tmp_path)) == ["bert_config.json", "model.json", "v", "vocab.txt"]
    model_dir.write(tmp_path, CONFIG, info, tmp_path / "vocab.txt")  # its own copy
    assert (tmp_path / "vocab.txt").read_bytes() == (tmp_path / "v").read_bytes()


def test_without_a_vocabulary_none_is_written(tmp_path):
    model_dir.write(tmp_path, CONFIG, {})
    assert sorted(os.listdir(tmp_path)) == ["bert_config.json", "model.json"]


def test_a_file_given_by_flag_comes_before_the_one_beside_the_checkpoint(tmp_path):
    (tmp_path / "vocab.txt").write_text("beside")
    (tmp_path / "mine").write_text("given")
    prefix = f"{tmp_path}/bert_model.ckpt"
    assert model_dir.find_file(prefix, "vocab.txt", None, "vocab_file") == f"{tmp_path}/vocab.txt"
    assert model_dir.find_file(prefix, "vocab.txt", f"{tmp_path}/mine", "vocab_file") == f"{tmp_path}/mine"
    assert model_dir.find_file(prefix, "other", None, "other", required=False) is None
    with pytest.raises(UserError, match="no other beside the checkpoint; name it with --other"):
        model_dir.find_file(prefix, "other", None, "other")
    with pytest.raises(UserError, match="--vocab_file=nowhere: no such file"):
        model_dir.find_file(prefix, "vocab.txt", "nowhere", "vocab_file", required=False)


def test_a_checkpoint_in_the_current_folder_finds_its_files(tmp_path, monkeypatch):
    model_dir.write(tmp_path, CONFIG, {"a": 1})
    monkeypatch.chdir(tmp_path)
    assert model_dir.read_info("model.ckpt-3") == {"a": 1}
    assert model_dir.find_file("model.ckpt-3", "bert_config.json", None, "f") == "bert_config.json"


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_notes_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(UserError, match="model.json"):
        model_dir.read_info(f"{tmp_path}/model.ckpt-3")


def test_a_folder_of_another_origin_says_nothing(tmp_path):
    assert model_dir.read_info(f"{tmp_path}/x") == {}


def test_the_hash_is_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"ab\r\n")
    assert files.sha256(tmp_path / "a") == hashlib.sha256(b"ab\r\n").hexdigest()
    assert json.dumps(files.sha256(tmp_path / "a"))
