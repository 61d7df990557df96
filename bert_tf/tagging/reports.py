"""Where a tagger is right and where not: a table of its types, which it takes for which, and all of its mistakes.

`gold` and `predicted` are as in `scores`. Shapes: Y types.
"""

import collections
import importlib.util
import itertools
import logging
import os

import numpy as np

from bert_tf import files
from bert_tf.reporting import align, draw_confusion, escape
from bert_tf.tagging import scores

logger = logging.getLogger("bert_tf")

NAMES = REPORT, CONFUSION, MISTAKES = "report{}.txt", "confusion{}.png", "mistakes{}.tsv"
NONE = "none"  # what stands in a matrix for the type None
AROUND = 8  # words before and after a mistake that are quoted
COLUMNS = "line", "mistake", "gold_type", "gold", "predicted_type", "predicted", "words"


def write(folder, name, sentences, gold, predicted, scheme, suffix=""):
    """Writes `report.txt`, `confusion.png` and `mistakes.tsv` of a file `name` and its `sentences` into `folder`.

    `suffix` ends the files' names. The picture is left out where matplotlib is not installed, which is said.
    """
    def path(file):
        return os.path.join(folder, file.format(suffix))

    find = scores.finder(scheme)
    pairs = [pair(find(labels), find(said)) for labels, said in zip(gold, predicted, strict=True)]
    types = [*scores.count(gold, predicted, find), *[None] * (scheme != scores.PLAIN)]
    counts = confusion(types, pairs)
    with files.replacing(path(REPORT)) as file:
        file.write(make_report(name, gold, predicted, scheme) + "\n" + make_matrix(types, counts))
    if importlib.util.find_spec("matplotlib") is None:
        logger.info("no %s: matplotlib is not installed (pip install 'bert_tf[plot]')", path(CONFUSION))
    else:
        draw_confusion(path(CONFUSION), counts, _labels(types), "gold")
    write_mistakes(path(MISTAKES), sentences, pairs)


def pair(gold, predicted):
    """Which predicted entity of a sentence stands for which gold one: `(gold, predicted)`, None for one that is alone.

    Every entity is in one pair. Those that share most words go together, of as many those of the same type, then the
    first; hence an entity whose words are right is paired with its like. In the order of their first words.
    """
    holder = {word: entity for entity in predicted for word in range(entity.start, entity.end)}
    shared = collections.Counter((entity, holder[word]) for entity in gold
                                 for word in range(entity.start, entity.end) if word in holder)
    pairs, single_gold, single_predicted = [], dict.fromkeys(gold), dict.fromkeys(predicted)
    for one, other in sorted(shared, key=lambda both: (-shared[both], both[0].type != both[1].type)):
        if one in single_gold and other in single_predicted:
            pairs.append((one, other))
            del single_gold[one], single_predicted[other]
    pairs += [(entity, None) for entity in single_gold] + [(None, entity) for entity in single_predicted]
    return sorted(pairs, key=lambda both: _bounds(both)[0])


def _bounds(both):
    """The first word of a pair and the one after its last."""
    entities = [entity for entity in both if entity]
    return min(entity.start for entity in entities), max(entity.end for entity in entities)


def make_report(name, gold, predicted, scheme):
    """The text of a report on a file `name`: the ratios and `Counts` of every type, and their averages."""
    found = scores.count(gold, predicted, scores.finder(scheme))
    rows = [(escape(each), counts.ratios, counts) for each, counts in found.items()]
    rows += [("micro average", scores.total(found).ratios, scores.total(found)),
             ("macro average", scores.macro(found), [""] * 3)]
    if scheme != scores.PLAIN:
        strict = scores.total(scores.count(gold, predicted, scores.STRICT))
        rows.append(("micro average, strict", strict.ratios, strict))
    table = [["", *scores.RATIOS, *scores.Counts._fields]]
    table += [[label, *(f"{value:.4f}" for value in ratios), *map(str, counts)] for label, ratios, counts in rows]
    return (f"{name}: {len(gold)} sentences, {sum(map(len, gold))} words, "
            f"{scores.token_accuracy(gold, predicted):.4f} of them labelled right\n\n{align(table)}")


def make_matrix(types, counts):
    """The text that says `counts` of `confusion`."""
    table = [["", *(NONE if each is None else str(number) for number, each in enumerate(types))]]
    table += [[label, *(str(each or ".") for each in row)] for label, row in zip(_labels(types), counts.tolist())]
    return ("Of the gold ones of a type (row), how many were taken for which type (column); a word in common is "
            f"enough:\n\n{align(table)}")


def confusion(types, pairs):
    """How many of each type were taken for which: int64 [Y, Y], the rows gold, the columns predicted.

    `pairs` has a list of `pair`s for each sentence. None among the types stands for what is not gold or not predicted.
    The words of a pair may differ.
    """
    number_of = {each: number for number, each in enumerate(types)}
    counts = np.zeros([len(types), len(types)], np.int64)
    for both in itertools.chain.from_iterable(pairs):
        counts[tuple(number_of[entity.type if entity else None] for entity in both)] += 1
    return counts


def _labels(types):
    """The types as a matrix names them, by numbers too for scripts that the picture's font cannot write."""
    return [NONE if each is None else f"{number} {escape(each)}" for number, each in enumerate(types)]


def write_mistakes(path, sentences, pairs):
    """Writes a row for each of the `pairs` whose entities differ, in the file's order.

    `line` is that of the first word. `mistake` says what is wrong: "missed", "spurious", "type", "boundary" (where it
    begins or ends) or "type and boundary". `words` quotes the place, between [ and ], with the words around it.
    """
    with files.replacing(path) as file:
        file.write("\t".join(COLUMNS) + "\n")
        for sentence, both in ((sentence, both) for sentence, found in zip(sentences, pairs, strict=True)
                               for both in found if both[0] != both[1]):
            start, end = _bounds(both)
            cells = [cell for entity in both for cell in _cells(entity, sentence.tokens)]
            row = [str(sentence.lines[start]), _mistake(*both), *cells, _quote(sentence.tokens, start, end)]
            file.write("\t".join(map(escape, row)) + "\n")


def _cells(entity, tokens):
    """The type and the words of an entity, both empty where there is none."""
    return (entity.type, " ".join(tokens[entity.start:entity.end])) if entity else ("", "")


def _mistake(gold, predicted):
    """What is wrong with an entity."""
    if predicted is None:
        return "missed"
    if gold is None:
        return "spurious"
    return " and ".join(["type"] * (gold.type != predicted.type) + ["boundary"] * (gold[1:] != predicted[1:]))


def _quote(tokens, start, end):
    """The words from `start` to `end` in brackets and those around them."""
    before, after = tokens[max(start - AROUND, 0):start], tokens[end:end + AROUND]
    return " ".join([*["…"] * (start > AROUND), *before, "[", *tokens[start:end], "]", *after,
                     *["…"] * (len(tokens) > end + AROUND)])
