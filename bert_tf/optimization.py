"""BERT's optimizers, Adam with decoupled weight decay as in the original and LAMB, and their learning rate."""

import re
import typing

import keras
import numpy as np
import tensorflow as tf

from bert_tf import adaptation
from bert_tf.errors import UserError
from bert_tf.names import AVERAGE, variable_name

# Variables whose names hold one of these are not decayed, nor scaled by LAMB.
NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")


@keras.saving.register_keras_serializable("bert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from 0 during warm-up, then falls linearly to 0 at the last step.

    The fall is computed from step 0 on, so that the rate drops to init_lr * (1 - warmup / steps) when warm-up ends.
    Source: the original.
    """

    def __init__(self, init_lr, num_train_steps, num_warmup_steps=0):
        self.init_lr = init_lr
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps

    def __call__(self, step):
        """The rate, float32, of the update that follows `step` updates."""
        step = tf.cast(step, tf.float32)
        init_lr = tf.constant(self.init_lr, tf.float32)
        steps = tf.constant(self.num_train_steps, tf.float32)
        decayed = init_lr * (1.0 - tf.minimum(step, steps) / steps)
        if not self.num_warmup_steps:
            return decayed
        warmup_steps = tf.constant(self.num_warmup_steps, tf.float32)
        return tf.where(step < warmup_steps, init_lr * (step / warmup_steps), decayed)

    def get_config(self):
        return {"init_lr": self.init_lr, "num_train_steps": self.num_train_steps,
                "num_warmup_steps": self.num_warmup_steps}


class Constants(typing.NamedTuple):
    """What the update of one variable is compiled with; `ema_decay` None: no moving average is kept."""

    beta_1: float
    beta_2: float
    epsilon: float
    weight_decay_rate: float
    excluded: bool
    ema_decay: float | None


def adam(weight, m, v, step, constants):
    """By how much a weight falls at a rate of 1, from its new moments, not corrected for their start at 0."""
    update = m / (tf.sqrt(v) + constants.epsilon)
    decayed = constants.weight_decay_rate and not constants.excluded
    return update + constants.weight_decay_rate * weight if decayed else update


def lamb(weight, m, v, step, constants):
    """As `adam`, from corrected moments, and scaled to the length of the weight, where neither is 0."""
    # 1 - beta ** step, without the loss of digits where beta is near 1.
    share_1, share_2 = (-tf.math.expm1(step * np.log(beta)) for beta in (constants.beta_1, constants.beta_2))
    update = adam(weight, m / share_1, v / share_2, step, constants)
    if constants.excluded:
        return update
    weight_norm, update_norm = tf.norm(weight), tf.norm(update)
    return update * tf.where((weight_norm > 0.0) & (update_norm > 0.0), weight_norm / update_norm, 1.0)


# XLA even where the model runs without it: one pass over memory instead of a dozen. A function of one variable, so
# that only as many are compiled as there are shapes.
@tf.function(jit_compile=True)
def next_values(rule, values, gradient, learning_rate, gradient_scale, finite, step, constants):
    """The next [weight, m, v] or [weight, m, v, average] of one variable; the same again where not `finite`.

    `values` and `gradient` are tensors of one shape, `finite` is a bool tensor, the rate, the scale and `step`, which
    counts from 1, are float32 tensors.
    """
    weight, m, v, *average = values
    gradient *= gradient_scale
    m = constants.beta_1 * m + (1.0 - constants.beta_1) * gradient
    v = constants.beta_2 * v + (1.0 - constants.beta_2) * tf.square(gradient)
    weight -= learning_rate * rule(weight, m, v, step, constants)
    average = [constants.ema_decay * old + (1.0 - constants.ema_decay) * weight for old in average]
    return [tf.where(finite, new, old) for new, old in zip([weight, m, v, *average], values)]


@keras.saving.register_keras_serializable("bert_tf")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam whose moments are not corrected for their start at 0, with weight decay outside the moments.

    update = m / (sqrt(v) + epsilon) + weight_decay_rate * w;  w -= learning_rate * update. A variable whose name holds
    one of `exclude_from_weight_decay` (regular expressions) is not decayed. With `ema_decay` a moving average of each
    weight is kept: average = ema_decay * average + (1 - ema_decay) * w, from the weight's value when the optimizer is
    built. `layer_decay` lowers the rate of `num_layers` one by one (`adaptation.rate_factors`). Source: the original,
    after Kingma and Ba (2014) and Loshchilov and Hutter (2017).
    """

    rule = staticmethod(adam)

    def __init__(self, learning_rate=5e-5, weight_decay_rate=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-6,
                 exclude_from_weight_decay=NOT_DECAYED, ema_decay=None, layer_decay=1.0, num_layers=0, name=None,
                 **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        if ema_decay is not None and not 0.0 <= ema_decay < 1.0:
            raise UserError(f"--ema_decay={ema_decay} must be from 0 to below 1")
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay = tuple(exclude_from_weight_decay)
        self.ema_decay = ema_decay
        self.layer_decay = layer_decay
        self.num_layers = num_layers

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._names = [variable_name(variable.path) for variable in variables]
        self._rate_factors = adaptation.rate_factors(self._names, self.layer_decay, self.num_layers)
        self._slots = {slot: self.add_optimizer_variables(variables, slot) for slot in ("adam_m", "adam_v")}
        if self.ema_decay is not None:
            self._slots[AVERAGE] = self.add_optimizer_variables(variables, AVERAGE)
            self.start_averages()

    def start_averages(self):
        """Gives each moving average the present value of its weight."""
        with tf.init_scope():
            for average, variable in zip(self._slots[AVERAGE], self._trainable_variables):
                average.assign(variable)

    def averages(self):
        """The moving averages of the variables, in their order; [] where none are kept."""
        return self._slots.get(AVERAGE, [])

    def _is_excluded(self, name):
        return any(re.search(pattern, name) for pattern in self.exclude_from_weight_decay)

    def is_decayed(self, name):
        """Whether the variable of this name is decayed."""
        return bool(self.weight_decay_rate) and not self._is_excluded(name)

    def decay_groups(self):
        """The names of the variables that are decayed, and of those that are not."""
        return ([name for name in self._names if self.is_decayed(name)],
                [name for name in self._names if not self.is_decayed(name)])

    def slots(self):
        """What is kept beside every variable, under the original's names: `<name>/adam_m`, `<name>/adam_v`, ..."""
        return {f"{name}/{slot}": variables[index]
                for index, name in enumerate(self._names) for slot, variables in self._slots.items()}

    def update_step(self, gradient, variable, learning_rate, gradient_scale=1.0, finite=True):
        """Applies one gradient times `gradient_scale`, or changes nothing where `finite`, a bool scalar, is False.

        Equal rows of a sparse gradient are added first.
        """
        index = self._get_variable_index(variable)
        variables = [variable, *(slot[index] for slot in self._slots.values())]
        constants = Constants(self.beta_1, self.beta_2, self.epsilon, self.weight_decay_rate,
                              self._is_excluded(self._names[index]), self.ema_decay)
        values = next_values(
            self.rule, [tf.convert_to_tensor(value) for value in variables], tf.convert_to_tensor(gradient),
            tf.cast(learning_rate, tf.float32) * self._rate_factors[index], tf.cast(gradient_scale, tf.float32),
            tf.convert_to_tensor(finite), tf.cast(self.iterations + 1, tf.float32), constants)
        for place, value in zip(variables, values):
            self.assign(place, value)

    def get_config(self):
        names = ("weight_decay_rate", "beta_1", "beta_2", "epsilon", "exclude_from_weight_decay", "ema_decay",
                 "layer_decay", "num_layers")
        config = {name: value for name, value in super().get_config().items() if name != "weight_decay"}
        return {**config, **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable("bert_tf")
class Lamb(AdamWeightDecay):
    """LAMB: Adam, its moments corrected, each variable's update scaled to the length of its weight.

    update = corrected m / (sqrt(corrected v) + epsilon) + weight_decay_rate * w;
    w -= learning_rate * |w| / |update| * update. What is not decayed is not scaled either, nor is what has the length
    0. Source: You et al. (2020). Not `keras.optimizers.Lamb`, which decays outside the update that is scaled, and
    scales LayerNorm and biases too.
    """

    rule = staticmethod(lamb)


OPTIMIZERS = {"adam": AdamWeightDecay, "lamb": Lamb}


def create_optimizer(init_lr, num_train_steps, num_warmup_steps, name="adam", **settings):
    """An optimizer by its name in OPTIMIZERS, with BERT's schedule and further settings of `AdamWeightDecay`.

    An unknown name is a `UserError`. The clip to a global norm of 1 belongs to the training step.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"--optimizer={name} is unknown; use one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](WarmupLinearDecay(init_lr, num_train_steps, num_warmup_steps), **settings)
