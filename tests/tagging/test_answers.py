import types

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from bert_tf import batching, tokenization
from bert_tf.runtime import Runtime
from bert_tf.tagging import answers, examples, features

TAGS = st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])


def sentence(tokens, labels=None, lines=None):
    return examples.Sentence(tokens, labels, lines or list(range(1, len(tokens) + 1)), 0)


def test_the_words_of_some_windows_and_their_places():
    made = types.SimpleNamespace(words=np.int32([-1, 4, -1, 2, -1, -1, 0, -1, -1, -1, 1, 3, -1]),
                                 row_splits=np.int64([0, 5, 8, 8, 13]), lengths=np.int64([5, 3, 0, 5]))
    for numbers, expected in [([3, 0], [[1, 0, 2], [3, 0, 3], [4, 1, 1], [2, 1, 3]]), ([2, 1], [[0, 1, 1]]),
                              ([2], [])]:
        found = answers.find_words(made, np.array(numbers))
        assert np.stack(found, axis=1).tolist() == expected


@pytest.mark.parametrize("batch_size, settings", [
    (4, {}), (7, {"xla": True}), (3, {"strategy": "mirrored", "virtual_devices": 2})])
def test_every_word_has_the_logits_of_its_first_piece(shared, batch_size, settings):
    """Of a model that says the ids: no word of the long sentence is lost or moved, however it is cut into windows."""
    tokenizer, runtime = tokenization.FullTokenizer(shared("goldens/tiny_ckpt/vocab.txt")), Runtime(**settings)
    pieces = sorted(piece for piece in tokenizer.vocab if piece.isascii() and piece.isalpha())
    r = np.random.RandomState(1)
    sentences = [["".join(r.choice(pieces, r.randint(1, 3))) for _ in range(count)] for count in (1, 70, 5, 3, 12, 9)]
    made = features.of_sentences(sentences, tokenizer, 24, 7)
    assert len(made) > len(sentences)

    def forward(model, batch):
        ids = tf.cast(batch["input_ids"], tf.float32)
        return {"logits": tf.stack([ids, -ids, ids * ids], axis=-1)}

    with runtime.start().scope():
        predict = answers.build_predict(types.SimpleNamespace(num_classes=3), types.SimpleNamespace(forward=forward),
                                        runtime, batching.Sizes(24, runtime.xla))
        found = predict(made, batch_size)
    first = np.float32([tokenizer.encode(word)[0] for words in sentences for word in words])
    np.testing.assert_array_equal(found, np.stack([first, -first, first * first], axis=1))


def test_probabilities_and_decisions_by_hand():
    logits = np.float32([[0, np.log(3)], [1000, -1000], [2, 2]])
    np.testing.assert_allclose(answers.probabilities(logits), [[0.25, 0.75], [1, 0], [0.5, 0.5]], rtol=1e-6)
    assert answers.probabilities(logits).dtype == np.float32
    assert answers.decisions(logits).tolist() == [1, 0, 0]


def test_decisions_go_back_to_their_sentences():
    sentences = [sentence(["a", "b"]), sentence(["c"]), sentence(["d", "e", "f"])]
    assert answers.by_sentence(np.array([0, 1, 1, 2, 0, 0]), ["O", "B-X", "I-X"], sentences) == [
        ["O", "B-X"], ["B-X"], ["I-X", "O", "O"]]


@pytest.mark.parametrize("labels, loose, strict", [
    ("", [], []), ("O O", [], []), ("B-X", [("X", 0, 1)], [("X", 0, 1)]),
    ("B-X I-X O B-X B-X", [("X", 0, 2), ("X", 3, 4), ("X", 4, 5)], [("X", 0, 2), ("X", 3, 4), ("X", 4, 5)]),
    ("I-X I-X O I-Y", [("X", 0, 2), ("Y", 3, 4)], []),
    ("B-X I-Y I-Y", [("X", 0, 1), ("Y", 1, 3)], [("X", 0, 1)]),
    ("B-X I-Y I-X", [("X", 0, 1), ("Y", 1, 2), ("X", 2, 3)], [("X", 0, 1)]),
    ("O I-a-b B-a-c I-a-c", [("a-b", 1, 2), ("a-c", 2, 4)], [("a-c", 2, 4)]),
    ("B I O I", [("_", 0, 2), ("_", 3, 4)], [("_", 0, 2)]), ("I-X . I-X", [("X", 0, 1), ("X", 2, 3)], [])])
def test_entities_by_hand(labels, loose, strict):
    assert answers.entities(labels.split()) == loose
    assert answers.entities(labels.split(), strict=True) == strict


@hypothesis.given(st.lists(TAGS))
def test_entities_say_all_that_labels_do(labels):
    """Labels written from them again are the same but for a B- where an entity begins."""
    written = ["O"] * len(labels)
    for kind, start, end in answers.entities(labels):
        assert written[start:end] == ["O"] * (end - start)
        written[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    assert written == examples.to_bio(labels, "IOB1")
    assert answers.entities(written, strict=True) == answers.entities(labels)


def test_every_plain_label_is_one_of_its_own():
    assert answers.words(["NN", "NN", "VB"]) == [("NN", 0, 1), ("NN", 1, 2), ("VB", 2, 3)]


def predicted_file(folder, source, columns=examples.Columns(), name="source.txt"):
    """What is written for a file of these bytes, where P0, P1 and so on are predicted for its words."""
    (folder / name).write_bytes(source)
    sentences, number, predicted = examples.read(folder / name, columns), 0, []
    for each in sentences:
        predicted.append([f"P{number + place}" for place in range(len(each.tokens))])
        number += len(each.tokens)
    answers.write_predictions(folder / "predictions.conll", folder / name, sentences, predicted)
    return (folder / "predictions.conll").read_bytes()


@pytest.mark.parametrize("source, expected", [
    (b"a\tO\nb c\tB-X\n\t\nd\tO\n\n\n", b"a\tO\tP0\nb c\tB-X\tP1\n\t\nd\tO\tP2\n\n\n"),
    (b"a O\nb B-X\n \nd O", b"a O P0\nb B-X P1\n \nd O P2\n"),
    (b"-DOCSTART- -X- O\n\na N O\n\n-DOCSTART- -X- O\n\nb N O\n",
     b"-DOCSTART- -X- O O\n\na N O P0\n\n-DOCSTART- -X- O O\n\nb N O P1\n"),
    (b"-DOCSTART-\n\na\tO\n", b"-DOCSTART-\n\na\tO\tP0\n"),
    (b"\xef\xbb\xbfa\tO\r\n\r\n\xe5\x8c\x97\tB-X\t \r\n", b"a\tO\tP0\n\n\xe5\x8c\x97\tB-X\tP1\n"),
    (b"# id 12 of the set\na\tO\n\n# text\nb\tO\n", b"# id 12 of the set\na\tO\tP0\n\n# text\nb\tO\tP1\n")])
def test_the_lines_of_the_input_are_kept(tmp_path, source, expected):
    assert predicted_file(tmp_path, source) == expected


def test_a_file_without_labels_gets_one_column(tmp_path):
    unlabelled = examples.Columns(is_labelled=False)
    assert predicted_file(tmp_path, b"a\nb\n\nc\n", unlabelled) == b"a\tP0\nb\tP1\n\nc\tP2\n"


def test_json_lines_become_columns(tmp_path):
    source = ('{"tokens": ["a b", "\\t\\\\"], "labels": ["O", "B-X"]}\n\n{"tokens": [], "labels": []}\n'
              '{"tokens": ["北"], "labels": ["O"]}\n').encode()
    assert predicted_file(tmp_path, source, name="s.jsonl").decode() == "a b\tO\tP0\n\\t\\\\\tB-X\tP1\n\n北\tO\tP2\n\n"
    unlabelled = examples.Columns(is_labelled=False)
    assert predicted_file(tmp_path, source, unlabelled, "s.jsonl").decode() == "a b\tP0\n\\t\\\\\tP1\n\n北\tP2\n\n"


@pytest.mark.parametrize("name", ["wnut17/emerging.dev.conll", "wikigold/wikigold.conll.txt",
                                  "weibo_zh/weiboNER_2nd_conll.dev"])
def test_real_files_lose_nothing(shared, tmp_path, name):
    source = shared("data/ner") / name
    found = predicted_file(tmp_path, source.read_bytes()).decode().split("\n")
    separator, number = " " if "wikigold" in name else "\t", 0
    for line, written in zip(source.read_text("utf-8").removesuffix("\n").split("\n"), found[:-1], strict=True):
        is_word = line.strip() and not line.startswith("-DOCSTART-")
        added = f"{separator}P{number}" if is_word else " O" * line.startswith("-DOCSTART-")
        assert written == line + added
        number += bool(is_word)
    assert found[-1] == "" and number > 10_000
