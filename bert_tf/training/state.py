"""All that a run needs to go on: weights, moments, step and place in the data, to and from one checkpoint."""

import dataclasses

import keras
import numpy as np

from bert_tf import checkpoint
from bert_tf.errors import UserError
from bert_tf.names import variable_name

EXAMPLES_SEEN = "run/examples_seen"


@dataclasses.dataclass
class TrainingState:
    """A model and its optimizer in training; `examples_seen` is the place in the data."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    examples_seen: int = 0

    def __post_init__(self):
        self.optimizer.build(self.model.trainable_variables)

    @property
    def step(self):
        """How many updates were made."""
        return int(self.optimizer.iterations.numpy())

    def tensors(self):
        """What a checkpoint holds, by the original's names; variables are not copied."""
        weights = {variable_name(variable.path): variable for variable in self.model.weights}
        return {**weights, **self.optimizer.slots(), checkpoint.GLOBAL_STEP: self.step,
                EXAMPLES_SEEN: self.examples_seen}

    def resume(self, prefix, batch_size):
        """Goes on from a checkpoint of training, ours or the original's (its place in the data: step * batch size).

        `UserError` when a weight or a slot is missing or misshapen.
        """
        report = checkpoint.restore(self.model, prefix)
        missing = report.missing + [name for name, _, _ in report.misshapen]
        slots = self.optimizer.slots()
        held = checkpoint.list_variables(prefix)
        missing += [name for name in [*slots, checkpoint.GLOBAL_STEP] if name not in held]
        missing += [name for name, slot in slots.items() if name in held and held[name].shape != tuple(slot.shape)]
        if missing:
            raise UserError(f"{prefix}: cannot be resumed from, it lacks {checkpoint.shorten(missing)}; "
                            "give it as --init_checkpoint to start a new run from its weights")
        for name, value in checkpoint.read(prefix, list(slots)):
            if not np.isfinite(value).all():
                raise UserError(f"{prefix}: NaN or infinity in {name}; take an earlier checkpoint of that run")
            slots[name].assign(value)
        self.optimizer.iterations.assign(report.global_step)
        self.examples_seen = report.global_step * batch_size
        if EXAMPLES_SEEN in held:
            self.examples_seen = int(dict(checkpoint.read(prefix, [EXAMPLES_SEEN]))[EXAMPLES_SEEN])
        return report
