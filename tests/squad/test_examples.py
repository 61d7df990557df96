import copy
import gzip
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_tf.errors import UserError
from bert_tf.squad import examples
from bert_tf.squad.examples import Context


def file_of(folder, *qas, context="The leader was John Smith (1895-1943).", name="train.json"):
    """A file of one paragraph."""
    path = folder / name
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": list(qas)}]}]}))
    return str(path)


def qa(answer=None, answer_start=0, **more):
    answers = {} if answer is None else {"answers": [{"text": answer, "answer_start": answer_start}]}
    return {"id": "q", "question": "Who?", **answers, **more}


# What the original reads.


@pytest.mark.parametrize("name", ["train-v1.1", "train-v2.0", "dev-v1.1", "dev-v2.0"])
def test_recorded_examples(shared, name):
    with gzip.open(shared(f"goldens/squad/features_{name}.json.gz")) as file:
        recorded = json.load(file)
    skipped = json.loads(shared("goldens/squad/summary.json").read_text())[name]["skipped_qas_ids"]
    is_training = recorded["is_training"]
    found = examples.read(shared(f"goldens/squad/{name}.json"), is_training, recorded["version_2_with_negative"])
    kept = [row for row in found if row.qas_id not in skipped]
    assert len(kept) == len(recorded["examples"])
    for row, wanted in zip(kept, recorded["examples"]):
        # The original looks at is_impossible only in training, and then has -1 and "" for what is not there.
        learned = (-1, -1, "") if is_training and row.is_impossible else row[5:8]
        assert {"qas_id": row.qas_id, "question_text": row.question_text, "doc_tokens": row.context.doc_tokens,
                "start_position": learned[0], "end_position": learned[1], "orig_answer_text": learned[2],
                "is_impossible": row.is_impossible and is_training} == wanted


def test_answers_that_the_original_does_not_find(shared, caplog):
    """Those with no-break, ideographic and thin spaces, and one that begins before the first word."""
    found = {row.qas_id: row for row in examples.read(shared("goldens/squad/train-v1.1.json"), True, False)}
    spans = {name: (found[name].start_position, found[name].end_position) for name in ("q0025", "q0026", "q0027")}
    words = found["q0025"].context.doc_tokens
    assert {name: words[start:end + 1] for name, (start, end) in spans.items()} == {
        "q0025": ["No-break\xa0space,"], "q0026": ["ideographic\u3000space"], "q0027": ["thin\u2009space"]}
    assert found["q_lead"].orig_answer_text == "  Lead"
    assert (found["q_lead"].start_position, found["q_lead"].end_position) == (0, 0)
    assert "95 questions; 3 answers that are not at their answer_start, taken from the nearest place" in caplog.text
    assert "3 questions left out whose answer is not in their context (data[0].paragraphs[0].qas[9]," in caplog.text


FILES = [("squad_v1/xquad/xquad.en", 240, 1190, 0), ("squad_v1/xquad/xquad.zh", 240, 1190, 0),
         ("squad_v1/xquad_split/train-v1.1", 190, 970, 0), ("squad_v1/xquad_split/dev-v1.1", 50, 220, 0),
         ("squad_v1/tydiqa_goldp/tydiqa.goldp.en.train", 3200, 3200, 0),
         ("squad_v1/tydiqa_goldp/tydiqa.goldp.en.dev", 496, 496, 0),
         ("squad_v2/cs224n/train-v2.0", 468, 4449, 2342), ("squad_v2/cs224n/dev-v2.0", 178, 1629, 826),
         ("squad_v2/mini/train-v2.0", 87, 626, 333), ("squad_v2/mini/dev-v2.0", 83, 706, 320),
         ("squad_zh/drcd/DRCD_dev", 1000, 3524, 0), ("squad_zh/cmrc2018/cmrc2018_trial", 256, 1002, 0),
         ("squad_zh/cmrc2018/cmrc2018_dev", 848, 3219, 0)]


@pytest.mark.parametrize("name, paragraphs, questions, impossible", FILES)
def test_every_question_of_real_data_is_read(shared, caplog, name, paragraphs, questions, impossible):
    found = examples.read(shared(f"data/{name}.json"), True, impossible > 0)
    assert len(found) == questions and len({id(row.context) for row in found}) == paragraphs
    assert sum(row.is_impossible for row in found) == impossible
    assert sum(not row.answers for row in found) == impossible
    for row in found:
        if not row.is_impossible:
            held = " ".join(row.context.doc_tokens[row.start_position:row.end_position + 1])
            assert " ".join(row.orig_answer_text.split()) in " ".join(held.split()), row.where
    assert ("answer_start" in caplog.text) == ("cmrc" in name)


@pytest.mark.parametrize("name, moved, absent", [("trial", 5, 0), ("dev", 7, 193)])
def test_displaced_answers_of_cmrc_are_counted(shared, caplog, name, moved, absent):
    examples.read(shared(f"data/squad_zh/cmrc2018/cmrc2018_{name}.json"), True, False)
    assert f"; {moved} answers that are not at their answer_start" in caplog.text
    assert (f"; {absent} answers that are not in their context" in caplog.text) == bool(absent)
    assert "questions left out" not in caplog.text


# Contexts and answers.


@given(st.text("ab\t\r\n \u202f\xa0\u3000\u200b\x1c北", max_size=20))
def test_words_are_where_they_say(text):
    context = Context.of(text)
    assert all(text.startswith(word, start) for word, start in zip(context.doc_tokens, context.word_starts))
    spaced = text.translate(dict.fromkeys(map(ord, "\t\r\n\u202f"), " "))
    assert context.doc_tokens == [word for word in spaced.split(" ") if word]
    word, inside = -1, False
    for place, char in enumerate(text):
        starts = char not in " \t\r\n\u202f"
        word, inside = word + (starts and not inside), starts
        assert context.word_at(place) == word


@pytest.mark.parametrize("text, answer, answer_start, span", [
    ("a b a b a", "a", 4, (4, 5)), ("a b a b a", "a", 6, (4, 5)), ("a b a b a", "a", 7, (8, 9)),
    ("a b a b a", "a", -1, (0, 1)), ("a b a b a", "a", 10 ** 30, (8, 9)), ("aaa", "aa", 1, (1, 3)),
    ("xaaa", "aa", 3, (2, 4)), ("xx aa", "aa", 1, (3, 5)), ("a\xa0b", "a b", 0, (0, 3)), ("a  \tb", "a b", 0, (0, 5)),
    ("a b", "a\u3000b", 0, (0, 3)), (" a b", " a b ", 0, (1, 4)), (" a b", " a", 0, (0, 2)),
    ("a+b", "+", 0, (1, 2)), ("a", "", 0, None),
    ("a b", " ", 1, None), ("ab", "a b", 0, None), ("A", "a", 0, None)])
def test_finding_an_answer(text, answer, answer_start, span):
    assert examples.find_answer(text, answer, answer_start) == span


@given(st.text("ab \xa0\u3000", max_size=12), st.integers(0, 12), st.integers(1, 4), st.integers(-2, 14))
def test_an_answer_cut_from_a_text_is_found_nearest(text, start, length, answer_start):
    answer = text[start:start + length]
    found = examples.find_answer(text, answer, answer_start)
    if not answer.strip():
        assert found is None
        return
    assert text[slice(*found)].split() == answer.split()
    inner = start + len(answer) - len(answer.lstrip())
    assert abs(found[0] - answer_start) <= abs(inner - answer_start)
    assert examples.find_answer(text, answer, start)[0] == start


def test_fields_of_an_example(tmp_path):
    path = file_of(tmp_path, qa("John Smith", 15), qa("1895", 0, id="r"), context="The leader was John Smith (1895).")
    first, second = examples.read(path, True, False)
    assert first.context is second.context
    assert first[3:] == (("John Smith",), False, 3, 4, "John Smith", 15, "data[0].paragraphs[0].qas[0]")
    assert second[3:] == (("1895",), False, 5, 5, "1895", 27, "data[0].paragraphs[0].qas[1]")
    with_space, = examples.read(file_of(tmp_path, qa("John ", 15)), True, False)
    assert (with_space.start_position, with_space.end_position) == (3, 3)
    path = file_of(tmp_path, qa("John Smith", 15))
    assert examples.read(path, False, False)[0][3:9] == (("John Smith",), False, None, None, None, None)


def test_all_answers_are_kept_and_the_first_is_learned(tmp_path, caplog):
    answers = [{"text": text, "answer_start": 0} for text in ("leader", "The leader", "leader")]
    found, = examples.read(file_of(tmp_path, qa(answers=answers)), True, False)
    assert found.answers == ("leader", "The leader", "leader") and (found.start_position, found.end_position) == (1, 1)
    assert "1 questions with several answers, of which the first is learned" in caplog.text


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(
        {"data": [{"paragraphs": [{"context": "a", "qas": [qa()]}]}]}).encode())
    assert len(examples.read(path, False, False)) == 1


# Questions without an answer.


@pytest.mark.parametrize("asked, is_training, left, said", [
    (qa(), False, [False], "2 questions; 1 questions without an answer (data[0].paragraphs[0].qas[0])"),
    (qa(answers=[]), False, [True], "1 questions that have no answers and do not say is_impossible"),
    (qa(answers=[]), True, [True], "1 questions that have no answers and do not say is_impossible"),
    (qa(), True, [], "1 questions; 1 questions without an answer, left out"),
    (qa(answers=[], is_impossible=False), True, [], "1 questions without an answer, left out"),
    (qa(answers=[], is_impossible=True), True, [True], ""),
    (qa("leader", 4, is_impossible=True), True, [True], "1 impossible questions whose answers are not used"),
    (qa("leader", 9), True, [False], "1 answers that are not at their answer_start"),
    (qa("nobody", 9), True, [], "1 questions left out whose answer is not in their context"),
    (qa("", 9), True, [], "1 questions left out whose answer is not in their context"),
    (qa("leader", 4, question=" "), True, [False], "1 questions without a text")])
def test_what_is_doubtful_is_said(tmp_path, caplog, asked, is_training, left, said):
    path = file_of(tmp_path, asked, qa("leader", 4, id="usual"))
    *found, usual = examples.read(path, is_training, True)
    assert usual.qas_id == "usual" and [row.is_impossible for row in found] == left
    assert said in caplog.text
    assert all(row.answers == () and row.start_position is None for row in found if row.is_impossible)


def test_a_context_without_a_word(tmp_path, caplog):
    found, = examples.read(file_of(tmp_path, qa(), context=" \u202f\n"), False, False)
    assert found.context.doc_tokens == []
    assert "1 contexts without a word (data[0].paragraphs[0])" in caplog.text


def test_a_file_of_the_other_version(tmp_path, caplog):
    path = file_of(tmp_path, qa(answers=[], is_impossible=True))
    for is_training in (True, False):
        with pytest.raises(UserError, match=r"qas\[0\] is impossible to answer.* pass --version_2_with_negative"):
            examples.read(path, is_training, False)
    found, = examples.read(path, False, False, is_scored=False)
    assert not found.is_impossible and "answered all the same without --version_2_with_negative" in caplog.text
    examples.read(file_of(tmp_path, qa("leader", 4)), True, True)
    assert "no question is impossible to answer; is --version_2_with_negative meant?" in caplog.text


# What is refused.


BROKEN = [
    ("[]", "train.json: not a JSON object"), ("{", "train.json:1: not JSON"), ("[" * 100000, "train.json: not JSON"),
    ("{}", "train.json: data is missing"), ('{"data": {}}', "train.json: data is an object, not a list"),
    ('{"data": []}', "train.json: holds no question"), ('{"data": [3]}', r"data\[0\] is 3, not an object"),
    ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"train.json: data\[0\].paragraphs\[0\].context is missing"),
    ('{"data": [{"paragraphs": [{"context": null}]}]}', r"paragraphs\[0\].context is null, not a text"),
    ('{"data": [{"paragraphs": [{"context": "\\ud800", "qas": []}]}]}', r"context holds half a surrogate pair"),
    ('{"data": [%s]}' % ("9" * 5000), "train.json: not JSON")]


@pytest.mark.parametrize("text, message", BROKEN)
def test_broken_files_are_refused(tmp_path, text, message):
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        examples.read(path, True, False)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("asked, message", [
    ({"question": "?"}, "id is missing"), (qa(id=3), r"qas\[0\].id is 3, not a text"),
    (qa(question=["x"]), "question is a list, not a text"), (qa(answers={"text": ["x"]}), "answers is an object"),
    (qa(answers=[{"text": "x"}]),
     r"train.json: data\[0\].paragraphs\[0\].qas\[0\].answers\[0\].answer_start is missing"),
    (qa("x", "3"), "answer_start is '3', not a whole number"), (qa("x", True), "answer_start is true, not a whole"),
    (qa("x", 2.0), "answer_start is 2.0, not"), (qa("x", is_impossible="no"), "is_impossible is 'no', not true or"),
    (qa(), "holds no question with an answer to learn"), (qa("nobody"), "no question with an answer to learn")])
def test_questions_of_another_shape_are_refused(tmp_path, asked, message):
    with pytest.raises(UserError, match=message):
        examples.read(file_of(tmp_path, asked), True, False)


def test_an_id_that_stands_twice_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"qas\[1\].id is 'q', as is that of data\[0\].paragraphs\[0\].qas\[0\]"):
        examples.read(file_of(tmp_path, qa(), qa()), False, False)


def test_answers_need_no_place_unless_they_are_learned(tmp_path):
    found, = examples.read(file_of(tmp_path, qa(answers=[{"text": "leader"}])), False, False)
    assert found.answers == ("leader",)


WHOLE = {"data": [{"paragraphs": [{"context": "a b\u3000c", "qas": [
    qa("b c", 2), qa("c", 9, id="r", is_impossible=False), qa(answers=[], id="s", is_impossible=True)]}]}]}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(
        st.characters(exclude_categories=()), max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["data", "paragraphs", "context", "qas", "id", "answers", "text"]), inner, max_size=3),
    max_leaves=4)


def spots(node):
    """Every `(holder, key)` in a JSON value."""
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from spots(node[key])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), is_training=st.booleans(), version_2=st.booleans())
def test_a_mutated_file_is_read_or_refused(tmp_path, data, is_training, version_2):
    logging.getLogger("bert_tf").setLevel(logging.ERROR)
    whole = copy.deepcopy(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(list(spots(whole)) or [({"": 0}, "")]))
        if data.draw(st.booleans()):
            holder[key] = data.draw(ANYTHING)
        else:
            del holder[key]
    raw = bytearray(json.dumps(whole).encode())
    if data.draw(st.integers(0, 3)) == 0:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "train.json"
    path.write_bytes(raw)
    try:
        assert examples.read(path, is_training, version_2)
    except UserError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    finally:
        logging.getLogger("bert_tf").setLevel(logging.NOTSET)
