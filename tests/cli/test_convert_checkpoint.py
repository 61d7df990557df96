"""`convert_checkpoint.py`: what it shows, checks and carries over, and what it refuses in one line."""

import json
import os
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

from bert_tf import checkpoint
from bert_tf.cli import convert_checkpoint


@pytest.fixture
def tiny(goldens):
    return goldens / "tiny_ckpt"


@pytest.fixture
def folder(tiny, tmp_path):
    """A model folder with a space in its name that a test may damage: checkpoint, config, vocabulary."""
    folder = tmp_path / "my model"
    folder.mkdir()
    weights = dict(checkpoint.read(str(tiny / "step2000/model.ckpt-2000")))
    slots = {f"{name}/{slot}": np.zeros_like(value) for name, value in weights.items() for slot in ("adam_m", "adam_v")
             if name != "global_step"}
    checkpoint.write(folder / "model.ckpt-2000", weights | slots)
    checkpoint.update_state(folder, "model.ckpt-2000")
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copyfile(tiny / name, folder / name)
    return folder


@pytest.fixture
def call(capsys):
    """`call("inspect", init_checkpoint=...)` -> exit status, standard output, standard error."""

    def run(*words, **values):
        flags = [f"--{name}={value}" for name, value in values.items()]
        status = convert_checkpoint.main(["convert_checkpoint.py", *words, *flags])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def refused(result, *parts):
    status, _, error = result
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert status == 2 and len(lines) == 1 and "Traceback" not in error
    for part in parts:
        assert part in lines[0]


def edit_config(folder, **changes):
    path = folder / "bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_inspect_lists_variables_parameters_and_sizes(call, folder):
    status, out, _ = call("inspect", init_checkpoint=folder)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0 and lines[0] == f"checkpoint: {folder}/model.ckpt-2000"
    assert "bert/embeddings/word_embeddings [1500, 64] float32 96,000" in lines
    assert "encoder and pooler: 39 variables, 208,576 parameters" in lines
    assert "optimizer and training state: 93 tensors" in lines and "step: 2000" in lines
    assert lines[-1] == "fits no released model" and "adam_m" not in out


def test_inspect_names_every_released_model_that_fits(call, tmp_path):
    sizes = {"word_embeddings": (30522, 128), "position_embeddings": (512, 128), "token_type_embeddings": (2, 128)}
    tensors = {f"bert/embeddings/{name}": np.zeros(shape, np.float32) for name, shape in sizes.items()}
    for layer in range(2):
        tensors[f"bert/encoder/layer_{layer}/intermediate/dense/kernel"] = np.zeros((128, 512), np.float32)
    checkpoint.write(tmp_path / "bert_model.ckpt", tensors)
    _, out, _ = call("inspect", init_checkpoint=tmp_path)
    assert "fits the released uncased_L-2_H-128_A-2 of 2020_02_20: https://storage.googleapis.com/" in out


def test_inspect_takes_a_foreign_checkpoint(call, tmp_path):
    checkpoint.write(tmp_path / "m", {"conv/kernel": np.zeros((3, 3), np.float32)})
    status, out, _ = call("inspect", init_checkpoint=tmp_path)
    assert status == 0 and "not a BERT encoder" in out


def test_validate_equals_the_recorded_outputs(call, folder, shared):
    golden = shared("goldens/model/tiny_forward.npz")
    status, out, _ = call("validate", init_checkpoint=folder, golden=golden, tolerance=1e-5)
    assert status == 0 and "BertForPreTraining of" in out and "46/46 restored" in out
    assert "24 recorded outputs equal within 1e-05" in out


def test_validate_equals_the_recorded_outputs_of_a_real_model(call, shared):
    folder = shared("checkpoints/minilm_l6")
    status, out, _ = call("validate", init_checkpoint=folder, golden=shared("goldens/model/minilm_forward.npz"))
    assert status == 0 and "BertModel of" in out and "103/103 restored" in out
    assert "18 recorded outputs equal within 5e-05" in out


def test_validate_refuses_other_outputs(call, folder, tmp_path):
    ids = np.ones((2, 4), np.int32)
    golden = tmp_path / "golden.npz"
    np.savez(golden, **{"one/input_ids": ids, "one/pooled_output": np.zeros((2, 64), np.float32)})
    refused(call("validate", init_checkpoint=folder, golden=golden), "one/pooled_output differs by", "--tolerance")
    np.savez(golden, **{"one/input_ids": ids, "one/pooled_output": np.full((2, 64), np.nan, np.float32)})
    refused(call("validate", init_checkpoint=folder, golden=golden), "one/pooled_output differs by inf")
    np.savez(golden, **{"one/input_ids": ids, "one/pooled_output": np.zeros((2, 32), np.float32)})
    refused(call("validate", init_checkpoint=folder, golden=golden), "has shape [2, 32]")
    np.savez(golden, **{"one/input_ids": ids + 1500, "one/pooled_output": np.zeros((2, 64), np.float32)})
    refused(call("validate", init_checkpoint=folder, golden=golden), "input_ids go from 1501 to 1501")
    np.savez(golden, **{"one/input_ids": ids[:0], "one/pooled_output": np.zeros((0, 64), np.float32)})
    refused(call("validate", init_checkpoint=folder, golden=golden), "one/input_ids [0, 4] hold no ids")
    np.savez(golden, **{"one/input_ids": ids, "one/input_mask": ids[:1]})
    refused(call("validate", init_checkpoint=folder, golden=golden), "one/input_mask int32 [1, 4] do not fit")
    np.savez(golden, **{"one/input_ids": ids, "one/token_type_ids": ids + 20})
    refused(call("validate", init_checkpoint=folder, golden=golden), "one/token_type_ids go from 21 to 21")
    every = "one/encoder_layer_0_every_0th_position"
    np.savez(golden, **{"one/input_ids": ids, every: np.zeros((2, 4, 64), np.float32)})
    refused(call("validate", init_checkpoint=folder, golden=golden), f"{every} is no output of the model")
    np.savez(golden, **{"one/input_ids": ids})
    refused(call("validate", init_checkpoint=folder, golden=golden), "no recorded outputs")
    golden.write_bytes(b"PK\3\4 no zip")
    refused(call("validate", init_checkpoint=folder, golden=golden), "not a readable .npz file")
    refused(call("validate", init_checkpoint=folder, golden=tmp_path / "none.npz"), "not a readable .npz file")


def test_keras_weights_and_back_are_equal_bit_by_bit(call, folder, tmp_path):
    weights, prefix = tmp_path / "bert.weights.h5", tmp_path / "back" / "bert_model.ckpt"
    status, out, _ = call("to-keras", init_checkpoint=folder, output_file=weights)
    assert status == 0 and "46/46 restored" in out and "not carried over" in out and "93 tensors" in out
    status, out, _ = call("from-keras", input_file=weights, bert_config_file=folder / "bert_config.json",
                          output_checkpoint=prefix)
    assert status == 0 and "BertForPreTraining: 46 variables written" in out
    before, after = dict(checkpoint.read(str(folder / "model.ckpt-2000"))), dict(checkpoint.read(str(prefix)))
    assert set(after) == {name for name in before if not checkpoint.is_state(name)}
    for name, value in after.items():
        assert value.tobytes() == before[name].tobytes() and value.dtype == before[name].dtype


def test_fine_tuned_heads_are_named_when_they_cannot_be_carried(call, folder, tmp_path):
    tensors = {name: value for name, value in checkpoint.read(str(folder / "model.ckpt-2000"))
               if name.startswith("bert/")}
    os.remove(folder / "checkpoint")
    for name in os.listdir(folder):
        if name.startswith("model.ckpt"):
            os.remove(folder / name)
    checkpoint.write(folder / "m.ckpt", {**tensors, "output_weights": np.zeros((3, 64), np.float32)})
    status, out, _ = call("to-keras", init_checkpoint=folder, output_file=tmp_path / "a.weights.h5")
    assert status == 0 and "in the checkpoint only: output_weights" in out and "not carried over" in out
    assert "39/39 restored" in out


def keras_file(call, folder, tmp_path):
    path = tmp_path / "a.weights.h5"
    assert call("to-keras", init_checkpoint=folder, output_file=path)[0] == 0
    return path


def test_from_keras_refuses_what_does_not_fit(call, folder, tmp_path):
    path, prefix = keras_file(call, folder, tmp_path), tmp_path / "out" / "m.ckpt"
    config = folder / "bert_config.json"
    edit_config(folder, num_hidden_layers=1)
    arguments = {"input_file": path, "bert_config_file": config, "output_checkpoint": prefix}
    refused(call("from-keras", **arguments), "46 variables; a BERT of 1 layers has 23")
    edit_config(folder, num_hidden_layers=2, hidden_size=128)
    refused(call("from-keras", **arguments), "the weights do not fit the config")
    with h5py.File(path, "w") as file:
        file["a"] = np.zeros(3)
    refused(call("from-keras", **arguments), "1 variables")
    path.write_bytes(b"no HDF5")
    refused(call("from-keras", **arguments), "not a readable HDF5 file")
    refused(call("from-keras", **{**arguments, "input_file": tmp_path / "m.keras"}), "ends in .weights.h5")
    refused(call("from-keras", **{**arguments, "bert_config_file": tmp_path / "none"}), "--bert_config_file=")
    assert not prefix.parent.exists()


def test_from_keras_refuses_a_folder_as_prefix_before_work(call, folder, tmp_path):
    (tmp_path / "there").mkdir()
    for prefix, example in (("", " bert_model.ckpt"), (f"{tmp_path}/b/", f" {tmp_path}/b/bert_model.ckpt"),
                            (f"{tmp_path}/there", f" {tmp_path}/there/bert_model.ckpt")):
        result = call("from-keras", input_file=tmp_path / "none.weights.h5", output_checkpoint=prefix,
                      bert_config_file=folder / "bert_config.json")
        refused(result, f"'{prefix}' is no prefix", f"such as{example}")
    assert not (tmp_path / "b").exists() and not list((tmp_path / "there").iterdir())


# Wrong on purpose.


def test_missing_files_are_refused(call, folder, tmp_path):
    refused(call("inspect", init_checkpoint=tmp_path / "none.ckpt"), "no such checkpoint")
    (tmp_path / "empty").mkdir()
    refused(call("inspect", init_checkpoint=tmp_path / "empty"), "holds no checkpoint")
    refused(call("validate", init_checkpoint=folder, bert_config_file=tmp_path / "none.json"), "no such file")
    os.remove(folder / "bert_config.json")
    refused(call("validate", init_checkpoint=folder), "no bert_config.json beside", "--bert_config_file")


def test_several_checkpoints_are_refused(call, folder):
    os.remove(folder / "checkpoint")
    checkpoint.write(folder / "other.ckpt", {"a": np.zeros(2, np.float32)})
    refused(call("inspect", init_checkpoint=folder), "holds 2 checkpoints: other.ckpt, model.ckpt-2000")


@pytest.mark.parametrize("command", ["inspect", "validate", "to-keras"])
def test_a_data_file_cut_short_is_refused(call, folder, tmp_path, command):
    data = folder / "model.ckpt-2000.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-100])
    output = {"output_file": tmp_path / "a.weights.h5"} if command == "to-keras" else {}
    refused(call(command, init_checkpoint=folder, **output), "cut short")
    assert not (tmp_path / "a.weights.h5").exists()


def test_a_flipped_byte_is_refused(call, folder):
    data = folder / "model.ckpt-2000.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    refused(call("validate", init_checkpoint=folder), "may be damaged")


def test_a_config_of_another_model_is_refused_by_variable_unless_allowed(call, folder):
    edit_config(folder, num_hidden_layers=3)
    refused(call("validate", init_checkpoint=folder), "lacks 16 (bert/encoder/layer_2/", "--allow_missing")
    status, out, _ = call("validate", "--allow_missing", init_checkpoint=folder)
    assert status == 0 and "46/62 restored; missing: 16" in out
    edit_config(folder, num_hidden_layers=2, max_position_embeddings=64)
    refused(call("validate", init_checkpoint=folder),
            "bert/embeddings/position_embeddings has shape [128, 64], in the model [64, 64]")
    edit_config(folder, hidden_size="64")
    refused(call("validate", init_checkpoint=folder), "hidden_size")


def test_a_vocabulary_is_held_against_the_config(call, folder):
    with open(folder / "vocab.txt", "a", encoding="utf-8") as file:
        file.write("one\ntoo\nmany\n")
    refused(call("validate", init_checkpoint=folder), "vocab.txt has", "vocab_size in")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    status, out, _ = call("validate", init_checkpoint=folder)
    assert status == 0 and "1495 ids of the config have no piece in" in out


def test_an_unwritable_place_is_refused(call, folder, tmp_path):
    for name, problem in (("no/a.weights.h5", "cannot be written"), ("a.h5", "ends in .weights.h5")):
        refused(call("to-keras", init_checkpoint=folder, output_file=tmp_path / name), problem)


def test_sub_commands_and_flags_are_checked(call):
    refused(call("convert"), "'convert' is no sub-command", "inspect, validate, to-keras, from-keras")
    refused(call("--init_checkpoint=x"), "is no sub-command")
    refused(call("inspect"), "init_checkpoint")
    refused(call("inspect", init_checkpoint="x", tolerance=1), "tolerance")
    assert call("--help")[0] == call()[0] == call("inspect", "--help")[0] == 0


def test_the_door_answers_help_without_tensorflow():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = ("import sys; from bert_tf.cli import convert_checkpoint as c; c.main(['x', 'validate', '--help']);"
            "assert 'tensorflow' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)
    door = [sys.executable, "convert_checkpoint.py", "nothing"]
    door = subprocess.run(door, cwd=root, capture_output=True, text=True)
    assert door.returncode == 2 and door.stderr.startswith("error: 'nothing' is no sub-command")
