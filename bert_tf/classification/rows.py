"""Rows of text from files of tab-separated, comma-separated or JSON rows, and from tensorflow-datasets.

Every reader yields `(line, row)`: the number from 1 of the line that the row begins at, and its cells, a list, or a
dictionary by column name where the columns have no order. A blank line is a row None. Cells are texts, lists of texts
where a column holds several, None where nothing is known, and what is neither as it was found.
"""

import csv
import json

from bert_tf import files
from bert_tf.errors import UserError

LONGEST_FIELD = 2 ** 31 - 1  # the csv module's own limit, 131,072 characters, is shorter than some documents


def read_tsv(path):
    """The rows of a file whose columns are separated by tabs; quotes are text."""
    for number, line in files.read_lines(path):
        yield number, line.split("\t") if line else None


def read_csv(path):
    """The rows of a comma-separated file, which may be quoted and then go over several lines; source: RFC 4180.

    `UserError`, naming the line that a row begins at, for quotes that do not match.
    """
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader((line + "\n" for _, line in files.read_lines(path)), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}:{number}: a quote in the row that begins here is never closed (line "
                            f"{reader.line_num}: {error}); a quote inside a quoted text is written twice") from error
        yield number, row or None


def read_json_lines(path):
    """The rows of a file that holds a JSON object a line; null is None, numbers are as they print.

    Errors as `files.read_json_lines`.
    """
    for number, row in files.read_json_lines(path):
        yield number, row and {name: _from_json(value, f"{path}:{number}: {name!r}") for name, value in row.items()}


def _from_json(value, where):
    """A JSON value as a cell."""
    if isinstance(value, list):
        return [_from_json(item, where) for item in value]
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, str) and files.SURROGATE.search(value):
        raise UserError(f"{where} holds half a surrogate pair, which is no text; save the file as UTF-8")
    return value


def build_tfds(name, data_dir=None):
    """The builder of a dataset of tensorflow-datasets, such as `glue/mrpc`, downloaded if it is not in `data_dir`.

    `UserError` where there is no such dataset or it cannot be had.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir)
        builder.download_and_prepare()
    except Exception as error:  # of whatever kind: the builders' own code runs here, and the network's
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"tfds:{name}: the dataset cannot be had ({reason[:300]})") from error
    return builder


def tfds_classes(name, column, data_dir=None):
    """The names of the classes in a column of a dataset of tensorflow-datasets, in order; [] where it holds none."""
    feature = build_tfds(name, data_dir).info.features[column]
    return list(getattr(getattr(feature, "feature", feature), "names", ()))


def read_tfds(path, name, split, data_dir=None):
    """The rows of a split of a dataset of tensorflow-datasets, numbered from 1; classes by name, -1 is None."""
    import tensorflow_datasets as tfds

    builder = build_tfds(name, data_dir)
    features = builder.info.features
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = builder.as_dataset(split=split, read_config=in_order, shuffle_files=False)
    for number, row in enumerate(tfds.as_numpy(dataset), start=1):
        yield number, {column: _from_tensor(value, features[column], f"{path}:{number}: {column!r}")
                       for column, value in row.items()}


def _from_tensor(value, feature, where):
    """A value of tensorflow-datasets as a cell."""
    if getattr(value, "ndim", 0) == 1:
        return [_from_tensor(item, getattr(feature, "feature", None), where) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{where} holds byte 0x{value[error.start]:02x}, which is not UTF-8") from error
    if not hasattr(value, "dtype") or value.ndim:
        return value
    names = getattr(feature, "names", None)
    if names:
        return names[value] if value >= 0 else None
    return str(value).lower() if value.dtype == bool else str(value)
