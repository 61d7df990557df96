"""A model's logits for every window.

Shapes: W windows, S sequence.
"""

import numpy as np

from bert_tf import prediction
from bert_tf.squad.features import make_batch

NAMES = ("start_logits", "end_logits")


def build_predict(model, objective, runtime, sizes):
    """A function `predict(features, batch_size)` -> start and end logits float32 [W, S], -inf beyond a batch's S."""
    predict_some = prediction.build_predict(model, objective, NAMES, make_batch, runtime, sizes)

    def predict(features, batch_size):
        logits = np.full([2, len(features), sizes.max_seq_length], -np.inf, np.float32)
        for numbers, outputs in predict_some(features, batch_size):
            for whole, name in zip(logits, NAMES):
                whole[numbers, :outputs[name].shape[1]] = outputs[name]
        return logits

    return predict
