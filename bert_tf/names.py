"""The name of a variable: its path, as the original's checkpoints spell it."""

import re

_WITHIN_MODEL = re.compile(r"(?:^|/)((?:bert|cls)/.*)$")


def variable_name(path):
    """The checkpoint's name of a variable's path: what wrapping models put before `bert/` or `cls/` is dropped."""
    match = _WITHIN_MODEL.search(path)
    return match[1] if match else path
