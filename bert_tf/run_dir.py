"""What makes a folder a training run: its fingerprint, and the guard against mixing two runs in one folder."""

import json
import logging
import os

import tensorflow as tf

from bert_tf import checkpoint, files
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

FINGERPRINT = "run.json"
CHECKPOINT = "model.ckpt"
RESULTS = "eval_results.txt"
# What a run leaves in its folder; `--overwrite_output_dir` removes these and nothing else.
LEFT_BY_A_RUN = (checkpoint.STATE_FILE, RESULTS, "train_log.jsonl", "eval_log.jsonl", "curves.png", "seeds.tsv",
                 FINGERPRINT)
EVENTS = "events.out.tfevents."  # TensorBoard's files


def find(folder, fingerprint, resume=False, overwrite=False):
    """The checkpoint in `folder` that a run goes on from, or None for a new run; nothing is written.

    `fingerprint` maps the names of all settings that decide the run's trajectory to plain values. A folder with
    checkpoints of another run, or of none that we know, is a `UserError` that names what differs, unless `resume` (go
    on with the new settings) or `overwrite` (start anew).
    """
    if overwrite:
        others = [os.path.basename(prefix) for prefix in _prefixes(folder) if not _is_of_a_run(prefix)]
        if others:
            raise UserError(f"{folder} holds checkpoints that no run left there: {checkpoint.shorten(others)}; "
                            "--overwrite_output_dir does not remove them, give the run a folder of its own")
        return None
    newest = checkpoint.latest(folder)
    if newest and not resume:
        _compare(folder, fingerprint)
    return newest


def read(folder):
    """The fingerprint of the run in `folder`; {} without one. `UserError` for a file that holds none."""
    path = os.path.join(folder, FINGERPRINT)
    return files.read_json_object(path) if files.exists(path) else {}


def begin(folder, fingerprint, overwrite=False):
    """Makes `folder` the folder of the run with this fingerprint; of an earlier run removes all, if `overwrite`."""
    files.make_folder(folder)
    if overwrite:
        clear(folder)
    with files.replacing(os.path.join(folder, FINGERPRINT)) as file:
        file.write(json.dumps(fingerprint, indent=2, sort_keys=True) + "\n")


def _compare(folder, fingerprint):
    """Refuses a folder whose fingerprint is another or missing."""
    path = os.path.join(folder, FINGERPRINT)
    advice = "--resume goes on from it with the new settings, --overwrite_output_dir starts anew"
    if not files.exists(path):
        raise UserError(f"{folder} holds checkpoints of a run that is not known here (no {FINGERPRINT}); {advice}")
    try:
        earlier = files.read_json_object(path)
    except UserError as error:
        raise UserError(f"{error}; {advice}") from error
    names = sorted(name for name in {*earlier, *fingerprint} if earlier.get(name) != fingerprint.get(name))
    if names:
        differences = ", ".join(f"{name} {_short(earlier.get(name))} (now {_short(fingerprint.get(name))})"
                                for name in names)
        raise UserError(f"{folder} holds a run with other settings: {differences}; {advice}")


def _short(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def clear(folder):
    """Removes what a run left in `folder`: its checkpoints, logs and results."""
    for prefix in filter(_is_of_a_run, _prefixes(folder)):
        checkpoint.delete(prefix)
    events = [name for name in tf.io.gfile.listdir(folder) if name.startswith(EVENTS)]
    for name in [*LEFT_BY_A_RUN, *events]:
        files.remove(os.path.join(folder, name))


def _prefixes(folder):
    return checkpoint.list_prefixes(folder) if tf.io.gfile.isdir(folder) else []


def _is_of_a_run(prefix):
    return os.path.basename(prefix).startswith(CHECKPOINT + "-")


def write_results(folder, results, file_name=RESULTS):
    """Writes numbers as `name = value` lines, sorted by name, to the original's `eval_results.txt`, and logs them."""
    lines = [f"{name} = {results[name]!s}" for name in sorted(results)]
    with files.replacing(os.path.join(folder, file_name)) as file:
        file.write("\n".join(lines) + "\n")
    for line in lines:
        logger.info("  %s", line)
