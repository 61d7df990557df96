"""Where a classifier is right and where not: a table of its classes, which it takes for which, its worst mistakes.

Shapes: N examples, C classes.
"""

import importlib.util
import logging
import os
import typing

import numpy as np

from bert_tf import files, reporting
from bert_tf.classification import answers, scores
from bert_tf.reporting import align, escape

logger = logging.getLogger("bert_tf")

NAMES = REPORT, CONFUSION, MISTAKES = "report{}.txt", "confusion{}.png", "mistakes{}.tsv"
NUM_MISTAKES = 20
NONE = "none"  # the column of examples that no label was predicted for
FEWEST_SCORES = 0.01  # a spread of predicted scores below so much of the true ones' is none


class Mistake(typing.NamedTuple):
    """What was predicted for the example `number` instead of `gold`, and how surely, or how far from it."""

    number: int
    gold: str
    predicted: str
    size: float


def write(folder, task, logits, features, examples, suffix=""):
    """Writes `report.txt`, `confusion.png` and `mistakes.tsv` for `logits` float32 [N, C] of `features` into `folder`.

    `examples` yields the N examples in their order, to be quoted. `suffix` ends the files' names. A score has no
    classes, hence mistakes alone; what needs a library that is not installed is left out and said.
    """
    def path(name):
        return os.path.join(folder, name.format(suffix))

    if task.labels:
        decided = answers.decisions(logits, task.kind)
        if scores.is_installed():
            with files.replacing(path(REPORT)) as file:
                file.write(make_report(task, decided, features.label_ids))
        else:
            logger.info("no %s: scikit-learn is not installed (pip install 'bert_tf[eval]')", path(REPORT))
        if importlib.util.find_spec("matplotlib") is None:
            logger.info("no %s: matplotlib is not installed (pip install 'bert_tf[plot]')", path(CONFUSION))
        else:
            draw_confusion(path(CONFUSION), task, confusion(task, decided, features.label_ids))
    write_mistakes(path(MISTAKES), task, find_mistakes(task, logits, features.label_ids), features.lines, examples)


def make_report(task, decided, label_ids):
    """The text of a report on decisions int [N], or bool [N, C]: every class, the averages, the confusion matrix."""
    several = task.kind == "multi"
    right = (decided == label_ids).all(axis=1) if several else decided == label_ids
    table = [["", "precision", "recall", "f1", "examples"]]
    labels = [escape(label) for label in task.labels]
    for label, (*values, count) in zip(labels, scores.by_class(label_ids, decided, task.num_classes)):
        table.append([label, *(f"{value:.4f}" for value in values), f"{count:.0f}"])
    for average in ("micro", "macro") if several else ("macro",):
        values = scores.averaged(average, label_ids, decided)
        table.append([f"{average} average", *(f"{value:.4f}" for value in values), str(len(right))])
    counts = confusion(task, decided, label_ids)
    matrix = [["", *map(str, range(task.num_classes)), *[NONE] * several]]
    for number, (label, row) in enumerate(zip(labels, counts.tolist())):
        matrix.append([f"{number} {label}", *(str(count or ".") for count in row)])
    return (f"{task.name}: {len(right)} examples, {np.mean(right):.4f} of them {'wholly ' * several}right\n\n"
            f"{align(table)}\nOf the examples of a label (row), how many were taken for which (column):\n\n"
            f"{align(matrix)}")


def confusion(task, decided, label_ids):
    """How many examples of each label were taken for which: int64 [C, C]; of several labels [C, C + 1], the last none.

    An example of several labels counts for each pair of one that holds and one that was predicted.
    """
    if task.kind == "multi":
        taken = np.column_stack([decided, ~decided.any(axis=1)])
        return (np.asarray(label_ids, np.float64).T @ taken.astype(np.float64)).astype(np.int64)
    count = task.num_classes
    return np.bincount(label_ids.astype(np.int64) * count + decided, minlength=count ** 2).reshape(count, count)


def draw_confusion(path, task, counts):
    """A picture of `confusion`."""
    # Numbers too, for scripts that the picture's font cannot write.
    names = [f"{number} {escape(label)}" for number, label in enumerate(task.labels)]
    reporting.draw_confusion(path, counts, [*names, NONE][:counts.shape[1]], "label")


def find_mistakes(task, logits, label_ids, count=NUM_MISTAKES):
    """The `Mistake`s of which the classifier is surest, by probability; of a score the greatest errors.

    Of several labels every wrong decision is one: that a label holds, or that it does not.
    """
    decided = answers.decisions(logits, task.kind)
    if task.kind == "multi":
        return _find_wrong_labels(task, logits, decided, label_ids > 0, count)
    is_score = task.kind == "regression"
    sizes = np.abs(decided - label_ids) if is_score else answers.probabilities(logits, task.kind).max(axis=1)
    numbers = _greatest(sizes, decided != label_ids, count)
    return list(map(Mistake, numbers, answers.names(task, label_ids[numbers]),
                    answers.names(task, decided[numbers]), sizes[numbers]))


def _find_wrong_labels(task, logits, decided, holds, count):
    likelihoods = answers.probabilities(logits, task.kind)
    sizes = np.where(decided, likelihoods, 1 - likelihoods)
    mistakes = []
    for place in _greatest(sizes.ravel(), (decided != holds).ravel(), count):
        number, label = divmod(place, task.num_classes)
        name = escape(task.labels[label])
        gold, predicted = (name, f"not {name}") if holds[number, label] else (f"not {name}", name)
        mistakes.append(Mistake(number, gold, predicted, sizes[number, label]))
    return mistakes


def _greatest(sizes, is_wrong, count):
    """The places int64 of the `count` greatest `sizes` where `is_wrong`, the first of equal ones."""
    wrong = np.flatnonzero(is_wrong)
    return wrong[np.argsort(-sizes[wrong], kind="stable")[:count]]


def write_mistakes(path, task, mistakes, lines, examples):
    """Writes a row for each mistake: its line in the file, what it is and was taken for, how surely, and its texts."""
    wanted = {mistake.number for mistake in mistakes}
    found = {number: example for number, example in enumerate(examples) if number in wanted} if wanted else {}
    pairs = any(example.text_b is not None for example in found.values())
    header = ["line", "label", "predicted", "error" if task.kind == "regression" else "probability", "text_a"]
    with files.replacing(path) as file:
        file.write("\t".join(header + ["text_b"] * pairs) + "\n")
        for number, gold, predicted, size in mistakes:
            texts = [found[number].text_a] + [found[number].text_b or ""] * pairs
            file.write("\t".join([str(lines[number]), gold, predicted, f"{size:.6f}", *map(escape, texts)])
                       + "\n")


def collapsed(task, logits, label_ids):
    """What a run that learned nothing predicts for every example, in words; None where predictions differ.

    Of scores, those that differ by less than a hundredth of the true ones' deviation. None too where all examples
    have the same label.
    """
    decided = answers.decisions(logits, task.kind)
    if task.kind == "regression":
        same = decided.std() < FEWEST_SCORES * label_ids.std()
        return f"a score of about {decided.mean():.3g}" if same else None
    if (decided != decided[0]).any() or (label_ids == label_ids[0]).all():
        return None
    return answers.names(task, decided[:1])[0] or "no label"
