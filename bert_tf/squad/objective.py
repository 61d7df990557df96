"""What a model of answers minimises: the cross entropies of an answer's first and last token, as sums and weights.

Shapes: B batch, S sequence.
"""

import dataclasses

import tensorflow as tf

LOSS = "span_loss"
SOFTMAXES = ("tokens", "all")
OUT_OF_REACH = -1e9  # a logit whose softmax is 0


@dataclasses.dataclass(frozen=True)
class Objective:
    """An objective as `training.step` takes it, with one loss: the mean of both cross entropies over the windows.

    Batches hold `start_positions` and `end_positions` int32 [B], `example_weights` float32 [B]. `span_softmax` says
    which places of a window compete: its "tokens", or "all" of S, as in the original. Then S must always be the same,
    and batches come whole, without `token_indices`.
    """

    span_softmax: str = "tokens"
    EPSILON = {LOSS: 0.0}

    def forward(self, model, batch, dropout_key=None):
        """The model's logits for a batch; drops out where a `dropout_key` is given."""
        with_padding = self.span_softmax == "all"
        outputs = model(batch["input_ids"], batch["input_mask"], batch["segment_ids"],
                        token_indices=batch.get("token_indices"), with_padding=with_padding, dropout_key=dropout_key,
                        training=dropout_key is not None)
        if with_padding:
            return outputs
        is_token = tf.cast(batch["input_mask"], tf.bool)
        return {name: tf.where(is_token, logits, OUT_OF_REACH) for name, logits in outputs.items()}

    def weights(self, batch):
        """What the loss is divided by: the number of windows."""
        return {LOSS: tf.reduce_sum(batch["example_weights"])}

    def sums(self, outputs, batch):
        """The loss, summed over a batch."""
        losses = self.example_losses(outputs, batch["start_positions"], batch["end_positions"])
        return {LOSS: tf.reduce_sum(losses * batch["example_weights"])}

    def accuracy_sums(self, outputs, batch):
        """The number of windows whose likeliest first and last token are both right."""
        right = [tf.argmax(outputs[f"{end}_logits"], axis=-1, output_type=tf.int32) == batch[f"{end}_positions"]
                 for end in ("start", "end")]
        return {LOSS: tf.reduce_sum(tf.cast(tf.logical_and(*right), tf.float32) * batch["example_weights"])}

    def example_losses(self, outputs, start_positions, end_positions):
        """The loss float32 [B] of each window."""
        # The bare operation: `tf.nn` checks shapes again with asserts that XLA drops with a warning each.
        starts, ends = (tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=positions).loss
                        for logits, positions in ((outputs["start_logits"], start_positions),
                                                  (outputs["end_logits"], end_positions)))
        return (starts + ends) / 2.0

    def multiplications(self, config):
        """None for each window: those of the head, two for each token and hidden unit, are too few to count."""
        return {LOSS: 0}
