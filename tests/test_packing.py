import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf import packing


def test_truncation_is_the_originals(goldens):
    rows = json.loads((goldens / "pretrain_data/truncate_seq_pair.json").read_text())
    assert len(rows) > 100
    for length_a, length_b, limit, want_a, want_b in rows:
        a, b = list(range(length_a)), list(range(100, 100 + length_b))
        dropped = packing.truncate_seq_pair(a, b, limit)
        assert (a, b) == (list(range(want_a)), list(range(100, 100 + want_b)))
        assert dropped == length_a + length_b - want_a - want_b


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 130))
def test_truncation_pops_one_at_a_time_from_the_longer(length_a, length_b, limit):
    a, b = list(range(length_a)), list(range(length_b))
    packing.truncate_seq_pair(a, b, limit)
    while length_a + length_b > limit:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    assert (len(a), len(b)) == (length_a, length_b)
    assert a == list(range(length_a)) and b == list(range(length_b))


def test_pack_one_segment_and_two():
    assert packing.pack([7, 8], None, 2, 3) == ([2, 7, 8, 3], [0, 0, 0, 0])
    assert packing.pack([7, 8], [9], 2, 3) == ([2, 7, 8, 3, 9, 3], [0, 0, 0, 0, 1, 1])
    assert packing.pack([7], [], 2, 3) == ([2, 7, 3, 3], [0, 0, 0, 1])


@given(st.lists(st.integers(5, 99)), st.lists(st.integers(5, 99)), st.integers(3, 40))
def test_what_is_truncated_and_packed_fits_and_can_be_taken_apart(a, b, length):
    packing.truncate_seq_pair(a, b, length - 3)
    ids, segment_ids = packing.pack(a, b, 2, 3)
    assert len(ids) == len(segment_ids) <= length
    assert segment_ids == sorted(segment_ids)
    split = segment_ids.index(1)
    assert ids[:split] == [2, *a, 3] and ids[split:] == [*b, 3]
    padded = packing.pad(ids, length)
    assert padded[:len(ids)] == ids and padded[len(ids):] == [0] * (length - len(ids))


def test_padding_never_cuts():
    assert packing.pad([1], 3, value=9) == [1, 9, 9]
    with pytest.raises(ValueError, match="4 values do not fit into 3"):
        packing.pad([1, 2, 3, 4], 3)
