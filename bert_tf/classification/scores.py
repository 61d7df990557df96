"""How good predictions are: the original's accuracy and losses, and the official scores of a task.

Shapes: N examples, C classes.
"""

import importlib.util
import logging

import numpy as np
import tensorflow as tf

logger = logging.getLogger("bert_tf")


def evaluate(task, objective, logits, label_ids, batch_size):
    """The results float32 by name for `logits` float32 [N, C] and `label_ids` [N], as the original's estimator gives.

    `eval_accuracy` (of a task with labels) and `eval_loss` are means over examples; `loss` is the mean of the means of
    batches of `batch_size`, in order: the same but for a short last batch. Then the official scores, `eval_f1` and so
    on, where their library is installed.
    """
    losses = objective.example_losses(tf.constant(logits), tf.constant(label_ids)).numpy().astype(np.float64)
    batches = np.split(losses, range(batch_size, len(losses), batch_size))
    results = {"eval_loss": losses.mean(), "loss": np.mean([batch.mean() for batch in batches])}
    predicted = logits[:, 0]
    if task.labels:
        predicted = logits.argmax(axis=1)
        results["eval_accuracy"] = np.mean(predicted == label_ids)
    if task.scores and importlib.util.find_spec("sklearn") is None:
        logger.info("no official score of %s: scikit-learn is not installed (pip install 'bert_tf[eval]')", task.name)
    else:
        results |= {f"eval_{name}": official(name, label_ids, predicted) for name in task.scores}
    return {name: np.float32(value) for name, value in results.items()}


def metric_names(task):
    """The names of what `evaluate` returns for a task."""
    official_scores = task.scores if importlib.util.find_spec("sklearn") else ()
    return ["loss", "eval_loss", *["eval_accuracy"] * bool(task.labels), *(f"eval_{name}" for name in official_scores)]


def official(name, label_ids, predicted):
    """A score by its name in `tasks.py`, as GLUE computes it: F1 of class 1, correlations of classes or scores [N]."""
    from scipy import stats
    from sklearn import metrics

    scores = {"f1": lambda: metrics.f1_score(label_ids, predicted, zero_division=0.0),
              "matthews_corrcoef": lambda: metrics.matthews_corrcoef(label_ids, predicted),
              "pearson": lambda: stats.pearsonr(label_ids, predicted).statistic,
              "spearman": lambda: stats.spearmanr(label_ids, predicted).statistic}
    return scores[name]()
