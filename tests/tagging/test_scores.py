"""Scores are those of conlleval, whose published rules are replayed here, and of seqeval."""

import collections
import random
import subprocess
import sys
import warnings

import hypothesis
import pytest
from hypothesis import strategies as st

from bert_tf.tagging import answers, examples, scores

# The file and the scheme of its labels.
FILES = [("wnut17/emerging.test.annotated", "BIO"), ("BC5CDR-IOB/devel.tsv", "BIO"),
         ("wikigold/wikigold.conll.txt", "IOB1"), ("weibo_zh/weiboNER_2nd_conll.test", "BIO")]
SENTENCES_READ = 700
TAGS = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-a-b", "I-a-b"])
# Sentences as pairs of gold and predicted labels, one a word; contradictory ones as often as not.
SENTENCES = st.lists(st.lists(st.tuples(TAGS, TAGS), max_size=12), min_size=1, max_size=6)


def split(label):
    """The tag and the type of a label, as conlleval's pattern parts them."""
    tag, _, name = label.partition("-")
    return tag, name


def ends(before, tag, before_name, name):
    return ((before, tag) in {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
            or before not in "O." and before_name != name)


def starts(before, tag, before_name, name):
    return ((before, tag) in {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E")}
            or tag not in "O." and before_name != name)


def conlleval(gold, predicted):
    """`{type: (gold, predicted, right)}` and the accuracy, by the rules of the script of CoNLL-2000 and later tasks.

    It reads both columns at once, a word at a time, and counts a chunk as right when both end that began together.
    """
    counts = collections.defaultdict(lambda: [0, 0, 0])
    last, last_said, within, right, words = ("O", ""), ("O", ""), False, 0, 0
    for labels, said in zip(gold, predicted, strict=True):
        for is_word, (tag, name), (said_tag, said_name) in [
                *((True, split(label), split(other)) for label, other in zip(labels, said, strict=True)),
                (False, ("O", ""), ("O", ""))]:
            gold_ends = ends(last[0], tag, last[1], name)
            said_ends = ends(last_said[0], said_tag, last_said[1], said_name)
            if within:
                if gold_ends and said_ends and last[1] == last_said[1]:
                    within = False
                    counts[last[1]][2] += 1
                elif gold_ends != said_ends or name != said_name:
                    within = False
            gold_starts = starts(last[0], tag, last[1], name)
            said_starts = starts(last_said[0], said_tag, last_said[1], said_name)
            within = within or gold_starts and said_starts and name == said_name
            counts[name][0] += gold_starts
            counts[said_name][1] += said_starts
            right += is_word and (tag, name) == (said_tag, said_name)
            words += is_word
            last, last_said = (tag, name), (said_tag, said_name)
    return {name: tuple(each) for name, each in counts.items() if any(each)}, right / words if words else 0.0


def seqeval(gold, predicted, strict=False):
    """Precision, recall, F1 and number of gold ones of each type, then of all, and the accuracy, by seqeval."""
    metrics = pytest.importorskip("seqeval.metrics")
    mode = {"mode": "strict", "scheme": pytest.importorskip("seqeval.scheme").IOB2} if strict else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = metrics.classification_report(gold, predicted, output_dict=True, zero_division=0, **mode)
        accuracy = metrics.accuracy_score(gold, predicted)
    averages = {name: report.pop(f"{name} avg") for name in ("micro", "macro", "weighted")}
    return ({name: tuple(map(float, row.values())) for name, row in report.items()},
            {name: tuple(map(float, row.values())) for name, row in averages.items()}, accuracy)


def check_against_conlleval(gold, predicted):
    by_type, accuracy = conlleval(gold, predicted)
    assert {name: tuple(each) for name, each in scores.count(gold, predicted).items()} == by_type
    assert scores.token_accuracy(gold, predicted) == accuracy
    assert scores.evaluate(gold, predicted, "BIO")["token_accuracy"] == accuracy


def check_against_seqeval(gold, predicted):
    found = scores.evaluate(gold, predicted, "BIO")
    for find, prefix in ((answers.entities, ""), (scores.STRICT, "strict_")):
        counts = scores.count(gold, predicted, find)
        if not counts:  # of which seqeval makes no report
            assert [found[prefix + name] for name in scores.RATIOS] == [0, 0, 0]
            continue
        by_type, averages, accuracy = seqeval(gold, predicted, strict=bool(prefix))
        own = {name: (*each.ratios, each.gold) for name, each in counts.items()}
        assert list(own) == list(by_type)
        for name, row in own.items():
            assert row == pytest.approx(by_type[name], rel=1e-12)
        assert tuple(found[prefix + name] for name in scores.RATIOS) == pytest.approx(averages["micro"][:3], rel=1e-12)
        assert scores.macro(counts) == pytest.approx(averages["macro"][:3], rel=1e-12)
        assert found["token_accuracy"] == accuracy


def predict(gold):
    """Labels such as a bad tagger would predict: some wrong, some moved by a word, some contradictory."""
    r, predicted = random.Random(6), []
    known = sorted({label for labels in gold for label in labels})
    for labels in gold:
        said = [r.choice(known) if r.random() < 0.04 else label for label in labels]
        if r.random() < 0.1:
            said = ["O", *said[:-1]]
        predicted.append(["O" if r.random() < 0.04 else label for label in said])
    return predicted


def sides(sentences):
    """The gold and the predicted labels of sentences of pairs."""
    return tuple([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))


@hypothesis.given(SENTENCES)
@hypothesis.settings(deadline=None, max_examples=200)
def test_any_labels_count_as_conlleval_has_it(sentences):
    gold, predicted = sides(sentences)
    check_against_conlleval(gold, predicted)
    for scheme in ("BIO", "IOB1"):
        in_bio = [[examples.to_bio(labels, scheme) for labels in each] for each in (gold, predicted)]
        assert scores.count(*in_bio) == scores.count(gold, predicted)
        assert scores.count(*in_bio, scores.STRICT) == scores.count(gold, predicted)


@hypothesis.given(SENTENCES.filter(any))
@hypothesis.settings(deadline=None, max_examples=80)
def test_any_labels_score_as_seqeval_has_it(sentences):
    check_against_seqeval(*sides(sentences))


@hypothesis.given(st.lists(st.sampled_from(["O"] + [f"{tag}-{name}" for tag in "BIES" for name in "XY"])))
@hypothesis.settings(deadline=None, max_examples=200)
def test_any_labels_in_bioes_hold_the_entities_that_seqeval_finds(labels):
    labelling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    found = answers.entities(examples.to_bio(labels, "BIOES"))
    assert [(name, start, end - 1) for name, start, end in found] == labelling.get_entities(labels)


@pytest.mark.parametrize("name, scheme", FILES)
def test_predictions_for_real_files(shared, name, scheme):
    gold = [sentence.labels for sentence in examples.read(shared("data/ner") / name)[:SENTENCES_READ]]
    predicted = predict(gold)
    micro = scores.total(scores.count(gold, predicted)).ratios
    assert 0.3 < min(micro) < max(micro) < 0.95
    check_against_conlleval(gold, predicted)
    in_bio = [[examples.to_bio(labels, scheme) for labels in each] for each in (gold, predicted)]
    assert scores.count(*in_bio) == scores.count(gold, predicted)
    check_against_seqeval(gold, predicted)
    check_against_seqeval(*in_bio)


def test_conlleval_can_read_a_file_of_predictions(shared, tmp_path):
    """One with document marks and blanks between columns, gold labels in IOB1 and predicted ones in BIO."""
    source, path = shared("data/ner/wikigold/wikigold.conll.txt"), tmp_path / "predictions.conll"
    sentences = examples.read(source)
    gold = [examples.to_bio(sentence.labels, "IOB1") for sentence in sentences]
    predicted = predict(gold)
    answers.write_predictions(path, source, sentences, predicted)
    blocks = path.read_text("utf-8").strip().split("\n\n")
    rows = [[line.split()[-2:] for line in block.split("\n")] for block in blocks]
    by_type, _ = conlleval(*sides(rows))
    assert {name: tuple(each) for name, each in scores.count(gold, predicted).items()} == by_type
    assert sum(each[0] for each in by_type.values()) > 3000


def test_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O", "O", "B-PER"], ["O"]]
    predicted = [["B-PER", "I-PER", "O", "I-LOC"], ["B-LOC", "I-LOC", "O", "B-LOC"], ["O"]]
    assert scores.count(gold, predicted) == {"LOC": (2, 3, 1), "PER": (2, 1, 1)}
    assert scores.total(scores.count(gold, predicted)) == (4, 4, 2)
    # The stray I-LOC is an entity for conlleval, and none for seqeval's strict mode.
    assert scores.count(gold, predicted, scores.STRICT) == {"LOC": (2, 2, 0), "PER": (2, 1, 1)}
    assert scores.evaluate(gold, predicted, "BIO") == {
        "precision": 0.5, "recall": 0.5, "f1": 0.5, "strict_precision": 1 / 3, "strict_recall": 0.25,
        "strict_f1": 2 / 7, "token_accuracy": 6 / 9}
    assert scores.macro(scores.count(gold, predicted)) == pytest.approx((2 / 3, 0.5, (2 / 5 + 2 / 3) / 2))


def test_an_entity_never_crosses_the_end_of_a_sentence():
    assert scores.count([["B-X"], ["I-X"]], [["B-X"], ["I-X"]]) == {"X": (2, 2, 2)}
    assert scores.count([["B-X", "I-X"]], [["B-X", "I-X"]]) == {"X": (1, 1, 1)}


@pytest.mark.parametrize("gold, predicted, expected", [
    ([["O", "O"]], [["O", "B-X"]], [0, 0, 0, 0, 0, 0, 0.5]), ([["O", "B-X"]], [["O", "O"]], [0, 0, 0, 0, 0, 0, 0.5]),
    ([["O"]], [["O"]], [0, 0, 0, 0, 0, 0, 1]), ([[]], [[]], [0, 0, 0, 0, 0, 0, 0])])
def test_where_there_is_nothing_to_divide_by(gold, predicted, expected, caplog):
    assert list(scores.evaluate(gold, predicted, "BIO").values()) == expected
    assert ("none of the gold labels" in caplog.text) == (gold != [["O", "B-X"]])


@hypothesis.given(SENTENCES.filter(any))
@hypothesis.settings(deadline=None, max_examples=30)
def test_plain_labels_score_as_scikit_learn_has_it(sentences):
    metrics = pytest.importorskip("sklearn.metrics")
    gold, predicted = sides(sentences)
    golds, saids = sum(gold, []), sum(predicted, [])
    own = scores.count(gold, predicted, answers.words)
    *ratios, support = metrics.precision_recall_fscore_support(golds, saids, labels=list(own), zero_division=0)
    for each, *expected in zip(own.values(), *ratios, support):
        assert (*each.ratios, each.gold) == pytest.approx(expected, rel=1e-12)
    assert scores.evaluate(gold, predicted, "plain") == pytest.approx(
        {"macro_f1": metrics.f1_score(golds, saids, average="macro", zero_division=0),
         "token_accuracy": metrics.accuracy_score(golds, saids)}, rel=1e-12)
    assert scores.total(own).ratios == pytest.approx([metrics.accuracy_score(golds, saids)] * 3, rel=1e-12)


@pytest.mark.parametrize("scheme", ["BIO", "IOB1", "BIOES", "plain"])
def test_the_names_are_those_of_what_is_found(scheme):
    assert list(scores.evaluate([["B-X"]], [["B-X"]], scheme)) == scores.metric_names(scheme)


@pytest.mark.parametrize("gold, predicted", [([["O"]], [["O"], ["O"]]), ([["O"]], [["O", "O"]])])
def test_labels_of_other_sentences_are_refused(gold, predicted):
    with pytest.raises(ValueError):
        scores.evaluate(gold, predicted, "BIO")


def test_scoring_and_its_reports_need_no_tensorflow():
    program = "import sys, bert_tf.tagging.scores, bert_tf.tagging.reports; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
