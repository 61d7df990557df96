"""What a checkpoint holds, whether it computes what it should, and the same weights in Keras' own file format.

Shapes: B batch, S sequence, H hidden.
"""

import contextlib
import logging
import os
import re
import zipfile

import h5py
import numpy as np
import tensorflow as tf

from bert_tf import checkpoint, model_dir, modeling, released
from bert_tf.errors import UserError
from bert_tf.names import variable_name

logger = logging.getLogger("bert_tf")

PRETRAINING_HEADS = "cls/predictions/"
WEIGHTS_SUFFIX = ".weights.h5"

_WORDS = "bert/embeddings/word_embeddings"
_POSITIONS = "bert/embeddings/position_embeddings"
_TYPES = "bert/embeddings/token_type_embeddings"
_INTERMEDIATE = "bert/encoder/layer_0/intermediate/dense/kernel"
_LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
_GOLDEN_LAYER = re.compile(r"encoder_layer_(\d+)(?:_every_([1-9]\d*)th_position)?$")


def sizes(entries):
    """A BERT's sizes, told from its variables (`checkpoint.list_variables`), or None where it is no BERT.

    A dictionary with the names of `released.matching`'s arguments.
    """
    if not all(name in entries and len(entries[name].shape) == 2 for name in
               (_WORDS, _POSITIONS, _TYPES, _INTERMEDIATE)):
        return None
    return {
        "vocab_size": entries[_WORDS].shape[0],
        "num_hidden_layers": len({match[1] for match in map(_LAYER.match, entries) if match}),
        "hidden_size": entries[_WORDS].shape[1],
        "intermediate_size": entries[_INTERMEDIATE].shape[1],
        "max_position_embeddings": entries[_POSITIONS].shape[0],
        "type_vocab_size": entries[_TYPES].shape[0],
    }


def describe(prefix, vocab=None):
    """Lines that show what a checkpoint holds: its variables, its parameters, the released models that it fits.

    Training's own tensors (Adam slots and the like) are only counted. `vocab`: pieces, to tell casings apart.
    """
    entries = checkpoint.list_variables(prefix)
    weights = {name: entry for name, entry in entries.items() if not checkpoint.is_state(name)}
    width = max(map(len, weights), default=0)
    lines = [f"{name:<{width}}  {str(list(entry.shape)):<15} {entry.dtype.name:<9} {entry.parameters:>12,}"
             for name, entry in weights.items()]
    for label, group in (
        ("encoder and pooler", [entry for name, entry in weights.items() if name.startswith("bert/")]),
        ("heads and others", [entry for name, entry in weights.items() if not name.startswith("bert/")]),
        ("total", list(weights.values())),
    ):
        lines.append(f"{label}: {len(group)} variables, {sum(entry.parameters for entry in group):,} parameters")
    lines.append(f"optimizer and training state: {len(entries) - len(weights)} tensors")
    step = checkpoint.step_of(prefix)
    return lines + ([] if step is None else [f"step: {step}"]) + _describe_sizes(sizes(entries), vocab)


def _describe_sizes(found, vocab):
    if found is None:
        return ["not a BERT encoder by its variables"]
    lines = ["sizes: " + ", ".join(f"{name} {size}" for name, size in found.items())]
    fitting = released.matching(**found, vocab=vocab)
    lines += [f"fits the released {model.name} of {model.date}: {model.url}" for model in fitting]
    return lines if fitting else lines + ["fits no released model"]


def load(prefix, config, allow_missing=False):
    """`(model, report)`: a `BertForPreTraining` where the checkpoint holds its heads, else a `BertModel`.

    The weights are the checkpoint's own; that they are not those of the folder's results is said where it is so.
    """
    if model_dir.uses_averages(prefix):
        logger.warning("%s: the weights themselves are taken, not their moving averages, which the folder's results "
                       "are of", prefix)
    entries = checkpoint.list_variables(prefix)
    with_heads = any(name.startswith(PRETRAINING_HEADS) for name in entries)
    model = modeling.BertForPreTraining(config) if with_heads else modeling.BertModel(config)
    return model, checkpoint.restore(model, prefix, allow_missing)


def forward(model, input_ids, input_mask=None, token_type_ids=None):
    """Every output of a model as an array by the goldens' names: `embedding_output`, `encoder_layer_0`, ...

    `UserError` where one holds a NaN or an infinity.
    """
    outputs = dict(model(input_ids, input_mask, token_type_ids))
    outputs |= {f"encoder_layer_{index}": layer for index, layer in enumerate(outputs.pop("all_encoder_layers"))}
    arrays = {name: value.numpy() for name, value in outputs.items()}
    broken = [name for name, value in arrays.items() if not np.isfinite(value).all()]
    if broken:
        raise UserError(f"the model's outputs hold NaN or infinity: {', '.join(broken)}")
    return arrays


def try_forward(model):
    """Runs a model on two rows of random ids, the second half padding; `UserError` unless all outputs are finite."""
    config = model.config
    length = min(config.max_position_embeddings, 64)
    input_ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, length), dtype=np.int32)
    input_mask = np.ones_like(input_ids)
    input_mask[1, length // 2:] = 0
    forward(model, tf.constant(input_ids), tf.constant(input_mask))


def compare(model, golden_file):
    """The largest absolute difference to a file of recorded outputs, by `case/output`.

    `golden_file` is an `.npz` with arrays `case/name`: inputs `input_ids`, `input_mask`, `token_type_ids` int32
    [B, S] (the last two may be left out), outputs as `forward` names them or one layer's
    `encoder_layer_N_every_Kth_position`. Positions under the mask are not compared, except in a row that is masked
    whole. `UserError` when the file is no such file or its ids do not fit the model.
    """
    cases = {}
    for key, value in _read_npz(golden_file).items():
        case, _, name = key.rpartition("/")
        cases.setdefault(case, {})[name] = value
    differences = {}
    for case, arrays in cases.items():
        if "input_ids" not in arrays:
            raise UserError(f"{golden_file}: {case or 'the file'} has no input_ids")
        _check_inputs(golden_file, case, arrays, model.config)
        inputs = [arrays.pop(name, None) for name in ("input_ids", "input_mask", "token_type_ids")]
        outputs = forward(model, *(value if value is None else tf.constant(value) for value in inputs))
        mask = np.ones(inputs[0].shape, bool) if inputs[1] is None else inputs[1] != 0
        mask |= ~mask.any(axis=1, keepdims=True)
        for name, expected in arrays.items():
            differences[f"{case}/{name}"] = _difference(golden_file, case, name, expected, outputs, mask)
    if not differences:
        raise UserError(f"{golden_file}: no recorded outputs in it")
    return differences


def _read_npz(path):
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not a readable .npz file ({' '.join(str(error).split())})") from error


def _check_inputs(path, case, arrays, config):
    shape = arrays["input_ids"].shape
    if 0 in shape:
        raise UserError(f"{path}: {case}/input_ids {list(shape)} hold no ids; record one row or more")
    fitting = len(shape) == 2 and shape[1] <= config.max_position_embeddings
    sizes_by_name = {"input_ids": config.vocab_size, "input_mask": 2, "token_type_ids": config.type_vocab_size}
    for name, size in sizes_by_name.items():
        value = arrays.get(name, np.zeros(shape, np.int32))
        if not fitting or value.shape != shape or value.dtype.kind != "i":
            raise UserError(f"{path}: {case}/{name} {value.dtype} {list(value.shape)} do not fit the model")
        if not 0 <= value.min() <= value.max() < size:
            raise UserError(f"{path}: {case}/{name} go from {value.min()} to {value.max()}, the model takes 0 to "
                            f"{size - 1}")


def _difference(path, case, name, expected, outputs, mask):
    match = _GOLDEN_LAYER.match(name)
    step = int(match[2] or 1) if match else 1
    value = outputs.get(f"encoder_layer_{match[1]}" if match else name)
    if value is None:
        raise UserError(f"{path}: {case}/{name} is no output of the model")
    if match:
        value = value[:, ::step]
    if value.shape != expected.shape:
        raise UserError(f"{path}: {case}/{name} has shape {list(expected.shape)}, the model's {list(value.shape)}")
    difference = np.abs(value - expected)
    if value.ndim == 3:
        difference = difference[mask[:, ::step]]
    # A NaN in the file must not pass for no difference.
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


def to_keras(prefix, config, path, allow_missing=False):
    """Writes a checkpoint's weights as a Keras `.weights.h5`, whole or not at all; returns `load`'s report.

    What the model has no place for (`report.extra`: fine-tuned heads; the optimizer's state) is not in the file.
    """
    check_weights_path(path)
    model, report = load(prefix, config, allow_missing)
    beside = f"{path.removesuffix(WEIGHTS_SUFFIX)}.tmp-{os.getpid()}{WEIGHTS_SUFFIX}"
    try:
        model.save_weights(beside)
        os.replace(beside, path)
    except (OSError, RuntimeError) as error:  # h5py raises either
        raise UserError(f"{path}: cannot be written ({' '.join(str(error).split())})") from error
    finally:
        with contextlib.suppress(OSError):
            os.remove(beside)
    return report


def from_keras(path, config, prefix):
    """Writes a Keras `.weights.h5` of a `BertModel` or `BertForPreTraining` as a checkpoint; returns the model.

    Which of the two it is, its number of variables tells. `UserError` when the file does not fit the config.
    """
    check_weights_path(path)
    _check_prefix(prefix)
    count = _count_variables(path)
    # Keras does not say when a file holds more than the model takes: a layer too many would be lost unseen.
    for model_class in (modeling.BertModel, modeling.BertForPreTraining):
        expected = 5 + 16 * config.num_hidden_layers + 2 + (7 if model_class is modeling.BertForPreTraining else 0)
        if count == expected:
            model = model_class(config)
            break
    else:
        layers = config.num_hidden_layers
        raise UserError(f"{path}: {count} variables; a BERT of {layers} layers has {7 + 16 * layers}, "
                        f"with pretraining heads {14 + 16 * layers}: does the config fit it?")
    try:
        model.load_weights(path)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        message = " ".join(str(error).split())[:300]
        raise UserError(f"{path}: the weights do not fit the config ({message})") from error
    checkpoint.write(prefix, {variable_name(variable.path): variable for variable in model.weights})
    return model


def check_weights_path(path):
    """`UserError` unless Keras can use the path: a local one that ends in `.weights.h5`."""
    if not path.endswith(WEIGHTS_SUFFIX) or "://" in path:
        raise UserError(f"{path}: Keras' weights are a local file whose name ends in {WEIGHTS_SUFFIX}")


def _check_prefix(prefix):
    # Of a folder's path TensorFlow would make files without a name of their own, which no reader finds.
    folder, name = os.path.split(os.fspath(prefix))
    if not name or tf.io.gfile.isdir(prefix):
        example = os.path.join(folder if not name else prefix, "bert_model.ckpt")
        raise UserError(f"{os.fspath(prefix)!r} is no prefix to write a checkpoint to; name one such as {example}")


def _count_variables(path):
    count = 0

    def visit(_, item):
        nonlocal count
        count += isinstance(item, h5py.Dataset)

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except OSError as error:
        raise UserError(f"{path}: not a readable HDF5 file ({' '.join(str(error).split())})") from error
    return count
