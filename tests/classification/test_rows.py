"""Every text comes back from a file as another program writes it."""

import csv
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.classification import rows
from bert_tf.errors import UserError

CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(CHARACTERS)
WITHOUT_TABS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r"))


def write(folder, text, name="train.csv"):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(WITHOUT_TABS, min_size=2, max_size=3)))
def test_tabs_separate_whatever_text(folder, table):
    path = write(folder, "".join("\t".join(row) + "\n" for row in [["a", "b"], *table]))
    assert [row for _, row in rows.read_tsv(path)] == [["a", "b"], *table]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(TEXTS, min_size=1, max_size=3)), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
       st.sampled_from(["\n", "\r\n"]))
def test_quoted_text_goes_over_lines_and_holds_quotes(folder, table, quoting, end):
    path = folder / "train.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=quoting, lineterminator=end).writerows([["a", "b"], *table])
    read = list(rows.read_csv(path))
    assert [row for _, row in read] == [["a", "b"], *([cell.replace("\r", "") for cell in row] for row in table)]
    lines = path.read_bytes().split(b"\n")
    begins = [cells[0].replace("\r", "").split("\n")[0].replace('"', "") for cells in table]
    for (line, _), begin in zip(read[1:], begins):
        assert lines[line - 1].decode().replace('"', "").replace("\r", "").startswith(begin)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(TEXTS, TEXTS | st.none(), min_size=1)), st.booleans())
def test_json_holds_whatever_text(folder, table, ascii_only):
    path = write(folder, "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in table))
    assert [row for _, row in rows.read_json_lines(path)] == table


def test_values_of_json_that_are_no_text(tmp_path):
    path = write(tmp_path, '{"a": 1, "b": 2.5, "c": true, "d": [1, "x"], "e": null, "f": {"g": 1}}\n \n')
    assert list(rows.read_json_lines(path)) == [
        (1, {"a": "1", "b": "2.5", "c": "true", "d": ["1", "x"], "e": None, "f": {"g": 1}}), (2, None)]


def test_blank_lines_are_rows_of_none(tmp_path):
    assert list(rows.read_tsv(write(tmp_path, "\na\n\r\n"))) == [(1, None), (2, ["a"]), (3, None)]
    assert list(rows.read_csv(write(tmp_path, '\n"a\n\nb",c\n\n""\n'))) == [
        (1, None), (2, ["a\n\nb", "c"]), (5, None), (6, [""])]


def test_marks_stray_quotes_and_long_texts_of_a_csv(tmp_path):
    long = "x" * 200_000
    path = write(tmp_path, f'\ufeffa "b" c,1\r\n{long},2\r\n')
    assert list(rows.read_csv(path)) == [(1, ['a "b" c', "1"]), (2, [long, "2"])]


@pytest.mark.parametrize("read, text, message", [
    (rows.read_csv, 'a,1\n"b,\n2\nc,3\n', r"train.csv:2: a quote in the row that begins here is never closed \("
     r"line 4: unexpected end of data\); a quote inside a quoted text is written twice"),
    (rows.read_csv, 'a,1\n"b\nc,2\n"d",3\n', r"train.csv:2: .* never closed \(line 4: ',' expected after '\"'\)"),
    (rows.read_csv, b"a,1\n\xff,2\n", "train.csv:2: byte 0xff is not UTF-8"),
    (rows.read_json_lines, '{"a": 1}\n{"a": \n', r"train.csv:2: not a JSON object on a line of its own \(Expecting"),
    (rows.read_json_lines, "[\n", "train.csv:1: not a JSON object on a line"),
    (rows.read_json_lines, "[1]\n", r"train.csv:1: not a JSON object on a line of its own \(but a list\)"),
    (rows.read_json_lines, "[" * 100_000, "train.csv:1: not a JSON object on a line"),
    (rows.read_json_lines, '{"n": ' + "9" * 5000 + "}", "train.csv:1: not a JSON object on a line"),
    (rows.read_json_lines, '{"a": 1, "b": 2, "a": 3}\n', r"train.csv:1: .* \(the name 'a' comes twice\)"),
    (rows.read_json_lines, '{"a": "\\ud800"}\n', "train.csv:1: 'a' holds half a surrogate pair, which is no text"),
    (rows.read_json_lines, b'{"a": "\xff"}\n', "train.csv:1: byte 0xff is not UTF-8"),
])
def test_what_is_no_row_is_refused_with_its_line(tmp_path, read, text, message):
    with pytest.raises(UserError, match=message):
        list(read(write(tmp_path, text)))
