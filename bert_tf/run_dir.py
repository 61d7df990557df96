"""What makes a folder a training run: its fingerprint, and the guard against mixing two runs in one folder."""

import json
import logging
import os

from bert_tf import checkpoint, files
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

FINGERPRINT = "run.json"
CHECKPOINT = "model.ckpt"
# What a run leaves in its folder; `--overwrite_output_dir` removes these and nothing else.
LEFT_BY_A_RUN = ("checkpoint", "eval_results.txt", "train_log.jsonl", "curves.png", FINGERPRINT)


def start(folder, fingerprint, resume=False, overwrite=False):
    """Prepares `folder` for a run and returns the checkpoint to go on from, or None for a new run.

    `fingerprint` maps the names of all settings that decide the run's trajectory to plain values. A folder with
    checkpoints of another run, or of none that we know, is a `UserError` that names what differs, unless `resume` (go
    on with the new settings) or `overwrite` (start anew).
    """
    files.make_folder(folder)
    if overwrite:
        clear(folder)
    newest = checkpoint.latest(folder)
    if newest and not resume:
        _compare(folder, fingerprint)
    with files.replacing(os.path.join(folder, FINGERPRINT)) as file:
        file.write(json.dumps(fingerprint, indent=2, sort_keys=True) + "\n")
    return newest


def _compare(folder, fingerprint):
    """Refuses a folder whose fingerprint is another or missing."""
    path = os.path.join(folder, FINGERPRINT)
    advice = "--resume goes on from it with the new settings, --overwrite_output_dir starts anew"
    if not files.exists(path):
        raise UserError(f"{folder} holds checkpoints of a run that is not known here (no {FINGERPRINT}); {advice}")
    try:
        earlier = json.loads(files.read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON ({error.msg}); {advice}") from error
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
    for prefix in checkpoint.list_prefixes(folder):
        if os.path.basename(prefix).startswith(CHECKPOINT + "-"):
            checkpoint.delete(prefix)
    for name in LEFT_BY_A_RUN:
        files.remove(os.path.join(folder, name))


def write_results(path, results):
    """Writes numbers as `name = value` lines, sorted by name, as the original's `eval_results.txt`, and logs them."""
    lines = [f"{name} = {results[name]!s}" for name in sorted(results)]
    with files.replacing(path) as file:
        file.write("\n".join(lines) + "\n")
    for line in lines:
        logger.info("  %s", line)
