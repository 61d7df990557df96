"""One device, two, two workers, micro-batches, padding, XLA: the same numbers, with dropout off.

As a script this file is one worker of two: it trains as the tests do and saves what it has.
"""

import json
import os
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, modeling, optimization
from bert_tf.cluster import VARIABLE
from bert_tf.pretraining import objective
from bert_tf.runtime import Runtime
from bert_tf.training import evaluation
from bert_tf.training.agreement import build_sharing
from bert_tf.training.precision import LossScale
from bert_tf.training.step import build_train_loop, scalar_names

CONFIG = dict(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
              max_position_embeddings=128, type_vocab_size=2)
STILL = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
BATCH, STEPS, LENGTH, PREDICTIONS = 16, 5, 128, 20
EXAMPLES = BATCH * (STEPS - 1) + 13  # the last batch is uneven
CLIP_NORM = 0.5  # below every gradient's norm here


def make_records():
    """Rows with 8 to 128 tokens of which 1 to 20 are masked."""
    rng = np.random.RandomState(0)
    lengths = rng.randint(8, LENGTH + 1, [EXAMPLES, 1])
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    weights = (np.arange(PREDICTIONS) < rng.randint(1, PREDICTIONS + 1, [EXAMPLES, 1])).astype(np.float32)
    positions = rng.randint(1, 8, [EXAMPLES, PREDICTIONS]).astype(np.int32) * weights.astype(np.int32)
    return {"input_ids": rng.randint(5, 60, [EXAMPLES, LENGTH]).astype(np.int32) * mask, "input_mask": mask,
            "segment_ids": (np.arange(LENGTH) > lengths // 2).astype(np.int32) * mask,
            "masked_lm_positions": positions, "masked_lm_weights": weights,
            "masked_lm_ids": rng.randint(5, 60, [EXAMPLES, PREDICTIONS]).astype(np.int32),
            "next_sentence_labels": rng.randint(0, 2, EXAMPLES).astype(np.int32),
            "example_weights": np.ones(EXAMPLES, np.float32)}


def make_feed(runtime, accumulation=1, padded=False):
    records = make_records()

    def make(numbers):
        batch = {name: array[numbers] for name, array in records.items()}
        if padded:
            return {**batch, "token_indices": np.arange(batch["input_ids"].size, dtype=np.int32)}
        return batching.unpad(batch, batching.Sizes(LENGTH, runtime.xla), batch["masked_lm_positions"])

    split = batching.Split(runtime.replicas, accumulation, runtime.first_replica, runtime.local_replicas)
    return batching.Feed(lambda start: batching.training_order(EXAMPLES, BATCH, 1, start, end=EXAMPLES), make,
                         split=split)


def train(runtime, optimizer="adam", accumulation=1, padded=False, iterations_per_loop=STEPS, evaluated=False,
          **config):
    """The rows of five steps, the weights after them and, if asked for, an evaluation."""
    with runtime.start().scope():
        model = modeling.BertForPreTraining(modeling.BertConfig(**CONFIG | (config or STILL)), dtype=runtime.policy)
        optimizer = optimization.create_optimizer(1e-3, STEPS + 2, 2, optimizer)
        loss_scale = LossScale() if runtime.precision == "float16" else None
        device_loop = build_train_loop(model, objective, optimizer, runtime, CLIP_NORM, loss_scale)
        feed = make_feed(runtime, accumulation, padded)
        iterator, rows = iter(feed.dataset()), np.zeros([0, len(scalar_names(objective))])
        while len(rows) < STEPS:
            rows = np.concatenate([rows, device_loop(iterator, tf.constant(iterations_per_loop)).numpy()])
        assert len(rows) == STEPS and int(optimizer.iterations.numpy()) == STEPS
        metrics = evaluation.build_evaluation(model, objective, runtime)(feed) if evaluated else {}
        metrics |= build_sharing(runtime)({"of_the_chief": runtime.is_chief / 3})  # 0 if it were another worker's
        weights = {variable.path.replace("/", "|"): variable.numpy() for variable in model.weights}
    return {**{f"row|{name}": column for name, column in zip(scalar_names(objective), rows.T)},
            **{f"metric|{name}": value for name, value in metrics.items()}, **weights}


@pytest.fixture(scope="module")
def one_device():
    """One device, batch 16, by optimizer."""
    return {name: train(Runtime(), name, evaluated=True) for name in ("adam", "lamb")}


def assert_same(found, expected):
    assert set(expected) - set(found) <= {name for name in expected if name.startswith("metric|")}
    for name, value in found.items():
        if name == "row|rows":  # padding counts
            continue
        if name.endswith("key|bias"):  # its gradient is rounding noise
            continue
        largest = np.abs(expected[name]).max() if name.startswith(("row", "metric")) else 1.0
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5 * max(1.0, largest), err_msg=name)


def test_the_run_that_all_are_compared_with(one_device):
    run = one_device["adam"]
    assert run["row|examples"].tolist() == [16, 16, 16, 16, 13] and (run["row|gradient_norm"] > CLIP_NORM).all()
    assert run["row|loss"][-1] < run["row|loss"][0] and not run["row|skipped"].any()
    assert run["row|tokens"].sum() == make_records()["input_mask"].sum()


@pytest.mark.parametrize("how", [
    dict(accumulation=2), dict(padded=True), dict(accumulation=4, iterations_per_loop=2),
    dict(strategy="mirrored", virtual_devices=2, accumulation=2, xla=True, padded=True)],
    ids=lambda how: "-".join(f"{name}={value}" for name, value in how.items()))
def test_devices_micro_batches_padding_and_xla_change_no_number(one_device, how):
    settings = {name: how[name] for name in ("strategy", "virtual_devices", "xla") if name in how}
    rest = {name: how[name] for name in ("accumulation", "padded", "iterations_per_loop") if name in how}
    assert_same(train(Runtime(**settings), **rest), one_device["adam"])


def test_the_same_with_lamb_and_for_evaluations(one_device):
    found = train(Runtime(strategy="mirrored", virtual_devices=2), "lamb", accumulation=2, evaluated=True)
    assert_same(found, one_device["lamb"])


def test_two_workers_change_no_number(one_device, tmp_path):
    results = run_workers(tmp_path, {})
    for found in results:
        assert_same(found, one_device["adam"])
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def run_workers(folder, settings, count=2):
    """What each of some workers has in the end."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    workers = [subprocess.Popen(
        [sys.executable, __file__, str(folder / f"{index}.npz"), json.dumps(settings)],
        env={**os.environ, VARIABLE: json.dumps({"cluster": {"worker": addresses},
                                                 "task": {"type": "worker", "index": index}})},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for index in range(count)]
    outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count, "\n".join(outputs)
    return [dict(np.load(folder / f"{index}.npz")) for index in range(count)]


@pytest.mark.parametrize("settings", [dict(precision="bfloat16"),
                                      dict(precision="float16", strategy="mirrored", virtual_devices=2)],
                         ids=lambda settings: "-".join(map(str, settings.values())))
def test_half_precision_stays_near_with_float32_weights(one_device, settings):
    found, expected = train(Runtime(**settings)), one_device["adam"]
    for name in ("row|loss", "row|gradient_norm"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0.02)
    assert all(value.dtype == np.float32 for name, value in found.items() if name.startswith(("bert", "cls")))
    if settings["precision"] == "float16":
        assert found["row|loss_scale"].tolist() == [2.0**15] * STEPS


def test_dropout_differs_between_replicas_and_micro_batches_and_is_repeated():
    def losses(**settings):
        keras.utils.set_random_seed(0)
        return train(Runtime(strategy="mirrored", virtual_devices=2), hidden_dropout_prob=0.5,
                     attention_probs_dropout_prob=0.1, **settings)["row|loss"]

    one = losses()
    assert (losses() == one).all() and np.abs(losses(accumulation=2) - one).max() > 1e-4


if __name__ == "__main__":
    np.savez(sys.argv[1], **train(Runtime(strategy="multi_worker", **json.loads(sys.argv[2])), evaluated=True))
