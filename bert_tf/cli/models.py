"""Which model a training script builds, and what weights it starts from, as its flags say."""

import logging
import os

from bert_tf import checkpoint, files, model_dir
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")


def find_config(values, start_from):
    """The path of the config: the flag's, else beside --init_checkpoint or, when going on, in --output_dir."""
    in_output_dir = os.path.join(values.output_dir, model_dir.CONFIG)
    if values.bert_config_file or start_from:
        return model_dir.find_file(start_from or "", model_dir.CONFIG, values.bert_config_file, "bert_config_file")
    if files.exists(in_output_dir):
        return in_output_dir
    raise UserError("--bert_config_file is missing: without --init_checkpoint it says which model to build")


def initialize(values, model, start_from):
    """Gives the model the weights of --init_checkpoint, and says which it left at random."""
    if start_from is None:
        logger.info("no --init_checkpoint: training starts from random weights")
        return
    report = checkpoint.restore(model, start_from, values.allow_missing, model_dir.uses_averages(start_from))
    logger.info("%s", report.summary())
    if report.missing or report.misshapen:
        logger.warning("random weights in what the checkpoint lacks: %s",
                       checkpoint.shorten(report.missing + report.misshapen))


def restore(values, model, prefix):
    """Gives the model the weights of a checkpoint -> its step; `UserError` for a head that was never trained."""
    averaged = model_dir.uses_averages(prefix) if values.use_ema is None else values.use_ema
    report = checkpoint.restore(model, prefix, values.allow_missing, averaged)
    logger.info("%s", report.summary())
    untrained = report.missing + report.misshapen
    if untrained and not values.allow_missing:
        raise UserError(f"{prefix}: heads that were never trained cannot be evaluated: "
                        f"{checkpoint.shorten(untrained)} (--allow_missing goes on regardless)")
    return report.global_step or 0


def is_in_folder(prefix, folder):
    """Whether a checkpoint lies in a folder, however the two are written."""
    return os.path.realpath(os.path.dirname(prefix) or ".") == os.path.realpath(folder)
