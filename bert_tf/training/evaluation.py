"""Evaluation: losses and accuracies over a number of batches, as the original's estimator reports them."""

import numpy as np
import tensorflow as tf


def evaluate(model, objective, feed, runtime):
    """The metrics of every batch of a `batching.Feed`, as float32 numbers by name.

    `<name>_loss` and `<name>_accuracy` are means over all weights of all batches; `loss` is the mean of the batches'
    total losses, hence not quite their sum. A bad example is the feed's `UserError`.
    """
    names = list(objective.EPSILON)

    @tf.function(jit_compile=runtime.xla, reduce_retracing=True)
    def measure(batch):
        outputs = objective.forward(model, batch)
        parts = (objective.sums(outputs, batch), objective.accuracy_sums(outputs, batch), objective.weights(batch))
        return tf.stack([[part[name] for name in names] for part in parts])

    epsilons = np.array(list(objective.EPSILON.values()), np.float64)
    totals, batch_losses = np.zeros([3, len(names)]), []
    for batch in feed.dataset():
        sums, right, weights = measure(batch).numpy().astype(np.float64)
        totals += (sums, right, weights)
        batch_losses.append((sums / (weights + epsilons)).sum())
    if feed.error:
        raise feed.error
    results = {"loss": np.mean(batch_losses)}
    for name, loss, right, weight in zip(names, *totals):
        results[name] = loss / weight if weight else 0.0
        results[name.removesuffix("_loss") + "_accuracy"] = right / weight if weight else 0.0
    return {name: np.float32(value) for name, value in results.items()}
