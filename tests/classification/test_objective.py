"""The classifier's outputs, loss and gradients: the original's, and the same with all of the last layer computed.

What can be asked for besides is computed again in NumPy, in float64.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, checkpoint, modeling
from bert_tf.classification import tasks
from bert_tf.classification.objective import Distillation, balanced_class_weights, build_objective, log_odds
from bert_tf.errors import UserError

CLASSIFICATION, REGRESSION = build_objective(tasks.find("MNLI")), build_objective(tasks.find("STS-B"))
TASKS = {"single": tasks.find("MNLI"), "multi": dataclasses.replace(tasks.find("MNLI"), kind="multi"),
         "regression": tasks.find("STS-B")}


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


# What can be asked for.


def make_batch(kind, seed=3):
    """Logits [7, C] of a student and a batch with those of a teacher; one example of no weight, one of extremes."""
    rng = np.random.RandomState(seed)
    classes = TASKS[kind].num_classes
    logits, teacher_logits = rng.normal(0, 3, [2, 7, classes]).astype(np.float32)
    logits[2], teacher_logits[2] = 60 - 100 * (np.arange(classes) == 1), -40 + 90 * (np.arange(classes) == 1)
    label_ids = {"single": np.int32([0, 1, 2, 2, 1, 0, 2]), "multi": rng.randint(0, 2, [7, 3]).astype(np.float32),
                 "regression": rng.uniform(0, 5, 7).astype(np.float32)}[kind]
    return logits, {"label_ids": label_ids, "example_weights": np.float32([1, 1, 1, 1, 0, 1, 1]),
                    "teacher_logits": teacher_logits}


def log_softmax(values):
    values = values - values.max(-1, keepdims=True)
    return values - np.log(np.exp(values).sum(-1, keepdims=True))


def replay(kind, logits, batch, smoothing=0.0, class_weights=None, temperature=1.0, alpha=0.0):
    """The sum and the weight of a loss, in float64."""
    logits, teacher = np.float64(logits), np.float64(batch["teacher_logits"])
    labels, examples = np.float64(batch["label_ids"]), np.float64(batch["example_weights"])
    weights = np.ones_like(labels)
    if kind == "regression":
        hard, soft = (logits[:, 0] - labels) ** 2, (logits[:, 0] - teacher[:, 0]) ** 2
    elif kind == "single":
        targets = np.eye(3)[batch["label_ids"]] * (1 - smoothing) + smoothing / 3
        hard = -(targets * log_softmax(logits)).sum(-1)
        p, q = log_softmax(teacher / temperature), log_softmax(logits / temperature)
        soft = temperature ** 2 * (np.exp(p) * (p - q)).sum(-1)
        if class_weights:
            weights = np.array(class_weights)[batch["label_ids"]]
    else:
        # Two classes for each label, of which the second is the fixed 0.
        yes_no = [log_softmax(np.stack([values, np.zeros_like(values)], -1))
                  for values in (logits, teacher / temperature, logits / temperature)]
        targets = labels * (1 - smoothing) + smoothing / 2
        hard = -(targets * yes_no[0][..., 0] + (1 - targets) * yes_no[0][..., 1])
        soft = temperature ** 2 * (np.exp(yes_no[1]) * (yes_no[1] - yes_no[2])).sum(-1)
        if class_weights:
            weights = np.where(labels == 1, class_weights, 1.0)
    losses = ((1 - alpha) * hard + alpha * soft) * weights
    if kind == "multi":
        losses, weights = losses.mean(-1), weights.mean(-1)
    return (losses * examples).sum(), (weights * examples).sum()


WEIGHTS = (0.5, 2.0, 3.25)
OPTIONS = [
    ("single", {}), ("multi", {}), ("regression", {}),
    ("single", {"smoothing": 0.1}), ("multi", {"smoothing": 0.1}),
    ("single", {"class_weights": WEIGHTS}), ("multi", {"class_weights": WEIGHTS}),
    ("single", {"temperature": 2.0, "alpha": 0.5}), ("multi", {"temperature": 2.0, "alpha": 0.5}),
    ("single", {"temperature": 4.0, "alpha": 1.0}), ("multi", {"temperature": 4.0, "alpha": 1.0}),
    ("regression", {"temperature": 2.0, "alpha": 0.25}),
    ("single", {"smoothing": 0.2, "class_weights": WEIGHTS, "temperature": 3.0, "alpha": 0.75}),
    ("multi", {"smoothing": 0.2, "class_weights": WEIGHTS, "temperature": 3.0, "alpha": 0.75})]


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("kind, options", OPTIONS)
def test_losses_as_in_numpy(kind, options, xla):
    logits, batch = make_batch(kind)
    objective = build_objective(TASKS[kind], options.get("smoothing", 0.0), options.get("class_weights"),
                                Distillation(options.get("temperature", 1.0), options.get("alpha", 0.0)))

    @tf.function(jit_compile=xla)
    def compute(logits, batch):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            (total,) = objective.sums({"logits": logits}, batch).values()
        return total, objective.weights(batch), tape.gradient(total, logits)

    found, weights, gradients = compute(tf.constant(logits), batch)
    total, weight = replay(kind, logits, batch, **options)
    np.testing.assert_allclose(found, total, rtol=2e-6)
    np.testing.assert_allclose(list(weights.values()), [weight], rtol=1e-6)
    # Gradients by differences: of float64 exact to nine digits, of the greatest one to float32's six.
    step = 1e-5
    expected = np.zeros(logits.shape)
    for place in np.ndindex(*logits.shape):
        moved = np.zeros(logits.shape)
        moved[place] = step
        expected[place] = (replay(kind, np.float64(logits) + moved, batch, **options)[0]
                           - replay(kind, np.float64(logits) - moved, batch, **options)[0]) / (2 * step)
    np.testing.assert_allclose(gradients, expected, rtol=0, atol=3e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_sums_and_weights_of_parts_add_up_to_those_of_the_whole(kind):
    logits, batch = make_batch(kind)
    objective = build_objective(TASKS[kind], 0.1, WEIGHTS)

    def add(part):
        some = {name: values[part] for name, values in batch.items()}
        outputs = {"logits": tf.constant(logits[part])}
        return [float(values["classification_loss"]) for values in (
            objective.sums(outputs, some), objective.weights(some), objective.accuracy_sums(outputs, some))]

    parts = np.sum([add(slice(0, 2)), add(slice(2, 3)), add(slice(3, 7))], axis=0)
    np.testing.assert_allclose(parts, add(slice(None)), rtol=1e-6)


@pytest.mark.parametrize("kind", TASKS)
def test_what_is_reported_is_the_plain_loss(kind):
    logits, batch = make_batch(kind)
    weights = None if kind == "regression" else WEIGHTS
    objective = build_objective(TASKS[kind], 0.0 if kind == "regression" else 0.2, weights)
    losses = objective.example_losses(tf.constant(logits), tf.constant(batch["label_ids"]))
    assert losses.shape == (7,)
    total, _ = replay(kind, logits, batch)
    np.testing.assert_allclose((losses * batch["example_weights"]).numpy().sum(), total, rtol=2e-6)


def test_a_teacher_who_agrees_costs_nothing():
    for kind in TASKS:
        logits, batch = make_batch(kind)
        objective = build_objective(TASKS[kind], distillation=Distillation(alpha=1.0))
        (total,) = objective.sums({"logits": tf.constant(logits)}, {**batch, "teacher_logits": logits}).values()
        assert float(total) == 0.0


def test_without_a_teacher_nothing_is_distilled():
    logits, batch = make_batch("single")
    del batch["teacher_logits"]
    (alone,) = CLASSIFICATION.sums({"logits": tf.constant(logits)}, batch).values()
    (strict,) = build_objective(TASKS["single"], distillation=Distillation(9.0, 1.0)).sums(
        {"logits": tf.constant(logits)}, batch).values()
    assert float(alone) == float(strict)


def test_weights_of_one_change_nothing():
    for kind in ("single", "multi"):
        logits, batch = make_batch(kind)
        plain, weighted = (build_objective(TASKS[kind], class_weights=weights) for weights in (None, [1, 1, 1]))
        for objective in (plain, weighted):
            assert float(objective.weights(batch)["classification_loss"]) == 6.0
        assert plain.sums({"logits": tf.constant(logits)}, batch) == weighted.sums({"logits": tf.constant(logits)},
                                                                                   batch)


def test_accuracy_counts_as_the_loss_does():
    batch = {"label_ids": np.int32([0, 1, 2, 2]), "example_weights": np.float32([1, 1, 1, 0])}
    outputs = {"logits": tf.constant(np.eye(3, dtype=np.float32)[[0, 2, 2, 2]])}
    objective = build_objective(TASKS["single"], class_weights=WEIGHTS)
    assert float(objective.accuracy_sums(outputs, batch)["classification_loss"]) == 0.5 + 3.25
    assert float(objective.weights(batch)["classification_loss"]) == 0.5 + 2.0 + 3.25


def test_of_several_labels_all_must_be_right():
    batch = {"label_ids": np.float32([[0, 1, 1], [0, 1, 1], [0, 0, 0]]), "example_weights": np.ones(3, np.float32)}
    outputs = {"logits": tf.constant([[-1.0, 0.0, 5.0], [-1.0, 2.0, -3.0], [-2.0, -2.0, -1e-3]])}
    assert float(build_objective(TASKS["multi"]).accuracy_sums(outputs, batch)["classification_loss"]) == 2.0


def test_balanced_weights_weigh_all_classes_alike():
    label_ids = np.int32([0] * 6 + [1] * 3 + [2])
    weights = balanced_class_weights(TASKS["single"], label_ids)
    np.testing.assert_allclose(np.bincount(label_ids, weights[label_ids]), [10 / 3] * 3)
    several = np.stack([label_ids == 0, label_ids == 1, label_ids > 5], axis=1).astype(np.int8)
    np.testing.assert_allclose(balanced_class_weights(TASKS["multi"], several), [4 / 6, 7 / 3, 10])
    assert np.isfinite(balanced_class_weights(TASKS["single"], np.int32([1, 1]))).all()
    build_objective(TASKS["single"], class_weights=weights)


@pytest.mark.parametrize("kind, options, part", [
    ("single", {"label_smoothing": 1.0}, "--label_smoothing=1.0 must be from 0 to below 1"),
    ("single", {"label_smoothing": -0.1}, "--label_smoothing=-0.1"),
    ("single", {"label_smoothing": float("nan")}, "--label_smoothing=nan"),
    ("single", {"class_weights": [1, 2]}, "--class_weights: 2 numbers for the 3 labels of MNLI, in this order: "),
    ("single", {"class_weights": [1, 2, 0]}, "--class_weights=1.0,2.0,0.0: each must be a number above 0"),
    ("multi", {"class_weights": [1, 2, float("nan")]}, "each must be a number above 0"),
    ("regression", {"label_smoothing": 0.1}, "STS-B predicts a score and has no classes"),
    ("regression", {"class_weights": [1]}, "STS-B predicts a score and has no classes"),
    ("single", {"distillation": Distillation(temperature=0.0)}, "--distillation_temperature=0.0"),
    ("single", {"distillation": Distillation(temperature=float("inf"))}, "--distillation_temperature=inf"),
    ("single", {"distillation": Distillation(alpha=1.1)}, "--distillation_alpha=1.1 must be from 0 to 1")])
def test_settings_that_make_no_sense_are_refused(kind, options, part):
    with pytest.raises(UserError) as caught:
        build_objective(TASKS[kind], **options)
    assert part in str(caught.value)


def test_log_odds_say_how_often_labels_hold():
    label_ids = np.array([[1, 0, 0, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]], np.int8)
    found = 1 / (1 + np.exp(-log_odds(label_ids).astype(np.float64)))
    np.testing.assert_allclose(found, [1 / 4, 1 / 4, 3 / 4, 3 / 4], rtol=1e-6)
    assert log_odds(label_ids[:1]).shape == (4,) and np.isfinite(log_odds(label_ids[:1])).all()
