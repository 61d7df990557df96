"""`run_pretraining.py`: the original's numbers, what resumes, what is refused."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoint, tokenization
from bert_tf.cli import run_pretraining as script
from bert_tf.pretraining import records
from bert_tf.pretraining.instances import Settings

ROOT = pathlib.Path(script.__file__).resolve().parents[2]
SMALL = dict(vocab_size=1504, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=64, type_vocab_size=2)


def make_records(goldens, folder, names, text="corpus.txt", **settings):
    before = os.getcwd()
    os.chdir(goldens / "pretrain_data")
    try:
        tokenizer = tokenization.FullTokenizer("vocab.txt", do_lower_case=True)
        records.create([text], [str(folder / name) for name in names], os.path.abspath("vocab.txt"), tokenizer,
                       Settings(**settings))
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def data(goldens, tmp_path_factory):
    """Small records and a small config."""
    folder = tmp_path_factory.mktemp("data")
    make_records(goldens, folder, ["one", "two"], "multi/onedoc.txt", max_seq_length=32, max_predictions_per_seq=5,
                 dupe_factor=3)
    (folder / "config.json").write_text(json.dumps(SMALL))
    return folder


@pytest.fixture
def call(data, tmp_path, capsys, caplog):
    """`call("--do_train", seed=3, ...)` -> exit status, error lines, log; output goes to `out`."""
    usual = {"bert_config_file": data / "config.json", "input_file": f"{data}/one*,{data}/two*",
             "output_dir": tmp_path / "out", "max_seq_length": 32, "max_predictions_per_seq": 5, "train_batch_size": 4,
             "eval_batch_size": 4, "max_eval_steps": 3, "num_train_steps": 6, "num_warmup_steps": 2,
             "save_checkpoints_steps": 3, "learning_rate": 1e-3, "iterations_per_loop": 3}

    def run(*words, **flags):
        given = [f"--{name}={value}" for name, value in (usual | flags).items() if value is not None]
        caplog.clear()
        with caplog.at_level("INFO"):
            status = script.main(["run_pretraining.py", *given, *words])
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return status, errors, caplog.text

    return run


def results(path):
    return {name: float(value) for name, value in (line.split(" = ") for line in path.read_text().splitlines())}


def assert_results(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert abs(found[name] - value) < 1e-4, name


def snapshot(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Numbers.


@pytest.mark.parametrize("run, steps, expected, xla", [
    ("plain", 100, "eval_results.txt", False), ("wwm", 40, "eval_results_wwm_file.txt", True)])
def test_the_recorded_checkpoint_evaluates_to_the_recorded_results(call, goldens, tmp_path, run, steps, expected, xla):
    tiny = goldens / "tiny_ckpt"
    make_records(goldens, tmp_path, ["records"], max_seq_length=64, max_predictions_per_seq=10, dupe_factor=2,
                 do_whole_word_mask=run == "wwm")
    status, errors, log = call("--do_eval", input_file=tmp_path / "records", init_checkpoint=tiny / "step2000",
                               bert_config_file=tiny / "bert_config.json", max_seq_length=64,
                               max_predictions_per_seq=10,
                               eval_batch_size=8, max_eval_steps=steps, xla=xla)
    assert (status, errors) == (0, []) and "46/46 restored" in log
    assert os.listdir(tmp_path / "out") == ["eval_results.txt"]
    assert_results(results(tmp_path / "out/eval_results.txt"), results(tiny / "step2000" / expected))


# A run, and how it goes on.


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The folder of a run of six steps."""
    folder = tmp_path_factory.mktemp("finished")
    assert script.main([
        "run_pretraining.py", "--do_train", f"--bert_config_file={data}/config.json",
        f"--input_file={data}/one*,{data}/two*", f"--output_dir={folder}",
        "--max_seq_length=32", "--max_predictions_per_seq=5", "--train_batch_size=4",
        "--num_train_steps=6", "--num_warmup_steps=2", "--save_checkpoints_steps=3", "--learning_rate=1e-3"]) == 0
    return folder


def test_what_a_run_leaves(finished, data, goldens):
    left = set(os.listdir(finished))
    assert {name for name in left if not name.startswith("events.")} == {
        "bert_config.json", "vocab.txt", "model.json", "run.json", "train_log.jsonl", "curves.png", "checkpoint",
        *(f"model.ckpt-{step}.{part}" for step in (3, 6) for part in ("index", "data-00000-of-00001"))}
    assert (finished / "vocab.txt").read_bytes() == (goldens / "pretrain_data/vocab.txt").read_bytes()
    assert json.loads((finished / "model.json").read_text()) == {
        "task": "pretraining", "max_seq_length": 32, "do_lower_case": True, "strip_accents": True}
    assert json.loads((finished / "bert_config.json").read_text()).items() >= SMALL.items()
    assert tf.train.load_checkpoint(str(finished)).get_tensor("global_step") == 6


def test_the_same_command_again_is_complete_and_goes_on_to_evaluate(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    status, errors, log = call("--do_train", iterations_per_loop=None)
    assert (status, errors) == (0, []) and "complete at step 6" in log
    assert snapshot(tmp_path / "out") == before
    status, errors, log = call("--do_train", "--do_eval")
    assert (status, errors) == (0, []) and "complete at step 6" in log and "evaluation at step 6" in log
    both = results(tmp_path / "out/eval_results.txt")
    assert call("--do_eval", train_batch_size=9, seed=77)[0] == 0  # evaluating asks for no fingerprint
    assert results(tmp_path / "out/eval_results.txt") == both and both["global_step"] == 6
    after = snapshot(tmp_path / "out")
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("flags, part", [
    ({"seed": 3}, "seed 12345 (now 3)"), ({"train_batch_size": 5}, "train_batch_size 4 (now 5)"),
    ({"learning_rate": 1e-4, "num_train_steps": 7}, "learning_rate 0.001 (now 0.0001), num_train_steps 6 (now 7)"),
    ({"num_warmup_steps": 0}, "num_warmup_steps"), ({"precision": "bfloat16"}, "precision"), ({"xla": True}, "xla"),
    ({"input_file": "{data}/one"}, "records"), ({"input_file": "{data}/two*,{data}/one*"}, "records"),
    ({"shuffle_buffer": 10}, "shuffle_buffer"),
    ({"init_checkpoint": "{finished}/model.ckpt-3"}, "init_checkpoint null"),
    ({"bert_config_file": "{data}/other.json"}, "config")])
def test_other_settings_are_refused_naming_what_differs(call, data, finished, tmp_path, flags, part):
    (data / "other.json").write_text(json.dumps({**SMALL, "hidden_dropout_prob": 0.2}))
    shutil.copytree(finished, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    flags = {name: value.format(data=data, finished=finished) if isinstance(value, str) else value
             for name, value in flags.items()}
    status, errors, _ = call("--do_train", **flags)
    assert status == 2 and len(errors) == 1 and "holds a run with other settings" in errors[0] and part in errors[0]
    assert snapshot(tmp_path / "out") == before


def test_resume_goes_on_with_more_steps(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    status, errors, log = call("--do_train", "--resume", num_train_steps=8)
    assert (status, errors) == (0, []) and "going on from" in log and "trained to step 8" in log
    rows = [json.loads(line) for line in (tmp_path / "out/train_log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert rows[6]["learning_rate"] == pytest.approx(1e-3 * (1 - 6 / 8))
    assert call("--do_train", num_train_steps=8)[0] == 0  # the new settings are the folder's now


def test_overwriting_starts_anew_and_removes_only_the_runs_files(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    (tmp_path / "out/notes.txt").write_text("mine")
    (tmp_path / "out/model.ckpt-3.index.bak").write_text("mine")
    (tmp_path / "out/eval_results.txt").write_text("old")
    status, errors, log = call("--do_train", "--overwrite_output_dir", seed=3, num_train_steps=2)
    assert (status, errors) == (0, []) and "random weights" in log
    left = set(os.listdir(tmp_path / "out"))
    assert {"notes.txt", "model.ckpt-3.index.bak", "model.ckpt-2.index"} <= left
    assert not left & {"model.ckpt-3.index", "model.ckpt-6.index", "eval_results.txt"}
    assert len([name for name in left if name.startswith("events.")]) == 1
    assert json.loads((tmp_path / "out/run.json").read_text())["seed"] == 3


@pytest.mark.parametrize("flags, part", [
    ({"init_checkpoint": "{out}/model.ckpt-6"}, "would remove --init_checkpoint"),
    ({"init_checkpoint": "{out}/../out"}, "would remove --init_checkpoint"),
    ({"init_checkpoint": "{other}"}, "bert/"), ({"init_checkpoint": "{out}/none"}, "none"),
    ({"vocab_file": "{out}/none"}, "none: cannot be read"),
    ({"vocab_file": "{other}/vocab"}, "is not the vocabulary")])
def test_a_refused_command_overwrites_nothing(call, goldens, finished, tmp_path, flags, part):
    shutil.copytree(finished, tmp_path / "out")
    checkpoint.write(str(tmp_path / "other/bert_model.ckpt"), {"bert/pooler/dense/bias": np.zeros(16, np.float32)})
    (tmp_path / "other/vocab").write_bytes((goldens / "pretrain_data/vocab.txt").read_bytes() + b"more\n")
    before = snapshot(tmp_path / "out")
    flags = {name: value.format(out=tmp_path / "out", other=tmp_path / "other") for name, value in flags.items()}
    status, errors, _ = call("--do_train", "--overwrite_output_dir", **flags)
    assert status == 2 and len(errors) == 1 and part in errors[0]
    assert snapshot(tmp_path / "out") == before


def test_the_originals_folder_is_resumed_only_when_asked(call, goldens, shared, tmp_path):
    source = shared("goldens/tiny_ckpt/step2000/model.ckpt-2000.index").parent
    shutil.copytree(source, tmp_path / "out")
    (tmp_path / "out").chmod(0o755)
    make_records(goldens, tmp_path, ["records"], "multi/onedoc.txt", max_seq_length=64, max_predictions_per_seq=10)
    flags = dict(input_file=tmp_path / "records", bert_config_file=goldens / "tiny_ckpt/bert_config.json",
                 max_seq_length=64, max_predictions_per_seq=10, num_train_steps=2002, save_checkpoints_steps=1000)
    before = snapshot(tmp_path / "out")
    status, errors, _ = call("--do_train", **flags)
    assert status == 2 and "not known here (no run.json); --resume" in errors[0]
    assert snapshot(tmp_path / "out") == before
    status, errors, log = call("--do_train", "--resume", **flags)
    assert (status, errors) == (0, []) and "going on from" in log and "trained to step 2002" in log
    rows = [json.loads(line) for line in (tmp_path / "out/train_log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2001, 2002] and rows[0]["loss"] < 7
    assert {"model.ckpt-2000.index", "model.ckpt-2002.index"} <= set(os.listdir(tmp_path / "out"))


def test_a_killed_process_goes_on_to_the_same_bytes(call, data, finished, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "run_pretraining.py"), "--do_train",
               f"--bert_config_file={data}/config.json", f"--input_file={data}/one*,{data}/two*",
               f"--output_dir={out}", "--max_seq_length=32", "--max_predictions_per_seq=5", "--train_batch_size=4",
               "--num_train_steps=6", "--num_warmup_steps=2",
               "--save_checkpoints_steps=3", "--learning_rate=1e-3", "--iterations_per_loop=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until and not (out / "model.ckpt-3.index").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert (out / "model.ckpt-3.index").exists()
    status, errors, _ = call("--do_train")
    assert (status, errors) == (0, [])
    for suffix in (".index", ".data-00000-of-00001"):
        assert (out / f"model.ckpt-6{suffix}").read_bytes() == (finished / f"model.ckpt-6{suffix}").read_bytes()
    mine, theirs = ([json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
                    for folder in (out, finished))
    assert [(row["step"], row["loss"]) for row in mine] == [(row["step"], row["loss"]) for row in theirs]


# What is said.


def test_flags_that_mean_nothing_any_more_are_accepted_with_a_line_each(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    status, errors, log = call("--do_train", "--use_tpu=False", master="grpc://a", tpu_name="b", tpu_zone="c",
                               gcp_project="d", num_tpu_cores=8)
    assert (status, errors) == (0, [])
    for name in ("master", "tpu_name", "tpu_zone", "gcp_project", "num_tpu_cores"):
        assert log.count(f"--{name} has no effect") == 1


def test_evaluating_more_than_there_is_begins_again_and_says_so(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    status, _, log = call("--do_eval", max_eval_steps=40)
    assert status == 0 and "the first come again" in log


def test_defaults_are_the_originals():
    from absl import flags

    values = flags.FlagValues()
    script.define_flags(values)
    originals = {"bert_config_file": None, "input_file": None, "output_dir": None, "init_checkpoint": None,
                 "max_seq_length": 128, "max_predictions_per_seq": 20, "do_train": False, "do_eval": False,
                 "train_batch_size": 32, "eval_batch_size": 8, "learning_rate": 5e-5, "num_train_steps": 100000,
                 "num_warmup_steps": 10000, "save_checkpoints_steps": 1000, "max_eval_steps": 100, "use_tpu": False,
                 "tpu_name": None, "tpu_zone": None, "gcp_project": None, "master": None, "num_tpu_cores": 8}
    assert {name: values[name].default for name in originals} == originals


# What is refused, before anything is computed or written.


@pytest.fixture
def no_compute(monkeypatch):
    from bert_tf import runtime

    def fail(self):
        raise AssertionError("computing has begun")

    monkeypatch.setattr(runtime.Runtime, "start", fail)


def bad_files(data, tmp_path):
    """Files that are wrong, by the names that the cases below give them."""
    folder = tmp_path / "bad"
    folder.mkdir()
    content = (data / "one").read_bytes()
    (folder / "empty").write_bytes(b"")
    (folder / "cut").write_bytes(content[:-7])
    (folder / "flipped").write_bytes(content[:300] + bytes([content[300] ^ 1]) + content[301:])
    (folder / "text").write_text("not records\n" * 9)
    shutil.copy(data / "one", folder / "plain")  # no sidecar
    shutil.copy(data / "one", folder / "replaced")
    shutil.copy(data / "one.meta.json", folder / "replaced.meta.json")
    with open(folder / "replaced", "ab") as file:
        file.write(content[:100])
    sidecar = json.loads((data / "one.meta.json").read_text())
    for name, change in (("cased", {"do_lower_case": False}), ("vocabulary", {"vocab_sha256": "0" * 64}),
                         ("broken", {"max_seq_length": "32"})):
        shutil.copy(data / "one", folder / name)
        (folder / f"{name}.meta.json").write_text(json.dumps({**sidecar, **change}))
    for name, change in (("small", {"vocab_size": 600}), ("types", {"vocab_size": "1504"}),
                         ("one_type", {"type_vocab_size": 1}),
                         ("short", {"max_position_embeddings": 16})):
        (folder / f"{name}.json").write_text(json.dumps({**SMALL, **change}))
    (folder / "no.json").write_text("{")
    (folder / "uncased_model.ckpt.index").write_bytes(b"")
    checkpoint.write(str(folder / "uncased_L-2_H-16_A-2/bert_model.ckpt"),
                     {"bert/pooler/dense/bias": np.zeros(16, np.float32)})
    return folder


REFUSED = [
    (["--do_train"], {"bert_config_file": None}, "--bert_config_file"),
    (["--do_train"], {"input_file": None}, "--input_file"),
    (["--do_train"], {"output_dir": None}, "--output_dir"),
    ([], {}, "give --do_train, --do_eval or both"),
    (["--do_train"], {"bogus": 1}, "bogus"),
    (["--do_train", "word"], {}, "unexpected argument 'word'"),
    (["--do_train"], {"num_train_steps": 0}, "--num_train_steps=0 must be at least 1"),
    (["--do_train"], {"num_train_steps": "many"}, "num_train_steps"),
    (["--do_train"], {"train_batch_size": 0}, "--train_batch_size=0"),
    (["--do_eval"], {"eval_batch_size": -1}, "--eval_batch_size=-1"),
    (["--do_eval"], {"max_eval_steps": 0}, "--max_eval_steps=0"),
    (["--do_train"], {"num_warmup_steps": -1}, "--num_warmup_steps=-1"),
    (["--do_train"], {"save_checkpoints_steps": 0}, "--save_checkpoints_steps=0"),
    (["--do_train"], {"iterations_per_loop": 0}, "--iterations_per_loop=0"),
    (["--do_train"], {"learning_rate": 0}, "--learning_rate=0"),
    (["--do_train"], {"learning_rate": "nan"}, "--learning_rate=nan"),
    (["--do_train"], {"learning_rate": "inf"}, "--learning_rate=inf"),
    (["--do_train"], {"precision": "float8"}, "--precision=float8"),
    (["--do_train"], {"seed": -1}, "--seed=-1"),
    (["--do_train", "--use_tpu"], {"tpu_name": "mine"}, "the TPU mine cannot reach this machine's files"),
    (["--do_train", "--use_tpu"], {"precision": "float16"}, "use bfloat16"),
    (["--do_train"], {"gradient_accumulation_steps": 3}, "among 1 devices x 3 micro-batches; 3 or 6 can"),
    (["--do_train"], {"strategy": "multi_worker"}, "needs TF_CONFIG"),
    (["--do_train"], {"strategy": "mirrored", "virtual_devices": 2, "train_batch_size": 3}, "2 or 4 can"),
    (["--do_train"], {"optimizer": "sgd"}, "--optimizer=sgd"), (["--do_train"], {"profile_steps": "2"}, "A:B"),
    (["--do_train"], {"eval_every_steps": 2, "best_metric": "f1"}, "--best_metric=f1 is none of"),
    (["--do_train", "--resume", "--overwrite_output_dir"], {}, "contradict"),
    (["--do_train"], {"max_seq_length": 4}, "at least 5"),
    (["--do_train"], {"max_seq_length": 65}, "beyond the model's 64 positions"),
    (["--do_train"], {"max_seq_length": 16}, "made with --max_seq_length=32, asked for 16"),
    (["--do_train"], {"max_predictions_per_seq": 10}, "made with --max_predictions_per_seq=5, asked for 10"),
    (["--do_eval"], {"max_predictions_per_seq": 10}, "made with --max_predictions_per_seq=5, asked for 10"),
    (["--do_train"], {"input_file": "{bad}/plain", "max_predictions_per_seq": 10},
     "plain: record 0 holds 5 values of masked_lm_"),
    (["--do_train"], {"input_file": "{bad}/plain", "max_seq_length": 16}, "plain: record 0 holds 32 values of"),
    (["--do_train"], {"input_file": "{bad}/missing*"}, "no file matches"),
    (["--do_train"], {"input_file": "{data}/one,{bad}/missing"}, "no file matches"),
    (["--do_train"], {"input_file": "{data}/one,"}, "no file matches"),
    (["--do_train"], {"input_file": "{bad}"}, "is a folder"),
    (["--do_train"], {"input_file": "{data}/*.meta.json"}, "no records"),
    (["--do_train"], {"input_file": "{bad}/empty"}, "empty: holds no record"),
    (["--do_train"], {"input_file": "{bad}/cut"}, "is damaged or cut short"),
    (["--do_train"], {"input_file": "{bad}/flipped"}, "record 0 is damaged"),
    (["--do_train"], {"input_file": "{bad}/text"}, "record 0 is damaged"),
    (["--do_train"], {"input_file": "{bad}/replaced"}, "cut short or replaced"),
    (["--do_train"], {"input_file": "{bad}/broken"}, "max_seq_length is '32'"),
    (["--do_train"], {"input_file": "{data}/one,{bad}/vocabulary"}, "different vocabularies"),
    (["--do_train"], {"input_file": "{data}/one,{bad}/cased"}, "some records were made with --do_lower_case"),
    (["--do_train"], {"bert_config_file": "{bad}/none.json"}, "none.json: no such file"),
    (["--do_train"], {"bert_config_file": "{bad}/no.json"}, "no.json:1: not JSON"),
    (["--do_train"], {"bert_config_file": "{bad}/types.json"}, "vocab_size must be a whole number"),
    (["--do_train"], {"bert_config_file": "{bad}/small.json"}, "made with a vocabulary of 1500"),
    (["--do_train"], {"bert_config_file": "{bad}/small.json", "input_file": "{bad}/plain"}, "plain: record 0"),
    (["--do_train"], {"bert_config_file": "{bad}/one_type.json"}, "segment_ids holds 1, allowed is 0 to 0"),
    (["--do_train"], {"bert_config_file": "{bad}/short.json"}, "beyond the model's 16 positions"),
    (["--do_train"], {"init_checkpoint": "{bad}/none"}, "none"),
    (["--do_train"], {"init_checkpoint": ""}, "checkpoint"),
    (["--do_train"], {"init_checkpoint": "{bad}/uncased_model.ckpt"}, "uncased_model.ckpt"),
    (["--do_train"], {"init_checkpoint": "{bad}/uncased_L-2_H-16_A-2", "input_file": "{bad}/cased"},
     "is a lower-cased model"),
    (["--do_train"], {"vocab_file": "{bad}/none"}, "none: cannot be read"),
    (["--do_train"], {"vocab_file": "{bad}/text"}, "lacks"),
    (["--do_train"], {"input_file": "{bad}/plain", "vocab_file": "{vocab}", "bert_config_file": "{bad}/small.json"},
     "has 1500 pieces, the model 600"),
]


@pytest.mark.parametrize("words, flags, part", REFUSED)
def test_what_is_refused_is_one_line_and_leaves_nothing(call, no_compute, data, goldens, tmp_path, words, flags, part):
    bad = bad_files(data, tmp_path)
    flags = {name: value.format(bad=bad, data=data, vocab=goldens / "pretrain_data/vocab.txt")
             if isinstance(value, str) else value for name, value in flags.items()}
    before = snapshot(tmp_path)
    status, errors, _ = call(*words, **flags)
    assert status == 2 and len(errors) == 1 and part in errors[0]
    assert snapshot(tmp_path) == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize("flags", [{"freeze": "layer_7"}, {"lora_rank": 16}, {"lora_rank": 2, "lora_train": "no"}])
def test_variables_that_there_are_not_are_refused_and_nothing_is_left(call, tmp_path, flags):
    status, errors, _ = call("--do_train", **flags)
    assert status == 2 and len(errors) == 1 and f"--{list(flags)[-1]}=" in errors[0]
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_output_folders_place_is_refused_before_work(call, finished, tmp_path, monkeypatch):
    from bert_tf.training import evaluation, loop

    monkeypatch.setattr(evaluation, "build_evaluation", lambda *arguments: pytest.fail("computing has begun"))
    monkeypatch.setattr(loop, "train", lambda *arguments: pytest.fail("computing has begun"))
    (tmp_path / "out").write_text("a file")
    for words in (["--do_train"], ["--do_eval"]):
        status, errors, _ = call(*words, init_checkpoint=finished / "model.ckpt-6")
        assert status == 2 and len(errors) == 1 and "out: the folder cannot be created" in errors[0]


def test_cased_records_are_not_warned_about_for_want_of_their_vocabulary(call, finished, data, tmp_path):
    folder = bad_files(data, tmp_path)
    checkpoint.write(str(tmp_path / "from/bert_model.ckpt"), dict(checkpoint.read(str(finished / "model.ckpt-6"))))
    status, _, log = call("--do_eval", init_checkpoint=tmp_path / "from", input_file=folder / "cased")
    assert status == 0 and "upper case" not in log


def test_random_weights_are_never_evaluated_silently(call, tmp_path):
    status, errors, _ = call("--do_eval")
    assert status == 2 and "nothing to evaluate" in errors[0] and not (tmp_path / "out").exists()


def test_heads_that_were_never_trained_are_not_evaluated(call, finished, tmp_path):
    encoder = {name: value for name, value in checkpoint.read(str(finished / "model.ckpt-6"))
               if name.startswith("bert/") and "adam" not in name}
    checkpoint.write(str(tmp_path / "encoder/bert_model.ckpt"), encoder)
    status, errors, _ = call("--do_eval", init_checkpoint=tmp_path / "encoder")
    assert status == 2 and len(errors) == 1 and "heads that were never trained" in errors[0]
    assert "cls/predictions" in errors[0] and not (tmp_path / "out").exists()
    status, errors, log = call("--do_train", init_checkpoint=tmp_path / "encoder", num_train_steps=1)
    assert (status, errors) == (0, []) and "random weights in what the checkpoint lacks: 7" in log


def test_a_real_encoder_without_heads_is_not_evaluated(call, shared, data, tmp_path):
    folder = shared("checkpoints/minilm_l6")
    status, errors, _ = call("--do_eval", init_checkpoint=folder, bert_config_file=folder / "bert_config.json")
    assert status == 2 and "heads that were never trained" in errors[0] and not (tmp_path / "out").exists()


def test_another_vocabulary_beside_the_checkpoint_is_warned_about(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "from")
    with open(tmp_path / "from/vocab.txt", "a") as file:
        file.write("another\n")
    status, _, log = call("--do_eval", init_checkpoint=tmp_path / "from")
    assert status == 0 and "made with another vocabulary" in log


def test_a_folder_that_says_another_casing_is_refused_unless_allowed(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "from")
    info = json.loads((tmp_path / "from/model.json").read_text())
    (tmp_path / "from/model.json").write_text(json.dumps({**info, "do_lower_case": False}))
    status, errors, _ = call("--do_eval", init_checkpoint=tmp_path / "from")
    assert status == 2 and "the records were made with --do_lower_case=True" in errors[0]
    assert call("--do_eval", "--allow_case_mismatch", init_checkpoint=tmp_path / "from")[0] == 0


def test_a_bad_record_in_the_middle_names_file_and_record_and_keeps_what_was_trained(call, data, tmp_path):
    examples = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(data / "one"))]
    examples[-1].features.feature["input_ids"].int64_list.value[3] = 1504
    with tf.io.TFRecordWriter(str(tmp_path / "spoilt")) as writer:
        for example in examples:
            writer.write(example.SerializeToString())
    # In file order, nearly: the last record comes last.
    status, errors, _ = call("--do_train", input_file=tmp_path / "spoilt", shuffle_buffer=1, train_batch_size=2,
                             num_train_steps=100)
    good = (len(examples) - 1) // 2
    assert status == 2 and len(errors) == 1
    assert f"spoilt: record {len(examples) - 1}: input_ids holds 1504, allowed is 0 to 1503" in errors[0]
    assert f"step {good}, saved as" in errors[0]
    assert checkpoint.latest(tmp_path / "out") == f"{tmp_path}/out/model.ckpt-{good}"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_hundred_steps_end_where_the_recorded_ones_did(shared, tmp_path, precision):
    recorded = shared("goldens/tiny_ckpt")
    assert script.main([
        "run_pretraining.py", f"--input_file={shared('goldens/pretrain_data/pretrain_plain.tfrecord')}",
        f"--init_checkpoint={recorded / 'step0'}", f"--bert_config_file={recorded / 'bert_config.json'}",
        f"--output_dir={tmp_path}", "--do_train", "--do_eval", "--max_seq_length=64", "--max_predictions_per_seq=10",
        "--train_batch_size=16", "--learning_rate=1e-3", "--num_train_steps=200", "--num_warmup_steps=20",
        "--shuffle_buffer=100", f"--precision={precision}"]) == 0
    ours, theirs = (dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())
                    for folder in (tmp_path, recorded / "step200"))
    # Order and dropout are drawn anew: the losses agree as those of two seeds do.
    assert abs(float(ours["masked_lm_loss"]) - float(theirs["masked_lm_loss"])) < 0.05
    assert abs(float(ours["next_sentence_loss"]) - float(theirs["next_sentence_loss"])) < 0.03
    entries = checkpoint.list_variables(str(tmp_path / "model.ckpt-200"))
    assert {entry.dtype for name, entry in entries.items() if name.startswith(("bert/", "cls/"))} == {tf.float32}
