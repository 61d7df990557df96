"""The outputs and the loss of question answering: the original's, and the same without padding."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, checkpoint, modeling
from bert_tf.squad.objective import LOSS, Objective


@pytest.fixture(scope="module")
def recorded(shared):
    return np.load(shared("goldens/model/tiny_squad.npz"))


@pytest.fixture(scope="module")
def model(goldens, recorded):
    model = modeling.BertForQuestionAnswering(
        modeling.BertConfig.from_json_file(goldens / "tiny_ckpt/bert_config.json"))
    checkpoint.restore(model, goldens / "tiny_ckpt/step2000")
    model.span.output_weights.assign(recorded["head/cls/squad/output_weights"])
    model.span.output_bias.assign(recorded["head/cls/squad/output_bias"])
    return model


@pytest.fixture(scope="module")
def batch(recorded):
    names = ("input_ids", "input_mask", "segment_ids", "start_positions", "end_positions")
    return {**{name: recorded[f"input/{name}"] for name in names}, "example_weights": np.ones(4, np.float32)}


def outputs_and_loss(model, objective, batch, xla=False):
    @tf.function(jit_compile=xla)
    def compute(batch):
        with tf.GradientTape() as tape:
            outputs = objective.forward(model, batch)
            loss = objective.sums(outputs, batch)[LOSS] / objective.weights(batch)[LOSS]
        gradients = tape.gradient(loss, model.trainable_variables)
        return outputs, loss, [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    return compute(batch)


@pytest.mark.parametrize("xla", [False, True])
def test_recorded_logits_and_loss(model, batch, recorded, xla):
    """The targets of one row lie in its padding: the original's softmax is over all places."""
    outputs, loss, _ = outputs_and_loss(model, Objective("all"), batch, xla)
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(outputs[name], recorded[f"output/{name}"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(loss, recorded["output/total_loss"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("xla", [False, True])
def test_over_tokens_alone_padding_changes_nothing(model, batch, recorded, xla):
    """The loss in NumPy from the recorded logits, and the same gradients whether padding is computed or not."""
    lengths = batch["input_mask"].sum(axis=1)
    ends = {"start_positions": np.minimum(batch["start_positions"], lengths - 1),
            "end_positions": np.minimum(batch["end_positions"], lengths - 1)}
    batch = {**batch, **ends}
    expected = 0.0
    for row, length in enumerate(lengths):
        for end in ("start", "end"):
            logits = recorded[f"output/{end}_logits"][row, :length].astype(np.float64)
            expected += (np.log(np.exp(logits).sum()) - logits[batch[f"{end}_positions"][row]]) / 8
    places = np.arange(batch["input_ids"].size, dtype=np.int32)
    padded = outputs_and_loss(model, Objective(), {**batch, "token_indices": places}, xla)
    unpadded = outputs_and_loss(model, Objective(), batching.unpad(batch, batching.Sizes(64, xla)), xla)
    np.testing.assert_allclose(padded[1], expected, rtol=1e-6)
    np.testing.assert_allclose(unpadded[1], expected, rtol=1e-6)
    for one, other in zip(padded[2], unpadded[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=max(1e-6, 1e-5 * np.abs(one).max()))


def test_only_windows_of_weight_count_and_both_ends_must_be_right(model, batch):
    objective = Objective()
    outputs = {name: tf.constant(np.eye(4, 64, dtype=np.float32)) for name in ("start_logits", "end_logits")}
    batch = {**batch, "start_positions": np.array([0, 1, 2, 0]), "end_positions": np.array([0, 0, 2, 3]),
             "example_weights": np.array([1, 1, 1, 0], np.float32)}
    batch = {name: tf.cast(values, tf.float32 if name == "example_weights" else tf.int32)
             for name, values in batch.items()}
    assert objective.weights(batch)[LOSS] == 3 and objective.accuracy_sums(outputs, batch)[LOSS] == 2
    right, wrong = np.log(np.e + 63) - 1, np.log(np.e + 63)
    np.testing.assert_allclose(objective.sums(outputs, batch)[LOSS], 2 * right + (right + wrong) / 2, rtol=1e-6)


def test_variables_have_the_originals_names_and_a_copy_is_the_same(model, batch):
    assert model.span.output_weights.path == "cls/squad/output_weights" and model.span.output_bias.shape == (2,)
    again = modeling.BertForQuestionAnswering.from_config(model.get_config())
    again.set_weights(model.get_weights())
    ids = batch["input_ids"][:1, :9]
    for name, logits in again(ids).items():
        np.testing.assert_array_equal(logits, model({"input_ids": ids})[name])
