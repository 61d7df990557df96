"""The name of a variable: its path, as the original's checkpoints spell it."""

import re

# The last part of the name under which the moving average of a weight is kept.
AVERAGE = "ExponentialMovingAverage"

_WITHIN_MODEL = re.compile(r"(?:^|/)((?:bert|cls)/.*)$")
_LORA = re.compile(r"/lora_kernel_([ab])$")


def variable_name(path):
    """The checkpoint's name of a variable's path: what wrapping models put before `bert/` or `cls/` is dropped.

    Keras' `.../lora_kernel_a` is `.../kernel/lora_a`.
    """
    match = _WITHIN_MODEL.search(path)
    return _LORA.sub(r"/kernel/lora_\1", match[1] if match else path)
