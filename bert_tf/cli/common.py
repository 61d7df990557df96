"""The flags that every training script has, as tables, and what follows from them."""

import logging

from absl import flags

from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

# Kind, name, default, help.
RUNTIME = (
    ("integer", "seed", 12345, "Decides initial weights, dropout and the order of the data."),
    ("bool", "deterministic", None, "Same run, same bytes. Default: yes on a CPU, no elsewhere."),
    ("string", "precision", "float32", "What matrix products are computed in: float32 or bfloat16."),
    ("bool", "xla", False, "Compile with XLA."),
)

FOLDER = (
    ("bool", "resume", False, "Go on from the newest checkpoint in --output_dir, also where settings have changed."),
    ("bool", "overwrite_output_dir", False, "Remove the run in --output_dir and start anew."),
    ("integer", "keep_checkpoint_max", 5, "Keep so many of the newest checkpoints; 0 keeps all."),
)

OBSOLETE = (
    ("bool", "use_tpu", False, "TPUs are not driven by this version: True is refused."),
    ("string", "tpu_name", None, "Has no effect."),
    ("string", "tpu_zone", None, "Has no effect."),
    ("string", "gcp_project", None, "Has no effect."),
    ("string", "master", None, "Has no effect."),
    ("integer", "num_tpu_cores", 8, "Has no effect."),
)


def define(values, *tables):
    """Defines the flags of tables of (kind, name, default, help)."""
    for kind, name, default, text in (row for table in tables for row in table):
        getattr(flags, f"DEFINE_{kind}")(name, default, text, flag_values=values)


def note_obsolete(values):
    """Says in a line each which given flags mean nothing any more; refuses those that asked for something real."""
    if "use_tpu" in values and values.use_tpu:
        raise UserError("--use_tpu: TPUs are not driven by this version; leave the flag out to train here")
    for _, name, _, _ in OBSOLETE:
        if name in values and values[name].present and name != "use_tpu":
            logger.info("--%s has no effect any more", name)


def require_at_least(values, least, *names):
    """`UserError` for a numeric flag below `least`."""
    for name in names:
        if values[name].value < least:
            raise UserError(f"--{name}={values[name].value} must be at least {least}")


def check_training_flags(values):
    """`UserError` for flags of every training script that are out of range or contradict each other."""
    require_at_least(values, 1, "train_batch_size", "eval_batch_size", "save_checkpoints_steps")
    require_at_least(values, 0, "keep_checkpoint_max")
    if values.iterations_per_loop is not None:
        require_at_least(values, 1, "iterations_per_loop")
    if not 0.0 < values.learning_rate < float("inf"):
        raise UserError(f"--learning_rate={values.learning_rate} must be a number above 0")
    if values.resume and values.overwrite_output_dir:
        raise UserError("--resume and --overwrite_output_dir contradict each other; give one of them")
