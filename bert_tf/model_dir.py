"""What makes a folder a usable model: its config, vocabulary and casing beside the weights."""

import json
import logging
import os

from bert_tf import files, tokenization
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

CONFIG = "bert_config.json"
VOCAB = "vocab.txt"
INFO = "model.json"
# What `INFO` may say that a script goes by, and of what types it may be.
KINDS = {"task": (str,), "labels": (list,), "max_seq_length": (int,), "do_lower_case": (bool,),
         "strip_accents": (bool, type(None)), "kind": (str,), "pooling": (str,), "best_checkpoint": (str,),
         "doc_stride": (int,), "max_query_length": (int,), "version_2_with_negative": (bool,),
         "null_score_diff_threshold": (int, float), "language": (str,), "columns": (dict,),
         "document_context": (bool,), "scheme": (str,), "use_ema": (bool,)}
# Of these, what the texts may be.
KNOWN = {"kind": ("single", "multi", "regression", "span", "tags"), "pooling": ("cls", "mean"),
         "language": ("en", "zh"), "scheme": ("BIO", "IOB1", "BIOES", "plain")}


def find(path):
    """The checkpoint that `path` means: of a run's folder the best one, if it chose one, else as `checkpoint.find`."""
    from bert_tf import checkpoint  # TensorFlow, which flags are read without

    newest = checkpoint.find(path)
    name = os.path.basename(read_info(newest).get("best_checkpoint", ""))
    if not name or not files.gfile().isdir(path):
        return newest
    best = os.path.join(os.path.dirname(newest), name)
    if files.exists(f"{best}.index"):
        return best
    logger.warning("%s: the best checkpoint, %s, is not there any more; the newest, %s, takes its place", path, name,
                   os.path.basename(newest))
    return newest


def latest(folder):
    """`find` for a folder that need not be there or hold a checkpoint: then None."""
    from bert_tf import checkpoint

    return find(folder) if checkpoint.latest(folder) else None


def uses_averages(prefix):
    """Whether a checkpoint's moving averages are the model: its folder was evaluated with them, and it has some."""
    from bert_tf import checkpoint

    return read_info(prefix).get("use_ema", False) and checkpoint.has_averages(prefix)


def is_evaluated(info, prefix, use_ema=None):
    """Whether what a folder's `info` says of results holds for the weights in `prefix`, or for their averages."""
    name = os.path.basename(prefix)
    return use_ema in (None, info.get("use_ema", False)) and info.get("best_checkpoint", name) == name


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
        files.copy(vocab_file, os.path.join(folder, VOCAB))


def note(folder, **info):
    """Adds to what a model's folder says of it; does nothing in a folder that is no model's."""
    path = os.path.join(folder, INFO)
    if files.exists(path):
        noted = files.read_json_object(path) | info
        with files.replacing(path) as file:
            file.write(json.dumps(noted, indent=2, sort_keys=True) + "\n")


def read_info(prefix):
    """What `write` noted beside the checkpoint `prefix`; errors as `read_folder`."""
    return read_folder(os.path.dirname(prefix))


def read_folder(folder):
    """What `write` noted in a folder, {} for another origin; `UserError` for a file that holds something else."""
    path = os.path.join(folder, INFO)
    info = files.read_json_object(path) if files.exists(path) else {}
    for name in KINDS:
        if name in info and not _is_sound(name, info[name]):
            raise UserError(f"{path}: {name} is {info[name]!r:.100}; mend or remove the file")
    return info


def _is_sound(name, value):
    """Whether a script can go by what a folder says."""
    if type(value) not in KINDS[name] or value not in KNOWN.get(name, (value,)):
        return False
    if name == "labels":
        return all(isinstance(label, str) for label in value) and len(set(value)) == len(value)
    if name == "columns":
        return all(type(said) is (bool if flag == "header" else str) for flag, said in value.items())
    return value == value  # unlike NaN


def load_tokenizer(vocab_file, config, prefix=None, do_lower_case=None, allow_case_mismatch=False):
    """The tokenizer of a model, lower-casing as given, else as noted beside the checkpoint `prefix`, else always.

    `UserError` for a vocabulary of more pieces than the config's `vocab_size`, and, unless `allow_case_mismatch`, for
    one that is not the checkpoint's, and for a casing that is not the checkpoint's or does not fit the vocabulary.
    """
    info = read_info(prefix) if prefix else {}
    noted = info.get("do_lower_case")
    if None not in (do_lower_case, noted) and do_lower_case != noted and not allow_case_mismatch:
        raise UserError(f"--do_lower_case={do_lower_case}, but {prefix} was trained with {noted}; leave the flag out "
                        "(--allow_case_mismatch goes on regardless)")
    lowered = next((choice for choice in (do_lower_case, noted) if choice is not None), True)
    strip_accents = info.get("strip_accents") if lowered == noted else None
    tokenizer = tokenization.FullTokenizer(vocab_file, lowered, strip_accents)
    unused = config.vocab_size - tokenizer.vocab_size
    if unused < 0:
        raise UserError(f"{vocab_file} has {tokenizer.vocab_size} pieces, the model {config.vocab_size} (vocab_size "
                        "in its config); use the vocabulary that it was trained with")
    if unused:
        logger.info("%d ids of the config have no piece in %s", unused, vocab_file)
    if not allow_case_mismatch:
        _compare_vocabularies(vocab_file, tokenizer.vocab, prefix)
        tokenization.check_casing(tokenizer.vocab, lowered, prefix)
    return tokenizer


def _compare_vocabularies(vocab_file, vocab, prefix):
    """`UserError` for pieces that have other ids than in the vocabulary beside the checkpoint, but for unused ones."""
    beside = os.path.join(os.path.dirname(prefix), VOCAB) if prefix else ""
    if not prefix or os.path.abspath(vocab_file) == os.path.abspath(beside) or not files.exists(beside):
        return
    pieces = {number: piece for piece, number in vocab.items()}
    for piece, number in tokenization.load_vocab(beside).items():
        if pieces.get(number) != piece and not piece.startswith("[unused"):
            raise UserError(f"{vocab_file}:{number + 1} is {pieces.get(number)!r}, and {piece!r} in {beside}, with "
                            "which the model was trained; use that (--allow_case_mismatch goes on regardless)")
