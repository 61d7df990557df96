import logging

import numpy as np

from bert_tf.squad import reports, scores
from bert_tf.squad.answers import Answer
from bert_tf.squad.examples import Context, SquadExample

CONTEXT = Context.of("Ada met Bob|Bo.")
HEADER = ["id", "question", "gold_answers", "predicted", "exact_match", "f1", "windows", "probability"]


def ask(name, *answers, question="Who?", impossible=False):
    return SquadExample(name, question, CONTEXT, answers, impossible)


def say(text, probability, null_odds=None):
    return Answer(text, None, probability, [], null_odds)


def table(folder, examples, answers, version_2_with_negative=False, **settings):
    path = folder / "mistakes.tsv"
    predicted = {example.qas_id: answer.text for example, answer in zip(examples, answers)}
    found = scores.by_question(examples, predicted, version_2_with_negative)
    reports.write_mistakes(path, examples, answers, np.arange(len(examples)) + 1, found, **settings)
    return [line.split("\t") for line in path.read_bytes().decode().removesuffix("\n").split("\n")]


def test_mistakes_come_worst_and_surest_first(tmp_path):
    examples = [ask("right", "Ada"), ask("half", "Ada met"), ask("wrong", "Ada"), ask("unknown"), ask("surer", "Ada"),
                ask("surest half", "met Bob"), ask("as sure", "Ada")]
    answers = [say("ada", 0.9), say("met", 0.25), say("Bob", 0.5), say("Bob", 0.99), say("", 0.75),
               say("Bob", 1 / 3), say("met", 0.75)]
    assert table(tmp_path, examples, answers) == [
        HEADER,
        ["surer", "Who?", "Ada", "", "0", "0.0000", "5", "0.750000"],
        ["as sure", "Who?", "Ada", "met", "0", "0.0000", "7", "0.750000"],
        ["wrong", "Who?", "Ada", "Bob", "0", "0.0000", "3", "0.500000"],
        ["surest half", "Who?", "met Bob", "Bob", "0", "0.6667", "6", "0.333333"],
        ["half", "Who?", "Ada met", "met", "0", "0.6667", "2", "0.250000"]]


def test_null_odds_stand_there_where_they_are_known(tmp_path):
    examples = [ask("a", impossible=True), ask("b", "Ada"), ask("c", impossible=True)]
    answers = [say("Bob", 0.5, -1.5), say("", 0.75, 2.25), say("", 0.9, 3.0)]
    assert table(tmp_path, examples, answers, True) == [
        HEADER + ["null_odds"],
        ["b", "Who?", "Ada", "", "0", "0.0000", "2", "0.750000", "2.250000"],
        ["a", "Who?", "", "Bob", "0", "0.0000", "1", "0.500000", "-1.500000"]]


def test_a_cell_holds_any_text(tmp_path):
    examples = [ask("1\t2", "Bob|Bo", "A\nB", "Bob|Bo", r"C:\n", question="谁\r\n?")]
    (_, row) = table(tmp_path, examples, [say("x\\\ty", 1.0)])
    assert row[:4] == [r"1\t2", r"谁\r\n?", r"Bob\|Bo|A\nB|C:\\n", r"x\\\ty"]


def test_more_mistakes_than_asked_for_are_said(tmp_path, caplog):
    examples = [ask(str(number), "Ada") for number in range(4)]
    answers = [say("Bob", probability) for probability in (0.1, 0.4, 0.2, 0.3)]
    with caplog.at_level(logging.INFO, "bert_tf"):
        rows = table(tmp_path, examples, answers, count=2)
    assert [row[0] for row in rows] == ["id", "1", "3"]
    assert caplog.messages == [f"{tmp_path / 'mistakes.tsv'}: the first 2 of 4 mistakes"]
    caplog.clear()
    with caplog.at_level(logging.INFO, "bert_tf"):
        assert len(table(tmp_path, examples, answers, count=4)) == 5
    assert not caplog.messages


def test_without_mistakes_the_header_alone_is_written(tmp_path):
    assert table(tmp_path, [ask("a", "Ada")], [say("Ada", 1.0)]) == [HEADER]
