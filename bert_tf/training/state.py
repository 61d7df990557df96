"""All that a run needs to go on: weights, moments, step and place in the data, to and from one checkpoint."""

import dataclasses
import logging

import keras
import numpy as np
import tensorflow as tf

from bert_tf import adaptation, checkpoint
from bert_tf.errors import UserError
from bert_tf.names import AVERAGE
from bert_tf.training.precision import LossScale

logger = logging.getLogger("bert_tf")

EXAMPLES_SEEN = "run/examples_seen"


@dataclasses.dataclass
class TrainingState:
    """A model and its optimizer in training; `examples_seen` is the place in the data.

    Which variables are trained is decided before.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    loss_scale: LossScale | None = None
    examples_seen: int = 0

    def __post_init__(self):
        self.optimizer.build(self.model.trainable_variables)

    @property
    def step(self):
        """How many updates were made."""
        return int(self.optimizer.iterations.numpy())

    def slots(self):
        """All variables of training's own by name: moments, averages, the loss scale."""
        return {**self.optimizer.slots(), **(self.loss_scale.slots() if self.loss_scale else {})}

    def tensors(self):
        """What a checkpoint holds, by the original's names; variables are not copied."""
        variables = {**checkpoint.named_weights(self.model), **self.slots()}
        return {**variables, **adaptation.merged_kernels(variables), checkpoint.GLOBAL_STEP: self.step,
                EXAMPLES_SEEN: self.examples_seen}

    def resume(self, prefix, batch_size):
        """Goes on from a checkpoint of training, ours or the original's (its place in the data: step * batch size).

        Averages that it lacks begin with its weights, a loss scale where it usually does. `UserError` when a weight
        or a moment is missing or misshapen, and for another rank of LoRA.
        """
        held = checkpoint.list_variables(prefix)
        weights, slots = checkpoint.named_weights(self.model), self.slots()
        rank = adaptation.lora_rank(held)
        if rank != adaptation.lora_rank(weights):
            how = f"with --lora_rank={rank}" if rank else "without --lora_rank"
            raise UserError(f"{prefix}: was trained {how}; do so again, or give it as --init_checkpoint to start a "
                            "new run from its weights")
        optional = {name for name in slots if name.endswith(AVERAGE) or name.startswith(checkpoint.STATE_PREFIX)}
        needed = {*weights, *slots, checkpoint.GLOBAL_STEP} - optional
        _refuse(prefix, sorted(needed - set(held)))
        report = checkpoint.restore(self.model, prefix)
        _refuse(prefix, [name for name, _, _ in report.misshapen] + [
            name for name, slot in slots.items() if name in held and held[name].shape != tuple(slot.shape)])
        for name, value in checkpoint.read(prefix, [name for name in slots if name in held]):
            if not np.isfinite(value).all():
                raise UserError(f"{prefix}: NaN or infinity in {name}; take an earlier checkpoint of that run")
            slots[name].assign(value)
        if any(name.endswith(AVERAGE) and name not in held for name in slots):
            logger.info("%s: holds no moving averages; they begin with its weights", prefix)
            self.optimizer.start_averages()
        self.optimizer.iterations.assign(report.global_step)
        self.examples_seen = report.global_step * batch_size
        if EXAMPLES_SEEN in held:
            self.examples_seen = int(dict(checkpoint.read(prefix, [EXAMPLES_SEEN]))[EXAMPLES_SEEN])
        return report

    def use_averages(self):
        """Gives the trained weights their moving averages, where such are kept -> their values before."""
        before = [tf.convert_to_tensor(variable) for variable in self.model.trainable_variables]
        self.assign(self.optimizer.averages())
        return before

    def assign(self, values):
        """Gives the trained weights, in their order, new values."""
        for variable, value in zip(self.model.trainable_variables, values):
            variable.assign(value)


def _refuse(prefix, lacking):
    if lacking:
        raise UserError(f"{prefix}: cannot be resumed from with these flags, it lacks {checkpoint.shorten(lacking)}; "
                        "give it as --init_checkpoint to start a new run from its weights")
