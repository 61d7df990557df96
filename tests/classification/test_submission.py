import logging
import zipfile

import numpy as np
import pytest

from bert_tf.classification import submission, tasks
from bert_tf.errors import UserError


def decided(task, count):
    """Predictions in turn."""
    if task.kind == "regression":
        return np.linspace(-1, 6, count, dtype=np.float32)
    return np.arange(count) % task.num_classes


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each task, as predicting whole test sets leaves it."""
    root = tmp_path_factory.mktemp("results")
    for row in submission.TEST_SETS:
        (root / row.task).mkdir(exist_ok=True)
        submission.write(root / row.task / row.file, tasks.find(row.task),
                         decided(tasks.find(row.task), row.num_examples), 2 + np.arange(row.num_examples))
    return root


def test_every_test_set_of_glue_has_its_file():
    assert [row.file for row in submission.TEST_SETS] == [
        f"{name}.tsv" for name in ("CoLA", "SST-2", "MRPC", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "QQP", "RTE", "WNLI",
                                   "AX")]
    for row in submission.TEST_SETS:
        assert row.split in tasks.find(row.task).splits
        assert submission.find(tasks.find(row.task), row.split) == row
    assert submission.find(tasks.find("MNLI"), "test_mismatched").file == "MNLI-mm.tsv"
    assert submission.find(tasks.find("XNLI"), "test") is submission.find(tasks.find("MRPC"), "dev") is None


@pytest.mark.parametrize("name", ["CoLA", "SST-2", "MRPC", "STS-B", "RTE", "WNLI"])
def test_the_numbers_of_examples_are_those_of_the_files(shared, name):
    lines = shared(f"data/glue/{name}/test.tsv").read_bytes().count(b"\n") - 1
    assert submission.find(tasks.find(name), "test").num_examples == lines


@pytest.mark.parametrize("name, predictions, expected", [
    ("MRPC", [1, 0], ["1", "0"]), ("RTE", [1, 0], ["not_entailment", "entailment"]),
    ("AX", [0, 2], ["contradiction", "neutral"]), ("STS-B", np.float32([-0.2, 5.1]), ["0.000", "5.000"]),
    ("STS-B", np.float32([2.71828, 4]), ["2.718", "4.000"])])
def test_a_file_holds_names_or_scores(tmp_path, name, predictions, expected):
    submission.write(tmp_path / "f", tasks.find(name), np.asarray(predictions), np.array([2, 3]))
    assert (tmp_path / "f").read_text() == f"index\tprediction\n0\t{expected[0]}\n1\t{expected[1]}\n"


def test_a_row_that_is_left_out_moves_no_other(tmp_path):
    submission.write(tmp_path / "f", tasks.find("QQP"), np.array([1, 0]), np.array([2, 4]))
    assert (tmp_path / "f").read_text() == "index\tprediction\n0\t1\n2\t0\n"


def test_the_zip_file_holds_all_and_is_the_same_each_time(folders, tmp_path):
    for name in ("a.zip", "b.zip"):
        submission.write_zip(tmp_path / name, [str(folders)])
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == [row.file for row in submission.TEST_SETS]
        for row in submission.TEST_SETS:
            assert archive.read(row.file) == (folders / row.task / row.file).read_bytes()
            assert len(archive.read(row.file).splitlines()) == row.num_examples + 1
    # Each task's own folder says the same as the one that holds them.
    submission.write_zip(tmp_path / "c.zip", sorted({str(folders / row.task) for row in submission.TEST_SETS}))
    assert (tmp_path / "c.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()


def test_missing_ones_are_named_and_filled_in_only_on_wish(folders, tmp_path, caplog):
    given = [str(folders / name) for name in ("MNLI", "STS-B")]
    with pytest.raises(UserError, match=r"no CoLA.tsv, SST-2.tsv, MRPC.tsv, QNLI.tsv, .* \(--allow_missing"):
        submission.write_zip(tmp_path / "a.zip", given)
    assert not list(tmp_path.iterdir())
    with caplog.at_level(logging.INFO):
        submission.write_zip(tmp_path / "a.zip", given, allow_missing=True)
    assert "holds a constant for CoLA.tsv, SST-2.tsv" in caplog.text and "MNLI-m.tsv: 9796 rows from" in caplog.text
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert len(archive.namelist()) == 11
        assert archive.read("RTE.tsv").splitlines()[-1] == b"2999\tentailment"
        assert archive.read("MNLI-mm.tsv") == (folders / "MNLI/MNLI-mm.tsv").read_bytes()


@pytest.mark.parametrize("change, part", [
    (lambda lines: lines[:-1], "has 145 predictions, the test set has 146 examples"),
    (lambda lines: [*lines, "146\t0"], "has 147 predictions"),
    (lambda lines: [], "has 0 predictions"),
    (lambda lines: lines[1:], "WNLI.tsv:1: the header must be"),
    (lambda lines: [*lines[:3], *lines[4:]], "WNLI.tsv:4: example 2 is missing or not in its place"),
    (lambda lines: [*lines[:3], "2\tyes", *lines[4:]], "WNLI.tsv:4: 'yes' is no label of WNLI"),
])
def test_a_file_that_is_not_whole_is_refused(folders, tmp_path, change, part):
    lines = (folders / "WNLI/WNLI.tsv").read_text().splitlines()
    (tmp_path / "WNLI.tsv").write_text("".join(line + "\n" for line in change(lines)))
    with pytest.raises(UserError, match=part):
        submission.write_zip(tmp_path / "a.zip", [str(tmp_path)], allow_missing=True)
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.parametrize("prediction", ["5.001", "-1", "nan", "high"])
def test_a_score_out_of_range_is_refused(folders, tmp_path, prediction):
    lines = (folders / "STS-B/STS-B.tsv").read_text().replace("\n3\t0.000\n", f"\n3\t{prediction}\n")
    (tmp_path / "STS-B.tsv").write_text(lines)
    with pytest.raises(UserError, match=f"STS-B.tsv:5: '{prediction}' is no score"):
        submission.write_zip(tmp_path / "a.zip", [str(tmp_path)], allow_missing=True)


def test_wrong_folders_are_refused(folders, tmp_path):
    with pytest.raises(UserError, match="none: no such folder"):
        submission.collect([str(tmp_path / "none")])
    with pytest.raises(UserError, match="holds no CoLA.tsv or the like"):
        submission.collect([str(tmp_path)])
    (tmp_path / "CoLA.tsv").write_bytes((folders / "CoLA/CoLA.tsv").read_bytes())
    with pytest.raises(UserError, match="both .*CoLA.tsv and .*CoLA.tsv are there"):
        submission.collect([str(folders), str(tmp_path)])
