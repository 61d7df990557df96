"""What a trained classifier says: logits, probabilities and decisions for each example, and the files they go to.

Shapes: N examples, C classes.
"""

import itertools

import numpy as np

from bert_tf import files, prediction
from bert_tf.classification.features import make_batch
from bert_tf.reporting import escape


def build_predict(model, objective, runtime, sizes):
    """A function `predict(features, batch_size)` -> the logits float32 [N, C] of all examples, in their order."""
    predict_some = prediction.build_predict(model, objective, ["logits"], make_batch, runtime, sizes)

    def predict(features, batch_size):
        logits = np.zeros([len(features), model.num_classes], np.float32)
        for numbers, outputs in predict_some(features, batch_size):
            logits[numbers] = outputs["logits"]
        return logits

    return predict


def probabilities(logits, kind):
    """What logits float32 [N, C] of a kind of task say, float32 [N, C].

    The softmax over classes; of several labels each one's own probability; a score is its own answer.
    """
    if kind == "multi":
        return np.exp(-np.logaddexp(0, -logits))
    if kind == "regression":
        return logits
    likelihoods = np.exp(logits - logits.max(axis=1, keepdims=True))
    return likelihoods / likelihoods.sum(axis=1, keepdims=True)


def decisions(logits, kind):
    """What is predicted: classes int64 [N], the first of equally likely ones; or scores float32 [N].

    Of several labels those with a probability of at least a half: bool [N, C].
    """
    if kind == "regression":
        return logits[:, 0]
    return logits >= 0.0 if kind == "multi" else logits.argmax(axis=1)


def names(task, decided):
    """Decisions as text, a list of N: a label's name, all labels that hold separated by commas, or a score."""
    if task.kind == "regression":
        return [f"{score:.6g}" for score in decided.tolist()]
    labels = [escape(label) for label in task.labels]
    if task.kind == "multi":
        separated = [label.replace(",", "\\,") for label in labels]
        return [",".join(itertools.compress(separated, row)) for row in np.asarray(decided, bool).tolist()]
    return [labels[number] for number in decided.tolist()]


def write_test_results(path, values):
    """Writes a line of tab-separated numbers for each row of `values` float32 [N, C]; the original's format."""
    with files.replacing(path) as file:
        for row in values:
            file.write("\t".join(map(str, row)) + "\n")


def write_predictions(path, task, logits, lines, truncated, ids=None):
    """Writes a table of what is predicted: a row for each of `logits` float32 [N, C], below a header.

    Columns: `line`, where the example stands in its file (int [N]), or `id` (`ids`, N texts); `label`, `labels` or
    `score`, as `names` writes them; `p(NAME)` of every label to six places; `truncated`, whether tokens were cut off
    (bool [N]), as yes or no.
    """
    predicted = {"single": "label", "multi": "labels", "regression": "score"}[task.kind]
    header = ["line" if ids is None else "id", predicted, *(f"p({escape(label)})" for label in task.labels),
              "truncated"]
    keys = lines.tolist() if ids is None else map(escape, ids)
    answered = names(task, decisions(logits, task.kind))
    numbers = "\t%.6f" * len(task.labels)
    rows = probabilities(logits, task.kind)[:, :len(task.labels)].tolist()
    with files.replacing(path) as file:
        file.write("\t".join(header) + "\n")
        file.writelines(f"{key}\t{name}{numbers % tuple(row)}\t{'yes' if cut else 'no'}\n"
                        for key, name, row, cut in zip(keys, answered, rows, truncated.tolist(), strict=True))
