import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import runtime
from bert_tf.errors import UserError


@pytest.mark.parametrize("settings, part", [({"precision": "float64"}, "--precision=float64.*float32, bfloat16"),
                                            ({"precision": ""}, "--precision="), ({"seed": -1}, "--seed=-1"),
                                            ({"seed": 2**31}, "--seed=2147483648")])
def test_unknown_settings_are_refused(settings, part):
    with pytest.raises(UserError, match=part):
        runtime.Runtime(**settings)


def test_policies():
    assert runtime.Runtime().policy == "float32" and runtime.Runtime("bfloat16").policy == "mixed_bfloat16"


def test_the_seed_decides_initial_weights():
    def draw(seed):
        runtime.Runtime(seed=seed, deterministic=False).start()
        return keras.layers.Dense(4, kernel_initializer="truncated_normal").build((None, 3)) or np.concatenate(
            [keras.initializers.TruncatedNormal()([5]).numpy(), tf.random.normal([3]).numpy()])

    assert (draw(1) == draw(1)).all() and (draw(1) != draw(2)).any()


@pytest.mark.parametrize("deterministic, gpus, expected", [(None, [], True), (None, ["GPU:0"], False),
                                                           (True, ["GPU:0"], True), (False, [], False)])
def test_determinism_is_the_default_on_cpus_only(monkeypatch, deterministic, gpus, expected):
    enabled = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: enabled.append(True))
    runtime.Runtime(deterministic=deterministic).start()
    assert bool(enabled) == expected
