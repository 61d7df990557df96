"""The classification tasks that are known by name: where their rows lie, what their labels are, how they are scored.

Sources: the original for MRPC, CoLA, MNLI and XNLI; for the rest the files of GLUE (Wang et al., 2018), XNLI (Conneau
et al., 2018), PAWS-X (Yang et al., 2019) and XTREME (Hu et al., 2020).
"""

import collections.abc
import dataclasses
import functools
import os

from bert_tf import files
from bert_tf.classification import rows
from bert_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Table:
    """A file of rows: its name below the data folder, how it is read, and which of its columns.

    Columns count from 0, -1 is the last; of rows that are dictionaries they are names. `label` may be several columns
    of 0 and 1, one for each label, in a tuple. `{language}` in the name stands for the language that is asked for;
    `language` is the column that names a row's own, where a file holds several. `rows` is a reader of `rows.py`.
    `separator` stands between the labels of a row that has several. `path` is the file's own, where it is known.
    """

    file: str
    text: tuple
    label: int | str | tuple | None = None
    header: bool = True
    language: int | None = None
    rows: collections.abc.Callable = rows.read_tsv
    separator: str = ","
    path: str | None = None

    @functools.cached_property
    def columns(self):
        """All columns that are read."""
        labels = self.label if isinstance(self.label, tuple) else (self.label,)
        return [column for column in (*self.text, *labels, self.language) if column is not None]

    @functools.cached_property
    def num_columns(self):
        """How many columns a row must have at least, of rows that are lists."""
        return max(self.columns) + (2 if self.label == -1 else 1)

    def path_in(self, data_dir, language=None):
        """Where the file lies."""
        return self.path or os.path.join(data_dir, self.file.format(language=language))

    def is_there(self, data_dir, language=None):
        """Whether the file is there."""
        return self.path is not None or files.exists(self.path_in(data_dir, language))


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: `splits` maps train, dev, test and the like to the layouts that a file may have, the usual one first.

    `kind` is "single" (one label an example), "multi" (any number of labels) or "regression" (a score). `labels` in
    the order of the model's classes; () for a score. `scores` are the official ones besides accuracy, by their names
    in `scores.py`. `language` is the usual one, for a task that has several. `aliases` are other spellings of labels.
    `loses_tabs`: the official file has rows that lost a tab, to be left out.
    """

    name: str
    splits: dict
    labels: tuple = ()
    scores: tuple = ()
    language: str | None = None
    aliases: dict = dataclasses.field(default_factory=dict)
    loses_tabs: bool = False
    kind: str = "single"

    @property
    def num_classes(self):
        """The width of the classifier: a class for each label, or the one score."""
        return len(self.labels) or 1

    def splits_of(self, kind):
        """The names of the splits of a kind: "dev" is dev, and dev_mismatched where there is one."""
        return [split for split in self.splits if split.partition("_")[0] == kind]


def _glue(text, label, test_text=None, header=True):
    """The splits of a task in GLUE's usual three files."""
    return {"train": (Table("train.tsv", text, label, header),), "dev": (Table("dev.tsv", text, label, header),),
            "test": (Table("test.tsv", test_text or text),)}


_MNLI_SPLITS = {
    "train": (Table("train.tsv", (8, 9), -1),),
    "dev": (Table("dev_matched.tsv", (8, 9), -1),),
    "dev_mismatched": (Table("dev_mismatched.tsv", (8, 9), -1),),
    "test": (Table("test_matched.tsv", (8, 9)),),
    "test_mismatched": (Table("test_mismatched.tsv", (8, 9)),),
}

# XNLI's own files, then XTREME's.
_XNLI_SPLITS = {
    "train": (Table("multinli/multinli.train.{language}.tsv", (0, 1), 2),
              Table("train-{language}.tsv", (0, 1), 2, header=False)),
    "dev": (Table("xnli.dev.tsv", (6, 7), 1, language=0), Table("dev-{language}.tsv", (0, 1), 2, header=False)),
    "test": (Table("xnli.test.tsv", (6, 7), language=0), Table("test-{language}.tsv", (0, 1), header=False)),
}

# PAWS-X's own files, then XTREME's.
_PAWS_X_SPLITS = {
    "train": (Table("{language}/train.tsv", (1, 2), 3), Table("{language}/translated_train.tsv", (1, 2), 3),
              Table("train-{language}.tsv", (0, 1), 2, header=False)),
    "dev": (Table("{language}/dev_2k.tsv", (1, 2), 3), Table("dev-{language}.tsv", (0, 1), 2, header=False)),
    "test": (Table("{language}/test_2k.tsv", (1, 2)), Table("test-{language}.tsv", (0, 1), header=False)),
}

_ZERO_ONE = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")

TASKS = {task.name.lower(): task for task in (
    Task("CoLA", _glue((3,), 1, test_text=(1,), header=False), _ZERO_ONE, ("matthews_corrcoef",)),
    Task("SST-2", _glue((0,), 1, test_text=(1,)), _ZERO_ONE),
    Task("MRPC", _glue((3, 4), 0), _ZERO_ONE, ("f1",)),
    Task("STS-B", _glue((7, 8), -1), scores=("pearson", "spearman"), kind="regression"),
    Task("QQP", _glue((3, 4), 5, test_text=(1, 2)), _ZERO_ONE, ("f1",), loses_tabs=True),
    Task("MNLI", _MNLI_SPLITS, _INFERENCE),
    Task("QNLI", _glue((1, 2), -1), _ENTAILMENT),
    Task("RTE", _glue((1, 2), -1), _ENTAILMENT),
    Task("WNLI", _glue((1, 2), -1), _ZERO_ONE),
    Task("AX", {"test": (Table("diagnostic.tsv", (1, 2)),)}, _INFERENCE),
    Task("XNLI", _XNLI_SPLITS, _INFERENCE, language="zh", aliases={"contradictory": "contradiction"}),
    Task("PAWS-X", _PAWS_X_SPLITS, _ZERO_ONE, language="en"),
)}


def find(name):
    """The task of a name, in any case; `UserError` that lists all for another."""
    task = TASKS.get(name.lower())
    if task is None:
        raise UserError(f"--task_name={name}: no such task; there are "
                        f"{', '.join(task.name for task in TASKS.values())}, and custom for data of your own")
    return task
