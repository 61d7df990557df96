"""Data of a user's own: real sets as they are, every format, every kind of label, every refusal."""

import csv
import json
import logging
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.classification import columns, custom, examples, tasks
from bert_tf.errors import UserError


@pytest.fixture(autouse=True)
def said(caplog):
    caplog.set_level(logging.INFO, "bert_tf")
    return caplog


def make(labels=None, task=None, text=(), label=(), header=None, **source):
    asked = columns.Asked(text, label, header)
    return custom.make_task(custom.Source(asked=asked, **source), labels, task)


def read(task, split, data_dir=None):
    path, table = examples.find_table(task, split, data_dir)
    return list(examples.read(path, table, task))


def write(folder, name, *lines):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


# Real data.


def test_every_row_of_ag_news_is_read(shared):
    folder = shared("data/classification/ag_news")
    source = dict(paths={"train": str(folder / "test.csv")}, text=("1", "2"), label=("0",))
    plain, named = make(**source), make(labels_file=str(folder / "classes.txt"), **source)
    assert plain.labels == ("1", "2", "3", "4") and named.labels == ("World", "Sports", "Business", "Sci/Tech")
    rows = read(plain, "train")
    assert len(rows) == 7600 and rows == read(named, "train")
    assert np.bincount([row.label for row in rows]).tolist() == [1900] * 4
    assert rows[0][:2] == (1, "Fears for T N pension after talks") and rows[0].label == 2


def test_every_row_of_chnsenticorp_is_read(shared, said):
    task = make(data_dir=str(shared("data/classification/chnsenticorp_zh")))
    assert (task.kind, task.labels) == ("single", ("0", "1"))
    assert {split: len(read(task, split)) for split in task.splits} == {"train": 9600, "dev": 1200, "test": 1200}
    assert {row.label for row in read(task, "test")} == {None}
    assert "train.tsv: a header (--header says otherwise); text from text_a; label from label" in said.text


def test_every_row_of_the_imdb_sample_is_read(shared):
    task = make(paths={"train": str(shared("data/classification/imdb_sample/imdb.tsv"))})
    assert np.bincount([row.label for row in read(task, "train")]).tolist() == [1236, 1264]


def test_every_row_of_trec_is_read_once_the_label_has_a_column(shared, tmp_path):
    for split in ("train", "test"):
        text = shared(f"data/classification/trec/{split}.txt").read_text(encoding="utf-8")
        (tmp_path / f"{split}.tsv").write_text(re.sub(r"(?m)^([A-Z]+):\S+ ", r"\1\t", text), encoding="utf-8")
    task = make(data_dir=str(tmp_path), text=("1",), label=("0",))
    assert task.labels == ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    assert (len(read(task, "train")), len(read(task, "test"))) == (5452, 500)


def test_every_row_of_goemotions_is_read(shared, said):
    folder = shared("data/multilabel/goemotions")
    task = make(data_dir=str(folder), labels_file=str(folder / "labels.txt"), label=("1",))
    assert task.kind == "multi" and task.num_classes == 28 and task.labels[0] == "admiration"
    rows = read(task, "train")
    assert (len(rows), len(read(task, "dev")), len(read(task, "test"))) == (43410, 5426, 5427)
    assert sum(len(row.label) > 1 for row in rows) == 7102
    assert [task.labels[number] for number in read(task, "dev")[1].label] == ["approval", "neutral"]
    assert "the numbers in the data count the labels from 0: 0 is admiration" in said.text


def test_labels_that_are_numbers_keep_their_order(shared):
    task = make(data_dir=str(shared("data/multilabel/goemotions")), label=("1",))
    assert task.kind == "multi" and task.labels == tuple(map(str, range(28)))


def test_xnli_in_another_layout(shared):
    task = make(paths={"train": str(shared("data/xnli/ernie/zh-test.tsv"))})
    rows = read(task, "train")
    assert task.labels == ("contradiction", "entailment", "neutral")
    assert np.bincount([row.label for row in rows]).tolist() == [1670] * 3 and all(row.text_b for row in rows)


# Formats.


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r"), min_size=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from("xy")), min_size=1))
def test_every_format_gives_the_same_examples(folder, rows):
    rows = [("a", "b", "x"), ("a", "b", "y"), *rows]
    names = ("sentence1", "sentence2", "label")
    with open(folder / "train.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    write(folder, "train.tsv", *map("\t".join, [names, *rows]))
    write(folder, "train.jsonl", *(json.dumps(dict(zip(names, row))) for row in rows))
    for ending, first_line in (("tsv", 2), ("csv", 2), ("jsonl", 1)):
        task = make(paths={"train": str(folder / f"train.{ending}")})
        assert read(task, "train") == [(line, a, b, "xy".index(label))
                                       for line, (a, b, label) in enumerate(rows, start=first_line)]


def test_a_record_of_several_lines_is_known_by_its_first(tmp_path):
    path = write(tmp_path, "a.csv", "text,label", '"one', "", 'two ""quoted""",x', "b,y")
    task = make(paths={"train": path})
    assert read(task, "train") == [(2, 'one\n\ntwo "quoted"', None, 0), (5, "b", None, 1)]


def test_splits_may_differ_in_format_and_order_of_columns(tmp_path):
    write(tmp_path, "train.csv", "label,text,id", "pos,a,1", "neg,b,2")
    write(tmp_path, "dev.jsonl", '{"id": 7, "text": "c", "label": "pos"}')
    write(tmp_path, "test.txt", "id\ttext", "9\td")
    task = make(data_dir=str(tmp_path))
    assert read(task, "dev") == [(1, "c", None, 1)] and read(task, "test") == [(2, "d", None, None)]


def test_columns_that_go_by_number_do_so_in_files_with_and_without_header(tmp_path):
    write(tmp_path, "train.tsv", "x\ta\tpos", "y\tb\tneg")
    write(tmp_path, "dev.tsv", "id\ttext\tlabel", "z\tc\tpos")
    task = make(data_dir=str(tmp_path), text=("1",))
    assert read(task, "train")[0] == (1, "a", None, 1) and read(task, "dev") == [(2, "c", None, 1)]


def test_names_and_labels_are_never_paths(tmp_path):
    write(tmp_path, "train.tsv", "text\tlabel", "a\t../../x", "b\t/etc/{language}")
    task = make(data_dir=str(tmp_path))
    assert task.name == "custom" and task.labels == ("../../x", "/etc/{language}") and len(read(task, "train")) == 2
    odd = write(tmp_path, "{language}.tsv", "text\tlabel", "a\tx", "b\ty")
    assert len(read(make(paths={"train": odd}), "train")) == 2


def test_a_task_can_go_to_another_process(tmp_path):
    write(tmp_path, "train.csv", "text,label", "a,x", "b,y")
    task = make(data_dir=str(tmp_path))
    assert pickle.loads(pickle.dumps(task)) == task


# Kinds of labels.


@pytest.mark.parametrize("cells, kind, labels", [
    (["b", "a", "b"], "single", ("a", "b")),
    (["10", "9", "2"], "single", ("2", "9", "10")),
    (["-1", "1", "0"], "single", ("-1", "0", "1")),
    (["1", "x", "10"], "single", ("1", "10", "x")),
    (["3.0", "4.0", "5"], "single", ("3.0", "4.0", "5")),
    (["3.5", "4", "1e-3"], "regression", ()),
    (["a", "b", "a, b"], "multi", ("a", "b")),
    (["a", "", "b,a", "c,a", "b"], "multi", ("a", "b", "c")),
    (["x,y", "z", "x,y"], "single", ("x,y", "z")),
    (["a"] * 200 + ["b"] * 200 + ["c", "a,b"], "single", ("a", "a,b", "b", "c")),
])
def test_the_kind_of_label_is_found_and_said(tmp_path, said, cells, kind, labels):
    write(tmp_path, "train.tsv", "text\tlabel", *(f"x\t{cell}" for cell in cells))
    task = make(data_dir=str(tmp_path))
    assert (task.kind, task.labels) == (kind, labels)
    words = {"single": f"one of {len(labels)} labels: {', '.join(labels)}", "regression": "the label is a score",
             "multi": f"several of {len(labels)} labels: "}
    assert f"custom: {words[kind]}" in said.text
    assert len(read(task, "train")) == len(cells)


def test_the_user_says_the_kind(tmp_path):
    write(tmp_path, "train.tsv", "text\tlabel", "x\t1", "y\t2|3", "z\t2")
    assert make(data_dir=str(tmp_path), kind="single").labels == ("1", "2", "2|3")
    several = make(data_dir=str(tmp_path), kind="multi", separator="|")
    assert several.labels == ("1", "2", "3") and [row.label for row in read(several, "train")] == [(0,), (1, 2), (1,)]
    write(tmp_path, "train.tsv", "text\tlabel", "x\t1", "y\t3")
    score = make(data_dir=str(tmp_path), kind="regression")
    assert score.scores == ("pearson", "spearman") and [row.label for row in read(score, "train")] == [1.0, 3.0]


def test_lists_of_json_are_several_labels(tmp_path):
    write(tmp_path, "train.jsonl", '{"text": "a", "labels": ["y", "x"]}', '{"text": "b", "labels": []}')
    task = make(data_dir=str(tmp_path))
    assert (task.kind, task.labels) == ("multi", ("x", "y"))
    assert [row.label for row in read(task, "train")] == [(0, 1), ()]


@pytest.mark.parametrize("name, lines", [
    ("train.csv", ["text,bad,good", "a,0,1", "b,1,1", "c,0,0"]),
    ("train.jsonl", ['{"text": "a", "bad": false, "good": true}', '{"text": "b", "bad": 1, "good": 1.0}',
                     '{"text": "c", "bad": 0, "good": 0}'])])
def test_a_column_for_each_label(tmp_path, said, name, lines):
    write(tmp_path, name, *lines)
    task = make(data_dir=str(tmp_path), label=("good", "bad"))
    assert (task.kind, task.labels) == ("multi", ("good", "bad"))
    assert [row.label for row in read(task, "train")] == [(0,), (0, 1), ()]
    assert "1 rows with none of the labels" in said.text


def test_columns_of_labels_are_named_by_a_file_or_by_number(tmp_path):
    write(tmp_path, "train.tsv", "x\t0\t1", "y\t1\t0")
    source = dict(data_dir=str(tmp_path), label=("1", "2"))
    assert make(**source).labels == ("1", "2")
    named = make(labels_file=write(tmp_path, "labels.list", "good", "bad"), **source)
    assert named.labels == ("good", "bad") and [row.label for row in read(named, "train")] == [(1,), (0,)]
    assert make(labels=["good", "bad"], **source) == named


def test_rows_without_a_label_are_left_out_and_counted(tmp_path, said):
    write(tmp_path, "train.jsonl", *(json.dumps({"text": "a", "label": label}) for label in ("x", None, "y")))
    task = make(data_dir=str(tmp_path))
    assert [row.line for row in read(task, "train")] == [1, 3]
    assert "train.jsonl: 2 examples; 1 rows without a label left out (line 2)" in said.text


def test_spaces_around_a_label_do_not_make_another(tmp_path):
    write(tmp_path, "train.tsv", "text\tlabel", "a\tx ", "b\tx", "c\t y")
    task = make(data_dir=str(tmp_path))
    assert task.labels == ("x", "y") and [row.label for row in read(task, "train")] == [0, 0, 1]


# Where labels come from.


def test_a_models_labels_keep_their_order_without_a_train_file(tmp_path):
    write(tmp_path, "dev.tsv", "text\tlabel", "a\tneg", "b\tneg")
    task = make(labels=["pos", "neg"], data_dir=str(tmp_path))
    assert task.labels == ("pos", "neg") and [row.label for row in read(task, "dev")] == [1, 1]
    write(tmp_path, "test.tsv", "text", "c")
    (tmp_path / "dev.tsv").unlink()
    task = make(labels=["pos", "neg"], kind="single", data_dir=str(tmp_path))
    assert read(task, "test") == [(2, "c", None, None)]


@pytest.mark.parametrize("cells, classes", [(["0", "2"], [0, 2]), (["3", "1"], [2, 0]), (["1", "2"], [1, 2])])
def test_numbers_count_the_named_labels(tmp_path, said, cells, classes):
    write(tmp_path, "train.tsv", "text\tlabel", *(f"a\t{cell}" for cell in cells))
    labels_file = write(tmp_path, "labels.txt", "r", "s", "t", "", "")
    task = make(data_dir=str(tmp_path), labels_file=labels_file)
    assert [row.label for row in read(task, "train")] == classes
    warned = any("count the labels" in record.getMessage() for record in said.records if record.levelname == "WARNING")
    assert warned == (cells == ["1", "2"])


def test_labels_that_are_numbers_themselves_are_not_counted(tmp_path):
    write(tmp_path, "train.tsv", "text\tlabel", "a\t1", "b\t5")
    task = make(data_dir=str(tmp_path), labels_file=write(tmp_path, "labels.txt", "5", "1"))
    assert [row.label for row in read(task, "train")] == [1, 0]


# What is refused.


LABELLED = ["text\tlabel", "a\tx", "b\ty"]


@pytest.mark.parametrize("lines, said, message", [
    ([*LABELLED, "c\tz"], {"labels": ["x", "y"]}, "train.tsv:4: 'z' is no label of custom; there are x, y$"),
    ([*LABELLED, "c\t"], {}, "train.tsv:4: '' is no label of custom; there are x, y$"),
    ([*LABELLED, "c"], {}, "train.tsv:4: expected at least 2 tab-separated columns, found 1$"),
    (["text\tlabel", "a\t0", "b\t3"], {"labels": ["x", "y", "z"], "header": True},
     "train.tsv:3: '3' is out of the range of the label numbers, 0 to 2$"),
    (["text\tlabel", "a\t0.5", "b\tmuch"], {"kind": "regression"}, "train.tsv:3: 'much' is no score; custom takes"),
    (["text\ta\tb", "x\t0\t2"], {"label": ("a", "b")}, "train.tsv:2: '2' in the label column 2 is neither 0 nor 1"),
    (["text\ta\tb", "x\t0\t1"], {"label": ("a", "b"), "kind": "single"}, "only --label_kind=multi has a column"),
    (["text\ta\tb", "x\t0\t1"], {"label": ("a", "b"), "labels": ["b", "a"]}, "must be a column for each label, in "
     "their order: b, a$"),
    (["text\ta\tb", "x\t0\t1"], {"label": ("a", "b"), "labels": ["c", "d"]}, "must be a column for each label"),
    (["text\ta\tb", "x\t0\t1"], {"label": ("a", "b"), "labels": ["a", "b", "c"]}, "must be a column for each label"),
    (["text\tlabel", "a\tx"], {}, "train.tsv: there must be two labels at least, not x$"),
    (["text\tlabel"], {}, "train.tsv: holds no label$"),
    (["text\tlabel", *(f"a\t{number}x" for number in range(101))], {}, "train.tsv: the column label holds 101 "
     "different labels in 101 rows; name the label's with --label_column, or the kind with --label_kind$"),
    ([""], {}, "train.tsv: the file is empty"),
    (LABELLED, {"text": ("a", "b", "c")}, "--text_columns=a,b,c: an example has one text or two"),
    (LABELLED, {"kind": "many"}, "--label_kind=many is none of auto, single, multi, regression"),
    (LABELLED, {"separator": ""}, "--label_separator is empty"),
    (LABELLED, {"label": ("kind",)}, "train.tsv:1: --label_column: no column 'kind'; there are text, label$"),
])
def test_what_does_not_fit_is_refused(tmp_path, lines, said, message):
    write(tmp_path, "train.tsv", *lines)
    with pytest.raises(UserError, match=message):
        read(make(data_dir=str(tmp_path), **said), "train")


@pytest.mark.parametrize("line, message", [
    ('{"text": "c"}', "train.jsonl:3: the row has no 'label'; it has text$"),
    ('{"text": ["c"], "label": "x"}', r"train.jsonl:3: 'text' is no text, but \"\['c'\]\"$"),
    ('{"text": "c", "label": {"x": 1}}', "train.jsonl:3: 'label' is no text, but "),
    ('{"text": "c", "label": [null]}', r"train.jsonl:3: 'label' is no text, but '\[None\]'$"),
    ('{"text": "c", "label": ["x"]}', r"train.jsonl:3: .* is a list; --label_kind=multi takes several labels$"),
    ('{"text": "c", "label": "x"', "train.jsonl:3: not a JSON object on a line of its own"),
])
def test_rows_of_json_that_do_not_fit_are_refused(tmp_path, line, message):
    write(tmp_path, "train.jsonl", '{"text": "a", "label": "x"}', '{"text": "b", "label": "y"}', line)
    with pytest.raises(UserError, match=message):
        read(make(data_dir=str(tmp_path), kind="single"), "train")


def test_a_label_that_would_break_a_table_is_refused(tmp_path):
    write(tmp_path, "train.csv", "text,label", 'a,"x\ty"', "b,z")
    with pytest.raises(UserError, match=r"train.csv: the label 'x\\ty' holds a tab or the end of a line"):
        make(data_dir=str(tmp_path))


@pytest.mark.parametrize("lines, message", [
    (["x", "y", "x"], "labels.txt:3: the label 'x' comes twice"), (["x", "", "y"], "labels.txt:2: no label"),
    ([""], "labels.txt: the file is empty")])
def test_a_file_of_labels_must_hold_one_a_line(tmp_path, lines, message):
    write(tmp_path, "train.tsv", *LABELLED)
    with pytest.raises(UserError, match=message):
        make(data_dir=str(tmp_path), labels_file=write(tmp_path, "labels.txt", *lines))


def test_labels_of_a_score_are_refused(tmp_path):
    write(tmp_path, "train.tsv", "text\tlabel", "a\t0.5", "b\t1")
    with pytest.raises(UserError, match="--labels_file=.*: the label is a score; --label_kind=single reads numbers"):
        make(data_dir=str(tmp_path), labels_file=write(tmp_path, "labels.txt", "x"))


def test_files_that_are_not_there_are_refused_with_those_looked_for(tmp_path):
    with pytest.raises(UserError, match="holds no data: no train, dev or test that ends in .tsv, .csv, .jsonl, "):
        make(data_dir=str(tmp_path))
    with pytest.raises(UserError, match="--train_file=.*none.tsv: no such file"):
        make(paths={"train": str(tmp_path / "none.tsv")})
    with pytest.raises(UserError, match="--dev_file=data.xlsx: the name must end in .tsv, .csv, .jsonl, .json, .txt"):
        make(paths={"dev": "data.xlsx"})
    write(tmp_path, "dev.tsv", *LABELLED)
    with pytest.raises(UserError, match="the labels are not known: there is no train file"):
        make(data_dir=str(tmp_path))
    task = make(labels=["x", "y"], data_dir=str(tmp_path))
    with pytest.raises(UserError, match="holds no train file of custom: no .*/train.tsv or .*/train.csv or "):
        read(task, "train", str(tmp_path))
    write(tmp_path, "dev.csv", "text,label", "a,x")
    with pytest.raises(UserError, match="holds dev.tsv and dev.csv; say which to read with --dev_file"):
        make(labels=["x", "y"], data_dir=str(tmp_path))


def test_a_dev_file_without_the_trained_columns_is_refused(tmp_path):
    write(tmp_path, "train.tsv", *LABELLED)
    write(tmp_path, "dev.tsv", "c\tx")
    with pytest.raises(UserError, match="dev.tsv:1: --text_columns: no column 'text'; there are c, x$"):
        make(data_dir=str(tmp_path))


CELLS = st.sampled_from(["a", "b", "1", "0", "0.5", "-1", "9" * 5000, "1e999", "a,b", "text", "label", "", " ", '"',
                         "\0", "null", "[]", '["a"]', "{}", '{"text": "a", "label": "x"}', "NaN", "\ufeff", "é",
                         '{"text": 1, "label": null}', '{"a": [[1]]}', '{"\\ud800": 1}'])


@settings(max_examples=150, deadline=None)
@given(st.lists(CELLS | st.sampled_from(["\t", ",", "\n", "\n", "\t"]), max_size=20).map("".join),
       st.sampled_from([".tsv", ".csv", ".jsonl"]), st.sampled_from([None, True, False]),
       st.sampled_from([None, "single", "multi", "regression"]), st.sampled_from([None, ["x", "y"]]),
       st.sampled_from([(), ("0",), ("0", "1"), ("label",)]))
def test_whatever_a_file_holds_is_read_or_refused(folder, text, ending, header, kind, labels, label):
    path = folder / f"any{ending}"
    path.write_text(text, encoding="utf-8")
    try:
        task = make(labels=labels, paths={"train": str(path)}, header=header, kind=kind, label=label)
        rows = read(task, "train")
    except UserError as error:
        assert "\n" not in str(error)
        return
    for row in rows:
        classes = {"single": [row.label], "multi": row.label, "regression": []}[task.kind]
        assert all(0 <= number < task.num_classes for number in classes)


# tensorflow-datasets.


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """A folder with the dataset `pairs`: as GLUE's MRPC is laid out there, made here."""
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = tmp_path_factory.mktemp("tfds")
    classes = tfds.features.ClassLabel(names=["not_equivalent", "equivalent"])
    features = tfds.features.FeaturesDict({
        "sentence1": tfds.features.Text(), "sentence2": tfds.features.Text(), "label": classes, "idx": np.int32,
        "tags": tfds.features.Sequence(classes), "score": np.float32})

    def rows(labels):
        return [{"sentence1": f"é {number}", "sentence2": f"b {number}", "label": label, "idx": number,
                 "tags": [0, 1][:number], "score": number + 0.5} for number, label in enumerate(labels)]

    where = folder / "pairs" / "1.0.0"
    where.mkdir(parents=True)
    identity = tfds.core.dataset_info.DatasetIdentity("pairs", tfds.core.Version("1.0.0"), str(where), __name__)
    writer = tfds.core.SequentialWriter(tfds.core.DatasetInfo(builder=identity, features=features), 2)
    writer.initialize_splits(["train", "validation", "test"])
    writer.add_examples({"train": rows([1, 0, 1, -1]), "validation": rows([0, 1]), "test": rows([-1, -1, -1])})
    writer.close_all()
    return str(folder)


def test_the_rows_of_a_dataset(datasets, said):
    task = make(dataset="pairs", data_dir=datasets)
    assert (task.kind, task.labels) == ("single", ("not_equivalent", "equivalent"))
    assert read(task, "train") == [(1, "é 0", "b 0", 1), (2, "é 1", "b 1", 0), (3, "é 2", "b 2", 1)]
    assert read(task, "test")[2] == (3, "é 2", "b 2", None) and len(read(task, "dev")) == 2
    assert "tfds:pairs:train: 3 examples; 1 rows without a label left out (line 4)" in said.text


def test_a_known_task_reads_a_dataset_under_its_own_labels(datasets):
    task = make(task=tasks.find("MRPC"), dataset="pairs", data_dir=datasets)
    assert (task.name, task.labels, task.scores) == ("MRPC", ("0", "1"), ("f1",))
    assert [row.label for row in read(task, "dev")] == [0, 1]


def test_scores_lists_and_parts_of_a_dataset(datasets):
    scored = make(dataset="pairs", data_dir=datasets, label=("score",), paths={"dev": "train[:50%]"})
    assert scored.kind == "regression" and [row.label for row in read(scored, "dev")] == [0.5, 1.5]
    tagged = make(dataset="pairs", data_dir=datasets, label=("tags",))
    assert tagged.kind == "multi" and [row.label for row in read(tagged, "train")] == [(), (0,), (0, 1), (0, 1)]


def test_datasets_and_splits_that_are_not_there_are_refused(datasets):
    with pytest.raises(UserError, match="--dev_file=dev: tfds:pairs has no such split; it has "):
        make(dataset="pairs", data_dir=datasets, paths={"dev": "dev"})
    with pytest.raises(UserError, match="tfds:no_such_set: the dataset cannot be had"):
        make(dataset="no_such_set", data_dir=datasets)
