import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import adaptation, checkpoint, modeling, optimization
from bert_tf.errors import UserError
from bert_tf.training.precision import LossScale
from bert_tf.training.state import TrainingState

SMALL = dict(vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
             max_position_embeddings=16, type_vocab_size=2)


def make_state(seed=None, **changes):
    state = TrainingState(modeling.BertForPreTraining(modeling.BertConfig(**SMALL | changes)),
                          optimization.create_optimizer(1e-3, 10, 2))
    if seed is not None:
        rng = np.random.RandomState(seed)
        for variable in [*state.model.weights, *state.optimizer.slots().values()]:
            variable.assign(rng.normal(size=variable.shape))
        state.optimizer.iterations.assign(7)
        state.examples_seen = 23
    return state


def values(state):
    return {name: np.array(value) for name, value in state.tensors().items()}


@pytest.fixture
def saved(tmp_path):
    state = make_state(seed=1)
    checkpoint.write(f"{tmp_path}/model.ckpt-7", state.tensors())
    return state, f"{tmp_path}/model.ckpt-7"


def test_all_of_it_comes_back_bit_for_bit(saved):
    state, prefix = saved
    other = make_state(seed=2)
    report = other.resume(prefix, batch_size=4)
    assert report.global_step == 7 and other.step == 7 and other.examples_seen == 23
    mine, theirs = values(state), values(other)
    assert set(mine) == set(theirs)
    for name in mine:
        assert (mine[name] == theirs[name]).all(), name


def test_the_originals_checkpoint_resumes_with_its_slots(shared):
    prefix = str(shared("goldens/tiny_ckpt/step2000/model.ckpt-2000.index")).removesuffix(".index")
    config = modeling.BertConfig.from_json_file(shared("goldens/tiny_ckpt/bert_config.json"))
    state = TrainingState(modeling.BertForPreTraining(config), optimization.create_optimizer(1e-3, 3000, 100))
    state.resume(prefix, batch_size=16)
    assert (state.step, state.examples_seen) == (2000, 32000)
    held = dict(checkpoint.read(prefix))
    for name, value in values(state).items():
        if not name.startswith("run/"):
            assert (value == held.pop(name)).all()
    assert not held


@pytest.mark.parametrize("drop, part", [
    (lambda name: name.endswith("adam_v"), "it lacks 30 .*adam_v"), (lambda name: "adam" in name, "it lacks 60"),
    (lambda name: name == "global_step", "it lacks 1 .global_step"),
    (lambda name: name.startswith("cls/predictions/output_bias"), "cls/predictions/output_bias"),
    (lambda name: name == "bert/pooler/dense/bias", "lacks 1 .bert/pooler/dense/bias")])
def test_what_lacks_a_part_is_refused_by_name(saved, tmp_path, drop, part):
    state, _ = saved
    checkpoint.write(f"{tmp_path}/less", {name: value for name, value in state.tensors().items() if not drop(name)})
    with pytest.raises(UserError, match=part) as error:
        make_state().resume(f"{tmp_path}/less", 4)
    assert "less" in str(error.value) and "\n" not in str(error.value)


def test_slots_of_another_shape_are_refused(saved, tmp_path):
    state, _ = saved
    wrong = {**state.tensors(), "bert/pooler/dense/bias/adam_m": np.zeros(3, np.float32)}
    checkpoint.write(f"{tmp_path}/wrong", wrong)
    with pytest.raises(UserError, match="bert/pooler/dense/bias/adam_m"):
        make_state().resume(f"{tmp_path}/wrong", 4)


def test_a_larger_model_is_refused(saved):
    with pytest.raises(UserError, match="word_embeddings has shape .40, 8., in the model .48, 8."):
        make_state(vocab_size=48).resume(saved[1], 4)


def test_without_a_place_in_the_data_it_follows_from_the_step(saved, tmp_path):
    tensors = saved[0].tensors()
    del tensors["run/examples_seen"]
    checkpoint.write(f"{tmp_path}/theirs", tensors)
    other = make_state()
    other.resume(f"{tmp_path}/theirs", batch_size=5)
    assert other.examples_seen == 35


def adapted_state(seed, **settings):
    keras.utils.set_random_seed(seed)
    model = modeling.BertForPreTraining(modeling.BertConfig(**SMALL))
    adaptation.add_lora(model, settings.pop("rank", 2))
    return TrainingState(model, optimization.create_optimizer(1e-2, 10, 2, ema_decay=0.5), LossScale())


def updates(state, first, last):
    """Updates with gradients that depend on the step alone."""
    for step in range(first, last):
        rng = np.random.RandomState(step)
        for variable in state.model.trainable_variables:
            state.optimizer.update_step(tf.constant(rng.normal(size=variable.shape), tf.float32), variable, 0.01)
        state.optimizer.iterations.assign_add(1)
        state.loss_scale.scale.assign(2.0**step)


def test_pairs_averages_and_loss_scale_go_on_bit_for_bit(tmp_path):
    whole = adapted_state(1)
    updates(whole, 0, 3)
    checkpoint.write(tmp_path / "model.ckpt-3", whole.tensors())
    updates(whole, 3, 6)
    other = adapted_state(2)
    other.resume(str(tmp_path / "model.ckpt-3"), 4)
    assert float(other.loss_scale.scale.numpy()) == 4.0
    updates(other, 3, 6)
    mine, theirs = values(whole), values(other)
    assert set(mine) == set(theirs)
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    kernel = "bert/encoder/layer_0/attention/self/query/kernel"
    pair = mine[f"{kernel}/lora_a"] @ mine[f"{kernel}/lora_b"]
    np.testing.assert_allclose(mine[kernel], mine[f"{kernel}/lora_base"] + pair, rtol=0, atol=1e-6)
    assert not [name for name in mine if name.startswith("bert/embeddings") and "adam" in name]


def test_a_run_without_pairs_or_with_others_is_not_gone_on_with(saved, tmp_path):
    with pytest.raises(UserError, match="was trained without --lora_rank; .*--init_checkpoint"):
        adapted_state(1).resume(saved[1], 4)
    checkpoint.write(tmp_path / "lora", adapted_state(1).tensors())
    for state in (adapted_state(1, rank=3), make_state()):
        with pytest.raises(UserError, match="lora: was trained with --lora_rank=2; .*--init_checkpoint"):
            state.resume(str(tmp_path / "lora"), 4)


def test_averages_begin_with_the_weights_of_a_run_without_them(saved, caplog):
    state = TrainingState(modeling.BertForPreTraining(modeling.BertConfig(**SMALL)),
                          optimization.create_optimizer(1e-3, 10, 2, ema_decay=0.9))
    with caplog.at_level("INFO"):
        state.resume(saved[1], 4)
    assert "holds no moving averages" in caplog.text
    for variable, average in zip(state.model.trainable_variables, state.optimizer.averages()):
        np.testing.assert_array_equal(variable, average)


def test_averages_take_the_place_of_the_weights_and_back(tmp_path):
    state = adapted_state(1)
    updates(state, 0, 2)
    weights = [variable.numpy() for variable in state.model.trainable_variables]
    averages = [variable.numpy() for variable in state.optimizer.averages()]
    before = state.use_averages()
    for variable, average in zip(state.model.trainable_variables, averages):
        np.testing.assert_array_equal(variable, average)
    state.assign(before)
    for variable, weight in zip(state.model.trainable_variables, weights):
        np.testing.assert_array_equal(variable, weight)


def test_a_checkpoint_is_restored_with_its_averages(saved, tmp_path):
    state = TrainingState(modeling.BertForPreTraining(modeling.BertConfig(**SMALL)),
                          optimization.create_optimizer(1e-3, 10, 2, ema_decay=0.9))
    updates_of = state.optimizer.averages()
    updates_of[0].assign(tf.fill(updates_of[0].shape, 3.0))
    checkpoint.write(tmp_path / "model.ckpt-1", state.tensors())
    other = modeling.BertForPreTraining(modeling.BertConfig(**SMALL))
    checkpoint.restore(other, tmp_path / "model.ckpt-1", averaged=True)
    assert (other.trainable_variables[0].numpy() == 3.0).all()
    with pytest.raises(UserError, match="no moving averages"):
        checkpoint.restore(other, saved[1], averaged=True)
