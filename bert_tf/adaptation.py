"""Training a part of a model: variables frozen by name, and LoRA (Hu et al., 2021) on the attention projections.

In checkpoints the plain name of an adapted kernel holds what the model computes with, the pair added; what resuming
needs stands beside it: `<name>/lora_base`, `<name>/lora_a`, `<name>/lora_b`.
"""

import logging
import re

import keras
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.names import variable_name

logger = logging.getLogger("bert_tf")

# The projections of attention: queries, keys, values and what comes after them.
ADAPTED = re.compile(r"/attention/(self/(query|key|value)|output/dense)/kernel$")
BASE = "lora_base"


def freeze(model, pattern):
    """Leaves every variable whose name matches the regular expression `pattern` untrained.

    `UserError` for a pattern that matches no trained variable or leaves none.
    """
    matching = [variable for variable in model.trainable_variables if re.search(pattern, variable_name(variable.path))]
    if not matching:
        raise UserError(f"--freeze={pattern} matches no variable that is trained, such as "
                        f"{variable_name(model.trainable_variables[0].path)}")
    if len(matching) == len(model.trainable_variables):
        raise UserError(f"--freeze={pattern} matches every variable that is trained; leave some")
    for variable in matching:
        variable.trainable = False
    _say_what_is_trained(model)


def add_lora(model, rank, train_pattern=None):
    """Adds a pair of low-rank matrices to each attention projection and trains only these and the heads.

    Outputs stay what they are until the first update. `train_pattern`: variables whose name matches it are trained
    too. `UserError` for a rank that is not below the projections' width, and for a pattern that matches nothing.
    """
    kernels = [layer for layer in _dense_layers(model) if ADAPTED.search(variable_name(layer.kernel.path))]
    width = min(min(layer.kernel.shape) for layer in kernels)
    if not 1 <= rank < width:
        raise UserError(f"--lora_rank={rank} must be from 1 to below the projections' width, {width}")
    encoder = [variable for variable in model.trainable_variables if variable_name(variable.path).startswith("bert/")]
    wanted = [variable for variable in encoder if train_pattern and re.search(train_pattern,
                                                                              variable_name(variable.path))]
    if train_pattern and not wanted:
        raise UserError(f"--lora_train={train_pattern} matches no variable under bert/")
    for variable in encoder:
        variable.trainable = any(variable is other for other in wanted)
    for layer in kernels:
        layer.enable_lora(rank)
    _say_what_is_trained(model)


def weights(model):
    """Every weight that a training checkpoint holds to be read again, by its name there."""
    names = {variable_name(variable.path): variable for variable in model.weights}
    bases = {variable_name(layer._kernel.path) for layer in _adapted_layers(model)}
    return {f"{name}/{BASE}" if name in bases else name: variable for name, variable in names.items()}


def merged_kernels(model):
    """The kernels that adapted layers compute with, float32 tensors by their plain names."""
    return {variable_name(layer._kernel.path): tf.convert_to_tensor(layer._kernel)
            + layer.lora_alpha / layer.lora_rank * tf.matmul(layer.lora_kernel_a, layer.lora_kernel_b)
            for layer in _adapted_layers(model)}


def _dense_layers(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Dense)]


def _adapted_layers(model):
    return [layer for layer in _dense_layers(model) if layer.lora_enabled]


def _say_what_is_trained(model):
    trained = model.trainable_variables
    logger.info("trained: %d of %d variables, %s of %s parameters", len(trained), len(model.weights),
                f"{sum(int(tf.size(variable)) for variable in trained):,}", f"{model.count_params():,}")
