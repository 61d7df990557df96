import json

import pytest
from absl import flags

from bert_tf.cli import common
from bert_tf.errors import UserError

OWN = (("bool", "do_train", True, ""), ("integer", "train_batch_size", 32, ""), ("integer", "eval_batch_size", 8, ""),
       ("float", "learning_rate", 5e-5, ""), ("string", "input_file", "data/*", ""),
       ("string", "output_dir", "gs://bucket/out", ""), ("string", "init_checkpoint", None, ""))


def parse(*argv, tables=(OWN, common.RUNTIME, common.STEP, common.FOLDER, common.OBSOLETE)):
    values = flags.FlagValues()
    common.define(values, *tables)
    values(["script", *argv])
    return values


def test_defaults():
    values = parse()
    assert (values.seed, values.deterministic, values.precision, values.xla) == (12345, None, "float32", False)
    assert (values.resume, values.overwrite_output_dir, values.keep_checkpoint_max) == (False, False, 5)
    assert (values.strategy, values.optimizer, values.clip_norm, values.save_checkpoints_steps) == (
        "auto", "adam", 1.0, 1000)
    common.check_training_flags(values)


def test_obsolete_flags_are_noted_once_each_and_only_when_given(caplog):
    with caplog.at_level("INFO", "bert_tf"):
        common.note_obsolete(parse())
        assert not caplog.records
        common.note_obsolete(parse("--master=a"))
        common.note_obsolete(parse("--num_tpu_cores=1", tables=[common.NOT_ON_TPUS]), common.NOT_ON_TPUS)
    assert [record.message for record in caplog.records] == [
        "--master has no effect any more", "--num_tpu_cores has no effect any more"]


def test_a_tpu_is_refused_where_none_is_driven():
    with pytest.raises(UserError, match="--use_tpu"):
        common.note_obsolete(parse("--use_tpu", tables=[common.NOT_ON_TPUS]), common.NOT_ON_TPUS)


def test_least_values():
    values = parse("--seed=4", "--keep_checkpoint_max=0")
    common.require_at_least(values, 4, "seed")
    common.require_at_least(values, 0, "keep_checkpoint_max", "seed", "lora_rank")
    with pytest.raises(UserError, match="--keep_checkpoint_max=0 must be at least 1"):
        common.require_at_least(values, 1, "seed", "keep_checkpoint_max")


@pytest.mark.parametrize("argv, part", [
    (["--learning_rate=nan"], "--learning_rate=nan"), (["--learning_rate=0"], "--learning_rate=0"),
    (["--clip_norm=-1"], "--clip_norm=-1"), (["--clip_norm=nan"], "--clip_norm=nan"),
    (["--ema_decay=1"], "--ema_decay=1"), (["--layer_decay=1.1"], "--layer_decay=1.1"),
    (["--use_ema"], "without --ema_decay"),
    (["--gradient_accumulation_steps=0"], "--gradient_accumulation_steps=0"),
    (["--gradient_accumulation_steps=2", "--device_batch_size=4"], "give one"),
    (["--early_stopping_patience=2"], "without --eval_every_steps"), (["--lora_train=x"], "without --lora_rank"),
    (["--lora_rank=0"], "--lora_rank=0"), (["--freeze=("], r"--freeze=\( is no regular expression"),
    (["--profile_steps=3"], "must be A:B"), (["--profile_steps=0:2"], "1 <= A <= B"),
    (["--profile_steps=5:4"], "1 <= A <= B"), (["--resume", "--overwrite_output_dir"], "contradict"),
    (["--use_tpu", "--strategy=mirrored"], "contradict"),
    (["--use_tpu", "--precision=float16"], "use bfloat16"),
    (["--use_tpu", "--tpu_name=a"], r"--input_file=data/\*: the TPU a cannot reach"),
    (["--strategy=tpu", "--tpu_name=a", "--input_file=gs://b/c", "--init_checkpoint=here"], "--init_checkpoint=here"),
    (["--strategy=multi_worker", "--worker_timeout=-1"], "--worker_timeout=-1")])
def test_flags_that_contradict_each_other_are_refused(argv, part):
    with pytest.raises(UserError, match=part) as error:
        common.check_training_flags(parse(*argv))
    assert "\n" not in str(error.value)


def test_a_tpus_flags_have_no_effect_without_one(caplog):
    with caplog.at_level("INFO", "bert_tf"):
        common.check_training_flags(parse("--nouse_tpu", "--tpu_name=a", "--num_tpu_cores=8"))
    assert [record.message for record in caplog.records] == [
        "--tpu_name has no effect without --use_tpu", "--num_tpu_cores has no effect without --use_tpu"]


def test_what_a_tpu_can_reach_is_accepted():
    common.check_training_flags(parse("--use_tpu", "--tpu_name=a", "--input_file=gs://b/c"))
    common.check_training_flags(parse("--use_tpu", "--tpu_name=local"))


def test_a_wrong_cluster_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(UserError, match="TF_CONFIG: 'a' is no address"):
        common.check_training_flags(parse())


def test_the_steps_of_a_profile():
    assert common.profile_steps(parse("--profile_steps=10:12")) == (10, 12) and common.profile_steps(parse()) == ()
