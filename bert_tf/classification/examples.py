"""A task's files to examples, row by row."""

import logging
import math
import os
import typing

from bert_tf import files
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")


class Example(typing.NamedTuple):
    """A row: the number of its line from 1, a text or a pair, its label (a class or a score; None in test files)."""

    line: int
    text_a: str
    text_b: str | None
    label: int | float | None


def find_table(task, split, data_dir, language=None):
    """`(path, table)` of a task's split: the first of its layouts whose file is there; `UserError` without any."""
    tables = task.splits.get(split)
    if not tables:
        raise UserError(f"the task {task.name} has no {split} file; it has {', '.join(task.splits)}")
    paths = [os.path.join(data_dir, table.file.format(language=language)) for table in tables]
    for path, table in zip(paths, tables):
        if files.exists(path):
            return path, table
    raise UserError(f"--data_dir={data_dir} holds no {split} file of {task.name}: no {' or '.join(paths)}")


def read(path, table, task, language=None):
    """Yields the `Example`s of a file.

    With a language column only the rows in `language`. `UserError` with file and line for a row that lacks a column
    and for a label that the task does not have; also for a file without an example. Rows of another number of columns
    than the first line's are counted and said.
    """
    needed, wanted, lacking, uneven, first, others = table.num_columns, 0, [], [], None, set()
    for line_number, line in files.read_lines(path):
        columns = line.split("\t")
        first = first or columns
        if table.header and line_number == 1:
            continue
        if len(columns) < needed:
            if not task.loses_tabs:
                raise UserError(f"{path}:{line_number}: the row has {len(columns)} columns, {task.name} needs "
                                f"{needed} (separated by tabs)")
            lacking.append(line_number)
            continue
        if len(columns) != len(first):
            uneven.append(line_number)
        if table.language is not None and columns[table.language] != language:
            others.add(columns[table.language])
            continue
        wanted += 1
        text_b = columns[table.text[1]] if len(table.text) == 2 else None
        label = None if table.label is None else _label(task, columns[table.label], path, line_number)
        yield Example(line_number, columns[table.text[0]], text_b, label)
    if not wanted:
        there = f" in {language!r}, only in {', '.join(sorted(others))}" if others else ""
        raise UserError(f"{path}: holds no example{there}" if first else f"{path}: the file is empty")
    _warn(path, lacking, "lack a column and are left out")
    _warn(path, uneven, f"have another number of columns than the first line ({len(first)}): a tab inside a text?")


def _label(task, text, path, line_number):
    """The label that `text` names: its place among the task's labels, or the score itself."""
    if task.labels:
        name = task.aliases.get(text, text)
        if name not in task.labels:
            raise UserError(f"{path}:{line_number}: {text!r} is no label of {task.name}; there are "
                            f"{', '.join(task.labels)}")
        return task.labels.index(name)
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{path}:{line_number}: {text!r} is no score; {task.name} takes numbers")
    return score


def _warn(path, line_numbers, what):
    if line_numbers:
        logger.warning("%s: %d of the rows %s (line %s)", path, len(line_numbers), what,
                       ", ".join(map(str, line_numbers[:5])) + ", ..." * (len(line_numbers) > 5))
