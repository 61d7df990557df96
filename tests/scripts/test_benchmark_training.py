"""The benchmark of training: what it refuses, which rows it deals out, what it times, how it sums up."""

import json
import os
import pathlib
import sys

import numpy as np
import pytest

from bert_tf.cli import app
from bert_tf.errors import UserError

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import benchmark_peers  # noqa: E402
import benchmark_training  # noqa: E402


def parse(*arguments):
    values, _ = app.parse(benchmark_training.define_flags, ["benchmark_training.py", "--vocab_file=v", *arguments])
    return values


@pytest.mark.parametrize("arguments, message", [
    ([], "give --data_dir to fine-tune, or --input_file to pretrain"),
    (["--data_dir=d", "--input_file=f"], "give --data_dir to fine-tune, or --input_file to pretrain"),
    (["--data_dir=d"], "--task_name is missing"),
    (["--input_file=f", "--num_rows=100"], "--num_rows=100 must be a multiple of --train_batch_size=32"),
    (["--input_file=f", "--settings=ours-float32,fast"], "'fast' is none of best, all, ours-float32"),
    (["--input_file=f", "--output_file=/no/such/folder/x"], "there is no folder /no/such/folder"),
])
def test_flags_that_cannot_work_are_refused_before_any_work(arguments, message):
    with pytest.raises(UserError) as error:
        benchmark_training.check_flags(parse(*arguments))
    assert message in str(error.value)


def test_ways_have_names_of_their_own_and_libraries_that_there_are():
    names = [name for name, _, _ in benchmark_training.WAYS]
    assert len(set(names)) == len(names)
    assert {library for _, library, _ in benchmark_training.WAYS} == {"ours", *benchmark_peers.LIBRARIES}
    found = benchmark_training.find_ways(parse("--settings=torch-float32,ours-float32"))
    assert [name for name, _, _ in found] == ["torch-float32", "ours-float32"]
    fine_tuning, pretraining = (benchmark_training.find_ways(parse(flag))
                                for flag in ("--data_dir=d", "--input_file=f"))
    assert {way[0] for way in fine_tuning} - {way[0] for way in pretraining} == {"ours-float32-sorted"}


def test_speed_is_that_of_whole_passes_after_the_first():
    log = [{"steps_per_second": speed, "examples": 8.0} for speed in (0.1, 0.1, 2.0, 4.0, 1.0, 1.0, 8.0)]
    assert benchmark_training.steady_speed(log[:3], 2, 0.0) is None  # the second pass is not over
    assert benchmark_training.steady_speed(log, 2, 0.0) == pytest.approx(16 / (1 / 2 + 1 / 4))
    assert benchmark_training.steady_speed(log, 2, 2.0) == pytest.approx(32 / (1 / 2 + 1 / 4 + 2))
    assert benchmark_training.steady_speed(log, 2, 3.0) is None


def test_the_best_of_each_library_and_padding_is_its_fastest_and_what_was_left_out_is_none():
    trials = [{"library": "ours", "padding": None, "name": "a", "examples_per_second": 2.0},
              {"library": "ours", "padding": None, "name": "b", "examples_per_second": 3.0},
              {"library": "PyTorch", "padding": "longest", "name": "c", "skipped": "no torch"},
              {"library": "KerasHub", "padding": "fixed", "name": "d", "examples_per_second": 1.0},
              {"library": "KerasHub", "padding": "longest", "name": "e", "examples_per_second": 4.0}]
    assert benchmark_training.best_of_each(trials) == ["b", "d", "e"]


def test_ratios_are_medians_of_the_rounds_own_not_ratios_of_medians(capsys):
    rounds = [[{"library": "ours", "name": "a", "examples_per_second": ours},
               {"library": "KerasHub", "name": "b", "examples_per_second": peer},
               {"library": "PyTorch", "name": "c", "skipped": "no torch"}]
              for ours, peer in ((10.0, 5.0), (40.0, 10.0), (30.0, 10.0))]
    assert benchmark_training.summarize(rounds) == {"a": (10.0, 30.0, 40.0, 1.0), "b": (5.0, 10.0, 10.0, 3.0)}
    benchmark_training.report("title", rounds)
    printed = capsys.readouterr().out
    assert "3.00 times" in printed and "c                         left out: no torch" in printed


def test_a_pass_deals_every_row_once_and_sorts_rows_of_like_length_together():
    lengths = np.array([3, 20, 9, 4, 17, 8])
    mask = (np.arange(24) < lengths[:, None]).astype(np.int32)
    rows = {"input_ids": mask * np.arange(1, 7)[:, None], "input_mask": mask, "segment_ids": 0 * mask,
            "label_ids": np.arange(6)}
    shapes = {"fixed": {(2, 24)}, "longest": {(2, 8), (2, 16), (2, 24)}}
    for padding, expected in shapes.items():
        found = list(benchmark_peers.batches(rows, {"padding": padding}, 2, np.random.default_rng(0)))
        assert sorted(np.concatenate([batch["label_ids"] for batch in found])) == list(range(6))
        assert {batch["input_ids"].shape for batch in found} == expected
        for batch in found:
            assert (batch["input_mask"].sum(axis=1) == lengths[batch["label_ids"]]).all()
            assert (batch["input_ids"].max(axis=1) == batch["label_ids"] + 1).all()


def test_masked_pieces_stand_at_their_positions_for_a_model_that_scores_all():
    batch = {"input_ids": np.zeros([2, 5], np.int32), "masked_lm_positions": np.array([[1, 4], [3, 0]]),
             "masked_lm_ids": np.array([[7, 8], [9, 0]]), "masked_lm_weights": np.array([[1.0, 1.0], [1.0, 0.0]])}
    none = -100
    assert benchmark_peers.scatter(batch).tolist() == [[none, 7, none, none, 8], [none, none, none, 9, none]]


def test_the_first_pass_is_not_timed(monkeypatch):
    clock = iter([100.0, 104.0, 112.0, 112.0])
    monkeypatch.setattr(benchmark_peers.time, "perf_counter", lambda: next(clock))
    passes = []
    assert benchmark_peers.measure(lambda: passes.append(None), 30, 10.0) == pytest.approx(2 * 30 / 12.0)
    assert len(passes) == 3


def test_rows_of_a_task_are_dealt_to_all_alike(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    texts = ["a", "b c", "d e f", "g h"]
    lines = ["sentence\tlabel", *(f"{text}\t{number % 2}" for number, text in enumerate(texts))]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    values = parse(f"--data_dir={tmp_path}", "--task_name=SST-2", "--num_rows=3", "--train_batch_size=1",
                   "--max_seq_length=8")
    values.vocab_file = str(tmp_path / "vocab.txt")
    job = benchmark_training.make_job(values, str(tmp_path))
    written = (pathlib.Path(job["flags"]["data_dir"]) / "train.tsv").read_text(encoding="utf-8").splitlines()
    assert written[0] == lines[0] and len(written) == 4 and set(written) <= set(lines)
    rows = np.load(job["rows"])
    texts_and_labels = [(" ".join(pieces[number] for number in ids[mask == 1][1:-1]), str(label)) for ids, mask, label
                        in zip(rows["input_ids"], rows["input_mask"], rows["label_ids"])]
    assert texts_and_labels == [tuple(line.split("\t")) for line in written[1:]]
    assert job["config"]["vocab_size"] == len(pieces) and job["script"] == "run_classifier.py"
    values.num_rows = 5
    with pytest.raises(UserError, match="--num_rows=5: .*train.tsv holds 4"):
        benchmark_training.make_job(values, str(tmp_path))


def test_a_peer_that_cannot_be_run_is_left_out_with_the_reason(tmp_path):
    job = {"library": "PyTorch", "pythons": {"PyTorch": str(tmp_path / "no_python"), "KerasHub": "false"}}
    assert "No such file" in benchmark_training.run_peer(job, 0.0, str(tmp_path), {})["skipped"]
    job["library"] = "KerasHub"
    assert "skipped" in benchmark_training.run_peer(job, 0.0, str(tmp_path), {"PATH": os.environ["PATH"]})
    assert json.loads((tmp_path / "job.json").read_text())["library"] == "KerasHub"
