import json
import math

import pytest

from bert_tf.training.selection import LOG, Selection


def make(folder, values, metric="accuracy", **settings):
    values = iter(values)
    selection = Selection(str(folder), lambda: {"loss": 1.0, metric: next(values)}, metric, **settings)
    selection.begin(0)
    return selection


def test_the_highest_metric_is_the_best_the_lowest_loss(tmp_path):
    (tmp_path / "b").mkdir()
    highest, lowest = make(tmp_path, [0.2, 0.9, 0.9, 0.1]), make(tmp_path / "b", [3.0, 1.0, 2.0], "eval_loss")
    assert highest.best_step is None and not highest.exhausted
    for step in (10, 20, 30, 40):
        highest.record(step)
    assert highest.best_step == 20  # the first of equals
    for step in (10, 20, 30):
        lowest.record(step)
    assert lowest.best_step == 20


def test_patience_counts_evaluations_since_the_best(tmp_path):
    selection, found = make(tmp_path, [0.5, 0.4, 0.6, 0.6, 0.5], patience=2), []
    for step in range(1, 6):
        selection.record(step)
        found.append(selection.exhausted)
    assert found == [False, False, False, False, True]


def test_a_restart_knows_the_best_so_far_and_forgets_what_it_does_again(tmp_path):
    first = make(tmp_path, [0.7, 0.3, 0.9], patience=2)
    for step in (5, 10, 15):
        first.record(step)
    (tmp_path / "model.ckpt-5.index").touch()
    again = Selection(str(tmp_path), lambda: {"accuracy": 0.1}, "accuracy", patience=2)
    again.begin(12)  # the newest checkpoint is of step 12
    assert [row["step"] for row in again.rows] == [5, 10] and again.best_step == 5
    again.record(15)
    assert again.exhausted
    rows = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [(row["step"], row["accuracy"]) for row in rows] == [(5, 0.7), (10, 0.3), (15, 0.1)]


def test_only_the_chief_writes(tmp_path):
    make(tmp_path, [0.5], is_chief=False).record(1)
    assert not list(tmp_path.iterdir())


def test_what_is_no_number_is_never_the_best(tmp_path):
    selection, _ = make(tmp_path, [math.nan, 0.4, math.nan], metric="accuracy", patience=2), []
    found = []
    for step in (1, 2, 3):
        selection.record(step)
        found.append((selection.best_step, selection.exhausted))
    assert found == [(None, False), (2, False), (2, False)]


@pytest.mark.parametrize("metric, basis", [("loss", {}), ("accuracy", {"use_ema": True}),
                                           ("accuracy", {"evaluated_on": "another"})])
def test_evaluations_that_cannot_be_compared_are_forgotten(tmp_path, caplog, metric, basis):
    usual = {"use_ema": False, "evaluated_on": "one"}
    make(tmp_path, [0.4], metric="accuracy", **usual).record(1)
    (tmp_path / "model.ckpt-1.index").touch()
    same, other = (Selection(str(tmp_path), dict, *how[:1], **usual | how[1])
                   for how in (("accuracy", {}), (metric, basis)))
    same.begin(1)
    assert same.best_step == 1 and same.is_up_to(1) and not caplog.text
    other.begin(1)
    assert other.rows == [] and other.best_step is None and "count no more" in caplog.text


def test_a_best_step_whose_checkpoint_is_gone_is_none(tmp_path, caplog):
    make(tmp_path, [0.4]).record(1)
    again = make(tmp_path, [])
    again.begin(1)
    assert again.best_step is None and "was at step 1, whose checkpoint is not there any more" in caplog.text
