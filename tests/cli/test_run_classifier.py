"""`run_classifier.py`: the original's numbers, a folder that is a model of its own, what is refused."""

import json
import os
import shutil

import numpy as np
import pytest
from absl import flags

from bert_tf import checkpoint
from bert_tf.cli import run_classifier as script

SMALL = dict(vocab_size=1500, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=64, type_vocab_size=2)
WORDS = "the quiet river crossed an old bridge while bright lanterns hung over every narrow street".split()


def sentence(rng, length):
    return " ".join(rng.choice(WORDS, length))


def write_pairs(path, header, count, seed, row):
    """A file of `count` rows that `row(number, text_a, text_b, rng)` makes."""
    rng = np.random.RandomState(seed)
    lines = [header] + ["\t".join(row(number, sentence(rng, rng.randint(3, 20)), sentence(rng, 5), rng))
                        for number in range(count)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(goldens, tmp_path_factory):
    """Small data in the columns of MRPC (21, 10 and 7 rows), STS-B and MNLI; a small config and a vocabulary."""
    folder = tmp_path_factory.mktemp("data")
    for split, count in (("train", 21), ("dev", 10), ("test", 7)):
        write_pairs(folder / f"MRPC/{split}.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", count, count,
                    lambda number, a, b, rng: (str(number % 2), "1", "2", a, b))
        write_pairs(folder / f"STS-B/{split}.tsv", "\t".join("abcdefghij"), count, count,
                    lambda number, a, b, rng: (*"abcdefg", a, b, f"{rng.uniform(0, 5):.3f}"))
    labels = ("contradiction", "entailment", "neutral")
    for split, count in (("train", 9), ("dev_matched", 6), ("dev_mismatched", 5), ("test_matched", 4),
                         ("test_mismatched", 3)):
        write_pairs(folder / f"MNLI/{split}.tsv", "\t".join("abcdefghijk"), count, count,
                    lambda number, a, b, rng: (*"abcdefgh", a, b, labels[number % 3]))
    write_pairs(folder / "AX/diagnostic.tsv", "index\tsentence1\tsentence2", 4, 4,
                lambda number, a, b, rng: (str(number), a, b))
    (folder / "config.json").write_text(json.dumps(SMALL))
    shutil.copy(goldens / "pretrain_data/vocab.txt", folder / "vocab.txt")
    return folder


USUAL = {"task_name": "mrpc", "max_seq_length": 32, "train_batch_size": 4, "eval_batch_size": 4,
         "predict_batch_size": 3, "num_train_epochs": 2, "save_checkpoints_steps": 4, "learning_rate": 1e-3}


def command(data, output_dir, words, flags):
    usual = {"data_dir": data / "MRPC", "bert_config_file": data / "config.json", "vocab_file": data / "vocab.txt",
             "output_dir": output_dir, **USUAL}
    given = [f"--{name}={value}" for name, value in (usual | flags).items() if value is not None]
    return ["run_classifier.py", *given, *words]


def parsed(*words):
    """The script's flags with these values."""
    values = flags.FlagValues()
    script.define_flags(values)
    values(["run_classifier.py", *words])
    return values


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
BARE = dict.fromkeys(("task_name", "max_seq_length", "bert_config_file", "vocab_file"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The folder of a run of two epochs, 11 steps."""
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


def test_the_recorded_checkpoint_gives_the_recorded_results(call, shared, tmp_path):
    recorded, tiny = shared("goldens/e2e/mrpc"), shared("goldens/tiny_ckpt")
    status, errors, log = call(
        "--do_eval", "--do_predict", data_dir=shared("goldens/glue_data/MRPC"), init_checkpoint=recorded,
        bert_config_file=tiny / "bert_config.json", vocab_file=tiny / "vocab.txt", max_seq_length=64,
        eval_batch_size=8, predict_batch_size=8)
    assert (status, errors) == (0, []) and "41/41 restored" in log
    assert sorted(os.listdir(tmp_path / "out")) == [
        "MRPC.tsv", "confusion.png", "eval_results.txt", "mistakes.tsv", "predictions.tsv", "report.txt",
        "test_results.tsv"]
    found, expected = results(tmp_path / "out/eval_results.txt"), results(recorded / "eval_results.txt")
    assert set(found) == {*expected, "eval_f1"}
    for name, value in expected.items():
        assert abs(found[name] - value) < 1e-4, name
    found, expected = (np.loadtxt(folder / "test_results.tsv", delimiter="\t")
                       for folder in (tmp_path / "out", recorded))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows, batch_size, epochs, original, steps, warmup, examples", [
    (3668, 32, 3.0, False, 344, 34, 11004), (3668, 32, 3.0, True, 343, 34, 10976),
    (30, 1, 0.1, False, 3, 0, 3), (30, 8, 0.7, False, 3, 0, 21), (10, 4, 0.05, False, 1, 0, 1),
    (21, 4, 2.0, False, 11, 1, 42), (21, 4, 2.0, True, 10, 1, 40), (32, 32, 1e-5, False, 1, 0, 1)])
def test_the_length_of_training(rows, batch_size, epochs, original, steps, warmup, examples):
    from bert_tf.cli import fine_tuning, training

    values = parsed("--data_dir=a", "--output_dir=b", f"--train_batch_size={batch_size}",
                    f"--num_train_epochs={epochs}", f"--original_steps={original}")
    assert fine_tuning.make_plan(values, rows) == training.Plan(steps, warmup, examples)


def test_defaults_are_the_originals():
    from bert_tf.cli import classifier

    values = parsed("--output_dir=b")
    originals = {"data_dir": None, "bert_config_file": None, "task_name": None, "vocab_file": None, "output_dir": None,
                 "init_checkpoint": None, "do_train": False, "do_eval": False, "do_predict": False,
                 "train_batch_size": 32, "eval_batch_size": 8, "predict_batch_size": 8, "learning_rate": 5e-5,
                 "num_train_epochs": 3.0, "warmup_proportion": 0.1, "save_checkpoints_steps": 1000, "use_tpu": False,
                 "tpu_name": None, "tpu_zone": None, "gcp_project": None, "master": None, "num_tpu_cores": 8}
    assert {name: values[name].default for name in originals} == originals
    # Left to what a model's folder says; without one they are the original's, too.
    assert values["do_lower_case"].default is values["max_seq_length"].default is None
    assert classifier.MAX_SEQ_LENGTH == 128


# A run, and the model that it leaves.


def test_what_a_run_leaves(finished, data):
    left = set(os.listdir(finished))
    assert {name for name in left if not name.startswith("events.")} == {
        "bert_config.json", "vocab.txt", "model.json", "run.json", "train_log.jsonl", "curves.png", "checkpoint",
        "eval_results.txt", "test_results.tsv", "predictions.tsv", "MRPC.tsv", "report.txt", "confusion.png",
        "mistakes.tsv",
        *(f"model.ckpt-{step}.{part}" for step in (4, 8, 11) for part in ("index", "data-00000-of-00001"))}
    assert json.loads((finished / "model.json").read_text()) == {
        "task": "MRPC", "kind": "single", "labels": ["0", "1"], "max_seq_length": 32, "pooling": "cls",
        "do_lower_case": True, "strip_accents": True}
    assert (finished / "vocab.txt").read_bytes() == (data / "vocab.txt").read_bytes()
    held = checkpoint.list_variables(f"{finished}/model.ckpt-11")
    assert held["output_weights"].shape == (2, 16) and held["output_bias/adam_v"].shape == (2,)
    assert set(results(finished / "eval_results.txt")) == {
        "eval_accuracy", "eval_f1", "eval_loss", "global_step", "loss"}
    rows = np.loadtxt(finished / "test_results.tsv", delimiter="\t")
    assert rows.shape == (7, 2)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-6)


def test_every_example_is_trained_on_once_an_epoch_and_the_last_batch_is_short(finished):
    rows = log_of(finished)
    assert [row["examples"] for row in rows] == [4.0] * 10 + [2.0]
    assert [row["learning_rate"] for row in rows[:3]] == pytest.approx([0, 1e-3 * (1 - 1 / 11), 1e-3 * (1 - 2 / 11)])


def test_the_folder_needs_no_other_flag(call, finished, tmp_path):
    before = {name: (finished / name).read_text() for name in ("eval_results.txt", "test_results.tsv")}
    shutil.copytree(finished, tmp_path / "out")
    for name in before:
        (tmp_path / "out" / name).unlink()
    assert call("--do_eval", "--do_predict", **BARE)[:2] == (0, [])
    assert {name: (tmp_path / "out" / name).read_text() for name in before} == before
    assert call("--do_eval", "--do_predict", **BARE, init_checkpoint=finished, output_dir=tmp_path / "b")[0] == 0
    assert {name: (tmp_path / "b" / name).read_text() for name in before} == before


def test_the_same_command_again_is_complete(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    status, errors, log = call("--do_train")
    assert (status, errors) == (0, []) and "complete at step 11" in log
    assert snapshot(tmp_path / "out") == before


def test_a_run_that_lost_its_end_goes_on_to_the_same_bytes(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    for step in (8, 11):
        checkpoint.delete(f"{tmp_path}/out/model.ckpt-{step}")
    checkpoint.update_state(tmp_path / "out", "model.ckpt-4")
    status, errors, log = call("--do_train")
    assert (status, errors) == (0, []) and "going on from" in log
    for suffix in (".index", ".data-00000-of-00001"):
        assert (tmp_path / f"out/model.ckpt-11{suffix}").read_bytes() == (
            finished / f"model.ckpt-11{suffix}").read_bytes()
    assert [row["loss"] for row in log_of(tmp_path / "out")] == [row["loss"] for row in log_of(finished)]


@pytest.mark.parametrize("flags, part", [
    ({"num_train_epochs": 3}, "num_train_epochs 2.0 (now 3.0)"), ({"original_steps": True}, "original_steps"),
    ({"max_seq_length": 16}, "max_seq_length 32 (now 16)"), ({"warmup_proportion": 0.2}, "warmup_proportion"),
    ({"task_name": "QNLI", "data_dir": "{qnli}"}, 'task "MRPC" (now "QNLI")')])
def test_other_settings_are_refused_naming_what_differs(call, finished, tmp_path, flags, part):
    write_pairs(tmp_path / "QNLI/train.tsv", "a\tb\tc\td", 5, 5, lambda number, a, b, rng: ("0", a, b, "entailment"))
    shutil.copytree(finished, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    flags = {name: str(value).format(qnli=tmp_path / "QNLI") for name, value in flags.items()}
    status, errors, _ = call("--do_train", **flags)
    assert status == 2 and len(errors) == 1 and "holds a run with other settings" in errors[0] and part in errors[0]
    assert snapshot(tmp_path / "out") == before


def test_overwriting_trains_another_task_and_leaves_no_old_predictions(call, data, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    status, errors, log = call(
        "--do_train", "--do_eval", "--overwrite_output_dir", init_checkpoint=finished, data_dir=data / "MNLI",
        task_name="MNLI", num_train_epochs=1, eval_every_steps=2, best_metric="eval_accuracy")
    assert (status, errors) == (0, [])
    assert "random weights in what the checkpoint lacks: 2 (" in log and "was the best: its weights are used" in log
    assert not (tmp_path / "out/test_results.tsv").exists()
    assert set(results(tmp_path / "out/eval_results.txt")) == {
        "global_step", *(name + end for name in ("eval_accuracy", "eval_loss", "loss") for end in ("", "_mismatched"))}


@pytest.fixture(scope="module")
def mnli(data, tmp_path_factory):
    """The folder of a run of one epoch on MNLI."""
    folder = tmp_path_factory.mktemp("mnli")
    flags = {"data_dir": data / "MNLI", "task_name": "MNLI", "num_train_epochs": 1}
    assert script.main(command(data, folder, ["--do_train"], flags)) == 0
    return folder


def test_what_several_test_sets_and_other_tasks_give(call, data, mnli, tmp_path):
    shutil.copytree(mnli, tmp_path / "out")
    # Both test sets; a task with the same labels; fewer files than there may be.
    assert call("--do_predict", **BARE, data_dir=data / "MNLI")[:2] == (0, [])
    counts = [len((tmp_path / "out" / name).read_text().splitlines()) for name in (
        "test_results.tsv", "test_results_mismatched.tsv")]
    assert counts == [4, 3]
    status, errors, log = call("--do_predict", **{**BARE, "task_name": "AX"}, data_dir=data / "AX",
                               init_checkpoint=mnli, output_dir=tmp_path / "ax")
    assert (status, errors) == (0, []) and "was trained on MNLI, not on AX" in log
    assert np.loadtxt(tmp_path / "ax/test_results.tsv").shape == (4, 3)
    shutil.copytree(data / "MNLI", tmp_path / "MNLI")
    (tmp_path / "MNLI/dev_mismatched.tsv").unlink()
    status, errors, log = call("--do_eval", **BARE, data_dir=tmp_path / "MNLI")
    assert (status, errors) == (0, []) and "no dev_mismatched file of MNLI" in log
    assert set(results(tmp_path / "out/eval_results.txt")) == {"eval_accuracy", "eval_loss", "global_step", "loss"}
    # Another task's labels.
    status, errors, _ = call("--do_eval", **{**BARE, "task_name": "mrpc"})
    assert status == 2 and "was trained on MNLI, whose labels are ['contradiction'" in errors[0]


def test_scores_are_learned_and_predicted(call, data, tmp_path):
    status, errors, _ = call("--do_train", "--do_eval", "--do_predict", data_dir=data / "STS-B", task_name="sts-b",
                             num_train_epochs=15)
    assert (status, errors) == (0, [])
    losses = [row["loss"] for row in log_of(tmp_path / "out")]
    assert np.mean(losses[-10:]) < np.mean(losses[:5]) / 2
    assert set(results(tmp_path / "out/eval_results.txt")) == {
        "eval_loss", "eval_pearson", "eval_spearman", "global_step", "loss"}
    scores = np.loadtxt(tmp_path / "out/test_results.tsv")
    assert scores.shape == (7,) and 0.5 < scores.mean() < 4.5
    assert json.loads((tmp_path / "out/model.json").read_text())["labels"] == []


def test_the_best_step_is_what_is_evaluated_and_what_the_folder_is_from_then_on(call, data, finished, tmp_path):
    flags = {"eval_every_steps": 3, "best_metric": "eval_loss", "learning_rate": 0.5, "keep_checkpoint_max": 1}
    status, errors, log = call("--do_train", "--do_eval", **flags)
    evaluated = [json.loads(line) for line in (tmp_path / "out/eval_log.jsonl").read_text().splitlines()]
    assert (status, errors) == (0, []) and [row["step"] for row in evaluated] == [3, 6, 9, 11]
    best = min(evaluated, key=lambda row: row["eval_loss"])
    assert best["step"] != 11, "a rate this high should do harm"
    first = results(tmp_path / "out/eval_results.txt")
    assert first["global_step"] == best["step"] and first["eval_loss"] == pytest.approx(best["eval_loss"])
    # Also for the same command again, which has nothing to train, and for the folder alone.
    for words, more in ((["--do_train", "--do_eval"], flags), (["--do_eval"], BARE)):
        (tmp_path / "out/eval_results.txt").unlink()
        assert call(*words, **more)[:2] == (0, [])
        assert results(tmp_path / "out/eval_results.txt") == first


def test_a_run_that_ended_early_is_complete(call, tmp_path):
    flags = {"eval_every_steps": 1, "best_metric": "eval_loss", "learning_rate": 0.5, "early_stopping_patience": 2}
    status, errors, log = call("--do_train", **flags)
    assert (status, errors) == (0, []) and "training ends early" in log
    before = snapshot(tmp_path / "out")
    status, errors, log = call("--do_train", **flags)
    assert (status, errors) == (0, []) and "complete at step" in log
    assert snapshot(tmp_path / "out") == before
    for changed in ({"eval_every_steps": 0, "early_stopping_patience": 0, "best_metric": "loss"},
                    {"early_stopping_patience": 9}):  # nor is it gone on with by other evaluations
        status, errors, log = call("--do_train", **flags | changed)
        assert (status, errors) == (0, []) and "complete at step" in log and snapshot(tmp_path / "out") == before
    # As if it had been killed before it could note what was the best.
    info = json.loads((tmp_path / "out/model.json").read_text())
    del info["best_checkpoint"]
    (tmp_path / "out/model.json").write_text(json.dumps(info))
    status, errors, _ = call("--do_train", learning_rate=0.5)
    assert status == 2 and "whose best step --eval_every_steps is to choose; give the flag again" in errors[0]


def test_a_finished_run_goes_on_for_more_epochs_in_other_batches(call, finished, tmp_path):
    """42 examples in 11 steps of 4, the last one short, then 21 in 7 steps of 3."""
    shutil.copytree(finished, tmp_path / "out")
    flags = {"num_train_epochs": 3, "train_batch_size": 3}
    assert call("--do_train", "--resume", **flags)[:2] == (0, [])
    assert [row["examples"] for row in log_of(tmp_path / "out")] == [*[4] * 10, 2, *[3] * 7]
    status, _, log = call("--do_train", **flags)
    assert status == 0 and "complete at step 18" in log


@pytest.mark.parametrize("seen, step, batch_size, original, steps, warmup", [
    (80, 20, 4, False, 50, 5), (80, 20, 4, True, 50, 5), (80, 20, 8, False, 35, 2), (80, 10, 4, False, 40, 5),
    (6, 3, 4, False, 52, 7), (6, 3, 4, True, 51, 7), (250, 50, 4, False, 50, 5)])
def test_what_is_left_of_a_run_whose_batches_were_others(tmp_path, seen, step, batch_size, original, steps, warmup):
    """100 examples, two epochs, a tenth of them for the warm-up."""
    from bert_tf.cli import fine_tuning
    from bert_tf.training.state import EXAMPLES_SEEN

    prefix = str(tmp_path / f"model.ckpt-{step}")
    checkpoint.write(prefix, {EXAMPLES_SEEN: np.int64(seen), "global_step": np.int64(step)})
    values = parsed("--data_dir=a", f"--output_dir={tmp_path}", f"--train_batch_size={batch_size}",
                    "--num_train_epochs=2", f"--original_steps={original}")
    plan = fine_tuning.go_on(values, fine_tuning.make_plan(values, 100), prefix, 100)
    assert (plan.num_train_steps, plan.num_warmup_steps, plan.num_examples) == (steps, warmup, 200)


def test_all_seeds_are_compared_by_weights_of_one_kind(tmp_path):
    from bert_tf.cli import repeats
    from bert_tf.errors import UserError

    (tmp_path / "model.json").write_text('{"use_ema": true}')
    values, told = parsed("--data_dir=a", f"--output_dir={tmp_path}", "--ema_decay=0.9", "--num_seeds=2"), []

    def run(values):
        told.append((values.seed, values.use_ema))
        if len(told) == 2:
            raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        repeats.over_seeds(values, run, None, ())
    assert told == [(12345, True), (12346, True)]


def test_what_training_began_with_may_be_named_again(call, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    settings = json.loads((finished / "run.json").read_text())
    settings["init_checkpoint"] = checkpoint.digest(f"{finished}/model.ckpt-11")
    (tmp_path / "out/run.json").write_text(json.dumps(settings))
    status, errors, log = call("--do_eval", **BARE, init_checkpoint=finished)
    assert (status, errors) == (0, []) and "with which training begins, is not read" in log


def test_batches_of_like_length_resume_to_the_same_bytes(call, tmp_path):
    assert call("--do_train", group_by_length=True)[:2] == (0, [])
    whole = snapshot(tmp_path / "out")
    for step in (8, 11):
        checkpoint.delete(f"{tmp_path}/out/model.ckpt-{step}")
    checkpoint.update_state(tmp_path / "out", "model.ckpt-4")
    assert call("--do_train", group_by_length=True)[:2] == (0, [])
    name = "model.ckpt-11.data-00000-of-00001"
    assert snapshot(tmp_path / "out")[name] == whole[name]
    status, errors, _ = call("--do_train")
    assert status == 2 and "group_by_length true (now false)" in errors[0]
    for step in (8, 11):
        checkpoint.delete(f"{tmp_path}/out/model.ckpt-{step}")
    checkpoint.update_state(tmp_path / "out", "model.ckpt-4")
    status, errors, _ = call("--do_train", "--resume", group_by_length=True, train_batch_size=3)
    assert status == 2 and "only after a whole epoch, not after 16 of 21 examples" in errors[0]


def test_a_classifier_that_reads_the_mean_of_all_tokens(call, data, tmp_path):
    status, errors, _ = call("--do_train", "--do_eval", "--do_predict", pooling="mean", num_train_epochs=1)
    assert (status, errors) == (0, [])
    before = (tmp_path / "out/test_results.tsv").read_text()
    (tmp_path / "out/test_results.tsv").unlink()
    assert call("--do_predict", **BARE, predict_batch_size=2)[:2] == (0, [])
    found, expected = (np.array([line.split("\t") for line in text.splitlines()], np.float32)
                       for text in ((tmp_path / "out/test_results.tsv").read_text(), before))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    status, errors, _ = call("--do_eval", **BARE, pooling="cls")
    assert status == 2 and "--pooling=cls, but" in errors[0]


def test_seeds_are_compared_and_the_best_is_kept(call, finished, tmp_path):
    status, errors, log = call("--do_train", "--do_eval", "--do_predict", num_seeds=2, num_train_epochs=1)
    assert (status, errors) == (0, [])
    head, *rows = [line.split("\t") for line in (tmp_path / "out/seeds.tsv").read_text().splitlines()]
    assert [row[0] for row in rows] == ["12345", "12346", "mean", "standard deviation"]
    table = np.array([row[1:] for row in rows], float)
    np.testing.assert_allclose(table[2], table[:2].mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(table[3], table[:2].std(axis=0, ddof=1), rtol=1e-4, atol=1e-6)  # of six digits
    single = {name: results(tmp_path / f"out/seed_{seed}/eval_results.txt") for name, seed in (("a", 12345),
                                                                                              ("b", 12346))}
    assert single["a"]["loss"] != single["b"]["loss"]
    best = max((12345, 12346), key=lambda seed: results(tmp_path / f"out/seed_{seed}/eval_results.txt")["eval_f1"])
    weights = dict(checkpoint.read(checkpoint.find(tmp_path / "out")))
    for name, value in checkpoint.read(checkpoint.find(tmp_path / f"out/seed_{best}")):
        np.testing.assert_array_equal(weights[name], value)
    # Each is the run that its seed alone makes, and the folder is a model.
    assert call("--do_train", "--do_eval", seed=12346, num_train_epochs=1, output_dir=tmp_path / "alone")[0] == 0
    assert results(tmp_path / "alone/eval_results.txt") == single["b"]
    before = (tmp_path / "out/test_results.tsv").read_text()
    assert call("--do_predict", **BARE)[:2] == (0, [])
    assert (tmp_path / "out/test_results.tsv").read_text() == before
    (tmp_path / "out/RTE.tsv").write_text("left by another model")
    assert call("--do_train", "--do_eval", num_seeds=2, num_train_epochs=1)[:2] == (0, [])
    assert not (tmp_path / "out/RTE.tsv").exists() and (tmp_path / "out/test_results.tsv").read_text() == before


def test_averages_that_were_evaluated_are_what_the_folder_stands_for(call, tmp_path):
    flags = {"num_train_epochs": 1, "ema_decay": 0.9, "learning_rate": 0.01}
    assert call("--do_train", "--do_eval", "--do_predict", "--use_ema", **flags)[:2] == (0, [])
    names = ("eval_results.txt", "test_results.tsv")
    before = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    def again(*words, **flags):
        assert call("--do_eval", "--do_predict", *words, **flags)[:2] == (0, [])
        return {name: (tmp_path / "out" / name).read_bytes() for name in names}

    assert again("--do_train", **flags) == again(**BARE) == before
    raw = again(**BARE, use_ema=False)
    assert raw["test_results.tsv"] != before["test_results.tsv"]
    status, errors, _ = call("--do_train", "--resume", num_train_epochs=2)
    assert status == 2 and "stands for moving averages; go on with --ema_decay" in errors[0]
    # The command that trained may turn it to the weights themselves.
    assert again("--do_train", use_ema=False, **flags) == again(**BARE) == raw


def test_several_tasks_end_in_a_table(call, data, tmp_path):
    flags = {"task_name": "MRPC,STS-B", "data_dir": data, "num_train_epochs": 1}
    assert call("--do_train", "--do_eval", **flags)[:2] == (0, [])
    head, mrpc, sts_b = [line.split("\t") for line in (tmp_path / "out/tasks.tsv").read_text().splitlines()]
    assert {"task", "eval_accuracy", "eval_pearson"} < set(head) and (mrpc[0], sts_b[0]) == ("MRPC", "STS-B")
    assert mrpc[head.index("eval_pearson")] == sts_b[head.index("eval_accuracy")] == ""
    assert float(mrpc[head.index("eval_accuracy")]) == pytest.approx(
        results(tmp_path / "out/MRPC/eval_results.txt")["eval_accuracy"], rel=1e-5)
    assert checkpoint.find(tmp_path / "out/STS-B")


# Data of one's own.


def rows_of(path):
    head, *rows = [line.split("\t") for line in path.read_text().splitlines()]
    return [dict(zip(head, row)) for row in rows]


def test_a_table_of_ones_own_in_csv(call, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for split, count in (("train", 24), ("dev", 6), ("test", 5)):
        rng = np.random.RandomState(count)
        lines = [f'"{sentence(rng, 4)}, ""{("good", "bad")[number % 2]}""",{("fine", "awful")[number % 2]}'
                 for number in range(count)]
        (folder / f"{split}.csv").write_text("\n".join(["review,verdict", *lines]) + "\n")
    flags = {"task_name": "custom", "data_dir": folder, "label_column": "verdict", "num_train_epochs": 20,
             "learning_rate": 0.01}
    status, errors, log = call("--do_train", "--do_eval", "--do_predict", **flags)
    assert (status, errors) == (0, []) and "a header" in log and "one of 2 labels: awful, fine" in log
    assert results(tmp_path / "out/eval_results.txt")["eval_accuracy"] == 1.0
    rows = rows_of(tmp_path / "out/predictions.tsv")
    assert [row["label"] for row in rows] == ["fine", "awful", "fine", "awful", "fine"]
    assert [row["line"] for row in rows] == list("23456")
    # The folder knows its labels, whatever order another file brings them in, and in which column they are.
    (folder / "dev.csv").write_text('review,verdict\n"a ""bad"" one",awful\n')
    status, errors, log = call("--do_eval", "--do_predict", **BARE, data_dir=folder)
    assert (status, errors) == (0, []) and rows_of(tmp_path / "out/predictions.tsv") == rows


def test_several_labels_of_each_example(call, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for split, count in (("train", 32), ("dev", 8), ("test", 4)):
        rng = np.random.RandomState(count)
        rows = [[word for word, holds in zip(("bright", "quiet", "old"), number >> np.arange(3) & 1) if holds]
                for number in rng.randint(0, 8, count)]
        (folder / f"{split}.jsonl").write_text("".join(
            json.dumps({"text": " ".join([*row, sentence(rng, 2)]), "labels": row}) + "\n" for row in rows))
    flags = {"task_name": "custom", "data_dir": folder, "num_train_epochs": 1}
    status, errors, log = call("--do_train", "--do_eval", "--do_predict", class_weights="balanced", **flags)
    assert (status, errors) == (0, []) and "several of 3 labels: bright, old, quiet" in log
    assert {"eval_micro_f1", "eval_macro_f1", "eval_accuracy"} < set(results(tmp_path / "out/eval_results.txt"))
    assert set(rows_of(tmp_path / "out/predictions.tsv")[0]) >= {"labels", "p(bright)", "p(old)", "p(quiet)"}
    assert json.loads((tmp_path / "out/model.json").read_text())["kind"] == "multi"
    assert log_of(tmp_path / "out")[0]["loss"] != pytest.approx(np.log(2), abs=1e-3)  # biases begin at the frequencies


def test_a_teacher_is_followed_and_asked_once(call, finished, tmp_path):
    flags = {"teacher": finished, "distillation_alpha": 1.0, "num_train_epochs": 1}
    status, errors, log = call("--do_train", **flags)
    assert (status, errors) == (0, []) and f"the teacher is {finished}/model.ckpt-11" in log
    assert log_of(tmp_path / "out")[0]["loss"] < 0.1  # both say nearly nothing yet; the labels' loss would be 0.69
    before = snapshot(tmp_path / "out")["model.ckpt-6.data-00000-of-00001"]
    status, errors, log = call("--do_train", "--overwrite_output_dir", **flags)
    assert (status, errors) == (0, []) and log.count("made before and nothing has changed") == 2
    assert snapshot(tmp_path / "out")["model.ckpt-6.data-00000-of-00001"] == before


def test_features_are_made_again_only_where_something_changed(data, tmp_path, caplog):
    from bert_tf.cli import classifier

    copied = tmp_path / "MRPC"
    shutil.copytree(data / "MRPC", copied)

    def read(**flags):
        values = parsed(*command(data, tmp_path / "out", ["--do_train"], {
            "data_dir": copied, "features_dir": tmp_path / "features", **flags})[1:])
        setup = classifier.prepare(values, None)
        ((path, table),) = classifier.find_tables(values, setup, "train").values()
        caplog.clear()
        with caplog.at_level("INFO"):
            rows = classifier.read_features(values, setup, path, table)
        return rows.digest, "made before and nothing has changed" in caplog.text

    (first, _), *others = read(), read(), read(max_seq_length=16), read(max_seq_length=16), read(features_dir="")
    (copied / "train.tsv").write_text((copied / "train.tsv").read_text() + "0\t1\t2\ta river\ta bridge\n")
    changed, was_kept = read(max_seq_length=16)
    assert [kept for _, kept in others] == [True, False, True, False] and not was_kept
    assert others[0][0] == others[3][0] == first and len({first, others[1][0], changed}) == 3
    assert others[1] == (others[2][0], False) and len(os.listdir(tmp_path / "features")) == 1


# What is refused, before anything is computed or written.


@pytest.fixture
def no_compute(monkeypatch):
    from bert_tf import runtime

    def fail(self):
        raise AssertionError("computing has begun")

    monkeypatch.setattr(runtime.Runtime, "start", fail)


def bad_files(data, finished, folder):
    """Files that are wrong, by the names that the cases below give them."""
    folder.mkdir()
    for name, text in (("label", "Quality\tb\tc\td\te\n2\tb\tc\td\te\n"), ("column", "a\tb\tc\td\te\n1\tb\tc\td\n"),
                       ("empty", ""), ("header", "a\tb\tc\td\te\n"), ("nothing", None)):
        (folder / name).mkdir()
        for split in ("train", "dev", "test") if text is not None else ():
            (folder / name / f"{split}.tsv").write_text(text)
    shutil.copytree(data / "MRPC", folder / "dev")
    shutil.copy(folder / "label/dev.tsv", folder / "dev/dev.tsv")
    shutil.copytree(data / "MRPC", folder / "test")
    (folder / "test/test.tsv").write_text("")
    for name, change in (("small", {"vocab_size": 600}), ("one_type", {"type_vocab_size": 1})):
        (folder / f"{name}.json").write_text(json.dumps({**SMALL, **change}))
    (folder / "cased.txt").write_text((data / "vocab.txt").read_text().replace("\nthe\n", "\nThe\n") + "".join(
        f"Word{number}\n" for number in range(100)))
    (folder / "lacks.txt").write_text("the\n")
    encoder = {name: value for name, value in checkpoint.read(f"{finished}/model.ckpt-11") if name.startswith("bert/")}
    checkpoint.write(str(folder / "encoder/bert_model.ckpt"), encoder)
    checkpoint.write(str(folder / "cased_L-1_H-16_A-2/bert_model.ckpt"), encoder)
    shutil.copytree(finished, folder / "notes")
    shutil.copytree(finished, folder / "other")
    notes = json.loads((finished / "model.json").read_text())
    (folder / "notes/model.json").write_text(json.dumps({**notes, "max_seq_length": "32"}))
    return folder


REFUSED = [
    ([], {}, "give --do_train, --do_eval or --do_predict"),
    (["--do_train"], {"data_dir": None}, "--data_dir"),
    (["--do_train"], {"output_dir": None}, "--output_dir"),
    (["--do_train"], {"task_name": None}, "--task_name is missing"),
    (["--do_train"], {"task_name": "mrcp"}, "no such task; there are CoLA, SST-2"),
    (["--do_train"], {"language": "fr"}, "MRPC is in one language"),
    (["--do_train"], {"bert_config_file": None}, "--bert_config_file is missing"),
    (["--do_train"], {"vocab_file": None}, "--vocab_file is missing"),
    (["--do_train"], {"bogus": 1}, "bogus"),
    (["--do_train"], {"train_batch_size": 0}, "--train_batch_size=0"),
    (["--do_train", "--do_eval"], {"num_seeds": 0}, "--num_seeds=0"),
    (["--do_train"], {"num_seeds": 2}, "give --do_train and --do_eval"),
    (["--do_train", "--do_eval"], {"num_seeds": 2, "output_dir": "{finished}"}, "give it a folder of its own"),
    (["--do_train", "--do_eval"], {"num_seeds": 2, "best_metric": "f1"}, "--best_metric=f1 is none of"),
    (["--do_train"], {"task_name": "MRPC,RTE", "strategy": "tpu"}, "--strategy=tpu makes one run in a process"),
    (["--do_train"], {"teacher": "{finished}", "output_dir": "{finished}", "overwrite_output_dir": True},
     "--overwrite_output_dir would remove --teacher"),
    (["--do_eval"], {**BARE, "output_dir": "{finished}", "init_checkpoint": "{bad}/other"},
     "is fine-tuned, and so is"),
    (["--do_train", "--do_eval", "--do_predict"], {"data_dir": "{bad}/test", "num_seeds": 2}, "{bad}/test/test.tsv"),
    (["--do_train"], {"task_name": "MRPC,CoLA", "data_dir": None, "train_file": "x"}, "lie in folders below"),
    (["--do_train"], {"pooling": "max"}, "--pooling=max"),
    (["--do_train"], {"class_weights": "1,x"}, "--class_weights=1,x"),
    (["--do_train"], {"class_weights": "1,2,3"}, "3 numbers for the 2 labels"),
    (["--do_train"], {"label_smoothing": 1}, "--label_smoothing=1"),
    (["--do_train"], {"teacher": "{bad}/encoder"}, "a teacher must know the same"),
    (["--do_train"], {"dataset": "tfds:glue/mrpc", "strategy": "multi_worker"}, "--dataset"),
    (["--do_train"], {"task_name": "custom", "data_dir": "{bad}/nothing"}, "holds no data"),
    (["--do_train"], {"task_name": "MRPC,mrcp"}, "no such task; there are CoLA, SST-2"),
    (["--do_train"], {"task_name": "MRPC,RTE"}, "holds no train file of MRPC"),
    (["--do_predict"], {"predict_batch_size": 0}, "--predict_batch_size=0"),
    (["--do_train"], {"num_train_epochs": 0}, "--num_train_epochs=0"),
    (["--do_train"], {"num_train_epochs": "nan"}, "--num_train_epochs=nan"),
    (["--do_train"], {"num_train_epochs": "inf"}, "--num_train_epochs=inf"),
    (["--do_train"], {"warmup_proportion": 1.5}, "--warmup_proportion=1.5"),
    (["--do_train", "--original_steps"], {"num_train_epochs": 0.1}, "--original_steps makes no step"),
    (["--do_train"], {"learning_rate": -1}, "--learning_rate=-1"),
    (["--do_train"], {"max_seq_length": 2}, "--max_seq_length=2 must lie between 3 and the model's 64 positions"),
    (["--do_train"], {"max_seq_length": 0}, "--max_seq_length=0 must lie between"),
    (["--do_train"], {"max_seq_length": 65}, "--max_seq_length=65 must lie between"),
    (["--do_train"], {"data_dir": "{bad}/none"}, "holds no train file of MRPC"),
    (["--do_train"], {"data_dir": "{bad}/nothing"}, "holds no train file of MRPC"),
    (["--do_train"], {"data_dir": "{bad}/label"}, "train.tsv:2: '2' is no label of MRPC; there are 0, 1"),
    (["--do_train"], {"data_dir": "{bad}/column"}, "train.tsv:2: expected at least 5 tab-separated columns, found 4"),
    (["--do_train"], {"data_dir": "{bad}/empty"}, "train.tsv: the file is empty"),
    (["--do_train"], {"data_dir": "{bad}/header"}, "train.tsv: holds no example"),
    (["--do_train", "--do_eval"], {"data_dir": "{bad}/dev"}, "dev.tsv:2: '2' is no label"),
    (["--do_train"], {"data_dir": "{bad}/dev", "eval_every_steps": 2}, "dev.tsv:2: '2' is no label"),
    (["--do_train"], {"task_name": "AX"}, "the task AX has no train file"),
    (["--do_eval"], {"task_name": "AX", "init_checkpoint": "{bad}/encoder"}, "the task AX has no dev file"),
    (["--do_train"], {"bert_config_file": "{bad}/none.json"}, "--bert_config_file={bad}/none.json: no such file"),
    (["--do_train"], {"vocab_file": "{bad}/none.txt"}, "--vocab_file={bad}/none.txt: no such file"),
    (["--do_train"], {"vocab_file": "{bad}/lacks.txt"}, "lacks.txt: the vocabulary lacks [PAD]"),
    (["--do_train"], {"bert_config_file": "{bad}/small.json"}, "has 1500 pieces, the model 600"),
    (["--do_train"], {"bert_config_file": "{bad}/one_type.json"}, "holds pairs of texts, the model has one segment"),
    (["--do_train"], {"vocab_file": "{bad}/cased.txt", "bert_config_file": "{wide}"}, "hold upper case"),
    (["--do_train"], {"init_checkpoint": "{bad}/cased_L-1_H-16_A-2"}, "is a cased model"),
    (["--do_train"], {"init_checkpoint": "{bad}/none"}, "no such checkpoint"),
    (["--do_train"], {"init_checkpoint": "{finished}", "do_lower_case": False}, "was trained with True"),
    (["--do_train"], {"init_checkpoint": "{bad}/notes"}, "model.json: max_seq_length is '32'"),
    (["--do_eval"], {}, "nothing to evaluate: "),
    (["--do_eval"], {"init_checkpoint": "{finished}", "max_seq_length": 16},
     "--max_seq_length=16, but {finished}/model.ckpt-11 was trained with 32"),
    (["--do_predict"], {"init_checkpoint": "{finished}", "task_name": "RTE"}, "whose labels are ['0', '1'], not"),
]


@pytest.mark.parametrize("words, flags, part", REFUSED)
def test_what_is_refused_is_one_line_and_leaves_nothing(call, no_compute, data, finished, tmp_path, words, flags,
                                                        part):
    names = {"bad": bad_files(data, finished, tmp_path / "bad"), "finished": finished, "wide": tmp_path / "wide.json"}
    names["wide"].write_text(json.dumps({**SMALL, "vocab_size": 1700}))
    flags = {name: value.format(**names) if isinstance(value, str) else value for name, value in flags.items()}
    before = snapshot(tmp_path)
    status, errors, _ = call(*words, **flags)
    assert status == 2 and len(errors) == 1 and part.format(**names) in errors[0]
    assert snapshot(tmp_path) == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["--do_eval"], ["--do_predict"]])
def test_a_classifier_that_was_never_trained_answers_nothing(call, data, finished, tmp_path, words):
    bad = bad_files(data, finished, tmp_path / "bad")
    status, errors, _ = call(*words, init_checkpoint=bad / "encoder")
    assert status == 2 and len(errors) == 1 and not (tmp_path / "out").exists()
    assert "heads that were never trained" in errors[0] and "output_weights" in errors[0]


def test_another_casing_goes_through_when_allowed(call, finished, tmp_path):
    status, errors, _ = call("--do_eval", "--allow_case_mismatch", init_checkpoint=finished, do_lower_case=False)
    assert (status, errors) == (0, [])
