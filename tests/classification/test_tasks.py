import pytest

from bert_tf.classification import tasks
from bert_tf.errors import UserError


def test_the_originals_tasks_have_its_labels_and_columns():
    table = {name: tasks.find(name) for name in ("cola", "mnli", "mrpc", "xnli")}
    assert {name: task.labels for name, task in table.items()} == {
        "cola": ("0", "1"), "mrpc": ("0", "1"), "mnli": ("contradiction", "entailment", "neutral"),
        "xnli": ("contradiction", "entailment", "neutral")}
    layouts = {(name, split): (first.file, first.text, first.label, first.header)
               for name, task in table.items() for split, (first, *_) in task.splits.items()}
    assert layouts == {
        ("cola", "train"): ("train.tsv", (3,), 1, False), ("cola", "dev"): ("dev.tsv", (3,), 1, False),
        ("cola", "test"): ("test.tsv", (1,), None, True),
        ("mrpc", "train"): ("train.tsv", (3, 4), 0, True), ("mrpc", "dev"): ("dev.tsv", (3, 4), 0, True),
        ("mrpc", "test"): ("test.tsv", (3, 4), None, True),
        ("mnli", "train"): ("train.tsv", (8, 9), -1, True), ("mnli", "dev"): ("dev_matched.tsv", (8, 9), -1, True),
        ("mnli", "dev_mismatched"): ("dev_mismatched.tsv", (8, 9), -1, True),
        ("mnli", "test"): ("test_matched.tsv", (8, 9), None, True),
        ("mnli", "test_mismatched"): ("test_mismatched.tsv", (8, 9), None, True),
        ("xnli", "train"): ("multinli/multinli.train.{language}.tsv", (0, 1), 2, True),
        ("xnli", "dev"): ("xnli.dev.tsv", (6, 7), 1, True), ("xnli", "test"): ("xnli.test.tsv", (6, 7), None, True)}
    assert table["xnli"].language == "zh"


def test_every_task_of_glue_has_its_official_score_and_width():
    scores = {task.name: task.scores for task in tasks.TASKS.values() if task.scores}
    assert scores == {"CoLA": ("matthews_corrcoef",), "MRPC": ("f1",), "QQP": ("f1",),
                      "STS-B": ("pearson", "spearman")}
    assert {task.name: task.num_classes for task in tasks.TASKS.values()} == {
        "CoLA": 2, "SST-2": 2, "MRPC": 2, "STS-B": 1, "QQP": 2, "MNLI": 3, "QNLI": 2, "RTE": 2, "WNLI": 2, "AX": 3,
        "XNLI": 3, "PAWS-X": 2}


def test_a_row_must_reach_its_last_column():
    assert tasks.Table("", (3, 4), 0).num_columns == 5
    assert tasks.Table("", (3,), 1).num_columns == 4
    assert tasks.Table("", (6, 7), 1, language=0).num_columns == 8
    assert tasks.Table("", (0, 1), 5).num_columns == 6
    assert tasks.Table("", (8, 9), -1).num_columns == 11
    assert tasks.Table("", (1,)).num_columns == 2


def test_columns_of_rows_that_are_dictionaries_and_of_several_labels():
    assert tasks.Table("", ("text",), "label").columns == ["text", "label"]
    assert tasks.Table("", (0,), (3, 5, 4)).columns == [0, 3, 5, 4]
    assert tasks.Table("", (0,), (3, 5, 4)).num_columns == 6


def test_only_scores_are_a_regression():
    assert {task.name for task in tasks.TASKS.values() if task.kind != "single"} == {"STS-B"}
    assert tasks.find("STS-B").kind == "regression" and not tasks.find("STS-B").labels


def test_splits_by_kind():
    assert tasks.find("MNLI").splits_of("dev") == ["dev", "dev_mismatched"]
    assert tasks.find("MNLI").splits_of("test") == ["test", "test_mismatched"]
    assert tasks.find("RTE").splits_of("train") == ["train"]
    assert tasks.find("AX").splits_of("dev") == []


@pytest.mark.parametrize("name", ["STS-B", "sts-b", "Sts-B"])
def test_names_in_any_case(name):
    assert tasks.find(name).name == "STS-B"


@pytest.mark.parametrize("name", ["", "MNLI-mm", "../mrpc"])
def test_an_unknown_name_is_refused_with_all_that_there_are(name):
    with pytest.raises(UserError, match="no such task; there are CoLA, SST-2, MRPC, .*, AX, XNLI, PAWS-X, and custom "
                       "for data of your own$"):
        tasks.find(name)
