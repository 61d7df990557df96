"""How good predicted labels are: precision, recall and F1 of entities as conlleval counts them, and token accuracy.

`gold` and `predicted` are always lists of text, one for each sentence with a label for each word. Entities are read
from labels in BIO. Of plain labels, which make no entities, every word counts with its label as its type.
"""

import collections
import functools
import logging
import typing

from bert_tf.tagging import answers

logger = logging.getLogger("bert_tf")

PLAIN = "plain"  # the scheme of labels that make no entities
RATIOS = "precision", "recall", "f1"

STRICT = functools.partial(answers.entities, strict=True)


class Counts(typing.NamedTuple):
    """How many entities are gold, how many predicted, and how many of these are right: of the same type and words."""

    gold: int
    predicted: int
    right: int

    @property
    def ratios(self):
        """Precision, recall and F1; 0 where there is nothing to divide by, as conlleval and seqeval have it."""
        return (self.right / max(self.predicted, 1), self.right / max(self.gold, 1),
                2 * self.right / max(self.gold + self.predicted, 1))


def count(gold, predicted, find=answers.entities):
    """The `Counts` of every type that is gold or predicted, by its name in the order of names.

    `find` makes a list of `answers.Entity`s of a sentence's labels.
    """
    counters = collections.Counter(), collections.Counter(), collections.Counter()
    for labels, said in zip(gold, predicted, strict=True):
        true, found = set(find(labels)), set(find(said))
        for counter, chosen in zip(counters, (true, found, true & found)):
            counter.update(entity.type for entity in chosen)
    return {name: Counts(*(counter[name] for counter in counters)) for name in sorted(counters[0] | counters[1])}


def total(counts):
    """The `Counts` of all types together, from those by name: what micro averages are made of."""
    return Counts(*map(sum, zip(Counts(0, 0, 0), *counts.values())))


def macro(counts):
    """The mean precision, recall and F1 over types, from `Counts` by name; 0 without any."""
    return tuple(sum(column) / len(counts) for column in zip(*(each.ratios for each in counts.values()))) or (0.0,) * 3


def token_accuracy(gold, predicted):
    """The part of all words whose label is right."""
    pairs = [pair for labels, said in zip(gold, predicted, strict=True) for pair in zip(labels, said, strict=True)]
    return sum(label == said for label, said in pairs) / max(len(pairs), 1)


def finder(scheme):
    """The function that finds in a sentence's labels what is scored: its entities, or of plain labels its words."""
    return answers.words if scheme == PLAIN else answers.entities


def metric_names(scheme):
    """The names of what `evaluate` returns, in its order."""
    own = ("macro_f1",) if scheme == PLAIN else (*RATIOS, *(f"strict_{name}" for name in RATIOS))
    return [*own, "token_accuracy"]


def evaluate(gold, predicted, scheme):
    """The scores from 0 to 1 by name.

    `precision`, `recall` and `f1` are those of all entities together: conlleval's, the official ones, which seqeval
    gives by default. `strict_precision` and so on are those of seqeval's strict mode, for which an I- without a
    beginning is no entity. Plain labels have `macro_f1`, the mean over labels that are gold or predicted, instead.
    """
    if scheme == PLAIN:
        values = [macro(count(gold, predicted, answers.words))[-1]]
    else:
        loose, strict = (total(count(gold, predicted, find)) for find in (answers.entities, STRICT))
        if not loose.gold:
            logger.warning("none of the gold labels is an entity's, so that precision, recall and F1 are 0")
        values = [*loose.ratios, *strict.ratios]
    return dict(zip(metric_names(scheme), [*values, token_accuracy(gold, predicted)]))
