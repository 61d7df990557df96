"""Reading text exactly, finding files, and writing whole files or none.

Local paths go through the operating system; a path with a scheme (`gs://...`) through `tf.io.gfile`, which is
imported only then, so that the tokenizer needs no TensorFlow.
"""

import contextlib
import glob
import hashlib
import json
import os
import re

from bert_tf.errors import UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 cannot


def is_remote(path):
    """Whether `path` names a file outside the local file system."""
    return "://" in os.fspath(path)


def gfile():
    """TensorFlow's file system, for paths that are not local."""
    import tensorflow as tf

    return tf.io.gfile


@contextlib.contextmanager
def _one_line(path, failed):
    """Turns what the operating system or `tf.io.gfile` raises into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not type(error).__module__.startswith("tensorflow."):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"{path}: {failed} ({reason})") from error


def exists(path):
    """Whether a file or folder stands at `path`."""
    with _one_line(path, "cannot be looked for"):
        return gfile().exists(path) if is_remote(path) else os.path.exists(path)


def remove(path):
    """Removes the file at `path`, if there is one."""
    if exists(path):
        with _one_line(path, "cannot be removed"):
            gfile().remove(path) if is_remote(path) else os.remove(path)


def make_folder(path):
    """Creates the folder `path` and its parents where they are missing."""
    with _one_line(path or "''", "the folder cannot be created"):
        gfile().makedirs(path) if is_remote(path) else os.makedirs(path, exist_ok=True)


def check_folder(path, flag):
    """`UserError`, naming `flag`, where `path` cannot be or become a folder."""
    if not path:
        raise UserError(f"--{flag}: the name is empty")
    if not is_remote(path) and os.path.exists(path) and not os.path.isdir(path):
        raise UserError(f"--{flag}={path}: the folder cannot be created (a file of that name is there)")


def size_of(path):
    """The size of a file in bytes; `UserError` where it is missing."""
    with _one_line(path, "cannot be read"):
        return gfile().stat(path).length if is_remote(path) else os.path.getsize(path)


def sha256(path):
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open_binary(path) as file:
        return hashlib.sha256(file.read()).hexdigest()


def check_output(path, flag, inputs=()):
    """`UserError`, naming `flag`, unless a file can be written to `path`; called before any work.

    Refused are no name, a folder, a device and its like, a folder that is missing or not writable, and the file that
    is one of `inputs`, however it is written. Of remote paths only the name is looked at.
    """
    name = f"--{flag}={path}"
    if not path:
        raise UserError(f"--{flag}: the name is empty")
    if path in inputs or not is_remote(path) and os.path.realpath(path) in map(os.path.realpath, inputs):
        raise UserError(f"{name} is also read, or named twice; give it a name of its own")
    if is_remote(path):
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UserError(f"{name} is a folder; name a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{name} is a device, not a file")
    if not os.path.isdir(folder):
        raise UserError(f"{name}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{name}: the folder {folder} cannot be written to")


def open_binary(path):
    """Opens `path` for reading bytes; `UserError` when it is missing, a folder or unreadable."""
    if is_remote(path):
        if not exists(path):
            raise UserError(f"{path}: no such file")
        return gfile().GFile(path, "rb")
    with _one_line(path, "cannot be read"):
        return open(path, "rb")


def read_lines(path):
    """Yields `(line number from 1, text)` for every line of a UTF-8 file.

    Lines end at "\\n" alone (U+2028 and the like stay inside a line) and every "\\r" is dropped, both as TensorFlow's
    reader did for the original; the "\\n" is taken off, a byte-order mark at the start of the file too. A byte that is
    not UTF-8 is a `UserError` with file and line.
    """
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            line = line.removesuffix(b"\n").replace(b"\r", b"")
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = line[error.start]
                raise UserError(f"{path}:{number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8") from error


def read_text(path):
    """The whole of a UTF-8 file, lines ended by "\\n"; errors as `read_lines`."""
    return "\n".join(line for _, line in read_lines(path))


def read_json_object(path):
    """The dictionary that a JSON file holds; `UserError` with file and line where it is none."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # a number of too many digits, or nested too deeply
        raise UserError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object")
    return content


def read_json_lines(path):
    """Yields `(line number, dictionary)` for a file that holds a JSON object a line; None for a blank line.

    `UserError` with file and line for another line, and for a name that an object has twice or that is no text.
    """
    for number, line in read_lines(path):
        try:
            row = json.loads(line, object_pairs_hook=_only_once) if line.strip() else None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not a JSON object on a line of its own "
                            f"({getattr(error, 'msg', error)})") from error
        if not isinstance(row, (dict, type(None))) or row is None and line.strip():
            raise UserError(f"{path}:{number}: not a JSON object on a line of its own (but a {type(row).__name__})")
        yield number, row


def _only_once(pairs):
    """The dictionary of pairs; ValueError for a name that comes twice or is no text."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} comes twice")
    if any(map(SURROGATE.search, row)):
        raise ValueError("a name holds half a surrogate pair")
    return row


def expand(patterns, flag):
    """The files that a comma-separated list of names and globs stands for, in the original's order.

    Patterns keep their order, the files of one pattern are sorted. A pattern that matches nothing, an empty list and
    a folder are a `UserError` that names `flag`.
    """
    paths = []
    for pattern in map(str.strip, patterns.split(",")):
        with _one_line(pattern, "cannot be looked for"):
            matches = sorted(gfile().glob(pattern) if is_remote(pattern) else glob.glob(pattern))
        if not pattern or not matches:
            raise UserError(f"--{flag}={patterns}: no file matches {pattern!r}")
        paths.extend(matches)
    for path in paths:
        if not is_remote(path) and os.path.isdir(path):
            raise UserError(f"--{flag}: {path} is a folder; name its files")
    return paths


def copy(source, path):
    """Puts a copy of a file in place of `path`; errors as `open_binary` and `replacing`."""
    with open_binary(source) as file, replacing(path, "wb") as copied:
        copied.write(file.read())


@contextlib.contextmanager
def replacing(path, mode="w"):
    """A file that is written beside `path` and renamed into place when the block ends well, else removed.

    A symbolic link is followed. `UserError` where that cannot be done, such as on a full disk.
    """
    target = path if is_remote(path) else os.path.realpath(path)
    beside = f"{target}.tmp-{os.getpid()}"
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    with _one_line(path or "''", "cannot be written"):
        file = gfile().GFile(beside, mode) if is_remote(path) else open(beside, mode, **text)
        try:
            with file:
                yield file
            gfile().rename(beside, target, overwrite=True) if is_remote(path) else os.replace(beside, target)
        except BaseException:
            with contextlib.suppress(Exception):
                gfile().remove(beside) if is_remote(path) else os.remove(beside)
            raise
