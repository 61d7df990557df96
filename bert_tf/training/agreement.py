"""What workers must agree on between two calls: the steps of the next one, whether it is the last, and scores."""

import tensorflow as tf

from bert_tf.training.step import all_reduce


def build_agreement(runtime):
    """A function `agree(steps, stop)` -> the chief's steps, and whether any worker wants to stop.

    The same for all workers of a cluster, who call it at the same time; without a cluster what was given.
    """
    if runtime.cluster is None:
        return lambda steps, stop: (steps, stop)
    add = _build_addition(runtime)

    def agree(steps, stop):
        steps, stops = add([steps if runtime.is_chief else 0, stop])
        return int(steps), stops > 0

    return agree


def build_sharing(runtime):
    """A function `share(metrics)` -> the chief's metrics float64 by name; workers as for `build_agreement`.

    What the workers measure for themselves may differ in the last bits, and what follows from it must not.
    """
    if runtime.cluster is None:
        return lambda metrics: metrics
    add = _build_addition(runtime)

    def share(metrics):
        return dict(zip(metrics, add([float(value) if runtime.is_chief else 0.0 for value in metrics.values()])))

    return share


def _build_addition(runtime):
    """A function `add(values)` -> a list of numbers, each added over all workers."""
    strategy = tf.distribute.get_strategy()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float64)])
    def add_replicas(values):
        added = strategy.run(lambda: all_reduce([tf.identity(values)])[0])  # a copy, on the replica's own device
        return strategy.experimental_local_results(added)[0]

    def add(values):
        # Each worker's values are added as often as it has replicas.
        return (add_replicas(tf.constant(values, tf.float64)).numpy() / runtime.local_replicas).tolist()

    return add
