import importlib.util
import random

import hypothesis
import pytest
from hypothesis import strategies as st

from bert_tf.tagging import answers, examples, reports, scores
from bert_tf.tagging.answers import Entity

TAGS = st.sampled_from(["O", "O", "B-X", "I-X", "B-Y", "I-Y"])
PAIRS = st.lists(st.tuples(TAGS, TAGS), max_size=15)

# Right, cut short, of another type, both, missed, made up.
TOKENS = ["Ada", "of", "London", "met", "Bob\\", "at", "the", "Royal", "Society", "in", "May", "北京", "."]
GOLD = "B-PER O B-LOC O B-PER O O B-ORG I-ORG O O B-LOC O".split()
PREDICTED = "B-PER O B-PER O O O B-LOC I-LOC I-LOC O B-ORG B-LOC I-LOC".split()
SENTENCES = [examples.Sentence(["x"], ["O"], [3], 0), examples.Sentence(TOKENS, GOLD, list(range(5, 18)), 0)]
LABELS = [["O"], GOLD], [["O"], PREDICTED]


def test_a_report_by_hand(tmp_path):
    reports.write(tmp_path, "dev.tsv", SENTENCES, *LABELS, "BIO", "_x")
    assert (tmp_path / "report_x.txt").read_text("utf-8") == """\
dev.tsv: 2 sentences, 14 words, 0.5000 of them labelled right

                       precision  recall      f1  gold  predicted  right
LOC                       0.0000  0.0000  0.0000     2          2      0
ORG                       0.0000  0.0000  0.0000     1          1      0
PER                       0.5000  0.5000  0.5000     2          2      1
micro average             0.2000  0.2000  0.2000     5          5      1
macro average             0.1667  0.1667  0.1667
micro average, strict     0.2000  0.2000  0.2000     5          5      1

Of the gold ones of a type (row), how many were taken for which type (column); a word in common is enough:

       0  1  2  none
0 LOC  1  .  1     .
1 ORG  1  .  .     .
2 PER  .  .  1     1
none   .  1  .     .
"""


def test_mistakes_by_hand(tmp_path):
    reports.write(tmp_path, "dev.tsv", SENTENCES, *LABELS, "BIO")
    assert [line.split("\t") for line in (tmp_path / "mistakes.tsv").read_text("utf-8").splitlines()] == [
        ["line", "mistake", "gold_type", "gold", "predicted_type", "predicted", "words"],
        ["7", "type", "LOC", "London", "PER", "London",
         r"Ada of [ London ] met Bob\\ at the Royal Society in May …"],
        ["9", "missed", "PER", r"Bob\\", "", "", r"Ada of London met [ Bob\\ ] at the Royal Society in May 北京 ."],
        ["11", "type and boundary", "ORG", "Royal Society", "LOC", "the Royal Society",
         r"Ada of London met Bob\\ at [ the Royal Society ] in May 北京 ."],
        ["15", "spurious", "", "", "ORG", "May", r"… London met Bob\\ at the Royal Society in [ May ] 北京 ."],
        ["16", "boundary", "LOC", "北京", "LOC", "北京 .",
         r"… met Bob\\ at the Royal Society in May [ 北京 . ]"]]


@pytest.mark.parametrize("before, after", [(0, 0), (8, 8), (9, 8), (8, 9)])
def test_the_words_around_a_mistake(tmp_path, before, after):
    tokens = ["b"] * before + ["x"] + ["a"] * after
    sentence = examples.Sentence(tokens, ["O"] * len(tokens), [1] * len(tokens), 0)
    reports.write_mistakes(tmp_path / "m.tsv", [sentence], [[(None, Entity("X", before, before + 1))]])
    quoted = (tmp_path / "m.tsv").read_text("utf-8").removesuffix("\n").split("\t")[-1]
    assert quoted == " ".join(["…"] * (before == 9) + ["b"] * min(before, 8) + ["[ x ]"] + ["a"] * min(after, 8)
                              + ["…"] * (after == 9))


def test_a_report_on_plain_labels(tmp_path):
    sentences = [examples.Sentence(["a", "b\tc", "d"], ["DET", "NN", "NN"], [1, 2, 3], 0)]
    reports.write(tmp_path, "dev.tsv", sentences, [["DET", "NN", "NN"]], [["DET", "VB", "NN"]], "plain")
    assert (tmp_path / "report.txt").read_text() == """\
dev.tsv: 1 sentences, 3 words, 0.6667 of them labelled right

               precision  recall      f1  gold  predicted  right
DET               1.0000  1.0000  1.0000     1          1      1
NN                1.0000  0.5000  0.6667     2          1      1
VB                0.0000  0.0000  0.0000     0          1      0
micro average     0.6667  0.6667  0.6667     3          3      2
macro average     0.6667  0.5000  0.5556

Of the gold ones of a type (row), how many were taken for which type (column); a word in common is enough:

       0  1  2
0 DET  1  .  .
1 NN   .  1  1
2 VB   .  .  .
"""
    assert [line.split("\t") for line in (tmp_path / "mistakes.tsv").read_text().splitlines()[1:]] == [
        ["2", "type", "NN", r"b\tc", "VB", r"b\tc", r"a [ b\tc ] d"]]


@pytest.mark.parametrize("gold, predicted, expected", [
    ([], [], []), ([("X", 0, 1)], [], [(("X", 0, 1), None)]), ([], [("X", 0, 1)], [(None, ("X", 0, 1))]),
    ([("X", 0, 1)], [("X", 1, 2)], [(("X", 0, 1), None), (None, ("X", 1, 2))]),
    # The one of more words in common, then the one of the same type, then the first.
    ([("X", 0, 5)], [("X", 0, 2), ("Y", 2, 5)], [(None, ("X", 0, 2)), (("X", 0, 5), ("Y", 2, 5))]),
    ([("X", 0, 4)], [("Y", 0, 2), ("X", 2, 4)], [(None, ("Y", 0, 2)), (("X", 0, 4), ("X", 2, 4))]),
    ([("X", 0, 4)], [("X", 0, 2), ("X", 2, 4)], [(("X", 0, 4), ("X", 0, 2)), (None, ("X", 2, 4))]),
    ([("X", 0, 2), ("X", 2, 5)], [("X", 1, 4)], [(("X", 0, 2), None), (("X", 2, 5), ("X", 1, 4))])])
def test_pairs_by_hand(gold, predicted, expected):
    found = reports.pair([Entity(*each) for each in gold], [Entity(*each) for each in predicted])
    assert sorted(found, key=str) == sorted(expected, key=str)


@hypothesis.given(st.lists(PAIRS, min_size=1, max_size=4))
@hypothesis.settings(deadline=None, max_examples=100)
def test_the_matrix_counts_every_entity_once(sentences):
    gold, predicted = ([[both[side] for both in sentence] for sentence in sentences] for side in (0, 1))
    pairs = [reports.pair(answers.entities(labels), answers.entities(said)) for labels, said in zip(gold, predicted)]
    by_type = scores.count(gold, predicted)
    counts = reports.confusion([*by_type, None], pairs)
    assert counts[:-1].sum(axis=1).tolist() == [each.gold for each in by_type.values()]
    assert counts[:, :-1].sum(axis=0).tolist() == [each.predicted for each in by_type.values()]
    assert counts[-1, -1] == 0
    for number, each in enumerate(by_type.values()):
        assert counts[number, number] >= each.right
    right = [both for sentence in pairs for both in sentence if both[0] == both[1]]
    assert len(right) == scores.total(by_type).right
    for sentence in pairs:
        firsts = [min(entity.start for entity in both if entity) for both in sentence]
        assert firsts == sorted(firsts)


def test_without_an_entity(tmp_path):
    reports.write(tmp_path, "dev.tsv", SENTENCES[:1], [["O"]], [["O"]], "BIO")
    assert {path.name for path in tmp_path.iterdir()} == {"report.txt", "confusion.png", "mistakes.tsv"}
    assert "none     .\n" in (tmp_path / "report.txt").read_text()
    assert len((tmp_path / "mistakes.tsv").read_text().splitlines()) == 1


def test_without_matplotlib_the_picture_is_left_out_and_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with caplog.at_level("INFO"):
        reports.write(tmp_path, "dev.tsv", SENTENCES, *LABELS, "BIO")
    assert {path.name for path in tmp_path.iterdir()} == {"report.txt", "mistakes.tsv"}
    assert "confusion.png: matplotlib is not installed" in caplog.text


def test_the_mistakes_of_a_real_file(shared, tmp_path):
    """Each entity that is not right stands there once, with its own words."""
    r, sentences = random.Random(3), examples.read(shared("data/ner/wnut17/emerging.dev.conll"))
    gold = [sentence.labels for sentence in sentences]
    known = sorted({label for labels in gold for label in labels})
    predicted = [[r.choice(known) if r.random() < 0.05 else label for label in labels] for labels in gold]
    pairs = [reports.pair(answers.entities(labels), answers.entities(said)) for labels, said in zip(gold, predicted)]
    reports.write_mistakes(tmp_path / "mistakes.tsv", sentences, pairs)
    rows = [line.split("\t") for line in (tmp_path / "mistakes.tsv").read_text("utf-8").split("\n")[1:-1]]
    counts = scores.total(scores.count(gold, predicted))
    assert sum(row[2] != "" for row in rows) == counts.gold - counts.right
    assert sum(row[4] != "" for row in rows) == counts.predicted - counts.right
    token_at = {line: token for sentence in sentences for line, token in zip(sentence.lines, sentence.tokens)}
    for row in rows:
        assert answers.escape(token_at[int(row[0])]) in (row[3].split(" ")[0], row[5].split(" ")[0])
        inside = row[6].split("[ ", 1)[1]
        assert row[3] in inside and row[5] in inside
