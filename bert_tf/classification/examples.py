"""A task's files to examples, row by row."""

import collections
import logging
import math
import typing

from bert_tf.classification import rows
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

NAMED_LINES = 5
NAMED, NAME_LENGTH = 30, 40


class Example(typing.NamedTuple):
    """A row: its line from 1 on, a text or a pair, its label.

    The label is a class, the classes of a row with several labels in a tuple, or a score; None in test files. `line`
    is the one that the row begins at, in tensorflow-datasets the row's number.
    """

    line: int
    text_a: str
    text_b: str | None
    label: int | tuple | float | None


def find_table(task, split, data_dir, language=None):
    """`(path, table)` of a task's split: the first of its layouts whose file is there; `UserError` without any."""
    tables = task.splits.get(split)
    if not tables:
        raise UserError(f"the task {task.name} has no {split} file; it has {', '.join(task.splits)}")
    for table in tables:
        if table.is_there(data_dir, language):
            return table.path_in(data_dir, language), table
    paths = [table.path_in(data_dir, language) for table in tables]
    raise UserError(f"--data_dir={data_dir} holds no {split} file of {task.name}: no {' or '.join(paths)}")


def read(path, table, task, language=None):
    """Yields the `Example`s of a file.

    With a language column only the rows in `language`. `UserError` with file and line for a row that lacks a column,
    for a label that the task does not have, for a header where none belongs and the reverse; also for a file without
    an example. What is left out or doubtful is counted and said in one line at the end.
    """
    notes, others, first, count = collections.defaultdict(list), set(), None, 0
    for line, row in table.rows(path):
        if row is None:
            notes["blank lines left out"].append(line)
            continue
        if first is None:
            first = row
            _check_header(f"{path}:{line}", row, table, task)
            if table.header:
                continue
        flaw = find_flaw(row, table)
        if flaw and not task.loses_tabs:
            raise UserError(f"{path}:{line}: {flaw}")
        if flaw:
            notes["rows that lack a column left out"].append(line)
            continue
        if isinstance(row, list) and len(row) != len(first):
            notes[f"rows with another number of columns than the first ({len(first)}): a tab inside a text?"
                  ].append(line)
        if table.language is not None and row[table.language] != language:
            others.add(row[table.language])
            continue
        label = None if table.label is None else _label(task, table, row, f"{path}:{line}")
        if label is None and table.label is not None:
            notes["rows without a label left out"].append(line)
            continue
        texts = [row[column] or "" for column in table.text]
        if not all(map(str.strip, texts)):
            notes["rows with an empty text"].append(line)
        if label == ():
            notes["rows with none of the labels"].append(line)
        count += 1
        yield Example(line, texts[0], texts[1] if len(texts) == 2 else None, label)
    _say(path, count, notes)
    if not count:
        there = f" in {language!r}, only in {', '.join(sorted(others))}" if others else ""
        raise UserError(f"{path}: holds no example{there}" if first else f"{path}: the file is empty")


def find_flaw(row, table):
    """What is wrong with the columns of a row, None where nothing is."""
    if isinstance(row, list):
        if len(row) >= table.num_columns:
            return None
        separated = "comma" if table.rows is rows.read_csv else "tab"
        return f"expected at least {table.num_columns} {separated}-separated columns, found {len(row)}"
    for column in table.columns:
        if column not in row:
            return f"the row has no {column!r}; it has {listed(list(row)) or 'nothing'}"
        cell = row[column]
        is_list = isinstance(cell, list) and column not in table.text and all(isinstance(item, str) for item in cell)
        if not is_list and not isinstance(cell, (str, type(None))):
            return f"{column!r} is no text, but {_shown(cell)}"
    return None


def label_names(cell, separator):
    """The names in a cell that holds several labels, in a list or separated; spaces around them do not count."""
    names = cell if isinstance(cell, list) else cell.split(separator)
    return [name.strip() for name in names if name.strip()]


def _check_header(where, row, table, task):
    """`UserError` where the first row of a file is a header and none belongs, or the reverse."""
    if table.path or find_flaw(row, table):  # with a path the header was looked for before
        return
    label = None if table.label is None else row[table.label]
    is_label = label in task.labels or label in task.aliases or task.kind == "regression" and _is_number(label or "")
    if table.header and (is_label or label is None and row[0].isdecimal()):
        raise UserError(f"{where}: the first line reads like a row ({label or row[0]!r}), but {task.name} has a "
                        "header in this file; put a line of column names above it")
    if not table.header and label is not None and not is_label:
        raise UserError(f"{where}: {_shown(label)} is no label of {task.name}, so that the first line looks like a "
                        f"header, but {task.name} has none in this file; take the line out (labels: "
                        f"{listed(task.labels)})")


def _label(task, table, row, where):
    """The label of a row: a class, a tuple of classes or a score, as the task's kind is; None where there is none."""
    if isinstance(table.label, tuple):
        return tuple(number for number, column in enumerate(table.label) if _is_one(row[column], column, where))
    cell = row[table.label]
    if cell is None:
        return None
    if task.kind == "multi":
        return tuple(sorted({_class(task, name, where) for name in label_names(cell, table.separator)}))
    if not isinstance(cell, str):
        raise UserError(f"{where}: {_shown(cell)} is a list; --label_kind=multi takes several labels")
    if task.kind == "single":
        return _class(task, cell, where)
    if not _is_number(cell):
        raise UserError(f"{where}: {_shown(cell)} is no score; {task.name} takes numbers")
    return float(cell)


def _class(task, text, where):
    """The place of a label among the task's."""
    name = task.aliases.get(text, text)
    if name in task.labels:
        return task.labels.index(name)
    numbers = [int(alias) for alias in task.aliases if alias.isdecimal()]
    if numbers and text.isdecimal():
        raise UserError(f"{where}: {_shown(text)} is out of the range of the label numbers, {min(numbers)} to "
                        f"{max(numbers)}")
    raise UserError(f"{where}: {_shown(text)} is no label of {task.name}; there are {listed(task.labels)}")


def _is_one(cell, column, where):
    """Whether a column that stands for a label says 1; `UserError` unless that or 0."""
    values = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}
    text = str(cell).strip().lower()
    if text not in values:
        raise UserError(f"{where}: {_shown(cell)} in the label column {column} is neither 0 nor 1")
    return values[text]


def _is_number(text):
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _shown(cell):
    text = str(cell)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def listed(names):
    """Names of labels or columns as a message lists them, in one line: the first ones of many, the start of long."""
    shown = [" ".join(name.splitlines())[:NAME_LENGTH] for name in names[:NAMED]]
    return ", ".join(shown) + f", ... ({len(names)} in all)" * (len(names) > NAMED)


def _say(path, count, notes):
    """Logs how many examples a file gave and what `notes`, line numbers by a phrase, holds; nothing without any."""
    found = [f"{len(lines)} {phrase} (line {', '.join(map(str, lines[:NAMED_LINES]))}"
             f"{', ...' * (len(lines) > NAMED_LINES)})" for phrase, lines in notes.items()]
    if found:
        logger.warning("%s: %d examples; %s", path, count, "; ".join(found))
