"""The training step: forward, backward, clip, update; any number of them on the device in one call.

An objective is a module (such as `pretraining.objective`) with

  EPSILON                             loss name -> what is added to its weight before dividing
  forward(model, batch, dropout_key)  -> the model's outputs
  weights(batch)                      -> loss name -> its weight, float32 scalar
  sums(outputs, batch)                -> loss name -> its sum, float32 scalar
  accuracy_sums(outputs, batch)       -> loss name -> the part of its weight that was predicted right

The loss that is minimised is the sum over names of sum / (weight + epsilon). Sums and weights, never means: so they
can be added over parts of a batch before they are divided, and the parts give the gradient of the whole.
"""

import tensorflow as tf


def scalar_names(objective):
    """What a step reports, in order: losses, rate, gradient norm before the clip, examples, tokens without padding."""
    return ("loss", *objective.EPSILON, "learning_rate", "gradient_norm", "examples", "tokens")


def build_train_loop(model, objective, optimizer, runtime, clip_norm=1.0):
    """A function `train(iterator, steps)` that runs training steps on the device.

    `iterator` yields batches (dictionaries of tensors; `dropout` masks depend on the seed and the step alone), `steps`
    is an int32 scalar tensor. Returns float32 [steps, K] with the values of `scalar_names(objective)`; fewer rows
    where the data ends early.
    """
    variables = model.trainable_variables
    optimizer.build(variables)
    seed = tf.constant([runtime.seed, 0], tf.int32)

    @tf.function(jit_compile=runtime.xla, reduce_retracing=True)
    def losses_and_gradients(batch, denominators, dropout_key):
        with tf.GradientTape() as tape:
            sums = objective.sums(objective.forward(model, batch, dropout_key), batch)
            losses = {name: total / denominators[name] for name, total in sums.items()}
            loss = tf.add_n(list(losses.values()))
        gradients = tape.gradient(loss, variables)
        # The norm of a sparse gradient is taken before equal rows are added, as in the original.
        sparse = {index: tf.nn.l2_loss(gradient.values) for index, gradient in enumerate(gradients)
                  if isinstance(gradient, tf.IndexedSlices)}
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        return {"loss": loss, **losses}, dense, sparse

    def clip_and_apply(gradients, sparse):
        # A variable that the loss does not reach stays as it is, as in the original.
        reached = [(gradient, variable) for gradient, variable in zip(gradients, variables) if gradient is not None]
        halves = [sparse[index] if index in sparse else tf.nn.l2_loss(gradient)
                  for index, gradient in enumerate(gradients) if gradient is not None]
        norm = tf.sqrt(2.0 * tf.add_n(halves))
        rate = optimizer.learning_rate
        for gradient, variable in reached:
            optimizer.update_step(gradient, variable, rate, gradient_scale=clip_norm / tf.maximum(norm, clip_norm))
        with tf.control_dependencies([norm]):  # else a step is counted whose batch could not be read
            optimizer.iterations.assign_add(1)
        return {"learning_rate": tf.cast(rate, tf.float32), "gradient_norm": norm}

    def step(batch):
        weights = objective.weights(batch)
        denominators = {name: weights[name] + epsilon for name, epsilon in objective.EPSILON.items()}
        step_number = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int32)
        dropout_key = tf.random.experimental.stateless_fold_in(seed, step_number)
        losses, gradients, sparse = losses_and_gradients(batch, denominators, dropout_key)
        scalars = {**losses, **clip_and_apply(gradients, sparse),
                   "examples": tf.reduce_sum(batch["example_weights"]),
                   "tokens": tf.cast(tf.reduce_sum(batch["input_mask"]), tf.float32)}
        return tf.stack([scalars[name] for name in scalar_names(objective)])

    @tf.function(reduce_retracing=True)
    def train(iterator, steps):
        rows = tf.TensorArray(tf.float32, size=steps, element_shape=[len(scalar_names(objective))])
        # Not `next`, whose failure at the data's end would cut the updates of the step before short.
        done, batch = 0, iterator.get_next_as_optional()
        while tf.logical_and(done < steps, batch.has_value()):
            rows = rows.write(done, step(batch.get_value()))
            done += 1
            if done < steps:
                batch = iterator.get_next_as_optional()
        return rows.stack()[:done]

    return train
