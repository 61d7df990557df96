import dataclasses
import importlib.util
import types

import numpy as np
import pytest

from bert_tf.classification import answers, examples, reports, tasks

MNLI, STS_B = tasks.find("MNLI"), tasks.find("STS-B")
SEVERAL = dataclasses.replace(MNLI, labels=("joy", "愤怒", "a\tb"), kind="multi")
# Two of three right, four of four, none of one.
LABEL_IDS = np.int32([0, 0, 0, 1, 1, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, 1, 1, 1, 0])
GOLD = np.float32([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]])
DECIDED = np.array([[1, 0, 0], [1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 0, 0]], bool)


def logits_of(predicted, margins):
    """Logits under which `predicted` is likeliest by a margin."""
    return np.eye(3, dtype=np.float32)[predicted] * np.float32(margins)[:, None]


def quotes(count, pairs=True):
    return (examples.Example(number + 2, f"text {number}\t…", f"and\n{number}" if pairs else None, None)
            for number in range(count))


def test_a_report_by_hand():
    assert reports.make_report(MNLI, PREDICTED, LABEL_IDS) == """\
MNLI: 8 examples, 0.7500 of them right

               precision  recall      f1  examples
contradiction     0.6667  0.6667  0.6667         3
entailment        0.8000  1.0000  0.8889         4
neutral           0.0000  0.0000  0.0000         1
macro average     0.4889  0.5556  0.5185         8

Of the examples of a label (row), how many were taken for which (column):

                 0  1  2
0 contradiction  2  1  .
1 entailment     .  4  .
2 neutral        1  .  .
"""


def test_a_report_on_several_labels_by_hand():
    assert reports.make_report(SEVERAL, DECIDED, GOLD) == """\
MNLI: 5 examples, 0.4000 of them wholly right

               precision  recall      f1  examples
joy               0.6667  1.0000  0.8000         2
愤怒              0.0000  0.0000  0.0000         1
a\\tb              1.0000  0.5000  0.6667         2
micro average     0.7500  0.6000  0.6667         5
macro average     0.5556  0.5000  0.4889         5

Of the examples of a label (row), how many were taken for which (column):

        0  1  2  none
0 joy   2  .  .     .
1 愤怒  1  .  .     .
2 a\\tb  1  .  1     1
"""


def test_confusion_counts_every_example():
    rng = np.random.RandomState(1)
    label_ids, predicted = rng.randint(0, 3, [2, 500])
    counts = reports.confusion(MNLI, predicted, label_ids)
    assert counts.tolist() == [[np.sum((label_ids == row) & (predicted == column)) for column in range(3)]
                               for row in range(3)]
    gold, decided = rng.rand(2, 500, 3) > 0.6
    counts = reports.confusion(SEVERAL, decided, gold.astype(np.int8))
    assert counts.shape == (3, 4)
    assert counts[:, :3].tolist() == [[np.sum(gold[:, row] & decided[:, column]) for column in range(3)]
                                      for row in range(3)]
    assert counts[:, 3].tolist() == [np.sum(gold[:, row] & ~decided.any(axis=1)) for row in range(3)]


def test_the_surest_mistakes_come_first():
    logits = logits_of(PREDICTED, [9, 9, 1, 9, 9, 9, 9, 2])
    found = reports.find_mistakes(MNLI, logits, LABEL_IDS)
    assert [mistake[:3] for mistake in found] == [(7, "neutral", "contradiction"), (2, "contradiction", "entailment")]
    assert [mistake.size for mistake in found] == pytest.approx([np.exp(2) / (np.exp(2) + 2), np.e / (np.e + 2)])
    assert reports.find_mistakes(MNLI, logits, PREDICTED) == []
    assert reports.find_mistakes(MNLI, logits, LABEL_IDS, count=1) == found[:1]


def test_of_many_mistakes_the_surest_are_kept():
    rng = np.random.RandomState(2)
    logits, label_ids = rng.normal(0, 3, [1000, 3]).astype(np.float32), rng.randint(0, 3, 1000)
    found = reports.find_mistakes(MNLI, logits, label_ids)
    sure = answers.probabilities(logits, "single").max(axis=1)
    wrong = np.flatnonzero(logits.argmax(axis=1) != label_ids)
    assert [mistake.number for mistake in found] == sorted(wrong, key=lambda number: -sure[number])[:20]


def test_wrong_decisions_on_several_labels():
    logits = np.where(DECIDED, 1.0, -1.0).astype(np.float32)
    logits[2, 0], logits[3, 2] = 3.0, -4.0
    found = reports.find_mistakes(SEVERAL, logits, GOLD)
    assert [mistake[:3] for mistake in found] == [(3, "a\\tb", "not a\\tb"), (2, "not joy", "joy"),
                                                  (1, "愤怒", "not 愤怒")]
    assert [mistake.size for mistake in found] == pytest.approx(1 / (1 + np.exp([-4.0, -3.0, -1.0])))


def test_the_greatest_errors_of_scores():
    found = reports.find_mistakes(STS_B, np.float32([[1], [2], [4.5]]), np.float32([1, 4.5, 3.25]))
    assert found == [(1, "4.5", "2", 2.5), (2, "3.25", "4.5", 1.25)]


def test_the_table_of_mistakes(tmp_path):
    mistakes = [reports.Mistake(3, "neutral", "entailment", 0.75), reports.Mistake(0, "0", "1", 0.5)]
    lines = np.arange(5) + 2
    reports.write_mistakes(tmp_path / "m.tsv", MNLI, mistakes, lines, quotes(5))
    assert (tmp_path / "m.tsv").read_text(encoding="utf-8") == (
        "line\tlabel\tpredicted\tprobability\ttext_a\ttext_b\n"
        "5\tneutral\tentailment\t0.750000\ttext 3\\t…\tand\\n3\n2\t0\t1\t0.500000\ttext 0\\t…\tand\\n0\n")
    reports.write_mistakes(tmp_path / "m.tsv", STS_B, [reports.Mistake(1, "4", "2", 2)], lines, quotes(5, pairs=False))
    assert (tmp_path / "m.tsv").read_text(encoding="utf-8") == (
        "line\tlabel\tpredicted\terror\ttext_a\n3\t4\t2\t2.000000\ttext 1\\t…\n")
    reports.write_mistakes(tmp_path / "m.tsv", MNLI, [], lines, quotes(5))
    assert (tmp_path / "m.tsv").read_text() == "line\tlabel\tpredicted\tprobability\ttext_a\n"


@pytest.mark.parametrize("task, logits, label_ids", [
    (MNLI, logits_of(PREDICTED, np.ones(8)), LABEL_IDS), (SEVERAL, np.where(DECIDED, 1, -1).astype(np.float32), GOLD),
    (STS_B, np.ones([3, 1], np.float32), np.float32([1, 2, 3]))])
def test_what_is_written(tmp_path, task, logits, label_ids):
    features = types.SimpleNamespace(label_ids=label_ids, lines=np.arange(len(label_ids)) + 2)
    reports.write(tmp_path, task, logits, features, quotes(len(label_ids)), "_x")
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"mistakes_x.tsv", *["confusion_x.png", "report_x.txt"] * bool(task.labels)}
    if task.labels:
        assert (tmp_path / "report_x.txt").read_text(encoding="utf-8") == reports.make_report(
            task, answers.decisions(logits, task.kind), label_ids)


def test_what_needs_a_missing_library_is_left_out_and_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    features = types.SimpleNamespace(label_ids=LABEL_IDS, lines=np.arange(8))
    with caplog.at_level("INFO"):
        reports.write(tmp_path, MNLI, logits_of(PREDICTED, np.ones(8)), features, quotes(8))
    assert [path.name for path in tmp_path.iterdir()] == ["mistakes.tsv"]
    assert "report.txt: scikit-learn is not installed" in caplog.text
    assert "confusion.png: matplotlib is not installed" in caplog.text


@pytest.mark.parametrize("count, kind", [(2, "single"), (28, "multi"), (28, "single"), (150, "single")])
def test_the_picture_has_room_for_all_labels(tmp_path, count, kind):
    image = pytest.importorskip("matplotlib.image")
    labels = ("$x", "a_{b}$", "愤怒", "a label of a great many characters", *map(str, range(count)))[:count]
    task = dataclasses.replace(MNLI, labels=labels, kind=kind)
    rng = np.random.RandomState(4)
    reports.draw_confusion(tmp_path / "c.png", task, rng.randint(0, 2000, [count, count + (kind == "multi")]))
    height, width, _ = image.imread(tmp_path / "c.png").shape
    assert height >= min(count, 70) * 40 and width >= min(count, 70) * 40


@pytest.mark.parametrize("task, logits, label_ids, expected", [
    (MNLI, logits_of([1, 1, 1], [1, 2, 3]), [0, 1, 2], "entailment"),
    (MNLI, logits_of([1, 1, 0], [1, 2, 3]), [0, 1, 2], None),
    (MNLI, logits_of([1, 1, 1], [1, 2, 3]), [1, 1, 1], None),
    (SEVERAL, -np.ones([5, 3], np.float32), GOLD, "no label"),
    (SEVERAL, np.float32([[1, 1, -1]] * 5), GOLD, "joy,愤怒"),
    (SEVERAL, np.where(DECIDED, 1, -1), GOLD, None),
    (STS_B, np.float32([[2.5], [2.501], [2.499]]), [0, 3, 5], "a score of about 2.5"),
    (STS_B, np.float32([[2.5], [2.8], [2.2]]), [0, 3, 5], None)])
def test_runs_that_collapsed(task, logits, label_ids, expected):
    assert reports.collapsed(task, logits, np.asarray(label_ids)) == expected
