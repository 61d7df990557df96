"""The small pieces that the encoder and the heads share: initializer, activations, LayerNorm, dropout.

Shapes: N rows of any kind, H width of a row.
"""

import math

import keras
import tensorflow as tf

from bert_tf.errors import UserError


def create_initializer(initializer_range=0.02):
    """A truncated normal initializer (cut off at two standard deviations).

    One call makes one variable: a Keras initializer gives the same values each time it is asked for a shape.
    """
    return keras.initializers.TruncatedNormal(stddev=initializer_range)


@tf.autograph.experimental.do_not_convert  # which would take the function from under its decorator
@tf.custom_gradient
def gelu(x):
    """Gaussian error linear unit in its tanh form, as the original has it (Hendrycks and Gimpel, 2016)."""
    # The gradient is written out since TensorFlow's, operation by operation, reads and writes twice as much memory.
    slope = math.sqrt(2.0 / math.pi)
    tanh = tf.tanh(slope * (x + 0.044715 * x * x * x))  # a power of three would be a slow function on a CPU

    def gradient(upstream):
        inner = slope + (3.0 * 0.044715 * slope) * x * x
        return upstream * (0.5 + 0.5 * tanh + 0.5 * x * (1.0 - tanh * tanh) * inner)

    return 0.5 * x * (1.0 + tanh), gradient


def gelu_erf(x):
    """Gaussian error linear unit in its exact form, for weights that were trained with it elsewhere."""
    return tf.nn.gelu(x, approximate=False)


ACTIVATIONS = {"": None, "linear": None, "relu": tf.nn.relu, "gelu": gelu, "gelu_erf": gelu_erf, "tanh": tf.tanh}


def get_activation(activation):
    """The function of a name in any case; None for "linear", "" and None; what is not a string is returned as it is.

    An unknown name is a `UserError`.
    """
    if activation is None or not isinstance(activation, str):
        return activation
    if activation.lower() not in ACTIVATIONS:
        raise UserError(f"hidden_act {activation!r} is unknown; use one of {', '.join(filter(None, ACTIVATIONS))}")
    return ACTIVATIONS[activation.lower()]


class ExactLayer(keras.layers.Layer):
    """A layer that takes tensors as they are: every change of precision stands in its `call`, where it can be read."""

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)

    def add_weight(self, **kwargs):
        # Keras casts the variables of the outermost layer that is called even where that layer forbids it.
        return super().add_weight(autocast=False, **kwargs)


class LayerNorm(ExactLayer):
    """Normalises each row to mean 0 and variance 1 and scales it (Ba et al., 2016); in float32 at any precision.

    [N, H] -> [N, H] of the layer's compute dtype. Epsilon is 1e-12, as in the original.
    """

    def build(self, input_shape):
        width = (input_shape[-1],)
        self.gamma = self.add_weight(name="gamma", shape=width, initializer="ones")
        self.beta = self.add_weight(name="beta", shape=width, initializer="zeros")

    def call(self, x):
        rows = normalize(tf.cast(x, tf.float32), tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta))
        return tf.cast(rows, self.compute_dtype)


@tf.autograph.experimental.do_not_convert  # which would take the function from under its decorator
@tf.custom_gradient
def normalize(x, gamma, beta):
    """Rows [N, H] at mean 0 and variance 1, times gamma [H], plus beta [H]."""
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    deviation = tf.math.rsqrt(variance + 1e-12)
    scale = deviation * gamma

    def gradient(upstream):
        # Written out, as in `gelu`: it keeps x alone, and goes over memory half as often.
        normal, along = (x - mean) * deviation, upstream * gamma
        about = tf.reduce_mean(along, axis=-1, keepdims=True)
        about += normal * tf.reduce_mean(along * normal, axis=-1, keepdims=True)
        rows = tf.range(tf.rank(x) - 1)
        return deviation * (along - about), tf.reduce_sum(upstream * normal, rows), tf.reduce_sum(upstream, rows)

    return x * scale + (beta - mean * scale), gradient


def dense(units, initializer_range, activation=None, **kwargs):
    """A Keras dense layer with BERT's initial values."""
    return keras.layers.Dense(units, activation=activation, kernel_initializer=create_initializer(initializer_range),
                              **kwargs)


def dropout(x, rate, key, site):
    """Zeroes a share `rate` of the entries of x and scales the rest by 1 / (1 - rate); all of x when `key` is None.

    `key` int32 [2] names the random stream of a step, `site` the place in the model: the same pair, the same mask.
    """
    if key is None or not rate:
        return x
    # Two thresholds of 16 bits from each 32-bit draw: half the random numbers of a float for each entry, and a rate
    # that is exact to 1e-5 where bfloat16 uniform numbers would be off by 2e-3.
    threshold = min(round(rate * 65536), 65535)
    size = tf.size(x)
    seed = tf.random.experimental.stateless_fold_in(key, site)
    draws = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
    bits = tf.reshape(tf.reshape(tf.bitcast(draws, tf.uint16), [-1])[:size], tf.shape(x))
    scale = tf.constant(65536.0 / (65536 - threshold), x.dtype)
    return x * tf.where(bits >= tf.constant(threshold, tf.uint16), scale, tf.zeros([], x.dtype))
