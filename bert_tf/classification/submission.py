"""The files that GLUE's leaderboard scores: one for each test set, and all of them in a zip file.

Each holds the header `index`, `prediction` and a row for every example: its number from 0, and a label's name or a
score. The leaderboard takes only a zip file with all of them. Source: gluebenchmark.com.
"""

import glob
import logging
import os
import typing
import zipfile

import numpy as np

from bert_tf import files
from bert_tf.classification import tasks
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

HEADER = "index\tprediction"
SCORE_RANGE = (0.0, 5.0)  # of STS-B
DATE = (1980, 1, 1, 0, 0, 0)  # the earliest of a zip file, so that the same predictions give the same bytes


class TestSet(typing.NamedTuple):
    """A test set of GLUE: its task and split, its file on the leaderboard, and how many examples it has."""

    task: str
    split: str
    file: str
    num_examples: int


TEST_SETS = (
    TestSet("CoLA", "test", "CoLA.tsv", 1063),
    TestSet("SST-2", "test", "SST-2.tsv", 1821),
    TestSet("MRPC", "test", "MRPC.tsv", 1725),
    TestSet("STS-B", "test", "STS-B.tsv", 1379),
    TestSet("MNLI", "test", "MNLI-m.tsv", 9796),
    TestSet("MNLI", "test_mismatched", "MNLI-mm.tsv", 9847),
    TestSet("QNLI", "test", "QNLI.tsv", 5463),
    TestSet("QQP", "test", "QQP.tsv", 390965),
    TestSet("RTE", "test", "RTE.tsv", 3000),
    TestSet("WNLI", "test", "WNLI.tsv", 146),
    TestSet("AX", "test", "AX.tsv", 1104),
)


def find(task, split):
    """The `TestSet` of a task's split; None where GLUE has none."""
    return next((row for row in TEST_SETS if (row.task, row.split) == (task.name, split)), None)


def write(path, task, decided, lines):
    """Writes a test set's file from what is predicted: classes int [N], or scores [N], which are clipped to 0 to 5.

    Examples are numbered by their `lines` int [N], so that one left out, of a row that lost a tab, moves no other.
    """
    if task.kind == "regression":
        predicted = [f"{score:.3f}" for score in np.clip(decided, *SCORE_RANGE).tolist()]
    else:
        predicted = [task.labels[number] for number in decided.tolist()]
    with files.replacing(path) as file:
        file.write(HEADER + "\n")
        file.writelines(f"{number}\t{name}\n" for number, name in zip((lines - lines[0]).tolist(), predicted))


def collect(folders):
    """The path of every test set's file that lies in one of `folders`, or a folder in it, by the file's name.

    `UserError` for a folder that is missing or holds none, and where there are two of a test set.
    """
    found = {}
    for folder in folders:
        if not os.path.isdir(folder):
            raise UserError(f"{folder}: no such folder")
        paths = [path for row in TEST_SETS for where in ("", "*")
                 for path in sorted(glob.glob(os.path.join(glob.escape(folder), where, row.file)))]
        if not paths:
            raise UserError(f"{folder}: holds no {TEST_SETS[0].file} or the like; run_classifier.py --do_predict "
                            "writes them")
        for path in paths:
            name = os.path.basename(path)
            if found.setdefault(name, path) != path:
                raise UserError(f"both {found[name]} and {path} are there; leave one out")
    return found


def read(path, test_set):
    """The content of a test set's file; `UserError` with the line unless it has all rows, in order."""
    task, lines = tasks.find(test_set.task), []
    for number, line in files.read_lines(path):
        index, tab, prediction = line.partition("\t")
        if number == 1 and line != HEADER:
            raise UserError(f"{path}:1: the header must be index and prediction, separated by a tab")
        if number > 1 and index != str(number - 2):
            raise UserError(f"{path}:{number}: example {number - 2} is missing or not in its place; predict the whole "
                            "test set again")
        if number > 1 and not is_prediction(task, prediction):
            raise UserError(f"{path}:{number}: {prediction!r} is no {'label' if task.labels else 'score'} of "
                            f"{task.name}")
        lines.append(line)
    if len(lines) - 1 != test_set.num_examples:
        raise UserError(f"{path}: has {max(0, len(lines) - 1)} predictions, the test set has {test_set.num_examples} "
                        "examples; predict the whole of it")
    return "".join(line + "\n" for line in lines)


def is_prediction(task, text):
    """Whether a text is a label of the task, or a score as the leaderboard takes it."""
    if task.labels:
        return text in task.labels
    lowest, highest = SCORE_RANGE
    try:
        return lowest <= float(text) <= highest
    except ValueError:
        return False


def placeholder(test_set):
    """The content of a file for a test set that nothing was predicted for: the first label, or 0, for all."""
    task = tasks.find(test_set.task)
    prediction = task.labels[0] if task.labels else "0.000"
    return "".join([HEADER + "\n", *(f"{number}\t{prediction}\n" for number in range(test_set.num_examples))])


def write_zip(path, folders, allow_missing=False):
    """Zips the files of all test sets that lie in `folders`; the same files give the same bytes.

    `UserError` where one is missing, unless `allow_missing`: then a placeholder takes its place, as the leaderboard
    refuses a zip file that lacks one. Which are placeholders is said.
    """
    found = collect(folders)
    missing = [row.file for row in TEST_SETS if row.file not in found]
    if missing and not allow_missing:
        raise UserError(f"no {', '.join(missing)} in {', '.join(folders)}; the leaderboard takes all or nothing "
                        "(--allow_missing fills in a constant, whose score means nothing)")
    contents = {row.file: read(found[row.file], row) if row.file in found else placeholder(row) for row in TEST_SETS}
    with files.replacing(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for row in TEST_SETS:
            entry = zipfile.ZipInfo(row.file, DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, contents[row.file])
            logger.info("%s: %d rows from %s", row.file, row.num_examples, found.get(row.file, "nowhere: a constant"))
    if missing:
        logger.warning("%s holds a constant for %s; their scores on the leaderboard mean nothing", path,
                       ", ".join(missing))
