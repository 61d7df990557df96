from hypothesis import given
from hypothesis import strategies as st

from bert_tf import windows


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=6))
def test_the_window_with_most_context_place_by_place(borders):
    """Windows in any order that cover a text; the score of each for each token, as the original counts it."""
    starts, ends = [0, *(start for start, _ in borders)], [12, *(start + size for start, size in borders)]
    for place, found in enumerate(windows.find_max_context(starts, ends).tolist()):
        scores = [min(place - start, end - 1 - place) + 0.01 * (end - start) if start <= place < end else -1
                  for start, end in zip(starts, ends)]
        if max(scores) >= 0:
            assert found == scores.index(max(scores))


def test_without_a_window_there_is_no_token():
    assert windows.find_max_context([], []).tolist() == []
