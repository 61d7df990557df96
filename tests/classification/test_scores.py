import dataclasses
import importlib.util

import numpy as np
import pytest

from bert_tf.classification import scores, tasks
from bert_tf.classification.objective import build_objective


def classes(*labels):
    """Logits under which these labels are the likeliest."""
    return np.eye(3, dtype=np.float32)[list(labels)] * 2


def evaluate(name, logits, label_ids, batch_size=8):
    task = tasks.find(name)
    label_ids = np.array(label_ids, np.int32 if task.labels else np.float32)
    return scores.evaluate(task, build_objective(task), logits, label_ids, batch_size)


def test_accuracy_and_losses_by_hand():
    results = evaluate("MNLI", classes(0, 1, 2, 0, 1), [0, 1, 1, 0, 1], batch_size=2)
    right, wrong = np.log(2 + np.exp(2)) - 2, np.log(2 + np.exp(2))
    assert set(results) == {"eval_accuracy", "eval_loss", "loss"}
    assert results["eval_accuracy"] == np.float32(0.8)
    assert results["eval_loss"] == pytest.approx((4 * right + wrong) / 5, rel=1e-6)
    # The mean of batches' means, of which the last holds one example.
    assert results["loss"] == pytest.approx((right + (wrong + right) / 2 + right) / 3, rel=1e-6)
    assert all(value.dtype == np.float32 for value in results.values())


def test_one_batch_may_hold_all():
    results = evaluate("MNLI", classes(0, 1), [0, 0], batch_size=100)
    assert results["loss"] == results["eval_loss"]


@pytest.mark.parametrize("predicted, labels, f1", [
    ([1, 1, 0, 0], [1, 0, 1, 0], 0.5), ([1, 1, 1], [1, 1, 0], 0.8), ([0, 0], [1, 1], 0.0), ([0, 0], [0, 0], 0.0)])
def test_f1_is_that_of_class_one(predicted, labels, f1):
    for name in ("MRPC", "QQP"):
        results = evaluate(name, classes(*predicted)[:, :2], labels)
        assert results["eval_f1"] == pytest.approx(f1)


def test_matthews_correlation_by_hand():
    predicted, labels = [1, 1, 1, 0, 0, 1], [1, 1, 0, 0, 1, 1]  # 3 true, 1 false positives; 1 true, 1 false negatives
    results = evaluate("CoLA", classes(*predicted)[:, :2], labels)
    expected = (3 * 1 - 1 * 1) / np.sqrt((3 + 1) * (3 + 1) * (1 + 1) * (1 + 1))
    assert results["eval_matthews_corrcoef"] == pytest.approx(expected)
    assert evaluate("CoLA", classes(1, 1)[:, :2], [0, 1])["eval_matthews_corrcoef"] == 0.0


def test_correlations_by_hand():
    logits, labels = np.array([[1.0], [2.0], [2.0], [9.0]], np.float32), [0.5, 1.0, 3.0, 4.0]
    results = evaluate("STS-B", logits, labels)
    assert set(results) == {"eval_loss", "loss", "eval_pearson", "eval_spearman"}
    assert results["eval_pearson"] == pytest.approx(np.corrcoef(logits[:, 0], labels)[0, 1])
    assert results["eval_spearman"] == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1])
    assert results["eval_loss"] == pytest.approx(np.mean((logits[:, 0] - labels) ** 2))


def test_without_its_library_the_official_score_is_left_out_and_said(monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with caplog.at_level("INFO"):
        assert set(evaluate("MRPC", classes(1, 0)[:, :2], [1, 0])) == {"eval_accuracy", "eval_loss", "loss"}
        assert "no official score of MRPC: scikit-learn is not installed" in caplog.text
        caplog.clear()
        evaluate("RTE", classes(1, 0)[:, :2], [1, 0])
    assert not caplog.text


SEVERAL = dataclasses.replace(tasks.find("MNLI"), kind="multi")


def test_several_labels_by_hand():
    label_ids = np.float32([[1, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]])
    logits = np.float32([[1, -1, -1], [-1, 2, 3], [1, -1, -1], [-9, -1, -1]])
    results = scores.evaluate(SEVERAL, build_objective(SEVERAL), logits, label_ids, 3)
    assert list(results) == ["eval_loss", "loss", "eval_accuracy", "eval_micro_f1", "eval_macro_f1"]
    assert sorted(scores.metric_names(SEVERAL)) == sorted(results)
    assert results["eval_accuracy"] == 0.5
    assert results["eval_micro_f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert results["eval_macro_f1"] == pytest.approx((1 + 1 + 0) / 3)
    likelihoods = 1 / (1 + np.exp(-np.float64(logits)))
    losses = -np.log(np.where(label_ids == 1, likelihoods, 1 - likelihoods)).mean(axis=1)
    assert results["eval_loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert results["loss"] == pytest.approx((losses[:3].mean() + losses[3]) / 2, rel=1e-6)


def test_a_task_may_ask_for_the_f1_of_all_its_classes():
    task = dataclasses.replace(tasks.find("MNLI"), scores=("macro_f1",))
    results = scores.evaluate(task, build_objective(task), classes(0, 1, 2, 0), np.int32([0, 1, 1, 2]), 8)
    # By class: 2/3, 2/3 and none.
    assert results["eval_macro_f1"] == pytest.approx(4 / 9)


def test_scores_of_every_class_by_hand():
    label_ids, predicted = np.int32([0, 1, 1, 2, 2, 2]), np.array([0, 1, 2, 2, 2, 0])
    found = scores.by_class(label_ids, predicted, 4)
    np.testing.assert_allclose(found, [[1 / 2, 1, 2 / 3, 1], [1, 1 / 2, 2 / 3, 2], [2 / 3, 2 / 3, 2 / 3, 3],
                                       [0, 0, 0, 0]])
    # The class that neither occurs nor is predicted is no part of the mean.
    np.testing.assert_allclose(scores.averaged("macro", label_ids, predicted), found[:3, :3].mean(axis=0))
    several = np.eye(4, dtype=np.int8)
    np.testing.assert_array_equal(scores.by_class(several[label_ids], several[predicted] > 0, 4), found)
    np.testing.assert_allclose(scores.averaged("micro", several[label_ids], several[predicted]), [4 / 6] * 3)
