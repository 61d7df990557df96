"""How good predictions are: the original's accuracy and losses, and the official scores of a task.

Shapes: N examples, C classes.
"""

import importlib.util
import logging

import numpy as np
import tensorflow as tf

from bert_tf.classification.answers import decisions

logger = logging.getLogger("bert_tf")

# The scores of a task that has no official ones.
USUAL = {"single": (), "multi": ("micro_f1", "macro_f1"), "regression": ("pearson", "spearman")}


def evaluate(task, objective, logits, label_ids, batch_size):
    """The results float32 by name for `logits` float32 [N, C] and `label_ids` [N], as the original's estimator gives.

    `eval_accuracy` (of a task with labels; where there are several, all of an example must be right) and `eval_loss`
    are means over examples; `loss` is the mean of the means of batches of `batch_size`, in order: the same but for a
    short last batch. Then the official scores, `eval_f1` and so on, where their library is installed.
    """
    losses = objective.example_losses(tf.constant(logits), tf.constant(label_ids)).numpy().astype(np.float64)
    batches = np.split(losses, range(batch_size, len(losses), batch_size))
    results = {"eval_loss": losses.mean(), "loss": np.mean([batch.mean() for batch in batches])}
    predicted = decisions(logits, task.kind)
    if task.labels:
        right = predicted == label_ids
        results["eval_accuracy"] = np.mean(right.all(axis=1) if task.kind == "multi" else right)
    if wanted(task) and not is_installed():
        logger.info("no official score of %s: scikit-learn is not installed (pip install 'bert_tf[eval]')", task.name)
    else:
        results |= {f"eval_{name}": official(name, label_ids, predicted) for name in wanted(task)}
    return {name: np.float32(value) for name, value in results.items()}


def metric_names(task):
    """The names of what `evaluate` returns for a task."""
    names = wanted(task) if is_installed() else ()
    return ["loss", "eval_loss", *["eval_accuracy"] * bool(task.labels), *(f"eval_{name}" for name in names)]


def wanted(task):
    """The names of a task's official scores, or those that are usual for its kind."""
    return task.scores or USUAL[task.kind]


def is_installed():
    """Whether scikit-learn is there, which computes all scores but accuracy and losses."""
    return importlib.util.find_spec("sklearn") is not None


def official(name, label_ids, predicted):
    """A score by its name in `tasks.py`: F1 of class 1, as GLUE has it, or over all labels; correlations [N]."""
    from scipy import stats
    from sklearn import metrics

    def f1(average):
        return metrics.f1_score(label_ids, predicted, average=average, zero_division=0.0)

    scores = {"f1": lambda: f1("binary"),
              "micro_f1": lambda: f1("micro"),
              "macro_f1": lambda: f1("macro"),
              "matthews_corrcoef": lambda: metrics.matthews_corrcoef(label_ids, predicted),
              "pearson": lambda: stats.pearsonr(label_ids, predicted).statistic,
              "spearman": lambda: stats.spearmanr(label_ids, predicted).statistic}
    return scores[name]()


def by_class(label_ids, predicted, num_classes):
    """Precision, recall, F1 (0 where undefined) and number of examples of every class: float64 [C, 4].

    `label_ids` and `predicted` are classes int [N], or [N, C] of 0 and 1 for several labels.
    """
    from sklearn import metrics

    return np.stack(metrics.precision_recall_fscore_support(label_ids, predicted, labels=np.arange(num_classes),
                                                            zero_division=0.0), axis=1).astype(np.float64)


def averaged(average, label_ids, predicted):
    """Precision, recall and F1 over the classes that occur: their mean ("macro"), or of all decisions ("micro")."""
    from sklearn import metrics

    return metrics.precision_recall_fscore_support(label_ids, predicted, average=average, zero_division=0.0)[:3]
