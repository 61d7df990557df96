"""Which columns of a user's own file hold texts and label, and whether its first row names them."""

import collections
import dataclasses
import itertools
import logging
import re
import typing

from bert_tf.classification import examples, tasks
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

# The names that columns usually have, the likelier first.
PAIRS = (("text_a", "text_b"), ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("premise", "hypothesis"),
         ("question1", "question2"), ("question", "sentence"), ("question", "answer"), ("query", "passage"))
TEXTS = ("text", "text_a", "sentence", "review", "comment", "tweet", "content", "question", "query", "document",
         "description", "title", "body")
LABELS = ("label", "labels", "class", "classes", "category", "target", "sentiment", "emotion", "intent", "gold_label",
          "score", "rating", "similarity")
USUAL = {*TEXTS, *LABELS, *(name for pair in PAIRS for name in pair)}

SAMPLE = 10000  # rows that are looked at to tell a header
LEAST_SAMPLE = 10  # below so many rows the labels alone tell none
HEADER_LIKE = re.compile(r"[^\W\d][\w #./()-]{0,29}")
INTEGER = re.compile(r"-?[0-9]{1,18}")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


class Asked(typing.NamedTuple):
    """What the user says of the columns, () and None where it is to be found out.

    `text` and `label` are names, or numbers from 0, as texts; `header` is whether the first row names the columns.
    """

    text: tuple = ()
    label: tuple = ()
    header: bool | None = None


class Layout(typing.NamedTuple):
    """A table whose columns are known, and what those of the texts and of the label are called in the file.

    Without a header columns are called by their numbers.
    """

    table: tasks.Table
    text: tuple
    label: tuple


def find(table, asked, is_labelled):
    """The `Layout` of the file of a `tasks.Table` that says no more than how it is read; it is said in the log.

    Only where `is_labelled` is a label looked for. `UserError` for a column that is not there, for one that is both
    text and label, and for two of the same name.
    """
    found = ((line, row) for line, row in table.rows(table.path) if row is not None)
    sample = list(itertools.islice(found, SAMPLE))
    if not sample:
        raise UserError(f"{table.path}: the file is empty")
    (line, first), others = sample[0], [row for _, row in sample[1:]]
    if isinstance(first, dict):
        header, names = False, list(dict.fromkeys(itertools.chain(first, *others)))
        said = "columns by name"
    else:
        header = has_header(first, others, asked, table.separator) if asked.header is None else asked.header
        names = [cell.strip() for cell in first] if header else list(map(str, range(len(first))))
        said = f"{'a' if header else 'no'} header" + " (--header says otherwise)" * (asked.header is None)
    where = f"{table.path}:{line}"
    twice = [name for name, count in collections.Counter(names).items() if name and count > 1]
    if twice:
        raise UserError(f"{where}: {names.count(twice[0])} columns are named {twice[0]!r}; rename them, or say "
                        "--header=false if this is no header")
    is_named = header or isinstance(first, dict)
    text, label = _choose(names, is_named, asked, is_labelled, where)
    shown = names if is_named else [f"column {name}" for name in names]
    logger.info("%s: %s; text from %s%s", table.path, said, examples.listed([shown[column] for column in text]),
                "; label from " + examples.listed([shown[column] for column in label]) if label else "")
    keys = names if isinstance(first, dict) else range(len(names))
    label_keys = tuple(keys[column] for column in label)
    table = dataclasses.replace(table, text=tuple(keys[column] for column in text), header=header,
                                label=label_keys if len(label) > 1 else label_keys[0] if label else None)
    return Layout(table, tuple(names[column] for column in text), tuple(names[column] for column in label))


def has_header(first, others, asked, separator):
    """Whether the row `first` names the columns of the rows `others`.

    So where the user calls columns by name. Else it must have no cell that comes again in its column, and a name that
    columns usually have, or a word above a column of numbers, or only short words and a label that is none of those
    below, which all come more than once.
    """
    if not all(map(INTEGER.fullmatch, (*asked.text, *asked.label))):
        return True
    below = [[row[column] for row in others if column < len(row)] for column in range(len(first))]
    if any(cell and cell in cells for cell, cells in zip(first, below)):
        return False
    if USUAL.intersection(cell.strip().lower() for cell in first):
        return True
    if any(cells and not _is_numeric(cell, separator) and all(_is_numeric(other, separator) for other in cells)
           for cell, cells in zip(first, below)):
        return True
    column = int(asked.label[0]) if asked.label else -1
    labels = collections.Counter(below[column]) if -len(below) <= column < len(below) else {}
    return (len(others) >= LEAST_SAMPLE and bool(labels) and min(labels.values()) > 1
            and all(HEADER_LIKE.fullmatch(cell.strip()) for cell in first))


def _is_numeric(cell, separator):
    """Whether a cell holds a number, or several."""
    return all(NUMBER.fullmatch(part.strip()) for part in cell.split(separator))


def _choose(names, is_named, asked, is_labelled, where):
    """The numbers of the columns of the texts and of the label, () without one."""
    usual = [name.lower() if is_named else None for name in names]
    text = [_number(name, names, is_named, "text_columns", where) for name in asked.text]
    label = [_number(name, names, is_named, "label_column", where) for name in asked.label] if is_labelled else []
    if is_labelled and not label:
        label = [usual.index(name) for name in LABELS if name in usual and usual.index(name) not in text][:1]
    if not text:
        free = {usual[column]: column for column in range(len(names)) if column not in label}
        usual_texts = (*PAIRS, *((name,) for name in TEXTS))
        text = next(([free[name] for name in some] for some in usual_texts if free.keys() >= set(some)), [])
    if not text:
        text = [column for column in range(len(names)) if column not in label][:1]
    if is_labelled and not label:
        label = [column for column in range(len(names)) if column not in text][-1:]
    if not text or is_labelled and not label or set(text) & set(label):
        raise UserError(f"{where}: no column is left for the {'label' if text else 'text'}; the columns are "
                        f"{examples.listed(names)} (--text_columns and --label_column choose)")
    return text, label


def _number(name, names, is_named, flag, where):
    """The number of the column that a flag asks for by name or number; `UserError` where there is none."""
    if is_named and name in names:
        return names.index(name)
    if INTEGER.fullmatch(name) and -len(names) <= int(name) < len(names):
        return int(name) % len(names)
    there = examples.listed(names) if is_named else f"{len(names)} columns, by number from 0"
    raise UserError(f"{where}: --{flag}: no column {name!r}; there are {there}")
