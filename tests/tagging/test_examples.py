import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_tf.errors import UserError
from bert_tf.tagging import examples
from bert_tf.tagging.examples import Columns, Sentence

# Sentences, words, documents, scheme, labels of real files; and how many I- of some begin an entity.
FILES = [("wnut17/wnut17train.conll", 3394, 62730, 1, "BIO", 13),
         ("wnut17/emerging.dev.conll", 1009, 15733, 1, "BIO", 13),
         ("wnut17/emerging.test.annotated", 1287, 23394, 1, "BIO", 13),
         ("NCBI-disease-IOB/train.tsv", 5424, 135701, 1, "BIO", 3),
         ("NCBI-disease-IOB/devel.tsv", 923, 23969, 1, "BIO", 3),
         ("NCBI-disease-IOB/test.tsv", 940, 24497, 1, "BIO", 3),
         ("BC5CDR-IOB/train.tsv", 4560, 118170, 1, "BIO", 5), ("BC5CDR-IOB/devel.tsv", 4581, 117453, 1, "BIO", 5),
         ("BC5CDR-IOB/test.tsv", 4797, 124750, 1, "BIO", 5),
         ("wikigold/wikigold.conll.txt", 1696, 39007, 145, "IOB1", 5),
         ("weibo_zh/weiboNER_2nd_conll.train", 1350, 73778, 1, "BIO", 17),
         ("weibo_zh/weiboNER_2nd_conll.dev", 270, 14509, 1, "BIO", 17),
         ("weibo_zh/weiboNER_2nd_conll.test", 270, 14842, 1, "BIO", 17),
         ("msra_zh/msra_test_bio.txt", 3442, 172601, 1, "BIO", 7)]
CONTRADICTIONS = {"weibo_zh/weiboNER_2nd_conll.train": 10, "weibo_zh/weiboNER_2nd_conll.test": 4}


@pytest.mark.parametrize("name, sentences, words, documents, scheme, labels", FILES)
def test_every_word_of_real_data_is_read(shared, caplog, name, sentences, words, documents, scheme, labels):
    path = shared(f"data/ner/{name}")
    found = examples.read(path)
    assert len(found) == sentences and sum(len(sentence.tokens) for sentence in found) == words
    assert sorted({sentence.document for sentence in found}) == list(range(documents))
    assert len({label for sentence in found for label in sentence.labels}) == labels
    assert examples.find_scheme(found, path) == scheme
    said = [f"{CONTRADICTIONS[name]} entities that begin without B-"] if name in CONTRADICTIONS else []
    assert len(caplog.records) == len(said) and all(phrase in caplog.text for phrase in said)  # nothing else is odd
    lines = path.read_text("utf-8").split("\n")
    for sentence in found[::10]:
        assert len(sentence.tokens) == len(sentence.labels) == len(sentence.lines)
        for token, label, line in zip(*sentence[:3]):
            assert lines[line - 1].rstrip("\r").split("\t" if "\t" in lines[line - 1] else " ") == [token, label]


def file_of(folder, text, name="train.txt"):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def read_text(folder, text, columns=Columns(), name="train.txt"):
    """What a file of that text holds, as plain tuples."""
    return [tuple(sentence) for sentence in examples.read(file_of(folder, text, name), columns)]


# Columns.

TWO = [(["EU", "."], ["B-ORG", "O"], [1, 2], 0), (["We"], ["O"], [4], 0)]


@pytest.mark.parametrize("text", [
    "EU B-ORG\n. O\n\nWe O\n", "EU\tB-ORG\n.\tO\n\t\nWe\tO", "EU  B-ORG \n.   O\n  \nWe\tO\n\n\n",
    "\ufeffEU\tB-ORG\r\n.\tO\r\n\r\nWe\tO\r\n", "EU\tB-ORG\t\n.\t O\t\n\u3000\t\nWe \tO"])
def test_columns_and_separators(tmp_path, text):
    assert read_text(tmp_path, text) == TWO


def test_documents(tmp_path, caplog):
    text = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\n-DOCSTART- -X- O O\n-DOCSTART- -X- O O\n\n\nWe P O O\nare V O O\n"
    with caplog.at_level("INFO"):
        assert read_text(tmp_path, text) == [(["EU"], ["B-ORG"], [3], 0), (["We", "are"], ["O", "O"], [8, 9], 1)]
    assert "train.txt: words in column 0, labels in column 3 of 4, separated by blanks" in caplog.text
    assert "train.txt: 2 sentences in 2 documents, 3 words, 2 labels: B-ORG, O" in caplog.text


@pytest.mark.parametrize("columns, tokens, labels", [
    (Columns(), ["EU", "is"], ["2", "3"]), (Columns(label_column="2"), ["EU", "is"], ["B-ORG", "O"]),
    (Columns(label_column=-2), ["EU", "is"], ["B-ORG", "O"]), (Columns("0", "1"), ["1", "2"], ["EU", "is"]),
    (Columns("-3"), ["EU", "is"], ["2", "3"]), (Columns(is_labelled=False), ["EU", "is"], None),
    (Columns(is_labelled=None), ["EU", "is"], ["2", "3"]), (Columns(-1, 0, False), ["2", "3"], None)])
def test_choosing_columns(tmp_path, columns, tokens, labels):
    """Of a file that counts its words, as GermEval's and CoNLL-U do."""
    assert read_text(tmp_path, "1\tEU\tB-ORG\t2\n2\tis\tO\t3\n", columns) == [(tokens, labels, [1, 2], 0)]


@pytest.mark.parametrize("columns", [Columns(is_labelled=False), Columns(is_labelled=None),
                                     Columns(label_column="1", is_labelled=None)])
def test_words_without_labels(tmp_path, columns, caplog):
    with caplog.at_level("INFO"):
        assert read_text(tmp_path, "EU\nis\t\n\nWe\n", columns) == [(["EU", "is"], None, [1, 2], 0),
                                                                   (["We"], None, [4], 0)]
    assert "3 words, no labels" in caplog.text


@pytest.mark.parametrize("text, words, comments", [
    ("# id 12\nEU O\n", ["EU"], 1), ("# O\nEU O\n", ["#", "EU"], 0), ("EU O\n# id 12\n", ["EU", "#"], 0),
    ("# text\n# more text\n#\nEU O\n", ["EU"], 3), ("# a b x=1\nEU _ _ O\n# _ _ O\n", ["EU", "#"], 1),
    ("# a = b\nEU\tO\n\n#\tO\n", ["EU", "#"], 1), ("#\thttp://x\nEU\tO\n", ["EU"], 1), ("#EU O\n", ["#EU"], 0),
    ("# B-X\n", ["#"], 0), ("# 1 2\n\n# 3\n\nEU O\n", ["EU"], 2)])
def test_a_comment_is_what_cannot_be_a_word(tmp_path, caplog, text, words, comments):
    assert [word for sentence in read_text(tmp_path, text) for word in sentence[0]] == words
    assert (f"{comments} comment lines left out (line 1" in caplog.text) == bool(comments)


def test_blanks_inside_words(tmp_path, caplog):
    assert read_text(tmp_path, "EU\tO\nNew York\tB-LOC\n\u3000\tO\n \tO\n")[0][0] == ["EU", "New York", "\u3000", " "]
    assert not caplog.records
    assert read_text(tmp_path, "EU O\nNew York B-LOC\n")[0][:2] == (["EU", "New"], ["O", "B-LOC"])
    assert "1 lines of more columns than the first (2): a blank inside a word? (line 2)" in caplog.text


@pytest.mark.parametrize("text, columns, message", [
    ("", Columns(), "train.txt: the file is empty"), ("\n \t\n", Columns(), "train.txt: holds no sentence"),
    ("-DOCSTART- O\n\n", Columns(), "train.txt: holds no sentence"),
    ("EU O\nis\n", Columns(), r"train.txt:2: expected 2 columns as in the first line of words, found 1 \('is'\)"),
    ("EU\tO\nis O\n", Columns(), r"train.txt:2: expected 2 columns .* found 1 \('is O'\)"),
    ("EU O\n O\n", Columns(), "train.txt:2: expected 2 columns"),
    ("EU\tO\n\tO\n", Columns(), r"train.txt:2: the column of the word is empty \(the line holds 'O'\)"),
    ("EU\t\tO\nis\t\tO\n", Columns(label_column=1), "train.txt:1: the word 'EU' has no label"),
    ("\nEU\n", Columns(), r"train.txt:2: expected a word and its label, found one column \('EU'\)"),
    ("EU O\n", Columns(2), "train.txt:1: there is no column 2 for --token_column, the line has 2"),
    ("EU O\n", Columns(None, "-3"), "train.txt:1: there is no column -3 for --label_column"),
    ("EU O\n", Columns(None, "tag"), "train.txt:1: --label_column=tag is no number, and only the columns of JSON"),
    ("EU O\n", Columns("-1"), "train.txt:1: words and labels would both be in column 1 of 2"),
    (b"EU O\n\xff O\n", Columns(), "train.txt:2: byte 0xff is not UTF-8")])
def test_broken_columns_are_refused(tmp_path, text, columns, message):
    with pytest.raises(UserError, match=message) as raised:
        read_text(tmp_path, text, columns)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        examples.read(str(tmp_path / "train.txt"))


# JSON lines.


@pytest.mark.parametrize("rows, columns, wanted", [
    ([{"tokens": ["EU", "a b"], "labels": ["B-X", "O"]}], Columns(), [(["EU", "a b"], ["B-X", "O"], [1, 1], 0)]),
    ([{"words": ["EU"], "tags": ["O"], "id": 3}], Columns(), [(["EU"], ["O"], [1], 0)]),
    ([{"tokens": ["EU"], "pos_tags": [4], "ner_tags": [0]}], Columns(), [(["EU"], ["0"], [1], 0)]),
    ([{"tokens": ["EU"], "pos_tags": [4], "ner_tags": [0]}], Columns(label_column="pos_tags"),
     [(["EU"], ["4"], [1], 0)]),
    ([{"text": ["EU"], "tags": ["O"]}], Columns("text", is_labelled=False), [(["EU"], None, [1], 0)]),
    ([{"tokens": ["EU"]}], Columns(label_column="tags", is_labelled=None), [(["EU"], None, [1], 0)]),
    ([{"tokens": ["a"], "tags": ["O"], "doc_id": name} for name in ("x", "x", "y", 3)], Columns(),
     [(["a"], ["O"], [1], 0), (["a"], ["O"], [2], 0), (["a"], ["O"], [3], 1), (["a"], ["O"], [4], 2)])])
@pytest.mark.parametrize("name", ["train.jsonl", "train.txt"])
def test_json_lines(tmp_path, rows, columns, wanted, name):
    assert read_text(tmp_path, "\n".join(map(json.dumps, rows)), columns, name) == wanted


def test_empty_sentences_of_json_lines_are_counted(tmp_path, caplog):
    rows = ['{"tokens": [], "tags": []}', "", '{"tokens": ["EU"], "tags": ["O"]}']
    assert read_text(tmp_path, "\n".join(rows)) == [(["EU"], ["O"], [3], 0)]
    assert "1 sentences without a word left out (line 1); 1 blank lines left out (line 2)" in caplog.text


def test_braces_in_columns_are_words(tmp_path):
    assert [sentence[0] for sentence in read_text(tmp_path, "{ O\n} O\n")] == [["{", "}"]]


def test_labels_that_begin_late_in_json_lines_are_not_passed_over(tmp_path):
    rows = ['{"tokens": ["a"]}', '{"tokens": ["b"], "tags": ["O"]}']
    with pytest.raises(UserError, match="a.jsonl:2: here are labels, in 'tags', in the lines before there are none"):
        read_text(tmp_path, "\n".join(rows), Columns(is_labelled=None), "a.jsonl")
    assert len(read_text(tmp_path, "\n".join(rows), Columns(is_labelled=False), "a.jsonl")) == 2


@pytest.mark.parametrize("line, columns, message", [
    ("[1]", Columns(), "train.json:1: not a JSON object on a line of its own .but a list"),
    ('{"tokens": ["EU"]', Columns(), "train.json:1: not a JSON object on a line of its own"),
    ("[" * 100000, Columns(), "train.json:1: not a JSON object"), ("9" * 5000, Columns(), "train.json:1: not a JSON"),
    ('{"text": "EU"}', Columns(), "train.json:1: there is no tokens or words, only 'text'; say --token_column"),
    ('{"tokens": ["EU"]}', Columns(), "train.json:1: there is no labels or tags or ner_tags, only 'tokens'"),
    ('{"tokens": ["EU"], "tags": []}', Columns(), "train.json:1: 1 words in 'tokens' but 0 labels in 'tags'"),
    ('{"tokens": "EU", "tags": []}', Columns(), "train.json:1: 'tokens' is no list, but 'EU'"),
    ('{"tokens": [null], "tags": ["O"]}', Columns(), r"train.json:1: 'tokens'\[0\] is null, not a text"),
    ('{"tokens": ["a", ""], "tags": ["O", "O"]}', Columns(), r"'tokens'\[1\] is '', not a text that is not empty"),
    ('{"tokens": ["a"], "tags": [true]}', Columns(), r"'tags'\[0\] is true, not a text"),
    ('{"tokens": ["\\ud800"], "tags": ["O"]}', Columns(), r"'tokens'\[0\] holds half a surrogate pair"),
    ('{"tokens": ["a"], "tags": ["O"], "document": null}', Columns(), "the document is null, neither a text nor"),
    ('{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a"]}', Columns(), "train.json:2: 'tags' is missing"),
    ('{"tokens": ["a"], "tags": ["O"]}', Columns("tags", "tags"), "words and labels would both be 'tags'"),
    ('{"tokens": ["a"], "tags": ["O"]}', Columns(0), "train.json:1: there is no 0, only 'tokens, tags'")])
def test_broken_json_lines_are_refused(tmp_path, line, columns, message):
    with pytest.raises(UserError, match=message) as raised:
        read_text(tmp_path, line, columns, "train.json")
    assert "\n" not in str(raised.value)


PIECES = ["EU", "O", "B-X", "#", "# ", "\t", " ", "\n", "\n\n", "-DOCSTART-", "\u3000", "\u200b", "{", '"tokens"', ":",
          '["a"]', '["O", 3]', '"tags"', "}", ",", "\\ud800", "1", "2", "\r", "\ufeff", "\x0b", "[]", "null"]
WHOLE = ['{"tokens": ["EU", "is"], "tags": ["B-X", "O"], "document": "d"}\n' * 2, "EU\tB-X\nis\tO\n\nWe\tO\n",
         "-DOCSTART- O\n\n# id 3\nEU B-X\nis O\n\nWe O\n"]
SAID = st.sampled_from([None, None, 0, "1", "-1", "tags", 7])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), columns=st.builds(Columns, SAID, SAID, st.sampled_from([True, False, None])))
def test_any_file_is_read_or_refused(tmp_path, data, columns):
    raw = bytearray(data.draw(st.sampled_from(WHOLE) | st.lists(st.sampled_from(PIECES)).map("".join)).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at:at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from(PIECES).map(str.encode) | st.binary(max_size=2))
    path = file_of(tmp_path, bytes(raw), data.draw(st.sampled_from(["a.txt", "a.jsonl"])))
    logging.getLogger("bert_tf").setLevel(logging.ERROR)
    try:
        for sentence in examples.read(path, columns):
            assert sentence.tokens and all(sentence.tokens) and len(sentence.lines) == len(sentence.tokens)
            assert sentence.labels is None or len(sentence.labels) == len(sentence.tokens) and all(sentence.labels)
    except UserError as error:
        assert str(error).startswith(path) and "\n" not in str(error)
    finally:
        logging.getLogger("bert_tf").setLevel(logging.NOTSET)


# Schemes.

ENTITIES = st.lists(st.tuples(st.sampled_from(["O", "X", "Y-Z"]), st.integers(1, 3)), max_size=8)


def encode(entities, scheme):
    """The labels of a sentence of `(type, number of words)` in a scheme."""
    labels, before = [], None
    for kind, size in entities:
        if kind == "O":
            labels += ["O"] * size
        elif scheme == "IOB1":
            labels += [f"{'B' if kind == before else 'I'}-{kind}", *[f"I-{kind}"] * (size - 1)]
        else:
            begin, inside, end, single = {"BIO": "BIIB", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}[scheme]
            prefixes = single if size == 1 else begin + inside * (size - 2) + end
            labels += [f"{prefix}-{kind}" for prefix in prefixes]
        before = kind
    return labels


def sentences_of(*rows):
    return [Sentence(["w"] * len(labels), labels, list(range(10 * number + 1, 10 * number + 1 + len(labels))), 0)
            for number, labels in enumerate(rows)]


@given(ENTITIES, st.sampled_from(["BIO", "BIOES", "BILOU", "BMES", "IOB1"]))
def test_every_scheme_comes_to_the_same_bio(entities, scheme):
    labels = encode(entities, scheme)
    name = scheme if scheme in ("BIO", "IOB1") else "BIOES"
    assert examples.to_bio(labels, name) == encode(entities, "BIO")
    assert not examples._flaws(sentences_of(labels), name)


def chunks(labels):
    """`(type, first, last)` of the entities that conlleval's rules about neighbouring labels part, S- among them."""
    found, start = [], None
    before, type_before = "O", ""
    for place, label in enumerate([*labels, "O"]):
        tag, _, kind = label.partition("-")
        differs = kind != type_before
        ends = before != "O" and (differs or before in "ES" or tag in "BSO")
        begins = tag != "O" and (differs or tag in "BS" or before in "ESO")
        if ends:
            found.append((type_before, start, place - 1))
        if begins:
            start = place
        before, type_before = tag, kind
    return found


@given(st.lists(st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("X", "Y"))])))
def test_any_labels_hold_the_entities_that_conlleval_finds(labels):
    made = examples.to_bio(labels, "BIOES")
    assert chunks(made) == chunks(labels)
    assert examples.to_bio(made, "BIO") == made and not examples._flaws(sentences_of(made), "BIO")


@given(st.lists(ENTITIES, min_size=1, max_size=4), st.sampled_from(["BIO", "BIOES", "BILOU", "IOB1"]))
def test_the_scheme_is_found(sentences, scheme):
    """Or another where the labels are in both."""
    rows = sentences_of(*(encode(entities, scheme) for entities in sentences))
    found = examples.find_scheme(rows, "there")
    assert not examples._flaws(rows, found)
    assert [examples.to_bio(row.labels, found) for row in rows] == [encode(row, "BIO") for row in sentences]


@pytest.mark.parametrize("rows, scheme, said", [
    ([["O", "B-X", "I-X", "I-X"]], "BIO", ""), ([["I-X", "O", "I-X", "B-X"]], "IOB1", ""), ([["O"]], "BIO", ""),
    ([["B-X", "E-X", "O", "S-X"]], "BIOES", ""), ([["B", "I", "O"]], "BIO", ""), ([["NOUN", "O"]], "plain", ""),
    ([["B-", "O"]], "plain", ""), ([["I-X", "X-I"]], "plain", ""), ([["0", "3"]], "plain", ""),
    ([["B-X", "O", "B-X"], ["O", "I-X", "I-X", "I-Y"]], "BIO",
     "2 entities that begin without B-, read as if with it (line 12, 14)"),
    ([["B-X", "O", "I-X", "B-X"], ["I-X"]], "IOB1",
     "1 B- that come after no entity of their type, read as I- (line 1)"),
    ([["B-X", "I-X", "O", "E-X", "S-X", "I-X"]], "BIOES",
     "2 entities that end without E- or S-, read as if with it (line 2, 6); "
     "2 entities that begin without B-, read as if with it (line 4, 6)")])
def test_schemes_by_hand(caplog, rows, scheme, said):
    with caplog.at_level("INFO"):
        assert examples.find_scheme(sentences_of(*rows), "there") == scheme
    first, *more = [record.getMessage() for record in caplog.records]
    assert first == "there: plain labels" if scheme == "plain" else f"there: labels in the scheme {scheme}"
    assert more == ([f"there: labels that contradict their scheme: {said}"] if said else [])


def test_the_scheme_of_another_file_is_checked(caplog):
    examples.check_scheme(sentences_of(["O", "I-X"]), "BIO", "there")
    assert "there: labels that contradict their scheme: 1 entities that begin without B-" in caplog.text
    caplog.clear()
    examples.check_scheme(sentences_of(["O", "I-X"]), "IOB1", "there")
    examples.check_scheme(sentences_of(["NOUN"]), "plain", "there")
    assert not caplog.records
    with pytest.raises(UserError, match="there:2: the label 'NOUN' is not in the scheme BIO of the others"):
        examples.check_scheme(sentences_of(["O", "NOUN"]), "BIO", "there")


def test_plain_labels_stay():
    assert examples.to_bio(["NOUN", "I-X", ""], "plain") == ["NOUN", "I-X", ""]
