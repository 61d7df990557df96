"""Fine-tunes BERT to classify texts or pairs of texts, evaluates it, and predicts.

Trains on a task's files in --data_dir and writes checkpoints in the original's format to --output_dir, which is then a
model of its own: for evaluating and predicting it needs no other flag than --data_dir. The same command again goes on
where it stopped, or says that it is complete.
"""

from absl import flags

from bert_tf import files
from bert_tf.classification import custom, tasks
from bert_tf.cli import app, common
from bert_tf.errors import UserError

FLAGS = (
    ("string", "data_dir", None, "The folder with the task's files, such as train.tsv and dev.tsv."),
    ("string", "task_name", None, f"The task: {', '.join(task.name for task in tasks.TASKS.values())} or custom, for "
     "data of your own (default: what the model's folder was trained on). Several, separated by commas, run one after "
     "another: each has its files in --data_dir, and its results in --output_dir, in a folder of its name."),
    ("string", "language", None, "The language of XNLI (default: zh) and PAWS-X (default: en)."),
    ("integer", "max_seq_length", None, "Tokens of an example, [CLS] and [SEP] included; longer ones are cut "
     "(default: as the model's folder says if it is a classifier, else 128)."),
    ("bool", "do_eval", False, "Whether to evaluate on the development set."),
    ("bool", "do_predict", False, "Whether to predict the test set."),
    ("integer", "eval_batch_size", 8, "Examples in an evaluation batch."),
    ("string", "pooling", None, "What the classifier reads: cls, the first token, or mean, of all tokens (default: as "
     "the model's folder says, else cls)."),
)


DATA = (
    ("string", "train_file", None, "The file (.tsv, .csv, .jsonl, .json or .txt) with the training data of a custom "
     "task (default: that name in --data_dir); with --dataset the split, such as train[:90%]."),
    ("string", "dev_file", None, "The same for the development data."),
    ("string", "test_file", None, "The same for the test data."),
    ("string", "dataset", None, "Read tensorflow-datasets, such as tfds:glue/mrpc, kept in --data_dir."),
    ("string", "text_columns", None, "One column or two, by name or by number from 0, with a comma between them "
     "(default: of a usual name, such as text or sentence1 and sentence2, else the first)."),
    ("string", "label_column", None, "The label's column by name or number (default: of a usual name, such as label, "
     "else the last); several, one for each label, hold 0 and 1."),
    ("bool", "header", None, "Whether files begin with the names of their columns (default: found out and said)."),
    ("string", "label_kind", "auto", "single, multi (several labels each), regression (a score), or auto: found out "
     "and said."),
    ("string", "label_separator", ",", "What stands between the labels of a row that has several."),
    ("string", "labels_file", None, "The labels in order, one a line; numbers in the data count them (default: those "
     "of the training data, sorted)."),
)

LOSS = (
    ("float", "label_smoothing", 0.0, "The part of each target that is spread over all labels."),
    ("string", "class_weights", None, "A weight for each label, in order, or balanced: all labels weigh the same."),
    ("string", "teacher", None, "The folder of a classifier, usually a larger one, whose probabilities are learned."),
    ("float", "distillation_temperature", 2.0, "By what the logits of both are divided, to learn from a teacher."),
    ("float", "distillation_alpha", 0.5, "The teacher's part of the loss; the rest is the labels'."),
)


def main(argv=None):
    """Runs the script and returns its exit status."""
    return app.main(define_flags, run, argv, __doc__)


def define_flags(values):
    """The original's flags with its defaults, and the ones that all training scripts share."""
    common.define(values, FLAGS, DATA, LOSS, common.FINE_TUNING, common.RUNTIME, common.STEP, common.FOLDER,
                  common.OBSOLETE)
    flags.mark_flags_as_required(["output_dir"], flag_values=values)


def run(values):
    """Checks the flags by themselves, then, with TensorFlow, does what they ask for."""
    check_flags(values)
    common.note_obsolete(values)
    files.check_folder(values.output_dir, "output_dir")
    app.prepare(values)
    from bert_tf.cli import classification

    classification.run(values)


def check_flags(values):
    """`UserError` for flags that contradict themselves or each other; nothing is read for it."""
    common.check_fine_tuning_flags(values)
    names = values.task_name.split(",") if values.task_name else []
    for name in names if names != [custom.NAME] else ():
        tasks.find(name)
    named = values.dataset or values.train_file or values.dev_file or values.test_file
    if named and len(names) > 1:
        raise UserError(f"--task_name={values.task_name}: the files of several tasks lie in folders below --data_dir; "
                        "leave --dataset, --train_file and the like out")
    if values.data_dir is None and not named:
        raise UserError("--data_dir is missing: the folder with the task's files")
    if values.dataset and values.strategy == "multi_worker":
        raise UserError("--dataset: tensorflow-datasets cannot be read before workers join; write the data to files")
    if values.pooling not in (None, "cls", "mean"):
        raise UserError(f"--pooling={values.pooling} must be cls or mean")
    common.check_training_flags(values)
