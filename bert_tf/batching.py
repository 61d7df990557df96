"""Examples to batches: in which order they come, how far they are padded, where their tokens stand.

Everything here is NumPy, and a function of its arguments alone: the position in the data is a number that a run can
resume from.

Shapes: B batch, S sequence, T tokens in a batch without padding, P masked positions.
"""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from bert_tf.errors import UserError

POOL = 64  # batches whose examples are sorted by length together


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


def group_by_length(order, lengths, batch_size, first, rng):
    """An order int64 [N] in which each batch holds examples of like `lengths` [N].

    The batches begin at `first`, `first + batch_size` and so on; what lies before is the end of an earlier batch.
    Examples are sorted within pools of `POOL` batches, and full batches drawn in an order of their own, so that no
    length comes early or late.
    """
    pools = np.arange(len(order)) // (POOL * batch_size)
    batches = np.split(order[np.lexsort([lengths[order], pools])], range(first, len(order), batch_size))
    full = [number for number, batch in enumerate(batches) if len(batch) == batch_size]
    drawn = iter(rng.permutation(full))
    return np.concatenate([batches[next(drawn)] if len(batch) == batch_size else batch for batch in batches])


def training_order(num_examples, batch_size, seed, start=0, shuffle_buffer=0, end=None, lengths=None):
    """Yields the example numbers int64 [batch_size] of each batch, after `start` examples.

    Every epoch has an order of its own (`epoch_order`, with `lengths` int [num_examples] then `group_by_length`); a
    batch may begin in one epoch and end in the next. The last batch is short where `end` examples in all do not fill
    it; without `end` there is no last.
    """
    position, order, ordered_epoch = start, None, None
    while end is None or position < end:
        numbers, wanted = [], batch_size if end is None else min(batch_size, end - position)
        while len(numbers) < wanted:
            epoch, offset = divmod(position, num_examples)
            if epoch != ordered_epoch:
                order, ordered_epoch = epoch_order(num_examples, seed, epoch, shuffle_buffer), epoch
                if lengths is not None:
                    order = group_by_length(order, lengths, batch_size, -epoch * num_examples % batch_size,
                                            np.random.RandomState([seed, epoch, 1]))
            taken = order[offset:offset + wanted - len(numbers)]
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
    tokens in eighths of all places. `static` is for TPUs: every batch has the full length and computes every place.
    """

    def __init__(self, max_seq_length, xla, static=False):
        self.max_seq_length = max_seq_length
        self.xla = xla
        self.static = static

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

    `batch` maps names to arrays; those under "input_ids", "input_mask" and "segment_ids" are cut. Static `sizes` leave
    it whole.
    """
    if sizes.static:
        return batch
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


@dataclasses.dataclass(frozen=True)
class Split:
    """How the examples of a step are dealt to replicas and, one after another on each, to micro-batches.

    `replicas` counts those of all workers; this worker has `local` of them, from `first` on.
    """

    replicas: int = 1
    accumulation: int = 1
    first: int = 0
    local: int = 1

    def deal(self, numbers):
        """`local` lists of `accumulation` arrays: neighbouring examples, as evenly as can be; some may be empty."""
        parts = np.array_split(numbers, self.replicas * self.accumulation)
        starts = range(self.first * self.accumulation, (self.first + self.local) * self.accumulation,
                       self.accumulation)
        return [parts[start:start + self.accumulation] for start in starts]


class Feed:
    """Batches made ahead of use in another thread; a bad example ends them early and is kept in `error`.

    `order(start)` yields the example numbers of each batch after `start` examples; `make(numbers)` the batch: names
    to arrays, of the same names, ranks and dtypes each time, weights under names that end in `_weights`;
    `where(number)` says in words where an example comes from. With `rows` every micro-batch has so many, filled up
    with examples of no weight. `shapes` are those of all batches so far.
    """

    def __init__(self, order, make, where=str, split=Split(), rows=None):
        self.order = order
        self.make = make
        self.where = where
        self.split = split
        self.rows = rows
        self.error = None
        self.shapes = set()

    def dataset(self, start=0, prefetch=4):
        """A `tf.data.Dataset` without end of pairs; `UserError` when the first batch is bad.

        Each holds, for each replica of this worker, the micro-batches of a step, and whether they are real (bool):
        after the last batch or an error the one before comes again, not real. So workers can stop at the same step.
        """
        first = self.step(next(iter(self.order(start))))
        signature = tf.nest.map_structure(lambda array: tf.TensorSpec([None] * array.ndim, array.dtype), first)
        return tf.data.Dataset.from_generator(
            lambda: self._steps(start, first), output_signature=(signature, tf.TensorSpec([], tf.bool))
        ).prefetch(prefetch)

    def _steps(self, start, parts):
        try:
            for numbers in self.order(start):
                parts = self.step(numbers)
                yield parts, True
        except UserError as error:
            self.error = error
        except OSError as error:
            self.error = UserError(f"the data cannot be read any more ({error})")
        while True:
            yield parts, False

    def step(self, numbers):
        """For each replica of this worker the micro-batches of the examples `numbers`."""
        return tuple(tuple(self._micro_batch(part, numbers[:1]) for part in dealt)
                     for dealt in self.split.deal(numbers))

    def _micro_batch(self, part, filler):
        """The examples `part` as a batch; `filler` comes without weight where rows are missing, or all."""
        missing = max(1, self.rows or 1) - len(part)
        batch = self.make(np.concatenate([part, np.repeat(filler, max(0, missing))]))
        if missing > 0:
            is_wanted = np.arange(len(part) + missing) < len(part)
            batch = {name: np.where(is_wanted.reshape(-1, *[1] * (array.ndim - 1)), array, np.zeros([], array.dtype))
                     if name.endswith("_weights") else array for name, array in batch.items()}
        self.shapes.add(tuple(array.shape for array in batch.values()))
        return batch
