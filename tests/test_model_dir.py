import hashlib
import json
import os

import numpy as np
import pytest

from bert_tf import checkpoint, files, model_dir, modeling, tokenization
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


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"max_seq_length": "128"}', '{"do_lower_case": 1}',
                                  '{"labels": null}', '{"task": ["MRPC"]}', '{"max_seq_length": true}',
                                  '{"labels": [1]}', '{"labels": ["a", "a"]}', '{"kind": "spans"}',
                                  '{"pooling": "max"}', '{"language": "fr"}', '{"scheme": "bio"}',
                                  '{"null_score_diff_threshold": NaN}', '{"columns": {"header": "yes"}}',
                                  '{"columns": {"text_columns": [0]}}'])
def test_notes_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(UserError, match="model.json"):
        model_dir.read_info(f"{tmp_path}/model.ckpt-3")


def test_the_best_checkpoint_that_is_gone_is_said(tmp_path, caplog):
    for step in (1, 2):
        checkpoint.write(str(tmp_path / f"model.ckpt-{step}"), {"a": np.zeros(1, np.float32)})
    checkpoint.update_state(str(tmp_path), "model.ckpt-2")
    (tmp_path / "model.json").write_text('{"best_checkpoint": "model.ckpt-1"}')
    assert model_dir.find(str(tmp_path)) == f"{tmp_path}/model.ckpt-1" and not caplog.text
    checkpoint.delete(str(tmp_path / "model.ckpt-1"))
    assert model_dir.find(str(tmp_path)) == f"{tmp_path}/model.ckpt-2"
    assert "the best checkpoint, model.ckpt-1, is not there any more" in caplog.text


def test_a_folder_of_another_origin_says_nothing(tmp_path):
    assert model_dir.read_info(f"{tmp_path}/x") == {}


def test_the_hash_is_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"ab\r\n")
    assert files.sha256(tmp_path / "a") == hashlib.sha256(b"ab\r\n").hexdigest()
    assert json.dumps(files.sha256(tmp_path / "a"))


# The tokenizer of a model.


@pytest.fixture
def folder(tmp_path):
    """A model's folder that says nothing yet about casing; its vocabulary holds no upper case."""
    pieces = [*tokenization.SPECIAL_TOKENS, "a", "b", "é", "e"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    return tmp_path


def load(folder, do_lower_case=None, allow=False, vocab_size=9):
    config = modeling.BertConfig(vocab_size=vocab_size)
    return model_dir.load_tokenizer(str(folder / "vocab.txt"), config, f"{folder}/model.ckpt-1", do_lower_case, allow)


def test_text_is_lower_cased_unless_something_says_otherwise(folder):
    assert load(folder).tokenize("A é") == ["a", "e"]
    assert load(folder, do_lower_case=False).tokenize("A é") == ["[UNK]", "é"]
    model_dir.write(folder, CONFIG, {"do_lower_case": False})
    assert load(folder).tokenize("A é") == ["[UNK]", "é"]


def test_the_folder_decides_and_accents_stay_as_it_says(folder):
    model_dir.write(folder, CONFIG, {"do_lower_case": True, "strip_accents": False})
    for given in (None, True):
        assert load(folder, given).tokenize("A é") == ["a", "é"]
    with pytest.raises(UserError, match="--do_lower_case=False, but .*/model.ckpt-1 was trained with True"):
        load(folder, False)
    assert load(folder, False, allow=True).tokenize("A é") == ["[UNK]", "é"]


def test_a_vocabulary_must_fit_the_config(folder, caplog):
    with pytest.raises(UserError, match="vocab.txt has 9 pieces, the model 8"):
        load(folder, vocab_size=8)
    with caplog.at_level("INFO"):
        load(folder, vocab_size=11)
    assert "2 ids of the config have no piece" in caplog.text


def test_a_cased_vocabulary_is_not_lower_cased(folder):
    with open(folder / "vocab.txt", "a") as file:
        file.write("\nA")
    with pytest.raises(UserError, match="hold upper case: pass --do_lower_case=False"):
        load(folder, vocab_size=10)
    assert load(folder, allow=True, vocab_size=10).do_lower_case
    assert not load(folder, do_lower_case=False, vocab_size=10).do_lower_case


def test_without_a_checkpoint_the_flag_alone_decides(folder):
    assert model_dir.load_tokenizer(f"{folder}/vocab.txt", CONFIG).do_lower_case
    assert not model_dir.load_tokenizer(f"{folder}/vocab.txt", CONFIG, do_lower_case=False).do_lower_case


def test_another_vocabulary_than_the_models_is_refused(folder):
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")

    def load_other(pieces, allow=False):
        (folder / "other.txt").write_text("\n".join(pieces), encoding="utf-8")
        return model_dir.load_tokenizer(f"{folder}/other.txt", CONFIG, f"{folder}/m.ckpt", allow_case_mismatch=allow)

    assert load_other(pieces).vocab_size == 9
    with pytest.raises(UserError, match="other.txt:8 is 'x', and 'é' in .*/vocab.txt"):
        load_other([*pieces[:7], "x", *pieces[8:]])
    with pytest.raises(UserError, match="other.txt:9 is None, and 'e' in"):
        load_other(pieces[:8])
    assert load_other([*pieces[:7], "x", *pieces[8:]], allow=True).vocab_size == 9
    (folder / "vocab.txt").write_text("\n".join([*pieces[:7], "[unused1]", *pieces[8:]]), encoding="utf-8")
    assert load_other([*pieces[:7], "x", *pieces[8:]]).vocab_size == 9  # an unused piece that was given a meaning
