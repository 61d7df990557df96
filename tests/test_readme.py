"""Every command and every piece of Python that the README shows runs as it is printed there."""

import json
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest

from bert_tf import checkpoint, modeling
from bert_tf.cli import (
    convert_checkpoint,
    create_pretraining_data,
    extract_features,
    run_classifier,
    run_ner,
    run_pretraining,
    run_squad,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RELEASED = "uncased_L-12_H-768_A-12"
DOORS = {"convert_checkpoint.py": convert_checkpoint, "create_pretraining_data.py": create_pretraining_data,
         "extract_features.py": extract_features, "run_classifier.py": run_classifier,
         "run_pretraining.py": run_pretraining, "run_squad.py": run_squad,
         "run_ner.py": run_ner}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands():
    return [line for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, goldens):
    """Where a reader of the README stands: some text, a folder for a model, a released model (here a tiny one)."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "my_text").mkdir()
    shutil.copy(goldens / "pretrain_data/corpus.txt", folder / "my_text/corpus.txt")
    (folder / "my_model").mkdir()
    (config,) = blocks("json")
    (folder / "my_model/bert_config.json").write_text(config)
    (folder / RELEASED).mkdir()
    shutil.copy(goldens / "tiny_ckpt/vocab.txt", folder / RELEASED / "vocab.txt")
    tiny = json.loads((goldens / "tiny_ckpt/bert_config.json").read_text()) | {
        "num_hidden_layers": 4, "max_position_embeddings": 512}
    (folder / RELEASED / "bert_config.json").write_text(json.dumps(tiny))
    model = modeling.BertForPreTraining(modeling.BertConfig.from_dict(tiny))
    checkpoint.write(folder / RELEASED / "bert_model.ckpt", {weight.path: weight for weight in model.weights})
    make_mrpc(folder / "glue/MRPC")
    (folder / "reviews").mkdir()
    for split in ("train", "dev"):
        (folder / f"reviews/{split}.csv").write_text("text,verdict\n" + '"a, b",good\nc,bad\n' * 3)
    make_squad(folder / "squad")
    (folder / "ner").mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"ner/{split}.conll").write_text("Ada B-PER\nsang O\n\nin O\nLondon B-LOC\n")
    (folder / "input.txt").write_text("a short line\nanother ||| pair\n")
    return folder


def make_mrpc(folder):
    """Files in the form of MRPC, a few made rows each."""
    folder.mkdir(parents=True)
    for split, head in (("train", "Quality"), ("dev", "Quality"), ("test", "index")):
        rows = [f"{number % 2}\t{number}\t{number}\tsome text {number}\tsome other text" for number in range(6)]
        (folder / f"{split}.tsv").write_text("\n".join([f"{head}\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows]) + "\n")


def make_squad(folder):
    """Files in the form of SQuAD 2.0, of two questions each."""
    folder.mkdir()
    qas = [{"id": "a", "question": "who?", "is_impossible": False, "answers": [{"text": "you", "answer_start": 0}]},
           {"id": "b", "question": "when?", "is_impossible": True, "answers": []}]
    for split in ("train", "dev"):
        (folder / f"{split}-v2.0.json").write_text(json.dumps(
            {"data": [{"paragraphs": [{"context": "you did it", "qas": qas}]}]}))


@pytest.mark.parametrize("command", commands())
def test_command(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    python, script, *arguments = shlex.split(command)
    assert python == "python"
    if script in DOORS:
        assert DOORS[script].main([script, *arguments]) == 0
    else:
        subprocess.run([sys.executable, ROOT / script, *arguments], check=True, timeout=120)


def test_commands_left_what_the_readme_says(folder):
    left = {path.name for path in (folder / "my_model/run").iterdir()}
    assert {"eval_results.txt", "train_log.jsonl", "curves.png", "checkpoint", "bert_config.json", "vocab.txt"} <= left
    released_files = [(folder / name).read_bytes() for name in (
        f"{RELEASED}/bert_model.ckpt.data-00000-of-00001", "back/bert_model.ckpt.data-00000-of-00001")]
    assert released_files[0] == released_files[1]


def test_python(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(folder)
    *_, code = blocks("python")
    (tmp_path / "readme.py").write_text(code)
    names = runpy.run_path(str(tmp_path / "readme.py"))
    assert "71/71 restored" in capsys.readouterr().out
    assert names["out"]["sequence_output"].shape == (1, len(names["ids"]) + 2, 64)
    assert len(names["spans"]) == len(names["ids"])


def test_python_that_asks_a_predictor(folder, monkeypatch):
    monkeypatch.chdir(folder)
    code, *_ = blocks("python")
    names = {}
    exec(code, names)
    answers = names["predictor"](["One text.", ("The first of a pair.", "The second.")])
    assert [set(answer) for answer in answers] == [{"label", "probabilities", "truncated"}] * 2


def test_python_that_asks_a_question(folder, monkeypatch):
    monkeypatch.chdir(folder)
    _, code, *_ = blocks("python")
    names = {}
    exec(code, names)
    (answer,) = names["reader"]([("who?", "you did it")])
    assert set(answer) == {"text", "start", "end", "probability", "no_answer_probability", "truncated"}
    assert answer["text"] in "you did it"


def test_python_that_asks_for_names(folder, monkeypatch):
    monkeypatch.chdir(folder)
    code = blocks("python")[2]
    names = {}
    exec(code, names)
    (answer,) = names["tagger"](["Ada sang in London"])
    assert set(answer) == {"words", "labels", "probabilities", "entities"} and len(answer["labels"]) == 4


def test_first_steps_are_scripts_that_exist():
    for command in ("bash scripts/quickstart.sh", "bash scripts/test.sh"):
        assert command in README and (ROOT / command.split()[1]).exists()
