"""`run_ner.py`: labels learned are given back, a folder that is a model of its own, what is refused."""

import json
import os
import shutil

import numpy as np
import pytest
from absl import flags

from bert_tf import Predictor, checkpoint
from bert_tf.cli import run_ner as script

SMALL = dict(vocab_size=1500, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=64, type_vocab_size=2)
WORDS = "the quiet river crossed an old bridge while bright lanterns hung over every narrow street".split()
NAMES = {"river": "B-LOC", "bridge": "B-LOC", "street": "B-LOC", "lanterns": "B-OBJ"}


def sentences(count, seed, longest=12):
    """Lists of (word, label); every other "old" goes on with a name."""
    rng = np.random.RandomState(seed)
    made = []
    for _ in range(count):
        words = rng.choice(WORDS, rng.randint(3, longest))
        made.append([(word, NAMES.get(word, "O")) for word in words])
    return made


def write(path, rows, separator="\t"):
    path.write_text("\n".join("".join(f"{word}{separator}{label}\n" for word, label in row) for row in rows))


@pytest.fixture(scope="module")
def data(goldens, tmp_path_factory):
    """Files of 20, 6 and 5 sentences, one of them long; a config, a vocabulary."""
    folder = tmp_path_factory.mktemp("data")
    write(folder / "train.tsv", [*sentences(19, 1), *sentences(1, 2, 80)])
    write(folder / "devel.tsv", sentences(6, 3, 60))
    write(folder / "test.txt", sentences(5, 4), " ")
    (folder / "config.json").write_text(json.dumps(SMALL))
    shutil.copy(goldens / "tiny_ckpt/vocab.txt", folder / "vocab.txt")
    return folder


def command(data, out, words, flags):
    usual = {"data_dir": data, "output_dir": out, "bert_config_file": data / "config.json",
             "vocab_file": data / "vocab.txt", "max_seq_length": 32, "doc_stride": 12, "train_batch_size": 4,
             "num_train_epochs": 2, "learning_rate": 1e-3, "save_checkpoints_steps": 4}
    given = [f"--{name}={value}" for name, value in (usual | flags).items() if value is not None]
    return ["run_ner.py", *given, *words]


@pytest.fixture
def call(data, tmp_path, capsys, caplog):
    """`call("--do_train", seed=3, ...)` -> exit status, error lines, log; output goes to `out`."""
    def run(*words, **flags):
        caplog.clear()
        with caplog.at_level("INFO"):
            status = script.main(command(data, tmp_path / "out", words, flags))
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return status, errors, caplog.text

    return run


BARE = dict.fromkeys(("bert_config_file", "vocab_file", "max_seq_length", "doc_stride"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The folder of a run of two epochs."""
    folder = tmp_path_factory.mktemp("finished")
    assert script.main(command(data, folder, ["--do_train", "--do_eval", "--do_predict"], {})) == 0
    return folder


def results(path):
    return {name: float(value) for name, value in (line.split(" = ") for line in path.read_text().splitlines())}


def log_of(folder):
    return [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]


def snapshot(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Numbers.


def test_labels_that_were_learned_are_given_back(call, shared, tmp_path):
    """No shift by one, a word of several pieces and one of none, windows of a long sentence; spans cut the words."""
    tiny = shared("goldens/tiny_ckpt")
    rows = [[("unbelievable", "B-LOC"), ("Springfield", "I-LOC"), ("hung", "O"), ("\u200b", "B-OBJ"), ("old", "O")],
            sentences(1, 5, 70)[0]]
    write(tmp_path / "few.tsv", rows)
    few = dict.fromkeys(("train_file", "dev_file", "test_file"), tmp_path / "few.tsv")
    flags = {"init_checkpoint": checkpoint.find(tiny / "step2000"), "bert_config_file": tiny / "bert_config.json",
             "num_train_epochs": 60, "max_seq_length": 24, "save_checkpoints_steps": 1000, **few}
    status, errors, _ = call("--do_train", "--do_eval", "--do_predict", **flags)
    assert (status, errors) == (0, [])
    lines = (tmp_path / "out/predictions.conll").read_text().split("\n")
    assert [tuple(line.split("\t")) for line in lines if line] == [
        (word, label, label) for row in rows for word, label in row]
    assert results(tmp_path / "out/eval_results.txt")["f1"] == 1.0
    assert results(tmp_path / "out/test_results.txt")["token_accuracy"] == 1.0
    text = "  unbelievable Springfield   hung \u200b old"
    (answer, again) = Predictor(tmp_path / "out")([text, [word for word, _ in rows[0]]])
    assert answer["labels"] == again["labels"] == [label for _, label in rows[0]]
    assert [(entity["type"], text[entity["start"]:entity["end"]]) for entity in answer["entities"]] == [
        ("LOC", "unbelievable Springfield"), ("OBJ", "\u200b")]
    assert [(entity["start"], entity["end"]) for entity in again["entities"]] == [(0, 2), (3, 4)]
    assert all(0.5 < entity["score"] <= 1 for entity in answer["entities"])


@pytest.mark.parametrize("flags", [
    {"strategy": "mirrored", "virtual_devices": 2, "predict_batch_size": 3}, {"max_seq_length": 64}])
def test_batches_devices_and_windows_that_are_wide_enough_change_no_label(call, finished, tmp_path, flags):
    """The same weights; sentences of at most 12 words are whole in windows of 32 tokens as in those of 64."""
    shutil.copytree(finished, tmp_path / "out")
    info = json.loads((finished / "model.json").read_text())
    (tmp_path / "out/model.json").write_text(json.dumps({**info, "max_seq_length": 64}))
    assert call("--do_predict", **BARE | flags)[:2] == (0, [])
    assert (tmp_path / "out/predictions.conll").read_bytes() == (finished / "predictions.conll").read_bytes()
    found, before = (results(folder / "test_results.txt")["loss"] for folder in (tmp_path / "out", finished))
    assert abs(found - before) < 1e-5


# Folders.


def test_what_a_run_leaves(finished, data):
    assert set(os.listdir(finished)) >= {
        "bert_config.json", "checkpoint", "confusion.png", "curves.png", "eval_results.txt", "mistakes.tsv",
        "model.json", "predictions.conll", "report.txt", "run.json", "test_results.txt", "train_log.jsonl",
        "vocab.txt"}
    info = json.loads((finished / "model.json").read_text())
    assert info["labels"] == ["O", "B-LOC", "I-LOC", "B-OBJ", "I-OBJ"] and info["scheme"] in ("BIO", "IOB1")
    assert {"precision", "recall", "f1", "strict_f1", "token_accuracy", "loss", "global_step"} <= set(
        results(finished / "eval_results.txt"))
    source = (data / "test.txt").read_text().splitlines()
    written = (finished / "predictions.conll").read_text().splitlines()
    assert [line.rpartition(" ")[0] for line in written] == source


def test_the_folder_needs_no_other_flag(call, finished, tmp_path):
    names = ("predictions.conll", "test_results.txt", "eval_results.txt")
    before = {name: (finished / name).read_bytes() for name in names}
    assert call("--do_eval", "--do_predict", **BARE, init_checkpoint=finished)[:2] == (0, [])
    assert {name: (tmp_path / "out" / name).read_bytes() for name in names} == before


def test_what_another_test_file_left_does_not_stay(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    (tmp_path / "words.txt").write_text("river\nhung\n")
    assert call("--do_predict", **BARE, test_file=tmp_path / "words.txt")[:2] == (0, [])
    assert not {"test_results.txt", "report_test.txt", "confusion_test.png"} & set(os.listdir(tmp_path / "out"))
    lines = (tmp_path / "out/predictions.conll").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["river", "hung"]


def test_a_run_that_lost_its_end_goes_on_to_the_same_bytes(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    last = checkpoint.latest(tmp_path / "out")
    whole = (tmp_path / "out" / f"{os.path.basename(last)}.data-00000-of-00001").read_bytes()
    for prefix in checkpoint.list_prefixes(tmp_path / "out"):
        if checkpoint.step_of(prefix) != 4:
            checkpoint.delete(prefix)
    checkpoint.update_state(tmp_path / "out", "model.ckpt-4")
    status, errors, log = call("--do_train")
    assert (status, errors) == (0, []) and "going on from" in log
    assert (tmp_path / "out" / f"{os.path.basename(last)}.data-00000-of-00001").read_bytes() == whole
    status, _, log = call("--do_train")
    assert status == 0 and "complete at step" in log


def test_renamed_labels_are_another_run_also_to_go_on(call, data, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    (tmp_path / "renamed.tsv").write_text((data / "train.tsv").read_text().replace("B-OBJ", "B-ART"))
    before = snapshot(tmp_path / "out")
    status, errors, _ = call("--do_train", "--resume", train_file=tmp_path / "renamed.tsv", num_train_epochs=3)
    assert status == 2 and "holds a run with other labels" in errors[0] and snapshot(tmp_path / "out") == before


def test_what_stands_beside_the_words_of_a_test_file_can_be_passed_over(call, finished, tmp_path):
    (tmp_path / "tagged.tsv").write_text("river\tNOUN\nhung\tVERB\n")
    flags = {**BARE, "init_checkpoint": finished, "test_file": tmp_path / "tagged.tsv"}
    status, errors, _ = call("--do_predict", **flags)
    assert status == 2 and "tagged.tsv:1" in errors[0] and "(--unlabelled_test passes them over)" in errors[0]
    assert call("--do_predict", "--unlabelled_test", **flags)[:2] == (0, [])
    rows = [line.split("\t") for line in (tmp_path / "out/predictions.conll").read_text().splitlines()]
    assert [row[:2] for row in rows] == [["river", "NOUN"], ["hung", "VERB"]] and len(rows[0]) == 3


def test_a_model_that_says_one_label_alone_is_named(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    prefix = checkpoint.latest(tmp_path / "out")
    weights = dict(checkpoint.read(prefix))
    weights["output_bias"] = 100 * np.eye(1, len(weights["output_bias"]), dtype=np.float32)[0]
    checkpoint.write(prefix, weights)
    status, _, log = call("--do_eval", **BARE)
    assert status == 0 and "every word is taken for O; train for more epochs" in log


def test_seeds_and_early_stopping_by_f1(call, tmp_path):
    status, errors, log = call("--do_train", "--do_eval", "--do_predict", "--group_by_length", num_seeds=2,
                               num_train_epochs=1, eval_every_steps=2, early_stopping_patience=2)
    assert (status, errors) == (0, []) and "was the best: its weights are used" in log
    lines = (tmp_path / "out/seeds.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["seed", "12345", "12346", "mean", "standard deviation"]
    assert (tmp_path / "out/predictions.conll").exists()


def test_plain_labels_in_json_lines_with_the_document_around(call, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for split, count in (("train", 12), ("dev", 4), ("test", 3)):
        (folder / f"{split}.jsonl").write_text("".join(
            json.dumps({"tokens": [word for word, _ in row], "labels": ["N" if label != "O" else "x"
                                                                        for _, label in row]}) + "\n"
            for row in sentences(count, count)))
    status, errors, log = call("--do_train", "--do_eval", "--do_predict", "--document_context", data_dir=folder)
    assert (status, errors) == (0, []) and "plain labels" in log
    assert set(results(tmp_path / "out/eval_results.txt")) == {"global_step", "loss", "macro_f1", "token_accuracy"}
    (answer,) = Predictor(tmp_path / "out")(["a river"])
    assert set(answer) == {"words", "labels", "probabilities"} and set(answer["labels"]) <= {"N", "x"}
    assert Predictor(tmp_path / "out")([]) == [] and Predictor(tmp_path / "out")(["  "])[0]["words"] == []


# What is refused, before anything is computed or written.


@pytest.fixture
def no_compute(monkeypatch):
    from bert_tf import runtime

    def fail(self):
        raise AssertionError("computing has begun")

    monkeypatch.setattr(runtime.Runtime, "start", fail)


def bad_files(data, folder):
    folder.mkdir()
    (folder / "empty.tsv").write_text("")
    (folder / "short.tsv").write_text("a\tO\nb\n")
    (folder / "other.tsv").write_text("a\tO\nb\tB-PER\n")
    (folder / "plain.tsv").write_text("a\tnoun\nb\tverb\n")
    (folder / "both").mkdir()
    for name in ("train.tsv", "train.conll"):
        shutil.copy(data / "train.tsv", folder / "both" / name)
    return folder


REFUSED = [
    ([], {}, "nothing to do"),
    (["--do_train"], {"data_dir": None}, "--data_dir is missing: the folder with the files (or give --train_file)"),
    (["--do_train"], {"train_file": "{bad}/none.tsv"}, "--train_file={bad}/none.tsv: no such file"),
    (["--do_train"], {"data_dir": "{bad}"}, "--data_dir={bad} holds no train with an ending of"),
    (["--do_train"], {"data_dir": "{bad}/both"}, "holds both"),
    (["--do_train"], {"train_file": "{bad}/empty.tsv"}, "{bad}/empty.tsv: the file is empty"),
    (["--do_train"], {"train_file": "{bad}/short.tsv"}, "{bad}/short.tsv:2"),
    (["--do_train", "--do_eval"], {"dev_file": "{bad}/other.tsv"}, "{bad}/other.tsv:2"),
    (["--do_train", "--do_eval"], {"dev_file": "{bad}/plain.tsv"}, "{bad}/plain.tsv:1"),
    (["--do_train"], {"label_column": "7"}, "label_column"),
    (["--do_train"], {"max_seq_length": 65}, "must lie between 3 and the model's 64 positions"),
    (["--do_train"], {"doc_stride": 0}, "--doc_stride=0 must be at least 1"),
    (["--do_train"], {"eval_every_steps": 1, "best_metric": "accuracy"}, "--best_metric=accuracy is none of"),
    (["--do_predict"], {}, "holds no checkpoint, and no --init_checkpoint is given"),
    (["--do_predict"], {**BARE, "init_checkpoint": "{finished}", "max_seq_length": 48}, "was trained with 32"),
]


@pytest.mark.parametrize("words, flags, part", REFUSED)
def test_what_is_refused_is_one_line_and_leaves_nothing(call, no_compute, data, finished, tmp_path, words, flags,
                                                        part):
    names = {"bad": bad_files(data, tmp_path / "bad"), "finished": finished}
    flags = {name: value.format(**names) if isinstance(value, str) else value for name, value in flags.items()}
    before = snapshot(tmp_path)
    status, errors, _ = call(*words, **flags)
    assert status == 2 and len(errors) == 1 and part.format(**names) in errors[0]
    assert snapshot(tmp_path) == before and not (tmp_path / "out").exists()


def test_a_model_that_is_no_tagger_is_refused(call, shared):
    tiny = shared("goldens/tiny_ckpt")
    status, errors, _ = call("--do_predict", init_checkpoint=checkpoint.find(tiny / "step2000"),
                             bert_config_file=tiny / "bert_config.json", vocab_file=tiny / "vocab.txt")
    assert status == 2 and len(errors) == 1 and "not the folder of a tagger" in errors[0]


def test_defaults():
    values = flags.FlagValues()
    script.define_flags(values)
    values(["run_ner.py", "--output_dir=o"])
    assert values.best_metric == "f1" and values.train_batch_size == 32 and values.learning_rate == 5e-5
