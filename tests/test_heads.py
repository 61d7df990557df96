import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import heads, modeling

CONFIG = modeling.BertConfig(vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                             intermediate_size=16, max_position_embeddings=16, type_vocab_size=2)


def replay_masked_lm(head, rows, table):
    """The original's get_masked_lm_output in float64."""
    values = {weight.path: weight.numpy().astype(np.float64) for weight in head.weights}
    x = rows @ values["cls/predictions/transform/dense/kernel"] + values["cls/predictions/transform/dense/bias"]
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-12)
    x = x * values["cls/predictions/transform/LayerNorm/gamma"] + values["cls/predictions/transform/LayerNorm/beta"]
    return x @ table.T + values["cls/predictions/output_bias"]


def random_inputs(head):
    rng = np.random.RandomState(0)
    for weight in head.weights:
        weight.assign(rng.normal(size=weight.shape))
    return rng.normal(size=[5, 8]).astype(np.float32), rng.normal(size=[40, 8]).astype(np.float32)


def test_the_masked_lm_head_equals_a_replay_in_float64():
    head = heads.MaskedLmHead(CONFIG)
    assert len(head.weights) == 5
    rows, table = random_inputs(head)
    np.testing.assert_allclose(head(rows, table=table), replay_masked_lm(head, rows, table), atol=2e-5)


@pytest.mark.parametrize("scope, prefix", [((), ""), (("cls", "seq_relationship"), "cls/seq_relationship/")])
def test_the_linear_head_multiplies_by_weights_that_are_not_transposed(scope, prefix):
    with keras.name_scope("outer"):
        head = heads.LinearHead(CONFIG, 3, scope)
    assert [weight.path.removeprefix("outer/") for weight in head.weights] == [
        f"{prefix}output_weights", f"{prefix}output_bias"]
    rows, _ = random_inputs(head)
    assert head.output_weights.shape == (3, 8)
    np.testing.assert_allclose(head(rows), rows @ head.output_weights.numpy().T + head.output_bias.numpy(), atol=1e-5)


def test_logits_are_float32_at_any_precision():
    rows = tf.ones([5, 8], tf.bfloat16)
    for head, extra in ((heads.MaskedLmHead(CONFIG, dtype="mixed_bfloat16"), {"table": tf.ones([40, 8])}),
                        (heads.LinearHead(CONFIG, 2, dtype="mixed_bfloat16"), {})):
        logits = head(rows, **extra)
        assert logits.dtype == tf.float32 and logits.shape[0] == 5
        assert {weight.dtype for weight in head.weights} == {"float32"}


def test_initial_values_of_heads():
    keras.utils.set_random_seed(1)
    one, two = heads.LinearHead(CONFIG, 50), heads.LinearHead(CONFIG, 50)
    assert (one.output_weights.numpy() != two.output_weights.numpy()).any()
    assert np.abs(one.output_weights.numpy()).max() <= 0.04 + 1e-7
    assert (one.output_bias.numpy() == 0).all()
