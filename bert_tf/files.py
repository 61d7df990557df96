"""Reading text exactly, finding files, and writing whole files or none.

Local paths go through the operating system; a path with a scheme (`gs://...`) through `tf.io.gfile`, which is
imported only then, so that the tokenizer needs no TensorFlow.
"""

import contextlib
import glob
import os

from bert_tf.errors import UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def is_remote(path):
    """Whether `path` names a file outside the local file system."""
    return "://" in os.fspath(path)


def _gfile():
    import tensorflow as tf

    return tf.io.gfile


def exists(path):
    """Whether a file or folder stands at `path`."""
    return _gfile().exists(path) if is_remote(path) else os.path.exists(path)


def remove(path):
    """Removes the file at `path`, if there is one."""
    if exists(path):
        _gfile().remove(path) if is_remote(path) else os.remove(path)


def make_folder(path):
    """Creates the folder `path` and its parents where they are missing."""
    try:
        _gfile().makedirs(path) if is_remote(path) else os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: the folder cannot be created ({error.strerror})") from error


def open_binary(path):
    """Opens `path` for reading bytes; `UserError` when it is missing, a folder or unreadable."""
    if is_remote(path):
        if not _gfile().exists(path):
            raise UserError(f"{path}: no such file")
        return _gfile().GFile(path, "rb")
    try:
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def read_lines(path):
    """Yields `(line number from 1, text)` for every line of a UTF-8 file.

    Lines end at "\\n" alone, as in the original (U+2028, a lone "\\r" and the like stay inside a line); the "\\n" is
    taken off, a byte-order mark at the start of the file too. A byte that is not UTF-8 is a `UserError` with file
    and line.
    """
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith(BYTE_ORDER_MARK):
                line = line[len(BYTE_ORDER_MARK):]
            try:
                yield number, line.removesuffix(b"\n").decode("utf-8")
            except UnicodeDecodeError as error:
                byte = line[error.start]
                raise UserError(f"{path}:{number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from error


def read_text(path):
    """The whole of a UTF-8 file, lines ended by "\\n"; errors as `read_lines`."""
    return "\n".join(line for _, line in read_lines(path))


def expand(patterns, flag):
    """The files that a comma-separated list of names and globs stands for, in the original's order.

    Patterns keep their order, the files of one pattern are sorted. A pattern that matches nothing, an empty list and
    a folder are a `UserError` that names `flag`.
    """
    paths = []
    for pattern in patterns.split(","):
        pattern = pattern.strip()
        matches = sorted(_gfile().glob(pattern) if is_remote(pattern) else glob.glob(pattern))
        if not pattern or not matches:
            raise UserError(f"--{flag}={patterns}: no file matches {pattern!r}")
        paths.extend(matches)
    for path in paths:
        if not is_remote(path) and os.path.isdir(path):
            raise UserError(f"--{flag}: {path} is a folder; name its files")
    return paths


@contextlib.contextmanager
def replacing(path, mode="w"):
    """A file that is written beside `path` and renamed into place when the block ends well, else removed."""
    beside = f"{path}.tmp-{os.getpid()}"
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        file = _gfile().GFile(beside, mode) if is_remote(path) else open(beside, mode, **text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with file:
            yield file
        _gfile().rename(beside, path, overwrite=True) if is_remote(path) else os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(Exception):
            _gfile().remove(beside) if is_remote(path) else os.remove(beside)
        raise
