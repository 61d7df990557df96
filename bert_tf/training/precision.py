"""Loss scaling for float16, whose small gradients would else be zero (Micikevicius et al., 2017)."""

import keras
import tensorflow as tf

INITIAL_SCALE = 2.0 ** 15
LEAST_SCALE = 2.0 ** -20
GREATEST_SCALE = 2.0 ** 24
STEPS_TO_GROW = 2000
# So many steps in a row without a finite gradient are no accident of the scale any more.
MOST_SKIPPED = 50


class LossScale:
    """The number that the loss is multiplied by before the backward pass, and the gradients divided by after it.

    Halved after each step whose gradient is not finite, doubled after `STEPS_TO_GROW` finite ones in a row.
    """

    def __init__(self):
        self.scale = keras.Variable(INITIAL_SCALE, trainable=False, dtype="float32", name="loss_scale")
        self.good_steps = keras.Variable(0, trainable=False, dtype="int32", name="good_steps")

    def slots(self):
        """What a checkpoint holds of it, by name."""
        return {"run/loss_scale": self.scale, "run/good_steps": self.good_steps}

    def next(self, finite):
        """The (scale, good steps) that follow a step whose gradient was finite or not, a bool tensor."""
        scale, good_steps = tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.good_steps) + 1
        grows = good_steps >= STEPS_TO_GROW
        grown = tf.where(grows, tf.minimum(scale * 2.0, GREATEST_SCALE), scale)
        shrunk = tf.maximum(scale / 2.0, LEAST_SCALE)
        return tf.where(finite, grown, shrunk), tf.where(finite & ~grows, good_steps, 0)
