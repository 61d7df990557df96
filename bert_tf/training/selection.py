"""Evaluation while training: which step was the best, and whether it is time to stop.

All that is known of it is a list of lines in the output folder: so it is the same after a restart.
"""

import json
import logging
import math
import os

from bert_tf import files
from bert_tf.training.journal import read_log
from bert_tf.training.saving import prefix_of

logger = logging.getLogger("bert_tf")

LOG = "eval_log.jsonl"


class Selection:
    """The evaluations of a run: the best by `metric` (the lowest if its name ends in "loss", else the highest).

    `evaluate()` returns the metrics of the present weights by name. `patience` 0 never stops; else the run is
    `exhausted` after so many evaluations in a row that were not better than the best before them. Plain values in
    `basis` say what else decides the metrics: what is evaluated on, and whether it is the averages of the weights.
    """

    def __init__(self, output_dir, evaluate, metric, patience=0, is_chief=True, **basis):
        self.output_dir = output_dir
        self.path = os.path.join(output_dir, LOG)
        self.basis = {"best_metric": metric, **basis}
        self.evaluate = evaluate
        self.metric = metric
        self.patience = patience
        self.is_chief = is_chief
        self.rows = []

    def begin(self, step):
        """Takes up what an earlier part of the run found up to `step`; what came later is forgotten by `write`."""
        rows = [row for row in read_log(self.path) if row["step"] <= step]
        self.rows = [row for row in rows if row.items() >= self.basis.items()]
        if len(self.rows) < len(rows):
            logger.warning("%s: evaluations by another metric, of other data or of other weights count no more",
                           self.path)
        if self.best_step is not None and not files.exists(f"{prefix_of(self.output_dir, self.best_step)}.index"):
            logger.warning("%s: the best was at step %d, whose checkpoint is not there any more; the evaluations so "
                           "far count no more", self.path, self.best_step)
            self.rows = []

    def record(self, step):
        """Evaluates, notes it, and returns the metrics."""
        metrics = {name: float(value) for name, value in self.evaluate().items()}
        row = {"step": step, **self.basis, **metrics}
        self.rows = [row for row in self.rows if row["step"] != step] + [row]
        self.write()
        return metrics

    @property
    def best_step(self):
        """The step of the best evaluation, the first of equals; None before any that gave a number."""
        return find_best({row["step"]: row for row in self.rows}, self.metric)

    def is_up_to(self, step):
        """Whether the last evaluation was that of `step`."""
        return bool(self.rows) and self.rows[-1]["step"] == step

    @property
    def exhausted(self):
        """Whether `patience` evaluations have come since the best."""
        since = sum(row["step"] > (self.best_step or 0) for row in self.rows)
        return bool(self.patience) and since >= self.patience

    def write(self):
        """Puts what is known into the output folder, and nothing else; the chief's task."""
        if self.is_chief:
            with files.replacing(self.path) as file:
                file.writelines(json.dumps(row) + "\n" for row in self.rows)


def find_best(rows, metric):
    """The key of the best of several rows of metrics, the first of equals; NaN is no value, None without any.

    The lowest is the best of a metric whose name ends in "loss", else the highest.
    """
    values = {key: row[metric] for key, row in rows.items() if not math.isnan(row[metric])}
    choose = min if metric.endswith("loss") else max
    return choose(values, key=values.get, default=None)
