"""Logits to what a person asked for: probabilities or a score for each example, in a file as the original's.

Shapes: N examples, C classes.
"""

import numpy as np

from bert_tf import files


def probabilities(logits):
    """The softmax float32 [N, C] of logits float32 [N, C]; a score [N, 1] is its own answer."""
    if logits.shape[1] == 1:
        return logits
    likelihoods = np.exp(logits - logits.max(axis=1, keepdims=True))
    return likelihoods / likelihoods.sum(axis=1, keepdims=True)


def write_test_results(path, values):
    """Writes a line of tab-separated numbers for each row of `values` float32 [N, C]; the original's format."""
    with files.replacing(path) as file:
        for row in values:
            file.write("\t".join(map(str, row)) + "\n")
