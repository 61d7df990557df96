"""What a trained tagger says: logits and a label for each word, the entities they make, and the file they go to.

Shapes: K words of all sentences, B batch, S sequence, C labels.
"""

import itertools
import typing

import numpy as np

from bert_tf import files
from bert_tf.reporting import escape
from bert_tf.tagging import examples
from bert_tf.tagging.features import make_batch

OUTSIDE = "O"
NO_TYPE = "_"  # the type of entities whose labels are B and I alone


class Entity(typing.NamedTuple):
    """What the words of a sentence from `start` up to `end` are."""

    type: str
    start: int
    end: int


def build_predict(model, objective, runtime, sizes):
    """A function `predict(features, batch_size)` -> the logits float32 [K, C] of all words, in the file's order."""
    # It loads TensorFlow, which scoring and the reading of entities need not wait for.
    from bert_tf import prediction

    predict_some = prediction.build_predict(model, objective, ["logits"], make_batch, runtime, sizes)

    def predict(features, batch_size):
        logits = np.zeros([len(features.lines), model.num_classes], np.float32)
        for numbers, outputs in predict_some(features, batch_size):
            words, rows, columns = find_words(features, numbers)
            logits[words] = outputs["logits"][rows, columns]
        return logits

    return predict


def find_words(features, numbers):
    """The words that the windows `numbers` int64 [B] predict, and their rows and columns in a batch [B, S] of them."""
    lengths = features.lengths[numbers]
    rows = np.repeat(np.arange(len(numbers)), lengths)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    words = features.words[features.row_splits[numbers][rows] + columns]
    predicted = words >= 0
    return words[predicted], rows[predicted], columns[predicted]


def probabilities(logits):
    """The softmax float32 [K, C] of logits float32 [K, C]."""
    likelihoods = np.exp(logits - logits.max(axis=1, keepdims=True))
    return likelihoods / likelihoods.sum(axis=1, keepdims=True)


def decisions(logits):
    """The class int64 [K] of each word, the first of equally likely ones."""
    return logits.argmax(axis=1)


def by_sentence(decided, labels, sentences):
    """Decisions int [K] as text: a list for each sentence with a label for each of its words."""
    names = map(labels.__getitem__, decided.tolist())
    return [list(itertools.islice(names, len(sentence.tokens))) for sentence in sentences]


def entities(labels, strict=False):
    """The `Entity`s of a sentence with labels in BIO (or IOB1), in its order; they never overlap.

    As conlleval reads it an I- that does not go on with an entity of its type begins one; if `strict` it is outside
    all, as for seqeval's strict mode. What is neither B nor I is outside too.
    """
    found, start, current = [], None, None
    for place, label in enumerate([*labels, OUTSIDE]):
        prefix, _, name = label.partition("-")
        if prefix == "I" and name == current:
            continue
        if current is not None:
            found.append(Entity(current or NO_TYPE, start, place))
        begins = prefix == "B" or prefix == "I" and not strict
        start, current = (place, name) if begins else (None, None)
    return found


def words(labels):
    """Every word of a sentence as an `Entity` of the type that its label names: what is found of plain labels."""
    return [Entity(label, place, place + 1) for place, label in enumerate(labels)]


def write_predictions(path, source_path, sentences, predicted):
    """Writes the lines of the file `source_path`, each word's with its label in `predicted` as one more column.

    `predicted` has a list of labels for each of the file's `sentences`. A document mark that has columns gets an O, so
    that conlleval can read the file; separators and comments stay as they are. Of JSON lines every word becomes a line
    of token, gold label if there is one, and predicted label, with tabs between them; an empty line ends a sentence.
    """
    with files.replacing(path) as file:
        if examples.is_json_lines(source_path):
            for sentence, said in zip(sentences, predicted, strict=True):
                columns = [sentence.tokens, *([sentence.labels] if sentence.labels is not None else []), said]
                file.writelines("\t".join(map(escape, row)) + "\n" for row in zip(*columns, strict=True))
                file.write("\n")
            return
        label_at = {line: label for sentence, said in zip(sentences, predicted, strict=True)
                    for line, label in zip(sentence.lines, said, strict=True)}
        for number, text in files.read_lines(source_path):
            cells, label = text.split(), label_at.get(number)
            if label is None and cells[1:] and cells[0] == examples.DOCUMENT_MARK:
                label = OUTSIDE
            file.write((text if label is None else _with_column(text, label)) + "\n")


def _with_column(text, label):
    """A line with one more column, parted from the others as they are."""
    text = text.rstrip(" \t")
    return text + (" " if " " in text and "\t" not in text else "\t") + label
