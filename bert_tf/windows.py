"""The rule for texts that are read in overlapping windows: where a token counts.

Shapes: D tokens of a text.
"""

import numpy as np


def find_max_context(starts, ends):
    """For each token the window int32 [D] that has most tokens on both sides of it.

    Windows go from `starts` to `ends` and cover all tokens. A window's score for a token is the smaller of the numbers
    of tokens before and after it there, and 0.01 of the window's length; of equal ones the first is taken. Source: the
    original.
    """
    num_tokens = max(ends, default=0)
    best, scores = np.zeros(num_tokens, np.int32), np.full(num_tokens, -1.0)
    for number, (start, end) in enumerate(zip(starts, ends)):
        before = np.arange(end - start)
        score = np.minimum(before, before[::-1]) + 0.01 * (end - start)
        is_better = score > scores[start:end]
        best[start:end][is_better] = number
        scores[start:end][is_better] = score[is_better]
    return best
