import gzip
import json

import pytest

from bert_tf.classification import examples, tasks
from bert_tf.errors import UserError


def read(task, split, data_dir, language=None):
    path, table = examples.find_table(task, split, data_dir, language)
    return list(examples.read(path, table, task, language))


def write(folder, text, name="train.tsv"):
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


# What the original reads.


def recorded_examples(shared):
    with gzip.open(shared("goldens/classifier/features.json.gz")) as file:
        return json.load(file)["tasks"]


@pytest.mark.parametrize("number", range(11))
def test_recorded_examples(shared, number):
    recorded = recorded_examples(shared)[number]
    task = tasks.find(recorded["task"])
    found = read(task, recorded["split"], shared("goldens/glue_data") / task.name, task.language)
    assert [(row.text_a, row.text_b) for row in found] == [
        (row["text_a"], row["text_b"]) for row in recorded["examples"]]
    if recorded["split"] == "test":
        assert {row.label for row in found} == {None}
    else:
        assert [task.labels[row.label] for row in found] == [row["label"] for row in recorded["examples"]]
    if task.name != "MNLI":  # whose guids are the rows' own numbers
        assert [row.line - 1 for row in found] == [int(row["guid"].split("-")[1]) for row in recorded["examples"]]


ROWS = [("CoLA", 8551, 1043, 1063), ("SST-2", 67349, 872, 1821), ("MRPC", 3668, 408, 1725),
        ("STS-B", 5749, 1500, 1379), ("QQP", 20000, 3496, None), ("QNLI", 10475, 5463, None),
        ("RTE", 2490, 277, 3000), ("WNLI", 635, 71, 146), ("MNLI", 6, 5, 5)]


@pytest.mark.parametrize("name, train, dev, test", ROWS)
def test_every_row_of_glue_is_read(shared, caplog, name, train, dev, test):
    task = tasks.find(name)
    counts = {"train": train, "dev": dev, "test": test}
    for split in task.splits:
        count = counts[split.partition("_")[0]]
        if count:
            found = read(task, split, shared(f"data/glue/{name}"))
            assert len(found) == count, split
            assert len({row.line for row in found}) == count
    assert not caplog.records


def test_label_shares_of_real_data(shared):
    labels = [row.label for row in read(tasks.find("MRPC"), "dev", shared("data/glue/MRPC"))]
    assert (labels.count(0), labels.count(1)) == (129, 279)
    scores = [row.label for row in read(tasks.find("STS-B"), "train", shared("data/glue/STS-B"))]
    assert (min(scores), max(scores)) == (0.0, 5.0) and 2.6 < sum(scores) / len(scores) < 2.8


@pytest.mark.parametrize("folder, language", [("XNLI-1.0", "de"), ("XNLI-1.0", "en"), ("XNLI-1.0", "es"),
                                              ("XNLI-1.0", "zh"), ("xtreme", "en"), ("xtreme", "zh")])
def test_every_row_of_xnli_is_read(shared, folder, language):
    found = read(tasks.find("XNLI"), "dev", shared(f"data/xnli/{folder}"), language)
    labels = [row.label for row in found]
    assert [labels.count(label) for label in range(3)] == [830, 830, 830]


def test_both_layouts_of_xnli_hold_the_same(shared):
    for language in ("en", "zh"):
        own, xtreme = (read(tasks.find("XNLI"), "dev", shared(f"data/xnli/{folder}"), language)
                       for folder in ("XNLI-1.0", "xtreme"))
        assert [row[1:] for row in own] == [row[1:] for row in xtreme]


@pytest.mark.parametrize("language, ones", [("en", 863), ("zh", 853)])
def test_every_row_of_paws_x_is_read(shared, language, ones):
    labels = [row.label for row in read(tasks.find("PAWS-X"), "dev", shared("data/paws-x"), language)]
    assert len(labels) == 2000 and sum(labels) == ones


def test_the_own_layout_of_paws_x(tmp_path):
    (tmp_path / "fr").mkdir()
    write(tmp_path / "fr", "id\tsentence1\tsentence2\tlabel\n7\ta\tb\t1\n", "translated_train.tsv")
    assert read(tasks.find("PAWS-X"), "train", tmp_path, "fr") == [(2, "a", "b", 1)]


# The quirks of files.


def test_marks_quotes_line_ends_and_other_separators_are_text_or_nothing(tmp_path):
    write(tmp_path, "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
          "1\t2\t3\t\"a\u2028 b\t'c\"\r\n0\t2\t3\t \t\n".encode())
    assert read(tasks.find("MRPC"), "train", tmp_path) == [(2, '"a\u2028 b', "'c\"", 1), (3, " ", "", 0)]


def test_the_last_line_needs_no_end(tmp_path):
    assert read(tasks.find("SST-2"), "train", write(tmp_path, "sentence\tlabel\na\t1")) == [(2, "a", None, 1)]


def test_the_last_column_is_the_label_whatever_comes_between(tmp_path, caplog):
    head = "\t".join(f"c{number}" for number in range(12))
    row = "\t".join(["x"] * 8 + ["a", "b", "entailment", "neutral"])
    assert read(tasks.find("MNLI"), "train", write(tmp_path, f"{head}\n{row}\n")) == [(2, "a", "b", 2)]
    assert not caplog.records


def test_a_tab_too_many_is_said(tmp_path, caplog):
    write(tmp_path, "sentence\tlabel\na\t1\nb\t0\tc\n")
    assert len(read(tasks.find("SST-2"), "train", tmp_path)) == 2
    assert ("train.tsv: 2 examples; 1 rows with another number of columns than the first (2): a tab inside a text? "
            "(line 3)") in caplog.text


def test_rows_of_qqp_that_lost_a_tab_are_left_out_and_said(tmp_path, caplog):
    write(tmp_path, "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t1\t2\ta b\t1\n2\t3\t4\ta\tb\t1\n")
    assert read(tasks.find("QQP"), "train", tmp_path) == [(3, "a", "b", 1)]
    assert "train.tsv: 1 examples; 1 rows that lack a column left out (line 2)" in caplog.text


def test_blank_lines_and_empty_texts_are_counted_in_one_line(tmp_path, caplog):
    lines = ["", "sentence\tlabel", "", "a\t1", *[""] * 6, "\t0", " \t0"]
    assert read(tasks.find("SST-2"), "train", write(tmp_path, "\n".join(lines))) == [
        (4, "a", None, 1), (11, "", None, 0), (12, " ", None, 0)]
    (record,) = caplog.records
    assert record.getMessage().endswith("train.tsv: 3 examples; 8 blank lines left out (line 1, 3, 5, 6, 7, ...); "
                                        "2 rows with an empty text (line 11, 12)")


# What is refused.


@pytest.mark.parametrize("name, text, message", [
    ("SST-2", "", "train.tsv: the file is empty"),
    ("SST-2", "sentence\tlabel\n", "train.tsv: holds no example"),
    ("SST-2", "sentence\tlabel\na\t1\nb\n", "train.tsv:3: expected at least 2 tab-separated columns, found 1"),
    ("SST-2", "sentence\tlabel\na\t2\n", "train.tsv:2: '2' is no label of SST-2; there are 0, 1"),
    ("SST-2", "sentence\tlabel\na\t 1\n", "train.tsv:2: ' 1' is no label"),
    ("CoLA", "a\t1\t\n", "train.tsv:1: expected at least 4 tab-separated columns, found 3"),
    ("RTE", "index\tsentence1\tsentence2\tlabel\n0\ta\tentailment\n", "train.tsv:2: expected at least 4 .*, found 3"),
    ("RTE", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tneutral\n", "train.tsv:2: 'neutral' is no label of RTE"),
    ("STS-B", "\t" * 9 + "\n" + "\t" * 9 + "much\n", "train.tsv:2: 'much' is no score; STS-B takes numbers"),
    ("STS-B", "\t" * 9 + "\n" + "\t" * 9 + "nan\n", "train.tsv:2: 'nan' is no score"),
    ("CoLA", "source\tlabel\tmark\tsentence\nx\t1\t\ta\n", "train.tsv:1: 'label' is no label of CoLA, so that the "
     r"first line looks like a header, but CoLA has none in this file; take the line out \(labels: 0, 1\)"),
    ("SST-2", "a\t1\nb\t0\n", r"train.tsv:1: the first line reads like a row \('1'\), but SST-2 has a header in this "
     "file; put a line of column names above it"),
    ("XNLI", "a\tb\tcontradictory\n", "the first line reads like a row"),
    ("STS-B", "\t" * 9 + "3.5\n", "the first line reads like a row"),
    ("SST-2", f"sentence\tlabel\na\t{'9' * 100}\n", r"train.tsv:2: '9{57}\.\.\.' is no label"),
    ("SST-2", b"sentence\tlabel\na\xff\t1\n", "train.tsv:2: byte 0xff is not UTF-8"),
])
def test_what_is_no_example_is_refused_with_its_line(tmp_path, name, text, message):
    task = tasks.find(name)
    file = task.splits["train"][0].file.format(language=task.language)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    with pytest.raises(UserError, match=message):
        read(task, "train", write(tmp_path, text, file), task.language)


def test_a_test_file_without_its_header_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"test.tsv:1: the first line reads like a row \('0'\), but SST-2"):
        read(tasks.find("SST-2"), "test", write(tmp_path, "0\ta\n1\tb\n", "test.tsv"))


@pytest.mark.parametrize("cell, classes", [("b", (1,)), ("c, a", (0, 2)), ("a,a,,", (0,)), ("", ()),
                                           (["b", "c"], (1, 2))])
def test_rows_with_several_labels(caplog, cell, classes):
    found = [(1, {"text": "x", "labels": cell})]
    table = tasks.Table("", ("text",), "labels", header=False, rows=lambda path: iter(found), path="rows")
    task = tasks.Task("tags", {}, ("a", "b", "c"), kind="multi")
    assert list(examples.read("rows", table, task)) == [(1, "x", None, classes)]
    assert ("1 rows with none of the labels (line 1)" in caplog.text) == (not classes)


def test_many_labels_are_not_all_listed():
    assert examples.listed(list("ab")) == "a, b"
    assert examples.listed([str(number) for number in range(31)]).endswith("28, 29, ... (31 in all)")


def test_files_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(UserError, match="holds no train file of MRPC: no .*train.tsv$"):
        read(tasks.find("MRPC"), "train", tmp_path)
    with pytest.raises(UserError, match="no dev file of PAWS-X: no .*/de/dev_2k.tsv or .*/dev-de.tsv$"):
        read(tasks.find("PAWS-X"), "dev", tmp_path, "de")
    with pytest.raises(UserError, match="the task AX has no train file; it has test"):
        read(tasks.find("AX"), "train", tmp_path)


def test_a_language_that_a_file_lacks_is_refused_naming_those_it_has(shared):
    with pytest.raises(UserError, match="holds no example in 'fr', only in de, en, es, zh"):
        read(tasks.find("XNLI"), "dev", shared("data/xnli/XNLI-1.0"), "fr")
