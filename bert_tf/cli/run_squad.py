"""Fine-tunes BERT to find answers in texts (SQuAD 1.1 and 2.0, and sets in their format), evaluates it, and predicts.

Trains on --train_file and writes checkpoints in the original's format to --output_dir, which is then a model of its
own: for evaluating and predicting it needs no other flag than --predict_file. The same command again goes on where it
stopped, or says that it is complete.
"""

import math

from absl import flags

from bert_tf import files
from bert_tf.cli import app, common
from bert_tf.errors import UserError

FLAGS = (
    ("string", "train_file", None, "The JSON file to train on, such as train-v1.1.json."),
    ("string", "predict_file", None, "The JSON file whose questions are answered, such as dev-v1.1.json."),
    ("string", "eval_file", None, "The JSON file with answers to evaluate on (default: --predict_file)."),
    ("integer", "max_seq_length", None, "Tokens of a window: [CLS] question [SEP] part of the context [SEP] (default: "
     "as the model's folder says, else 384)."),
    ("integer", "doc_stride", None, "Tokens from the start of a window in a long context to that of the next "
     "(default: as the model's folder says, else 128)."),
    ("integer", "max_query_length", None, "Tokens of a question; longer ones are cut (default: as the model's folder "
     "says, else 64)."),
    ("bool", "do_eval", False, "Whether to score the answers to --eval_file, and with --version_2_with_negative to "
     "find the threshold for no answer."),
    ("bool", "do_predict", False, "Whether to write the answers to --predict_file."),
)

ANSWERS = (
    ("bool", "version_2_with_negative", None, "Some questions have no answer, as in SQuAD 2.0 (default: as the "
     "model's folder says, else no)."),
    ("float", "null_score_diff_threshold", None, "A question gets no answer where the score of none exceeds the best "
     "answer's by more (default: what --do_eval finds or found for the model, else 0)."),
    ("integer", "n_best_size", 20, "Answers of a question in nbest_predictions.json."),
    ("integer", "max_answer_length", 30, "Tokens of the longest answer."),
    ("string", "answer_text", "original", "original: align an answer's tokens with the words of the context, as the "
     "original does; offsets: cut it out of the context by its characters."),
    ("string", "language", None, "How answers are scored: en, as SQuAD's, or zh, as CMRC's (default: as the model's "
     "folder says, else en)."),
    ("string", "span_softmax", "tokens", "Which places of a window compete for an answer's ends: its tokens, or all, "
     "padding too, as in the original (slower)."),
    ("bool", "drop_windows_without_answer", False, "Do not train on windows that hold no answer, though the question "
     "has one."),
)

OBSOLETE = (
    *common.OBSOLETE,
    ("bool", "verbose_logging", False, "Has no effect."),
)


def main(argv=None):
    """Runs the script and returns its exit status."""
    return app.main(define_flags, run, argv, __doc__)


def define_flags(values):
    """The original's flags with its defaults, and the ones that all training scripts share."""
    common.define(values, FLAGS, ANSWERS, common.FINE_TUNING, common.RUNTIME, common.STEP, common.FOLDER, OBSOLETE)
    values.set_default("best_metric", "f1")
    flags.mark_flags_as_required(["output_dir"], flag_values=values)


def run(values):
    """Checks the flags by themselves, then, with TensorFlow, does what they ask for."""
    check_flags(values)
    common.note_obsolete(values, OBSOLETE)
    files.check_folder(values.output_dir, "output_dir")
    app.prepare(values)
    from bert_tf.cli import squad

    squad.run(values)


def check_flags(values):
    """`UserError` for flags that contradict themselves or each other; nothing is read for it."""
    common.check_fine_tuning_flags(values)
    if values.do_train and not values.train_file:
        raise UserError("--do_train needs --train_file")
    if values.do_predict and not values.predict_file:
        raise UserError("--do_predict needs --predict_file")
    if common.evaluates(values) and not (values.eval_file or values.predict_file):
        raise UserError(f"--{'do_eval' if values.do_eval else 'eval_every_steps'} needs --eval_file or --predict_file")
    for flag, known in (("answer_text", ("original", "offsets")), ("language", (None, "en", "zh")),
                        ("span_softmax", ("tokens", "all"))):
        if values[flag].value not in known:
            raise UserError(f"--{flag}={values[flag].value} must be {' or '.join(filter(None, known))}")
    if math.isnan(values.null_score_diff_threshold or 0.0):
        raise UserError("--null_score_diff_threshold=nan is no number")
    common.check_training_flags(values)
    common.require_at_least(values, 1, "doc_stride", "max_query_length", "n_best_size", "max_answer_length")
