import hashlib
import json
import os
import subprocess
import sys
import time

import pytest

from bert_tf.cli import create_pretraining_data as script

RUNS = ("plain", "wwm", "multi_a", "multi_b", "onedoc")


@pytest.fixture
def run(goldens, monkeypatch, tmp_path, capsys):
    """Runs the script in the golden folder with output to `out`; gives (exit status, standard error)."""
    monkeypatch.chdir(goldens / "pretrain_data")
    usual = {"input_file": "multi/onedoc.txt", "output_file": f"{tmp_path}/out", "vocab_file": "vocab.txt",
             "max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 1}

    def call(*more, **flags):
        given = [f"--{name}={value}" for name, value in (usual | flags).items() if value is not None]
        status = script.main(["create_pretraining_data.py", *given, *more])
        return status, capsys.readouterr().err

    return call


@pytest.mark.parametrize("name", RUNS)
def test_the_originals_files_byte_for_byte(run, goldens, tmp_path, name):
    folder = goldens / "pretrain_data"
    recorded = json.loads((folder / "runs.json").read_text())[name]
    flags = dict(recorded["flags"])
    outputs = flags.pop("output_files")
    status, _ = run(**flags, output_file=",".join(str(tmp_path / output) for output in outputs))
    assert status == 0
    expected = json.loads((folder / "tfrecord_sha256.json").read_text())
    for output, number in zip(outputs, recorded["per_file"]):
        assert hashlib.sha256((tmp_path / output).read_bytes()).hexdigest() == expected[output]
        assert json.loads((tmp_path / f"{output}.meta.json").read_text())["instances"] == number
    assert len(os.listdir(tmp_path)) == 2 * len(outputs)


def test_counts_and_first_instances_are_logged(run, caplog):
    with caplog.at_level("INFO", logger="bert_tf"):
        assert run(input_file="corpus.txt", max_seq_length=64, max_predictions_per_seq=10, dupe_factor=2)[0] == 0
    for line in ("documents  225 (0 without a piece dropped)", "sentences  2713", "instances  2018, 1199 truncated",
                 "next       58.1 % random", "masked     15.4 % of 112745 pieces: 79.7 % [MASK], 10.0 % kept, 10.3 %"):
        assert line in caplog.text
    assert "instance 20 (" in caplog.text and "instance 21 (" not in caplog.text


def test_defaults_are_the_originals():
    from absl import flags

    values = flags.FlagValues()
    script.define_flags(values)
    originals = {
        "input_file": None, "output_file": None, "vocab_file": None, "do_lower_case": True,
        "do_whole_word_mask": False, "max_seq_length": 128, "max_predictions_per_seq": 20, "random_seed": 12345,
        "dupe_factor": 10, "masked_lm_prob": 0.15, "short_seq_prob": 0.1,
    }
    assert {name: values[name].default for name in originals} == originals


def test_doubtful_text_is_said_and_made(run, tmp_path, caplog):
    assert run()[0] == 0
    assert "the text is one document" in caplog.text and "--no_false_random_next takes" in caplog.text
    caplog.clear()
    text = tmp_path / "text"
    text.write_text("a line of its own\n\n" * 30)
    assert run(input_file=f"{text},{text}", num_workers=3)[0] == 0
    assert "60 of 60 documents are one sentence" in caplog.text
    assert "2 times" in caplog.text and "--num_workers=3: 1 have work" in caplog.text


def _files(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "blank").write_bytes(b"\n\n \n")
    (tmp_path / "latin").write_bytes(b"one\n\ncaf\xe9\n")
    (tmp_path / "cased").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "Word"]))
    (tmp_path / "short").write_text("the\nof\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")


@pytest.mark.parametrize("flags, message", [
    ({"input_file": None}, "--input_file"),
    ({"output_file": None}, "--output_file"),
    ({"vocab_file": None}, "--vocab_file"),
    ({"input_file": "{tmp}/missing"}, "no file matches"),
    ({"input_file": "corpus.txt,{tmp}/*.none"}, "no file matches"),
    ({"input_file": "{tmp}/folder"}, "is a folder"),
    ({"input_file": "{tmp}/dangling"}, "dangling: cannot be read"),
    ({"input_file": "corpus.txt,{tmp}/empty"}, "empty: the file is empty"),
    ({"input_file": "{tmp}/blank"}, "yields no instance"),
    ({"input_file": "{tmp}/latin"}, "latin:3: byte 0xe9 is not UTF-8"),
    ({"vocab_file": "{tmp}/missing"}, "missing: cannot be read"),
    ({"vocab_file": "{tmp}/short"}, "the vocabulary lacks [PAD]"),
    ({"vocab_file": "{tmp}/cased"}, "pass --do_lower_case=False"),
    ({"output_file": "{tmp}/none/out"}, "there is no folder"),
    ({"output_file": "{tmp}/folder"}, "is a folder"),
    ({"output_file": "{tmp}/out,{tmp}/out"}, "named twice"),
    ({"output_file": "{tmp}/out,{tmp}/folder/../out"}, "named twice"),
    ({"output_file": "{tmp}/out,"}, "the name is empty"),
    ({"output_file": "{tmp}/out.meta.json"}, "ends in .meta.json"),
    ({"input_file": "{tmp}/latin", "output_file": "{tmp}/latin"}, "is also read"),
    ({"max_seq_length": 4}, "the least is 5"),
    ({"max_seq_length": "long"}, "max_seq_length"),
    ({"max_predictions_per_seq": 0}, "the least is 1"),
    ({"masked_lm_prob": 1.01}, "a probability"),
    ({"short_seq_prob": -1}, "a probability"),
    ({"dupe_factor": 0}, "the least is 1"),
    ({"num_shards": 0}, "num_shards"),
    ({"num_workers": 0}, "num_workers"),
    ({"bogus": 1}, "bogus"),
])
def test_what_is_refused_is_one_line_and_leaves_nothing(run, tmp_path, flags, message):
    _files(tmp_path)
    before = sorted(os.listdir(tmp_path))
    flags = {name: value and str(value).replace("{tmp}", str(tmp_path)) for name, value in flags.items()}
    status, error = run(**flags)
    assert status == 2
    last = error.strip().split("\n")[-1]
    assert last.startswith("error: ") and message in last and "Traceback" not in error
    assert sorted(os.listdir(tmp_path)) == before


def test_casing_can_be_overridden(run, tmp_path):
    _files(tmp_path)
    assert run("--allow_case_mismatch", vocab_file=f"{tmp_path}/cased")[0] == 0


def test_the_door_with_workers(goldens, tmp_path):
    root = goldens.parent.parent
    flags = ["--input_file=corpus.txt", f"--output_file={tmp_path}/out", "--vocab_file=vocab.txt", "--dupe_factor=1",
             "--num_shards=2", "--num_workers=2"]
    done = subprocess.run(
        [sys.executable, str(root / "create_pretraining_data.py"), *flags], cwd=goldens / "pretrain_data",
        capture_output=True, text=True, check=False, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["out", "out.meta.json"]


def test_help_is_quick_and_lists_the_flags(goldens):
    start = time.monotonic()
    door = goldens.parent.parent / "create_pretraining_data.py"
    done = subprocess.run([sys.executable, "-X", "importtime", str(door), "--help"], capture_output=True, text=True,
                          check=True)
    assert "--short_seq_prob" in done.stdout and "--num_shards" in done.stdout
    assert "tensorflow" not in done.stderr
    assert time.monotonic() - start < 5  # 0.3 s on an idle machine
