"""What a model computes, in floating-point operations, and what the device could.

Shapes: H hidden, I intermediate, L layers, N rows of a matrix.
"""

import functools
import time

import tensorflow as tf

SECONDS_OF_PEAK = 0.3


def encoder_multiplications(config):
    """Multiplications of one forward pass through the encoder: for each token, and for each pair of tokens."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    each_token = layers * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    return each_token, 2 * layers * hidden


def step_flops(config, head_multiplications, tokens, pairs, weights):
    """Floating-point operations of a training step as the model defines it: nothing for padding, all of every layer.

    `tokens` and `pairs` (the sum of squared lengths) of a batch; `weights` of its losses and, for each unit of them,
    `head_multiplications`. Two operations a multiplication, the backward pass twice the forward: 6.
    """
    each_token, each_pair = encoder_multiplications(config)
    heads = tf.add_n([float(head_multiplications[name]) * weights[name] for name in weights])
    return 6.0 * (float(each_token) * tokens + float(each_pair) * pairs + heads)


@functools.cache
def measure_peak(dtype):
    """The floating-point operations a second of a square matrix product, the best of those in a third of a second."""
    size = 8192 if tf.config.list_physical_devices("GPU") else 1024
    matrix = tf.cast(tf.random.stateless_uniform([size, size], [0, 0]), dtype)
    tf.matmul(matrix, matrix)
    best, end = float("inf"), time.perf_counter() + SECONDS_OF_PEAK
    while time.perf_counter() < end:
        started = time.perf_counter()
        tf.matmul(matrix, matrix)[0, 0].numpy()  # read, so that a device that works behind our back is waited for
        best = min(best, time.perf_counter() - started)
    return 2.0 * size ** 3 / best
