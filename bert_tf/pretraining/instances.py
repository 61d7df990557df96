"""Documents to instances: which sentences stand in an instance together, and whether b follows a.

One `random.Random` and the original's order of draws: the same seed gives the original's instances, in its order.
"""

import dataclasses
import hashlib
from bisect import bisect_left
from typing import NamedTuple

from bert_tf import packing
from bert_tf.errors import UserError
from bert_tf.pretraining import masking

# [CLS], two [SEP] and one piece of each segment.
MIN_SEQ_LENGTH = 5
# How often a "random" next document is drawn again when it is the document itself.
RANDOM_DOCUMENT_TRIES = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the instances of given documents; the names and defaults are the flags'.

    A value out of range is a `UserError`.
    """

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    dupe_factor: int = 10
    random_seed: int = 12345
    do_whole_word_mask: bool = False
    no_false_random_next: bool = False

    def __post_init__(self):
        for name, least in (("max_seq_length", MIN_SEQ_LENGTH), ("max_predictions_per_seq", 1), ("dupe_factor", 1)):
            if getattr(self, name) < least:
                raise UserError(f"--{name}={getattr(self, name)}: the least is {least}")
        for name in ("masked_lm_prob", "short_seq_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"--{name}={getattr(self, name)}: a probability lies between 0 and 1")

    def of_shard(self, shard):
        """These settings with the seed of shard number `shard`; shard 0, often the only one, keeps the seed."""
        if shard == 0:
            return self
        digest = hashlib.sha256(f"{self.random_seed}/{shard}".encode()).digest()
        return dataclasses.replace(self, random_seed=int.from_bytes(digest[:8], "big"))


@dataclasses.dataclass
class Counts:
    """What a run met, made and dropped; of several shards' counts the sum is taken with `+`.

    `pieces` counts the instances' pieces with `[CLS]` and `[SEP]`; of the `masked` ones `kept` stayed, `replaced`
    became random tokens and the rest `[MASK]`. `truncated` counts instances. `false_random_next` counts those
    whose random next comes from their own document; with `no_false_random_next` there is none, and `made_actual`
    counts those that got what does follow, `unpaired` those dropped because nothing does.
    """

    documents: int = 0
    sentences: int = 0
    single_sentence_documents: int = 0
    empty_documents: int = 0
    empty_sentences: int = 0
    instances: int = 0
    random_next: int = 0
    false_random_next: int = 0
    made_actual: int = 0
    unpaired: int = 0
    truncated: int = 0
    pieces: int = 0
    masked: int = 0
    kept: int = 0
    replaced: int = 0

    def __add__(self, other):
        return Counts(*(mine + theirs for mine, theirs in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def table(self):
        """What was made, in lines for the log."""

        def share(part, whole):
            return f"{100 * part / max(whole, 1):.1f} %"

        whole_mask = self.masked - self.kept - self.replaced
        return "\n".join((
            f"documents  {self.documents} ({self.empty_documents} without a piece dropped)",
            f"sentences  {self.sentences} ({self.empty_sentences} without a piece dropped)",
            f"instances  {self.instances}, {self.truncated} truncated",
            f"next       {share(self.random_next, self.instances)} random ({self.false_random_next} of them from "
            f"their own document, {self.made_actual} made actual instead, {self.unpaired} dropped)",
            f"masked     {share(self.masked, self.pieces)} of {self.pieces} pieces: {share(whole_mask, self.masked)} "
            f"[MASK], {share(self.kept, self.masked)} kept, {share(self.replaced, self.masked)} random",
        ))

    def doubts(self):
        """What is legal but hardly meant, one line each."""
        doubts = []
        if self.single_sentence_documents > 0.9 * self.documents:
            doubts.append(
                f"{self.single_sentence_documents} of {self.documents} documents are one sentence: the next sentence "
                f"of {self.random_next} of {self.instances} instances is random; write one sentence a line, and a "
                "blank line only between documents"
            )
        if self.documents == 1:
            doubts.append("the text is one document, so there is no other to draw a random next sentence from; a "
                          "blank line ends a document")
        if self.false_random_next:
            doubts.append(
                f"{self.false_random_next} of {self.random_next} next sentences labelled random come from their own "
                "document; --no_false_random_next takes what does follow instead"
            )
        return doubts


class Instance(NamedTuple):
    """A training instance without padding: masked `input_ids`, what was masked, and whether b is a random next."""

    input_ids: list
    segment_ids: list
    masked_lm_positions: list
    masked_lm_ids: list
    is_random_next: bool


def create(documents, vocabulary, settings, rng, counts):
    """Yields the instances of `documents`, made `dupe_factor` times with new draws each time.

    `documents` (a list of `Document`, no empty one) is shuffled in place first. The original shuffles the instances
    as well once all are made: that is left to the caller, who need not hold them (`masking.shuffle` of their numbers
    with the same `rng`).
    """
    masking.shuffle(documents, rng)
    for _ in range(settings.dupe_factor):
        for index in range(len(documents)):
            for a, b, is_random_next in _pairs(documents, index, settings, rng, counts):
                ids, segment_ids = packing.pack(a, b, vocabulary.cls_id, vocabulary.sep_id)
                positions, labels = masking.mask(ids, len(a), vocabulary, settings, rng, counts)
                counts.instances += 1
                counts.random_next += is_random_next
                counts.pieces += len(ids)
                yield Instance(ids, segment_ids, positions, labels, is_random_next)


def _pairs(documents, index, settings, rng, counts):
    """Yields `(a, b, is_random_next)` for one pass over a document: arrays of ids that fit an instance together.

    The document is cut into chunks, runs of sentences of at least the wanted length. `a` is a random number of a
    chunk's first sentences. `b` is the chunk's rest or, half of the time and when there is no rest, a run from a
    random document, and then the rest opens the next chunk. With `no_false_random_next`, where that document is this
    one, `b` is what does follow: the chunk's rest, else the sentences after it; at the end there is no instance.
    """
    document = documents[index]
    starts, last = document.starts, len(document)
    room = settings.max_seq_length - 3
    wanted = rng.randint(2, room) if rng.random() < settings.short_seq_prob else room
    first = 0
    while first < last:
        stop = bisect_left(starts, starts[first] + wanted, first + 1, last)
        split = first + (rng.randint(1, stop - first - 1) if stop - first > 1 else 1)
        a = (starts[first], starts[split])
        b_from = index
        # The order of the two conditions is the original's: a chunk of one sentence draws nothing.
        is_random_next = was_to_be_random = stop - first == 1 or rng.random() < 0.5
        if is_random_next:
            b_from = _draw_document(len(documents), index, rng)
            is_random_next = b_from != index or not settings.no_false_random_next
        if is_random_next:
            counts.false_random_next += b_from == index
            b = _random_run(documents[b_from], wanted - (a[1] - a[0]), rng)
            first = split
        elif split < last:
            counts.made_actual += was_to_be_random
            stop = bisect_left(starts, starts[first] + wanted, split + 1, last)
            b = (starts[split], starts[stop])
            first = stop
        else:
            counts.unpaired += 1
            break
        counts.truncated += a[1] - a[0] + b[1] - b[0] > room
        a, b = _truncate(a, b, room, rng)
        yield document.ids[slice(*a)], documents[b_from].ids[slice(*b)], is_random_next


def _draw_document(num_documents, index, rng):
    """The number of a random document, drawn again (but not for ever) while it is `index` itself."""
    for _ in range(RANDOM_DOCUMENT_TRIES):
        drawn = rng.randint(0, num_documents - 1)
        if drawn != index:
            break
    return drawn


def _random_run(document, wanted, rng):
    """The range of ids of at least one sentence, from a random one on, up to `wanted` pieces or the document's end."""
    starts, last = document.starts, len(document)
    first = rng.randint(0, last - 1)
    return starts[first], starts[bisect_left(starts, starts[first] + wanted, first + 1, last)]


def _truncate(a, b, room, rng):
    """The ranges `a` and `b` shortened to `room` pieces together: the longer one (of equals `b`) gives one piece at a
    time, from its front or its back."""
    (a_first, a_stop), (b_first, b_stop) = a, b
    random = rng.random
    while a_stop - a_first + b_stop - b_first > room:
        if a_stop - a_first > b_stop - b_first:
            if random() < 0.5:
                a_first += 1
            else:
                a_stop -= 1
        elif random() < 0.5:
            b_first += 1
        else:
            b_stop -= 1
    return (a_first, a_stop), (b_first, b_stop)
