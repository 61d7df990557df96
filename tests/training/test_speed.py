import pytest
import tensorflow as tf

from bert_tf import modeling
from bert_tf.pretraining import objective
from bert_tf.training import speed

CONFIG = modeling.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
                             intermediate_size=40)


def test_the_encoders_multiplications_are_those_of_its_kernels():
    each_token, each_pair = speed.encoder_multiplications(CONFIG)
    encoder = modeling.BertModel(CONFIG).encoder
    assert each_token == sum(int(tf.size(weight)) for weight in encoder.weights if weight.path.endswith("kernel"))
    assert each_pair == 3 * 2 * 16  # a query with a key, a probability with a value, in each layer


def test_a_steps_operations():
    weights = {"masked_lm_loss": tf.constant(5.0), "next_sentence_loss": tf.constant(2.0)}
    found = speed.step_flops(CONFIG, objective.multiplications(CONFIG), tf.constant(30.0), tf.constant(500.0), weights)
    each_token, each_pair = speed.encoder_multiplications(CONFIG)
    heads = 5 * (16 * 16 + 16 * 50) + 2 * (16 * 16 + 2 * 16)
    assert float(found) == pytest.approx(6 * (30 * each_token + 500 * each_pair + heads), rel=1e-6)


def test_the_peak_is_a_rate():
    assert 1e8 < speed.measure_peak("float32") < 1e16
