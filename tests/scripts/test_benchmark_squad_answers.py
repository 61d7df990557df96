"""The benchmark of SQuAD's answers: what it measures and prints on a small file, and that it sees a difference."""

import json
import pathlib
import sys

import numpy as np
import pytest

from bert_tf.cli import app
from bert_tf.errors import UserError
from bert_tf.squad.features import Features

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import benchmark_squad_answers  # noqa: E402


@pytest.fixture
def files(tmp_path):
    """The flags that name a small vocabulary and a file of two questions."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh."]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    qas = [{"id": f"q{number}", "question": "a b", "answers": [{"text": "C", "answer_start": 2}]} for number in (1, 2)]
    content = {"data": [{"paragraphs": [{"context": "A C d. " * 9, "qas": qas}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(content), encoding="utf-8")
    return [f"--predict_file={tmp_path / 'dev.json'}", f"--vocab_file={tmp_path / 'vocab.txt'}", "--max_seq_length=24",
            "--doc_stride=8", "--max_query_length=6"]


def parse(*arguments):
    values, _ = app.parse(benchmark_squad_answers.define_flags, ["benchmark_squad_answers.py", *arguments])
    return values


@pytest.mark.parametrize("more, questions", [([], 2), (["--version_2_with_negative", "--num_questions=1"], 1)])
def test_both_ways_are_timed_on_both_kinds_of_logits(files, capsys, more, questions):
    benchmark_squad_answers.run(parse(*files, *more, "--repeats=1"))
    first, header, *rows = capsys.readouterr().out.splitlines()
    assert f": {questions} questions, " in first and header.endswith("ratio")
    assert [row.split()[0] for row in rows] == ["peaked", "random"]
    for _, plain, ours, ratio in map(str.split, rows):
        assert float(plain) > 0 and float(ours) > 0 and float(ratio) > 0


def test_answers_that_differ_end_it(files, monkeypatch):
    monkeypatch.setattr(benchmark_squad_answers, "softmax", lambda scores: [0.5] * len(scores))
    with pytest.raises(AssertionError, match="peaked: the answers differ"):
        benchmark_squad_answers.run(parse(*files, "--repeats=1"))


def test_a_file_that_is_missing_is_named(files):
    with pytest.raises(UserError, match="no_such.json"):
        benchmark_squad_answers.run(parse(*files, "--predict_file=no_such.json"))


def test_peaked_logits_are_sure_of_few_places_and_of_no_answer_in_each_second_window():
    lengths = np.full(400, 50)
    values = dict.fromkeys(Features.__dataclass_fields__)
    features = Features(**{**values, "path": "dev.json", "row_splits": np.concatenate([[0], np.cumsum(lengths)]),
                           "first_lengths": lengths})
    peaked, random = (benchmark_squad_answers.make_logits(features, 64, kind, np.random.default_rng(0))
                      for kind in ("peaked", "random"))
    assert peaked.shape == random.shape == (2, 400, 64) and peaked.dtype == random.dtype == np.float32

    def greatest(logits):
        return np.median((np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)).max(axis=2))

    assert greatest(peaked) > 0.8 > 0.6 > greatest(random)
    assert (peaked[:, ::2].argmax(axis=2) == 0).mean() > 0.8 > 0.2 > (peaked[:, 1::2].argmax(axis=2) == 0).mean()
