"""Which files a script reads when a model's folder holds them: a flag's, else the one beside the checkpoint."""

import os

from bert_tf import files
from bert_tf.errors import UserError

CONFIG = "bert_config.json"
VOCAB = "vocab.txt"


def model_file(prefix, name, given, flag, required=True):
    """The path `given` by a flag, else `name` beside the checkpoint `prefix`; None without either.

    `UserError` when a given file is not there, and when there is neither and it is `required`.
    """
    path = given or os.path.join(os.path.dirname(prefix), name)
    if files.exists(path):
        return path
    if given:
        raise UserError(f"--{flag}={given}: no such file")
    if required:
        raise UserError(f"{prefix}: no {name} beside the checkpoint; name it with --{flag}")
    return None
