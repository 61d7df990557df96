"""What a classifier minimises: cross entropy of a label, squared error of a score, as sums and weights.

Shapes: B batch, C classes.
"""

import collections.abc
import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Objective:
    """An objective as `training.step` takes it, with one loss: the mean of `example_losses` over the examples.

    `EPSILON` maps the loss's name to 0; `example_losses(logits [B, C], label_ids [B])` and `is_right` of the same
    arguments give float32 [B] and bool [B]; `num_classes` is C.
    """

    EPSILON: dict
    example_losses: collections.abc.Callable
    is_right: collections.abc.Callable
    num_classes: int

    def forward(self, model, batch, dropout_key=None):
        """The model's logits for a batch; drops out where a `dropout_key` is given."""
        return model(batch["input_ids"], batch["input_mask"], batch["segment_ids"],
                     token_indices=batch.get("token_indices"), dropout_key=dropout_key,
                     training=dropout_key is not None)

    def weights(self, batch):
        """What the loss is divided by: the number of examples."""
        return self._of_the_loss(batch["example_weights"])

    def sums(self, outputs, batch):
        """The loss, summed over a batch."""
        losses = self.example_losses(outputs["logits"], batch["label_ids"])
        return self._of_the_loss(losses * batch["example_weights"])

    def accuracy_sums(self, outputs, batch):
        """How many examples were predicted right."""
        right = self.is_right(outputs["logits"], batch["label_ids"])
        return self._of_the_loss(tf.cast(right, tf.float32) * batch["example_weights"])

    def multiplications(self, config):
        """Those of the pooler's and the classifier's forward pass for each example."""
        (name,) = self.EPSILON
        return {name: config.hidden_size * (config.hidden_size + self.num_classes)}

    def _of_the_loss(self, values):
        (name,) = self.EPSILON
        return {name: tf.reduce_sum(values)}


def cross_entropies(logits, label_ids):
    """Negative log-likelihoods float32 [B] of labels int32 [B] under logits [B, C]."""
    # The bare operation: `tf.nn` checks shapes again with asserts that XLA drops with a warning each.
    losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=label_ids)
    return losses


def is_likeliest(logits, label_ids):
    """Whether each label has the greatest logit, the first of equal ones: bool [B]."""
    return tf.argmax(logits, axis=-1, output_type=label_ids.dtype) == label_ids


def squared_errors(logits, label_ids):
    """Squared differences float32 [B] between logits [B, 1] and scores float32 [B]."""
    return tf.square(logits[:, 0] - label_ids)


def rounds_to_score(logits, label_ids):
    """Whether each logit [B, 1] is nearer to its score [B] than half a unit: bool [B]."""
    return tf.abs(logits[:, 0] - label_ids) < 0.5


def build_objective(task):
    """The objective of a `tasks.Task`: cross entropy over its labels, or the squared error of a score."""
    if task.labels:
        return Objective({"classification_loss": 0.0}, cross_entropies, is_likeliest, task.num_classes)
    return Objective({"regression_loss": 0.0}, squared_errors, rounds_to_score, task.num_classes)
