import os
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoint
from bert_tf.errors import UserError
from bert_tf.training.saving import Saver


class State(types.SimpleNamespace):
    """What a saver needs of a training state."""

    def tensors(self):
        return {"w": self.weight, "global_step": self.step}


def make_state(step=1):
    return State(step=step, weight=tf.Variable(np.full([4], float(step), np.float32)))


def test_what_is_written_is_what_was_there_when_it_was_asked_for(tmp_path, monkeypatch):
    state, may_write, write = make_state(), threading.Event(), checkpoint.write
    monkeypatch.setattr(checkpoint, "write", lambda *arguments: may_write.wait() and write(*arguments))
    with Saver(str(tmp_path)) as saver:
        prefix = saver.save(state)
        state.weight.assign(tf.fill([4], 9.0))
        state.weight.assign_add(tf.fill([4], 9.0))
        assert checkpoint.latest(tmp_path) is None and saver.saved is None
        may_write.set()
    assert saver.saved == prefix == checkpoint.latest(tmp_path)
    assert dict(checkpoint.read(prefix))["w"].tolist() == [1.0] * 4


def test_a_full_disk_is_said_and_the_last_checkpoint_stands(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="model.ckpt-2: the checkpoint cannot be written .*No space left"):
        with Saver(str(tmp_path)) as saver:
            saver.save(make_state(1))
            saver.wait()

            def fail(**arguments):
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(tf.raw_ops, "SaveV2", fail)
            saver.save(make_state(2))
            saver.wait()
    assert checkpoint.latest(tmp_path).endswith("model.ckpt-1") and saver.saved.endswith("model.ckpt-1")
    assert not [name for name in os.listdir(tmp_path) if "model.ckpt-2" in name]


def test_a_weight_that_is_not_finite_is_not_written(tmp_path):
    state = make_state()
    state.weight.assign([1.0, np.nan, 0.0, 0.0])
    with pytest.raises(UserError, match=r"1 \(w\) not finite at .*model.ckpt-1, which is not written"):
        with Saver(str(tmp_path)) as saver:
            saver.save(state)
    assert not os.listdir(tmp_path)


def test_an_error_of_the_block_is_not_hidden_by_one_of_the_thread(tmp_path):
    state = make_state()
    state.weight.assign(tf.fill([4], np.nan))
    with pytest.raises(UserError, match="mine"):
        with Saver(str(tmp_path)) as saver:
            saver.save(state)
            raise UserError("mine")


def test_only_the_chief_writes(tmp_path):
    with Saver(str(tmp_path), is_chief=False) as saver:
        assert saver.save(make_state(3)) == f"{tmp_path}/model.ckpt-3"
    assert not os.listdir(tmp_path)


def test_what_stays(tmp_path):
    with Saver(str(tmp_path), keep=2, every=4) as saver:
        for step in range(1, 10):
            saver.best = f"{tmp_path}/model.ckpt-2" if step >= 2 else None
            saver.save(make_state(step))
    assert [checkpoint.step_of(prefix) for prefix in checkpoint.list_prefixes(tmp_path)] == [2, 4, 7, 8, 9]
    assert tf.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-9"
