"""What a person sees of a run: the bar, `train_log.jsonl`, TensorBoard's scalars, `curves.png`.

All are Keras callbacks; the logs of a step are what `step.scalar_names` lists and the speeds that `loop.train` adds.
"""

import importlib.util
import json
import logging
import os
import sys
import time

import keras
import tensorflow as tf

from bert_tf import files
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

LOG = "train_log.jsonl"
CURVES = "curves.png"
BAR_WIDTH = 20

# What marks a point for TensorBoard's scalar plugin: `tf.summary.scalar` would need TensorBoard itself installed.
SCALAR = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR", plugin_data={"plugin_name": "scalars"})


class Bar(keras.callbacks.Callback):
    """One line with step, loss, rate, speed and time left: rewritten on a terminal, printed now and then elsewhere."""

    def __init__(self, stream=None):
        super().__init__()
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.seconds_between = 0.2 if self.live else 10.0
        self.shown = 0.0

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.params["steps"] or time.perf_counter() - self.shown >= self.seconds_between:
            self.shown = time.perf_counter()
            line = progress_line(batch, self.params["steps"], logs)
            self.stream.write(f"\r{line}\x1b[K" if self.live else f"{line}\n")
            self.stream.flush()

    def on_train_end(self, logs=None):
        if self.live:
            self.stream.write("\n")


def progress_line(step, num_train_steps, logs):
    """The bar's text for the logs of a step."""
    done = step * BAR_WIDTH // num_train_steps
    hours, seconds = divmod(int((num_train_steps - step) / logs["steps_per_second"]), 3600)
    return (f"[{'=' * done}{'.' * (BAR_WIDTH - done)}] {step}/{num_train_steps}  loss {logs['loss']:.4f}  "
            f"rate {logs['learning_rate']:.3g}  {logs['examples_per_second']:.1f} examples/s  "
            f"left {hours}:{seconds // 60:02d}:{seconds % 60:02d}")


class Log(keras.callbacks.Callback):
    """A JSON line for every step in `train_log.jsonl`, and about one point a second for TensorBoard.

    A run that goes on from an earlier checkpoint than it had logged drops the later lines first.
    """

    def __init__(self, output_dir):
        super().__init__()
        self.output_dir = output_dir
        self.path = os.path.join(output_dir, LOG)

    def on_train_begin(self, logs=None):
        earlier = [row for row in read_log(self.path) if row["step"] <= self.params["initial_step"]]
        with files.replacing(self.path) as file:
            file.writelines(json.dumps(row) + "\n" for row in earlier)
        self.file = tf.io.gfile.GFile(self.path, "a")
        self.writer = tf.summary.create_file_writer(self.output_dir)
        self.flushed = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        try:
            self._write(batch, logs)
        except tf.errors.OpError as error:
            raise UserError(f"{self.path}: cannot be written ({' '.join(str(error).split())})") from error

    def _write(self, batch, logs):
        self.file.write(json.dumps({"step": batch, **logs}) + "\n")
        if batch == self.params["steps"] or time.perf_counter() - self.flushed >= 1.0:
            with self.writer.as_default(step=batch):
                for name, value in logs.items():
                    tf.summary.write(name, float(value), metadata=SCALAR)
            self.writer.flush()
            self.file.flush()
            self.flushed = time.perf_counter()

    def on_train_end(self, logs=None):
        self.file.close()
        self.writer.close()


class Profile(keras.callbacks.Callback):
    """Traces the steps from `first` to `last` for TensorBoard's profiler; calls must begin and end there."""

    def __init__(self, output_dir, first, last):
        super().__init__()
        self.output_dir = output_dir
        self.first = first
        self.last = last
        self.running = False

    def on_train_begin(self, logs=None):
        self._start_after(self.params["initial_step"])

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.last:
            self.on_train_end()
        self._start_after(batch)

    def on_train_end(self, logs=None):
        if self.running:
            tf.profiler.experimental.stop()
            self.running = False
            logger.info("profile of steps %d to %d: tensorboard --logdir %s", self.first, self.last, self.output_dir)

    def _start_after(self, step):
        if step == self.first - 1:
            tf.profiler.experimental.start(self.output_dir)
            self.running = True


class Curves(keras.callbacks.Callback):
    """Draws the losses of `train_log.jsonl` as `curves.png` when training ends, where matplotlib is installed."""

    def __init__(self, output_dir):
        super().__init__()
        self.output_dir = output_dir

    def on_train_end(self, logs=None):
        rows = read_log(os.path.join(self.output_dir, LOG))
        if importlib.util.find_spec("matplotlib") is None:
            logger.info("no %s: matplotlib is not installed (pip install 'bert_tf[plot]')", CURVES)
        elif rows:
            draw_curves(rows, os.path.join(self.output_dir, CURVES))


def read_log(path):
    """The rows of a `train_log.jsonl`; [] without one. A line that a killed run left half written ends it."""
    rows = []
    if files.exists(path):
        for _, line in files.read_lines(path):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                break
            if not isinstance(row, dict) or "step" not in row:
                break
            rows.append(row)
    return rows


def draw_curves(rows, path):
    """A picture of every loss by step, smoothed over a fiftieth of the run, and of the learning rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    steps = [row["step"] for row in rows]
    for name in (name for name in rows[-1] if name.endswith("loss")):
        values = [row[name] for row in rows]
        (line,) = axes.plot(steps, values, alpha=0.2, linewidth=0.8)
        axes.plot(steps, _smooth(values, max(1, len(values) // 50)), color=line.get_color(), label=name)
    axes.set(xlabel="step", ylabel="loss")
    axes.grid(alpha=0.3)
    rate_axes = axes.twinx()
    rate_axes.plot(steps, [row["learning_rate"] for row in rows], "k:", linewidth=0.8, label="learning rate")
    rate_axes.set(ylabel="learning rate")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    with files.replacing(path, "wb") as file:
        figure.savefig(file, format="png", dpi=110)


def _smooth(values, window):
    """The mean of the last `window` values at each place."""
    total, means = 0.0, []
    for index, value in enumerate(values):
        total += value - (values[index - window] if index >= window else 0.0)
        means.append(total / min(index + 1, window))
    return means
