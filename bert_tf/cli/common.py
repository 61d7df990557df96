"""The flags that every training script has, as tables, and what follows from them before TensorFlow is loaded."""

import logging
import math
import re

from absl import flags

from bert_tf import cluster
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

# Kind, name, default, help.
RUNTIME = (
    ("integer", "seed", 12345, "Decides initial weights, dropout and the order of the data."),
    ("bool", "deterministic", None, "Same run, same bytes. Default: yes on a CPU, no elsewhere."),
    ("string", "precision", "float32", "What matrix products are computed in: float32, bfloat16 or float16."),
    ("bool", "xla", False, "Compile with XLA."),
    ("string", "strategy", "auto", "Devices: one, mirrored (all of this machine), multi_worker (as TF_CONFIG says), "
     "tpu, or auto."),
    ("integer", "virtual_devices", 0, "Split the CPU into so many devices, to rehearse --strategy=mirrored."),
    ("float", "worker_timeout", 60.0, "Seconds to wait for the other workers at the start."),
    ("bool", "use_tpu", False, "The same as --strategy=tpu."),
    ("string", "tpu_name", None, "The TPU's name or grpc:// address; local or none: the one of this machine."),
    ("string", "tpu_zone", None, "The TPU's zone."),
    ("string", "gcp_project", None, "The TPU's project."),
    ("integer", "num_tpu_cores", 8, "The TPU's cores."),
)

STEP = (
    ("integer", "gradient_accumulation_steps", None, "Micro-batches that a device computes one after another for one "
     "step of --train_batch_size."),
    ("integer", "device_batch_size", None, "Examples that a device can hold at a time; the number of micro-batches "
     "follows."),
    ("string", "optimizer", "adam", "adam (BERT's own, with decoupled weight decay) or lamb (for large batches)."),
    ("float", "clip_norm", 1.0, "Gradients are scaled down to this global norm; 0: never."),
    ("float", "layer_decay", 1.0, "Each layer learns at this part of the rate of the one above it; 1: all alike."),
    ("bool", "recompute", False, "Recompute each layer's activations in the backward pass: less memory, more time."),
    ("float", "ema_decay", None, "Keep a moving average of the weights with this decay beside them."),
    ("bool", "use_ema", None, "Evaluate and predict with the moving averages in place of the weights (default: as the "
     "model's folder says, else no)."),
    ("string", "freeze", None, "Variables whose name matches this regular expression are not trained."),
    ("integer", "lora_rank", None, "Train low-rank additions to the attention projections, and the heads, only."),
    ("string", "lora_train", None, "With --lora_rank: train the variables that match this regular expression too."),
    ("bool", "skip_nonfinite", False, "Go on after a step whose loss or gradient is not finite; it changes nothing."),
)

FOLDER = (
    ("bool", "resume", False, "Go on from the newest checkpoint in --output_dir, also where settings have changed."),
    ("bool", "overwrite_output_dir", False, "Remove the run in --output_dir and start anew."),
    ("integer", "save_checkpoints_steps", 1000, "Steps between two checkpoints."),
    ("integer", "keep_checkpoint_max", 5, "Keep so many of the newest checkpoints; 0 keeps all."),
    ("integer", "keep_checkpoint_every_n_steps", 0, "Keep for good the checkpoints of every so many steps."),
    ("integer", "iterations_per_loop", None, "Steps in one call to the device. Default: about a second's worth."),
    ("string", "profile_steps", None, "A:B traces the steps from A to B for TensorBoard's profiler."),
    ("integer", "eval_every_steps", 0, "Evaluate while training, every so many steps, and keep the best checkpoint."),
    ("string", "best_metric", "loss", "What the best is judged by: a metric of the evaluation; of a loss the lowest."),
    ("integer", "early_stopping_patience", 0, "End after so many evaluations in a row without a new best; 0: never."),
)

# Of the scripts that fine-tune.
FINE_TUNING = (
    ("string", "bert_config_file", None, "bert_config.json, the model's shape (default: the one beside the "
     "checkpoint)."),
    ("string", "vocab_file", None, "vocab.txt, a piece a line (default: the one beside the checkpoint)."),
    ("string", "output_dir", None, "The folder for checkpoints and results."),
    ("string", "init_checkpoint", None, "The checkpoint to start from: usually a pretrained BERT model."),
    ("bool", "do_lower_case", None, "Lower-case the text: for uncased models (default: as the model's folder says, "
     "else yes)."),
    ("bool", "do_train", False, "Whether to train."),
    ("integer", "train_batch_size", 32, "Examples, or windows of long ones, in a training step."),
    ("integer", "predict_batch_size", 8, "The same in a prediction batch."),
    ("float", "learning_rate", 5e-5, "The rate that warm-up rises to."),
    ("float", "num_train_epochs", 3.0, "How often training goes through the data."),
    ("float", "warmup_proportion", 0.1, "The part of all steps over which the rate rises from 0."),
    ("bool", "original_steps", False, "Count steps as the original does, rounded down, without the short last batch; "
     "for questions and answers by questions, not windows."),
    ("bool", "group_by_length", False, "Make each batch of examples of like length: less padding, another order."),
    ("integer", "num_seeds", 1, "Train so many runs, with --seed and the next ones, and keep the best."),
    ("bool", "allow_missing", False, "Accept a checkpoint that lacks variables of the model."),
    ("bool", "allow_case_mismatch", False, "Accept a --do_lower_case that does not fit the model or its vocabulary."),
    ("string", "features_dir", None, "Where features are kept for the next run (default: the user's cache; empty: "
     "nowhere)."),
    ("integer", "num_workers", 1, "Processes that make the features of a large file."),
)

OBSOLETE = (
    ("string", "master", None, "Has no effect."),
)

NOT_ON_TPUS = (
    ("bool", "use_tpu", False, "This script does not drive TPUs: True is refused."),
    ("string", "master", None, "Has no effect."),
    ("integer", "num_tpu_cores", 8, "Has no effect."),
)

# What decides the trajectory of a run of any script.
FINGERPRINT = ("seed", "train_batch_size", "learning_rate", "max_seq_length", "precision", "xla", "deterministic",
               "optimizer", "clip_norm", "ema_decay", "layer_decay", "freeze", "lora_rank", "lora_train")


def define(values, *tables):
    """Defines the flags of tables of (kind, name, default, help)."""
    for kind, name, default, text in (row for table in tables for row in table):
        getattr(flags, f"DEFINE_{kind}")(name, default, text, flag_values=values)


def note_obsolete(values, table=OBSOLETE):
    """Says in a line each which given flags of a table mean nothing any more; refuses what asked for a TPU."""
    for _, name, _, _ in table:
        if name == "use_tpu" and values.use_tpu:
            raise UserError("--use_tpu: this script does not drive TPUs; leave the flag out to run here")
        if values[name].present and name != "use_tpu":
            logger.info("--%s has no effect any more", name)


def require_at_least(values, least, *names):
    """`UserError` for a numeric flag below `least`; None passes, and so does a flag that the script does not have."""
    for name in names:
        value = values[name].value if name in values else None
        if value is not None and not value >= least:
            raise UserError(f"--{name}={value} must be at least {least}")


def check_training_flags(values):
    """`UserError` for flags of every training script that are out of range or contradict each other."""
    require_at_least(values, 1, "train_batch_size", "eval_batch_size", "save_checkpoints_steps", "iterations_per_loop",
                     "gradient_accumulation_steps", "device_batch_size", "lora_rank", "num_tpu_cores")
    require_at_least(values, 0, "keep_checkpoint_max", "keep_checkpoint_every_n_steps", "eval_every_steps",
                     "early_stopping_patience", "virtual_devices", "clip_norm", "worker_timeout")
    if not 0.0 < values.learning_rate < math.inf:
        raise UserError(f"--learning_rate={values.learning_rate} must be a number above 0")
    if values.ema_decay is not None and not 0.0 < values.ema_decay < 1.0:
        raise UserError(f"--ema_decay={values.ema_decay} must lie between 0 and 1, such as 0.999")
    if not 0.0 < values.layer_decay <= 1.0:
        raise UserError(f"--layer_decay={values.layer_decay} must be above 0 and at most 1, such as 0.9")
    if values.resume and values.overwrite_output_dir:
        raise UserError("--resume and --overwrite_output_dir contradict each other; give one of them")
    if values.gradient_accumulation_steps and values.device_batch_size:
        raise UserError("--gradient_accumulation_steps and --device_batch_size say the same in two ways; give one")
    if values.use_ema and values.do_train and not values.ema_decay:
        raise UserError("--use_ema has no meaning for a training without --ema_decay")
    for needed, flag in (("eval_every_steps", "early_stopping_patience"), ("lora_rank", "lora_train")):
        if values[flag].value and not values[needed].value:
            raise UserError(f"--{flag} has no meaning without --{needed}")
    for flag in ("freeze", "lora_train"):
        check_pattern(flag, values[flag].value)
    profile_steps(values)
    check_devices(values)


def check_fine_tuning_flags(values):
    """`UserError` for flags of every script that fine-tunes which are out of range or ask for nothing."""
    if not (values.do_train or values.do_eval or values.do_predict):
        raise UserError("nothing to do: give --do_train, --do_eval or --do_predict")
    require_at_least(values, 1, "predict_batch_size", "num_seeds", "num_workers")
    if not 0.0 < values.num_train_epochs < math.inf:
        raise UserError(f"--num_train_epochs={values.num_train_epochs} must be a number above 0")
    if not 0.0 <= values.warmup_proportion <= 1.0:
        raise UserError(f"--warmup_proportion={values.warmup_proportion} must be from 0 to 1")


def evaluates(values):
    """Whether a script that fine-tunes evaluates: at the end, or while it trains."""
    return bool(values.do_eval or values.do_train and values.eval_every_steps)


def check_pattern(flag, pattern):
    """`UserError` for what is no regular expression."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UserError(f"--{flag}={pattern} is no regular expression: {error}") from error


def profile_steps(values):
    """The first and the last step of --profile_steps, () without it."""
    if values.profile_steps is None:
        return ()
    match = re.fullmatch(r"(\d+):(\d+)", values.profile_steps)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--profile_steps={values.profile_steps} must be A:B, such as 10:12, with 1 <= A <= B")
    return int(match[1]), int(match[2])


def check_devices(values):
    """`UserError` for devices that contradict each other, and for what a TPU cannot reach."""
    cluster.Cluster.from_environment()
    if values.use_tpu and values.strategy not in ("auto", "tpu"):
        raise UserError(f"--use_tpu and --strategy={values.strategy} contradict each other; give one of them")
    is_tpu = values.use_tpu or values.strategy == "tpu"
    if not is_tpu:
        for flag in ("tpu_name", "tpu_zone", "gcp_project", "num_tpu_cores"):
            if values[flag].present:
                logger.info("--%s has no effect without --use_tpu", flag)
        return
    if values.precision == "float16":
        raise UserError("--precision=float16 does not work on a TPU; use bfloat16")
    if values.tpu_name in (None, "", "local"):
        return
    for flag in ("input_file", "data_dir", "output_dir", "init_checkpoint"):
        value = values[flag].value if flag in values else None
        if value and not value.startswith("gs://"):
            raise UserError(f"--{flag}={value}: the TPU {values.tpu_name} cannot reach this machine's files; put them "
                            "into a gs:// bucket")
