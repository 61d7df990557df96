"""Fine-tunes BERT to label words, such as those of named entities, evaluates it, and predicts.

Trains on files of labelled words in --data_dir and writes checkpoints in the original's format to --output_dir, which
is then a model of its own: for evaluating and predicting it needs no other flag than --data_dir. The same command
again goes on where it stopped, or says that it is complete.
"""

from absl import flags

from bert_tf import files
from bert_tf.cli import app, common
from bert_tf.errors import UserError

FLAGS = (
    ("string", "data_dir", None, "The folder with the files: train, dev (or devel, valid) and test, of any usual "
     "ending, such as train.conll."),
    ("string", "train_file", None, "The file to train on, in columns or JSON lines (default: the one in --data_dir)."),
    ("string", "dev_file", None, "The file to evaluate on (default: the one in --data_dir)."),
    ("string", "test_file", None, "The file to predict (default: the one in --data_dir)."),
    ("bool", "unlabelled_test", False, "Pass over what stands beside the words of the file to predict."),
    ("string", "token_column", None, "The words' column by number from 0, or in JSON lines by name (default: found "
     "out and said)."),
    ("string", "label_column", None, "The labels' column, the same; -1 is the last."),
    ("integer", "max_seq_length", None, "Tokens of a window, [CLS] and [SEP] included; longer sentences are read in "
     "several (default: as the model's folder says, else 128)."),
    ("integer", "doc_stride", None, "Tokens from the start of a window in a long sentence to that of the next "
     "(default: as the model's folder says, else 64)."),
    ("bool", "document_context", None, "Fill windows with the neighbouring sentences of the document (default: as the "
     "model's folder says, else no)."),
    ("bool", "do_eval", False, "Whether to evaluate on the development file."),
    ("bool", "do_predict", False, "Whether to predict the test file."),
)


def main(argv=None):
    """Runs the script and returns its exit status."""
    return app.main(define_flags, run, argv, __doc__)


def define_flags(values):
    """The script's own flags, and the ones that all training scripts share."""
    common.define(values, FLAGS, common.FINE_TUNING, common.RUNTIME, common.STEP, common.FOLDER, common.OBSOLETE)
    values.set_default("best_metric", "f1")
    flags.mark_flags_as_required(["output_dir"], flag_values=values)


def run(values):
    """Checks the flags by themselves, then, with TensorFlow, does what they ask for."""
    check_flags(values)
    common.note_obsolete(values)
    files.check_folder(values.output_dir, "output_dir")
    app.prepare(values)
    from bert_tf.cli import tagging

    tagging.run(values)


def check_flags(values):
    """`UserError` for flags that contradict themselves or each other; nothing is read for it."""
    common.check_fine_tuning_flags(values)
    for flag, asked in (("train_file", values.do_train), ("dev_file", common.evaluates(values)),
                        ("test_file", values.do_predict)):
        if asked and not values[flag].value and values.data_dir is None:
            raise UserError(f"--data_dir is missing: the folder with the files (or give --{flag})")
    common.check_training_flags(values)
    common.require_at_least(values, 1, "doc_stride")
