"""How every script starts and ends: flags from argv, one-line errors, exit status 2.

A script is a table of flags and a function of the parsed flags. Flags live in a `FlagValues` of their own, not in
absl's global one, so that scripts can be called one after another in one process.
"""

import logging
import os
import sys
import tempfile

from absl import flags

from bert_tf.errors import UserError


def main(define_flags, run, argv=None, description=""):
    """Parses `argv`, calls `run(values)` and returns the exit status: 0, or 2 after a one-line error.

    `define_flags(values)` defines the script's flags in a fresh `absl.flags.FlagValues`. TensorFlow must be imported
    inside `run`, never above it: `--help` and a misspelt flag answer at once.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    argv = list(sys.argv if argv is None else argv)
    try:
        values = parse(define_flags, argv, description)
        if values is not None:
            run(values)
        return 0
    except UserError as error:
        print("error: " + " ".join(str(error).split("\n")), file=sys.stderr, flush=True)
        return 2


def parse(define_flags, argv, description=""):
    """The flags of `argv`, or None when `--help` was asked for and printed; `UserError` for what absl refuses."""
    values = flags.FlagValues()
    define_flags(values)
    if any(argument in ("--help", "-h", "--helpfull") for argument in argv[1:]):
        print(f"{description.strip()}\n\nusage: {os.path.basename(argv[0])} [flags]\n{values.get_help()}")
        return None
    try:
        rest = values(argv)
    except flags.Error as error:
        message = " ".join(str(error).split())
        raise UserError(f"{message} (--help lists the flags)") from error
    if len(rest) > 1:
        raise UserError(f"unexpected argument {rest[1]!r}; flags are written --name=value")
    return values


def load_tensorflow():
    """Imports TensorFlow and finds its devices without its dozen lines about absent drivers; they show if it fails."""
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as unseen:
        os.dup2(unseen.fileno(), 2)
        try:
            import tensorflow as tf

            devices = tf.config.list_logical_devices()
        except BaseException:
            unseen.seek(0)
            os.write(screen, unseen.read())
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)
    logging.getLogger("bert_tf").info("TensorFlow %s on %s", tf.__version__,
                                      ", ".join(device.name.removeprefix("/device:") for device in devices))
