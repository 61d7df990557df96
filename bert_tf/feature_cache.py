"""Features kept in a file, so that the next run on the same data need not make them again.

Nothing here knows a task: features are NumPy arrays by name, and files and settings decide them.
"""

import contextlib
import hashlib
import json
import logging
import os
import re

import numpy as np

import bert_tf
from bert_tf import files
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

FORMAT = 1  # raised when the same files and settings come to other features, or features are kept in another way
CHECKSUM, NOTES = "checksum", "notes"
KEY_DIGITS = 32


def default_folder():
    """Where features are kept unless the user says otherwise: in the user's folder for what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "bert_tf", "features")


def fingerprint(paths, settings):
    """A hexadecimal number of all that decides features: the bytes of the files `paths`, and `settings`.

    `settings` are plain values by name (what JSON can hold).
    """
    decided = {"format": FORMAT, "version": bert_tf.__version__, "settings": settings,
               "files": [files.sha256(path) for path in paths]}
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()


def load_or_make(folder, name, key, make, is_chief=True):
    """The arrays by name that `make()` returns, from `folder` if an earlier run kept them there, else made and kept.

    `key` is their `fingerprint`; files kept under the same `name` and another key are removed. Only the chief writes.
    What was logged while features were made is logged again when they are reused. A damaged file is said and not
    used; that a folder cannot be written to is said and ends nothing.
    """
    stem = re.sub(r"[^\w-]", "_", name, flags=re.ASCII)[:100]
    path = os.path.join(folder, f"{stem}-{key[:KEY_DIGITS]}.npz")
    kept = _read(path, key)
    if kept is None:
        with _noting() as notes:
            arrays = make()
        if is_chief:
            _keep(path, key, arrays, notes)
        return arrays
    arrays, notes = kept
    logger.info("%s: these features were made before and nothing has changed", path)
    for level, message in notes:
        logger.log(level, "%s", message)
    return arrays


@contextlib.contextmanager
def _noting():
    """A list that fills with `(level, message)` of what is logged inside the block."""
    notes = []
    handler = logging.Handler()
    handler.emit = lambda record: notes.append((record.levelno, record.getMessage()))
    logger.addHandler(handler)
    try:
        yield notes
    finally:
        logger.removeHandler(handler)


def _read(path, key):
    """The arrays and notes of a file; None where there is none or it is damaged."""
    if not files.exists(path):
        return None
    try:
        with files.open_binary(path) as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if str(arrays.pop(CHECKSUM)) != _checksum(key, arrays):
            raise ValueError("it holds something else than was written")
        return arrays, json.loads(str(arrays.pop(NOTES)))
    except Exception as error:  # whatever a damaged file makes NumPy raise
        logger.warning("%s: damaged, the features are made again (%s)", path, " ".join(str(error).split()))
        return None


def _keep(path, key, arrays, notes):
    """Writes a file, and removes those of the same name that hold features of something else."""
    kept = {**arrays, NOTES: np.array(json.dumps(notes))}
    try:
        files.make_folder(os.path.dirname(path))
        with files.replacing(path, "wb") as file:
            np.savez(file, **kept, **{CHECKSUM: np.array(_checksum(key, kept))})
        _remove_others(path)
    except UserError as error:
        logger.warning("%s; the features are not kept", error)


def _remove_others(path):
    folder, own = os.path.split(path)
    stem = own[:-len(f"{'0' * KEY_DIGITS}.npz")]
    same = re.compile(re.escape(stem) + rf"[0-9a-f]{{{KEY_DIGITS}}}\.npz")
    for name in files.gfile().listdir(folder) if files.is_remote(folder) else os.listdir(folder):
        if same.fullmatch(name) and name != own:
            files.remove(os.path.join(folder, name))


def _checksum(key, arrays):
    """A hexadecimal number of a key and arrays: names, types, shapes and content."""
    hashed = hashlib.sha256(key.encode())
    for name, array in sorted(arrays.items()):
        hashed.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return hashed.hexdigest()
