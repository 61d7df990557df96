"""How every script starts and ends: flags from argv, one-line errors, exit status 2.

A script is a table of flags and a function of the parsed flags. Flags live in a `FlagValues` of their own, not in
absl's global one, so that scripts can be called one after another in one process.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import tempfile
import threading

from absl import flags

from bert_tf.errors import UserError

# What TensorFlow reads when it is loaded, unless the user has set it. It turns oneDNN on by itself only with AVX-512;
# with AVX2 alone a float32 step is up to a quarter faster too.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}


def main(define_flags, run, argv=None, description="", positional=False):
    """Parses `argv`, calls `run(values)` and returns the exit status: 0, or 2 after a one-line error.

    `define_flags(values)` defines the script's flags in a fresh `absl.flags.FlagValues`. TensorFlow must be imported
    inside `run`, never above it: `--help` and a misspelt flag answer at once. With `positional`, `run(values,
    arguments)` gets what is no flag; else there must be none.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    argv = list(sys.argv if argv is None else argv)
    try:
        values, arguments = parse(define_flags, argv, description)
        if arguments and not positional:
            raise UserError(f"unexpected argument {arguments[0]!r}; flags are written --name=value")
        if values is not None:
            with _ending_when_terminated():
                run(values, arguments) if positional else run(values)
        return 0
    except UserError as error:
        print("error: " + " ".join(str(error).split("\n")), file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT


def parse(define_flags, argv, description=""):
    """The flags of `argv` and what is no flag; None and none when `--help` was asked for and printed.

    `UserError` for what absl refuses.
    """
    values = flags.FlagValues()
    define_flags(values)
    if any(argument in ("--help", "-h", "--helpfull") for argument in argv[1:]):
        print(f"{description.strip()}\n\nusage: {os.path.basename(argv[0])} [flags]\n{values.get_help()}")
        return None, []
    try:
        return values, values(argv)[1:]
    except flags.Error as error:
        message = " ".join(str(error).split()).replace("must have a value other than None", "is missing")
        raise UserError(f"{message} (--help lists the flags)") from error


@contextlib.contextmanager
def _ending_when_terminated():
    """Makes SIGTERM end the program as an exception does, so that half-written files are removed on the way."""
    def end(number, frame):
        raise SystemExit(128 + number)

    def end_again(unraisable):
        # In a callback of the garbage collector, say, Python lets an exception go no further.
        if unraisable.exc_type is SystemExit:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        else:
            hook(unraisable)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, hook = signal.signal(signal.SIGTERM, end), sys.unraisablehook
    sys.unraisablehook = end_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


def prepare(values):
    """Makes the process ready to train: memory, then TensorFlow and its devices as the flags say."""
    keep_freed_memory()
    load_tensorflow(values.virtual_devices)


def keep_freed_memory():
    """Tells the C library to keep memory that tensors free, instead of giving it back and asking for it again.

    TensorFlow allocates every tensor of every step anew; without this a step spent a third of its time in the kernel,
    clearing pages. Must be called before TensorFlow is loaded; does nothing where the C library is another.
    """
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # glibc's malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_top_pad, 64 << 20)


def load_tensorflow(virtual_devices=0):
    """Imports TensorFlow and finds its devices without its dozen lines about absent drivers; they show if it fails.

    `virtual_devices` splits the CPU into so many.
    """
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as unseen:
        os.dup2(unseen.fileno(), 2)
        try:
            import tensorflow as tf

            if virtual_devices:
                (cpu,) = tf.config.list_physical_devices("CPU")
                tf.config.set_logical_device_configuration(
                    cpu, [tf.config.LogicalDeviceConfiguration()] * virtual_devices)
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
