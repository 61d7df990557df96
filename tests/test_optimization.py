import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import modeling, optimization
from bert_tf.errors import UserError

SMALL = dict(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
             max_position_embeddings=16, type_vocab_size=2)


def rate_of_the_original(step, init_lr, steps, warmup):
    """optimization.create_optimizer's expression, in float64."""
    if warmup and step < warmup:
        return init_lr * step / warmup
    return init_lr * (1.0 - min(step, steps) / steps)


@settings(max_examples=60, deadline=None)
@given(init_lr=st.floats(1e-7, 1.0), steps=st.integers(1, 1_000_000), warmup=st.integers(0, 100_000), data=st.data())
def test_the_rate_is_the_originals(init_lr, steps, warmup, data):
    schedule = optimization.WarmupLinearDecay(init_lr, steps, warmup)
    for step in (0, 1, max(0, warmup - 1), warmup, steps - 1, steps, steps + 5, data.draw(st.integers(0, steps))):
        expected = rate_of_the_original(step, init_lr, steps, warmup)
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-6, abs=1.3e-7 * init_lr)
        assert schedule(step).dtype == tf.float32


def test_the_rate_drops_when_warm_up_ends():
    schedule = optimization.WarmupLinearDecay(1.0, 100, 10)
    rates = [schedule(step) for step in (0, 9, 10, 50, 100, 200)]
    np.testing.assert_allclose(rates, [0, 0.9, 0.9, 0.5, 0, 0], atol=1e-7)
    np.testing.assert_allclose([schedule(tf.constant(step, tf.int64)) for step in (5, 11)], [0.5, 0.89], atol=1e-7)
    assert float(optimization.WarmupLinearDecay(1.0, 10, 20)(15)) == pytest.approx(0.75)


def test_schedule_and_optimizer_survive_a_round_trip_through_their_configuration():
    optimizer = optimization.AdamWeightDecay(optimization.WarmupLinearDecay(1e-3, 50, 5), weight_decay_rate=0.02,
                                             beta_1=0.8, beta_2=0.99, epsilon=1e-5, global_clipnorm=1.0,
                                             exclude_from_weight_decay=["bias"])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is optimization.AdamWeightDecay and again.get_config() == optimizer.get_config()
    assert again.exclude_from_weight_decay == ("bias",) and again.global_clipnorm == 1.0
    assert float(again.learning_rate) == 0.0
    assert optimization.AdamWeightDecay.from_config(optimizer.get_config()).get_config() == optimizer.get_config()


def test_defaults_are_the_originals():
    config = optimization.create_optimizer(5e-5, 10, 2).get_config()
    assert {name: config[name] for name in ("weight_decay_rate", "beta_1", "beta_2", "epsilon")} == {
        "weight_decay_rate": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6}
    assert config["exclude_from_weight_decay"] == ("LayerNorm", "layer_norm", "bias")


def replay(values, gradients, rates, decayed, beta_1=0.9, beta_2=0.999, epsilon=1e-6, weight_decay_rate=0.01):
    values = values.astype(np.float64)
    m, v = np.zeros_like(values), np.zeros_like(values)
    for gradient, rate in zip(gradients, rates):
        m = beta_1 * m + (1 - beta_1) * gradient
        v = beta_2 * v + (1 - beta_2) * np.square(gradient, dtype=np.float64)
        update = m / (np.sqrt(v) + epsilon) + (weight_decay_rate * values if decayed else 0.0)
        values = values - rate * update
    return values, m, v


@pytest.mark.parametrize("settings", [{}, dict(beta_1=0.5, beta_2=0.9, epsilon=1e-2, weight_decay_rate=0.3)])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e4])
def test_updates_equal_a_replay_in_float64(settings, scale):
    rng = np.random.RandomState(0)
    names = ("kernel", "bias", "gamma_of_LayerNorm")
    initial = [rng.normal(size=shape).astype(np.float32) for shape in ([6, 3], [3], [4])]
    variables = [keras.Variable(value, name=name) for value, name in zip(initial, names)]
    schedule = optimization.WarmupLinearDecay(1e-2, 12, 3)
    optimizer = optimization.AdamWeightDecay(schedule, **settings)
    gradients = [[(rng.normal(size=value.shape) * scale).astype(np.float32) for value in initial] for _ in range(8)]
    for row in gradients:
        optimizer.apply_gradients(zip([tf.constant(gradient) for gradient in row], variables))
    assert int(optimizer.iterations.numpy()) == 8
    rates = [rate_of_the_original(step, 1e-2, 12, 3) for step in range(8)]
    for index, (name, variable) in enumerate(zip(names, variables)):
        value, m, v = replay(initial[index], [row[index] for row in gradients], rates, name == "kernel", **settings)
        np.testing.assert_allclose(variable, value, rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(optimizer.slots()[f"{name}/adam_m"], m, rtol=2e-5, atol=1e-6 * scale)
        np.testing.assert_allclose(optimizer.slots()[f"{name}/adam_v"], v, rtol=2e-5)


def test_equal_rows_of_a_sparse_gradient_are_added():
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]]), tf.constant([2, 0, 2]), [4, 2])
    tables = [keras.Variable(np.ones([4, 2], np.float32), name="table") for _ in range(2)]
    for table, gradient in zip(tables, (rows, tf.convert_to_tensor(rows))):
        optimizer = optimization.AdamWeightDecay(0.1)
        for _ in range(3):
            optimizer.apply_gradients([(gradient, table)])
    np.testing.assert_allclose(tables[0], tables[1], rtol=0, atol=0)
    assert (tables[0].numpy()[1] < 1).all()  # decayed, though no gradient touches it


@pytest.mark.parametrize("name", ["unbiased", "my_LayerNorm_bias", "x"])
def test_decay_follows_the_originals_names_whatever_a_wrapping_model_is_called(name):
    with keras.name_scope(name):
        model = modeling.BertForPreTraining(modeling.BertConfig(**SMALL))
    assert all(variable.path.startswith((name, "bert", "cls")) for variable in model.weights)
    optimizer = optimization.create_optimizer(1e-3, 10, 0)
    optimizer.build(model.trainable_variables)
    decayed, exempt = optimizer.decay_groups()
    assert {path.rsplit("/", 1)[1] for path in decayed} == {
        "word_embeddings", "token_type_embeddings", "position_embeddings", "kernel", "output_weights"}
    assert {path.rsplit("/", 1)[1] for path in exempt} == {"bias", "gamma", "beta", "output_bias"}
    assert all(path.startswith(("bert/", "cls/")) for path in decayed + exempt)
    assert len(decayed + exempt) == len(model.weights) == len(optimizer.slots()) / 2


def test_no_decay_rate_means_no_decayed_variable():
    optimizer = optimization.AdamWeightDecay(weight_decay_rate=0.0)
    optimizer.build([keras.Variable(np.ones(2, np.float32), name="kernel")])
    assert optimizer.decay_groups() == ([], ["kernel"])


def test_keras_compiles_fits_and_saves_with_it(tmp_path):
    keras.utils.set_random_seed(0)
    ids = keras.Input([None], dtype="int32")
    encoder = modeling.BertModel(modeling.BertConfig(**SMALL))
    model = keras.Model(ids, keras.layers.Dense(2, name="classifier")(encoder(ids)["pooled_output"]))
    optimizer = optimization.create_optimizer(1e-2, 40, 4)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.RandomState(0)
    x = rng.randint(5, 30, [32, 6])
    history = model.fit(x, (x[:, 1] > 17).astype(int), batch_size=8, epochs=10, verbose=0, shuffle=False)
    assert history.history["loss"][-1] < 0.6 * history.history["loss"][0]
    assert int(optimizer.iterations.numpy()) == 40 and float(optimizer.learning_rate) == 0.0
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == optimizer.get_config()
    for name, slot in optimizer.slots().items():
        assert (again.optimizer.slots()[name].numpy() == slot.numpy()).all()


# LAMB.


def replay_lamb(values, gradients, rates, adapted, beta_1=0.9, beta_2=0.999, epsilon=1e-6, weight_decay_rate=0.01):
    """Algorithm 2 of You et al. (2020) with phi the identity, in float64."""
    values = values.astype(np.float64)
    m, v = np.zeros_like(values), np.zeros_like(values)
    for step, (gradient, rate) in enumerate(zip(gradients, rates), start=1):
        m = beta_1 * m + (1 - beta_1) * gradient
        v = beta_2 * v + (1 - beta_2) * np.square(gradient, dtype=np.float64)
        update = m / (1 - beta_1 ** step) / (np.sqrt(v / (1 - beta_2 ** step)) + epsilon)
        if adapted:
            update = update + weight_decay_rate * values
            if (values != 0).any() and (update != 0).any():
                update = update * np.linalg.norm(values) / np.linalg.norm(update)
        values = values - rate * update
    return values, m, v


@pytest.mark.parametrize("settings", [{}, dict(beta_1=0.5, beta_2=0.9, epsilon=1e-2, weight_decay_rate=0.3),
                                      dict(weight_decay_rate=0.0)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_lamb_equals_a_replay_in_float64(settings, scale):
    rng = np.random.RandomState(0)
    names = ("kernel", "bias", "gamma_of_LayerNorm", "zeros")
    initial = [rng.normal(size=shape).astype(np.float32) for shape in ([6, 3], [3], [4])] + [np.zeros(5, np.float32)]
    variables = [keras.Variable(value, name=name) for value, name in zip(initial, names)]
    optimizer = optimization.Lamb(optimization.WarmupLinearDecay(1e-2, 12, 3), **settings)
    gradients = [[(rng.normal(size=value.shape) * scale).astype(np.float32) for value in initial] for _ in range(8)]
    for row in gradients:
        optimizer.apply_gradients(zip([tf.constant(gradient) for gradient in row], variables))
    rates = [rate_of_the_original(step, 1e-2, 12, 3) for step in range(8)]
    for index, (name, variable) in enumerate(zip(names, variables)):
        adapted = name in ("kernel", "zeros")
        value, m, v = replay_lamb(initial[index], [row[index] for row in gradients], rates, adapted, **settings)
        np.testing.assert_allclose(variable, value, rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(optimizer.slots()[f"{name}/adam_m"], m, rtol=2e-5, atol=1e-6 * scale)
        np.testing.assert_allclose(optimizer.slots()[f"{name}/adam_v"], v, rtol=2e-5)


def test_lambs_update_of_a_word_table_is_as_long_as_the_table_is_and_the_rate_says():
    rng = np.random.RandomState(0)
    before = (rng.normal(size=[30522, 768]) * 0.02).astype(np.float32)
    table = keras.Variable(before, name="word_embeddings")
    optimizer = optimization.Lamb(0.01)
    optimizer.apply_gradients([(tf.constant(rng.normal(size=before.shape).astype(np.float32)), table)])
    moved = np.linalg.norm((table.numpy() - before).astype(np.float64))
    assert moved == pytest.approx(0.01 * np.linalg.norm(before.astype(np.float64)), rel=1e-5)


def test_an_optimizer_is_known_by_its_name():
    for name, kind in (("adam", optimization.AdamWeightDecay), ("lamb", optimization.Lamb)):
        optimizer = optimization.create_optimizer(1e-3, 10, 2, name, ema_decay=0.9)
        assert type(optimizer) is kind and optimizer.ema_decay == 0.9
        assert type(keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))) is kind
    with pytest.raises(UserError, match="--optimizer=sgd is unknown; use one of adam, lamb"):
        optimization.create_optimizer(1e-3, 10, 2, "sgd")
    with pytest.raises(UserError, match="--ema_decay=1.0 must be"):
        optimization.create_optimizer(1e-3, 10, 2, ema_decay=1.0)


# Moving averages, updates that are left out, replicas.


@pytest.mark.parametrize("kind", optimization.OPTIMIZERS.values())
def test_the_average_follows_the_weights_from_where_they_were_when_it_was_built(kind):
    weight = keras.Variable(np.float32([1, -2, 3]), name="kernel")
    optimizer = kind(0.1, ema_decay=0.75)
    optimizer.build([weight])
    average = weight.numpy().astype(np.float64)
    assert (optimizer.slots()["kernel/ExponentialMovingAverage"].numpy() == average).all()
    for _ in range(5):
        optimizer.apply_gradients([(tf.constant([1.0, 2.0, -0.5]), weight)])
        average = 0.75 * average + 0.25 * weight.numpy()
        np.testing.assert_allclose(optimizer.slots()["kernel/ExponentialMovingAverage"], average, rtol=1e-6)
    optimizer.start_averages()
    assert (optimizer.slots()["kernel/ExponentialMovingAverage"].numpy() == weight.numpy()).all()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", optimization.OPTIMIZERS.values())
def test_an_update_that_is_not_finite_changes_nothing(kind, compiled):
    weight = keras.Variable(np.float32([1, -2, 3]), name="kernel")
    optimizer = kind(0.1, ema_decay=0.75)
    optimizer.build([weight])

    def update(gradient, finite):
        optimizer.update_step(gradient, weight, 0.1, gradient_scale=0.5, finite=finite)

    update = tf.function(update) if compiled else update
    update(tf.constant([1.0, 2.0, 3.0]), tf.constant(True))
    before = [variable.numpy() for variable in [weight, *optimizer.slots().values()]]
    assert all(np.isfinite(value).all() and value.any() for value in before) and len(before) == 4
    for bad in (np.nan, np.inf):
        update(tf.constant([1.0, bad, 3.0]), tf.constant(False))
        after = [variable.numpy() for variable in [weight, *optimizer.slots().values()]]
        assert all((one == two).all() for one, two in zip(before, after))
    update(tf.constant([1.0, 2.0, 3.0]), tf.constant(True))
    assert (weight.numpy() != before[0]).all()


@pytest.mark.parametrize("name", optimization.OPTIMIZERS)
def test_two_replicas_are_updated_as_one_device_is(name):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def start():
        weights = [keras.Variable(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), name="kernel"),
                   keras.Variable(np.float32([1, 2, 3]), name="bias")]
        optimizer = optimization.create_optimizer(0.1, 10, 0, name, ema_decay=0.9)
        optimizer.build(weights)
        return weights, optimizer

    with strategy.scope():
        weights, optimizer = start()

    def update_all(gradients, finite):
        def update(component, gradient, finite):
            optimizer.update_step(gradient, component, optimizer.learning_rate, finite=finite)
        for gradient, weight in zip(gradients, weights):
            strategy.extended.update(weight.value, update, args=(gradient, finite), group=False)

    plain_weights, plain = start()
    rng = np.random.RandomState(0)
    for run in (update_all, tf.function(update_all)):
        for finite in (True, False, True):
            gradients = [tf.constant(rng.normal(size=w.shape) / (finite or np.nan), tf.float32) for w in weights]
            run(gradients, tf.constant(finite))
            for gradient, weight in zip(gradients, plain_weights):
                plain.update_step(gradient, weight, plain.learning_rate, finite=finite)
            if finite:
                optimizer.iterations.assign_add(1)
                plain.iterations.assign_add(1)
            ours = [*weights, *optimizer.slots().values()]
            for one, two in zip(ours, [*plain_weights, *plain.slots().values()], strict=True):
                components = strategy.experimental_local_results(one.value)
                assert len(components) == 2 and {c.device[-1] for c in components} == {"0", "1"}
                assert all((c.numpy() == two.numpy()).all() for c in components), one.path
                assert np.isfinite(two.numpy()).all()
    assert int(plain.iterations.numpy()) == 4
