"""One device, two, micro-batches, padding: a classifier predicts the same after training, with dropout off."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, modeling, optimization, tokenization
from bert_tf.classification import answers, examples, features, tasks
from bert_tf.classification.objective import build_objective
from bert_tf.runtime import Runtime
from bert_tf.training.step import build_train_loop

CONFIG = modeling.BertConfig(vocab_size=1500, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                             intermediate_size=64, max_position_embeddings=64, type_vocab_size=2,
                             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2)
TASK, BATCH, STEPS = tasks.find("MRPC"), 8, 6


@pytest.fixture(scope="module")
def rows(shared):
    """Features of MRPC's columns: those to train on, those to predict."""
    tokenizer = tokenization.FullTokenizer(shared("goldens/tiny_ckpt/vocab.txt"))
    found = []
    for split in ("train", "dev"):
        path, table = examples.find_table(TASK, split, shared("goldens/glue_data/MRPC"))
        found.append(features.convert(examples.read(path, table, TASK), path, tokenizer, 64, TASK))
    return found


def predictions(rows, runtime, accumulation=1, padded=False):
    """The logits float32 [N, C] of the development rows after some steps on the training rows, the last one short."""
    train, dev = rows
    sizes = batching.Sizes(64, runtime.xla)
    end = min(len(train), BATCH * STEPS - 3)

    def make(numbers):
        if not padded:
            return features.make_batch(train, numbers, sizes)
        batch = features.make_batch(train, numbers, batching.Sizes(64, runtime.xla, static=True))
        return {**batch, "token_indices": np.arange(batch["input_ids"].size, dtype=np.int32)}

    with runtime.start().scope():
        model, objective = modeling.BertForClassification(CONFIG, 2, dropout_prob=0.0), build_objective(TASK)
        optimizer = optimization.create_optimizer(2e-3, STEPS + 2, 2)
        device_loop = build_train_loop(model, objective, optimizer, runtime)
        feed = batching.Feed(lambda start: batching.training_order(len(train), BATCH, 1, start, end=end), make,
                             split=batching.Split(runtime.replicas, accumulation, 0, runtime.local_replicas))
        device_loop(iter(feed.dataset()), tf.constant(STEPS))
        assert int(optimizer.iterations.numpy()) == -(-end // BATCH)
        return answers.build_predict(model, objective, runtime, sizes)(dev, 8)


@pytest.fixture(scope="module")
def expected(rows):
    return predictions(rows, Runtime())


@pytest.mark.parametrize("how", [
    dict(accumulation=2), dict(padded=True), dict(strategy="mirrored", virtual_devices=2),
    dict(strategy="mirrored", virtual_devices=2, accumulation=2, padded=True)],
    ids=lambda how: "-".join(f"{name}={value}" for name, value in how.items()))
def test_the_same_predictions(rows, expected, how):
    placed = {name: how[name] for name in ("strategy", "virtual_devices") if name in how}
    found = predictions(rows, Runtime(**placed), how.get("accumulation", 1), how.get("padded", False))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert (answers.decisions(found, "single") == answers.decisions(expected, "single")).all()
    assert np.ptp(expected[:, 0]) > 1e-2  # which says something
