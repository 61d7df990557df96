import contextlib
import csv
import json
import os
import shutil
import signal
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, checkpoint, modeling, optimization
from bert_tf.errors import UserError
from bert_tf.pretraining import objective
from bert_tf.runtime import Runtime
from bert_tf.training import journal, loop, state
from bert_tf.training.selection import Selection
from bert_tf.training.step import build_train_loop

SMALL = dict(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=16, type_vocab_size=2)
RECORDS, BATCH, STEPS = 10, 4, 9


def make_records():
    rng = np.random.RandomState(0)
    lengths = rng.randint(8, 17, [RECORDS, 1])
    mask = (np.arange(16) < lengths).astype(np.int32)
    return {"input_ids": rng.randint(5, 40, [RECORDS, 16]).astype(np.int32) * mask, "input_mask": mask,
            "segment_ids": (np.arange(16) > 5).astype(np.int32) * mask,
            "masked_lm_positions": rng.randint(1, 8, [RECORDS, 3]).astype(np.int32),
            "masked_lm_ids": rng.randint(5, 40, [RECORDS, 3]).astype(np.int32),
            "masked_lm_weights": np.ones([RECORDS, 3], np.float32),
            "next_sentence_labels": rng.randint(0, 2, RECORDS).astype(np.int32),
            "example_weights": np.ones(RECORDS, np.float32)}


class Trainer:
    """One model whose steps are traced once; each run begins with the same weights or with what a folder holds."""

    def __init__(self):
        keras.utils.set_random_seed(5)
        tf.config.experimental.enable_op_determinism()
        self.model = modeling.BertForPreTraining(modeling.BertConfig(**SMALL))
        self.optimizer = optimization.create_optimizer(1e-2, STEPS, 2)
        self.state = state.TrainingState(self.model, self.optimizer)
        self.initial = {name: np.array(value) for name, value in self.state.tensors().items()}
        self.runtime = Runtime()
        self.device_loop = build_train_loop(self.model, objective, self.optimizer, self.runtime)
        self.records = make_records()

    def begin(self, folder):
        newest = checkpoint.latest(folder)
        for name, variable in self.state.tensors().items():
            if hasattr(variable, "assign"):
                variable.assign(tf.fill(variable.shape, 7.0) if newest else self.initial[name])
        self.optimizer.iterations.assign(99 if newest else 0)
        self.state.examples_seen = 99 if newest else 0
        if newest:
            self.state.resume(newest, BATCH)

    def run(self, folder, steps=STEPS, callbacks=(), bad=None, selection=None, **schedule):
        os.makedirs(folder, exist_ok=True)
        self.begin(folder)
        sizes = batching.Sizes(16, False)

        def make(numbers):
            if bad is not None and bad.get("after", 0) <= bad["made"]:
                raise UserError("records: record 3 is bad")
            if bad is not None:
                bad["made"] += 1
            batch = {name: array[numbers] for name, array in self.records.items()}
            return batching.unpad(batch, sizes, batch["masked_lm_positions"])

        feed = batching.Feed(lambda start: batching.training_order(RECORDS, BATCH, 1, start), make,
                             lambda number: f"records: record {number}")
        settings = {"save_checkpoints_steps": 4, "iterations_per_loop": 1} | schedule
        return loop.train(self.state, objective, feed, self.runtime, loop.Schedule(str(folder), steps, **settings),
                          [journal.Log(str(folder)), *callbacks], selection)


@pytest.fixture(scope="module")
def shared_trainer():
    return Trainer()


@pytest.fixture
def trainer(shared_trainer, monkeypatch):
    monkeypatch.setattr(loop, "build_train_loop", lambda *arguments: shared_trainer.device_loop)
    return shared_trainer


def contents(prefix):
    return {name: value for name, value in checkpoint.read(str(prefix))}


def losses(folder):
    rows = [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]
    names = ("step", "loss", "masked_lm_loss", "learning_rate", "gradient_norm", "examples", "tokens")
    return [tuple(row[name] for name in names) for row in rows]


@pytest.fixture(scope="module")
def unbroken(shared_trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "build_train_loop", lambda *arguments: shared_trainer.device_loop)
        assert shared_trainer.run(folder) == f"{folder}/model.ckpt-9"
    return folder


def assert_equals_unbroken(folder, unbroken):
    mine, theirs = (path / "model.ckpt-9" for path in (folder, unbroken))
    for suffix in (".index", ".data-00000-of-00001"):
        assert (folder / f"model.ckpt-9{suffix}").read_bytes() == (unbroken / f"model.ckpt-9{suffix}").read_bytes()
    assert set(contents(mine)) == set(contents(theirs))
    assert losses(folder) == losses(unbroken)


def test_the_unbroken_run(unbroken, shared_trainer):
    found = contents(unbroken / "model.ckpt-9")
    weights = {variable.path for variable in shared_trainer.model.weights}
    assert set(found) == weights | {f"{name}/adam_{slot}" for name in weights for slot in "mv"} | {
        "global_step", "run/examples_seen"}
    assert found["global_step"] == 9 and found["global_step"].dtype == np.int64 and found["run/examples_seen"] == 36
    rows = losses(unbroken)
    assert [row[0] for row in rows] == list(range(1, 10)) and len({row[1] for row in rows}) == 9
    assert [row[3] for row in rows[:3]] == pytest.approx([0, 0.005, 0.01 * 7 / 9]) and rows[0][5] == 4
    assert sorted(name for name in os.listdir(unbroken) if name.endswith(".index")) == [
        f"model.ckpt-{step}.index" for step in (4, 8, 9)]
    assert tf.train.latest_checkpoint(str(unbroken)) == f"{unbroken}/model.ckpt-9"


@pytest.mark.parametrize("iterations_per_loop", [3, 100, None])
def test_steps_in_a_call_change_no_byte(trainer, unbroken, tmp_path, iterations_per_loop):
    trainer.run(tmp_path, iterations_per_loop=iterations_per_loop)
    assert_equals_unbroken(tmp_path, unbroken)


class At(keras.callbacks.Callback):
    def __init__(self, step, action):
        super().__init__()
        self.step, self.action = step, action

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.step:
            self.action(self)


@pytest.mark.parametrize("step, number", [(1, signal.SIGTERM), (3, signal.SIGINT), (4, signal.SIGTERM),
                                          (5, signal.SIGTERM), (8, signal.SIGTERM)])
def test_a_run_that_was_stopped_by_a_signal_ends_as_the_unbroken_one(trainer, unbroken, tmp_path, step, number):
    before = signal.getsignal(number)
    stop = At(step, lambda callback: os.kill(os.getpid(), number))
    with pytest.raises(UserError, match=rf"stopped by {number.name}.*\(step {step}, saved as .*model.ckpt-{step}\)"):
        trainer.run(tmp_path, callbacks=[stop])
    assert signal.getsignal(number) is before
    assert checkpoint.latest(tmp_path) == f"{tmp_path}/model.ckpt-{step}"
    trainer.run(tmp_path, iterations_per_loop=2)
    assert_equals_unbroken(tmp_path, unbroken)


def copy_as_it_stands(source, target):
    """Copies a folder as it is at one moment, though another thread writes to it."""
    def state():
        return {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(source)}

    while True:
        shutil.rmtree(target, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError, shutil.Error):
            before = state()
            shutil.copytree(source, target)
            if state() == before:
                return


@pytest.mark.parametrize("step", [1, 3, 5, 9])
def test_what_a_killed_run_leaves_leads_to_the_same_end(trainer, unbroken, tmp_path, step):
    running, killed = tmp_path / "running", tmp_path / "killed"
    trainer.run(running, callbacks=[At(step, lambda callback: copy_as_it_stands(running, killed))])
    with open(killed / "train_log.jsonl", "a") as file:
        file.write('{"step": 5, "lo')
    trainer.run(killed)
    assert_equals_unbroken(killed, unbroken)


def test_a_checkpoint_that_is_not_named_yet_is_written_again(trainer, unbroken, tmp_path):
    trainer.run(tmp_path, steps=8)
    checkpoint.update_state(str(tmp_path), "model.ckpt-4")  # killed between writing 8 and naming it
    trainer.run(tmp_path)
    assert_equals_unbroken(tmp_path, unbroken)


@pytest.mark.parametrize("good, iterations_per_loop", [(1, 1), (1, 3), (5, 3), (8, 1), (8, 3)])
def test_a_bad_record_ends_the_run_after_a_checkpoint(trainer, unbroken, tmp_path, good, iterations_per_loop):
    bad = {"after": good + 1, "made": 0}  # one batch is made to learn its form
    with pytest.raises(UserError, match=rf"records: record 3 is bad \(step {good}, saved as .*model.ckpt-{good}\)"):
        trainer.run(tmp_path, bad=bad, iterations_per_loop=iterations_per_loop)
    assert [row[0] for row in losses(tmp_path)] == list(range(1, good + 1))
    trainer.run(tmp_path)
    assert_equals_unbroken(tmp_path, unbroken)


def test_a_bad_first_record_leaves_no_checkpoint(trainer, tmp_path):
    with pytest.raises(UserError, match="record 3 is bad"):
        trainer.run(tmp_path, bad={"after": 0, "made": 0})
    assert checkpoint.latest(tmp_path) is None


@pytest.mark.parametrize("keep, kept", [(1, [8]), (2, [6, 8]), (0, [2, 4, 6, 8])])
def test_as_many_checkpoints_are_kept_as_asked(trainer, tmp_path, keep, kept):
    trainer.run(tmp_path, steps=8, save_checkpoints_steps=2, keep_checkpoint_max=keep)
    assert [checkpoint.step_of(prefix) for prefix in checkpoint.list_prefixes(tmp_path)] == kept
    assert not [name for name in os.listdir(tmp_path) if "tmp" in name]


class TestNumbersThatAreNotFinite:
    @pytest.fixture
    def poisoned(self, trainer):
        weights = trainer.records["masked_lm_weights"]
        order = list(np.concatenate([batching.epoch_order(RECORDS, 1, epoch) for epoch in range(4)]))
        weights[:] = 1
        place = order.index(order[21])  # first seen in step 1 to 3
        weights[order[21], 0] = np.inf
        self.number = order[21]
        yield place // BATCH + 1
        weights[:] = 1

    @pytest.mark.parametrize("steps", [1, 4])
    def test_the_run_ends_naming_the_step_and_saves_nothing_of_it(self, trainer, tmp_path, poisoned, steps):
        with pytest.raises(UserError, match=rf"not finite at step {poisoned} \(--skip_nonfinite .*\); no checkpoint "
                                            rf"was written.*examples: .*record {self.number}\b"):
            trainer.run(tmp_path, iterations_per_loop=steps)
        assert checkpoint.latest(tmp_path) is None

    def test_such_a_step_can_be_left_out(self, trainer, tmp_path, poisoned, caplog):
        trainer.run(tmp_path, steps=4, skip_nonfinite=True, iterations_per_loop=2)
        rows = [json.loads(line) for line in (tmp_path / "train_log.jsonl").read_text().splitlines()]
        skipped = [row["step"] for row in rows if row["skipped"]]
        assert poisoned in skipped and len(skipped) < 4 and trainer.state.step == 4
        assert f"step {poisoned} skipped" in caplog.text and f"record {self.number}" in caplog.text
        assert all(np.isfinite(value).all() for value in contents(tmp_path / "model.ckpt-4").values())

    def test_too_many_in_a_row_end_the_run(self, trainer, tmp_path, monkeypatch):
        monkeypatch.setattr(loop.precision, "MOST_SKIPPED", 3)
        trainer.records["masked_lm_weights"][:] = np.inf
        try:
            with pytest.raises(UserError, match="step 3: the last 3 steps in a row had no finite gradient"):
                trainer.run(tmp_path, skip_nonfinite=True, iterations_per_loop=2)
        finally:
            trainer.records["masked_lm_weights"][:] = 1

    def test_the_last_good_checkpoint_is_named(self, trainer, tmp_path):
        def poison(callback):
            trainer.model.weights[0].assign(tf.fill(trainer.model.weights[0].shape, np.nan))

        with pytest.raises(UserError, match=r"not finite at step 7 .*; the last good checkpoint is .*model.ckpt-4;"):
            trainer.run(tmp_path, callbacks=[At(6, poison)])
        assert checkpoint.latest(tmp_path) == f"{tmp_path}/model.ckpt-4"


    def test_weights_that_overflow_in_the_last_step_are_not_saved(self, trainer, tmp_path):
        def poison(callback):
            trainer.model.next_sentence.output_bias.assign([np.inf, 0.0])

        with pytest.raises(UserError, match=r"output_bias\) not finite at .*model.ckpt-9, which is not written; the "
                                            r"last good .*model.ckpt-8"):
            trainer.run(tmp_path, callbacks=[At(STEPS, poison)], save_checkpoints_steps=4)
        assert checkpoint.latest(tmp_path).endswith("model.ckpt-8")

    def test_a_slot_that_is_not_finite_is_not_resumed_from(self, trainer, unbroken, tmp_path):
        stored = contents(checkpoint.latest(unbroken))
        name = next(name for name in stored if name.endswith("adam_v"))
        stored[name] = np.full_like(stored[name], np.nan)
        checkpoint.write(tmp_path / "model.ckpt-9", stored)
        with pytest.raises(UserError, match=f"NaN or infinity in {name}"):
            trainer.begin(tmp_path)


class TestCallbacks:
    def test_they_see_every_step_once_with_its_logs(self, trainer, tmp_path):
        seen = []

        class Watch(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                seen.append(("begin", self.params["steps"], self.params["initial_step"], self.model is trainer.model))

            def on_train_batch_end(self, batch, logs=None):
                seen.append((batch, sorted(logs)))

            def on_train_end(self, logs=None):
                seen.append("end")

        trainer.run(tmp_path, callbacks=[Watch()], iterations_per_loop=4)
        assert seen[0] == ("begin", 9, 0, True) and seen[-1] == "end"
        assert [row[0] for row in seen[1:-1]] == list(range(1, 10))
        assert all(row[1] == sorted(["loss", "masked_lm_loss", "next_sentence_loss", "learning_rate", "gradient_norm",
                                     "loss_scale", "skipped", "examples", "tokens", "rows", "flops",
                                     "steps_per_second", "examples_per_second", "tokens_per_second", "padding",
                                     "flops_per_second", "share_of_peak"]) for row in seen[1:-1])

    def test_they_can_stop_the_training_which_is_saved(self, trainer, unbroken, tmp_path):
        def stop(callback):
            callback.model.stop_training = True

        assert trainer.run(tmp_path, callbacks=[At(5, stop)]) == f"{tmp_path}/model.ckpt-5"
        trainer.run(tmp_path)
        assert_equals_unbroken(tmp_path, unbroken)

    def test_one_that_fails_lets_the_others_end(self, trainer, tmp_path):
        ended = []

        def fail(callback):
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            trainer.run(tmp_path, callbacks=[At(2, fail), keras.callbacks.LambdaCallback(
                on_train_end=lambda logs: ended.append(True))])
        assert ended == [True]

    def test_kerass_own_csv_logger_works(self, trainer, tmp_path):
        logger = keras.callbacks.CSVLogger(tmp_path / "steps.csv")
        values = iter([0.5, 0.25])
        selection = Selection(str(tmp_path), lambda: {"accuracy": next(values)}, "accuracy")
        trainer.run(tmp_path, steps=3, callbacks=[logger, keras.callbacks.TerminateOnNaN()], selection=selection,
                    eval_every_steps=2)
        with open(tmp_path / "steps.csv", newline="") as file:
            found = [(row["epoch"], row["accuracy"], row["step"]) for row in csv.DictReader(file)]
        assert [tuple(map(float, row)) for row in found] == [(0, 0.5, 2), (1, 0.25, 3)]


def test_training_works_where_signals_cannot_be_handled(trainer, unbroken, tmp_path):
    thread = threading.Thread(target=trainer.run, args=[tmp_path])
    thread.start()
    thread.join()
    assert_equals_unbroken(tmp_path, unbroken)


class TestEvaluationWhileTraining:
    def selection(self, folder, values, step=0, **settings):
        values = iter(values)
        selection = Selection(str(folder), lambda: {"accuracy": next(values)}, "accuracy", **settings)
        selection.begin(step)
        return selection

    def test_the_best_checkpoint_stays(self, trainer, unbroken, tmp_path):
        trainer.run(tmp_path, selection=self.selection(tmp_path, [0.1, 0.9, 0.5, 0.6, 0.3]), eval_every_steps=2,
                    save_checkpoints_steps=1, keep_checkpoint_max=2)
        assert [checkpoint.step_of(prefix) for prefix in checkpoint.list_prefixes(tmp_path)] == [4, 8, 9]
        assert_equals_unbroken(tmp_path, unbroken)

    def test_no_better_means_the_end(self, trainer, tmp_path):
        saved = trainer.run(tmp_path, selection=self.selection(tmp_path, [0.3, 0.2, 0.1], patience=2),
                            eval_every_steps=2)
        assert saved == f"{tmp_path}/model.ckpt-6" and checkpoint.latest(tmp_path) == saved
        assert checkpoint.find(f"{tmp_path}/model.ckpt-2")

    def test_a_run_that_goes_on_knows_the_best_so_far(self, trainer, unbroken, tmp_path):
        trainer.run(tmp_path, steps=4, selection=self.selection(tmp_path, [0.9, 0.2]), eval_every_steps=2)
        again = self.selection(tmp_path, [0.5, 0.4, 0.3], step=4)
        trainer.run(tmp_path, selection=again, eval_every_steps=2, save_checkpoints_steps=1, keep_checkpoint_max=1)
        assert again.best_step == 2 and [row["step"] for row in again.rows] == [2, 4, 6, 8, 9]
        assert checkpoint.find(f"{tmp_path}/model.ckpt-2")
        assert_equals_unbroken(tmp_path, unbroken)


class TestPace:
    def schedule(self, **settings):
        return loop.Schedule("", **{"num_train_steps": 100, "save_checkpoints_steps": 30} | settings)

    def test_calls_end_at_saves_and_at_the_end(self):
        pace, step, calls = loop.Pace(self.schedule(iterations_per_loop=20)), 7, []
        while step < 100:
            calls.append(pace.steps(step))
            step += calls[-1]
            pace.record(calls[-1], 1e-3)
        assert calls == [20, 3, 20, 10, 20, 10, 10]

    def test_calls_end_at_evaluations_and_around_a_profile(self):
        pace, step, ends = loop.Pace(self.schedule(iterations_per_loop=50, eval_every_steps=25,
                                                   profile_steps=(12, 13))), 0, []
        while step < 100:
            step += pace.steps(step)
            ends.append(step)
        assert ends == [11, 13, 25, 30, 50, 60, 75, 90, 100]

    def test_calls_grow_to_about_a_second(self):
        pace, step, seconds = loop.Pace(self.schedule(num_train_steps=10**6, save_checkpoints_steps=10**6)), 0, []
        for _ in range(12):
            steps = pace.steps(step)
            seconds.append(steps * 0.01 + (5.0 if not seconds else 0))
            pace.record(steps, seconds[-1])
            step += steps
        assert seconds[1] == 0.01 and all(0.5 < second <= 1.0 for second in seconds[-4:])

    def test_slow_steps_are_run_one_by_one(self):
        pace = loop.Pace(self.schedule())
        for _ in range(4):
            assert pace.steps(0) == 1
            pace.record(1, 9.0)
