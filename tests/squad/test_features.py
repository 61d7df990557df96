import dataclasses
import functools
import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import batching, feature_cache, tokenization
from bert_tf.errors import UserError
from bert_tf.squad import examples, features
from bert_tf.squad.examples import Context, SquadExample

VOCABULARIES = {"en": "checkpoints/minilm_l6/vocab.txt", "zh": "vocab/bert-base-chinese/vocab.txt",
                "tiny": "goldens/tiny_ckpt/vocab.txt"}
FIRST_UNIQUE_ID = 1000000000
RUNS = [(name, number) for name in ("train-v1.1", "train-v2.0", "dev-v1.1", "dev-v2.0")
        for number in range(4 if "v1.1" in name else 3)]


@pytest.fixture(scope="module")
def recorded(shared):
    """The recorded features of a file by its name."""
    @functools.cache
    def load(name):
        with gzip.open(shared(f"goldens/squad/features_{name}.json.gz")) as file:
            return json.load(file)

    return load


@pytest.fixture(scope="module")
def tokenizers(shared):
    return {(vocab, lower): tokenization.FullTokenizer(shared(VOCABULARIES[vocab]), lower)
            for vocab, lower in (("en", True), ("en", False), ("zh", True))}


def original_fields(made, number, rows, tokenizer, is_training, max_seq_length):
    """What the original's `InputFeatures` holds of a window."""
    begin, end = made.row_splits[number], made.row_splits[number + 1]
    ids, words, best = made.input_ids[begin:end].tolist(), made.words[begin:end], made.is_max_context[begin:end]
    first, example_number = made.first_lengths[number], int(made.example_numbers[number])
    padding = [0] * (max_seq_length - len(ids))
    positions = made.start_positions[number], made.end_positions[number]
    return {"unique_id": FIRST_UNIQUE_ID + number, "example_index": example_number,
            "doc_span_index": number - int(np.searchsorted(made.example_numbers, example_number)),
            "tokens": tokenizer.convert_ids_to_tokens(ids),
            "token_to_orig_map": {str(at): word for at, word in enumerate(words.tolist()) if word >= 0},
            "token_is_max_context": {str(at): bool(best[at]) for at, word in enumerate(words) if word >= 0},
            "input_ids": ids + padding, "input_mask": [1] * len(ids) + padding,
            "segment_ids": [0] * first + [1] * (len(ids) - first) + padding,
            "start_position": int(positions[0]) if is_training else None,
            "end_position": int(positions[1]) if is_training else None,
            "is_impossible": is_training and rows[example_number].is_impossible}


@pytest.mark.parametrize("name, number", RUNS)
def test_recorded_features(shared, recorded, tokenizers, name, number):
    file, run = recorded(name), recorded(name)["runs"][number]
    path, is_training = shared(f"goldens/squad/{name}.json"), file["is_training"]
    kept = {row["qas_id"] for row in file["examples"]}  # the original does not find every answer that ours finds
    rows = [row for row in examples.read(path, is_training, file["version_2_with_negative"]) if row.qas_id in kept]
    tokenizer, length = tokenizers[run["vocab"], run["do_lower_case"]], run["max_seq_length"]
    made = features.convert(rows, path, tokenizer, length, run["doc_stride"], run["max_query_length"], is_training)
    assert len(made) == len(run["features"])
    for window, wanted in enumerate(run["features"]):
        assert original_fields(made, window, rows, tokenizer, is_training, length) == wanted


# A replay in plain Python, word by word and place by place, of what the original does.


def replay(example, tokenizer, max_seq_length, doc_stride, max_query_length):
    """Yields `(tokens, words, is_max_context, start, end)` for each window of an example."""
    question = tokenizer.tokenize(example.question_text)[:max_query_length]
    pieces = [(piece, number) for number, word in enumerate(example.context.doc_tokens)
              for piece in tokenizer.tokenize(word)]
    room = max_seq_length - len(question) - 3
    spans, start = [], 0
    while start < len(pieces) and (not spans or spans[-1][-1] + 1 < len(pieces)):
        spans.append(range(start, min(start + room, len(pieces))))
        start += min(doc_stride, room)
    answer = replay_answer(example, pieces, tokenizer)
    for span in spans:
        def score(other, place):
            return min(place - other[0], other[-1] - place) + 0.01 * len(other)

        best = [span == max((other for other in spans if place in other), key=lambda other: score(other, place))
                for place in span]
        outside = len(question) + 2
        has_answer = answer and answer[0] >= span[0] and answer[1] <= span[-1]
        yield (["[CLS]", *question, "[SEP]", *(pieces[place][0] for place in span), "[SEP]"],
               [-1] * outside + [pieces[place][1] for place in span] + [-1],
               [False] * outside + best + [False],
               *(place - span[0] + outside if has_answer else 0 for place in answer or (0, 0)))


def replay_answer(example, pieces, tokenizer):
    """The first and last piece of an example's answer, or None."""
    if example.start_position is None:
        return None
    words = range(example.start_position, example.end_position + 1)
    inside = [place for place, (_, word) in enumerate(pieces) if word in words]
    wanted = tokenizer.tokenize(example.orig_answer_text)
    held = [(first, last) for first in inside for last in inside
            if wanted and [piece for piece, _ in pieces[first:last + 1]] == wanted]
    if held:
        _, spans = tokenizer.encode_with_offsets(example.context.text)
        return min(held, key=lambda places: abs(spans[places[0]][0] - example.answer_start))
    return (inside[0], inside[-1]) if inside else None


TEXTS = st.lists(st.sampled_from([
    "The", "(1895-1943).", "résumé", "İstanbul", "北京", "京都市は", "word\xa0word", "ΑΣ", "\u200b", "e\u0301\u0323",
    "서울은", "unbelievable", "##ing", "[SEP]", "\x1c", "a", "a", "💡", "ﬁne", "x\u3000y"]), max_size=24).map(" ".join)


@pytest.fixture(scope="module")
def tiny(shared):
    return tokenization.FullTokenizer(shared(VOCABULARIES["tiny"]))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), text=TEXTS, question=TEXTS, room=st.integers(1, 20), doc_stride=st.integers(1, 24),
       max_query_length=st.integers(1, 12))
def test_windows_are_those_of_the_replay(tiny, data, text, question, room, doc_stride, max_query_length):
    context = Context.of(text)
    rows = [SquadExample("q", question, context)]
    if context.doc_tokens:
        start = data.draw(st.integers(0, len(text)))
        answer = text[start:start + data.draw(st.integers(1, 20))]
        words = [max(context.word_at(place), 0) for place in (start, start + max(len(answer), 1) - 1)]
        rows.append(rows[0]._replace(start_position=words[0], end_position=words[1], orig_answer_text=answer,
                                     answer_start=start))
    lengths = max_query_length + 3 + room, doc_stride, max_query_length
    made = features.convert(rows, "", tiny, *lengths, True)
    wanted = [(number, window) for number, row in enumerate(rows) for window in replay(row, tiny, *lengths)]
    assert made.example_numbers.tolist() == [number for number, _ in wanted]
    for window, (number, (tokens, words, best, start, end)) in enumerate(wanted):
        of_window = slice(made.row_splits[window], made.row_splits[window + 1])
        assert tiny.convert_ids_to_tokens(made.input_ids[of_window].tolist()) == tokens
        assert made.words[of_window].tolist() == words
        assert made.is_max_context[of_window].tolist() == best
        assert (made.start_positions[window], made.end_positions[window]) == (start, end)
        assert made.first_lengths[window] == sum(word < 0 for word in words) - 1
    check_document(made, context, tiny)


def check_document(made, context, tokenizer):
    """Windows cover the context, each token is best in one of them, and characters lie in their words."""
    whole = [(number, piece) for number, word in enumerate(context.doc_tokens) for piece in tokenizer.tokenize(word)]
    for number in set(made.example_numbers.tolist()):
        of_example = np.repeat(made.example_numbers == number, made.lengths)
        order = np.flatnonzero(of_example & made.is_max_context)
        order = order[np.lexsort([made.char_ends[order], made.char_starts[order], made.words[order]])]
        assert made.words[order].tolist() == [word for word, _ in whole]
        in_window = np.diff(made.words)[(made.words[1:] >= 0) & (made.words[:-1] >= 0)]
        assert (in_window >= 0).all()
    inside = made.words >= 0
    assert (inside == (made.char_starts >= 0)).all() and (inside == (made.char_ends >= 0)).all()
    assert not made.is_max_context[~inside].any()
    starts = np.array([*context.word_starts, 0])[made.words[inside]]
    ends = starts + np.array([*map(len, context.doc_tokens), 0])[made.words[inside]]
    assert (starts <= made.char_starts[inside]).all() and (made.char_ends[inside] <= ends).all()
    assert (made.char_starts[inside] < made.char_ends[inside]).all()


@given(num_tokens=st.integers(0, 80), room=st.integers(1, 30), doc_stride=st.integers(1, 40))
def test_windows_cover_all_tokens_and_each_is_best_once(num_tokens, room, doc_stride):
    starts, ends = features.cut_windows(num_tokens, room, doc_stride)
    assert (len(starts) == 0) == (num_tokens == 0)
    covered = [place for start, end in zip(starts, ends) for place in range(start, end)]
    assert set(covered) == set(range(num_tokens)) and max(map(lambda s, e: e - s, starts, ends), default=0) <= room
    best = features.find_max_context(starts, ends)
    assert all(starts[number] <= place < ends[number] for place, number in enumerate(best))
    assert (np.diff(best) >= 0).all()


def test_the_length_of_a_window_counts():
    """Token 380 has one more token after it in the second window, but the first is longer by 127."""
    assert features.find_max_context([0, 128], [381, 382]).tolist() == [0] * 381 + [1]


# What is said, dropped and kept.


class Letters:
    """A tokenizer of one id a letter, "." for nothing."""

    vocab = {"[CLS]": 1, "[SEP]": 2}
    do_lower_case = True

    def encode(self, text):
        return [ord(letter) for letter in text.replace(".", "").replace(" ", "")]

    def encode_with_offsets(self, text):
        return self.encode(text), [(place, place + 1) for place, letter in enumerate(text) if letter not in ". "]

    def convert_ids_to_tokens(self, ids):
        return list(map(chr, ids))


def row(text, question="?", answer=None, **more):
    """An example whose answer is the word `answer` of a text."""
    context = Context.of(text)
    at = {}
    if answer is not None:
        word = context.doc_tokens.index(answer)
        at = {"start_position": word, "end_position": word, "orig_answer_text": answer,
              "answer_start": context.word_starts[word]}
    return SquadExample("q", question, context, where="data[0]", **at, **more)


def windows_of(made):
    return ["".join(map(chr, ids)) for ids in np.split(made.input_ids, made.row_splits[1:-1])]


ROWS = [row("ab cd ef gh", answer="gh"), row("ab cd", "long?"), row("."), row("ab cde fgh ij", answer="cde"),
        row("ab .. cd", answer=".."), row("ab cd ef gh", answer="ab", is_impossible=False)]


def test_windows_by_hand(caplog):
    with caplog.at_level("INFO"):
        made = features.convert(ROWS, "there", Letters(), 8, 2, 3, True)
    assert windows_of(made) == [
        "\1?\2abcd\2", "\1?\2cdef\2", "\1?\2efgh\2", "\1lon\2ab\2", "\1lon\2cd\2", "\1?\2abcd\2", "\1?\2cdef\2",
        "\1?\2efgh\2", "\1?\2ghij\2", "\1?\2abcd\2", "\1?\2abcd\2", "\1?\2cdef\2", "\1?\2efgh\2"]
    assert made.example_numbers.tolist() == [0, 0, 0, 1, 1, 3, 3, 3, 3, 4, 5, 5, 5]
    assert list(zip(made.start_positions.tolist(), made.end_positions.tolist())) == [
        (0, 0), (0, 0), (5, 6), (0, 0), (0, 0), (0, 0), (3, 5), (0, 0), (0, 0), (0, 0), (3, 4), (0, 0), (0, 0)]
    assert made.words[:8].tolist() == [-1, -1, -1, 0, 0, 1, 1, -1]
    assert made.char_starts[8:16].tolist() == [-1, -1, -1, 3, 4, 6, 7, -1]
    assert made.char_ends[8:16].tolist() == [-1, -1, -1, 4, 5, 7, 8, -1]
    assert np.split(made.is_max_context, made.row_splits[1:3])[1].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert "there: 6 questions, 13 windows, 104 tokens, 1 questions cut to --max_query_length=3" in caplog.text
    assert "there: 8 windows of answered questions do not hold the answer\n" in caplog.text
    assert "there: the windows of long questions have room for 2 tokens of the context and do not" in caplog.text
    assert "there: 1 answers are wholly in no window" in caplog.text
    assert "there: 1 questions have no window" in caplog.text
    assert "there: data[0] ('g h' at 5 to 6): \1 ? \2 e f g h \2" in caplog.text
    assert caplog.text.count("data[0] (") == features.LOGGED_WINDOWS


def test_windows_without_the_answer_are_dropped(caplog):
    with caplog.at_level("INFO"):
        whole, kept = (features.convert(ROWS, "there", Letters(), 8, 2, 3, True, 1, drops) for drops in (False, True))
    assert windows_of(kept) == ["\1?\2efgh\2", "\1lon\2ab\2", "\1lon\2cd\2", "\1?\2cdef\2", "\1?\2abcd\2"]
    assert kept.example_numbers.tolist() == [0, 1, 1, 3, 5]
    chosen = [2, 3, 4, 6, 10]
    for name in ("lengths", "first_lengths", "start_positions", "end_positions"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(whole, name)[chosen])
    of_tokens = np.isin(np.repeat(np.arange(len(whole)), whole.lengths), chosen)
    for name in ("words", "char_starts", "char_ends", "is_max_context"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(whole, name)[of_tokens])
    assert "there: 8 windows of answered questions do not hold the answer and are left out" in caplog.text


def test_without_training_answers_have_no_position():
    made = features.convert(ROWS, "there", Letters(), 8, 2, 3, False, drop_windows_without_answer=True)
    assert len(made) == 13 and not made.start_positions.any() and not made.end_positions.any()


def test_examples_by_themselves_are_the_same_windows(caplog):
    made = features.of_examples(ROWS, Letters(), 8, 2, 3)
    assert not caplog.records and made.path == "text"
    wanted = features.convert(ROWS, "", Letters(), 8, 2, 3, False)
    for name, array in made.arrays.items():
        np.testing.assert_array_equal(array, getattr(wanted, name))


def test_no_example_is_features_too():
    made = features.convert([], "there", Letters(), 8, 2, 3, True)
    assert len(made) == 0 and made.row_splits.tolist() == [0] and made.lengths.shape == (0,)
    assert {name: array.dtype for name, array in made.arrays.items()} == {
        "row_splits": np.int64, "is_max_context": bool, "places": np.dtype("S1"), **dict.fromkeys(
            ("input_ids", "first_lengths", "example_numbers", "words", "char_starts", "char_ends", "start_positions",
             "end_positions"), np.int32)}


@pytest.mark.parametrize("lengths, message", [
    ((10, 2, 7), r"--max_seq_length=10 must be greater than --max_query_length=7 \+ 3"),
    ((10, 0, 3), "--doc_stride=0 must be at least 1"), ((10, 2, 0), "--max_query_length=0 and")])
def test_lengths_without_room_are_refused(lengths, message):
    with pytest.raises(UserError, match=message):
        features.convert(ROWS, "there", Letters(), *lengths, True)


def test_a_context_is_tokenised_once_for_its_questions(tiny, monkeypatch):
    context, seen = Context.of("some text"), []
    monkeypatch.setattr(tiny, "encode_with_offsets", lambda text, real=tiny.encode_with_offsets: seen.append(text) or
                        real(text))
    features.convert([SquadExample(str(number), "who?", context) for number in range(5)], "", tiny, 16, 4, 8, False)
    assert seen == ["some text"]


@pytest.fixture(scope="module")
def xquad(shared):
    """The examples of XQuAD's development questions and their features."""
    path = shared("data/squad_v1/xquad_split/dev-v1.1.json")
    rows = examples.read(path, True, False)
    return rows, features.convert(rows, path, tokenization.FullTokenizer(shared(VOCABULARIES["en"])), 128, 64, 32,
                                  True)


def test_the_same_bytes_for_any_number_of_processes(shared, xquad, monkeypatch):
    rows, alone = xquad
    monkeypatch.setattr(features, "CHUNK", 20)
    tokenizer = tokenization.FullTokenizer(shared(VOCABULARIES["en"]))
    together = features.convert(rows, alone.path, tokenizer, 128, 64, 32, True, 2)
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
        features.convert(ROWS[:1] * number, "", Letters(), 8, 2, 3, True, 3)
    assert started == [1, 3]


def test_of_several_places_in_a_word_the_answers_own_is_learned():
    """In Chinese a sentence is one word."""
    context = Context.of("abcabcab")
    for start in (0, 3, 6):
        example = SquadExample("q", "?", context, ("ab",), False, 0, 0, "ab", start)
        made = features.convert([example], "", Letters(), 20, 8, 3, True)
        assert (made.start_positions - 3, made.end_positions - 3) == (start, start + 1)


def test_processes_that_convert_examples_do_not_load_tensorflow():
    program = "import sys, bert_tf.squad.features, bert_tf.squad.examples; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_answers_of_real_data_are_where_the_labels_say(xquad):
    rows, made = xquad
    held = set()
    for window in np.flatnonzero(made.start_positions):
        row = rows[made.example_numbers[window]]
        first, last = made.row_splits[window] + (made.start_positions[window], made.end_positions[window])
        assert row.context.text[made.char_starts[first]:made.char_ends[last]] == row.orig_answer_text
        held.add(made.example_numbers[window])
    assert len(held) == len(rows)


def test_features_come_back_from_a_cache(xquad, tmp_path):
    rows, made = xquad
    for _ in range(2):
        arrays = feature_cache.load_or_make(str(tmp_path), "dev", "0" * 64, lambda: made.arrays)
    again = features.Features(made.path, **arrays)
    assert arrays is not made.arrays and again.digest == made.digest
    for number in (0, len(made) - 1):
        assert again.where(number) == made.where(number)
    assert made.where(len(made) - 1) == f"{made.path}: {rows[-1].where}"


def test_what_decides_features(shared, tiny):
    """Each of these makes other features, and must show."""
    cased = tokenization.FullTokenizer(shared(VOCABULARIES["tiny"]), False)
    usual = (tiny, 64, 16, 24, True, False)
    others = [(cased, *usual[1:])] + [(*usual[:place], value, *usual[place + 1:]) for place, value in
                                      enumerate((65, 17, 25, False, True), start=1)] + [(*usual, True)]
    found = {feature_cache.fingerprint([], features.decided_by(*chosen)) for chosen in (usual, *others)}
    assert len(found) == 8


def test_the_digest_tells_features_apart(xquad):
    _, made = xquad
    again = dataclasses.replace(made, path="elsewhere", input_ids=made.input_ids.copy(), words=made.words + 1)
    assert again.digest == made.digest
    again.input_ids[5] += 1
    assert again.digest != made.digest
    for name in ("start_positions", "end_positions"):
        assert dataclasses.replace(made, **{name: getattr(made, name) + 1}).digest != made.digest


def test_recorded_records(shared, tokenizers):
    """What the original wrote for training, all of it as one batch."""
    skipped = json.loads(shared("goldens/squad/summary.json").read_text())["train-v2.0"]["skipped_qas_ids"]
    path = shared("goldens/squad/train-v2.0.json")
    rows = [row for row in examples.read(path, True, True) if row.qas_id not in skipped]
    made = features.convert(rows, path, tokenizers["en", True], 64, 16, 24, True)
    batch = features.make_batch(made, np.arange(len(made)), batching.Sizes(64, xla=False, static=True))
    batch["unique_ids"] = FIRST_UNIQUE_ID + np.arange(len(made))
    batch["is_impossible"] = np.array([rows[number].is_impossible for number in made.example_numbers])
    file = str(shared("goldens/squad/train-v2.0_L64.tf_record"))
    records = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(file)]
    assert len(records) == len(made)
    for name in records[0].features.feature:
        held = np.array([record.features.feature[name].int64_list.value for record in records])
        np.testing.assert_array_equal(batch[name].reshape(len(records), -1), held, name)


def test_a_batch_by_hand(xquad):
    _, made = xquad
    numbers = np.array([7, 3, 3, 300])
    batch = features.make_batch(made, numbers, batching.Sizes(128, xla=False))
    for place, number in enumerate(numbers):
        ids = made.input_ids[made.row_splits[number]:made.row_splits[number + 1]]
        padding, first = batch["input_ids"].shape[1] - len(ids), made.first_lengths[number]
        assert batch["input_ids"][place].tolist() == [*ids, *[0] * padding]
        assert batch["input_mask"][place].tolist() == [1] * len(ids) + [0] * padding
        assert batch["segment_ids"][place].tolist() == [0] * first + [1] * (len(ids) - first) + [0] * padding
    assert {name: (array.dtype, array.shape[1:] == ()) for name, array in batch.items()} == {
        "input_ids": (np.int32, False), "input_mask": (np.int32, False), "segment_ids": (np.int32, False),
        "start_positions": (np.int32, True), "end_positions": (np.int32, True), "example_weights": (np.float32, True),
        "token_indices": (np.int32, True)}
    places = np.flatnonzero(batch["input_mask"])
    np.testing.assert_array_equal(batch["token_indices"][:len(places)], places)


def test_memory_of_a_token(xquad):
    rows, made = xquad
    assert sum(array.nbytes for array in made.arrays.values()) == (
        17 * made.lengths.sum() + 24 * len(made) + 8 + made.places.itemsize * len(rows))
