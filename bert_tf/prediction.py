"""A trained model's outputs for any number of examples: the one loop of evaluation, prediction and loaded models.

Shapes: N examples, B batch, S sequence.
"""

import logging
import time

import numpy as np
import tensorflow as tf

from bert_tf import batching
from bert_tf.training.step import per_replica

logger = logging.getLogger("bert_tf")

SECONDS_BETWEEN_LINES = 20.0  # of the log, which says how far a long prediction is
# What a model is called with; `token_indices` are not there where every place is computed.
INPUTS = {"input_ids": [None, None], "input_mask": [None, None], "segment_ids": [None, None], "token_indices": [None]}


def build_predict(model, objective, names, make_batch, runtime, sizes):
    """A generator function `predict(features, batch_size)` of the outputs `names` for all examples.

    It yields `(numbers, outputs)`: some of the numbers int64 [B] of examples, and arrays [B, ...] by name, until each
    example has come once. Batches hold examples of like `features.lengths`, so that little of them is padding; the
    longest come first. `make_batch(features, numbers, sizes)` makes one. Every worker predicts all, each batch shared
    among its own devices. The program is traced once, here, for all shapes (with XLA compiled for each of a few).
    """
    strategy, replicas = tf.distribute.get_strategy(), runtime.local_replicas
    inputs = [name for name in INPUTS if not sizes.static or name != "token_indices"]

    @tf.function(jit_compile=runtime.xla, reduce_retracing=True)
    def compute(batch):
        outputs = objective.forward(model, batch)
        return [outputs[name] for name in names]

    @tf.function(input_signature=[tuple({name: tf.TensorSpec(INPUTS[name], tf.int32) for name in inputs}
                                        for _ in range(replicas))])
    def compute_all(parts):
        # A compiled function itself would be compiled once for all replicas, and find the variables of others.
        outputs = strategy.run(lambda batch: compute(batch), (per_replica(strategy, parts),))
        return [strategy.experimental_local_results(output) for output in outputs]

    compute_parts = compute_all.get_concrete_function()

    def predict(features, batch_size):
        split = batching.Split(replicas=replicas, local=replicas)
        rows = -(-batch_size // replicas) if sizes.static else None
        feed = batching.Feed(lambda start: by_length(features.lengths, batch_size),
                             lambda numbers: make_batch(features, numbers, sizes), features.where, split, rows)
        done, said = 0, time.monotonic()
        for numbers in feed.order(0):
            parts = tuple({name: tf.constant(batch[name]) for name in inputs} for (batch,) in feed.step(numbers))
            outputs = [[values.numpy() for values in output] for output in compute_parts(parts)]
            for replica, (part,) in enumerate(split.deal(numbers)):
                yield part, {name: output[replica][:len(part)] for name, output in zip(names, outputs)}
            done += len(numbers)
            if time.monotonic() - said > SECONDS_BETWEEN_LINES:
                logger.info("%s: predicted %d of %d, the longest first", features.path, done, len(features))
                said = time.monotonic()

    return predict


def by_length(lengths, batch_size):
    """The example numbers of each batch, a list of int64 [B]: examples of like `lengths` [N], the longest first."""
    order = np.argsort(-lengths, kind="stable")
    return np.split(order, range(batch_size, len(order), batch_size)) if len(order) else []
