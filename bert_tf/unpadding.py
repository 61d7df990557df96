"""Where the tokens of a padded batch stand, so that the encoder computes them and not the padding.

Shapes: B batch, S sequence, T tokens in a batch without padding, Q positions of a sequence that are read.
"""

import typing

import tensorflow as tf
from tensorflow.python.ops import control_flow_util


def gather_rows(x, indices, inverse):
    """The rows `indices` of x, with a gradient that gathers by `inverse` where TensorFlow would scatter and add.

    Right for permutations, and for a part of one as in `Layout`, where a row that stands for several places
    gets no gradient from any of them.
    """

    @tf.custom_gradient
    def gather(rows):
        return tf.gather(rows, indices), lambda upstream: tf.gather(upstream, inverse)

    return gather(x)


class Layout(typing.NamedTuple):
    """Where a batch's tokens stand: rows [T, H] on one side, [B, S] on the other.

    `token_indices` int32 [T] is the place in B * S of each row, `row_indices` int32 [B * S] the row of each place
    (the last row, which is padding, for a place without one); both None where every place has its row.
    `bias` float32 [B, 1, 1, S] is added to attention scores.
    """

    token_indices: tf.Tensor | None
    row_indices: tf.Tensor | None
    bias: tf.Tensor

    @classmethod
    def of(cls, input_mask, token_indices):
        """The layout of a mask [B, S] and the places [T] of its tokens, padding last (None: every place a row)."""
        bias = (1.0 - tf.cast(input_mask, tf.float32))[:, None, None, :] * -10000.0
        if token_indices is None:
            return cls(None, None, bias)
        rows = tf.size(token_indices)
        row_indices = tf.tensor_scatter_nd_update(tf.fill([tf.size(input_mask)], rows - 1), token_indices[:, None],
                                                  tf.range(rows))
        return cls(token_indices, row_indices, bias)

    def pack(self, places):
        """[B * S, ...] -> [T, ...]."""
        return places if self.token_indices is None else gather_rows(places, self.token_indices, self.row_indices)

    def pack_ids(self, places):
        """[B * S] -> [T], for what has no gradient."""
        return places if self.token_indices is None else tf.gather(places, self.token_indices)

    def unpack(self, rows):
        """[T, ...] -> [B * S, ...]; a place without a row holds some row's values, and must not be read."""
        return rows if self.token_indices is None else gather_rows(rows, self.row_indices, self.token_indices)

    def select(self, rows, positions):
        """The rows [B * Q, H] at `positions` int32 [B, Q] of each sequence."""
        length = tf.shape(self.bias)[-1]
        places = tf.reshape(positions + tf.range(tf.shape(positions)[0])[:, None] * length, [-1])
        return tf.gather(rows, places if self.row_indices is None else tf.gather(self.row_indices, places))


def find_token_indices(input_mask, positions=None):
    """The places int32 [T] in B * S whose rows the encoder must compute: those of a mask [B, S] that are not 0.

    A sequence that is masked whole counts as real whole, since its values then depend on every place; the first
    place of a sequence is always computed, for the pooler reads it, and so are `positions` int32 [B, Q]. One place of
    padding comes last, where there is any.
    """
    batch, length = tf.unstack(tf.shape(input_mask))
    real = input_mask != 0
    real |= ~tf.reduce_any(real, axis=1, keepdims=True) | (tf.range(length) == 0)
    real = tf.reshape(real, [-1])
    if positions is not None:
        places = tf.reshape(positions + tf.range(batch)[:, None] * length, [-1, 1])
        real = tf.tensor_scatter_nd_update(real, places, tf.ones([tf.size(places)], tf.bool))
    places = tf.concat([tf.where(real)[:, 0], tf.where(~real)[:1, 0]], axis=0)
    return tf.cast(places, tf.int32)


def in_xla():
    """Whether the code that is being traced will be compiled by XLA, where no shape may depend on data."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
