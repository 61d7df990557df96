"""Pretrains BERT on the records of create_pretraining_data.py, evaluates it, and goes on after a stop.

Trains the masked language model and next sentence losses and writes checkpoints in the original's format to
--output_dir. The same command again goes on where it stopped, or says that it is complete.
"""

import logging

from absl import flags

from bert_tf import files
from bert_tf.cli import app, common
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

FLAGS = (
    ("string", "bert_config_file", None, "bert_config.json, the model's shape (default: the one beside "
     "--init_checkpoint)."),
    ("string", "input_file", None, "Record files: names and globs, separated by commas."),
    ("string", "output_dir", None, "The folder for checkpoints and results."),
    ("string", "init_checkpoint", None, "The checkpoint to start from; without it weights start at random."),
    ("string", "vocab_file", None, "The records' vocabulary, to be copied into --output_dir (default: the one that "
     "the records' .meta.json names)."),
    ("integer", "max_seq_length", 128, "Tokens in a record; as the records were made."),
    ("integer", "max_predictions_per_seq", 20, "Masked pieces in a record; as the records were made."),
    ("bool", "do_train", False, "Whether to train."),
    ("bool", "do_eval", False, "Whether to evaluate, on the same --input_file."),
    ("integer", "train_batch_size", 32, "Examples in a training step."),
    ("integer", "eval_batch_size", 8, "Examples in an evaluation batch."),
    ("float", "learning_rate", 5e-5, "The rate that warm-up rises to."),
    ("integer", "num_train_steps", 100000, "Steps at which training is complete."),
    ("integer", "num_warmup_steps", 10000, "Steps over which the rate rises from 0."),
    ("integer", "max_eval_steps", 100, "Evaluation batches; past the last record they begin again at the first."),
    ("integer", "shuffle_buffer", 0, "Records that are shuffled at a time; 0: all of them, anew in each epoch. The "
     "original's is 100."),
    ("bool", "allow_missing", False, "Accept an --init_checkpoint that lacks variables of the model."),
    ("bool", "allow_case_mismatch", False, "Accept records whose casing is not the checkpoint's."),
)


def main(argv=None):
    """Runs the script and returns its exit status."""
    return app.main(define_flags, run, argv, __doc__)


def define_flags(values):
    """The original's flags with its defaults, and the ones that all training scripts share."""
    common.define(values, FLAGS, common.RUNTIME, common.STEP, common.FOLDER, common.OBSOLETE)
    flags.mark_flags_as_required(["input_file", "output_dir"], flag_values=values)


def run(values):
    """Checks the flags by themselves, then, with TensorFlow, does what they ask for."""
    check_flags(values)
    common.note_obsolete(values)
    files.check_folder(values.output_dir, "output_dir")
    app.keep_freed_memory()
    app.load_tensorflow(values.virtual_devices)
    from bert_tf.cli import pretraining

    pretraining.run(values)


def check_flags(values):
    """`UserError` for flags that contradict themselves or each other; nothing is read for it."""
    if not values.do_train and not values.do_eval:
        raise UserError("nothing to do: give --do_train, --do_eval or both")
    common.check_training_flags(values)
    common.require_at_least(values, 1, "num_train_steps", "max_eval_steps", "max_predictions_per_seq")
    common.require_at_least(values, 0, "num_warmup_steps", "shuffle_buffer")
    if values.do_train and values.num_warmup_steps >= values.num_train_steps:
        logger.warning("--num_warmup_steps=%d: the rate still rises when training ends at --num_train_steps=%d",
                       values.num_warmup_steps, values.num_train_steps)
