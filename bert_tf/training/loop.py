"""The training loop: calls to the device, each about a second long; between them checkpoints, callbacks, signals."""

import contextlib
import dataclasses
import logging
import signal
import time

import keras
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.training import precision, speed
from bert_tf.training.agreement import build_agreement
from bert_tf.training.saving import Saver, last_good, prefix_of
from bert_tf.training.step import build_train_loop, scalar_names

logger = logging.getLogger("bert_tf")

SECONDS_A_CALL = 1.0
# More batch shapes than this are a sign that something else than lengths varies.
MANY_SHAPES = 40
# What TensorFlow raises where another worker of a cluster is gone.
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError, tf.errors.CancelledError,
        tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How far a run goes and when it stops for a moment, in steps; `iterations_per_loop` None: about a second.

    `profile_steps` (A, B): the steps from A to B are traced. `skip_nonfinite` goes on after a step whose loss or
    gradient is not finite. `clip_norm` 0: gradients are not clipped.
    """

    output_dir: str
    num_train_steps: int
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 5
    keep_checkpoint_every_n_steps: int = 0
    iterations_per_loop: int | None = None
    eval_every_steps: int = 0
    profile_steps: tuple = ()
    skip_nonfinite: bool = False
    clip_norm: float = 1.0


def train(state, objective, feed, runtime, schedule, callbacks=(), selection=None):
    """Trains until `schedule.num_train_steps` and returns the last checkpoint's prefix.

    `state` is a `TrainingState`, `feed` a `batching.Feed` over all of the run's data, `callbacks` are Keras callbacks:
    they get `on_train_batch_end(step, logs)` for every step, with what `scalar_names` lists and the speeds, and
    `on_epoch_end(number, metrics)` for every evaluation.
    `selection` evaluates every `eval_every_steps`, keeps the best checkpoint and may end the run early.
    A bad example and a signal end the run with a `UserError` after a checkpoint; a loss or gradient that is not
    finite and the loss of another worker end it without one, so that the last good checkpoint stands.
    """
    device_loop = build_train_loop(state.model, objective, state.optimizer, runtime, schedule.clip_norm,
                                   state.loss_scale)
    agree, pace = build_agreement(runtime), Pace(schedule)
    watch = Watch(state, feed, schedule, scalar_names(objective), runtime)
    iterator = iter(feed.dataset(state.examples_seen))
    callbacks = keras.callbacks.CallbackList(list(callbacks), model=state.model,
                                             steps=schedule.num_train_steps, initial_step=state.step)
    state.model.stop_training = False
    callbacks.on_train_begin()
    try:
        with Saver(schedule.output_dir, schedule.keep_checkpoint_max, schedule.keep_checkpoint_every_n_steps,
                   runtime.is_chief) as saver, Signals() as signals, naming_lost_workers(runtime):
            if selection:
                selection.write()
                if selection.best_step is not None:
                    saver.best = prefix_of(schedule.output_dir, selection.best_step)
            while state.step < schedule.num_train_steps:
                steps, stop = agree(pace.steps(state.step), bool(signals.received or state.model.stop_training))
                if stop:
                    _stop(state, saver, signals)
                    break
                saver.check()
                started = time.perf_counter()
                with naming_exhausted_memory():
                    rows = device_loop(iterator, tf.constant(steps)).numpy()
                pace.record(steps, time.perf_counter() - started)
                watch.report(callbacks, rows, time.perf_counter() - started, saver)
                if len(rows) < steps:
                    raise UserError(f"{feed.error or 'the data ended before the training'} {_saved(state, saver)}")
                if _pause(state, schedule, saver, selection, callbacks):
                    break
            saver.save(state)
            saver.wait()
            agree(0, False)  # no worker leaves before the chief has written what all may read next
    except BaseException:
        with contextlib.suppress(Exception):  # which would hide why the run ends
            callbacks.on_train_end()
        raise
    callbacks.on_train_end()
    return prefix_of(schedule.output_dir, state.step)


def _pause(state, schedule, saver, selection, callbacks):
    """Evaluates and saves where it is time -> whether the run ends here, since it gets no better."""
    ends = False
    at_end = state.step == schedule.num_train_steps
    if selection and (at_end or state.step % schedule.eval_every_steps == 0):
        try:
            metrics = selection.record(state.step)
        except UserError as error:
            raise UserError(f"{error} {_saved(state, saver)}") from error
        callbacks.on_epoch_end(len(selection.rows) - 1, {"step": state.step, **metrics})
        is_best = selection.best_step == state.step
        logger.info("step %d: %s%s", state.step, ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()),
                    ", the best so far" if is_best else "")
        if selection.best_step is not None:
            saver.best = prefix_of(schedule.output_dir, selection.best_step)
        ends = selection.exhausted
        if ends:
            logger.info("no better %s since step %d: training ends early", selection.metric, selection.best_step or 0)
        if is_best:
            saver.save(state)
    if state.step % schedule.save_checkpoints_steps == 0:
        saver.save(state)
    return ends


@contextlib.contextmanager
def naming_exhausted_memory():
    """Turns what TensorFlow raises when a device's memory does not hold a step into a `UserError`."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise UserError("a step does not fit into the device's memory; a smaller --device_batch_size, --recompute or "
                        f"--precision=bfloat16 takes less ({' '.join(str(error).split())[:200]})") from error


def _stop(state, saver, signals):
    """Ends the run where a signal came, to this worker or another; a callback that stops it is no error."""
    if signals.received or not state.model.stop_training:
        what = f"stopped by {signals.received}" if signals.received else "stopped by a signal to another worker"
        raise UserError(f"{what}; the same command goes on from there {_saved(state, saver)}")


def _saved(state, saver):
    prefix = saver.save(state)
    saver.wait()
    return f"(step {state.step}, saved as {prefix})"


class Watch:
    """Looks at the rows of every call: counts examples, reports steps, stops at what is not finite."""

    def __init__(self, state, feed, schedule, names, runtime):
        self.state = state
        self.feed = feed
        self.schedule = schedule
        self.names = names
        self.runtime = runtime
        self.peak = speed.measure_peak(state.model.compute_dtype) * runtime.devices
        self.skipped = 0  # in a row
        self.shapes = 0

    def report(self, callbacks, rows, seconds, saver):
        """Hands the logs of every step of a call to the callbacks; `UserError` at a step that must not be."""
        logs = [dict(zip(self.names, row)) for row in rows.tolist()]
        speeds = self._speeds(logs, seconds)
        first = self.state.step - len(rows)
        for step, row in enumerate(logs, start=first + 1):
            if row["skipped"]:
                self._skip(step, row, saver)
            self.skipped = self.skipped + 1 if row["skipped"] else 0
            self.state.examples_seen += int(row["examples"])
            callbacks.on_train_batch_end(step, {**row, **speeds})
        self._count_shapes()

    def _speeds(self, logs, seconds):
        def total(name):
            return sum(row[name] for row in logs)

        flops = total("flops") / seconds
        return {"steps_per_second": len(logs) / seconds, "examples_per_second": total("examples") / seconds,
                "tokens_per_second": total("tokens") / seconds,
                "padding": 1.0 - total("tokens") / total("rows") if logs else 0.0,
                "flops_per_second": flops, "share_of_peak": flops / self.peak}

    def _skip(self, step, row, saver):
        """Says that a step did not count; `UserError` where the run is not to go on after it."""
        saver.wait()
        numbers = next(iter(self.feed.order(self.state.examples_seen)))
        examples = ", ".join(self.feed.where(number) for number in numbers.tolist())
        if self.state.loss_scale:
            logger.warning("step %d skipped: its gradient overflowed at a loss scale of %g", step, row["loss_scale"])
        elif self.schedule.skip_nonfinite:
            logger.warning("step %d skipped: its loss or gradient is not finite; its examples: %s", step, examples)
        else:
            raise UserError(f"the loss or its gradient is not finite at step {step} (--skip_nonfinite leaves such "
                            f"steps out); {last_good(saver.saved)}; the step's examples: {examples}")
        if self.skipped + 1 >= precision.MOST_SKIPPED:
            raise UserError(f"step {step}: the last {precision.MOST_SKIPPED} steps in a row had no finite gradient; "
                            f"{last_good(saver.saved)}; the step's examples: {examples}")

    def _count_shapes(self):
        """Logs how many programs XLA has compiled; warns where they grow beyond what lengths explain."""
        found, self.shapes = self.shapes, len(self.feed.shapes)
        if self.runtime.xla and self.shapes > found:
            logger.info("XLA: %d batch shapes so far, each compiled once", self.shapes)
            if self.shapes > MANY_SHAPES >= found:
                logger.warning("XLA has compiled %d batch shapes: batches differ in more than their length; a "
                               "--train_batch_size that replicas x micro-batches divide helps", self.shapes)


@contextlib.contextmanager
def naming_lost_workers(runtime):
    """Turns what TensorFlow raises for a lost worker of a cluster into a `UserError` that names it."""
    try:
        yield
    except LOST as error:
        if runtime.cluster is None:
            raise
        lost = ", ".join(runtime.cluster.lost()) or "another worker"
        raise UserError(f"{lost} is gone, or its network; the same command on every worker goes on from the last "
                        "checkpoint") from error


class Pace:
    """How many steps the next call runs: as the schedule says, else what takes about a second; never past a pause."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.wanted = schedule.iterations_per_loop or 1
        self.calls = 0

    def steps(self, step):
        """The number of steps of the call that begins after `step` steps."""
        schedule = self.schedule
        pauses = [every - step % every for every in (schedule.save_checkpoints_steps, schedule.eval_every_steps)
                  if every]
        if schedule.profile_steps:
            first, last = schedule.profile_steps
            pauses += [end - step for end in (first - 1, last) if end > step]
        return min(self.wanted, *pauses, schedule.num_train_steps - step)

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
