"""What makes a folder a usable model: its config, vocabulary and casing beside the weights."""

import json
import os

from bert_tf import files
from bert_tf.errors import UserError

CONFIG = "bert_config.json"
VOCAB = "vocab.txt"
INFO = "model.json"


def find_file(prefix, name, given, flag, required=True):
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


def write(folder, config, info, vocab_file=None):
    """Puts a model's config, `info` (casing, lengths, how it was made) and a copy of its vocabulary into `folder`."""
    with files.replacing(os.path.join(folder, CONFIG)) as file:
        file.write(config.to_json_string())
    with files.replacing(os.path.join(folder, INFO)) as file:
        file.write(json.dumps(info, indent=2, sort_keys=True) + "\n")
    if vocab_file:
        with files.open_binary(vocab_file) as source:
            content = source.read()
        with files.replacing(os.path.join(folder, VOCAB), "wb") as file:
            file.write(content)


def read_info(prefix):
    """What `write` noted beside the checkpoint `prefix`; {} for a folder of another origin."""
    path = os.path.join(os.path.dirname(prefix), INFO)
    return files.read_json_object(path) if files.exists(path) else {}
