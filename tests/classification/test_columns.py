"""Header and columns of a user's own file: what is found, what is said, what is refused."""

import logging

import pytest

from bert_tf.classification import columns, rows, tasks
from bert_tf.errors import UserError

ENDINGS = {".tsv": rows.read_tsv, ".csv": rows.read_csv, ".jsonl": rows.read_json_lines}


@pytest.fixture
def find(tmp_path, caplog):
    """`find(lines, ...)` -> the layout of a file of these lines; the log holds what is said."""
    caplog.set_level(logging.INFO, "bert_tf")

    def call(lines, text=(), label=(), header=None, is_labelled=True, ending=".tsv"):
        path = tmp_path / ("train" + ending)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        table = tasks.Table(path.name, (), rows=ENDINGS[ending], path=str(path))
        return columns.find(table, columns.Asked(text, label, header), is_labelled)

    return call


def places(layout):
    return layout.table.header, layout.table.text, layout.table.label


@pytest.mark.parametrize("names, text, label", [
    ("text label", (0,), 1), ("label text_a", (1,), 0), ("Label id Text", (2,), 0),
    ("a text_b text_a class", (2, 1), 3),
    ("id sentence1 sentence2 score", (1, 2), 3), ("premise hypothesis gold_label", (0, 1), 2),
    ("index question sentence label", (1, 2), 3), ("question kind category", (0,), 2), ("review stars", (0,), 1),
    ("words text", (1,), 0), ("label words more", (1,), 0), ("sentence question1 question2 mark", (1, 2), 3),
])
def test_columns_of_usual_names_are_found(find, names, text, label):
    cells = names.split()
    assert places(find(["\t".join(cells), "\t".join(f"x{column}" for column in range(len(cells)))])) == (
        True, text, label)


def test_without_a_header_the_first_column_is_the_text_and_the_last_the_label(find, caplog):
    layout = find(["a b\tx\tpos", "c d\ty\tneg", "e\tz\tneg"])
    assert places(layout) == (False, (0,), 2) and layout[1:] == (("0",), ("2",))
    assert "train.tsv: no header (--header says otherwise); text from column 0; label from column 2" in caplog.text


def test_the_label_comes_first_when_the_text_is_asked_for(find):
    assert places(find(["pos\ta", "neg\tb"], label=("0",))) == (False, (1,), 0)
    assert places(find(["pos\ta", "neg\tb"], text=("-1",), label=("-2",))) == (False, (1,), 0)


def test_a_column_for_each_label(find):
    layout = find(["text\tgood\tbad", "a\t0\t1"], label=("bad", "good"))
    assert places(layout) == (True, (0,), (2, 1)) and layout.label == ("bad", "good")


def test_no_label_is_looked_for_in_a_test_file(find, caplog):
    layout = find(["id\tsentence", "0\ta"], is_labelled=False)
    assert places(layout) == (True, (1,), None) and layout.label == ()
    assert caplog.messages[-1].endswith("a header (--header says otherwise); text from sentence")


def test_columns_of_json_lines_go_by_name(find, caplog):
    lines = ['{"id": 1, "text": "a"}', '{"text": "b", "id": 2, "label": "x"}']
    layout = find(lines, ending=".jsonl")
    assert places(layout) == (False, ("text",), "label") and layout.table.columns == ["text", "label"]
    assert "train.jsonl: columns by name; text from text; label from label" in caplog.text
    assert places(find(lines, ("0",), ("1",), ending=".jsonl"))[1:] == (("id",), "text")


MANY = [f"a sentence, number {number}\t{number % 2}" for number in range(12)]
NAMED = [f"a sentence, number {number}\t{('pos', 'neg')[number % 2]}" for number in range(12)]


@pytest.mark.parametrize("lines, header", [
    (["Remark\tgrade", *MANY], True),  # a word above numbers
    (["Remark\tgrade", *NAMED], True),  # short words, and a label of its own
    (["Such a comment!\tgrade", *NAMED], False),
    (["Remark\tpos", *NAMED], False),
    (["text\tpos", *NAMED], False),
    (["Remark\tgrade", *NAMED[:3]], False),  # too few rows to tell
    (["text\tgrade", *NAMED[:3]], True),
    (["7\t1", "8\t0"], False),
    (["a\t3", "b\t4,27", "c\t3"], False),
    (["a\tx", "b\t4,27", "c\t3"], True),
    (["What is that\tquestion", "That is it\tstatement", "What\tquestion"], False),
    (["What is that\tquestion"], True),
    (["question\tlabel", "label\tx"], True),
])
def test_a_header_is_told_by_what_comes_below_it(find, caplog, lines, header):
    assert find(lines).table.header == header
    assert f"train.tsv: {'a' if header else 'no'} header (--header says otherwise)" in caplog.text


@pytest.mark.parametrize("header", [True, False])
def test_the_user_says_whether_there_is_a_header(find, caplog, header):
    assert find(["text\tlabel", "a\tx", "b\tlabel"], header=header).table.header == header
    assert "says otherwise" not in caplog.text


def test_names_that_are_asked_for_make_a_header(find):
    assert places(find(["label\tlabel 2", "label\tx"], text=("label 2",), label=("label",))) == (True, (1,), 0)


def test_a_quoted_header_over_two_lines(find):
    assert places(find(['"the\ntext",label', "a,x"], ("the\ntext",), ending=".csv")) == (True, (0,), 1)


@pytest.mark.parametrize("lines, asked, message", [
    (["text\tlabel", "a\tx"], {"text": ("words",)}, "train.tsv:1: --text_columns: no column 'words'; there are text, "
     "label$"),
    (["", "text\tlabel", "a\tx"], {"label": ("kind",)}, "train.tsv:2: --label_column: no column 'kind'; there are "),
    (["text\tlabel", "a\tx"], {"label": ("2",)}, "--label_column: no column '2'; there are text, label$"),
    (["a\tx", "b\tx"], {"label": ("2",)}, "--label_column: no column '2'; there are 2 columns, by number from 0$"),
    (["a\tx", "b\tx"], {"label": ("kind",), "header": False}, "no column 'kind'; there are 2 columns, by number"),
    (["a" * 50 + "\tx", "b\tx"], {"label": ("kind",)}, "no column 'kind'; there are a{40}, x$"),
    (["a", "b"], {}, "no column is left for the label; the columns are 0 .--text_columns and --label_column choose.$"),
    (["label", "b"], {}, "no column is left for the text; the columns are label"),
    (["a\tx", "b\tx"], {"text": ("1",), "label": ("1",)}, "no column is left for the label"),
    (["text\ttext\tlabel", "a\tb\tx"], {}, "train.tsv:1: 2 columns are named 'text'; rename them, or say "
     "--header=false if this is no header"),
    ([""], {}, "train.tsv: the file is empty"),
])
def test_columns_that_are_not_there_are_refused_with_those_that_are(find, lines, asked, message):
    with pytest.raises(UserError, match=message):
        find(lines, **asked)


def test_names_over_two_lines_are_said_in_one(find):
    with pytest.raises(UserError) as refused:
        find(['"the\ntext",label', "a,x"], ("words",), ending=".csv")
    assert str(refused.value).endswith("no column 'words'; there are the text, label")


def test_columns_without_a_name_may_be_many(find):
    assert places(find(["\t\ttext\tlabel", "0\t1\ta\tx"])) == (True, (2,), 3)
