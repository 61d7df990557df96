"""What a trained classifier says: logits and probabilities or a score for each example, in a file as the original's.

Shapes: N examples, B batch, C classes.
"""

import numpy as np
import tensorflow as tf

from bert_tf import batching, files
from bert_tf.classification.features import make_batch
from bert_tf.training.step import per_replica


def build_predict(model, objective, runtime, sizes):
    """A function `predict(features, batch_size)` -> the logits float32 [N, C] of all examples, in their order.

    Batches hold examples of like length, so that little of them is padding; the longest come first. Every worker
    predicts all, each batch shared among its own devices.
    """
    strategy, replicas = tf.distribute.get_strategy(), runtime.local_replicas

    @tf.function(jit_compile=runtime.xla, reduce_retracing=True)
    def compute(batch):
        return objective.forward(model, batch)["logits"]

    @tf.function
    def compute_all(parts):
        logits = strategy.run(compute, (per_replica(strategy, [batch for (batch,) in parts]),))
        return strategy.experimental_local_results(logits)

    def predict(features, batch_size):
        order = np.argsort(-features.lengths, kind="stable")
        feed = batching.Feed(lambda start: np.split(order, range(batch_size, len(order), batch_size)),
                             lambda numbers: {**make_batch(features, numbers, sizes), "example_numbers": numbers},
                             features.where, batching.Split(replicas=replicas, local=replicas),
                             rows=-(-batch_size // replicas) if sizes.static else None)
        dataset = feed.dataset()
        compute_any = compute_all.get_concrete_function(dataset.element_spec[0])  # traced once, whatever the shapes
        logits = np.zeros([len(features), model.num_classes], np.float32)
        for parts, is_real in dataset:
            if not is_real:
                return logits
            for (batch,), values in zip(parts, compute_any(parts)):
                logits[batch["example_numbers"]] = values

    return predict


def probabilities(logits):
    """The softmax float32 [N, C] of logits float32 [N, C]; a score [N, 1] is its own answer."""
    if logits.shape[1] == 1:
        return logits
    likelihoods = np.exp(logits - logits.max(axis=1, keepdims=True))
    return likelihoods / likelihoods.sum(axis=1, keepdims=True)


def write_test_results(path, values):
    """Writes a line of tab-separated numbers for each row of `values` float32 [N, C]; the original's format."""
    with files.replacing(path) as file:
        for row in values:
            file.write("\t".join(map(str, row)) + "\n")
