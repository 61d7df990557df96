import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import layers
from bert_tf.errors import UserError


@pytest.fixture(scope="module")
def recorded(goldens):
    return np.load(goldens / "model/functions.npz")


def call(function, x, xla):
    return tf.function(function, jit_compile=xla)(tf.constant(x)).numpy()


@pytest.mark.parametrize("xla", [False, True])
def test_gelu_equals_the_recorded_values(recorded, xla):
    np.testing.assert_allclose(call(layers.gelu, recorded["gelu_x"], xla), recorded["gelu_y"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("xla", [False, True])
def test_layer_norm_equals_the_recorded_values(recorded, xla):
    norm = layers.LayerNorm()
    norm.build((None, 64))
    x, expected = recorded["layer_norm_x"], recorded["layer_norm_y"]
    found = call(norm, x, xla)
    # Rows that vary by less than a ten-thousandth of their mean lose digits in the original; XLA keeps others.
    kept = (x.std(axis=1) > 1e-3 * np.abs(x.mean(axis=1))) if xla else np.ones(len(x), bool)
    np.testing.assert_allclose(found[kept], expected[kept], rtol=0, atol=1e-5)
    wide = x[:1].astype(np.float64)
    exact = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-12)
    assert np.abs(found[0] - exact).max() <= np.abs(expected[0] - exact).max() + 1e-5


def plain_gelu(x):
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def plain_norm(x, gamma, beta):
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-12) * gamma + beta


@pytest.mark.parametrize("function, plain, shapes", [
    (layers.gelu, plain_gelu, ([13, 40],)), (layers.normalize, plain_norm, ([13, 40], [40], [40])),
    (layers.normalize, plain_norm, ([2, 3, 40], [40], [40]))])
@pytest.mark.parametrize("xla", [False, True])
def test_gradients_of_both_orders_are_those_of_the_plain_operations(function, plain, shapes, xla):
    rng = np.random.RandomState(0)
    inputs = [tf.constant(rng.normal(0.5, 2, shape), tf.float64) for shape in shapes]
    upstream = tf.constant(rng.normal(size=shapes[0]), tf.float64)

    @tf.function(jit_compile=xla)
    def gradients(function):
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                value = function(*inputs)
            first = inner.gradient(value, inputs, upstream)
            total = tf.add_n([tf.reduce_sum(gradient * gradient) for gradient in first])
        return value, first, outer.gradient(total, inputs, unconnected_gradients="zero")

    tf.nest.map_structure(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9),
                          gradients(function), gradients(plain))


def test_gelu_erf_is_the_exact_form():
    x = tf.linspace(-6.0, 6.0, 101)
    exact = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.numpy().tolist()]
    np.testing.assert_allclose(layers.gelu_erf(x), exact, atol=1e-6)
    assert np.abs(layers.gelu(x) - layers.gelu_erf(x)).max() > 1e-4


def test_layer_norm_equals_float64_and_scales_and_shifts():
    rng = np.random.RandomState(0)
    x = rng.normal(3, 5, [7, 32]).astype(np.float32)
    norm = layers.LayerNorm()
    norm.build((None, 32))
    norm.gamma.assign(rng.normal(size=32))
    norm.beta.assign(rng.normal(size=32))
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(norm(x), expected * norm.gamma.numpy() + norm.beta.numpy(), atol=5e-6)


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    norm = layers.LayerNorm(dtype="mixed_bfloat16")
    norm.build((None, 64))
    x = tf.cast(np.random.RandomState(0).normal(100, 1, [4, 64]), tf.bfloat16)
    exactly = layers.LayerNorm()
    exactly.build((None, 64))
    for layer in (norm, exactly):
        layer.gamma.assign(np.random.RandomState(1).normal(size=64))
    found, exact = norm(x), exactly(tf.cast(x, tf.float32))
    assert found.dtype == tf.bfloat16 and norm.gamma.dtype == "float32"
    assert (found.numpy() == tf.cast(exact, tf.bfloat16).numpy()).all()


@pytest.mark.parametrize("name, function", [("gelu", layers.gelu), ("GELU", layers.gelu), ("relu", tf.nn.relu),
                                            ("tanh", tf.tanh), ("gelu_erf", layers.gelu_erf), ("linear", None),
                                            ("", None), (None, None), (np.sin, np.sin)])
def test_activations_by_name(name, function):
    assert layers.get_activation(name) is function


def test_an_unknown_activation_is_refused():
    with pytest.raises(UserError, match="'swish' is unknown.*gelu"):
        layers.get_activation("swish")


def test_initial_values_are_a_truncated_normal():
    values = layers.create_initializer(0.02)([400, 400]).numpy()
    assert np.abs(values).max() <= 0.04 + 1e-7
    assert values.mean() == pytest.approx(0, abs=2e-4)
    assert values.std() == pytest.approx(0.02 * 0.8796, rel=0.01)  # a normal's, cut at two deviations
    assert (values != layers.create_initializer(0.02)([400, 400]).numpy()).any()


KEY = tf.constant([3, 4])


class TestDropout:
    @pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 0.001])
    @pytest.mark.parametrize("xla", [False, True])
    def test_share_and_scale(self, rate, xla):
        x = np.ones([333, 301], np.float32)  # odd in size
        found = call(lambda x: layers.dropout(x, rate, KEY, 5), x, xla)
        kept = found != 0
        deviation = math.sqrt(rate * (1 - rate) / x.size)
        assert abs((~kept).mean() - rate) < 5 * deviation + 1e-5
        np.testing.assert_allclose(found[kept], 1 / (1 - rate), rtol=2e-4)
        assert found.mean() == pytest.approx(1, abs=6 * deviation / (1 - rate))

    def test_columns_rows_and_neighbours_are_independent(self):
        kept = layers.dropout(tf.ones([400, 200]), 0.5, KEY, 1).numpy() != 0
        assert np.abs(kept.mean(0) - 0.5).max() < 0.13 and np.abs(kept.mean(1) - 0.5).max() < 0.19
        for one, two in ((kept[:, :-1], kept[:, 1:]), (kept[:-1], kept[1:]), (kept[:, :-2], kept[:, 2:])):
            assert abs((one & two).mean() - 0.25) < 0.01

    def test_key_and_site_decide_the_mask_and_nothing_else(self):
        x = tf.ones([50, 40])
        masks = [layers.dropout(x, 0.5, tf.constant(key), site).numpy()
                 for key, site in (([1, 2], 0), ([1, 3], 0), ([2, 2], 0), ([1, 2], 1))]
        for index, one in enumerate(masks):
            for two in masks[:index]:
                assert abs(((one != 0) == (two != 0)).mean() - 0.5) < 0.1
        assert (masks[0] == layers.dropout(2 * x, 0.5, tf.constant([1, 2]), 0).numpy() / 2).all()

    def test_without_a_key_or_a_rate_nothing_changes(self):
        x = tf.ones([3, 3])
        assert layers.dropout(x, 0.5, None, 0) is x and layers.dropout(x, 0.0, KEY, 0) is x
        assert layers.dropout(x, None, KEY, 0) is x

    def test_bfloat16_keeps_the_rate(self):
        found = layers.dropout(tf.ones([500, 401], tf.bfloat16), 0.1, KEY, 0)
        assert found.dtype == tf.bfloat16
        assert (found.numpy() == 0).mean() == pytest.approx(0.1, abs=0.004)

    def test_gradients_pass_where_values_do(self):
        x = tf.ones([20, 20])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers.dropout(x, 0.3, KEY, 0)
        assert (tape.gradient(y, x) == y).numpy().all()

    def test_empty_and_single_entries(self):
        assert layers.dropout(tf.ones([0, 4]), 0.5, KEY, 0).shape == (0, 4)
        assert layers.dropout(tf.ones([1]), 0.5, KEY, 0).shape == (1,)


def test_an_exact_layer_does_not_cast_its_inputs():
    class Same(layers.ExactLayer):
        def call(self, x):
            return x

    x = tf.constant([1.5, 2.5], tf.float32)
    assert Same(dtype="mixed_bfloat16")(x).dtype == tf.float32


def test_a_dense_layer_is_keras_with_berts_initial_values():
    layer = layers.dense(300, 0.5, "tanh", name="d")
    layer.build((None, 200))
    assert isinstance(layer, keras.layers.Dense)
    assert np.abs(layer.kernel.numpy()).max() <= 1.0 and layer.kernel.numpy().std() > 0.4
    assert (layer.bias.numpy() == 0).all()
