"""Examples as the model reads them, held without padding; the features of every task are such.

Shapes: N examples, T tokens of all examples, B batch, S sequence.
"""

import dataclasses
import hashlib

import numpy as np


@dataclasses.dataclass(frozen=True)
class Unpadded:
    """The N examples of the file `path`: n has the ids from `row_splits[n]` to `row_splits[n + 1]`.

    `input_ids` int32 [T], `row_splits` int64 [N + 1]. A task's features add what else they hold, all of it arrays.
    """

    path: str
    input_ids: np.ndarray
    row_splits: np.ndarray

    def __len__(self):
        return len(self.row_splits) - 1

    @property
    def lengths(self):
        """The number of ids of each example, int64 [N]."""
        return np.diff(self.row_splits)

    @property
    def arrays(self):
        """Every array by its name, for a cache: `type(self)(path, **arrays)` makes the features of them again."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "path"]
        return {name: getattr(self, name) for name in names}

    def digest_of(self, *names):
        """A hexadecimal number that features share whose ids and arrays `names` are equal."""
        hashed = hashlib.sha256()
        for name in ("input_ids", "row_splits", *names):
            hashed.update(getattr(self, name).reshape(-1))
        return hashed.hexdigest()

    def lay_out(self, numbers, length):
        """Where the examples `numbers` int64 [B] stand in a batch: `(real, tokens, input_ids)`.

        `real` bool [B, S] are the places that hold a token, S being `length`; `tokens` int64 their numbers among all
        T, row after row; `input_ids` int32 [B, S] has 0 elsewhere.
        """
        starts, places = self.row_splits[numbers], np.arange(length)
        real = places < (self.row_splits[numbers + 1] - starts)[:, None]
        tokens = (starts[:, None] + places)[real]
        input_ids = np.zeros(real.shape, np.int32)
        input_ids[real] = self.input_ids[tokens]
        return real, tokens, input_ids
