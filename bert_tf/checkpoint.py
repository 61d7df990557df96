"""Checkpoints in the original's format: find, read, check, write.

A checkpoint is `PREFIX.index` and `PREFIX.data-?????-of-?????`, tensors stored under their variables' names; a file
`checkpoint` beside it names the newest. A variable's path is its name there, so nothing here knows a model or a task:
`restore` takes anything whose variables have `.path`, `.shape`, `.dtype` and `.assign`.
"""

import contextlib
import dataclasses
import os
import re

import numpy as np
import tensorflow as tf

from bert_tf import files
from bert_tf.errors import UserError
from bert_tf.names import AVERAGE, variable_name

STATE_FILE = "checkpoint"
# What training keeps beside the weights, so that it can resume; other readers ignore it.
STATE_SUFFIXES = ("/adam_m", "/adam_v", "/lora_base", "/lora_a", "/lora_b", f"/{AVERAGE}")
STATE_PREFIX = "run/"
GLOBAL_STEP = "global_step"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

_FILE = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
_UNFINISHED = re.compile(r"\.(tmp-\d+|tempstate\d+)(\.|$)")
_NUMBER = re.compile(r"-(\d+)$")
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Entry:
    """Shape (tuple of int) and dtype (`tf.DType`) of one tensor of a checkpoint."""

    shape: tuple
    dtype: tf.DType

    @property
    def parameters(self):
        return int(np.prod(self.shape, dtype=np.int64))


@dataclasses.dataclass
class Report:
    """What `restore` did, by variable name.

    `restored`; `missing` from the file; `extra`, in the file but not in the model; `misshapen`, a list of (name, shape
    in the file, shape in the model); `cast`, a list of (name, dtype in the file). Adam slots and other state of
    training are only counted (`slots`), and how many weights were given their moving `averages`; `global_step` is the
    file's or None.
    """

    prefix: str
    restored: list = dataclasses.field(default_factory=list)
    missing: list = dataclasses.field(default_factory=list)
    extra: list = dataclasses.field(default_factory=list)
    misshapen: list = dataclasses.field(default_factory=list)
    cast: list = dataclasses.field(default_factory=list)
    slots: int = 0
    averages: int = 0
    global_step: int | None = None

    @property
    def total(self):
        """How many variables the model has."""
        return len(self.restored) + len(self.missing) + len(self.misshapen)

    def summary(self):
        """One line, such as `model.ckpt-9: 204/206 restored; missing: 2 (cls/...); extra: 1 (output_bias)`."""
        parts = [f"{self.prefix}: {len(self.restored)}/{self.total} restored"
                 + f", {self.averages} of them from their moving averages" * bool(self.averages)]
        for label in ("missing", "misshapen", "extra", "cast"):
            found = getattr(self, label)
            if found:
                parts.append(f"{label}: {shorten(found)}")
        if self.slots:
            parts.append(f"optimizer and training state: {self.slots}")
        if self.global_step is not None:
            parts.append(f"{GLOBAL_STEP} {self.global_step}")
        return "; ".join(parts)

    def details(self):
        """One line for every variable that was not simply restored."""
        lines = [f"missing from the checkpoint, left at its initial value: {name}" for name in self.missing]
        lines += [
            f"misshapen, left at its initial value: {name}: {list(here)} in the checkpoint, {list(model)} in the model"
            for name, here, model in self.misshapen
        ]
        lines += [f"cast from {dtype}: {name}" for name, dtype in self.cast]
        return lines + [f"in the checkpoint only: {name}" for name in self.extra]

    __str__ = summary


def shorten(names):
    """`5 (a, b, c)`: how many there are and the first few; of a tuple the first item."""
    names = [name if isinstance(name, str) else name[0] for name in names]
    rest = ", ..." if len(names) > _SHOWN else ""
    return f"{len(names)} ({', '.join(names[:_SHOWN])}{rest})"


def is_state(name):
    """Whether a tensor is training's own (an Adam slot, `global_step`, ...) and not a weight."""
    return name == GLOBAL_STEP or name.startswith(STATE_PREFIX) or name.endswith(STATE_SUFFIXES)


# Finding.


def find(path):
    """The prefix of the checkpoint that `path` means: a prefix, any of its files, or a folder.

    In a folder the newest that its `checkpoint` file names (by its name inside that folder; no other place is looked
    at), else the only one. `UserError` when there is none or no telling which, or when a data file is missing.
    """
    path = os.fspath(path)
    if not path:
        raise UserError("no checkpoint is given")
    if os.path.basename(path) == STATE_FILE and not tf.io.gfile.isdir(path):
        path = os.path.dirname(path) or "."
    with _one_line(path):
        if tf.io.gfile.isdir(path):
            path = _find_in_folder(path.rstrip("/") or "/")
        prefix = path if tf.io.gfile.exists(f"{path}.index") else _FILE.sub("", path)
        _check_files(prefix)
    return prefix


def latest(folder):
    """The newest checkpoint of a folder, or None when the folder is not there or holds none."""
    return find(folder) if tf.io.gfile.isdir(folder) and (_state(folder) or list_prefixes(folder)) else None


def list_prefixes(folder):
    """Every checkpoint of a folder, by number, then name."""
    names = [name[: -len(".index")] for name in tf.io.gfile.listdir(folder) if name.endswith(".index")]
    names = [name for name in names if not _UNFINISHED.search(name)]
    return [os.path.join(folder, name) for name in sorted(names, key=lambda name: (_number(name), name))]


def step_of(prefix):
    """The `global_step` that a checkpoint holds, else the number its name ends in, else None."""
    step = _read_step(prefix, list_variables(prefix))
    number = _number(prefix)
    return step if step is not None else None if number < 0 else number


def _number(prefix):
    match = _NUMBER.search(prefix)
    return int(match[1]) if match else -1


def _find_in_folder(folder):
    found = list_prefixes(folder)
    names = ", ".join(os.path.basename(prefix) for prefix in found) or "none"
    state = _state(folder)
    if state:
        newest = os.path.join(folder, state[-1])
        if newest not in found:
            raise UserError(
                f"{os.path.join(folder, STATE_FILE)} names {state[-1]}, which is not in that folder (there: {names}); "
                "name the checkpoint itself"
            )
        return newest
    if len(found) != 1:
        problem = "holds no checkpoint (no *.index file)" if not found else f"holds {len(found)} checkpoints: {names}"
        raise UserError(f"{folder}: {problem}; name the checkpoint itself, such as {folder}/bert_model.ckpt")
    return found[0]


def _check_files(prefix):
    index, shards = f"{prefix}.index", _shards(prefix)
    if not tf.io.gfile.exists(index):
        beside = "; its data file is there, the index is not" if shards else ""
        raise UserError(f"{prefix}: no such checkpoint ({index} is missing{beside})")
    expected = int(_SHARD.search(shards[0])[2]) if shards else 1
    for shard in range(expected):
        data = f"{prefix}.data-{shard:05d}-of-{expected:05d}"
        if data not in shards:
            raise UserError(f"{prefix}: the checkpoint is incomplete, {data} is missing; copy or download it again")


def _shards(prefix):
    folder, name = os.path.split(prefix)
    there = tf.io.gfile.listdir(folder or ".") if tf.io.gfile.isdir(folder or ".") else []
    return [os.path.join(folder, file) for file in there if _SHARD.sub("", file) == name != file]


# Reading.


def list_variables(prefix):
    """Name -> `Entry` for every tensor of a checkpoint, sorted; `UserError` when its files are damaged."""
    with _one_line(prefix):
        reader = tf.train.load_checkpoint(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        entries = {name: Entry(tuple(shapes[name]), tf.as_dtype(dtypes[name])) for name in sorted(shapes)}
        _check_size(prefix, entries)
    return entries


def read(prefix, names=None):
    """Yields (name, array) for the named tensors, or for all, one at a time; checksums are verified.

    `UserError` when a name is not in the checkpoint or its files are damaged.
    """
    entries = list_variables(prefix)
    for name in entries if names is None else names:
        if name not in entries:
            raise UserError(f"{prefix}: the checkpoint has no variable {name}")
        yield name, _read_tensor(prefix, name, entries[name].dtype).numpy()


def _read_tensor(prefix, name, dtype):
    # A tensor, since a variable takes over its memory where it would copy an array.
    with _one_line(prefix), tf.device("CPU:0"):
        return tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype])[0]


def _read_step(prefix, entries):
    """The `global_step` of a checkpoint or None; `UserError` when it counts no steps."""
    entry = entries.get(GLOBAL_STEP)
    if entry is None:
        return None
    found = f"{entry.dtype.name} {list(entry.shape)}"
    if entry.dtype.is_integer and entry.shape == ():
        step = int(_read_tensor(prefix, GLOBAL_STEP, entry.dtype))
        if step >= 0:
            return step
        found = str(step)
    raise UserError(f"{prefix}: {GLOBAL_STEP} is {found}, not one whole number from 0 up; write the checkpoint with "
                    "such a number or without it")


def digest(prefix):
    """A hexadecimal number that two checkpoints of equal content share: the index holds every tensor's checksum."""
    return files.sha256(f"{prefix}.index")


def restore(model, path, allow_missing=False, averaged=False):
    """Gives a model's variables the values of the checkpoint that `path` means, and says what it did (`Report`).

    With `averaged` a weight gets its moving average, if the checkpoint has one; a checkpoint that has none at all is
    then a `UserError`.
    Every variable under `bert/` must be there in its shape, else `UserError` before anything is assigned, unless
    `allow_missing`. Heads may be missing or misshapen: they keep their initial values and are reported, as are
    variables that only the file has. A checkpoint that shares nothing with the model is always refused, as is one
    whose `global_step` counts no steps, before anything is assigned. A NaN or an infinity in a weight, or a tensor
    that cannot be read, is a `UserError` too, but found on the way: other variables have their new values by then.
    One tensor at a time is in memory beside the model.
    """
    prefix = find(path)
    entries = list_variables(prefix)
    variables = named_weights(model)
    averages = {name: f"{name}/{AVERAGE}" for name in variables if averaged and f"{name}/{AVERAGE}" in entries}
    if averaged and not averages:
        raise UserError(f"{prefix}: holds no moving averages of the weights; leave --use_ema out")
    report = _compare(prefix, entries, variables)
    _refuse(report, entries, allow_missing)
    report.global_step, report.averages = _read_step(prefix, entries), len(averages)
    broken = []
    for name in report.restored:
        value = _read_tensor(prefix, averages.get(name, name), entries[name].dtype)
        if tf.reduce_all(tf.math.is_finite(value)):
            variables[name].assign(tf.cast(value, variables[name].dtype))
        else:
            broken.append(name)
    if broken:
        raise UserError(f"{prefix}: NaN or infinity in {shorten(broken)}; take an earlier checkpoint of that run")
    return report


def has_averages(prefix):
    """Whether a checkpoint holds moving averages of weights."""
    return any(name.endswith(f"/{AVERAGE}") for name in list_variables(prefix))


def named_weights(model):
    """Every weight of a model by its name in checkpoints; a kernel with a LoRA pair beside it is `<name>/lora_base`.

    `UserError` where two have one name.
    """
    # `weights` leaves out seed generators and metrics, which `variables` holds too.
    found = {}
    for variable in model.weights if hasattr(model, "weights") else model.variables:
        name = variable_name(variable.path)
        if name in found:
            raise UserError(f"two variables of the model are named {name}; restore each part by itself")
        found[name] = variable
    # The plain name is that of the kernel with the pair added, which is no variable.
    return {f"{name}/lora_base" if f"{name}/lora_a" in found else name: found[name] for name in found}


def _compare(prefix, entries, variables):
    report = Report(prefix)
    for name, variable in variables.items():
        if name not in entries:
            report.missing.append(name)
        elif entries[name].shape != tuple(variable.shape):
            report.misshapen.append((name, entries[name].shape, tuple(variable.shape)))
        elif not entries[name].dtype.is_floating:
            raise UserError(f"{prefix}: {name} holds {entries[name].dtype.name}, not floating-point numbers")
        else:
            report.restored.append(name)
            if entries[name].dtype != tf.as_dtype(variable.dtype):
                report.cast.append((name, entries[name].dtype.name))
    others = [name for name in entries if name not in variables]
    report.extra = [name for name in others if not is_state(name)]
    report.slots = sum(is_state(name) and name != GLOBAL_STEP for name in others)
    return report


def _refuse(report, entries, allow_missing):
    if not report.restored and OBJECT_GRAPH in entries:
        raise UserError(f"{report.prefix}: an object-based TensorFlow 2 checkpoint; BERT's hold variables by name")
    if not report.restored and not report.misshapen:
        raise UserError(f"{report.prefix}: no variable of the model is in it; it holds {shorten(report.extra)}")
    if not report.restored:
        raise UserError(f"{report.prefix}: {_misfit(report.misshapen)}; no variable fits, does the config?")
    missing = [name for name in report.missing if name.startswith("bert/")]
    misshapen = [row for row in report.misshapen if row[0].startswith("bert/")]
    advice = "does the config fit it? --allow_missing leaves them at their initial values"
    if missing and not allow_missing:
        raise UserError(f"{report.prefix}: the checkpoint lacks {shorten(missing)}; {advice}")
    if misshapen and not allow_missing:
        raise UserError(f"{report.prefix}: {_misfit(misshapen)}; {advice}")


def _misfit(misshapen):
    name, here, model = misshapen[0]
    others = f"; other shapes than the model's: {shorten(misshapen)}" if len(misshapen) > 1 else ""
    return f"{name} has shape {list(here)}, in the model {list(model)}{others}"


def _check_size(prefix, entries):
    size = sum(tf.io.gfile.stat(path).length for path in _shards(prefix))
    # Strings are stored with sizes of their own.
    expected = sum(entry.parameters * entry.dtype.size for entry in entries.values() if entry.dtype != tf.string)
    if size < expected:
        raise UserError(
            f"{prefix}: the data file is cut short ({size:,} bytes, at least {expected:,} expected); "
            "copy or download it again"
        )


@contextlib.contextmanager
def _one_line(path):
    # TensorFlow's reader raises all of these for damaged files.
    try:
        yield
    except UserError:
        raise
    except (tf.errors.OpError, OSError, RuntimeError, ValueError, IndexError, UnicodeDecodeError) as error:
        message = " ".join(str(error).split())
        raise UserError(f"{path}: the checkpoint cannot be read, it may be damaged ({message})") from error


# Writing.


def write(prefix, tensors):
    """Writes a checkpoint in the original's format: all of it or nothing.

    `tensors` maps names to variables, tensors, arrays or Python ints (int64, as `global_step`); variables are read
    without a copy. The folder is made where it is missing. Both files are written under other names and renamed into
    place, the index last. `UserError` naming `prefix` when that fails; earlier files then stand as before.
    """
    prefix = os.fspath(prefix)
    beside = f"{prefix}.tmp-{os.getpid()}"
    files.make_folder(os.path.dirname(prefix) or ".")
    names = sorted(tensors)  # the order that TensorFlow 1's Saver writes
    try:
        with tf.device("CPU:0"):
            values = [_tensor(tensors[name]) for name in names]
            whole = [""] * len(names)
            tf.raw_ops.SaveV2(prefix=beside, tensor_names=names, shape_and_slices=whole, tensors=values)
        for suffix in (".data-00000-of-00001", ".index"):
            tf.io.gfile.rename(beside + suffix, prefix + suffix, overwrite=True)
    except (tf.errors.OpError, OSError) as error:
        message = " ".join(str(error).split())
        raise UserError(f"{prefix}: the checkpoint cannot be written ({message})") from error
    finally:
        _remove_beside(beside)


def _tensor(value):
    return tf.constant(value, tf.int64) if isinstance(value, int) else tf.convert_to_tensor(value)


def _remove_beside(beside):
    folder, name = os.path.split(beside)
    with contextlib.suppress(tf.errors.OpError, OSError):
        for left in tf.io.gfile.listdir(folder or "."):
            if left.startswith(name):
                tf.io.gfile.remove(os.path.join(folder, left))


# The `checkpoint` file.


def _state(folder):
    """The checkpoints that the state file names, oldest first, the newest last; [] without one."""
    path = os.path.join(folder, STATE_FILE)
    if not tf.io.gfile.exists(path):
        return []
    state = tf.train.get_checkpoint_state(folder)
    if state is None or not state.model_checkpoint_path:
        raise UserError(f"{path}: not a checkpoint state file; remove it or name the checkpoint itself")
    newest = os.path.basename(state.model_checkpoint_path)
    names = [os.path.basename(name) for name in state.all_model_checkpoint_paths]
    return [name for name in names if name != newest] + [newest]


def update_state(folder, newest, kept=()):
    """Writes the file `checkpoint`: the newest checkpoint and all kept ones, named relative to the folder.

    `newest` and `kept` are prefixes or their last parts; `tf.train.latest_checkpoint` reads the file.
    """
    newest = os.path.basename(newest)
    names = [os.path.basename(name) for name in kept]
    names = [name for name in names if name != newest] + [newest]
    lines = [f'model_checkpoint_path: "{_quoted(newest)}"']
    lines += [f'all_model_checkpoint_paths: "{_quoted(name)}"' for name in names]
    with files.replacing(os.path.join(folder, STATE_FILE)) as file:
        file.write("\n".join(lines) + "\n")


def _quoted(name):
    return name.replace("\\", "\\\\").replace('"', '\\"')


def prune(folder, keep, every=0, kept=()):
    """Deletes all but the newest `keep` numbered checkpoints of a folder (0 keeps all) and rewrites `checkpoint`.

    Those whose number is a multiple of `every`, if that is not 0, and the prefixes `kept` stay and are not counted.
    The newest is the one that `checkpoint` names, and it is never deleted; checkpoints of another name than its
    (`bert_model.ckpt` beside `model.ckpt-9`) neither. Returns the deleted prefixes.
    """
    newest = latest(folder)
    if newest is None:
        return []
    stem = _NUMBER.sub("", newest)
    run = [prefix for prefix in list_prefixes(folder) if _NUMBER.search(prefix) and _NUMBER.sub("", prefix) == stem]
    others = [prefix for prefix in run if prefix != newest]
    names = {os.path.basename(prefix) for prefix in kept}
    older = [prefix for prefix in others if not (every and _number(prefix) % every == 0)
             and os.path.basename(prefix) not in names]
    gone = older[: max(0, len(older) - (keep - 1))] if keep > 0 else []
    update_state(folder, newest, [prefix for prefix in others if prefix not in gone])
    for prefix in gone:
        delete(prefix)
    return gone


def delete(prefix):
    """Removes a checkpoint's files."""
    folder, stem = os.path.split(prefix)
    mine = [name for name in tf.io.gfile.listdir(folder or ".") if _FILE.sub("", name) == stem != name]
    # The index first: what is half deleted is then no checkpoint any more.
    for name in sorted(mine, key=lambda name: not name.endswith(".index")):
        tf.io.gfile.remove(os.path.join(folder, name))
