"""Data of a user's own as a task: its files, columns and labels are found out and said."""

import collections
import dataclasses
import functools
import logging
import os

from bert_tf import files
from bert_tf.classification import columns, examples, rows, tasks
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

NAME = "custom"
KINDS = ("single", "multi", "regression")
READERS = {".tsv": rows.read_tsv, ".csv": rows.read_csv, ".jsonl": rows.read_json_lines,
           ".json": rows.read_json_lines, ".txt": rows.read_tsv}
# The split of a task, and what tensorflow-datasets calls it.
TFDS_SPLITS = {"train": ("train",), "dev": ("validation", "validation_matched", "dev"),
               "dev_mismatched": ("validation_mismatched",), "test": ("test", "test_matched"),
               "test_mismatched": ("test_mismatched",)}
SEVERAL = 0.01  # the part of the rows in which the separator must stand for labels to be lists
MANY_LABELS = 100  # from so many on, half as many labels as rows are thought to be no labels


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the data lie and what the user says of them; what is empty or None is found out.

    `data_dir` holds the files train, dev and test; `paths` maps these to names of files, or of splits where `dataset`
    is one of tensorflow-datasets, such as "glue/mrpc", kept in `data_dir`. `asked` is of columns. `kind` is one of
    `KINDS`. `separator` stands between the labels of a row. `labels_file` has the labels in order, one a line.
    """

    data_dir: str | None = None
    paths: dict = dataclasses.field(default_factory=dict)
    dataset: str | None = None
    asked: columns.Asked = columns.Asked()
    kind: str | None = None
    separator: str = ","
    labels_file: str | None = None


def make_task(source, labels=None, task=None):
    """The `tasks.Task` that reads a `Source`; how, is said in the log.

    Its labels are those of `labels_file`, else `labels` (a model's, in order), else the classes that the dataset
    names, else those of the train file in order, by number if all are. Numbers in the data that are no labels count
    the labels. With a `task`, such as MRPC, the source gives its data only. `UserError` for files, columns and labels
    that are not there or do not fit.
    """
    _check(source)
    layouts, asked = {}, source.asked
    for split, table in (_dataset_tables if source.dataset else _file_tables)(source).items():
        layouts[split] = columns.find(table, asked, is_labelled=not split.startswith("test"))
        asked = asked._replace(text=asked.text or layouts[split].text, label=asked.label or layouts[split].label)
    splits = {split: (layout.table,) for split, layout in layouts.items()}
    if source.data_dir and not source.dataset:
        splits |= {split: _candidates(split) for split in ("train", "dev", "test") if split not in splits}
    labelled = next((layout for layout in layouts.values() if layout.label), None)
    if task:
        return dataclasses.replace(task, splits=splits, aliases=task.aliases | _class_numbers(source, labelled, task))
    cells = _count_cells(labelled.table) if labelled else collections.Counter()
    kind = source.kind or _find_kind(cells, labelled, source.separator)
    if labelled and len(labelled.label) > 1 and kind != "multi":
        raise UserError(f"--label_column={','.join(labelled.label)}: only --label_kind=multi has a column for each "
                        "label")
    if kind == "regression":
        return _regression(source, splits)
    found = _names_in(cells, kind, source.separator)
    named = _read_labels(source.labels_file) if source.labels_file else labels or _class_names(source, labelled)
    if not named and "train" not in layouts:
        raise UserError("the labels are not known: there is no train file; name them, one a line, in --labels_file")
    names = tuple(named or _order(found, labelled, sum(cells.values())))
    _check_labels(names, kind, labelled, source)
    logger.info("%s: %s %d labels: %s", NAME, "several of" if kind == "multi" else "one of", len(names),
                examples.listed(names))
    return tasks.Task(NAME, splits, names, kind=kind, aliases=_spellings(cells, kind) | _label_numbers(found, names))


def _regression(source, splits):
    """The task of a score."""
    if source.labels_file:
        raise UserError(f"--labels_file={source.labels_file}: the label is a score; --label_kind=single reads numbers "
                        "as names")
    logger.info("%s: the label is a score", NAME)
    return tasks.Task(NAME, splits, scores=("pearson", "spearman"), kind="regression")


def _check(source):
    """`UserError` for what the user says that cannot be."""
    if len(source.asked.text) > 2:
        raise UserError(f"--text_columns={','.join(source.asked.text)}: an example has one text or two")
    if source.kind not in (None, *KINDS):
        raise UserError(f"--label_kind={source.kind} is none of auto, {', '.join(KINDS)}")
    if not source.separator:
        raise UserError("--label_separator is empty")


def _candidates(split):
    """The tables that a split may be, by the names of its files."""
    return tuple(tasks.Table(split + ending, (0,), rows=read) for ending, read in READERS.items())


def _file_tables(source):
    """The tables of the files that are there, by split; nothing is known of their columns."""
    tables = {}
    for split in ("train", "dev", "test"):
        given = source.paths.get(split)
        if given:
            reader = READERS.get(os.path.splitext(given)[1].lower())
            if not reader:
                raise UserError(f"--{split}_file={given}: the name must end in {', '.join(READERS)}")
            if not files.exists(given):
                raise UserError(f"--{split}_file={given}: no such file")
            tables[split] = tasks.Table(given, (), rows=reader, separator=source.separator, path=given)
            continue
        there = [table for table in _candidates(split) if source.data_dir and table.is_there(source.data_dir)]
        if len(there) > 1:
            raise UserError(f"--data_dir={source.data_dir} holds {' and '.join(table.file for table in there)}; say "
                            f"which to read with --{split}_file")
        tables |= {split: dataclasses.replace(table, separator=source.separator, path=table.path_in(source.data_dir))
                   for table in there}
    if not tables:
        raise UserError(f"--data_dir={source.data_dir} holds no data: no train, dev or test that ends in "
                        f"{', '.join(READERS)} (--train_file, --dev_file and --test_file name others)")
    return tables


def _dataset_tables(source):
    """The tables of the splits of a dataset of tensorflow-datasets."""
    splits = rows.build_tfds(source.dataset, source.data_dir).info.splits
    tables = {}
    for split, usual in TFDS_SPLITS.items():
        given = source.paths.get(split)
        try:
            name = given or next((name for name in usual if name in splits), None)
            if name and splits[name]:
                read = functools.partial(rows.read_tfds, name=source.dataset, split=name, data_dir=source.data_dir)
                path = f"tfds:{source.dataset}:{name}"
                tables[split] = tasks.Table(path, (), rows=read, separator=source.separator, path=path)
        except (KeyError, ValueError) as error:
            raise UserError(f"--{split}_file={given}: tfds:{source.dataset} has no such split; it has "
                            f"{', '.join(splits)}") from error
    if not tables:
        raise UserError(f"tfds:{source.dataset} has no train, validation or test, but {', '.join(splits)}; name its "
                        "splits with --train_file, --dev_file and --test_file")
    return tables


def _count_cells(table):
    """How often each content of the label column comes, a list as a tuple; empty for a column for each label."""
    cells = collections.Counter()
    if isinstance(table.label, tuple):
        return cells
    found = (row for _, row in table.rows(table.path) if row is not None)
    if table.header:
        next(found)
    for row in found:
        if not examples.find_flaw(row, table) and row[table.label] is not None:
            cell = row[table.label]
            cells[tuple(cell) if isinstance(cell, list) else cell] += 1
    return cells


def _find_kind(cells, labelled, separator):
    """What kind of label there is; `cells` counts the contents of the column."""
    if labelled and len(labelled.label) > 1 or any(isinstance(cell, tuple) for cell in cells):
        return "multi"
    if cells and all(map(columns.NUMBER.fullmatch, map(str.strip, cells))):
        return "single" if all(float(cell).is_integer() for cell in cells) else "regression"
    with_separator = sum(count for cell, count in cells.items() if separator in cell)
    are_lists = (with_separator > SEVERAL * sum(cells.values())
                 and len(_names_in(cells, "multi", separator)) < len(cells))
    return "multi" if are_lists else "single"


def _names_in(cells, kind, separator):
    """The set of labels that the label column holds."""
    if kind == "multi":
        return {name for cell in cells
                for name in examples.label_names(list(cell) if isinstance(cell, tuple) else cell, separator)}
    return {cell.strip() for cell in cells if isinstance(cell, str)} - {""}


def _spellings(cells, kind):
    """The label for each cell that has spaces around it."""
    texts = [cell for cell in cells if kind == "single" and isinstance(cell, str)]
    return {text: text.strip() for text in texts if text != text.strip()}


def _order(found, labelled, count):
    """The labels of the train file: the columns of 0 and 1, or the names found in order, by number if all are."""
    if len(labelled.label) > 1:
        return labelled.label
    if not found:
        raise UserError(f"{labelled.table.path}: holds no label")
    if len(found) > max(MANY_LABELS, count / 2):
        raise UserError(f"{labelled.table.path}: the column {labelled.label[0]} holds {len(found)} different labels "
                        f"in {count} rows; name the label's with --label_column, or the kind with --label_kind")
    if all(map(columns.INTEGER.fullmatch, found)):
        return sorted(found, key=lambda name: (int(name), name))
    return sorted(found)


def _check_labels(names, kind, labelled, source):
    """`UserError` for labels that a classifier cannot have."""
    where = f"{labelled.table.path}: " if labelled else ""
    broken = [name for name in names if set(name) & set("\t\n\r")]
    if broken:
        raise UserError(f"{where}the label {broken[0]!r} holds a tab or the end of a line")
    if len(names) < (2 if kind == "single" else 1):
        raise UserError(f"{where}there must be two labels at least, not {', '.join(names)}")
    columns_of = labelled.label if labelled and len(labelled.label) > 1 else names
    are_numbered = all(map(columns.INTEGER.fullmatch, columns_of))
    may_differ = are_numbered or source.labels_file and set(columns_of) != set(names)
    if len(columns_of) != len(names) or tuple(columns_of) != tuple(names) and not may_differ:
        raise UserError(f"--label_column={','.join(columns_of)} must be a column for each label, in their order: "
                        f"{examples.listed(names)}")


def _label_numbers(found, names):
    """The number of each label by its name, where the data hold numbers and the labels are none.

    They count from 1 where the data say so: they hold the number of labels, and no 0. Where
    they hold neither, it is warned about.
    """
    if not found or not all(map(columns.INTEGER.fullmatch, found)) or any(map(columns.INTEGER.fullmatch, names)):
        return {}
    base = int("0" not in found and str(len(names)) in found)
    say = logger.info if {"0", str(len(names))} & found else logger.warning
    say("%s: the numbers in the data count the labels from %d: %d is %s", NAME, base, base, names[0])
    return {str(number): name for number, name in enumerate(names, start=base)}


def _read_labels(path):
    """The labels in a file, one a line."""
    lines = [(number, line.strip()) for number, line in files.read_lines(path)]
    while lines and not lines[-1][1]:
        lines.pop()
    names = [name for _, name in lines]
    for number, name in lines:
        if not name or names.index(name) < number - 1:
            raise UserError(f"{path}:{number}: {'the label ' + repr(name) + ' comes twice' if name else 'no label'}")
    if not names:
        raise UserError(f"{path}: the file is empty")
    return names


def _class_names(source, labelled):
    """The classes that a dataset of tensorflow-datasets names, in order; [] without any."""
    if not source.dataset or not labelled or len(labelled.label) > 1:
        return []
    return rows.tfds_classes(source.dataset, labelled.label[0], source.data_dir)


def _class_numbers(source, labelled, task):
    """The labels of a task that are numbers by the names that a dataset gives them."""
    names = _class_names(source, labelled)
    return {name: str(number) for number, name in enumerate(names)
            if name not in task.labels and str(number) in task.labels}
