"""The original's optimizer: Adam with decoupled weight decay and without bias correction, and its learning rate."""

import re

import keras
import tensorflow as tf

from bert_tf.names import variable_name

# Variables whose names hold one of these are not decayed.
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


# XLA even where the model runs without it: one pass over memory instead of a dozen. A function of one variable, so
# that only as many are compiled as there are shapes.
@tf.function(jit_compile=True)
def adam(weight, m, v, gradient, learning_rate, gradient_scale, decay, beta_1, beta_2, epsilon):
    """The next (weight, m, v) of one variable, all of its shape; the rate and the scale are float32 tensors."""
    gradient *= gradient_scale
    m = beta_1 * m + (1.0 - beta_1) * gradient
    v = beta_2 * v + (1.0 - beta_2) * tf.square(gradient)
    update = m / (tf.sqrt(v) + epsilon)
    if decay:
        update += decay * weight
    return weight - learning_rate * update, m, v


@keras.saving.register_keras_serializable("bert_tf")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam whose moments are not corrected for their start at 0, with weight decay outside the moments.

    update = m / (sqrt(v) + epsilon) + weight_decay_rate * w;  w -= learning_rate * update. A variable whose name holds
    one of `exclude_from_weight_decay` (regular expressions) is not decayed. Source: the original, after Kingma and Ba
    (2014) and Loshchilov and Hutter (2017).
    """

    def __init__(self, learning_rate=5e-5, weight_decay_rate=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-6,
                 exclude_from_weight_decay=NOT_DECAYED, name="adam_weight_decay", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay = tuple(exclude_from_weight_decay)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._names = [variable_name(variable.path) for variable in variables]
        self._m, self._v = self.add_optimizer_variables(variables, ["adam_m", "adam_v"])

    def is_decayed(self, name):
        """Whether the variable of this name is decayed."""
        return bool(self.weight_decay_rate) and not any(re.search(pattern, name)
                                                        for pattern in self.exclude_from_weight_decay)

    def decay_groups(self):
        """The names of the variables that are decayed, and of those that are not."""
        return ([name for name in self._names if self.is_decayed(name)],
                [name for name in self._names if not self.is_decayed(name)])

    def slots(self):
        """The moments of every variable under their names in the original's checkpoints, `<name>/adam_m` and `_v`."""
        moments = zip(self._names, self._m, self._v)
        return {f"{name}/{slot}": variable
                for name, m, v in moments for slot, variable in (("adam_m", m), ("adam_v", v))}

    def update_step(self, gradient, variable, learning_rate, gradient_scale=1.0):
        """Applies one gradient times `gradient_scale`; equal rows of a sparse one are added first."""
        index = self._get_variable_index(variable)
        m, v = self._m[index], self._v[index]
        decay = self.weight_decay_rate if self.is_decayed(self._names[index]) else 0.0
        next_weight, next_m, next_v = adam(
            tf.convert_to_tensor(variable), tf.convert_to_tensor(m), tf.convert_to_tensor(v),
            tf.convert_to_tensor(gradient), tf.cast(learning_rate, tf.float32), tf.cast(gradient_scale, tf.float32),
            decay, self.beta_1, self.beta_2, self.epsilon)
        self.assign(variable, next_weight)
        self.assign(m, next_m)
        self.assign(v, next_v)

    def get_config(self):
        names = ("weight_decay_rate", "beta_1", "beta_2", "epsilon", "exclude_from_weight_decay")
        config = {name: value for name, value in super().get_config().items() if name != "weight_decay"}
        return {**config, **{name: getattr(self, name) for name in names}}


def create_optimizer(init_lr, num_train_steps, num_warmup_steps):
    """BERT's optimizer with its schedule; the clip to a global norm of 1 belongs to the training step."""
    return AdamWeightDecay(WarmupLinearDecay(init_lr, num_train_steps, num_warmup_steps))
