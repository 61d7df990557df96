import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoint, modeling
from bert_tf.errors import UserError
from bert_tf.unpadding import find_token_indices

TINY = dict(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=32, type_vocab_size=2)


def example_inputs(batch=4, length=12, seed=0):
    rng = np.random.RandomState(seed)
    ids = rng.randint(5, 50, [batch, length]).astype(np.int32)
    lengths = rng.randint(1, length + 1, [batch, 1])
    mask = (np.arange(length) < lengths).astype(np.int32)
    return ids * mask, mask, (np.arange(length) > lengths // 2).astype(np.int32) * mask


@pytest.fixture(scope="module")
def tiny(goldens):
    config = modeling.BertConfig.from_json_file(goldens / "tiny_ckpt/bert_config.json")
    model = modeling.BertModel(config)
    checkpoint.restore(model, goldens / "tiny_ckpt/step2000")
    return model


def assert_case(model, recorded, case, tolerance, call):
    inputs = {name: recorded.get(f"{case}/{name}") for name in ("input_ids", "input_mask", "token_type_ids")}
    if case.startswith("nomask"):
        inputs = {"input_ids": inputs["input_ids"]}
    outputs = call(**inputs)
    mask = inputs.get("input_mask")
    # A row that is masked whole is computed whole.
    real = np.ones_like(inputs["input_ids"]) if mask is None else (mask != 0) | (mask == 0).all(axis=1, keepdims=True)
    compared = 0
    for name in (key.split("/")[1] for key in recorded.files if key.startswith(f"{case}/")):
        expected = recorded[f"{case}/{name}"]
        if name == "pooled_output":
            found = outputs[name]
        elif name.startswith("encoder_layer_"):
            found = outputs["all_encoder_layers"][int(name.removeprefix("encoder_layer_"))]
        elif name == "embedding_output":
            found = outputs[name]
        else:
            continue
        if name != "pooled_output":
            found, expected = found * real[:, :, None], expected * real[:, :, None]
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0, err_msg=f"{case}/{name}")
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("compile_with", ["eager", "graph", "xla", "padded"])
def test_tiny_forward_equals_the_recorded_outputs(tiny, goldens, compile_with):
    recorded = np.load(goldens / "model/tiny_forward.npz")
    call = {"eager": tiny, "graph": tf.function(tiny.__call__),
            "xla": tf.function(tiny.__call__, jit_compile=True),
            "padded": lambda input_ids, **rest: tiny(
                input_ids, token_indices=tf.range(tf.size(input_ids)), **rest)}[compile_with]
    for case in sorted({key.split("/")[0] for key in recorded.files}):
        assert_case(tiny, recorded, case, 1e-5, call)


def test_one_hot_embeddings_give_the_same(tiny, goldens):
    model = modeling.BertModel(tiny.config, use_one_hot_embeddings=True)
    for mine, theirs in zip(model.weights, tiny.weights):
        mine.assign(theirs)
    assert_case(model, np.load(goldens / "model/tiny_forward.npz"), "onehot", 1e-5, model)


@pytest.mark.parametrize("xla", [False, True])
def test_minilm_forward_equals_the_recorded_outputs(shared, xla):
    folder = shared("checkpoints/minilm_l6")
    recorded = np.load(shared("goldens/model/minilm_forward.npz"))
    model = modeling.BertModel(modeling.BertConfig.from_json_file(folder / "bert_config.json"))
    checkpoint.restore(model, folder)
    call = tf.function(model.__call__, jit_compile=xla)
    for case in ("text32", "rand12")[xla:]:  # each length is compiled anew
        assert_case(model, recorded, case, 5e-5, call)
    case = "rand512"
    outputs = call(*(recorded[f"{case}/{name}"] for name in ("input_ids", "input_mask", "token_type_ids")))
    np.testing.assert_allclose(outputs["pooled_output"], recorded[f"{case}/pooled_output"], atol=5e-5)
    (name,) = [key for key in recorded.files if key.startswith(case) and "layer" in key or "sequence" in key
               and key.startswith(case)]
    real = recorded[f"{case}/input_mask"][:, ::64, None]
    np.testing.assert_allclose(outputs["sequence_output"][:, ::64] * real, recorded[name] * real, atol=5e-5)


def test_variables_have_the_originals_names(goldens):
    config = modeling.BertConfig.from_json_file(goldens / "tiny_ckpt/bert_config.json")
    expected = {name for name in checkpoint.list_variables(str(goldens / "tiny_ckpt/step2000/model.ckpt-2000"))
                if not checkpoint.is_state(name)}
    assert {variable.path for variable in modeling.BertForPreTraining(config).weights} == expected


def test_a_wrapping_model_changes_no_name_below_bert():
    config = modeling.BertConfig(**TINY)
    ids = keras.Input([None], dtype="int32")
    encoder = modeling.BertModel(config)
    wrapped = keras.Model(ids, keras.layers.Dense(3)(encoder(ids)["pooled_output"]), name="mine")
    names = {variable.path for variable in wrapped.weights}
    assert {variable.path for variable in encoder.weights} <= names
    assert "bert/embeddings/word_embeddings" in names
    assert wrapped(np.ones([2, 5], np.int32)).shape == (2, 3)


@pytest.mark.parametrize("config, encoder, heads", [
    (dict(vocab_size=30522, type_vocab_size=2), 109_482_240, 110_106_428),
    (dict(vocab_size=30522, type_vocab_size=2, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
          intermediate_size=4096), 335_141_888, 336_226_108)])
def test_parameter_counts_of_base_and_large(config, encoder, heads):
    with tf.Graph().as_default():  # nothing is computed
        model = modeling.BertForPreTraining(modeling.BertConfig(**config))
        assert sum(int(np.prod(variable.shape)) for variable in model.bert.weights) == encoder
        assert sum(int(np.prod(variable.shape)) for variable in model.weights) == heads


def test_padding_changes_nothing():
    model = modeling.BertForPreTraining(modeling.BertConfig(**TINY))
    ids, mask, types = example_inputs()
    mask[:, :2] = 1  # what is read must be a token
    positions = np.array([[0, 1]] * 4, np.int32)
    plain = model(ids, mask, types, masked_lm_positions=positions)
    wider = model(*(np.pad(array, [[0, 0], [0, 7]]) for array in (ids, mask, types)), masked_lm_positions=positions)
    for name in ("masked_lm_logits", "next_sentence_logits"):
        np.testing.assert_allclose(plain[name], wider[name], atol=1e-6)
    # What the padding holds does not matter either.
    filled = model(np.where(mask, ids, 7), mask, types, masked_lm_positions=positions)
    np.testing.assert_allclose(plain["masked_lm_logits"], filled["masked_lm_logits"], atol=1e-6)
    # Nor do the other rows.
    alone = model(ids[1:2], mask[1:2], types[1:2], masked_lm_positions=positions[1:2])
    np.testing.assert_allclose(plain["masked_lm_logits"][1:2], alone["masked_lm_logits"], atol=1e-6)


def assert_gradient(one, two, name):
    """Equal within 1e-5 of the largest entry; the gradient of a key's bias is rounding noise around 0."""
    scale = np.abs(one).max() if not name.endswith("key/bias") else 1.0
    np.testing.assert_allclose(one, two, rtol=0, atol=2e-5 * scale, err_msg=name)


def gradients(model, inputs, **kwargs):
    weights = np.random.RandomState(1).normal(size=[4, 12, 16]).astype(np.float32) * inputs[1][:, :, None]
    with tf.GradientTape() as tape:
        outputs = model(*inputs, **kwargs)
        loss = tf.reduce_sum(outputs["sequence_output"] * weights) + tf.reduce_sum(outputs["pooled_output"])
    return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, model.trainable_variables)]


def test_gradients_do_not_depend_on_padding_or_on_how_far_tokens_are_rounded_up():
    model = modeling.BertModel(modeling.BertConfig(**TINY))
    inputs = example_inputs()
    padded = gradients(model, inputs, token_indices=tf.range(48))
    exact = gradients(model, inputs)
    real = find_token_indices(inputs[1])
    padding = np.setdiff1d(np.arange(48), real)
    rounded = gradients(model, inputs, token_indices=np.concatenate([real, padding[:5]]).astype(np.int32))
    for variable, one, two, three in zip(model.trainable_variables, padded, exact, rounded):
        assert_gradient(one, two, variable.path)
        assert_gradient(one, three, variable.path)


def test_padding_holds_zeros_and_a_wholly_masked_row_does_not():
    model = modeling.BertModel(modeling.BertConfig(**TINY))
    ids, mask, types = example_inputs()
    mask[2] = 0
    mask[1, 3] = 0
    outputs = model(ids, mask, types, return_attention=True)
    for sequence in [outputs["embedding_output"], *outputs["all_encoder_layers"]]:
        assert (sequence.numpy()[(mask == 0) & (mask.any(axis=1, keepdims=True))] == 0).all()
        assert (sequence.numpy()[2] != 0).any(axis=1).all()
    assert len(outputs["attention_probs"]) == 2
    assert outputs["attention_probs"][0].shape == (4, 2, 12, 12)
    np.testing.assert_allclose(tf.reduce_sum(outputs["attention_probs"][1], -1)[0, :, 0], 1.0, atol=1e-6)


def test_output_positions_give_the_same_values_and_gradients():
    model = modeling.BertModel(modeling.BertConfig(**TINY))
    inputs = example_inputs()
    positions = np.array([[0, 0, 3], [1, 2, 0], [0, 5, 1], [2, 2, 2]], np.int32)
    weights = np.random.RandomState(1).normal(size=[4, 3, 16]).astype(np.float32)

    def run(**kwargs):
        with tf.GradientTape() as tape:
            outputs = model(*inputs, **kwargs)
            rows = outputs["sequence_output"]
            if not kwargs:
                rows = tf.gather(rows, positions, batch_dims=1)
            loss = tf.reduce_sum(rows * weights) + tf.reduce_sum(outputs["pooled_output"])
        return rows, [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]

    # Every position that is read must hold a token, for the plain call gives 0 at padding.
    inputs[1][:, :6] = 1
    rows, grads = run()
    few_rows, few_grads = run(output_positions=positions)
    np.testing.assert_allclose(rows, few_rows, atol=1e-6)
    for variable, one, two in zip(model.trainable_variables, grads, few_grads):
        assert_gradient(one, two, variable.path)


def test_dropout_depends_on_the_key_alone():
    model = modeling.BertModel(modeling.BertConfig(**TINY))
    inputs = example_inputs()
    run = lambda key: model(*inputs, training=True, dropout_key=key)["sequence_output"].numpy()  # noqa: E731
    assert (run([1, 2]) == run([1, 2])).all()
    assert (run([1, 2]) != run([1, 3])).any()
    assert (model(*inputs, training=True)["pooled_output"] != model(*inputs, training=True)["pooled_output"]
            ).numpy().any()
    still = model(*inputs)["sequence_output"]
    assert (still == model(*inputs, dropout_key=[1, 2])["sequence_output"]).numpy().all()


def pretraining_gradients(model, recompute, compiled="eager", in_loop=False, **kwargs):
    """The gradients of a loss of both heads' logits, dropout on, by variable path."""
    model.bert.encoder.recompute = recompute
    ids, mask, types = example_inputs()
    mask[:, :2] = 1
    positions = tf.constant([[0, 1]] * 4)

    def run(key):
        with tf.GradientTape() as tape:
            outputs = model(ids * mask, mask, types, masked_lm_positions=positions, dropout_key=key, training=True,
                            **kwargs)
            loss = tf.reduce_mean(outputs["masked_lm_logits"] ** 2) + tf.reduce_sum(
                outputs["next_sentence_logits"] ** 2)
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, model.trainable_variables)]

    def loop(key):
        total = [tf.zeros(variable.shape) for variable in model.trainable_variables]
        for _ in tf.range(2):
            total = [before + now for before, now in zip(total, run(key))]
        return total

    program = loop if in_loop else run
    program = program if compiled == "eager" else tf.function(program, jit_compile=compiled == "xla")
    return {variable.path: value for variable, value in zip(model.trainable_variables, program(tf.constant([1, 2])))}


def assert_recomputing_changes_nothing(model, **kwargs):
    kept = pretraining_gradients(model, False, **kwargs)
    for path, value in pretraining_gradients(model, True, **kwargs).items():
        scale = np.abs(kept[path]).max()
        np.testing.assert_allclose(value, kept[path], rtol=0, atol=1e-6 * max(scale, 1.0), err_msg=path)
        assert scale > 1e-3 or path.endswith("key/bias"), path


def recomputing_model(**kwargs):
    """Initial weights so large that no gradient is near 0."""
    return modeling.BertForPreTraining(modeling.BertConfig(**TINY, initializer_range=0.3), **kwargs)


@pytest.mark.parametrize("compiled, layout", [("eager", "found"), ("graph", "found"), ("graph", "padded"),
                                              ("xla", "unpadded")])
def test_recomputed_activations_give_the_same_gradients(compiled, layout):
    real = find_token_indices(example_inputs()[1] | (np.arange(12) < 2))
    token_indices = {"found": None, "padded": tf.range(48), "unpadded": real}[layout]
    assert_recomputing_changes_nothing(recomputing_model(), compiled=compiled, token_indices=token_indices)


def test_activations_are_recomputed_in_a_loop():
    assert_recomputing_changes_nothing(recomputing_model(), compiled="graph", in_loop=True)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_activations_are_recomputed_in_lower_precision(policy):
    # Eagerly, since TensorFlow rounds at other places in a graph that it has optimized in another way.
    assert_recomputing_changes_nothing(recomputing_model(dtype=policy))


def test_activations_are_recomputed_on_two_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = modeling.BertModel(modeling.BertConfig(**TINY, initializer_range=0.3))

    def gradients():
        def run():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            with tf.GradientTape() as tape:
                ids = tf.reshape(tf.range(24), [2, 12]) + replica
                outputs = model(ids, dropout_key=tf.stack([1, replica]), training=True)
                loss = tf.reduce_sum(outputs["pooled_output"])
            return [tf.convert_to_tensor(value) for value in tape.gradient(loss, model.trainable_variables)]
        return [strategy.experimental_local_results(value) for value in strategy.run(run)]

    kept = tf.function(gradients)()
    model.encoder.recompute = True
    for one, two in zip(kept, tf.function(gradients)(), strict=True):
        for replica in (0, 1):
            assert np.abs(one[replica] - two[replica]).max() < 1e-6 * max(1.0, np.abs(one[replica]).max())
    assert any(np.abs(one[0] - one[1]).max() > 0.1 for one in kept)


@pytest.mark.parametrize("compiled", ["eager", "graph"])
def test_activations_are_recomputed_where_all_positions_are_laid_out_and_the_first_is_gathered(compiled):
    model = modeling.BertModel(modeling.BertConfig(**TINY, initializer_range=0.3))
    found = []
    for model.encoder.recompute in (False, True):
        run = lambda: gradients(model, example_inputs(), token_indices=tf.range(48))  # noqa: E731
        found.append((run if compiled == "eager" else tf.function(run))())
    for variable, kept, recomputed in zip(model.trainable_variables, *found):
        scale = max(1.0, np.abs(kept).max())
        np.testing.assert_allclose(recomputed, kept, rtol=0, atol=1e-6 * scale, err_msg=variable.path)


def test_attention_probabilities_can_be_had_where_activations_are_recomputed():
    model = modeling.BertModel(modeling.BertConfig(**TINY))
    expected = model(*example_inputs(), return_attention=True)["attention_probs"]
    model.encoder.recompute = True
    for one, two in zip(model(*example_inputs(), return_attention=True)["attention_probs"], expected, strict=True):
        assert (one == two).numpy().all()


def test_bfloat16_stays_near_float32():
    config = modeling.BertConfig(**TINY)
    exact, half = modeling.BertForPreTraining(config), modeling.BertForPreTraining(config, dtype="mixed_bfloat16")
    for mine, theirs in zip(half.weights, exact.weights):
        mine.assign(theirs)
        assert mine.dtype == "float32"
    one, two = exact(*example_inputs()), half(*example_inputs())
    assert two["sequence_output"].dtype == tf.bfloat16
    assert two["masked_lm_logits"].dtype == tf.float32
    np.testing.assert_allclose(one["sequence_output"], tf.cast(two["sequence_output"], tf.float32), atol=0.06)


def test_keras_saves_and_loads_the_model(tmp_path):
    model = modeling.BertForPreTraining(modeling.BertConfig(**TINY, extra={"directionality": "bidi"}))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    for one, two in zip(model.weights, loaded.weights):
        assert one.path == two.path
        assert (one.numpy() == two.numpy()).all()


def test_a_dictionary_of_inputs_is_one_input():
    model = modeling.BertModel(modeling.BertConfig(**TINY))
    ids, mask, types = example_inputs()
    named = model({"input_ids": ids, "input_mask": mask, "token_type_ids": types})
    assert (named["pooled_output"] == model(ids, mask, types)["pooled_output"]).numpy().all()


@pytest.mark.parametrize("ids", [np.ones([1, 33], np.int32), np.ones([4], np.int32)])
def test_inputs_that_no_model_can_take_are_refused(ids):
    with pytest.raises(UserError, match="max_position_embeddings|two dimensions"):
        modeling.BertModel(modeling.BertConfig(**TINY))(ids)


@pytest.mark.parametrize("name, shape", [("input_mask", [4, 11]), ("input_mask", [1, 12]),
                                         ("token_type_ids", [3, 12])])
def test_inputs_of_other_shapes_than_the_ids_are_refused(name, shape):
    model = modeling.BertModel(modeling.BertConfig(**TINY))
    with pytest.raises(UserError, match=f"{name} has shape"):
        model(example_inputs()[0], **{name: np.ones(shape, np.int32)})


def test_any_integers_and_booleans_are_taken():
    model = modeling.BertForPreTraining(modeling.BertConfig(**TINY))
    ids, mask, types = example_inputs()
    positions = np.array([[0, 1]] * 4)
    expected = model(ids, mask, types, masked_lm_positions=positions.astype(np.int32))["masked_lm_logits"]
    found = model(ids.astype(np.int64), mask != 0, types.astype(np.uint8), masked_lm_positions=positions)
    assert (found["masked_lm_logits"] == expected).numpy().all()


def numpy_forward(weights, config, ids, mask, types):
    """The encoder and pooler in float64 NumPy, written from the paper and the original's constants."""
    activation = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "linear": lambda x: x, None: lambda x: x}

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-12) * weights[f"{name}/gamma"] \
            + weights[f"{name}/beta"]

    def dense(x, name):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def split(x):
        return x.reshape(*ids.shape, config.num_attention_heads, -1).transpose(0, 2, 1, 3)

    at = "bert/embeddings"
    x = norm(weights[f"{at}/word_embeddings"][ids] + weights[f"{at}/token_type_embeddings"][types]
             + weights[f"{at}/position_embeddings"][:ids.shape[1]], f"{at}/LayerNorm")
    for layer in range(config.num_hidden_layers):
        at = f"bert/encoder/layer_{layer}"
        q, k, v = (split(dense(x, f"{at}/attention/self/{name}")) for name in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + (1.0 - mask)[:, None, None] * -10000.0
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = (scores / scores.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(*ids.shape, -1)
        x = norm(dense(context, f"{at}/attention/output/dense") + x, f"{at}/attention/output/LayerNorm")
        inner = activation[config.hidden_act](dense(x, f"{at}/intermediate/dense"))
        x = norm(dense(inner, f"{at}/output/dense") + x, f"{at}/output/LayerNorm")
    return x, np.tanh(dense(x[:, 0], "bert/pooler/dense"))


@pytest.mark.parametrize("hidden_act, heads, type_vocab_size", [("relu", 1, 16), ("tanh", 4, 1), ("linear", 16, 3),
                                                                (None, 2, 2)])
def test_other_configs_equal_a_replay_in_numpy(hidden_act, heads, type_vocab_size):
    config = modeling.BertConfig(**{**TINY, "hidden_act": hidden_act, "num_attention_heads": heads,
                                    "type_vocab_size": type_vocab_size, "initializer_range": 0.2})
    model = modeling.BertModel(config)
    ids, mask, _ = example_inputs()
    types = np.random.RandomState(2).randint(0, type_vocab_size, ids.shape).astype(np.int32)
    weights = {variable.path: variable.numpy().astype(np.float64) for variable in model.weights}
    sequence, pooled = numpy_forward(weights, config, ids, mask, types)
    outputs = model(ids, mask, types)
    np.testing.assert_allclose(outputs["sequence_output"], sequence * mask[:, :, None], atol=2e-5)
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=2e-5)


class TestConfig:
    def test_json_in_and_out_keeps_unknown_keys(self, tmp_path):
        text = json.dumps({"vocab_size": 7, "directionality": "bidi", "type_vocab_size": 2})
        (tmp_path / "c.json").write_text(text)
        config = modeling.BertConfig.from_json_file(tmp_path / "c.json")
        assert (config.vocab_size, config.hidden_size, config.type_vocab_size) == (7, 768, 2)
        assert modeling.BertConfig.from_dict(json.loads(config.to_json_string())) == config
        assert config.to_dict()["directionality"] == "bidi"

    def test_defaults_are_the_originals(self):
        assert modeling.BertConfig(vocab_size=1).to_dict() == {
            "vocab_size": 1, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 16,
            "initializer_range": 0.02}

    @pytest.mark.parametrize("changed", [
        {"vocab_size": "7"}, {"vocab_size": 0}, {"vocab_size": 7.0}, {"vocab_size": True}, {"hidden_size": 100},
        {"hidden_act": "swish"}, {"hidden_act": 3}, {"hidden_dropout_prob": 1.0}, {"hidden_dropout_prob": "0.1"},
        {"initializer_range": -0.1}, {"num_hidden_layers": None}, {"initializer_range": float("nan")}])
    def test_invalid_values_are_refused_by_name(self, changed, tmp_path):
        (tmp_path / "c.json").write_text(json.dumps({"vocab_size": 7, **changed}))
        with pytest.raises(UserError, match=next(iter(changed))) as error:
            modeling.BertConfig.from_json_file(tmp_path / "c.json")
        assert str(tmp_path / "c.json") in str(error.value)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", "7", "\xff"])
    def test_what_is_no_config_is_refused(self, text, tmp_path):
        (tmp_path / "c.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match="c.json"):
            modeling.BertConfig.from_json_file(tmp_path / "c.json")
