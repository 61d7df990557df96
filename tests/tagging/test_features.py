import dataclasses
import functools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import batching, feature_cache, tokenization
from bert_tf.errors import UserError
from bert_tf.squad import features as squad_features
from bert_tf.tagging import examples, features
from bert_tf.tagging.examples import Columns, Sentence

VOCABULARIES = {"uncased": "vocab/bert-base-uncased/vocab.txt", "cased": "vocab/bert-base-cased/vocab.txt",
                "zh": "vocab/bert-base-chinese/vocab.txt", "tiny": "goldens/tiny_ckpt/vocab.txt"}
FILES = ["wnut17/wnut17train.conll", "wnut17/emerging.dev.conll", "wnut17/emerging.test.annotated",
         "NCBI-disease-IOB/train.tsv", "NCBI-disease-IOB/devel.tsv", "NCBI-disease-IOB/test.tsv",
         "BC5CDR-IOB/train.tsv", "BC5CDR-IOB/devel.tsv", "BC5CDR-IOB/test.tsv", "wikigold/wikigold.conll.txt",
         "weibo_zh/weiboNER_2nd_conll.train", "weibo_zh/weiboNER_2nd_conll.dev", "weibo_zh/weiboNER_2nd_conll.test",
         "msra_zh/msra_test_bio.txt"]


@pytest.fixture(scope="module")
def tokenizer_of(shared):
    return functools.cache(lambda name: tokenization.FullTokenizer(shared(VOCABULARIES[name]), name != "cased"))


def labels_of(rows):
    return sorted({label for row in rows for label in row.labels})


def check_words(made, rows, tokenizer, max_seq_length):
    """Every word stands once, in order inside a window, at its first token and with the rest of them behind it."""
    words = [word for row in rows for word in row.tokens]
    assert made.words.shape == made.input_ids.shape and made.lengths.max(initial=0) <= max_seq_length
    at = np.flatnonzero(made.words >= 0)
    assert np.sort(made.words[at]).tolist() == list(range(len(words)))
    sentences = np.repeat(np.arange(len(rows)), [len(row.tokens) for row in rows])
    assert (sentences[made.words[at]] == np.repeat(made.sentence_numbers, made.lengths)[at]).all()
    assert (np.diff(made.sentence_numbers) >= 0).all()
    ends = np.repeat(made.row_splits[1:], made.lengths)
    for place in at.tolist():
        ids = tokenizer.encode(words[made.words[place]])[:max_seq_length - 2] or [tokenizer.vocab["[UNK]"]]
        assert made.input_ids[place:place + len(ids)].tolist() == ids and place + len(ids) < ends[place]


@pytest.mark.parametrize("name", FILES)
def test_every_word_of_real_data_is_predicted_once(shared, tokenizer_of, name):
    path = shared(f"data/ner/{name}")
    rows = examples.read(path)
    labels = labels_of(rows)
    rows = sorted(rows[::max(len(rows) // 40, 1)] + sorted(rows, key=lambda row: -len(row.tokens))[:5],
                  key=lambda row: row.lines)
    for vocab in ("zh",) if "_zh" in name else ("uncased", "cased"):
        fitting = features.convert(rows, path, tokenizer_of(vocab), labels, 4096, 2048)
        assert fitting.sentence_numbers.tolist() == list(range(len(rows)))
        for max_seq_length, doc_stride in ((16, 1), (16, 5), (64, 32), (64, 100), (128, 50)):
            made = features.convert(rows, path, tokenizer_of(vocab), labels, max_seq_length, doc_stride)
            check_words(made, rows, tokenizer_of(vocab), max_seq_length)
            assert [labels[number] for number in made.label_ids] == [label for row in rows for label in row.labels]
            assert made.lines.tolist() == [line for row in rows for line in row.lines]
            check_fitting(made, fitting, max_seq_length)


def check_fitting(made, whole, max_seq_length):
    """Sentences that fit are in one window, the same as where all fit."""
    for number in np.flatnonzero(whole.lengths <= max_seq_length):
        window, = np.flatnonzero(made.sentence_numbers == number)
        for name in ("input_ids", "words"):
            found, wanted = (getattr(of, name)[of.row_splits[place]:of.row_splits[place + 1]]
                             for of, place in ((made, window), (whole, number)))
            np.testing.assert_array_equal(found, wanted)


# A replay in plain Python, word by word.


def replay(rows, tokenizer, max_seq_length, doc_stride, document_context):
    """`(sentence, ids, words)` of each window that predicts a word."""
    room, found, before = max_seq_length - 2, [], 0
    for number, row in enumerate(rows):
        around = [other for other in rows if other.document == row.document]
        inside = sum(len(other.tokens) for other in rows[:number] if other.document == row.document)
        pieces = [tokenizer.encode(word)[:room] or [tokenizer.vocab["[UNK]"]]
                  for other in around for word in other.tokens]
        own = range(inside, inside + len(row.tokens))
        spans = replay_cut(pieces, own, room, doc_stride)
        if document_context:
            spans = [replay_fill(pieces, span, room) for span in spans]
        chosen = {word: max(range(len(spans)), key=lambda at: replay_score(pieces, spans[at], word)) for word in own}
        for at, span in enumerate(spans):
            ids = [tokenizer.vocab["[CLS]"], *sum((pieces[word] for word in span), []), tokenizer.vocab["[SEP]"]]
            words = [-1]
            for word in span:
                is_predicted = chosen.get(word) == at
                words += [word - inside + before if is_predicted else -1, *[-1] * (len(pieces[word]) - 1)]
            if max(words) >= 0:
                found.append((number, ids, [*words, -1]))
        before += len(row.tokens)
    return found


def size(pieces, words):
    return sum(len(pieces[word]) for word in words)


def replay_cut(pieces, own, room, doc_stride):
    """Ranges of words: as many as fit, and the next from the last word that is within the stride."""
    spans, first = [], own.start
    while first < own.stop:
        last = max(end for end in range(first + 1, own.stop + 1) if size(pieces, range(first, end)) <= room)
        spans.append(range(first, last))
        if last == own.stop:
            break
        steps = [word for word in range(first + 1, last + 1) if size(pieces, range(first, word)) <= doc_stride]
        first = max(steps, default=first + 1)
    return spans


def replay_fill(pieces, span, room):
    """Words of the document added to a range, one by one: half of the room before it, more where less is behind."""
    free = room - size(pieces, span)
    allowed = max(free // 2, free - size(pieces, range(span.stop, len(pieces))))
    first, last = span.start, span.stop
    while first > 0 and size(pieces, range(first - 1, span.start)) <= allowed:
        first -= 1
    while last < len(pieces) and size(pieces, range(first, last + 1)) <= room:
        last += 1
    return range(first, last)


def replay_score(pieces, span, word):
    """What decides where a word is predicted: the tokens around its first one."""
    if word not in span:
        return -1
    before, whole = size(pieces, range(span.start, word)), size(pieces, span)
    return min(before, whole - 1 - before) + 0.01 * whole


WORDS = st.sampled_from(["The", "(1895-1943).", "résumé", "İstanbul", "北京", "\u200b", "서울은", "unbelievable",
                         "[SEP]", "a", "a", "a", "of", "💡", "x\u3000y", "\xa0"])
ROWS = st.lists(st.tuples(st.lists(WORDS, max_size=14), st.booleans()), max_size=6)


@pytest.fixture(scope="module")
def tiny(tokenizer_of):
    return tokenizer_of("tiny")


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, room=st.integers(1, 24), doc_stride=st.integers(1, 26), document_context=st.booleans(),
       chunk=st.integers(1, 3))
def test_windows_are_those_of_the_replay(tiny, rows, room, doc_stride, document_context, chunk):
    documents = np.cumsum([is_new for _, is_new in rows], dtype=int).tolist()
    rows = [Sentence(words, None, [number] * len(words), document)
            for number, ((words, _), document) in enumerate(zip(rows, documents), start=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "CHUNK", chunk)
        made = features.convert(rows, "", tiny, [], room + 2, doc_stride, document_context)
    wanted = replay(rows, tiny, room + 2, doc_stride, document_context)
    assert made.sentence_numbers.tolist() == [number for number, _, _ in wanted]
    assert [ids.tolist() for ids in np.split(made.input_ids, made.row_splits[1:-1])][:len(wanted)] == [
        ids for _, ids, _ in wanted]
    assert made.words.tolist() == [word for _, _, words in wanted for word in words]
    check_words(made, rows, tiny, room + 2)
    assert (made.label_ids == -1).all() and len(made.label_ids) == sum(len(row.tokens) for row in rows)


@given(num_words=st.integers(1, 60), room=st.integers(1, 20), doc_stride=st.integers(1, 25))
def test_words_of_one_token_are_cut_as_tokens_are(num_words, room, doc_stride):
    """By the rule of questions' contexts."""
    found = features.cut_windows(range(num_words + 1), 0, num_words, room, doc_stride)
    assert found == list(zip(*squad_features.cut_windows(num_words, room, doc_stride)))


# What is said, refused and kept.


class Letters:
    """A tokenizer of one id a letter, "." for nothing."""

    vocab = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}

    def encode(self, text):
        return [ord(letter) for letter in text.replace(".", "").replace("?", "\0")]

    def convert_ids_to_tokens(self, ids):
        return [chr(number) if number > 2 else "UCS"[number] for number in ids]


def rows_of(*texts, documents=None):
    """Sentences of a file with a line a word, each word's label its last letter."""
    rows, line = [], 1
    for number, words in enumerate(map(str.split, texts)):
        rows.append(Sentence(words, [word[-1] for word in words], list(range(line, line + len(words))),
                             documents[number] if documents else 0))
        line += len(words) + 1
    return rows


def shown(made):
    """The windows as text, "|" before each word that is predicted."""
    letters = ["|" * int(word >= 0) + letter for word, letter in
               zip(made.words, Letters().convert_ids_to_tokens(made.input_ids.tolist()))]
    return ["".join(letters[start:end]) for start, end in zip(made.row_splits, made.row_splits[1:])]


ROWS_BY_HAND = rows_of("ab cd ef gh", "ab", "abcdefgh i", ". j", "??? .", "ab c de f ghi jk")


def test_windows_by_hand(caplog):
    with caplog.at_level("INFO"):
        made = features.convert(ROWS_BY_HAND, "there", Letters(), sorted(".?bcdefhik" + "j"), 8, 3)
    assert shown(made) == ["C|ab|cdefS", "Ccd|ef|ghS", "C|abS", "C|abcdefS", "C|iS", "C|U|jS", "C|UUU|US",
                           "C|ab|c|defS", "Cde|f|ghiS", "Cghi|jkS"]
    assert made.sentence_numbers.tolist() == [0, 0, 1, 2, 2, 3, 4, 5, 5, 5]
    assert made.where(4) == "there:9" and made.where(7) == "there:17" and made.path == "there"
    assert [record.getMessage() for record in caplog.records][:6] == [
        "there: 6 sentences, 17 words, 10 windows, 64 tokens",
        "there: 3 sentences longer than --max_seq_length=8 are in several windows",
        "there: 1 words are longer than a window and cut to 6 tokens",
        "there: 2 words have no visible character and stand as [UNK]",
        "there: 1 sentences hold nothing but [UNK]", "there:1: C a/b b c/d d e f S"]
    assert len(caplog.records) == 5 + features.LOGGED_WINDOWS


def test_windows_that_do_not_overlap_are_said(caplog):
    made = features.convert(rows_of("ab cd ef"), "there", Letters(), "bdf", 6, 4)
    assert shown(made) == ["C|ab|cdS", "C|efS"]
    assert "windows of long sentences have room for 4 tokens and do not overlap with --doc_stride=4" in caplog.text


@pytest.mark.parametrize("length, wanted", [
    (5, ["C|abS", "C|cd|eS", "Ce|fS", "C|ghS"]), (6, ["C|abcdS", "C|cd|efS", "Ccde|fS", "C|ghijS"]),
    (7, ["C|abcdeS", "C|cd|efS", "Ccde|fS", "C|ghijS"]), (9, ["C|abcdefS", "Cab|cd|efS", "Cabcde|fS", "C|ghijS"])])
def test_context_by_hand(length, wanted, caplog):
    """Whole words of the same document only; where one side has few, the other has more."""
    with caplog.at_level("INFO"):
        made = features.convert(rows_of("ab", "cd e", "f", "gh", "ij", documents=[0, 0, 0, 1, 1]), "", Letters(),
                                "bdefhj", length, 4, True)
    assert shown(made)[:4] == wanted
    assert "no sign of a new document" not in caplog.text


def test_a_file_without_documents_is_one(caplog):
    with caplog.at_level("INFO"):
        features.convert(rows_of("ab", "c"), "there", Letters(), "bc", 8, 4, True)
    assert "there: no sign of a new document; all sentences are context of one another" in caplog.text


@pytest.mark.parametrize("lengths, message", [((2, 1), "--max_seq_length=2 must be greater than 2, to leave words"),
                                              ((8, 0), "--doc_stride=0 must be at least 1")])
def test_lengths_without_room_are_refused(lengths, message):
    with pytest.raises(UserError, match=message):
        features.convert(ROWS_BY_HAND, "there", Letters(), "", *lengths)


def test_a_label_that_training_does_not_have():
    with pytest.raises(UserError, match="there:6: the label 'c' is not among the 2 of the training set: b, d"):
        features.convert(rows_of("ab cd", "ab d c"), "there", Letters(), "bd", 8, 4)


def test_sentences_by_themselves_are_the_same_windows(caplog):
    made = features.of_sentences([row.tokens for row in ROWS_BY_HAND] + [[]], Letters(), 8, 3)
    assert not caplog.records and made.path == "text"
    wanted = features.convert(ROWS_BY_HAND, "", Letters(), sorted(set(".?bcdefhijk")), 8, 3)
    for name in ("input_ids", "row_splits", "words", "sentence_numbers"):
        np.testing.assert_array_equal(getattr(made, name), getattr(wanted, name))
    assert (made.label_ids == -1).all() and made.lines.tolist()[:6] == [1, 1, 1, 1, 2, 3]


@pytest.mark.parametrize("rows", [[], [[]], [[], []]])
def test_no_word_is_features_too(rows):
    made = features.of_sentences(rows, Letters(), 8, 3)
    assert len(made) == 0 and made.row_splits.tolist() == [0] and made.lengths.shape == (0,)
    assert {name: array.dtype for name, array in made.arrays.items()} == {
        "row_splits": np.int64, **dict.fromkeys(
            ("input_ids", "sentence_numbers", "words", "label_ids", "lines"), np.int32)}


@pytest.fixture(scope="module")
def wikigold(shared, tokenizer_of):
    """The first sentences of a file and their features."""
    path = shared("data/ner/wikigold/wikigold.conll.txt")
    rows = examples.read(path)[:300]
    return rows, features.convert(rows, path, tokenizer_of("cased"), labels_of(rows), 32, 12, True)


def test_the_same_bytes_for_any_number_of_processes(tokenizer_of, wikigold, monkeypatch):
    rows, alone = wikigold
    monkeypatch.setattr(features, "CHUNK", 40)
    together = features.convert(rows, alone.path, tokenizer_of("cased"), labels_of(rows), 32, 12, True, 2)
    for name, array in alone.arrays.items():
        assert array.dtype == together.arrays[name].dtype
        np.testing.assert_array_equal(array, together.arrays[name])


def test_a_small_file_starts_no_process(monkeypatch):
    started = []
    monkeypatch.setattr(features.parallel, "ordered_map",
                        lambda function, jobs, count, *common: started.append(count) or
                        (function(job, *common) for job in jobs))
    monkeypatch.setattr(features, "CHUNK", 2)
    for number in (14, 15):
        features.convert(rows_of(*["ab"] * number), "", Letters(), "b", 8, 2, num_processes=3)
    assert started == [1, 3]


def test_processes_that_convert_sentences_do_not_load_tensorflow():
    program = "import sys, bert_tf.tagging.features; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_features_come_back_from_a_cache(wikigold, tmp_path):
    _, made = wikigold
    for _ in range(2):
        arrays = feature_cache.load_or_make(str(tmp_path), "dev", "0" * 64, lambda: made.arrays)
    again = features.Features(made.path, **arrays)
    assert arrays is not made.arrays and again.digest == made.digest
    assert [again.where(number) for number in (0, 250)] == [made.where(number) for number in (0, 250)]


def test_what_decides_features(tokenizer_of):
    """Each of these makes other features, and must show."""
    usual = (tokenizer_of("uncased"), ["O"], Columns(), 64, 16)
    others = [(tokenizer_of("cased"), *usual[1:])] + [
        (*usual[:place], value, *usual[place + 1:]) for place, value in
        enumerate((["O", "B-X"], Columns(1), 65, 17), start=1)] + [(*usual, True)]
    found = {feature_cache.fingerprint([], features.decided_by(*chosen)) for chosen in (usual, *others)}
    assert len(found) == 7


def test_the_digest_tells_features_apart(wikigold):
    _, made = wikigold
    again = dataclasses.replace(made, path="elsewhere", input_ids=made.input_ids.copy(), lines=made.lines + 1)
    assert again.digest == made.digest
    again.input_ids[5] += 1
    assert again.digest != made.digest
    for name in ("words", "label_ids"):
        assert dataclasses.replace(made, **{name: getattr(made, name) + 1}).digest != made.digest


@pytest.mark.parametrize("static", [False, True])
def test_a_batch_by_hand(wikigold, static):
    _, made = wikigold
    numbers = np.array([7, 3, 3, 250])
    batch = features.make_batch(made, numbers, batching.Sizes(40, xla=False, static=static))
    for place, number in enumerate(numbers):
        of_window = slice(made.row_splits[number], made.row_splits[number + 1])
        ids, words = made.input_ids[of_window].tolist(), made.words[of_window].tolist()
        padding = batch["input_ids"].shape[1] - len(ids)
        assert batch["input_ids"][place].tolist() == [*ids, *[0] * padding]
        assert batch["input_mask"][place].tolist() == [1] * len(ids) + [0] * padding
        assert batch["words"][place].tolist() == [*words, *[-1] * padding]
        assert batch["label_ids"][place].tolist() == [
            made.label_ids[word] if word >= 0 else -1 for word in [*words, *[-1] * padding]]
    assert not batch["segment_ids"].any() and batch["example_weights"].tolist() == [1] * 4
    assert {name: (array.dtype, array.shape) for name, array in batch.items() if name != "token_indices"} == {
        "example_weights": (np.float32, (4,)), **dict.fromkeys(
            ("input_ids", "input_mask", "segment_ids", "words", "label_ids"), (np.int32, (4, 40 if static else 32)))}


def test_batches_hold_every_label_once(wikigold):
    rows, made = wikigold
    found = np.full(len(made.label_ids), -1)
    for numbers in np.array_split(np.arange(len(made)), 9):
        batch = features.make_batch(made, numbers, batching.Sizes(32, xla=True))
        inside = batch["words"] >= 0
        assert ((batch["label_ids"] >= 0) == inside).all() and (found[batch["words"][inside]] == -1).all()
        found[batch["words"][inside]] = batch["label_ids"][inside]
    labels = labels_of(rows)
    assert [labels[number] for number in found] == [label for row in rows for label in row.labels]
