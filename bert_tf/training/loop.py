"""The training loop: calls to the device, each about a second long; between them checkpoints, callbacks, signals."""

import dataclasses
import logging
import os
import signal
import time

import keras
import numpy as np
import tensorflow as tf

from bert_tf import checkpoint, run_dir
from bert_tf.errors import UserError
from bert_tf.training.step import build_train_loop, scalar_names

logger = logging.getLogger("bert_tf")

SECONDS_A_CALL = 1.0


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How far a run goes and when it stops for a moment, in steps; `iterations_per_loop` None: about a second."""

    output_dir: str
    num_train_steps: int
    batch_size: int
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 5
    iterations_per_loop: int | None = None


def train(state, objective, feed, runtime, schedule, callbacks=()):
    """Trains until `schedule.num_train_steps` and returns the last checkpoint's prefix.

    `state` is a `TrainingState`, `feed` a `batching.Feed` that begins at `state.examples_seen`, `callbacks` are Keras
    callbacks: they get `on_train_batch_end(step, logs)` for every step, with what `scalar_names` lists and the speeds.
    A bad example and a signal end the run with a `UserError` after a checkpoint; a loss, gradient or weight that is
    not finite ends it without one, so that the last good checkpoint stands.
    """
    device_loop = build_train_loop(state.model, objective, state.optimizer, runtime)
    iterator = iter(feed.dataset())
    callbacks = keras.callbacks.CallbackList(list(callbacks), model=state.model,
                                             steps=schedule.num_train_steps, initial_step=state.step)
    state.model.stop_training = False
    pace, saved = Pace(schedule), None
    callbacks.on_train_begin()
    try:
        with Signals() as signals:
            while state.step < schedule.num_train_steps and not state.model.stop_training:
                first, steps, started = state.step, pace.steps(state.step), time.perf_counter()
                rows = device_loop(iterator, tf.constant(steps)).numpy()
                state.examples_seen += len(rows) * schedule.batch_size
                seconds = time.perf_counter() - started
                pace.record(steps, seconds)
                good = _count_finite(rows)
                _report(callbacks, scalar_names(objective), rows[:good], first, seconds)
                if good < len(rows):
                    raise _not_finite(f"the loss or its gradient is not finite at step {first + good + 1}", saved)
                if len(rows) < steps:
                    _stop(state, schedule, str(feed.error or "the data ended before the training"))
                if state.step % schedule.save_checkpoints_steps == 0 or state.step == schedule.num_train_steps:
                    saved = save(state, schedule, saved)
                if signals.received and state.step < schedule.num_train_steps:
                    _stop(state, schedule, f"stopped by {signals.received}; the same command goes on from there")
        return save(state, schedule, saved) if state.model.stop_training else saved
    finally:
        callbacks.on_train_end()


def _report(callbacks, names, rows, first, seconds):
    """Hands the logs of every step of a call to the callbacks."""
    logs = [dict(zip(names, row)) for row in rows.tolist()]
    speeds = {"steps_per_second": len(rows) / seconds,
              "examples_per_second": sum(row["examples"] for row in logs) / seconds,
              "tokens_per_second": sum(row["tokens"] for row in logs) / seconds}
    for step, row in enumerate(logs, start=first + 1):
        callbacks.on_train_batch_end(step, {**row, **speeds})


def save(state, schedule, saved=None):
    """Writes a checkpoint of the present step, deletes old ones, and returns its prefix.

    `UserError` where a weight is not finite; `saved` is the last good checkpoint, to be named then.
    """
    broken = [variable.path for variable in state.model.trainable_variables
              if not tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(variable)))]
    if broken:
        raise _not_finite(f"{checkpoint.shorten(broken)} not finite after step {state.step}", saved)
    prefix = os.path.join(schedule.output_dir, f"{run_dir.CHECKPOINT}-{state.step}")
    checkpoint.write(prefix, state.tensors())
    checkpoint.update_state(schedule.output_dir, prefix)
    checkpoint.prune(schedule.output_dir, schedule.keep_checkpoint_max)
    return prefix


def _stop(state, schedule, reason):
    raise UserError(f"{reason} (step {state.step}, saved as {save(state, schedule)})")


def _count_finite(rows):
    """How many steps come before the first whose losses or gradient norm are not finite."""
    finite = np.isfinite(rows).all(axis=1)
    return len(rows) if finite.all() else int(finite.argmin())


def _not_finite(what, saved):
    last = f"the last good checkpoint is {saved}" if saved else "no checkpoint was written since the start"
    return UserError(f"{what}; {last}; a lower --learning_rate or more warm-up usually helps")


class Pace:
    """How many steps the next call runs: as the schedule says, else what takes about a second; never past a save."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.wanted = schedule.iterations_per_loop or 1
        self.calls = 0

    def steps(self, step):
        """The number of steps of the call that begins after `step` steps."""
        to_save = self.schedule.save_checkpoints_steps - step % self.schedule.save_checkpoints_steps
        return min(self.wanted, to_save, self.schedule.num_train_steps - step)

    def record(self, steps, seconds):
        """Learns from a call; the first is not typical, since it traces and compiles."""
        self.calls += 1
        if self.schedule.iterations_per_loop is None and self.calls > 1:
            # At most fourfold at once: a single quick call proves little.
            self.wanted = max(1, min(int(SECONDS_A_CALL * steps / seconds), 4 * steps))


class Signals:
    """Notes SIGINT and SIGTERM instead of dying from them, while the block runs; a second one kills as usual."""

    def __init__(self):
        self.received = None

    def __enter__(self):
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for number in self._before:
                signal.signal(number, self._note)
        except ValueError:  # not in the main thread, where signals cannot be handled
            self._before = {}
        return self

    def _note(self, number, frame):
        self.received = signal.Signals(number).name
        logger.info("%s: saving at the end of this call", self.received)
        self._restore()

    def __exit__(self, *exception):
        self._restore()

    def _restore(self):
        for number, handler in self._before.items():
            signal.signal(number, handler)
