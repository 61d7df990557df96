import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, checkpoint, modeling
from bert_tf.pretraining import objective


@pytest.fixture(scope="module")
def tiny(goldens):
    model = modeling.BertForPreTraining(modeling.BertConfig.from_json_file(goldens / "tiny_ckpt/bert_config.json"))
    checkpoint.restore(model, goldens / "tiny_ckpt/step2000")
    return model


@pytest.fixture(scope="module")
def real64(goldens):
    return np.load(goldens / "model/tiny_pretrain_real64.npz")


@pytest.fixture(scope="module")
def rand128(shared):
    return np.load(shared("goldens/model/tiny_pretrain_rand128.npz"))


def batch_of(recorded, how, xla):
    batch = {key.removeprefix("input/"): recorded[key] for key in recorded.files if key.startswith("input/")}
    batch["next_sentence_labels"] = batch["next_sentence_labels"].reshape(-1)
    batch["example_weights"] = np.ones(len(batch["input_ids"]), np.float32)
    if how == "unpadded":
        sizes = batching.Sizes(batch["input_ids"].shape[1], xla)
        return batching.unpad(batch, sizes, batch["masked_lm_positions"])
    return {**batch, "token_indices": np.arange(batch["input_ids"].size, dtype=np.int32)}


def compute(model, batch, xla):
    @tf.function(jit_compile=xla)
    def outputs_and_gradients(batch):
        with tf.GradientTape() as tape:
            outputs = objective.forward(model, batch)
            sums, weights = objective.sums(outputs, batch), objective.weights(batch)
            losses = {name: total / (weights[name] + objective.EPSILON[name]) for name, total in sums.items()}
            total = tf.add_n(list(losses.values()))
        gradients = tape.gradient(total, model.trainable_variables)
        return outputs, losses, total, [tf.convert_to_tensor(gradient) for gradient in gradients]

    return outputs_and_gradients(batch)


def compare(model, recorded, how, xla):
    batch = batch_of(recorded, how, xla)
    outputs, losses, total, gradients = compute(model, batch, xla)
    expected = {key.removeprefix("output/"): recorded[key] for key in recorded.files if key.startswith("output/")}
    for name in ("masked_lm_loss", "next_sentence_loss"):
        assert abs(float(losses[name]) - expected[name]) < 5e-6
    assert abs(float(total) - expected["total_loss"]) < 5e-6
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], rtol=0, atol=1e-5)
    pieces = outputs["masked_lm_logits"].shape[-1]
    found = {"masked_lm_log_probs": tf.nn.log_softmax(tf.reshape(outputs["masked_lm_logits"], [-1, pieces])),
             "next_sentence_log_probs": tf.nn.log_softmax(outputs["next_sentence_logits"]),
             "masked_lm_example_loss": tf.reshape(objective.example_losses(
                 outputs["masked_lm_logits"], batch["masked_lm_ids"]), [-1]),
             "next_sentence_example_loss": objective.example_losses(
                 outputs["next_sentence_logits"], batch["next_sentence_labels"])}
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-5, err_msg=name)
    compare_gradients(recorded, expected, model.trainable_variables, gradients)


def compare_gradients(recorded, expected, variables, gradients):
    assert {variable.path for variable in variables} == {
        key.removeprefix("grad/") for key in recorded.files if key.startswith("grad/")}
    for variable, gradient in zip(variables, gradients):
        wanted = recorded[f"grad/{variable.path}"]
        if variable.path.endswith("attention/self/key/bias"):
            assert np.abs(gradient).max() < 1e-6 and np.abs(wanted).max() < 1e-6
        else:
            np.testing.assert_allclose(gradient, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max(),
                                       err_msg=variable.path)
    norm = float(tf.linalg.global_norm(gradients))
    assert norm == pytest.approx(expected["global_norm_as_used_by_clip"], rel=1e-5)


@pytest.mark.parametrize("how, xla", [("unpadded", False), ("padded", False), ("unpadded", True)])
def test_recorded_losses_and_gradients_of_real_records(tiny, real64, how, xla):
    compare(tiny, real64, how, xla)


@pytest.mark.parametrize("how", ["unpadded", "padded"])
def test_recorded_losses_and_gradients_of_random_ids(tiny, rand128, how):
    compare(tiny, rand128, how, xla=False)


def test_sums_and_weights_by_hand():
    batch = {"masked_lm_ids": np.array([[1, 0], [2, 0]], np.int32), "next_sentence_labels": np.array([1, 0], np.int32),
             "masked_lm_weights": np.array([[1, 0], [0.5, 0]], np.float32),
             "example_weights": np.array([1, 0], np.float32)}
    logits = np.array([[[0, 5, 0], [9, 0, 0]], [[0, 7, 0], [0, 9, 0]]], np.float32)
    outputs = {"masked_lm_logits": tf.constant(logits), "next_sentence_logits": tf.constant([[2.0, 1.0], [0.0, 9.0]])}
    cross_entropy = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(
        logits, batch["masked_lm_ids"][..., None], -1)[..., 0]
    sums = objective.sums(outputs, batch)
    assert float(sums["masked_lm_loss"]) == pytest.approx(cross_entropy[0, 0] + cross_entropy[1, 0] / 2, rel=1e-6)
    assert float(sums["next_sentence_loss"]) == pytest.approx(np.log(np.exp(2) + np.exp(1)) - 1, rel=1e-6)
    assert {name: float(weight) for name, weight in objective.weights(batch).items()} == {
        "masked_lm_loss": 1.5, "next_sentence_loss": 1.0}
    right = objective.accuracy_sums(outputs, batch)
    assert {name: float(value) for name, value in right.items()} == {"masked_lm_loss": 1.0, "next_sentence_loss": 0.0}


def test_the_denominators_are_the_originals():
    assert objective.EPSILON == {"masked_lm_loss": 1e-5, "next_sentence_loss": 0.0}
