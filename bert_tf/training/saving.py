"""Checkpoints written in another thread while training goes on: complete or absent."""

import concurrent.futures
import os

import tensorflow as tf

from bert_tf import checkpoint, run_dir
from bert_tf.errors import UserError


class Saver:
    """Writes a run's checkpoints, one at a time, and deletes old ones; does nothing where it is not the chief's.

    `keep` of the newest stay, and those whose step is a multiple of `every`, and `best`, a prefix or None. What goes
    wrong in the other thread is raised by the next call of any method. As a context it ends with `wait`.
    """

    def __init__(self, output_dir, keep=5, every=0, is_chief=True):
        self.output_dir = output_dir
        self.keep = keep
        self.every = every
        self.is_chief = is_chief
        self.best = None
        self.saved = None  # the last complete one
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._pending = None

    def save(self, state):
        """Begins to write the state as it is now and returns the checkpoint's prefix."""
        self.wait()
        prefix = prefix_of(self.output_dir, state.step)
        if self.is_chief and prefix != self.saved:
            # Reading a variable shares its memory: an update then writes elsewhere, and this stays as it is.
            tensors = {name: value if isinstance(value, int) else tf.convert_to_tensor(value)
                       for name, value in state.tensors().items()}
            self._pending = self._thread.submit(self._write, prefix, tensors, self.best)
        return prefix

    def check(self):
        """Raises what has gone wrong so far."""
        if self._pending and self._pending.done():
            self.wait()

    def wait(self):
        """Returns when nothing is being written any more; `UserError` when it could not be written."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.wait()
        except UserError:
            if error is None:
                raise
        finally:
            self._thread.shutdown()

    def _write(self, prefix, tensors, best):
        broken = [name for name, tensor in tensors.items()
                  if not isinstance(tensor, int) and tensor.dtype.is_floating
                  and not tf.reduce_all(tf.math.is_finite(tensor))]
        if broken:
            raise UserError(f"{checkpoint.shorten(broken)} not finite at {prefix}, which is not written; "
                            f"{last_good(self.saved)}")
        checkpoint.write(prefix, tensors)
        checkpoint.update_state(self.output_dir, prefix)
        self.saved = prefix
        checkpoint.prune(self.output_dir, self.keep, self.every, [best] if best else [])


def prefix_of(output_dir, step):
    """The prefix of a run's checkpoint of a step."""
    return os.path.join(output_dir, f"{run_dir.CHECKPOINT}-{step}")


def last_good(saved):
    """Where a run that went wrong can go on from, in words."""
    last = f"the last good checkpoint is {saved}" if saved else "no checkpoint was written since the start"
    return f"{last}; a lower --learning_rate or more warm-up usually helps"
