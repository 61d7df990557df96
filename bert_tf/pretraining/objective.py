"""What pretraining minimises: masked language model plus next sentence losses, as sums and weights.

Shapes: B batch, P masked positions, V vocabulary.
"""

import tensorflow as tf

# Added to the weight of a loss before its sum is divided by it; the original's guard against a batch without masks.
EPSILON = {"masked_lm_loss": 1e-5, "next_sentence_loss": 0.0}


def forward(model, batch, dropout_key=None):
    """The model's logits for a batch; drops out where a `dropout_key` is given."""
    return model(batch["input_ids"], batch["input_mask"], batch["segment_ids"],
                 masked_lm_positions=batch["masked_lm_positions"], token_indices=batch.get("token_indices"),
                 dropout_key=dropout_key, training=dropout_key is not None)


def weights(batch):
    """What each loss is divided by: the number of masked pieces, the number of examples."""
    return {"masked_lm_loss": tf.reduce_sum(batch["masked_lm_weights"]),
            "next_sentence_loss": tf.reduce_sum(batch["example_weights"])}


def sums(outputs, batch):
    """Each loss, summed over a batch."""
    masked_lm = example_losses(outputs["masked_lm_logits"], batch["masked_lm_ids"])
    next_sentence = example_losses(outputs["next_sentence_logits"], batch["next_sentence_labels"])
    return {"masked_lm_loss": tf.reduce_sum(masked_lm * batch["masked_lm_weights"]),
            "next_sentence_loss": tf.reduce_sum(next_sentence * batch["example_weights"])}


def accuracy_sums(outputs, batch):
    """How much of each loss's weight was predicted right."""
    def right(logits, labels):
        return tf.cast(tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels, tf.float32)

    masked_lm = right(outputs["masked_lm_logits"], batch["masked_lm_ids"])
    next_sentence = right(outputs["next_sentence_logits"], batch["next_sentence_labels"])
    return {"masked_lm_loss": tf.reduce_sum(masked_lm * batch["masked_lm_weights"]),
            "next_sentence_loss": tf.reduce_sum(next_sentence * batch["example_weights"])}


def example_losses(logits, labels):
    """Negative log-likelihoods float32 [...] of labels int32 [...] under logits float32 [..., C]."""
    # The bare operation: `tf.nn` checks shapes again with asserts that XLA drops with a warning each.
    losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=tf.reshape(logits, [-1, logits.shape[-1]]), labels=tf.reshape(labels, [-1]))
    return tf.reshape(losses, tf.shape(labels))


def multiplications(config):
    """Those of the heads' forward pass for each masked piece and for each example."""
    hidden = config.hidden_size
    return {"masked_lm_loss": hidden * (hidden + config.vocab_size), "next_sentence_loss": hidden * (hidden + 2)}
