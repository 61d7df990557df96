import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import runtime
from bert_tf.errors import UserError


@pytest.mark.parametrize("settings, part", [({"precision": "float64"}, "--precision=float64.*float32, bfloat16"),
                                            ({"precision": ""}, "--precision="), ({"seed": -1}, "--seed=-1"),
                                            ({"seed": 2**31}, "--seed=2147483648"),
                                            ({"strategy": "all"}, "--strategy=all is unknown"),
                                            ({"strategy": "multi_worker"}, "needs TF_CONFIG"),
                                            ({"strategy": "one", "virtual_devices": 2}, "--virtual_devices=2 is for"),
                                            ({"strategy": "tpu", "precision": "float16"}, "float16 does not work on"),
                                            ])
def test_unknown_settings_are_refused(settings, part):
    with pytest.raises(UserError, match=part):
        runtime.Runtime(**settings)


def test_policies():
    assert [runtime.Runtime(precision).policy for precision in ("float32", "bfloat16", "float16")] == [
        "float32", "mixed_bfloat16", "mixed_float16"]


def test_auto_finds_out(monkeypatch):
    assert (runtime.Runtime().kind, runtime.Runtime().replicas, runtime.Runtime().is_chief) == ("one", 1, True)
    two = runtime.Runtime(virtual_devices=2)
    assert (two.kind, two.replicas, two.local_replicas, two.first_replica, two.devices) == ("mirrored", 2, 2, 0, 1)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1", "c:1"]},
                                                "task": {"type": "worker", "index": 2}}))
    worker = runtime.Runtime()
    assert (worker.kind, worker.replicas, worker.local_replicas, worker.first_replica) == ("multi_worker", 3, 1, 2)
    assert not worker.is_chief and worker.cluster.index == 2
    with pytest.raises(UserError, match="TF_CONFIG names 3 workers, --strategy=one would have each train by itself"):
        runtime.Runtime(strategy="one")


def test_a_tpu_that_cannot_be_reached_is_one_line():
    with pytest.raises(UserError, match="--tpu_name=local: no TPU can be reached") as error:
        runtime.Runtime(strategy="tpu", tpu_name="local").start()
    assert "\n" not in str(error.value)


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
