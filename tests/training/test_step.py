import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, checkpoint, heads, modeling, optimization
from bert_tf.pretraining import objective
from bert_tf.runtime import Runtime
from bert_tf.training.step import build_train_loop, scalar_names

SMALL = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=32, type_vocab_size=2)
STILL = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class Classifier(keras.Model):
    """As run_classifier.create_model, in a model whose name must not decide what is decayed."""

    def __init__(self, config, num_classes):
        super().__init__(name="unbiased_LayerNorm_classifier")
        self.config = config
        self.bert = modeling.BertModel(config)
        self.head = heads.LinearHead(config, num_classes)
        self.built = True


def classifier_loss(outputs, batch):
    losses = objective.example_losses(outputs, batch["next_sentence_labels"])
    return {"classifier_loss": tf.reduce_sum(losses * batch["example_weights"])}


def classify(model, batch, dropout_key=None):
    outputs = model.bert(batch["input_ids"], batch["input_mask"], batch["segment_ids"],
                         token_indices=batch.get("token_indices"), dropout_key=dropout_key,
                         training=dropout_key is not None)
    return model.head(outputs["pooled_output"])


classification = types.SimpleNamespace(
    EPSILON={"classifier_loss": 0.0}, forward=classify, sums=classifier_loss,
    multiplications=lambda config: {"classifier_loss": 2 * config.hidden_size},
    weights=lambda batch: {"classifier_loss": tf.reduce_sum(batch["example_weights"])})


def golden_batch(recorded, prefix):
    batch = {name: recorded[f"{prefix}/{name}"] for name in (
        "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")}
    labels = recorded[f"{prefix}/next_sentence_labels"].reshape(-1)
    return {**batch, "next_sentence_labels": labels, "example_weights": np.ones(len(labels), np.float32)}


def lay_out(batch, how, xla=False):
    """`unpadded` as batches come from the pipeline, `padded` with a row for every place, `plain` without indices."""
    if how == "unpadded":
        length = batch["input_ids"].shape[1]
        return batching.unpad(batch, batching.Sizes(length, xla), batch.get("masked_lm_positions"))
    if how == "padded":
        return {**batch, "token_indices": np.arange(batch["input_ids"].size, dtype=np.int32)}
    return batch


def run_steps(device_loop, batches, calls):
    """The rows of each call of so many steps on one stream of batches."""
    feed = batching.Feed(lambda start: np.arange(len(batches))[:, None], lambda numbers: batches[numbers[0]])
    iterator = iter(feed.dataset())
    for steps in calls:
        yield device_loop(iterator, tf.constant(steps)).numpy()


def start_golden_run(goldens, shared, run):
    """Model, objective and optimizer of a recorded run, and what it recorded."""
    recorded = np.load(shared(f"goldens/optimizer/{run}.npz"))
    settings = json.loads((goldens / f"optimizer/{run}.json").read_text())
    config = modeling.BertConfig.from_json_file(goldens / "tiny_ckpt/bert_config.json").to_dict() | STILL
    config = modeling.BertConfig.from_dict(config)
    if settings["kind"] == "pretrain":
        model, losses = modeling.BertForPreTraining(config), objective
    else:
        model, losses = Classifier(config, 2), classification
        model.head.output_weights.assign(recorded["init/output_weights"])
        model.head.output_bias.assign(recorded["init/output_bias"])
    checkpoint.restore(model, goldens / "tiny_ckpt/step2000")
    optimizer = optimization.create_optimizer(settings["init_lr"], settings["num_train_steps"],
                                              settings["num_warmup_steps"])
    return model, losses, optimizer, recorded, settings["steps"]


def compare_with_golden_run(goldens, shared, run, layouts, xla):
    model, losses, optimizer, recorded, steps = start_golden_run(goldens, shared, run)
    sources = np.load(goldens / "optimizer/batches.npz")
    device_loop = build_train_loop(model, losses, optimizer, Runtime(xla=xla))
    state = {variable.path: variable for variable in model.weights} | optimizer.slots() | {"": optimizer.iterations}
    initial = {name: variable.numpy() for name, variable in state.items()}
    expected_keys = [key for key in recorded.files if key.startswith("step")]
    for how in layouts:
        for name, variable in state.items():
            variable.assign(initial[name])
        batches = [lay_out(golden_batch(sources, f"batch{number}"), how, xla) for number in range(5)]
        done, compared = 0, 0
        for rows in run_steps(device_loop, batches, (1, 1, 3)):
            for row, expected in zip(rows, steps[done:]):
                found = dict(zip(scalar_names(losses), row))
                assert abs(found["loss"] - expected["loss"]) < 5e-6
                assert found["learning_rate"] == pytest.approx(expected["learning_rate"], rel=1e-6)
                assert found["gradient_norm"] == pytest.approx(expected["global_norm_as_used_by_clip"], rel=2e-5)
                assert found["examples"] == 16
            done += len(rows)
            for key in (key for key in expected_keys if key.startswith(f"step{done}/")):
                name = key.removeprefix(f"step{done}/")
                np.testing.assert_allclose(state[name], recorded[key], rtol=0, atol=1e-5, err_msg=f"{how} {key}")
                compared += 1
        assert done == 5 and compared == len(expected_keys) >= len(model.weights)
        assert int(optimizer.iterations.numpy()) == 5


@pytest.mark.parametrize("run, layouts", [
    ("pretrain_warmup2_of8", ("unpadded", "padded", "plain")), ("pretrain_nowarmup_of5", ("unpadded", "padded")),
    ("classifier_warmup1_of10", ("unpadded", "padded"))])
def test_recorded_optimizer_runs_are_reproduced(goldens, shared, run, layouts):
    compare_with_golden_run(goldens, shared, run, layouts, xla=False)


def test_a_recorded_optimizer_run_is_reproduced_under_xla(goldens, shared):
    compare_with_golden_run(goldens, shared, "pretrain_nowarmup_of5", ["padded"], xla=True)


# Invariances, with dropout off.


@pytest.fixture(scope="module")
def small():
    """A model with its initial weights, and a function that makes one step from them: row of scalars, new weights."""
    keras.utils.set_random_seed(3)
    model = modeling.BertForPreTraining(modeling.BertConfig(**SMALL, **STILL))
    return model, [variable.numpy() for variable in model.weights]


def example_batch(rows=6, length=24, predictions=4, seed=0):
    rng = np.random.RandomState(seed)
    lengths = rng.randint(8, length + 1, [rows, 1])
    mask = (np.arange(length) < lengths).astype(np.int32)
    weights = (np.arange(predictions) < rng.randint(1, predictions + 1, [rows, 1])).astype(np.float32)
    return {"input_ids": rng.randint(5, 60, [rows, length]).astype(np.int32) * mask, "input_mask": mask,
            "segment_ids": (np.arange(length) > lengths // 2).astype(np.int32) * mask,
            "masked_lm_positions": rng.randint(1, 8, [rows, predictions]).astype(np.int32) * weights.astype(np.int32),
            "masked_lm_ids": rng.randint(5, 60, [rows, predictions]).astype(np.int32), "masked_lm_weights": weights,
            "next_sentence_labels": rng.randint(0, 2, rows).astype(np.int32),
            "example_weights": np.ones(rows, np.float32)}


def one_step(small, batch, device_loop={}):
    model, initial = small
    if not device_loop:
        device_loop["optimizer"] = optimization.AdamWeightDecay(1e-3)
        device_loop["call"] = build_train_loop(model, objective, device_loop["optimizer"], Runtime())
    for variable, value in zip(model.weights, initial):
        variable.assign(value)
    for variable in device_loop["optimizer"].variables:
        variable.assign(tf.zeros_like(variable)) if "adam_" in variable.path else None
    (row,) = next(run_steps(device_loop["call"], [batch], [1]))
    moments = [slot.numpy() for name, slot in device_loop["optimizer"].slots().items() if name.endswith("adam_m")]
    return dict(zip(scalar_names(objective), row)), moments


def assert_same_step(one, two, skip=("rows",)):
    for name in one[0].keys() - set(skip):
        assert one[0][name] == pytest.approx(two[0][name], rel=2e-6), name
    for mine, theirs in zip(one[1], two[1]):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=max(1e-5 * np.abs(mine).max(), 1e-8))


def test_a_step_does_not_depend_on_padding_nor_on_the_order_of_rows(small):
    batch = example_batch()
    unpadded = one_step(small, lay_out(batch, "unpadded"))
    assert_same_step(unpadded, one_step(small, lay_out(batch, "padded")))
    wider = {name: np.pad(array, [[0, 0], [0, 8]]) if name in ("input_ids", "input_mask", "segment_ids") else array
             for name, array in batch.items()}
    assert_same_step(unpadded, one_step(small, lay_out(wider, "padded")))
    order = np.random.RandomState(1).permutation(6)
    assert_same_step(unpadded, one_step(small, lay_out({name: a[order] for name, a in batch.items()}, "unpadded")))
    filled = {**batch, "input_ids": np.where(batch["input_mask"], batch["input_ids"], 9),
              "masked_lm_ids": np.where(batch["masked_lm_weights"], batch["masked_lm_ids"], 7)}
    assert_same_step(unpadded, one_step(small, lay_out(filled, "unpadded")))
    assert unpadded[0]["tokens"] == batch["input_mask"].sum()


def test_rows_of_weight_zero_change_nothing(small):
    batch, more = example_batch(), example_batch(seed=5)
    more["example_weights"][:] = 0
    more["masked_lm_weights"][:] = 0
    both = {name: np.concatenate([batch[name], more[name]]) for name in batch}
    one, two = one_step(small, lay_out(batch, "padded")), one_step(small, lay_out(both, "padded"))
    assert_same_step(one, two)
    assert two[0]["examples"] == 6


def test_gradients_of_two_halves_add_up_to_the_gradient_of_the_whole(small):
    model, initial = small
    for variable, value in zip(model.weights, initial):
        variable.assign(value)
    batch = example_batch()
    denominators = {name: weight + objective.EPSILON[name] for name, weight in objective.weights(batch).items()}

    @tf.function(reduce_retracing=True)
    def gradients(batch):
        with tf.GradientTape() as tape:
            sums = objective.sums(objective.forward(model, batch), batch)
            loss = tf.add_n([total / denominators[name] for name, total in sums.items()])
        return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, model.trainable_variables)]

    loss, whole = gradients(lay_out(batch, "padded"))
    halves = [gradients(lay_out({name: array[rows] for name, array in batch.items()}, "padded"))
              for rows in (slice(0, 2), slice(2, 6))]
    assert float(loss) == pytest.approx(sum(float(half[0]) for half in halves), rel=1e-6)
    for variable, gradient, one, two in zip(model.trainable_variables, whole, halves[0][1], halves[1][1]):
        np.testing.assert_allclose(gradient, one + two, rtol=0, err_msg=variable.path,
                                   atol=max(1e-5 * np.abs(gradient).max(), 1e-8))


def test_bfloat16_steps_stay_near_float32_with_float32_weights(small):
    model, initial = small
    half = modeling.BertForPreTraining(model.config, dtype="mixed_bfloat16")
    for variable, value in zip(half.weights, initial):
        variable.assign(value)
    batch = lay_out(example_batch(), "padded")
    exact, _ = one_step(small, batch)
    optimizer = optimization.AdamWeightDecay(1e-3)
    rows = next(run_steps(build_train_loop(half, objective, optimizer, Runtime("bfloat16")), [batch] * 3, [3]))
    found = dict(zip(scalar_names(objective), rows[0]))
    for name in ("loss", "gradient_norm"):
        assert found[name] == pytest.approx(exact[name], rel=0.03)
    assert rows[2, 0] < rows[0, 0] and np.isfinite(rows).all()
    assert {variable.dtype for variable in [*half.weights, *optimizer.slots().values()]} == {"float32"}


def test_variables_that_the_loss_does_not_reach_stay_as_they_are(small):
    model, initial = small
    masked_lm_only = types.SimpleNamespace(
        EPSILON={"masked_lm_loss": 1e-5}, forward=objective.forward, multiplications=objective.multiplications,
        weights=lambda batch: {"masked_lm_loss": objective.weights(batch)["masked_lm_loss"]},
        sums=lambda outputs, batch: {"masked_lm_loss": objective.sums(outputs, batch)["masked_lm_loss"]})
    for variable, value in zip(model.weights, initial):
        variable.assign(value)
    optimizer = optimization.AdamWeightDecay(1e-3)
    device_loop = build_train_loop(model, masked_lm_only, optimizer, Runtime())
    next(run_steps(device_loop, [lay_out(example_batch(), "plain")], [1]))
    unchanged = {variable.path for variable, value in zip(model.weights, initial) if (variable.numpy() == value).all()}
    assert unchanged == {"bert/pooler/dense/kernel", "bert/pooler/dense/bias",
                         "cls/seq_relationship/output_weights", "cls/seq_relationship/output_bias"}


def test_dropout_of_a_step_depends_on_seed_and_step_alone(small):
    dropping = modeling.BertForPreTraining(modeling.BertConfig(**SMALL | {"num_hidden_layers": 1}))
    initial = [variable.numpy() for variable in dropping.weights]
    batch = lay_out(example_batch(), "padded")
    optimizer = optimization.AdamWeightDecay(0.0)
    loops = {seed: build_train_loop(dropping, objective, optimizer, Runtime(seed=seed)) for seed in (1, 2)}

    def losses(seed, start, calls):
        for variable, value in zip(dropping.weights, initial):
            variable.assign(value)
        optimizer.iterations.assign(start)
        return [row[0] for rows in run_steps(loops[seed], [batch] * 3, calls) for row in rows]

    one = losses(1, 0, [2, 1])
    assert len(set(one)) == 3
    assert losses(1, 2, [1])[0] == one[2]
    assert losses(2, 0, [1])[0] != one[0]
