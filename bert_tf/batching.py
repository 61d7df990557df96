"""Examples to batches: in which order they come, how far they are padded, where their tokens stand.

Everything here is NumPy, and a function of its arguments alone: the position in the data is a number that a run can
resume from.

Shapes: B batch, S sequence, T tokens in a batch without padding, P masked positions.
"""

import itertools

import numpy as np
import tensorflow as tf

from bert_tf.errors import UserError


def epoch_order(num_examples, seed, epoch, shuffle_buffer=0):
    """The order int64 [num_examples] of an epoch's examples, all of them once.

    `shuffle_buffer` 0 shuffles them all; N draws each from the next N that were not drawn yet, so that files are read
    nearly from front to back.
    """
    # RandomState, not Generator: its stream is frozen, so that a run can resume under another NumPy.
    rng = np.random.RandomState([seed, epoch])
    if not 0 < shuffle_buffer < num_examples:
        return rng.permutation(num_examples)
    order = np.arange(num_examples)
    buffer = list(range(shuffle_buffer))
    draws = rng.randint(0, shuffle_buffer, num_examples - shuffle_buffer)
    for place, (draw, follower) in enumerate(zip(draws.tolist(), range(shuffle_buffer, num_examples))):
        order[place], buffer[draw] = buffer[draw], follower
    order[num_examples - shuffle_buffer:] = rng.permutation(buffer)
    return order


def training_order(num_examples, batch_size, seed, start=0, shuffle_buffer=0):
    """Yields the example numbers int64 [batch_size] of each batch, for ever, after `start` examples.

    Every epoch has an order of its own (`epoch_order`); a batch may begin in one epoch and end in the next.
    """
    position, order, ordered_epoch = start, None, None
    while True:
        numbers = []
        while len(numbers) < batch_size:
            epoch, offset = divmod(position, num_examples)
            if epoch != ordered_epoch:
                order, ordered_epoch = epoch_order(num_examples, seed, epoch, shuffle_buffer), epoch
            taken = order[offset:offset + batch_size - len(numbers)]
            numbers.extend(taken)
            position += len(taken)
        yield np.array(numbers)


def evaluation_order(num_examples, batch_size, num_batches):
    """Yields the example numbers of `num_batches` full batches in file order, from the first again after the last."""
    numbers = itertools.cycle(range(num_examples))
    for _ in range(num_batches):
        yield np.fromiter(itertools.islice(numbers, batch_size), np.int64, batch_size)


class Sizes:
    """The few sizes that batches are rounded up to, so that XLA compiles a handful of shapes.

    Without XLA the steps are small, for every row counts; with it lengths come in quarters of `max_seq_length` and
    tokens in eighths of all places.
    """

    def __init__(self, max_seq_length, xla):
        self.max_seq_length = max_seq_length
        self.xla = xla

    def length(self, longest):
        """The padded length of a batch whose longest example has `longest` tokens."""
        step = -(-self.max_seq_length // 4) if self.xla else 8
        return min(-(-longest // step) * step, self.max_seq_length)

    def tokens(self, count, places):
        """The rows T for `count` tokens in `places` = B * S; above `count` unless every place holds a token."""
        step = -(-places // 8) if self.xla else 16
        return min(-(-(count + 1) // step) * step, places)


def computed_places(input_mask, positions=None):
    """Which places bool [B, S] the encoder must compute: tokens, and whatever a head reads (`positions` int [B, P]).

    The same rule as `unpadding.find_token_indices`.
    """
    real = input_mask != 0
    real |= ~real.any(axis=1, keepdims=True)
    real[:, 0] = True
    if positions is not None:
        np.put_along_axis(real, positions, True, axis=1)
    return real


def unpad(batch, sizes, positions=None):
    """Cuts a batch's [B, max_seq_length] arrays to its own length and adds `token_indices` int32 [T].

    `batch` maps names to arrays; those under "input_ids", "input_mask" and "segment_ids" are cut.
    """
    real = computed_places(batch["input_mask"], positions)
    longest = int(real.any(axis=0).nonzero()[0][-1]) + 1
    length = sizes.length(longest)
    cut = {name: batch[name][:, :length] for name in ("input_ids", "input_mask", "segment_ids")}
    return {**batch, **cut, "token_indices": token_indices(real[:, :length], sizes)}


def token_indices(real, sizes):
    """The places int32 [T] in B * S that the encoder computes: those of `real` bool [B, S], then padding to fill T."""
    places = np.flatnonzero(real)
    padding = np.flatnonzero(~real)[:sizes.tokens(places.size, real.size) - places.size]
    return np.concatenate([places, padding]).astype(np.int32)


class Feed:
    """Batches made ahead of use in another thread; a bad example ends them early and is kept in `error`.

    `order()` yields the example numbers of each batch, `make(numbers)` the batch: names to arrays, of the same names,
    ranks and dtypes each time.
    """

    def __init__(self, order, make):
        self.order = order
        self.make = make
        self.error = None

    def dataset(self, prefetch=4):
        """A `tf.data.Dataset` of the batches; `UserError` when the first is bad."""
        first = self.make(next(iter(self.order())))
        signature = {name: tf.TensorSpec([None] * array.ndim, array.dtype) for name, array in first.items()}
        return tf.data.Dataset.from_generator(self._batches, output_signature=signature).prefetch(prefetch)

    def _batches(self):
        try:
            yield from map(self.make, self.order())
        except UserError as error:
            self.error = error
        except OSError as error:
            self.error = UserError(f"the data cannot be read any more ({error})")
