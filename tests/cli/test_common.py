import pytest
from absl import flags

from bert_tf.cli import common
from bert_tf.errors import UserError


def parse(*argv):
    values = flags.FlagValues()
    common.define(values, common.RUNTIME, common.FOLDER, common.OBSOLETE)
    values(["script", *argv])
    return values


def test_defaults():
    values = parse()
    assert (values.seed, values.deterministic, values.precision, values.xla) == (12345, None, "float32", False)
    assert (values.resume, values.overwrite_output_dir, values.keep_checkpoint_max) == (False, False, 5)


def test_obsolete_flags_are_noted_once_each_and_only_when_given(caplog):
    with caplog.at_level("INFO", "bert_tf"):
        common.note_obsolete(parse())
        assert not caplog.records
        common.note_obsolete(parse("--master=a", "--tpu_name=b", "--nouse_tpu"))
    assert [record.message for record in caplog.records] == [
        "--tpu_name has no effect any more", "--master has no effect any more"]


def test_a_tpu_is_refused():
    with pytest.raises(UserError, match="--use_tpu"):
        common.note_obsolete(parse("--use_tpu"))


def test_a_script_without_obsolete_flags_has_none_to_note():
    values = flags.FlagValues()
    common.define(values, common.RUNTIME)
    values(["script"])
    common.note_obsolete(values)


def test_least_values():
    values = parse("--seed=4", "--keep_checkpoint_max=0")
    common.require_at_least(values, 4, "seed")
    common.require_at_least(values, 0, "keep_checkpoint_max", "seed")
    with pytest.raises(UserError, match="--keep_checkpoint_max=0 must be at least 1"):
        common.require_at_least(values, 1, "seed", "keep_checkpoint_max")
