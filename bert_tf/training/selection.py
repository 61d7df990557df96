"""Evaluation while training: which step was the best, and whether it is time to stop.

All that is known of it is a list of lines in the output folder: so it is the same after a restart.
"""

import json
import os

from bert_tf import files

LOG = "eval_log.jsonl"


class Selection:
    """The evaluations of a run: the best by `metric` (the lowest if its name ends in "loss", else the highest).

    `evaluate()` returns the metrics of the present weights by name. `patience` 0 never stops; else the run is
    `exhausted` after so many evaluations in a row that were not better than the best before them.
    """

    def __init__(self, output_dir, evaluate, metric, patience=0, is_chief=True):
        self.path = os.path.join(output_dir, LOG)
        self.evaluate = evaluate
        self.metric = metric
        self.patience = patience
        self.is_chief = is_chief
        self.rows = []

    def begin(self, step):
        """Takes up what an earlier part of the run found up to `step`; forgets what came later."""
        self.rows = [row for row in read(self.path) if row["step"] <= step]
        self._write()

    def record(self, step):
        """Evaluates, notes it, and returns the metrics."""
        metrics = {name: float(value) for name, value in self.evaluate().items()}
        self.rows = [row for row in self.rows if row["step"] != step] + [{"step": step, **metrics}]
        self._write()
        return metrics

    @property
    def best_step(self):
        """The step of the best evaluation, the first of equals; None before any."""
        sign = 1 if self.metric.endswith("loss") else -1
        return min(self.rows, key=lambda row: sign * row[self.metric])["step"] if self.rows else None

    @property
    def exhausted(self):
        """Whether `patience` evaluations have come since the best."""
        since = sum(row["step"] > self.best_step for row in self.rows) if self.rows else 0
        return bool(self.patience) and since >= self.patience

    def _write(self):
        if self.is_chief:
            with files.replacing(self.path) as file:
                file.writelines(json.dumps(row) + "\n" for row in self.rows)


def read(path):
    """The rows of an `eval_log.jsonl`; [] without one."""
    if not files.exists(path):
        return []
    return [json.loads(line) for _, line in files.read_lines(path)]
