"""Training a part of a model: variables frozen by name, and LoRA (Hu et al., 2021) on the attention projections.

All four projections are adapted: there more matrices of a lower rank did as well as fewer of a higher one, or better.

In checkpoints the plain name of an adapted kernel holds what the model computes with, the pair added; what resuming
needs stands beside it: `<name>/lora_base`, `<name>/lora_a`, `<name>/lora_b`.
"""

import logging
import re

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.names import AVERAGE, variable_name

logger = logging.getLogger("bert_tf")


def freeze(model, pattern):
    """Leaves every variable whose name matches the regular expression `pattern` untrained.

    `UserError` for a pattern that matches no trained variable or leaves none.
    """
    matching = _matching(model.trainable_variables, pattern, "freeze")
    if len(matching) == len(model.trainable_variables):
        raise UserError(f"--freeze={pattern} matches every variable that is trained; leave some")
    for variable in matching:
        variable.trainable = False
    _say_what_is_trained(model)


def add_lora(model, rank, train_pattern=None):
    """Adds a pair of low-rank matrices to each attention projection and trains only these and the heads.

    Outputs stay what they are until the first update. `train_pattern`: variables whose name matches it are trained
    too, but for the kernels that have a pair. `UserError` for a rank that is not below the projections' width, and for
    a pattern that matches nothing.
    """
    projections = _projections(model)
    width = min(min(layer.kernel.shape) for layer in projections)
    if not 1 <= rank < width:
        raise UserError(f"--lora_rank={rank} must be from 1 to below the projections' width, {width}")
    kernels = {layer.kernel.path for layer in projections}
    others = [variable for variable in model.trainable_variables
              if variable_name(variable.path).startswith("bert/") and variable.path not in kernels]
    trained = {variable.path for variable in _matching(others, train_pattern, "lora_train")} if train_pattern else ()
    for variable in others:
        variable.trainable = variable.path in trained
    for layer in projections:
        layer.enable_lora(rank)  # freezes the kernel
    _say_what_is_trained(model)


def rate_factors(names, layer_decay, num_layers):
    """By what the learning rate of each variable is multiplied: 1 above the encoder, less the deeper it lies.

    `names` are the variables' names; the last of `num_layers` learns at `layer_decay`, the one below at its square and
    so on, the embeddings last. Source: Howard and Ruder (2018), as Clark et al. (2020) use it for BERT's layers.
    """
    layers = [re.search(r"/encoder/layer_(\d+)/", name) for name in names]

    def height(name, layer):
        return int(layer[1]) + 1 if layer else 0 if "/embeddings/" in name else num_layers + 1

    return [layer_decay ** (num_layers + 1 - height(name, layer)) for name, layer in zip(names, layers)]


def lora_rank(tensors):
    """The rank of the pairs among variables, or what else has a shape, by their names in checkpoints; 0 without."""
    return next((int(tensor.shape[-1]) for name, tensor in tensors.items() if name.endswith("/lora_a")), 0)


def merged_kernels(tensors):
    """The kernels that adapted layers compute with, and their moving averages: float32 by their names in checkpoints.

    `tensors` is what else a checkpoint holds, by name.
    """
    merged = {}
    for base in (name for name in tensors if name.endswith("/lora_base")):
        kernel = base.removesuffix("/lora_base")
        for suffix in ("", f"/{AVERAGE}"):
            if f"{kernel}/lora_a{suffix}" in tensors:
                pair = tf.matmul(tensors[f"{kernel}/lora_a{suffix}"], tensors[f"{kernel}/lora_b{suffix}"])
                merged[f"{kernel}{suffix}"] = tensors[base] + pair
    return merged


def _matching(variables, pattern, flag):
    """The variables whose name matches the regular expression that a flag gives."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--{flag}={pattern} is no regular expression: {error}") from error
    matching = [variable for variable in variables if expression.search(variable_name(variable.path))]
    if not matching:
        raise UserError(f"--{flag}={pattern} matches no variable that could be, such as "
                        f"{variable_name(variables[0].path)}")
    return matching


def _projections(model):
    """The dense layers around attention: queries, keys, values, and what its output passes through."""
    layers = getattr(model, "bert", model).encoder.encoder_layers
    return [projection for layer in layers for projection in (
        layer.attention.query, layer.attention.key, layer.attention.value, layer.attention_output.dense)]


def _say_what_is_trained(model):
    trained = model.trainable_variables
    logger.info("trained: %d of %d variables, %s of %s parameters", len(trained), len(model.weights),
                f"{sum(int(tf.size(variable)) for variable in trained):,}", f"{model.count_params():,}")
