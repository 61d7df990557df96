"""`run_squad.py`: the original's answers, a folder that is a model of its own, what is refused."""

import gzip
import json
import os
import shutil
import types

import numpy as np
import pytest
from absl import flags

from bert_tf import Predictor, checkpoint
from bert_tf.cli import run_squad as script

SMALL = dict(vocab_size=1500, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=64, type_vocab_size=2)
WORDS = "the quiet river crossed an old bridge while bright lanterns hung over every narrow street".split()
FILES = ["null_odds.json", "nbest_predictions.json", "predictions.json"]


def paragraph(rng, number, num_words):
    """A paragraph with two questions, the second of which cannot be answered."""
    words = list(rng.choice(WORDS, num_words))
    at = rng.randint(num_words - 2)
    start = len(" ".join(words[:at])) + bool(at)
    answer = {"text": " ".join(words[at:at + 2]), "answer_start": start}
    return {"context": " ".join(words), "qas": [
        {"id": f"q{number}", "question": f"what is old {WORDS[number % 9]}", "answers": [answer],
         "is_impossible": False},
        {"id": f"n{number}", "question": f"who hung {WORDS[number % 7]}", "answers": [], "is_impossible": True}]}


def write(path, paragraphs, **changes):
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}], **changes}))


@pytest.fixture(scope="module")
def data(goldens, tmp_path_factory):
    """Files of 12, 4 and 1 paragraphs, the last without an impossible question; a config, a vocabulary."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.RandomState(4)
    for name, lengths in (("train", [10] * 11 + [60]), ("dev", [9, 12, 90, 7])):
        write(folder / f"{name}.json", [paragraph(rng, number, length) for number, length in enumerate(lengths)])
    answered = paragraph(rng, 0, 12)
    write(folder / "answered.json", [{**answered, "qas": answered["qas"][:1]}])
    (folder / "config.json").write_text(json.dumps(SMALL))
    shutil.copy(goldens / "tiny_ckpt/vocab.txt", folder / "vocab.txt")
    return folder


def command(data, out, words, flags):
    usual = {"train_file": data / "train.json", "predict_file": data / "dev.json", "output_dir": out,
             "bert_config_file": data / "config.json", "vocab_file": data / "vocab.txt", "max_seq_length": 40,
             "doc_stride": 12, "max_query_length": 10, "train_batch_size": 4, "num_train_epochs": 2,
             "learning_rate": 1e-3, "save_checkpoints_steps": 5, "version_2_with_negative": True}
    given = [f"--{name}={value}" for name, value in (usual | flags).items() if value is not None]
    return ["run_squad.py", *given, *words]


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


# What is left out where a model's folder says it.
BARE = dict.fromkeys(("train_file", "bert_config_file", "vocab_file", "max_seq_length", "doc_stride",
                      "max_query_length", "version_2_with_negative"))


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


@pytest.mark.parametrize("span_softmax", ["tokens", "all"])
def test_the_recorded_checkpoint_gives_the_recorded_answers(call, shared, tmp_path, span_softmax):
    """Through padding or without it; the texts exactly, logits and probabilities as far as rounding goes."""
    recorded, tiny = shared("goldens/e2e/squad_v2"), shared("goldens/tiny_ckpt")
    status, errors, log = call(
        "--do_predict", init_checkpoint=recorded, predict_file=shared("goldens/squad/dev-v2.0.json"),
        bert_config_file=tiny / "bert_config.json", vocab_file=tiny / "vocab.txt", max_seq_length=96, doc_stride=32,
        max_query_length=24, span_softmax=span_softmax)
    assert (status, errors) == (0, []) and "41/41 restored" in log
    assert sorted(os.listdir(tmp_path / "out")) == sorted(FILES)
    assert (tmp_path / "out/predictions.json").read_bytes() == (recorded / "predictions.json").read_bytes()
    found, expected = (json.loads(path.read_text()) for path in (tmp_path / "out/null_odds.json",
                                                                 recorded / "null_odds.json"))
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=0, atol=1e-5)
    found = json.loads((tmp_path / "out/nbest_predictions.json").read_text())
    expected = json.loads(gzip.decompress((recorded / "nbest_predictions.json.gz").read_bytes()))
    assert list(found) == list(expected)
    for qas_id, entries in expected.items():
        assert [entry["text"] for entry in found[qas_id]] == [entry["text"] for entry in entries]
        for name in ("probability", "start_logit", "end_logit"):
            np.testing.assert_allclose([entry[name] for entry in found[qas_id]], [entry[name] for entry in entries],
                                       rtol=0, atol=1e-5)


def test_answers_that_were_learned_are_given_back_whole(call, data, shared, tmp_path):
    """No shift by one, in windows of a long context either; cut out of the context by what its folder says alone."""
    tiny = shared("goldens/tiny_ckpt")
    paragraphs = json.loads((data / "train.json").read_text())["data"][0]["paragraphs"]
    few = [{**paragraph, "qas": paragraph["qas"][:1]} for paragraph in paragraphs[-4:]]
    write(tmp_path / "few.json", few)
    flags = {"init_checkpoint": checkpoint.find(tiny / "step2000"), "bert_config_file": tiny / "bert_config.json",
             "train_file": tmp_path / "few.json", "predict_file": tmp_path / "few.json", "num_train_epochs": 25,
             "version_2_with_negative": None, "max_seq_length": 48}
    status, errors, _ = call("--do_train", "--do_eval", "--do_predict", "--drop_windows_without_answer", **flags)
    assert (status, errors) == (0, [])
    expected = {paragraph["qas"][0]["id"]: paragraph["qas"][0]["answers"][0]["text"] for paragraph in few}
    assert json.loads((tmp_path / "out/predictions.json").read_text()) == expected
    assert results(tmp_path / "out/eval_results.txt").items() >= {"exact_match": 100.0, "f1": 100.0}.items()
    assert len((tmp_path / "out/mistakes.tsv").read_text().splitlines()) == 1
    pairs = [(paragraph["qas"][0]["question"], paragraph["context"]) for paragraph in few]
    for (_, context), text, answer in zip(pairs, expected.values(), Predictor(tmp_path / "out")(pairs), strict=True):
        assert answer["text"] == text == context[answer["start"]:answer["end"]] and not answer["truncated"]
        assert 0.5 < answer["probability"] <= 1 and "no_answer_probability" not in answer


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """The folder of a run without dropout, on one device at once."""
    (data / "still.json").write_text(json.dumps({**SMALL, "hidden_dropout_prob": 0.0,
                                                 "attention_probs_dropout_prob": 0.0}))
    folder = tmp_path_factory.mktemp("plain")
    flags = {"num_train_epochs": 1, "bert_config_file": data / "still.json"}
    assert script.main(command(data, folder, ["--do_train", "--do_predict"], flags)) == 0
    return folder


@pytest.mark.parametrize("flags", [
    {"gradient_accumulation_steps": 2, "predict_batch_size": 3}, {"strategy": "mirrored", "virtual_devices": 2}])
def test_dropout_off_devices_micro_batches_and_batch_sizes_change_no_answer(call, data, plain, tmp_path, flags):
    flags = {"num_train_epochs": 1, "bert_config_file": data / "still.json", **flags}
    assert call("--do_train", "--do_predict", **flags)[:2] == (0, [])
    found, expected = (list(json.loads((folder / "null_odds.json").read_text()).values())
                       for folder in (tmp_path / "out", plain))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert (tmp_path / "out/predictions.json").read_text() == (plain / "predictions.json").read_text()


# Folders.


def test_what_a_run_leaves(finished, data):
    assert set(os.listdir(finished)) >= {
        "bert_config.json", "checkpoint", "curves.png", "eval_results.txt", "mistakes.tsv", "model.json", "run.json",
        "train_log.jsonl", "vocab.txt", *FILES}
    info = json.loads((finished / "model.json").read_text())
    found = results(finished / "eval_results.txt")
    assert info["kind"] == "span" and info["version_2_with_negative"] and info["doc_stride"] == 12
    assert found["total"] == 8 and found["HasAns_total"] == found["NoAns_total"] == 4
    assert found["best_f1"] >= max(found["f1"], found["NoAns_total"] / found["total"] * 100)
    # The answers are those of the threshold that was found.
    said = json.loads((finished / "predictions.json").read_text())
    odds = json.loads((finished / "null_odds.json").read_text())
    assert {name for name, text in said.items() if not text} == {
        name for name, value in odds.items() if value > info["null_score_diff_threshold"]}


def test_the_folder_needs_no_other_flag(call, finished, tmp_path):
    before = {name: (finished / name).read_bytes() for name in FILES}
    assert call("--do_predict", **BARE, init_checkpoint=finished)[:2] == (0, [])
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == before
    # What a flag says holds for that run alone.
    shutil.copytree(finished, tmp_path / "copy")
    assert call("--do_eval", "--do_predict", **BARE, output_dir=tmp_path / "copy",
                null_score_diff_threshold=-1e6)[:2] == (0, [])
    assert set(json.loads((tmp_path / "copy/predictions.json").read_text()).values()) == {""}
    assert (tmp_path / "copy/model.json").read_bytes() == (finished / "model.json").read_bytes()


def test_a_threshold_belongs_to_the_weights_it_was_found_for(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    first = (tmp_path / "out/eval_results.txt").read_bytes()
    assert call("--do_train", "--do_eval", "--do_predict")[:2] == (0, [])  # complete; the scores are those of before
    assert (tmp_path / "out/eval_results.txt").read_bytes() == first
    assert "null_score_diff_threshold" in json.loads((tmp_path / "out/model.json").read_text())
    assert call("--do_train", "--resume", num_train_epochs=2.2)[:2] == (0, [])
    assert "null_score_diff_threshold" not in json.loads((tmp_path / "out/model.json").read_text())
    assert not (tmp_path / "out/eval_results.txt").exists()


def test_the_predictor_gives_the_answers_of_the_script(finished, data):
    said = json.loads((finished / "predictions.json").read_text())
    paragraphs = json.loads((data / "dev.json").read_text())["data"][0]["paragraphs"]
    asked = {qa["id"]: (qa["question"], paragraph["context"]) for paragraph in paragraphs for qa in paragraph["qas"]}
    for (name, (_, context)), answer in zip(asked.items(), Predictor(finished)(list(asked.values())), strict=True):
        assert answer["text"] == said[name]
        assert answer["text"] == "" if answer["start"] is None else context[answer["start"]:answer["end"]]
        assert 0 <= answer["no_answer_probability"] <= 1


def test_the_same_command_again_is_complete(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    status, errors, log = call("--do_train")
    assert (status, errors) == (0, []) and "complete at step" in log and snapshot(tmp_path / "out") == before


def test_a_run_that_lost_its_end_goes_on_to_the_same_bytes(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    last = checkpoint.latest(tmp_path / "out")
    whole, losses = dict(checkpoint.read(last)), [row["loss"] for row in log_of(tmp_path / "out")]
    for prefix in checkpoint.list_prefixes(tmp_path / "out"):
        if checkpoint.step_of(prefix) != 5:
            checkpoint.delete(prefix)
    checkpoint.update_state(tmp_path / "out", "model.ckpt-5")
    status, errors, log = call("--do_train")
    assert (status, errors) == (0, []) and "going on from" in log
    assert checkpoint.latest(tmp_path / "out") == last and [row["loss"] for row in log_of(tmp_path / "out")] == losses
    again = dict(checkpoint.read(last))
    assert all(np.array_equal(again[name], values) for name, values in whole.items())


def test_seeds_are_compared_and_the_best_is_kept(call, tmp_path):
    status, errors, _ = call("--do_train", "--do_eval", "--do_predict", num_seeds=2, num_train_epochs=1)
    assert (status, errors) == (0, [])
    lines = (tmp_path / "out/seeds.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["seed", "12345", "12346", "mean", "standard deviation"]
    assert "best_f1" in lines[0] and (tmp_path / "out/predictions.json").exists()
    best = max(lines[1:3], key=lambda line: float(line.split("\t")[lines[0].split("\t").index("best_f1")]))
    seed = tmp_path / f"out/seed_{best.split(chr(9))[0]}"
    assert (tmp_path / "out/model.json").read_bytes() == (seed / "model.json").read_bytes()


def test_the_best_step_is_what_is_evaluated_and_answers(call, tmp_path):
    status, errors, log = call("--do_train", "--do_predict", eval_every_steps=5, best_metric="best_f1")
    assert (status, errors) == (0, []) and "was the best: its weights are used" in log
    rows = [json.loads(line) for line in (tmp_path / "out/eval_log.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: row["best_f1"])
    assert best["step"] != rows[-1]["step"], "else the answers would be those of the last step anyway"
    before = {name: (tmp_path / "out" / name).read_bytes() for name in FILES}
    assert call("--do_eval", "--do_predict", **BARE, null_score_diff_threshold=0)[:2] == (0, [])
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == before
    assert results(tmp_path / "out/eval_results.txt")["global_step"] == best["step"]
    # So it stays where nothing is left to train, whether the best is asked for or not, or by another metric.
    log = (tmp_path / "out/eval_log.jsonl").read_bytes()
    for asked in ({}, {"eval_every_steps": 5, "best_metric": "f1"}):
        assert call("--do_train", "--do_eval", "--do_predict", null_score_diff_threshold=0, **asked)[:2] == (0, [])
        assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == before
        assert (tmp_path / "out/eval_log.jsonl").read_bytes() == log


def test_the_threshold_of_a_complete_run_is_the_folders(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    info = json.loads((finished / "model.json").read_text())
    (tmp_path / "out/model.json").write_text(json.dumps({**info, "null_score_diff_threshold": -1e9}))
    for words, left_out in ((["--do_train"], {}), ([], BARE)):
        assert call("--do_predict", *words, **left_out)[:2] == (0, [])
        assert set(json.loads((tmp_path / "out/predictions.json").read_text()).values()) == {""}
    # It is that of the best weights alone.
    info |= {"null_score_diff_threshold": -1e9, "best_checkpoint": "model.ckpt-5"}
    (tmp_path / "out/model.json").write_text(json.dumps(info))
    newest = checkpoint.latest(tmp_path / "out")
    status, _, log = call("--do_predict", **BARE, init_checkpoint=newest, output_dir=tmp_path / "other")
    assert status == 0 and "was found for other weights of the folder; 0 is used" in log
    assert (tmp_path / "other/predictions.json").read_bytes() == (finished / "predictions.json").read_bytes()


def test_evaluations_of_other_answers_or_by_other_rules_are_told_apart():
    from bert_tf.cli import squad

    def digest(answers=("a",), language="en", **settings):
        values = flags.FlagValues()
        script.define_flags(values)
        values(["run_squad.py", "--output_dir=o", *(f"--{name}={value}" for name, value in settings.items())])
        asked = types.SimpleNamespace(qas_id="q", answers=answers, is_impossible=False)
        dev = types.SimpleNamespace(features=types.SimpleNamespace(digest="d"), examples=[asked])
        return squad.digest_of(values, types.SimpleNamespace(language=language), dev)

    assert digest() == digest()
    others = digest(("b",)), digest(language="zh"), digest(max_answer_length=3), digest(null_score_diff_threshold=1)
    assert len({digest(), *others}) == 5


def test_a_model_that_answers_nothing_is_named(call, finished):
    for threshold, is_said in ((-1e9, True), (1e9, False)):
        status, _, log = call("--do_eval", **BARE, init_checkpoint=finished, null_score_diff_threshold=threshold)
        assert status == 0 and ("every question is taken to have no answer" in log) == is_said


def test_the_originals_count_of_steps(call, tmp_path):
    """24 questions in batches of 4, whatever the number of windows."""
    assert call("--do_train", "--original_steps")[:2] == (0, [])
    assert len(log_of(tmp_path / "out")) == 12


# What is refused, before anything is computed or written.


@pytest.fixture
def no_compute(monkeypatch):
    from bert_tf import runtime

    def fail(self):
        raise AssertionError("computing has begun")

    monkeypatch.setattr(runtime.Runtime, "start", fail)


def bad_files(data, folder):
    folder.mkdir()
    (folder / "broken.json").write_text('{"data": [')
    (folder / "deep.json").write_text('{"data": ' + "[" * 100000)
    (folder / "shape.json").write_text('{"data": [{"paragraphs": [{"context": "a"}]}]}')
    unanswered = json.loads((data / "answered.json").read_text())["data"][0]["paragraphs"]
    del unanswered[0]["qas"][0]["answers"]
    write(folder / "unanswered.json", unanswered)
    (folder / "wide.json").write_text(json.dumps({**SMALL, "vocab_size": 1400}))
    (folder / "one_segment.json").write_text(json.dumps({**SMALL, "type_vocab_size": 1}))
    return folder


REFUSED = [
    ([], {}, "nothing to do"),
    (["--do_train"], {"train_file": None}, "--do_train needs --train_file"),
    (["--do_predict"], {"predict_file": None}, "--do_predict needs --predict_file"),
    (["--do_train", "--do_eval"], {"predict_file": None}, "--do_eval needs --eval_file or --predict_file"),
    (["--do_train"], {"eval_every_steps": 1, "predict_file": None}, "--eval_every_steps needs --eval_file or"),
    (["--do_train"], {"train_file": "{bad}/deep.json"}, "{bad}/deep.json: not JSON"),
    (["--do_train"], {"train_file": "{bad}/none.json"}, "{bad}/none.json"),
    (["--do_train"], {"train_file": "{bad}/broken.json"}, "{bad}/broken.json"),
    (["--do_train"], {"train_file": "{bad}/shape.json"}, "{bad}/shape.json: data[0].paragraphs[0].qas is missing"),
    (["--do_train"], {"version_2_with_negative": None}, "pass --version_2_with_negative"),
    (["--do_train", "--do_eval"], {"predict_file": "{bad}/unanswered.json"}, "no question has a gold answer"),
    (["--do_train"], {"max_seq_length": 65}, "must lie between 5 and the model's 64 positions"),
    (["--do_train"], {"max_query_length": 37}, "must be greater than --max_query_length=37 + 3"),
    (["--do_train"], {"doc_stride": 0}, "--doc_stride=0 must be at least 1"),
    (["--do_train"], {"n_best_size": 0}, "--n_best_size=0 must be at least 1"),
    (["--do_train"], {"answer_text": "exact"}, "--answer_text=exact must be original or offsets"),
    (["--do_train"], {"language": "fr"}, "--language=fr must be en or zh"),
    (["--do_train"], {"span_softmax": "none"}, "--span_softmax=none must be tokens or all"),
    (["--do_train"], {"eval_every_steps": 1, "best_metric": "accuracy"}, "--best_metric=accuracy is none of"),
    (["--do_train", "--do_eval"], {"predict_file": "{data}/answered.json", "best_metric": "NoAns_f1"},
     "--best_metric=NoAns_f1 is none of exact, f1, HasAns_exact"),
    (["--do_train", "--do_eval"], {"num_seeds": 2, "best_metric": "total"}, "--best_metric=total is none of"),
    (["--do_train"], {"null_score_diff_threshold": "nan"}, "--null_score_diff_threshold=nan"),
    (["--do_train", "--do_eval", "--do_predict"], {
        "num_seeds": 2, "eval_file": "{data}/dev.json", "predict_file": "{bad}/none.json"}, "{bad}/none.json"),
    (["--do_train"], {"bert_config_file": "{bad}/wide.json"}, "has 1500 pieces, the model 1400"),
    (["--do_train"], {"bert_config_file": "{bad}/one_segment.json"}, "two segments, the model has one"),
    (["--do_train"], {"num_seeds": 2}, "give --do_train and --do_eval"),
    (["--do_predict"], {}, "holds no checkpoint, and no --init_checkpoint is given"),
    (["--do_predict"], {**BARE, "init_checkpoint": "{finished}", "max_seq_length": 48},
     "--max_seq_length=48, but {finished}/model.ckpt-"),
    (["--do_predict"], {**BARE, "init_checkpoint": "{finished}", "version_2_with_negative": False},
     "was trained with True; leave the flag out"),
]


@pytest.mark.parametrize("words, flags, part", REFUSED)
def test_what_is_refused_is_one_line_and_leaves_nothing(call, no_compute, data, finished, tmp_path, words, flags,
                                                        part):
    names = {"bad": bad_files(data, tmp_path / "bad"), "data": data, "finished": finished}
    flags = {name: value.format(**names) if isinstance(value, str) else value for name, value in flags.items()}
    before = snapshot(tmp_path)
    status, errors, _ = call(*words, **flags)
    assert status == 2 and len(errors) == 1 and part.format(**names) in errors[0]
    assert snapshot(tmp_path) == before and not (tmp_path / "out").exists()


def test_a_model_that_was_never_trained_answers_nothing(call, shared):
    tiny = shared("goldens/tiny_ckpt")
    status, errors, _ = call("--do_predict", init_checkpoint=checkpoint.find(tiny / "step2000"),
                             bert_config_file=tiny / "bert_config.json", vocab_file=tiny / "vocab.txt")
    assert status == 2 and len(errors) == 1 and "cls/squad/output_weights" in errors[0]


def test_defaults_are_the_originals():
    values = flags.FlagValues()
    script.define_flags(values)
    values(["run_squad.py", "--output_dir=o"])
    original = dict(train_batch_size=32, predict_batch_size=8, learning_rate=5e-5, num_train_epochs=3.0,
                    warmup_proportion=0.1, save_checkpoints_steps=1000, n_best_size=20, max_answer_length=30)
    assert {name: values[name].value for name in original} == original
