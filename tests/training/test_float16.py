"""float16 where it is weakest: rows of padding, huge logits, gradients that overflow."""

import json

import keras
import numpy as np
import pytest

from bert_tf import batching, modeling, optimization
from bert_tf.errors import UserError
from bert_tf.pretraining import objective
from bert_tf.runtime import Runtime
from bert_tf.training import journal, loop
from bert_tf.training.precision import LossScale
from bert_tf.training.state import TrainingState

SMALL = dict(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=16, type_vocab_size=2)
STEPS = 20
LENGTHS = np.array([[0], [1], [16], [9]])  # a row of padding and a row of one token among them


def make_records():
    rng = np.random.RandomState(0)
    mask = (np.arange(16) < LENGTHS).astype(np.int32)
    return {"input_ids": rng.randint(5, 40, [4, 16]).astype(np.int32) * mask, "input_mask": mask,
            "segment_ids": np.zeros_like(mask),
            "masked_lm_positions": np.array([[0, 0], [0, 0], [3, 9], [1, 8]], np.int32),
            "masked_lm_ids": rng.randint(5, 40, [4, 2]).astype(np.int32),
            "masked_lm_weights": np.array([[0, 0], [1, 0], [1, 1], [1, 1]], np.float32),
            "next_sentence_labels": np.array([0, 1, 0, 1], np.int32), "example_weights": np.ones(4, np.float32)}


class Trainer:
    """A model whose logits reach 2e4, and some steps on one batch."""

    def __init__(self):
        runtime = Runtime("float16")
        keras.utils.set_random_seed(2)
        model = modeling.BertForPreTraining(modeling.BertConfig(**SMALL), dtype=runtime.policy)
        self.state = TrainingState(model, optimization.create_optimizer(1e-3, STEPS, 2), LossScale())
        self.runtime = runtime
        self.records = make_records()
        table, scale = model.bert.embeddings.word_embeddings, model.masked_lm.layer_norm.gamma
        table.assign(table * 50)
        scale.assign(scale * 2e4 / np.abs(self.outputs()["masked_lm_logits"]).max())
        self.initial = {name: np.array(value) for name, value in self.state.tensors().items()}
        self.device_loop = loop.build_train_loop(model, objective, self.state.optimizer, runtime, 1.0,
                                                 self.state.loss_scale)

    def outputs(self):
        return objective.forward(self.state.model, self.batch(np.arange(4)))

    def batch(self, numbers):
        batch = {name: array[numbers] for name, array in self.records.items()}
        return batching.unpad(batch, batching.Sizes(16, False), batch["masked_lm_positions"])

    def run(self, folder, **settings):
        for name, variable in self.state.tensors().items():
            if hasattr(variable, "assign"):
                variable.assign(self.initial[name])
        self.state.optimizer.iterations.assign(0)
        self.state.examples_seen = 0
        feed = batching.Feed(lambda start: batching.training_order(4, 4, 0, start), self.batch)
        loop.train(self.state, objective, feed, self.runtime,
                   loop.Schedule(str(folder), STEPS, iterations_per_loop=2, **settings), [journal.Log(str(folder))])
        return [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def shared_trainer():
    return Trainer()


@pytest.fixture
def trainer(shared_trainer, monkeypatch):
    monkeypatch.setattr(loop, "build_train_loop", lambda *arguments: shared_trainer.device_loop)
    yield shared_trainer
    shared_trainer.records = make_records()


def test_padding_single_tokens_and_huge_logits_stay_finite(trainer, tmp_path):
    logits = trainer.outputs()["masked_lm_logits"].numpy()
    assert np.abs(logits).max() == pytest.approx(2e4, rel=0.01) and np.isfinite(logits).all()
    rows = trainer.run(tmp_path)
    assert np.isfinite([row["loss"] for row in rows]).all() and rows[0]["loss"] > 1000
    assert not rows[-1]["skipped"] and np.isfinite(rows[-1]["gradient_norm"])
    assert rows[-1]["loss_scale"] < 1  # the gradient itself is near what float16 holds


def test_an_overflow_is_skipped_lowers_the_scale_and_is_said(trainer, tmp_path, caplog):
    trainer.records["masked_lm_weights"][2, 0] = np.inf
    rows = trainer.run(tmp_path)
    assert all(row["skipped"] for row in rows)
    assert [row["loss_scale"] for row in rows] == [2.0**15 / 2**step for step in range(STEPS)]
    assert caplog.text.count("skipped: its gradient overflowed at a loss scale of") == STEPS
    after = {name: np.array(value) for name, value in trainer.state.tensors().items()}
    for name, value in trainer.initial.items():
        if name.startswith(("bert/", "cls/")):
            np.testing.assert_array_equal(after[name], value)


def test_many_overflows_in_a_row_end_the_run_with_a_reason(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(loop.precision, "MOST_SKIPPED", 5)
    trainer.records["masked_lm_weights"][2, 0] = np.inf
    with pytest.raises(UserError, match="step 5: the last 5 steps in a row had no finite gradient"):
        trainer.run(tmp_path)
