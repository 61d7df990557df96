import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.squad import final_text
from bert_tf.tokenization import BasicTokenizer


def test_all_recorded_results(shared):
    rows = json.loads(shared("goldens/squad/get_final_text.json").read_text(encoding="utf-8"))
    assert len(rows) == 682
    for pred_text, orig_text, do_lower_case, result in rows:
        assert final_text.get_final_text(pred_text, orig_text, do_lower_case) == result


@pytest.mark.parametrize("pred_text, orig_text, result", [
    ("steve smith", "Steve Smith's", "Steve Smith"),
    ("steve  smith", "Steve Smith's", "Steve Smith's"),  # not found
    ("resume", "(Résumé)", "Résumé"),
    ("resume", "(Re\u0301sume\u0301)", "(Re\u0301sume\u0301)"),  # an accent of its own is lost: counts differ
    ("a", "  A  b ", "A"),
    ("a b", "  A  b ", "A  b"),
    ("x", "  A  b ", "  A  b "),
    ("", "a b", "a b"),
    (" ", "a b", "a b"),
    (" b", "a b", "a b"),
    ("a ", "a b", "a b"),
    ("", "", ""),
    ("a", "", ""),
])
def test_places_that_are_found_and_not_found(pred_text, orig_text, result):
    assert final_text.get_final_text(pred_text, orig_text, True) == result


@pytest.mark.parametrize("pieces, text", [
    (["un", "##aff", "##able"], "unaffable"), (["##able", "."], "able ."), (["#", "#", "a"], "# # a"), ([], ""),
    (["[UNK]", "##x"], "[UNK]x")])
def test_pieces_are_joined(pieces, text):
    assert final_text.join_pieces(pieces) == text


def align_by_characters(pred_text, orig_text, do_lower_case):
    """The contract said plainly: the original's text from the character of the first match to that of the last."""
    tokenized = " ".join(BasicTokenizer(do_lower_case).tokenize(orig_text))
    places = [at for at, character in enumerate(orig_text) if character != " "]
    tokenized_places = [at for at, character in enumerate(tokenized) if character != " "]
    start = tokenized.find(pred_text)
    ends = start, start + len(pred_text) - 1
    if start < 0 or len(places) != len(tokenized_places) or not set(ends) <= set(tokenized_places):
        return orig_text
    first, last = (places[tokenized_places.index(end)] for end in ends)
    return orig_text[first:last + 1]


TEXTS = st.text(st.sampled_from("aB cÉé\u0301ß.,#' \t\n\u00a0\u3000\u200b京都한Σσ\u202f\ufffd"), max_size=12)


@given(TEXTS, st.booleans(), st.data())
def test_any_part_of_any_text(orig_text, do_lower_case, data):
    tokenized = " ".join(BasicTokenizer(do_lower_case).tokenize(orig_text))
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(tokenized))] * 2)))
    for pred_text in (tokenized[start:end], data.draw(TEXTS)):
        found = final_text.get_final_text(pred_text, orig_text, do_lower_case)
        assert found == align_by_characters(pred_text, orig_text, do_lower_case)
