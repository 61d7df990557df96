import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.pretraining import instances, masking

VOCAB = {piece: number for number, piece in enumerate(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(9)), *(f"##part{n}" for n in range(9))]
)}
CLS, SEP, MASK = (VOCAB[piece] for piece in ("[CLS]", "[SEP]", "[MASK]"))
SEGMENTS = st.lists(st.integers(5, len(VOCAB) - 1), min_size=1, max_size=60)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 8, 9, 127, 128, 511, 512, 513, 5000])
def test_shuffle_is_pythons(length):
    ours, pythons = random.Random(length), random.Random(length)
    items, expected = list(range(length)), list(range(length))
    masking.shuffle(items, ours)
    pythons.shuffle(expected)
    assert items == expected
    assert ours.getstate() == pythons.getstate()


def _mask(a, b, seed, **settings):
    ids = [CLS, *a, SEP, *b, SEP]
    masked, counts = list(ids), instances.Counts()
    settings = instances.Settings(**settings)
    positions, labels = masking.mask(
        masked, len(a), masking.MaskingVocabulary.of(VOCAB), settings, random.Random(seed), counts
    )
    return ids, masked, positions, labels, counts


@given(
    SEGMENTS, SEGMENTS, st.integers(0, 1000), st.booleans(), st.floats(0, 1), st.integers(1, 40)
)
def test_what_masking_never_breaks(a, b, seed, whole_words, masked_lm_prob, most):
    ids, masked, positions, labels, counts = _mask(
        a, b, seed, do_whole_word_mask=whole_words, masked_lm_prob=masked_lm_prob, max_predictions_per_seq=most
    )
    assert positions == sorted(set(positions))
    assert not {0, len(a) + 1, len(ids) - 1} & set(positions)
    assert labels == [ids[position] for position in positions]
    assert [piece for n, piece in enumerate(masked) if n not in positions] == [
        piece for n, piece in enumerate(ids) if n not in positions
    ]
    wanted = min(most, max(1, round(len(ids) * masked_lm_prob)))
    if whole_words:
        assert len(positions) <= wanted
    else:
        assert len(positions) == min(wanted, len(a) + len(b))
    assert counts.masked == len(positions)
    assert counts.kept + counts.replaced + sum(masked[n] == MASK for n in positions) >= len(positions)


@given(SEGMENTS, SEGMENTS, st.integers(0, 1000))
def test_whole_words_stay_whole(a, b, seed):
    ids, _, positions, _, _ = _mask(a, b, seed, do_whole_word_mask=True, masked_lm_prob=0.5)
    words = masking.words_of(ids, len(a), masking.MaskingVocabulary.of(VOCAB).continues)
    assert sorted(position for word in words for position in word) == [
        n for n in range(len(ids)) if n not in (0, len(a) + 1, len(ids) - 1)
    ]
    for word in words:
        assert len(set(word) & set(positions)) in (0, len(word))


def test_words_of_pieces():
    continues = masking.MaskingVocabulary.of(VOCAB).continues
    word, part = VOCAB["word0"], VOCAB["##part0"]
    ids = [CLS, part, word, part, SEP, part, word, SEP]
    assert masking.words_of(ids, 3) == [(1,), (2,), (3,), (5,), (6,)]
    # The first piece starts a word whatever it is; what a truncated b starts with belongs to a's last word.
    assert masking.words_of(ids, 3, continues) == [[1], [2, 3, 5], [6]]


def test_a_word_longer_than_what_may_be_masked_is_passed_over():
    part, word = VOCAB["##part0"], VOCAB["word0"]
    for seed in range(50):
        _, _, positions, _, _ = _mask([word, part, part, part], [word], seed, do_whole_word_mask=True,
                                      max_predictions_per_seq=2)
        assert positions == [6]


def test_shares_of_mask_kept_and_random():
    counts = instances.Counts()
    rng, vocabulary = random.Random(1), masking.MaskingVocabulary.of(VOCAB)
    ids = [CLS, *range(5, 20), *range(5, 20), SEP, *range(8, 23), *range(8, 23), SEP]
    for _ in range(4000):
        masking.mask(list(ids), 30, vocabulary, instances.Settings(), rng, counts)
    assert counts.masked == 4000 * 9  # round(63 * 0.15)
    assert abs(counts.kept / counts.masked - 0.1) < 0.01
    assert abs(counts.replaced / counts.masked - 0.1) < 0.01


def test_replacements_are_the_distinct_tokens_in_order():
    vocabulary = masking.MaskingVocabulary.of({"[MASK]": 0, "a": 3, "[CLS]": 1, "[SEP]": 2, "##b": 5})
    assert vocabulary.replacements == [0, 3, 1, 2, 5]
    assert vocabulary.continues == [False, False, False, False, False, True]
