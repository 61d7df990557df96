"""What a classifier minimises: cross entropy of labels, squared error of a score, as sums and weights.

Several labels of an example are so many decisions of yes or no, whose cross entropies it averages. On wish targets are
smoothed (Szegedy et al., 2016), classes weighted, and a teacher followed (Hinton et al., 2015).

Shapes: B batch, C classes.
"""

import collections.abc
import dataclasses
import math
import typing

import numpy as np
import tensorflow as tf

from bert_tf.errors import UserError


class Kind(typing.NamedTuple):
    """What a kind of task minimises, as functions of logits [B, C]; see those below.

    `losses(logits, label_ids, label_smoothing)`, `divergences(logits, teacher_logits, temperature)` and
    `weights(class_weights, label_ids)` are float32 [B], or [B, C] where every label is a decision of its own;
    `is_right(logits, label_ids)` is bool [B].
    """

    loss_name: str
    losses: collections.abc.Callable
    divergences: collections.abc.Callable
    weights: collections.abc.Callable | None
    is_right: collections.abc.Callable


class Distillation(typing.NamedTuple):
    """How a teacher is followed: `alpha` of the loss is its part, at `temperature`; the rest is the labels'."""

    temperature: float = 2.0
    alpha: float = 0.5


@dataclasses.dataclass(frozen=True)
class Objective:
    """An objective as `training.step` takes it, with one loss: a weighted mean over the examples.

    Batches hold `label_ids` int32 [B], or float32 [B, C] of 0 and 1 for several labels, or scores float32 [B];
    `example_weights` float32 [B]; and `teacher_logits` float32 [B, C] where a teacher is followed.
    """

    kind: Kind
    num_classes: int
    label_smoothing: float = 0.0
    class_weights: tuple | None = None
    distillation: Distillation = Distillation()

    @property
    def EPSILON(self):
        """The loss's name; nothing is added to its weight."""
        return {self.kind.loss_name: 0.0}

    def forward(self, model, batch, dropout_key=None):
        """The model's logits for a batch; drops out where a `dropout_key` is given."""
        return model(batch["input_ids"], batch["input_mask"], batch["segment_ids"],
                     token_indices=batch.get("token_indices"), dropout_key=dropout_key,
                     training=dropout_key is not None)

    def weights(self, batch):
        """What the loss is divided by: the number of examples, each as often as its classes weigh."""
        return self._of_the_loss(self._example_weights(batch))

    def sums(self, outputs, batch):
        """The loss, summed over a batch."""
        logits, weights = outputs["logits"], self._class_weights(batch)
        losses = self.kind.losses(logits, batch["label_ids"], self.label_smoothing)
        if "teacher_logits" in batch:
            temperature, alpha = self.distillation
            # Softened gradients are smaller by the square of the temperature.
            softened = self.kind.divergences(logits, batch["teacher_logits"], temperature) * temperature ** 2
            losses = alpha * softened + (1.0 - alpha) * losses
        losses = losses if weights is None else losses * weights
        return self._of_the_loss(over_decisions(losses) * batch["example_weights"])

    def accuracy_sums(self, outputs, batch):
        """The part of `weights` that was predicted right; of several labels all must be."""
        right = self.kind.is_right(outputs["logits"], batch["label_ids"])
        return self._of_the_loss(tf.cast(right, tf.float32) * self._example_weights(batch))

    def example_losses(self, logits, label_ids):
        """Each example's own loss float32 [B], without smoothing, class weights and teacher, as it is reported."""
        return over_decisions(self.kind.losses(logits, label_ids, 0.0))

    def multiplications(self, config):
        """Those of the pooler's and the classifier's forward pass for each example."""
        return {self.kind.loss_name: config.hidden_size * (config.hidden_size + self.num_classes)}

    def _class_weights(self, batch):
        return None if self.class_weights is None else self.kind.weights(self.class_weights, batch["label_ids"])

    def _example_weights(self, batch):
        weights = self._class_weights(batch)
        return batch["example_weights"] if weights is None else over_decisions(weights) * batch["example_weights"]

    def _of_the_loss(self, values):
        return {self.kind.loss_name: tf.reduce_sum(values)}


def over_decisions(values):
    """The mean float32 [B] of an example's decisions [B, C]; [B] as it is."""
    return values if len(values.shape) == 1 else tf.reduce_mean(values, axis=-1)


# One of several labels.


def cross_entropies(logits, label_ids, label_smoothing=0.0):
    """Negative log-likelihoods float32 [B] of labels int32 [B]; the part `label_smoothing` is spread over all C."""
    # The bare operation: `tf.nn` checks shapes again with asserts that XLA drops with a warning each.
    losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=label_ids)
    if not label_smoothing:
        return losses
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    return (1.0 - label_smoothing) * losses + label_smoothing * spread


def softmax_divergences(logits, teacher_logits, temperature):
    """Kullback-Leibler divergences float32 [B] from the teacher's softened softmax to the student's.

    They have the cross entropy's gradients, and are 0 where both agree.
    """
    mine, teachers = (tf.nn.log_softmax(values / temperature) for values in (logits, teacher_logits))
    return tf.reduce_sum(tf.exp(teachers) * (teachers - mine), axis=-1)


def weights_of_classes(class_weights, label_ids):
    """The weight float32 [B] of each example's label."""
    return tf.gather(tf.constant(class_weights, tf.float32), label_ids)


def is_likeliest(logits, label_ids):
    """Whether each label has the greatest logit, the first of equal ones: bool [B]."""
    return tf.argmax(logits, axis=-1, output_type=label_ids.dtype) == label_ids


# Several labels.


def sigmoid_cross_entropies(logits, label_ids, label_smoothing=0.0):
    """Negative log-likelihoods float32 [B, C] of labels [B, C] of 0 and 1; smoothed ones are nearer to a half."""
    targets = (1.0 - label_smoothing) * tf.cast(label_ids, tf.float32) + label_smoothing / 2.0
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)


def sigmoid_divergences(logits, teacher_logits, temperature):
    """Kullback-Leibler divergences float32 [B, C] from the teacher's softened yes or no to the student's."""
    mine, teachers = logits / temperature, teacher_logits / temperature
    return sum(tf.sigmoid(sign * teachers) * (tf.math.log_sigmoid(sign * teachers) - tf.math.log_sigmoid(sign * mine))
               for sign in (1.0, -1.0))


def weights_of_positives(class_weights, label_ids):
    """The weights float32 [B, C] of decisions: a label's own where it holds, else 1."""
    return tf.where(tf.cast(label_ids, tf.bool), tf.constant(class_weights, tf.float32), 1.0)


def are_all_right(logits, label_ids):
    """Whether the labels [B, C] of an example, and no others, have probabilities of at least a half: bool [B]."""
    return tf.reduce_all((logits >= 0.0) == tf.cast(label_ids, tf.bool), axis=-1)


# A score.


def squared_errors(logits, label_ids, label_smoothing=0.0):
    """Squared differences float32 [B] between logits [B, 1] and scores float32 [B], which cannot be smoothed."""
    return tf.square(logits[:, 0] - label_ids)


def squared_differences(logits, teacher_logits, temperature):
    """Squared differences float32 [B] between the student's and the teacher's softened scores [B, 1]."""
    return tf.square(logits[:, 0] - teacher_logits[:, 0]) / temperature ** 2


def rounds_to_score(logits, label_ids):
    """Whether each logit [B, 1] is nearer to its score [B] than half a unit: bool [B]."""
    return tf.abs(logits[:, 0] - label_ids) < 0.5


KINDS = {
    "single": Kind("classification_loss", cross_entropies, softmax_divergences, weights_of_classes, is_likeliest),
    "multi": Kind("classification_loss", sigmoid_cross_entropies, sigmoid_divergences, weights_of_positives,
                  are_all_right),
    "regression": Kind("regression_loss", squared_errors, squared_differences, None, rounds_to_score),
}


def build_objective(task, label_smoothing=0.0, class_weights=None, distillation=Distillation()):
    """The objective of a `tasks.Task`: cross entropy over its labels, or the squared error of a score.

    `class_weights` holds C numbers: an example counts as often as its class weighs, and of several labels one that
    holds as often as it weighs. `UserError` for what is out of range, or makes no sense for a score.
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise UserError(f"--label_smoothing={label_smoothing} must be from 0 to below 1")
    if not (distillation.temperature > 0.0 and math.isfinite(distillation.temperature)):
        raise UserError(f"--distillation_temperature={distillation.temperature} must be a number above 0")
    if not 0.0 <= distillation.alpha <= 1.0:
        raise UserError(f"--distillation_alpha={distillation.alpha} must be from 0 to 1")
    if task.kind == "regression" and (label_smoothing or class_weights is not None):
        raise UserError(f"--label_smoothing and --class_weights: {task.name} predicts a score and has no classes")
    if class_weights is not None:
        class_weights = tuple(map(float, class_weights))
        if len(class_weights) != task.num_classes:
            raise UserError(f"--class_weights: {len(class_weights)} numbers for the {task.num_classes} labels of "
                            f"{task.name}, in this order: {', '.join(task.labels)}")
        if not all(0.0 < weight < math.inf for weight in class_weights):
            raise UserError(f"--class_weights={','.join(map(str, class_weights))}: each must be a number above 0")
    return Objective(KINDS[task.kind], task.num_classes, label_smoothing, class_weights, distillation)


def log_odds(label_ids):
    """The logits float32 [C] that say of each label how often it holds in `label_ids` [N, C].

    Biases that begin there spare several labels of which few hold the steps in which all logits must fall, and which
    were seen to leave a pretrained encoder's outputs all alike. What never holds, or always, is taken as holding once,
    or failing to.
    """
    positives = np.clip(np.asarray(label_ids, bool).sum(axis=0), 1, max(len(label_ids) - 1, 1))
    return np.log(positives / np.maximum(len(label_ids) - positives, 1)).astype(np.float32)


def balanced_class_weights(task, label_ids):
    """Weights float64 [C] under which all classes weigh the same in `label_ids` [N] or [N, C].

    One of several labels that holds weighs as much as where it does not. What never holds, or always, weighs as if
    it did so once.
    """
    if task.kind == "multi":
        positives = np.asarray(label_ids, bool).sum(axis=0)
        return np.maximum(len(label_ids) - positives, 1) / np.maximum(positives, 1)
    counts = np.bincount(label_ids, minlength=task.num_classes)
    return len(label_ids) / (task.num_classes * np.maximum(counts, 1))
