import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import adaptation, checkpoint, modeling, optimization
from bert_tf.errors import UserError
from bert_tf.names import variable_name
from bert_tf.training.state import TrainingState

SMALL = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=16, type_vocab_size=2)
IDS = np.arange(24, dtype=np.int32).reshape(2, 12) + 3


def make_model(dtype="float32"):
    keras.utils.set_random_seed(7)
    return modeling.BertForPreTraining(modeling.BertConfig(**SMALL), dtype=dtype)


def outputs(model):
    return model(IDS)["masked_lm_logits"].numpy()


def trained(model):
    return {variable_name(variable.path) for variable in model.trainable_variables}


def give_pairs_values(model):
    rng = np.random.RandomState(0)
    for variable in model.trainable_variables:
        if "lora" in variable.path:
            variable.assign(rng.normal(0, 0.3, variable.shape))


class TestRateFactors:
    def test_each_layer_learns_less_than_the_one_above(self):
        names = ["bert/embeddings/word_embeddings", "bert/embeddings/LayerNorm/beta",
                 "bert/encoder/layer_0/attention/self/query/kernel", "bert/encoder/layer_1/output/LayerNorm/gamma",
                 "bert/encoder/layer_10/output/dense/kernel", "bert/pooler/dense/kernel", "output_weights",
                 "cls/predictions/output_bias", "bert/encoder/layer_1/attention/self/key/kernel/lora_a"]
        found = adaptation.rate_factors(names, 0.5, 11)
        assert found == [0.5 ** 12, 0.5 ** 12, 0.5 ** 11, 0.5 ** 10, 0.5, 1.0, 1.0, 1.0, 0.5 ** 10]
        assert adaptation.rate_factors(names, 1.0, 11) == [1.0] * 9
        assert adaptation.rate_factors(["bert/encoder/layer_0/x"], 0.5, 2) == [0.25]  # whatever else is frozen

    def test_the_optimizer_takes_steps_of_that_size(self):
        moved = {}
        for decay in (1.0, 0.5):
            model = make_model()
            before = [variable.numpy() for variable in model.trainable_variables]
            optimizer = optimization.create_optimizer(1e-3, 10, 0, layer_decay=decay, num_layers=2)
            optimizer.apply_gradients([(tf.ones(v.shape), v) for v in model.trainable_variables])
            moved[decay] = [value - variable.numpy() for value, variable in zip(before, model.trainable_variables)]
        names = [variable_name(variable.path) for variable in model.trainable_variables]
        for factor, plain, decayed in zip(adaptation.rate_factors(names, 0.5, 2), moved[1.0], moved[0.5]):
            np.testing.assert_allclose(decayed, factor * plain, rtol=0, atol=2e-7)


class TestFreeze:
    def test_what_matches_is_not_trained(self, caplog):
        model = make_model()
        everything = trained(model)
        with caplog.at_level("INFO"):
            adaptation.freeze(model, "embeddings|layer_0/")
        left = {name for name in everything if "embeddings" not in name and "layer_0/" not in name}
        assert trained(model) == left and f"trained: {len(left)} of {len(everything)} variables" in caplog.text

    @pytest.mark.parametrize("pattern, part", [
        ("layer_9", "--freeze=layer_9 matches no variable.*such as bert/embeddings"), ("", "matches every variable"),
        ("^", "matches every"), ("layer_(", r"--freeze=layer_\( is no regular expression")])
    def test_nothing_and_everything_are_refused(self, pattern, part):
        with pytest.raises(UserError, match=part):
            adaptation.freeze(make_model(), pattern)


class TestLora:
    @pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
    def test_outputs_are_what_they_were_until_the_pairs_change(self, dtype):
        model = make_model(dtype)
        before = outputs(model)
        adaptation.add_lora(model, 3)
        np.testing.assert_array_equal(outputs(model), before)
        give_pairs_values(model)
        assert np.abs(outputs(model) - before).max() > 0.01

    def test_pairs_and_heads_are_trained(self):
        model = make_model()
        adaptation.add_lora(model, 3)
        pairs = {f"bert/encoder/layer_{layer}/attention/{part}/kernel/lora_{side}" for layer in range(2)
                 for part in ("self/query", "self/key", "self/value", "output/dense") for side in "ab"}
        assert {name for name in trained(model) if name.startswith("bert/")} == pairs
        assert {name.split("/")[1] for name in trained(model) - pairs} == {"predictions", "seq_relationship"}

    def test_more_can_be_trained(self):
        model = make_model()
        adaptation.add_lora(model, 3, "LayerNorm|pooler")
        more = {name for name in trained(model) if name.startswith("bert/") and "lora" not in name}
        assert more == {variable_name(variable.path) for variable in model.bert.weights
                        if "LayerNorm" in variable.path or "pooler" in variable.path}

    @pytest.mark.parametrize("arguments, part", [
        ((16,), "--lora_rank=16.*below the projections' width, 16"), ((0,), "--lora_rank=0"),
        ((2, "layer_7"), "--lora_train=layer_7 matches no"), ((2, "query/kernel"), "--lora_train=query/kernel match"),
        ((2, "["), r"--lora_train=\[ is no regular expression")])
    def test_what_cannot_be_is_refused(self, arguments, part):
        with pytest.raises(UserError, match=part):
            adaptation.add_lora(make_model(), *arguments)

    def test_first_values_follow_from_the_seed_and_differ(self):
        pairs = []
        for _ in range(2):
            model = make_model()
            adaptation.add_lora(model, 3)
            pairs.append([variable.numpy() for variable in model.weights if variable.path.endswith("lora_kernel_a")])
        assert all((one == two).all() for one, two in zip(*pairs, strict=True))
        assert len({value.tobytes() for value in pairs[0]}) == 8

    def test_a_plain_model_computes_the_same_from_the_merged_kernels(self, tmp_path):
        model = make_model()
        adaptation.add_lora(model, 3)
        give_pairs_values(model)
        weights = checkpoint.named_weights(model)
        merged = adaptation.merged_kernels(weights)
        assert len(merged) == 8 and not set(weights) & set(merged)
        checkpoint.write(tmp_path / "model.ckpt-1", {**weights, **merged})
        keras.utils.set_random_seed(8)
        plain = modeling.BertForPreTraining(modeling.BertConfig(**SMALL))
        report = checkpoint.restore(plain, tmp_path)
        assert not report.missing and not report.extra and report.slots == 3 * 8
        np.testing.assert_allclose(outputs(plain), outputs(model), rtol=0, atol=1e-6)
        # A model that is adapted itself takes the parts.
        again = modeling.BertForPreTraining(modeling.BertConfig(**SMALL))
        adaptation.add_lora(again, 3)
        checkpoint.restore(again, tmp_path)
        np.testing.assert_array_equal(outputs(again), outputs(model))

    def test_a_plain_model_computes_the_same_from_the_averages(self, tmp_path):
        model = make_model()
        adaptation.add_lora(model, 3)
        state = TrainingState(model, optimization.create_optimizer(1e-3, 10, 0, ema_decay=0.9))
        give_pairs_values(model)
        for average in state.optimizer.averages():
            average.assign(average + 0.1)
        checkpoint.write(tmp_path / "model.ckpt-1", state.tensors())
        state.use_averages()
        plain = make_model()
        checkpoint.restore(plain, tmp_path, averaged=True)
        np.testing.assert_allclose(outputs(plain), outputs(model), rtol=0, atol=1e-6)

    def test_gradients_of_recomputed_activations_are_the_same(self):
        model = make_model()
        adaptation.add_lora(model, 3)
        give_pairs_values(model)
        found = []
        for model.bert.encoder.recompute in (False, True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(IDS, masked_lm_positions=[[0, 3], [1, 2]])["masked_lm_logits"] ** 2)
            pairs = [variable for variable in model.trainable_variables if "lora" in variable.path]
            found.append(tape.gradient(loss, pairs))
        for kept, recomputed in zip(*found):
            np.testing.assert_allclose(recomputed, kept, rtol=0, atol=1e-6 * max(1.0, np.abs(kept).max()))
        assert all(np.abs(kept).max() > 1e-3 for kept in found[0])

    def test_gradients_reach_the_pairs_under_xla_as_without(self):
        model = make_model()
        adaptation.add_lora(model, 3)
        give_pairs_values(model)

        def gradients():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(IDS)["masked_lm_logits"]))
            return tape.gradient(loss, [variable for variable in model.trainable_variables if "lora" in variable.path])

        for one, two in zip(tf.function(gradients)(), tf.function(gradients, jit_compile=True)()):
            assert np.abs(one).max() > 0
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-5 * np.abs(one).max())


def test_a_model_that_is_not_adapted_has_its_plain_names():
    model = make_model()
    weights = checkpoint.named_weights(model)
    assert set(weights) == {variable_name(variable.path) for variable in model.weights}
    assert adaptation.merged_kernels(weights) == {} and adaptation.lora_rank(weights) == 0
