"""The classifier's outputs, loss and gradients: the original's, and the same with all of the last layer computed."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, checkpoint, modeling
from bert_tf.classification import tasks
from bert_tf.classification.objective import build_objective

CLASSIFICATION, REGRESSION = build_objective(tasks.find("MNLI")), build_objective(tasks.find("STS-B"))


@pytest.fixture(scope="module")
def recorded(shared):
    return np.load(shared("goldens/model/tiny_classifier.npz"))


@pytest.fixture(scope="module")
def model(goldens, recorded):
    model = modeling.BertForClassification(
        modeling.BertConfig.from_json_file(goldens / "tiny_ckpt/bert_config.json"), num_classes=3)
    checkpoint.restore(model, goldens / "tiny_ckpt/step2000")
    model.classifier.output_weights.assign(recorded["head/output_weights"])
    model.classifier.output_bias.assign(recorded["head/output_bias"])
    return model


def batch_of(recorded, how, xla):
    batch = {name: recorded[f"input/{name}"] for name in ("input_ids", "input_mask", "segment_ids", "label_ids")}
    batch["example_weights"] = np.ones(len(batch["label_ids"]), np.float32)
    if how == "unpadded":
        return batching.unpad(batch, batching.Sizes(batch["input_ids"].shape[1], xla))
    return {**batch, "token_indices": np.arange(batch["input_ids"].size, dtype=np.int32)}


def outputs_and_gradients(model, batch, forward=CLASSIFICATION.forward, xla=False):
    @tf.function(jit_compile=xla)
    def compute(batch):
        with tf.GradientTape() as tape:
            outputs = forward(model, batch)
            (total,), (weight,) = CLASSIFICATION.sums(outputs, batch).values(), CLASSIFICATION.weights(batch).values()
            loss = total / weight
        gradients = tape.gradient(loss, model.trainable_variables)
        norms = [tf.nn.l2_loss(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient)
                 for gradient in gradients]
        return outputs["logits"], loss, list(map(tf.convert_to_tensor, gradients)), tf.sqrt(2.0 * tf.add_n(norms))

    return compute(batch)


@pytest.mark.parametrize("how, xla", [("unpadded", False), ("padded", False), ("unpadded", True)])
def test_recorded_logits_loss_and_gradients(model, recorded, how, xla):
    logits, loss, gradients, norm = outputs_and_gradients(model, batch_of(recorded, how, xla), xla=xla)
    np.testing.assert_allclose(logits, recorded["output/logits"], rtol=0, atol=1e-5)
    losses = CLASSIFICATION.example_losses(logits, recorded["input/label_ids"])
    np.testing.assert_allclose(losses, recorded["output/per_example_loss"], rtol=0, atol=1e-5)
    assert abs(float(loss) - recorded["output/loss"]) < 5e-6
    gradients = {variable.path: gradient for variable, gradient in zip(model.trainable_variables, gradients)}
    for name in recorded.files:
        if name.startswith("grad/"):
            wanted = recorded[name]
            np.testing.assert_allclose(gradients[name.removeprefix("grad/")], wanted, rtol=0,
                                       atol=1e-5 * np.abs(wanted).max(), err_msg=name)
    assert float(norm) == pytest.approx(float(recorded["output/global_norm_as_used_by_clip"]), rel=1e-5)


def test_computing_the_first_token_alone_in_the_last_layer_changes_nothing(model, recorded):
    def forward_whole(model, batch):
        outputs = model.bert(batch["input_ids"], batch["input_mask"], batch["segment_ids"],
                             token_indices=batch["token_indices"])
        assert outputs["sequence_output"].shape[1:] == [64, 64]
        return {"logits": model.classifier(outputs["pooled_output"])}

    batch = batch_of(recorded, "unpadded", False)
    logits, loss, gradients, norm = outputs_and_gradients(model, batch)
    logits_whole, loss_whole, gradients_whole, norm_whole = outputs_and_gradients(model, batch, forward_whole)
    np.testing.assert_allclose(logits, logits_whole, rtol=0, atol=2e-6)
    assert abs(float(loss) - float(loss_whole)) < 1e-6 and abs(float(norm) - float(norm_whole)) < 1e-5
    for variable, one, other in zip(model.trainable_variables, gradients, gradients_whole):
        if not variable.path.endswith("attention/self/key/bias"):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max(), err_msg=variable.path)


def test_an_example_without_weight_changes_nothing(model, recorded):
    batch = batch_of(recorded, "unpadded", False)
    batch["example_weights"] = np.array([1, 0, 1, 1], np.float32)
    _, loss, gradients, _ = outputs_and_gradients(model, batch)
    assert float(loss) == pytest.approx(recorded["output/per_example_loss"][[0, 2, 3]].mean(), rel=1e-5)
    batch["label_ids"] = np.array([2, 2, 1, 1], np.int32)
    _, loss_again, gradients_again, _ = outputs_and_gradients(model, batch)
    assert float(loss) == float(loss_again)
    np.testing.assert_array_equal(gradients[-2], gradients_again[-2])


def test_dropout_on_the_classifier_is_one_tenth_and_its_own(model, recorded):
    config = modeling.BertConfig.from_dict({**model.config.to_dict(), "hidden_dropout_prob": 0.0,
                                            "attention_probs_dropout_prob": 0.0})
    other = modeling.BertForClassification(config, num_classes=64)
    other.classifier.output_weights.assign(np.eye(64))
    batch = batch_of(recorded, "unpadded", False)
    batch = {name: np.tile(array, [64] + [1] * (array.ndim - 1)) for name, array in batch.items()
             if name in ("input_ids", "input_mask", "segment_ids")}
    kept = other(batch["input_ids"], batch["input_mask"], batch["segment_ids"])["logits"].numpy()
    key = tf.constant([3, 4])
    dropped, again = (CLASSIFICATION.forward(other, batch, key)["logits"].numpy() for _ in range(2))
    np.testing.assert_array_equal(dropped, again)
    zeros = dropped == 0
    assert abs(zeros.mean() - 0.1) < 0.01
    np.testing.assert_allclose(dropped[~zeros], (kept / 0.9)[~zeros], rtol=1e-4, atol=1e-6)
    in_keras = [other(batch["input_ids"], training=True)["logits"].numpy() for _ in range(2)]
    assert (in_keras[0] != in_keras[1]).any()


def test_a_saved_model_comes_back_with_its_classes(model, tmp_path, recorded):
    again = modeling.BertForClassification.from_config(model.get_config())
    assert (again.num_classes, again.dropout_prob) == (3, 0.1)
    model.save_weights(tmp_path / "m.weights.h5")
    again.load_weights(tmp_path / "m.weights.h5")
    inputs = {"input_ids": recorded["input/input_ids"], "input_mask": recorded["input/input_mask"],
              "token_type_ids": recorded["input/segment_ids"]}
    np.testing.assert_array_equal(again(inputs)["logits"], model(inputs)["logits"])


def test_the_head_stands_at_top_level(model):
    assert [weight.path for weight in model.weights[-2:]] == ["output_weights", "output_bias"]
    assert len(model.trainable_variables) == 5 + 2 * 16 + 2 + 2


def test_sums_and_weights_by_hand():
    batch = {"label_ids": np.array([1, 0, 2], np.int32), "example_weights": np.array([1, 1, 0], np.float32)}
    logits = np.array([[1, 3, 0], [0, 2, 0], [5, 0, 0]], np.float32)
    losses = np.log(np.exp(logits).sum(-1)) - logits[[0, 1, 2], batch["label_ids"]]
    outputs = {"logits": tf.constant(logits)}
    assert float(CLASSIFICATION.sums(outputs, batch)["classification_loss"]) == pytest.approx(losses[:2].sum())
    assert {name: float(value) for name, value in CLASSIFICATION.weights(batch).items()} == {
        "classification_loss": 2.0}
    assert {name: float(value) for name, value in CLASSIFICATION.accuracy_sums(outputs, batch).items()} == {
        "classification_loss": 1.0}
    assert CLASSIFICATION.EPSILON == {"classification_loss": 0.0}
    assert CLASSIFICATION.multiplications(modeling.BertConfig(vocab_size=9, hidden_size=24)) == {
        "classification_loss": 24 * 24 + 24 * 3}


def test_squared_errors_by_hand():
    batch = {"label_ids": np.array([5, 2.5, 9], np.float32), "example_weights": np.array([1, 1, 0], np.float32)}
    outputs = {"logits": tf.constant([[4.75], [1.0], [0.0]])}
    assert float(REGRESSION.sums(outputs, batch)["regression_loss"]) == 0.25 ** 2 + 1.5 ** 2
    assert float(REGRESSION.accuracy_sums(outputs, batch)["regression_loss"]) == 1.0
    assert REGRESSION.EPSILON == {"regression_loss": 0.0}
