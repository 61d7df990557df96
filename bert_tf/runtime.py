"""How a program runs, never what it computes: precision, XLA, seeds and determinism."""

import dataclasses

import keras
import tensorflow as tf

from bert_tf.errors import UserError

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


@dataclasses.dataclass(frozen=True)
class Runtime:
    """The settings of a run on this machine.

    `precision`: what the matrix products are computed in; weights, softmax, LayerNorm and losses stay float32.
    `deterministic`: the same run gives the same bytes; None is yes on a CPU, where it costs nothing, else no.
    """

    precision: str = "float32"
    xla: bool = False
    seed: int = 12345
    deterministic: bool | None = None

    def __post_init__(self):
        if self.precision not in POLICIES:
            raise UserError(f"--precision={self.precision} is unknown; use one of {', '.join(POLICIES)}")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"--seed={self.seed} must be from 0 to {2**31 - 1}")

    @property
    def policy(self):
        """The Keras dtype policy to build a model with."""
        return POLICIES[self.precision]

    def start(self):
        """Seeds initial weights and fixes the order of operations; called once, before anything is built."""
        keras.utils.set_random_seed(self.seed)
        on_cpu = not tf.config.list_physical_devices("GPU")
        if on_cpu if self.deterministic is None else self.deterministic:
            tf.config.experimental.enable_op_determinism()
