"""What a tagger minimises: the cross entropy of each word's label, as a sum and a weight.

Shapes: B batch, S sequence, C labels.
"""

import dataclasses

import tensorflow as tf

LOSS = "token_loss"


@dataclasses.dataclass(frozen=True)
class Objective:
    """An objective as `training.step` takes it, with one loss: the mean over words.

    Batches hold `label_ids` int32 [B, S], -1 where nothing is to be learned, and `example_weights` float32 [B].
    `num_classes` is C.
    """

    num_classes: int
    EPSILON = {LOSS: 0.0}

    def forward(self, model, batch, dropout_key=None):
        """The model's logits for a batch; drops out where a `dropout_key` is given."""
        return model(batch["input_ids"], batch["input_mask"], batch["segment_ids"],
                     token_indices=batch.get("token_indices"), dropout_key=dropout_key,
                     training=dropout_key is not None)

    def weights(self, batch):
        """What the loss is divided by: the number of words."""
        return {LOSS: tf.reduce_sum(word_weights(batch))}

    def sums(self, outputs, batch):
        """The loss, summed over a batch."""
        label_ids = tf.reshape(tf.maximum(batch["label_ids"], 0), [-1])
        logits = tf.reshape(outputs["logits"], [-1, self.num_classes])
        # The bare operation: `tf.nn` checks shapes again with asserts that XLA drops with a warning each.
        losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=label_ids)
        return {LOSS: tf.reduce_sum(losses * tf.reshape(word_weights(batch), [-1]))}

    def accuracy_sums(self, outputs, batch):
        """The number of words whose likeliest label is right."""
        right = tf.argmax(outputs["logits"], axis=-1, output_type=tf.int32) == batch["label_ids"]
        return {LOSS: tf.reduce_sum(tf.cast(right, tf.float32) * word_weights(batch))}

    def multiplications(self, config):
        """Those of the head's forward pass for each word."""
        return {LOSS: config.hidden_size * self.num_classes}


def word_weights(batch):
    """How much each place counts, float32 [B, S]: its example's weight where it has a label, else 0."""
    return tf.cast(batch["label_ids"] >= 0, tf.float32) * batch["example_weights"][:, None]
