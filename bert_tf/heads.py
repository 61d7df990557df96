"""What stands on top of the encoder: the tied masked language model head, and linear heads over rows.

Every head makes its variables in `__init__`, so that their paths are the original's names whoever calls it.

Shapes: N rows, B batch, S sequence, H hidden, V vocabulary, C classes. Logits are float32 at any precision.
"""

import contextlib

import keras
import tensorflow as tf

from bert_tf.layers import ExactLayer, LayerNorm, create_initializer, dense, get_activation


class MaskedLmHead(ExactLayer):
    """Scores every piece of the vocabulary at each row, with the word embeddings as output weights.

    `head(rows [N, H], table [V, H])` -> logits [N, V].
    """

    def __init__(self, config, **kwargs):
        super().__init__(name="predictions", **kwargs)
        self.config = config
        with keras.name_scope("cls"):
            self.build()

    def build(self, input_shape=None):
        config = self.config
        rows = (None, config.hidden_size)
        with keras.name_scope("transform"):
            self.transform = dense(config.hidden_size, config.initializer_range, get_activation(config.hidden_act),
                                   name="dense", dtype=self.dtype_policy)
            self.transform.build(rows)
            self.layer_norm = LayerNorm(name="LayerNorm", dtype=self.dtype_policy)
            self.layer_norm.build(rows)
        self.output_bias = self.add_weight(name="output_bias", shape=(config.vocab_size,), initializer="zeros")

    def call(self, rows, table):
        rows = self.layer_norm(self.transform(rows))
        logits = tf.matmul(rows, tf.cast(table, rows.dtype), transpose_b=True)
        return tf.cast(logits, tf.float32) + self.output_bias


class LinearHead(ExactLayer):
    """Scores C classes at each row, with weights [C, H] as in the original (not transposed).

    `head(rows [N, H])` -> logits [N, C]. `scope` holds the parts of the path above `output_weights` and
    `output_bias`: ("cls", "seq_relationship") for next sentence prediction, () for a classifier, whose variables the
    original keeps at top level.
    """

    def __init__(self, config, num_classes, scope=(), **kwargs):
        super().__init__(**kwargs)
        with contextlib.ExitStack() as scopes:
            for part in scope:
                scopes.enter_context(keras.name_scope(part))
            self.output_weights = keras.Variable(create_initializer(config.initializer_range),
                                                 shape=(num_classes, config.hidden_size), name="output_weights",
                                                 autocast=False)
            self.output_bias = keras.Variable("zeros", shape=(num_classes,), name="output_bias", autocast=False)
        self.built = True

    def call(self, rows):
        logits = tf.matmul(rows, tf.cast(self.output_weights, rows.dtype), transpose_b=True)
        return tf.cast(logits, tf.float32) + self.output_bias


def mean_of_tokens(sequence_output, input_mask=None):
    """The mean [B, H] of the rows [B, S, H] where `input_mask` [B, S] is not 0; of all, where it is 0 throughout."""
    rows = tf.cast(sequence_output, tf.float32)
    if input_mask is None:
        return tf.cast(tf.reduce_mean(rows, axis=1), sequence_output.dtype)
    real = (input_mask != 0) | tf.reduce_all(input_mask == 0, axis=1, keepdims=True)
    weights = tf.cast(real, tf.float32)[:, :, None]
    mean = tf.reduce_sum(rows * weights, axis=1) / tf.reduce_sum(weights, axis=1)
    return tf.cast(mean, sequence_output.dtype)
