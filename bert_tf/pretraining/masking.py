"""Which pieces an instance hides, and behind what: the masked LM half of an instance.

Draws come from one `random.Random` in the original's order, so the same seed masks the same pieces.
"""

import functools
from typing import NamedTuple


class MaskingVocabulary(NamedTuple):
    """What masking knows of a vocabulary.

    `replacements` is every token's id, in the order of the vocabulary's distinct tokens (a random replacement is drawn
    from it, special and unused tokens included, as in the original); `continues` tells for each id whether its token
    starts with "##".
    """

    cls_id: int
    sep_id: int
    mask_id: int
    replacements: list
    continues: list

    @classmethod
    def of(cls, vocab):
        """From `vocab`, a dict from token to id."""
        continues = [False] * (max(vocab.values()) + 1)
        for token, token_id in vocab.items():
            continues[token_id] = token.startswith("##")
        return cls(vocab["[CLS]"], vocab["[SEP]"], vocab["[MASK]"], list(vocab.values()), continues)


def shuffle(items, rng):
    """Shuffles the list `items` in place, with the draws of `rng.shuffle(items)` in less than half its time.

    Shuffling every instance's words is the dearest step of making records. `random.shuffle` asks for each index
    through two calls; this is the same loop without them. A test holds the two equal.
    """
    getrandbits = rng.getrandbits
    length = len(items)
    for last, bits in _cached_draws(length) if length <= 512 else _draws(length):
        other = getrandbits(bits)
        while other > last:
            other = getrandbits(bits)
        items[last], items[other] = items[other], items[last]


def _draws(length):
    """For each index that a shuffle draws: the largest that it may be, and the bits to draw for it."""
    return ((last, (last + 1).bit_length()) for last in range(length - 1, 0, -1))


@functools.lru_cache(maxsize=512)
def _cached_draws(length):
    return list(_draws(length))


@functools.cache
def _single_words(length):
    return [(position,) for position in range(length)]


def words_of(ids, length_a, continues=None):
    """The maskable words of `ids`, `[CLS] a [SEP] b [SEP]` with `a` of `length_a` pieces: a list of positions each.

    Every piece is a word of its own; with `continues` (whole word masking) a continuation joins the word before it.
    As in the original that holds across the middle `[SEP]` too, where truncation left `b` starting inside a word.
    """
    if continues is None:
        singles = _single_words(1 << len(ids).bit_length())  # one list serves many lengths
        return singles[1:length_a + 1] + singles[length_a + 2:len(ids) - 1]
    words = []
    for first, stop in ((1, length_a + 1), (length_a + 2, len(ids) - 1)):
        for position in range(first, stop):
            if continues[ids[position]] and words:
                words[-1].append(position)
            else:
                words.append([position])
    return words


def num_to_predict(num_pieces, settings):
    """How many pieces to mask of an instance of `num_pieces`, `[CLS]` and `[SEP]` counted as in the original."""
    return min(settings.max_predictions_per_seq, max(1, round(num_pieces * settings.masked_lm_prob)))


def mask(ids, length_a, vocabulary, settings, rng, counts):
    """Masks `ids` (`[CLS] a [SEP] b [SEP]`) in place and returns `(masked_lm_positions, masked_lm_ids)`, sorted.

    Words are taken in random order until `num_to_predict` pieces are masked; a word that would go beyond is passed
    over. A masked piece becomes `[MASK]` in 80 % of the cases, stays in 10 % and becomes a random token in 10 %.
    """
    words = words_of(ids, length_a, vocabulary.continues if settings.do_whole_word_mask else None)
    shuffle(words, rng)
    wanted = num_to_predict(len(ids), settings)
    random, mask_id, replacements = rng.random, vocabulary.mask_id, vocabulary.replacements
    masked = []
    for word in words:
        if len(masked) + len(word) > wanted:
            if len(masked) == wanted:
                break
            continue
        for position in word:
            masked.append((position, ids[position]))
            if random() < 0.8:
                ids[position] = mask_id
            elif random() < 0.5:
                counts.kept += 1
            else:
                counts.replaced += 1
                ids[position] = replacements[rng.randrange(len(replacements))]
    counts.masked += len(masked)
    masked.sort()
    return [position for position, _ in masked], [label for _, label in masked]
