"""Original-format checkpoints: found, read, refused, restored, and written as the original writes them."""

import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoint, modeling
from bert_tf.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARD = ".data-00000-of-00001"


@pytest.fixture
def step2000(goldens):
    return str(goldens / "tiny_ckpt" / "step2000" / "model.ckpt-2000")


@pytest.fixture
def with_slots(shared):
    """The same checkpoint as recorded, Adam slots and all; the copy beside the tests holds no slots."""
    return str(shared("goldens/tiny_ckpt/step2000") / "model.ckpt-2000")


@pytest.fixture
def copied(step2000, tmp_path):
    """A copy of the trained checkpoint that a test may damage: its prefix."""
    for suffix in (".index", SHARD):
        shutil.copyfile(step2000 + suffix, tmp_path / f"model.ckpt-2000{suffix}")
    return str(tmp_path / "model.ckpt-2000")


@pytest.fixture
def config(goldens):
    return modeling.BertConfig.from_json_file(goldens / "tiny_ckpt" / "bert_config.json")


def named_layer(**shapes):
    """Something whose `weights` have these paths: `__` stands for "/"."""
    weights = []
    for path, shape in shapes.items():
        *scopes, name = path.split("__")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            weights.append(keras.Variable("zeros", shape=shape, name=name))
    return types.SimpleNamespace(weights=weights)


# Finding.


@pytest.mark.parametrize("suffix", ["", ".index", SHARD, ".meta"])
def test_a_prefix_and_each_of_its_files_mean_the_checkpoint(step2000, suffix):
    assert checkpoint.find(step2000 + suffix) == step2000


def test_a_folder_means_the_checkpoint_that_its_state_file_names(step2000):
    folder = os.path.dirname(step2000)
    assert checkpoint.find(folder) == checkpoint.find(folder + "/") == checkpoint.find(folder + "/checkpoint")
    assert checkpoint.find(folder) == step2000


def test_a_folder_without_state_file_means_its_only_checkpoint_even_with_odd_names(tmp_path):
    folder = tmp_path / "with spaces [and] *"
    checkpoint.write(folder / "bert_model.ckpt", {"a": np.ones(2, np.float32)})
    assert checkpoint.find(folder) == str(folder / "bert_model.ckpt")


def test_several_checkpoints_are_named_and_refused(tmp_path):
    for name in ("a.ckpt", "b.ckpt"):
        checkpoint.write(tmp_path / name, {"a": np.ones(2, np.float32)})
    with pytest.raises(UserError, match="holds 2 checkpoints: a.ckpt, b.ckpt"):
        checkpoint.find(tmp_path)


def test_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint"):
        checkpoint.find(tmp_path)
    with pytest.raises(UserError, match="no such checkpoint"):
        checkpoint.find(tmp_path / "nothing.ckpt")
    with pytest.raises(UserError, match="no checkpoint is given"):
        checkpoint.find("")


def test_a_missing_data_file_or_index_is_named(copied):
    os.rename(copied + SHARD, copied + ".elsewhere")
    with pytest.raises(UserError, match="data-00000-of-00001 is missing"):
        checkpoint.find(copied)
    os.rename(copied + ".elsewhere", copied + SHARD)
    os.remove(copied + ".index")
    with pytest.raises(UserError, match="its data file is there, the index is not"):
        checkpoint.find(copied)


def test_a_state_file_leads_nowhere_but_into_its_folder(copied, step2000):
    folder = os.path.dirname(copied)
    with open(f"{folder}/checkpoint", "w", encoding="utf-8") as file:
        file.write(f'model_checkpoint_path: "{os.path.dirname(step2000)}/../step0/model.ckpt-0"\n')
    with pytest.raises(UserError, match=r"names model.ckpt-0, which is not in that folder \(there: model.ckpt-2000\)"):
        checkpoint.find(folder)
    # A run's folder that was moved: the name is followed, the old place is not.
    with open(f"{folder}/checkpoint", "w", encoding="utf-8") as file:
        file.write('model_checkpoint_path: "/old/place/model.ckpt-2000"\n')
    assert checkpoint.find(folder) == copied


def test_a_broken_state_file_is_refused(copied):
    folder = os.path.dirname(copied)
    with open(f"{folder}/checkpoint", "w", encoding="utf-8") as file:
        file.write("nonsense {")
    with pytest.raises(UserError, match="not a checkpoint state file"):
        checkpoint.find(folder)


# Reading.


def test_variables_are_listed_with_shape_and_dtype(with_slots):
    entries = checkpoint.list_variables(with_slots)
    assert len(entries) == 139 and list(entries) == sorted(entries)
    assert entries["bert/embeddings/word_embeddings"] == checkpoint.Entry((1500, 64), tf.float32)
    assert entries["global_step"] == checkpoint.Entry((), tf.int64)
    assert checkpoint.step_of(with_slots) == 2000


def test_without_a_global_step_the_name_tells_it(tmp_path):
    for name, step in (("model.ckpt-7", 7), ("bert_model.ckpt", None)):
        checkpoint.write(tmp_path / name, {"a": np.ones(2, np.float32)})
        assert checkpoint.step_of(str(tmp_path / name)) == step


def test_a_name_that_is_not_there_is_refused(step2000):
    with pytest.raises(UserError, match="has no variable bert/none"):
        dict(checkpoint.read(step2000, ["bert/none"]))


def damage(path, change):
    with open(path, "rb") as file:
        content = bytearray(file.read())
    with open(path, "wb") as file:
        file.write(change(content))


def flip(content):
    content[10] ^= 1
    return content


@pytest.mark.parametrize(("suffix", "change"), [
    (".index", flip), (".index", lambda content: content[:100]), (".index", lambda content: b""),
    (SHARD, flip), (SHARD, lambda content: content[:-1]), (SHARD, lambda content: b""),
])
def test_damaged_files_are_refused_in_one_line(copied, config, suffix, change):
    damage(copied + suffix, change)
    with pytest.raises(UserError, match="damaged|cut short") as caught:
        checkpoint.restore(modeling.BertForPreTraining(config), copied)
    assert "\n" not in str(caught.value) and copied in str(caught.value)


# Restoring.


def test_the_trained_checkpoint_restores_whole(config, with_slots):
    model = modeling.BertForPreTraining(config)
    report = checkpoint.restore(model, with_slots)
    assert report.summary() == (f"{with_slots}: 46/46 restored; optimizer and training state: 92; global_step 2000")
    assert (report.missing, report.extra, report.misshapen, report.details()) == ([], [], [], [])
    stored = dict(checkpoint.read(with_slots))
    for variable in model.weights:
        np.testing.assert_array_equal(variable.numpy(), stored[checkpoint.variable_name(variable.path)])


def test_heads_that_only_the_file_has_are_reported(config, step2000):
    report = checkpoint.restore(modeling.BertModel(config), step2000)
    assert len(report.restored) == 39 and len(report.extra) == 7
    assert all(name.startswith("cls/") for name in report.extra)
    assert "39/39 restored; extra: 7 (cls/predictions/output_bias, " in str(report)


def test_heads_that_only_the_model_has_keep_their_values(config, step2000, tmp_path):
    stored = dict(checkpoint.read(step2000))
    checkpoint.write(tmp_path / "encoder", {name: stored[name] for name in stored if name.startswith("bert/")})
    model = modeling.BertForPreTraining(config)
    before = {variable.path: variable.numpy() for variable in model.weights}
    report = checkpoint.restore(model, tmp_path)
    assert len(report.missing) == 7 and report.total == 46
    for variable in model.weights:
        if variable.path in report.missing:
            np.testing.assert_array_equal(variable.numpy(), before[variable.path])


def test_a_fine_tuned_checkpoint_of_the_originals_gives_its_encoder(config, shared):
    report = checkpoint.restore(modeling.BertModel(config), shared("goldens/e2e/mrpc"))
    assert (len(report.restored), report.extra) == (39, ["output_bias", "output_weights"])
    report = checkpoint.restore(modeling.BertModel(config), shared("goldens/e2e/squad_v2"))
    assert (len(report.restored), report.extra) == (39, ["cls/squad/output_bias", "cls/squad/output_weights"])


def test_writing_and_loading_base_takes_little_more_memory_than_the_model(tmp_path):
    code = (
        "import resource, sys, tensorflow as tf\n"
        "from bert_tf import checkpoint, modeling, names\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "imported = peak()\n"
        "model = modeling.BertForPreTraining(modeling.BertConfig(vocab_size=30522, type_vocab_size=2))\n"
        "checkpoint.write(sys.argv[1], {names.variable_name(v.path): v for v in model.weights})\n"
        "assert len(checkpoint.restore(model, sys.argv[1]).restored) == 206\n"
        "print((peak() - imported) / sum(4 * v.value.shape.num_elements() for v in model.weights))\n"
    )
    child = [sys.executable, "-c", code, str(tmp_path / "bert_model.ckpt")]
    done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=True)
    assert os.path.getsize(tmp_path / f"bert_model.ckpt{SHARD}") == 4 * 110_106_428
    assert float(done.stdout) < 2.2


def unchanged_by(layer, path, match, **options):
    before = [variable.numpy() for variable in layer.weights]
    with pytest.raises(UserError, match=match):
        checkpoint.restore(layer, path, **options)
    for variable, value in zip(layer.weights, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_an_encoder_variable_that_is_missing_or_misshapen_is_refused_before_anything_changes(tmp_path):
    layer = named_layer(bert__a=(2,), bert__b=(3,), bert__c=(4,), output_bias=(5,))
    checkpoint.write(tmp_path / "m", {"bert/a": np.ones(2, np.float32), "bert/c": np.ones(9, np.float32)})
    unchanged_by(layer, tmp_path, r"m: the checkpoint lacks 1 \(bert/b\).*--allow_missing")
    checkpoint.write(tmp_path / "m", {"bert/a": np.ones(2, np.float32), "bert/b": np.ones(3, np.float32),
                                      "bert/c": np.ones(9, np.float32)})
    unchanged_by(layer, tmp_path, r"m: bert/c has shape \[9\], in the model \[4\]; does the config")
    report = checkpoint.restore(layer, tmp_path, allow_missing=True)
    assert report.restored == ["bert/a", "bert/b"] and report.misshapen == [("bert/c", (9,), (4,))]
    assert "misshapen, left at its initial value: bert/c: [9] in the checkpoint, [4] in the model" in report.details()
    np.testing.assert_array_equal(layer.weights[0].numpy(), np.ones(2))
    np.testing.assert_array_equal(layer.weights[2].numpy(), np.zeros(4))


def test_a_misshapen_head_is_reported(tmp_path):
    layer = named_layer(bert__a=(2,), cls__squad__output_bias=(2,))
    one = np.ones(3, np.float32)
    checkpoint.write(tmp_path / "m", {"bert/a": one[:2], "cls/squad/output_bias": one})
    assert checkpoint.restore(layer, tmp_path).misshapen == [("cls/squad/output_bias", (3,), (2,))]


def test_a_checkpoint_that_shares_nothing_is_refused_even_when_variables_may_be_missing(tmp_path):
    checkpoint.write(tmp_path / "m", {"conv/kernel": np.ones(2, np.float32)})
    unchanged_by(named_layer(bert__a=(2,)), tmp_path, r"no variable of the model is in it; it holds 1 \(conv/kernel\)",
                 allow_missing=True)


def test_when_no_shape_fits_the_first_is_named(tmp_path):
    checkpoint.write(tmp_path / "m", {"bert/a": np.ones(2, np.float32), "bert/b": np.ones(2, np.float32)})
    layer = named_layer(bert__a=(3,), bert__b=(3,), bert__c=(3,))
    match = r"m: bert/a has shape \[2\], in the model \[3\]; other shapes.*: 2 \(bert/a, bert/b\); no variable fits"
    for allowed in (False, True):
        unchanged_by(layer, tmp_path, match, allow_missing=allowed)


@pytest.mark.parametrize(("step", "found"), [
    (tf.constant("2000"), r"string \[\]"), (np.int64([5, 6]), r"int64 \[2\]"), (np.int64(-1), "-1"),
    (np.float32(5.0), r"float32 \[\]"),
])
def test_a_global_step_that_counts_no_steps_is_refused_before_anything_changes(tmp_path, step, found):
    checkpoint.write(tmp_path / "m", {"bert/a": np.ones(2, np.float32), "global_step": step})
    unchanged_by(named_layer(bert__a=(2,)), tmp_path, f"m: global_step is {found}, not one whole number")
    with pytest.raises(UserError, match=f"m: global_step is {found}, not one whole number"):
        checkpoint.step_of(str(tmp_path / "m"))


def test_an_object_based_checkpoint_is_told_apart(tmp_path):
    tf.train.Checkpoint(v=tf.Variable([1.0])).write(str(tmp_path / "m"))
    unchanged_by(named_layer(bert__a=(2,)), tmp_path, "an object-based TensorFlow 2 checkpoint")


def test_nan_is_refused_by_name(tmp_path):
    checkpoint.write(tmp_path / "m", {"bert/a": np.float32([1, np.nan]), "bert/b": np.ones(3, np.float32)})
    with pytest.raises(UserError, match=r"NaN or infinity in 1 \(bert/a\)"):
        checkpoint.restore(named_layer(bert__a=(2,), bert__b=(3,)), tmp_path)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_other_floats_are_cast_and_said(tmp_path, dtype):
    layer = named_layer(bert__a=(2,))
    checkpoint.write(tmp_path / "m", {"bert/a": tf.constant([1.5, -2], dtype)})
    report = checkpoint.restore(layer, tmp_path)
    assert report.cast == [("bert/a", dtype.name)] and "cast: 1 (bert/a)" in str(report)
    np.testing.assert_array_equal(layer.weights[0].numpy(), [1.5, -2])


def test_integers_are_no_weights(tmp_path):
    checkpoint.write(tmp_path / "m", {"bert/a": np.ones(2, np.int64)})
    with pytest.raises(UserError, match="bert/a holds int64"):
        checkpoint.restore(named_layer(bert__a=(2,)), tmp_path)


def test_training_state_and_foreign_variables_are_kept_apart(tmp_path):
    one = np.ones(2, np.float32)
    names = ("bert/a", "bert/a/adam_m", "bert/a/adam_v", "run/order", "bert/a/lora_a", "foreign/kernel")
    checkpoint.write(tmp_path / "m", {**dict.fromkeys(names, one), "global_step": 7})
    report = checkpoint.restore(named_layer(bert__a=(2,)), tmp_path)
    assert (report.extra, report.slots, report.global_step) == (["foreign/kernel"], 4, 7)


def test_two_variables_of_one_name_are_refused(tmp_path):
    checkpoint.write(tmp_path / "m", {"bert/a": np.ones(2, np.float32)})
    twice = named_layer(bert__a=(2,), wrapper__bert__a=(2,))
    with pytest.raises(UserError, match="two variables of the model are named bert/a"):
        checkpoint.restore(twice, tmp_path)


# Writing.


def test_written_files_are_the_originals_byte_for_byte(with_slots, tmp_path):
    checkpoint.write(tmp_path / "new" / "model.ckpt-2000", dict(checkpoint.read(with_slots)))
    for suffix in (".index", SHARD):
        with open(with_slots + suffix, "rb") as theirs, open(tmp_path / f"new/model.ckpt-2000{suffix}", "rb") as ours:
            assert theirs.read() == ours.read()
    assert sorted(os.listdir(tmp_path / "new")) == [f"model.ckpt-2000{SHARD}", "model.ckpt-2000.index"]


def test_tensorflow_reads_what_is_written_from_variables_and_numbers(tmp_path):
    layer = named_layer(bert__a=(2, 3))
    layer.weights[0].assign(np.arange(6, dtype=np.float32).reshape(2, 3))
    checkpoint.write(tmp_path / "m", {"bert/a": layer.weights[0], "v": tf.Variable([1.0]), "global_step": 2 ** 40})
    reader = tf.train.load_checkpoint(str(tmp_path / "m"))
    np.testing.assert_array_equal(reader.get_tensor("bert/a"), np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(reader.get_tensor("v"), [1.0])
    step = reader.get_tensor("global_step")
    assert step == 2 ** 40 and step.dtype == np.int64 and step.shape == ()


def test_a_failed_write_leaves_earlier_files_and_nothing_else(copied):
    folder = os.path.dirname(copied)
    before = {name: os.path.getmtime(os.path.join(folder, name)) for name in os.listdir(folder)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # The system now refuses files above 1 MB, as a full disk would.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
        with pytest.raises(UserError, match=f"{copied}: the checkpoint cannot be written"):
            checkpoint.write(copied, {"a": np.ones(10 ** 6, np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert before == {name: os.path.getmtime(os.path.join(folder, name)) for name in os.listdir(folder)}
    assert checkpoint.step_of(copied) == 2000


def test_an_impossible_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be"):
        checkpoint.write(tmp_path / "file" / "model.ckpt-1", {"a": 1})


# The `checkpoint` file.


def write_steps(folder, *steps):
    prefixes = [os.path.join(folder, f"model.ckpt-{step}") for step in steps]
    for step, prefix in zip(steps, prefixes, strict=True):
        checkpoint.write(prefix, {"global_step": step})
    return prefixes


def test_tensorflow_finds_the_newest_by_our_state_file(tmp_path):
    folder = str(tmp_path / 'a "b" c')
    assert checkpoint.latest(folder) is None
    prefixes = write_steps(folder, 5, 10)
    checkpoint.update_state(folder, prefixes[1], prefixes)
    assert tf.train.latest_checkpoint(folder) == checkpoint.latest(folder) == prefixes[1]
    state = tf.train.get_checkpoint_state(folder)
    assert list(state.all_model_checkpoint_paths) == prefixes
    checkpoint.update_state(folder, prefixes[0], prefixes)
    assert checkpoint.latest(folder) == prefixes[0]


def test_prune_keeps_the_newest_and_what_is_not_of_the_run(tmp_path):
    folder = str(tmp_path)
    prefixes = write_steps(folder, 9, 10, 100, 1000)
    checkpoint.write(tmp_path / "bert_model.ckpt", {"a": 1})
    (tmp_path / "model.ckpt-9.meta").write_text("")
    (tmp_path / "model.ckpt-9-notes.txt").write_text("")
    checkpoint.update_state(folder, prefixes[3])
    assert checkpoint.prune(folder, 0) == []
    assert checkpoint.prune(folder, 2) == prefixes[:2]
    left = {"bert_model.ckpt", "model.ckpt-100", "model.ckpt-1000"}
    assert set(map(os.path.basename, checkpoint.list_prefixes(folder))) == left
    assert not (tmp_path / "model.ckpt-9.meta").exists() and (tmp_path / "model.ckpt-9-notes.txt").exists()
    assert list(tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths) == prefixes[2:]
    assert checkpoint.prune(folder, 1) == [prefixes[2]] and checkpoint.latest(folder) == prefixes[3]


def test_prune_keeps_every_so_manieth_and_what_it_is_told_to(tmp_path):
    folder = str(tmp_path)
    prefixes = write_steps(folder, 100, 150, 200, 250, 300, 350)
    checkpoint.update_state(folder, prefixes[-1])
    assert checkpoint.prune(folder, 1, every=100, kept=[prefixes[1]]) == [prefixes[3]]
    assert checkpoint.prune(folder, 0, every=100) == []
    assert list(tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths) == [
        prefix for prefix in prefixes if prefix != prefixes[3]]
    assert checkpoint.prune(folder, 2) == prefixes[:3] and checkpoint.latest(folder) == prefixes[-1]


def test_the_newest_is_kept_even_when_its_number_is_not_the_highest(tmp_path):
    prefixes = write_steps(str(tmp_path), 5, 10)
    checkpoint.update_state(str(tmp_path), prefixes[0])
    assert checkpoint.prune(str(tmp_path), 1) == [prefixes[1]]
    assert checkpoint.latest(str(tmp_path)) == prefixes[0]


def test_an_unfinished_write_is_no_checkpoint(tmp_path):
    write_steps(str(tmp_path), 5)
    shutil.copyfile(tmp_path / "model.ckpt-5.index", tmp_path / "model.ckpt-6.tmp-123.index")
    assert checkpoint.find(tmp_path) == str(tmp_path / "model.ckpt-5")
