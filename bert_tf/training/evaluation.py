"""Evaluation: losses and accuracies over a number of batches, as the original's estimator reports them."""

import numpy as np
import tensorflow as tf

from bert_tf.training.step import all_reduce, per_replica


def build_evaluation(model, objective, runtime):
    """A function `evaluate(feed)` -> the metrics of every batch of a `batching.Feed`, float32 numbers by name.

    `<name>_loss` and `<name>_accuracy` are means over all weights of all batches; `loss` is the mean of the batches'
    total losses, hence not quite their sum. A bad example is the feed's `UserError`.
    """
    strategy = tf.distribute.get_strategy()
    names = list(objective.EPSILON)

    @tf.function(jit_compile=runtime.xla, reduce_retracing=True)
    def measure(batch):
        outputs = objective.forward(model, batch)
        parts = (objective.sums(outputs, batch), objective.accuracy_sums(outputs, batch), objective.weights(batch))
        return tf.stack([[part[name] for name in names] for part in parts])

    @tf.function
    def measure_all(parts, is_real):
        def of_replica(micro_batches, is_real):
            return all_reduce([tf.add_n([measure(batch) for batch in micro_batches]), tf.cast(is_real, tf.float32)])

        measured, real = strategy.run(of_replica, (per_replica(strategy, parts), is_real))
        return strategy.experimental_local_results(measured)[0], strategy.experimental_local_results(real)[0]

    def evaluate(feed):
        epsilons = np.array(list(objective.EPSILON.values()), np.float64)
        totals, batch_losses = np.zeros([3, len(names)]), []
        dataset = feed.dataset()
        measure_any = measure_all.get_concrete_function(*dataset.element_spec)  # traced once, whatever the shapes
        for parts, is_real in dataset:
            measured, real = measure_any(parts, is_real)
            if real < strategy.num_replicas_in_sync:
                break
            sums, right, weights = measured.numpy().astype(np.float64)
            totals += (sums, right, weights)
            batch_losses.append((sums / (weights + epsilons)).sum())
        if feed.error:
            raise feed.error
        return {"loss": np.float32(np.mean(batch_losses)), **_means(names, totals)}

    return evaluate


def metric_names(objective):
    """The names of what an evaluation returns."""
    return ["loss", *objective.EPSILON, *(name.removesuffix("_loss") + "_accuracy" for name in objective.EPSILON)]


def _means(names, totals):
    """Losses and accuracies by name from sums, right weights and weights float64 [3, N]."""
    results = {}
    for name, loss, right, weight in zip(names, *totals):
        results[name] = np.float32(loss / weight if weight else 0.0)
        results[name.removesuffix("_loss") + "_accuracy"] = np.float32(right / weight if weight else 0.0)
    return results
