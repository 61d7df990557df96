import json
import os

import numpy as np
import pytest

from bert_tf import checkpoint, run_dir
from bert_tf.errors import UserError

SETTINGS = {"seed": 1, "learning_rate": 5e-5, "init_checkpoint": None, "config": {"vocab_size": 7, "extra": ["é"]}}


def save(folder, *names):
    for name in names:
        checkpoint.write(os.path.join(folder, name), {"bert/x": np.ones(3, np.float32)})
        checkpoint.update_state(folder, name)


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that was saved twice, and of a user who keeps a file there."""
    run_dir.begin(tmp_path, SETTINGS)
    save(tmp_path, "model.ckpt-3", "model.ckpt-6")
    for name in ("eval_results.txt", "train_log.jsonl", "curves.png", "events.out.tfevents.1.host.2", "notes.txt",
                 "model.ckpt.txt", "bert_config.json"):
        (tmp_path / name).write_text(name)
    (tmp_path / "best").mkdir()
    save(tmp_path / "best", "model.ckpt-3")
    return tmp_path


def listing(folder):
    return {name: (folder / name).read_bytes() for name in os.listdir(folder) if (folder / name).is_file()}


def test_a_new_folder_is_a_new_run_and_finding_writes_nothing(tmp_path):
    assert run_dir.find(tmp_path / "a/b", SETTINGS) is None and not os.listdir(tmp_path)
    run_dir.begin(tmp_path / "a/b", SETTINGS)
    assert json.loads((tmp_path / "a/b/run.json").read_text()) == SETTINGS
    assert run_dir.find(tmp_path / "a/b", {"seed": 9}) is None  # nothing was trained yet


def test_the_same_run_goes_on_from_its_newest_checkpoint(folder):
    before = listing(folder)
    assert run_dir.find(folder, SETTINGS) == f"{folder}/model.ckpt-6"
    assert listing(folder) == before


@pytest.mark.parametrize("change, part", [
    ({"seed": 2}, "other settings: seed 1 (now 2); --resume"),
    ({"learning_rate": 1e-4, "seed": 3}, "learning_rate 5e-05 (now 0.0001), seed 1 (now 3)"),
    ({"init_checkpoint": "ab"}, 'init_checkpoint null (now "ab")'),
    ({"more": True}, "more null (now true)"),
    ({"config": {"vocab_size": 8, "text": "x" * 99}}, "..."),
    ({"seed": 1.5}, "seed 1 (now 1.5)")])
def test_other_settings_are_refused_by_name_and_nothing_changes(folder, change, part):
    before = listing(folder)
    with pytest.raises(UserError) as error:
        run_dir.find(folder, SETTINGS | change)
    assert part in str(error.value) and len(str(error.value)) < 600 and "--overwrite_output_dir" in str(error.value)
    assert listing(folder) == before
    assert run_dir.find(folder, SETTINGS | change, resume=True) == f"{folder}/model.ckpt-6"
    assert run_dir.find(folder, SETTINGS | change, overwrite=True) is None
    assert listing(folder) == before


@pytest.mark.parametrize("text", [None, "", "{", "7", "[1]", "null", b"\xff{}"])
def test_a_folder_whose_run_is_not_known_needs_resume(folder, text):
    (folder / "run.json").unlink()
    if text is not None:
        (folder / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match="run.json"):
        run_dir.find(folder, SETTINGS)
    assert run_dir.find(folder, SETTINGS, resume=True) == f"{folder}/model.ckpt-6"
    assert run_dir.find(folder, SETTINGS, overwrite=True) is None


def test_overwriting_removes_the_run_and_no_file_of_anyone_else(folder):
    run_dir.begin(folder, {"seed": 2}, overwrite=True)
    assert set(os.listdir(folder)) == {"run.json", "notes.txt", "model.ckpt.txt", "bert_config.json", "best"}
    assert (folder / "notes.txt").read_text() == "notes.txt"
    assert checkpoint.latest(folder / "best") == f"{folder}/best/model.ckpt-3"
    assert json.loads((folder / "run.json").read_text()) == {"seed": 2}


def test_overwriting_refuses_a_folder_with_checkpoints_of_another_kind(folder):
    save(folder, "bert_model.ckpt")
    with pytest.raises(UserError, match="no run left there: 1 .bert_model.ckpt.*folder of its own"):
        run_dir.find(folder, SETTINGS, overwrite=True)


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="file.*cannot be created"):
        run_dir.begin(tmp_path / "file", SETTINGS)


def test_results_stand_as_the_original_writes_them(tmp_path, goldens):
    expected = (goldens / "tiny_ckpt/step2000/eval_results.txt").read_text()
    values = dict(line.split(" = ") for line in expected.splitlines())
    results = {name: int(value) if name == "global_step" else np.float32(value) for name, value in values.items()}
    run_dir.write_results(tmp_path, dict(reversed(results.items())))
    assert (tmp_path / "eval_results.txt").read_text() == expected
