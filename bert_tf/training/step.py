"""The training step: forward, backward, all-reduce, clip, update; any number of them on the device in one call.

An objective is a module (such as `pretraining.objective`) with

  EPSILON                             loss name -> what is added to its weight before dividing
  forward(model, batch, dropout_key)  -> the model's outputs
  weights(batch)                      -> loss name -> its weight, float32 scalar
  sums(outputs, batch)                -> loss name -> its sum, float32 scalar
  accuracy_sums(outputs, batch)       -> loss name -> the part of its weight that was predicted right
  multiplications(config)             -> loss name -> those of its head for each unit of weight

The loss that is minimised is the sum over names of sum / (weight + epsilon). Sums and weights, never means: weights
are added over micro-batches and replicas before anything is divided by them, and then the parts give the gradient of
the whole.

The functions here run under the scope of a `tf.distribute.Strategy`, the default one included.
"""

import tensorflow as tf

from bert_tf.training import speed

SUM = tf.distribute.ReduceOp.SUM
# What a step reports after its losses, in order. `gradient_norm` is taken before the clip; `skipped` is 1 where the
# weights stayed, since the gradient was not finite; `rows` are those the encoder computed, padding included.
SCALARS = ("learning_rate", "gradient_norm", "loss_scale", "skipped", "examples", "tokens", "rows", "flops")


def scalar_names(objective):
    """What a step reports, in order: the loss, its parts and `SCALARS`."""
    return ("loss", *objective.EPSILON, *SCALARS)


def build_train_loop(model, objective, optimizer, runtime, clip_norm=1.0, loss_scale=None):
    """A function `train(iterator, steps)` that runs training steps on the device.

    `iterator` is one of a `batching.Feed`'s dataset; dropout masks depend on seed, step, replica and micro-batch
    alone. `steps` is an int32 scalar tensor. `clip_norm` 0 does not clip. Returns float32 [steps, K] with the values
    of `scalar_names(objective)`; fewer rows where the data ends early. A step whose gradient is not finite changes
    neither weights nor moments.
    """
    strategy = tf.distribute.get_strategy()
    variables = model.trainable_variables
    optimizer.build(variables)
    accumulate = build_accumulation(model, objective, runtime, variables)
    update = build_update(optimizer, variables, clip_norm, loss_scale)

    def replica_step(micro_batches, is_real):
        totals = count(micro_batches, is_real, objective)
        scale = tf.convert_to_tensor(loss_scale.scale) if loss_scale else tf.constant(1.0)
        losses, halves, gradients = accumulate(micro_batches, totals, scale, optimizer.iterations)
        all_real = totals["real"] == float(strategy.num_replicas_in_sync)
        weights = {name: totals[name] for name in objective.EPSILON}
        scalars = {**totals, **losses, "loss": tf.add_n(list(losses.values())), "loss_scale": scale,
                   "flops": speed.step_flops(model.config, objective.multiplications(model.config), totals["tokens"],
                                             totals["pairs"], weights)}
        scalars |= update(gradients, halves, scale, scalars["loss"], all_real)
        return tf.stack([scalars[name] for name in scalar_names(objective)]), all_real

    @tf.function(reduce_retracing=True)
    def train(iterator, steps):
        rows = tf.TensorArray(tf.float32, size=steps, element_shape=[len(scalar_names(objective))])
        done = 0
        for _ in tf.range(steps):
            parts, is_real = next(iterator)
            row, all_real = strategy.run(replica_step, (per_replica(strategy, parts), is_real))
            if not strategy.experimental_local_results(all_real)[0]:
                break
            rows = rows.write(done, strategy.experimental_local_results(row)[0])
            done += 1
        return rows.stack()[:done]

    return train


def per_replica(strategy, parts):
    """This worker's parts, one for each of its replicas, as the value that `strategy.run` deals out."""
    remaining = iter(parts)
    return strategy.experimental_distribute_values_from_function(lambda _: next(remaining))


def all_reduce(values):
    """A list of tensors, each summed over all replicas."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return values
    return tf.distribute.get_replica_context().all_reduce(SUM, values)


def count(micro_batches, is_real, objective):
    """The weight of each loss, and how many examples, tokens, rows, pairs of tokens; over all replicas."""
    def of(batch):
        mask = tf.cast(batch["input_mask"], tf.float32) * batch["example_weights"][:, None]
        lengths = tf.reduce_sum(mask, axis=1)
        rows = tf.size(batch["token_indices"] if "token_indices" in batch else batch["input_mask"])
        return {**objective.weights(batch), "examples": tf.reduce_sum(batch["example_weights"]),
                "tokens": tf.reduce_sum(lengths), "pairs": tf.reduce_sum(tf.square(lengths)),
                "rows": tf.cast(rows, tf.float32)}

    counts = [of(batch) for batch in micro_batches]
    sums = {name: tf.add_n([part[name] for part in counts]) for name in counts[0]}
    sums["real"] = tf.cast(is_real, tf.float32)
    return dict(zip(sums, tf.unstack(all_reduce([tf.stack(list(sums.values()))])[0])))


def build_accumulation(model, objective, runtime, variables):
    """A function from micro-batches to losses by name, half squared norms and gradients, over all replicas.

    Gradients are None for variables that the loss does not reach; they and the norms are times `scale`.
    """
    seed = tf.constant([runtime.seed, 0], tf.int32)

    @tf.function(jit_compile=runtime.xla, reduce_retracing=True)
    def losses_and_gradients(batch, denominators, scale, dropout_key):
        with tf.GradientTape() as tape:
            sums = objective.sums(objective.forward(model, batch, dropout_key), batch)
            losses = [sums[name] / denominators[name] for name in objective.EPSILON]
            loss = tf.add_n(losses) * scale
        gradients = tape.gradient(loss, variables)
        # The norm of a sparse gradient is taken before equal rows are added, as in the original.
        halves = {str(index): tf.nn.l2_loss(gradient.values) for index, gradient in enumerate(gradients)
                  if isinstance(gradient, tf.IndexedSlices)}
        dense = {str(index): tf.convert_to_tensor(gradient) for index, gradient in enumerate(gradients)
                 if gradient is not None}
        return tf.stack(losses), halves, dense

    def accumulate(micro_batches, totals, scale, iterations):
        denominators = {name: totals[name] + epsilon for name, epsilon in objective.EPSILON.items()}
        step_key = tf.random.experimental.stateless_fold_in(seed, tf.cast(tf.convert_to_tensor(iterations), tf.int32))
        first = tf.distribute.get_replica_context().replica_id_in_sync_group * len(micro_batches)
        total = None
        for number, batch in enumerate(micro_batches):
            # One after another, so that only one micro-batch's activations are in memory.
            with tf.control_dependencies(tf.nest.flatten(total) if total else []):
                part = losses_and_gradients(batch, denominators, scale,
                                            tf.random.experimental.stateless_fold_in(step_key, first + number))
            total = tf.nest.map_structure(tf.add, total, part) if total else part
        total = tf.nest.pack_sequence_as(total, all_reduce(tf.nest.flatten(total)))
        losses, halves, dense = total
        halves = {int(index): half for index, half in halves.items()}
        gradients = [dense.get(str(index)) for index in range(len(variables))]
        return dict(zip(objective.EPSILON, tf.unstack(losses))), halves, gradients

    return accumulate


def build_update(optimizer, variables, clip_norm, loss_scale):
    """A function that clips gradients by their global norm and updates variables, moments and loss scale once."""
    def update(gradients, halves, scale, loss, all_real):
        # A variable that the loss does not reach stays as it is, as in the original.
        reached = [(gradient, variable) for gradient, variable in zip(gradients, variables) if gradient is not None]
        halves = [halves[index] if index in halves else tf.nn.l2_loss(gradient)
                  for index, gradient in enumerate(gradients) if gradient is not None]
        norm = tf.sqrt(2.0 * tf.add_n(halves)) / scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(loss)
        clipped = clip_norm / tf.maximum(norm, clip_norm) if clip_norm else tf.constant(1.0)
        rate = tf.cast(optimizer.learning_rate, tf.float32)
        new_values = [(optimizer.iterations, optimizer.iterations + tf.cast(all_real, optimizer.iterations.dtype))]
        if loss_scale:
            moved = zip((loss_scale.scale, loss_scale.good_steps), loss_scale.next(finite))
            new_values += [(variable, tf.where(all_real, value, variable)) for variable, value in moved]
        tf.distribute.get_replica_context().merge_call(
            apply, args=([gradient for gradient, _ in reached], [value for _, value in new_values], rate,
                         clipped / scale, finite & all_real),
            kwargs={"variables": [variable for _, variable in reached],
                    "others": [variable for variable, _ in new_values]})
        return {"learning_rate": rate, "gradient_norm": norm, "skipped": 1.0 - tf.cast(finite, tf.float32)}

    def apply(strategy, gradients, new_values, rate, gradient_scale, finite, variables, others):
        def update_one(variable, gradient, rate, gradient_scale, finite):
            optimizer.update_step(gradient, variable, rate, gradient_scale, finite)

        for variable, gradient in zip(variables, gradients):
            strategy.extended.update(variable.value, update_one, args=(gradient, rate, gradient_scale, finite),
                                     group=False)
        for variable, value in zip(others, new_values):
            strategy.extended.update(variable.value, lambda one, value: one.assign(value), args=(value,), group=False)

    return update
