"""What the workers must agree on between two calls: how many steps the next one has, and whether it is the last."""

import tensorflow as tf

from bert_tf.training.step import all_reduce


def build_agreement(runtime):
    """A function `agree(steps, stop)` -> the chief's steps, and whether any worker wants to stop.

    The same for all workers of a cluster, who call it at the same time; without a cluster what was given.
    """
    if runtime.cluster is None:
        return lambda steps, stop: (steps, stop)
    strategy = tf.distribute.get_strategy()

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
    def add(wishes):
        added = strategy.run(lambda: all_reduce([tf.identity(wishes)])[0])  # a copy, on the replica's own device
        return strategy.experimental_local_results(added)[0]

    def agree(steps, stop):
        # Each worker's wishes are added as often as it has replicas.
        steps, stops = add(tf.constant([steps if runtime.is_chief else 0, stop], tf.float32)).numpy().tolist()
        return int(steps) // runtime.local_replicas, stops > 0

    return agree
