import dataclasses
import gzip
import json
import pathlib
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.errors import UserError
from bert_tf.squad import answers, examples, features
from bert_tf.squad.examples import Context, SquadExample
from bert_tf.squad.features import Features
from bert_tf.tokenization import FullTokenizer

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import benchmark_squad_answers as plain  # noqa: E402

VOCAB = "checkpoints/minilm_l6/vocab.txt"
GOLDENS = "goldens/squad"
# The runs of the recorded features that the recorded predictions belong to.
RUNS = {"L384": 0, "L64": 1}


def make_features(windows):
    """`Features` of dicts of lists by window; what `answers` does not read is left out."""
    def joined(name, kind):
        return np.concatenate([[], *(window[name] for window in windows)]).astype(kind)

    lengths = [len(window["input_ids"]) for window in windows]
    numbers = np.array([window["example_number"] for window in windows], np.int32)
    values = {"path": "dev.json", "input_ids": joined("input_ids", np.int32), "first_lengths": np.ones_like(numbers),
              "row_splits": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), "example_numbers": numbers,
              "words": joined("words", np.int32), "is_max_context": joined("is_max_context", bool),
              "char_starts": joined("char_starts", np.int32), "char_ends": joined("char_ends", np.int32),
              "places": np.array([b"data[%d]" % number for number in range(numbers.max(initial=0) + 1)])}
    return Features(**{field.name: values.get(field.name) for field in dataclasses.fields(Features)})


@pytest.fixture(scope="module")
def recorded(shared):
    """`recorded(version, run)` -> the examples and features of a recorded run of the original."""
    contents = {}

    def load(version, run):
        if version not in contents:
            with gzip.open(shared(f"{GOLDENS}/features_dev-{version}.json.gz"), "rt", encoding="utf-8") as file:
                contents[version] = json.load(file)
        content = contents[version]
        examples = [SquadExample(example["qas_id"], example["question_text"],
                                 Context.of(" ".join(example["doc_tokens"]))) for example in content["examples"]]
        windows = []
        for feature in content["runs"][RUNS[run]]["features"]:
            places = list(map(str, range(len(feature["tokens"]))))
            windows.append({"input_ids": feature["input_ids"][:len(places)],
                            "example_number": feature["example_index"],
                            "words": [feature["token_to_orig_map"].get(place, -1) for place in places],
                            "is_max_context": [feature["token_is_max_context"].get(place, False) for place in places],
                            "char_starts": [-1] * len(places), "char_ends": [-1] * len(places)})
        return examples, make_features(windows)

    return load


@pytest.fixture(scope="module")
def tokenizer(shared):
    return FullTokenizer(shared(VOCAB))


N5_A4 = {"n_best_size": 5, "max_answer_length": 4}


@pytest.mark.parametrize("name, changes", [
    *((f"{version}_{run}_{kind}", {}) for version in ("v1.1", "v2.0") for run in RUNS
      for kind in ("continuous", "ties")),
    *((f"v1.1_{run}_ties_n5_a4", N5_A4) for run in RUNS),
    *((f"v2.0_{run}_{kind}_thr-2.5", {"null_score_diff_threshold": -2.5}) for run in RUNS
      for kind in ("continuous", "ties"))])
def test_recorded_files_byte_for_byte(shared, recorded, tokenizer, tmp_path, name, changes):
    version, run, kind, *_ = name.split("_")
    examples, features = recorded(version, run)
    logits = np.load(shared(f"{GOLDENS}/pred_{version}_{run}_{kind}_logits.npz"))
    chosen = answers.Settings(version_2_with_negative=version == "v2.0", **changes)
    found = answers.find(examples, features, tokenizer, logits["start_logits"], logits["end_logits"], chosen)
    answers.write(tmp_path, examples, found, chosen.version_2_with_negative)
    compared = 0
    for file in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
        # A threshold changes the predictions alone, and only they were recorded anew.
        base = name.removesuffix("_thr-2.5") if file != "predictions.json" else name
        path = pathlib.Path(shared(GOLDENS)) / f"pred_{base}_{file}"
        zipped = path.with_name(path.name + ".gz")
        if path.exists() or zipped.exists():
            expected = path.read_bytes() if path.exists() else gzip.decompress(zipped.read_bytes())
            assert (tmp_path / file).read_bytes() == expected
            compared += 1
    assert compared == len(list(tmp_path.iterdir())) == (3 if version == "v2.0" else 2)


def test_another_threshold_is_as_one_given_at_first(shared, recorded, tokenizer):
    examples, features = recorded("v2.0", "L64")
    logits = np.load(shared(f"{GOLDENS}/pred_v2.0_L64_ties_logits.npz"))
    both = [answers.find(examples, features, tokenizer, logits["start_logits"], logits["end_logits"],
                         answers.Settings(version_2_with_negative=True, null_score_diff_threshold=threshold))
            for threshold in (0.0, -2.5)]
    assert both[0] != both[1]
    assert answers.with_threshold(both[0], -2.5) == both[1] and answers.with_threshold(both[1], 0.0) == both[0]


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "##c", "é", "e", "ss", "##e", ".", ",", "#",
          "##a", "京", "都", "ᄒ", "##ᅡ"]
LETTERS = "aabbcE\u00e9\u0301\u00df.,#京都하 \t\n\u00a0\u3000\u200b\u202f\ufffd"


@pytest.fixture(scope="module")
def small_tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return FullTokenizer(path)


def make_windows(tokenizer, number, text, rng):
    """A context, and windows of its tokens: of any length and stride, where any token may be in maximal context."""
    context = Context.of(text)
    ids, spans = tokenizer.encode_with_offsets(text)
    size, stride = rng.integers(1, 9, 2).tolist()
    windows = []
    for start in range(0, len(ids), min(size, stride)):
        part = slice(start, start + size)
        count, question = len(ids[part]), [2, *[5] * int(rng.integers(0, 3)), 3]

        def around(values, outside=-1):
            return [outside] * len(question) + values + [outside]

        windows.append({"input_ids": [*question, *ids[part], 3], "example_number": number,
                        "words": around([context.word_at(first) for first, _ in spans[part]]),
                        "is_max_context": around((rng.random(count) < 0.7).tolist(), False),
                        "char_starts": around([first for first, _ in spans[part]]),
                        "char_ends": around([end for _, end in spans[part]])})
    return context, windows


def make_logits(features, kind, padding, rng):
    """float32 [2, W, S], starts and ends: many equal ("ties") or none; behind a window's end as within, or -inf."""
    shape = (2, len(features), int(features.lengths.max(initial=1) + rng.integers(0, 4)))
    logits = rng.integers(-2, 3, shape) if kind == "ties" else rng.normal(0, 4, shape)
    logits = np.float32(logits) * np.float32(rng.choice([1, -1]))  # zeros of both signs
    if padding == "-inf":
        logits[:, np.arange(shape[2]) >= features.lengths[:, None]] = -np.inf
    return logits


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(LETTERS, max_size=24), max_size=5), st.sampled_from(["ties", "continuous"]),
       st.sampled_from(["-inf", "logits"]), st.integers(1, 12), st.integers(1, 6), st.booleans(), st.integers(1, 99),
       st.integers(0, 2 ** 32 - 1))
def test_as_the_plain_reference_and_every_span_is_in_its_context(small_tokenizer, texts, kind, padding, n_best_size,
                                                                max_answer_length, version_2, pairs, seed):
    rng = np.random.default_rng(seed)
    made = [make_windows(small_tokenizer, number, text, rng) for number, text in enumerate(texts)]
    examples = [SquadExample(f"q{number}", "a", context) for number, (context, _) in enumerate(made)]
    features = make_features([window for _, windows in made for window in windows])
    logits = make_logits(features, kind, padding, rng)
    chosen = answers.Settings(n_best_size, max_answer_length, version_2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "PAIRS", pairs)  # blocks of any number of windows
        found = answers.find(examples, features, small_tokenizer, *logits, chosen)
        by_offsets = answers.find(examples, features, small_tokenizer, *logits,
                                  dataclasses.replace(chosen, answer_text="offsets"))
    reference = plain.find(examples, features, small_tokenizer, *logits, chosen)
    assert [plain.Answer.of(answer) for answer in found] == reference
    for example, answer, other in zip(examples, found, by_offsets, strict=True):
        check_spans(example.context, answer, other)


def check_spans(context, answer, by_offsets):
    """Spans stand for the texts: word by word in the original's way, to the character by offsets."""
    for text, span, *_ in [answer, *answer.nbest]:
        if span is None:
            assert text in ("", "empty")
        else:
            assert " ".join(Context.of(context.text[slice(*span)]).doc_tokens) == text and span[0] < span[1]
    for text, span, *_ in [by_offsets, *by_offsets.nbest]:
        assert text == ("" if span is None else context.text[slice(*span)])
        assert span is None or 0 <= span[0] < span[1] <= len(context.text)
    assert sum(entry.probability for entry in by_offsets.nbest) == pytest.approx(1)


def test_what_was_to_be_learned_is_answered(shared, tokenizer):
    path = shared(f"{GOLDENS}/train-v1.1.json")
    learned = examples.read(path, True, False)
    made = features.convert(learned, path, tokenizer, 96, 32, 24, True)
    logits = np.zeros([2, len(made), 96], np.float32)
    for side, places in enumerate((made.start_positions, made.end_positions)):
        logits[side, np.arange(len(made)), places] = 9 * (places > 0)
    found = answers.find(learned, made, tokenizer, *logits,
                         answers.Settings(max_answer_length=96, answer_text="offsets"))
    pairs = [(" ".join(answer.text.split()), " ".join(example.orig_answer_text.split()))
             for answer, example in zip(found, learned)]
    assert len(pairs) == 95 and all(gold in text for text, gold in pairs)
    # An answer that begins or ends inside a token is found with all of it.
    assert [pair for pair in pairs if pair[0] != pair[1]] == [
        ("Japanese", "Japan"), ("electronics industry", "electronics indus"), ("Zero\u200bwidth", "\u200b")]


@pytest.fixture
def question(small_tokenizer):
    """A question about "a b é.": its examples and features of one window, [CLS] a [SEP] a b é . [SEP]."""
    context = Context.of("a b  É.")
    ids, spans = small_tokenizer.encode_with_offsets(context.text)
    words = [-1] * 3 + [context.word_at(start) for start, _ in spans] + [-1]
    window = {"input_ids": [2, 5, 3, *ids, 3], "example_number": 0, "words": words,
              "is_max_context": [word >= 0 for word in words],
              "char_starts": [-1] * 3 + [start for start, _ in spans] + [-1],
              "char_ends": [-1] * 3 + [end for _, end in spans] + [-1]}
    return [SquadExample("q", "a", context)], make_features([window])


def logits_of(values, width=8):
    """float32 [1, width]: `values` by place, 0 elsewhere."""
    logits = np.zeros([1, width], np.float32)
    for place, value in values.items():
        logits[0, place] = value
    return logits


def find_one(question, tokenizer, starts, ends, **changes):
    return answers.find(*question, tokenizer, logits_of(starts), logits_of(ends), answers.Settings(**changes))[0]


def test_an_answer_in_the_originals_way_and_by_offsets(question, small_tokenizer):
    best = {4: 9}, {6: 9}  # "b" to "."
    original = find_one(question, small_tokenizer, *best)
    assert (original.text, original.span, original.null_odds) == ("b É.", (2, 7), None)
    offsets = find_one(question, small_tokenizer, *best, answer_text="offsets")
    assert (offsets.text, offsets.span) == ("b  É.", (2, 7))
    assert offsets.probability == offsets.nbest[0].probability > 0.9 and offsets.null_probability == 0


def test_only_one_place(question, small_tokenizer):
    settings_of_one = {"n_best_size": 1, "version_2_with_negative": True}
    # [CLS] is the only start and the only end that is looked at.
    found = find_one(question, small_tokenizer, {0: 5, 3: 4}, {0: 5, 3: 4}, **settings_of_one)
    assert found == ("", None, 1.0, [("", None, 1.0, 5.0, 5.0)], answers.NO_CANDIDATE_ODDS)
    assert found.best_non_null is None and found.null_probability == 1
    found = find_one(question, small_tokenizer, {0: 1, 3: 2}, {0: 9, 3: 10}, **settings_of_one)
    assert [entry.text for entry in found.nbest] == ["a", ""] and found.null_odds == -2 and found.text == "a"
    assert found.best_non_null == found.nbest[0] and found.null_probability == found.nbest[1].probability
    assert found.probability == found.nbest[0].probability > 0.8


def test_of_texts_that_score_as_no_answer_the_text_comes_first(question, small_tokenizer):
    found = find_one(question, small_tokenizer, {0: 5, 3: 5}, {0: 5, 3: 5}, version_2_with_negative=True)
    assert [entry.text for entry in found.nbest[:2]] == ["a", ""] and found.null_odds == 0 and found.text == "a"


def test_the_least_null_score_of_the_windows_counts(question, small_tokenizer):
    (example,), features = question
    window = {name: getattr(features, name)
              for name in ("input_ids", "words", "is_max_context", "char_starts", "char_ends")}
    features = make_features([{**window, "example_number": 0}] * 3)
    starts = np.concatenate([logits_of({0: 9}), logits_of({3: 1, 0: 0.5}), logits_of({0: 0.25})])
    ends = np.concatenate([logits_of({0: 9}), logits_of({4: 1, 0: 0.75}), logits_of({0: 1})])
    found, = answers.find([example], features, small_tokenizer, starts, ends,
                          answers.Settings(version_2_with_negative=True))
    assert found.nbest[0][:2] == ("a b", (0, 3)) and found.null_odds == 0.5 + 0.75 - 2
    null, = (entry for entry in found.nbest if not entry.text)
    assert (null.start_logit, null.end_logit) == (0.5, 0.75)  # the second window's, the first of two equal ones


@pytest.mark.parametrize("answer_text, expected", [("original", "empty"), ("offsets", "")])
def test_a_context_without_tokens_has_an_answer(question, small_tokenizer, answer_text, expected):
    (example,), _ = question
    none = make_features([])
    logits = np.zeros([0, 8], np.float32)
    found, = answers.find([example], none, small_tokenizer, logits, logits, answers.Settings(answer_text=answer_text))
    assert found == (expected, None, 1.0, [(expected, None, 1.0, 0.0, 0.0)], None)
    found, = answers.find([example], none, small_tokenizer, logits, logits,
                          answers.Settings(version_2_with_negative=True, answer_text=answer_text))
    assert found == ("", None, 1.0, [("", None, 1.0, 0.0, 0.0)], answers.NO_CANDIDATE_ODDS)


def test_no_questions_are_empty_files(small_tokenizer, tmp_path):
    logits = np.zeros([0, 8], np.float32)
    assert answers.find([], make_features([]), small_tokenizer, logits, logits, answers.Settings()) == []
    answers.write(tmp_path, [], [], True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "predictions.json": "{}\n", "nbest_predictions.json": "{}\n", "null_odds.json": "{}\n"}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 4, 7])
def test_logits_that_are_no_numbers_name_the_question(question, small_tokenizer, value, place):
    for sides in (({place: value}, {}), ({}, {place: value})):
        with pytest.raises(UserError, match=r"^dev.json: data\[0\] \(id 'q'\): NaN or infinite logits; the model has"):
            find_one(question, small_tokenizer, *sides)


def test_no_score_of_no_answer_is_an_error_in_2_0_alone(question, small_tokenizer):
    starts = {0: -np.inf}
    assert find_one(question, small_tokenizer, starts, {}).text == "a"
    with pytest.raises(UserError, match=r"\(id 'q'\): infinite logits of \[CLS\]"):
        find_one(question, small_tokenizer, starts, {}, version_2_with_negative=True)


@pytest.mark.parametrize("rows, width, message", [
    ((0, 0), 8, "dev.json: 1 windows, but results for 0 (starts) and 0 (ends)"),
    ((1, 2), 8, "dev.json: 1 windows, but results for 1 (starts) and 2 (ends)"),
    ((1, 1), 7, "dev.json: windows of up to 8 tokens, but results for 7 (starts) and 7 (ends)")])
def test_results_that_are_missing_or_too_many(question, small_tokenizer, rows, width, message):
    with pytest.raises(UserError) as error:
        answers.find(*question, small_tokenizer, *(np.zeros([count, width], np.float32) for count in rows),
                     answers.Settings())
    assert message in str(error.value)


def test_what_a_model_did_not_compute_is_no_answer(question, small_tokenizer):
    nothing = {place: -np.inf for place in range(1, 8)}
    found = find_one(question, small_tokenizer, {**nothing, 3: 1}, {**nothing, 4: 1})
    assert [entry.text for entry in found.nbest] == ["a b"] and found.nbest[0].probability == 1
    assert find_one(question, small_tokenizer, nothing, {}).text == "empty"


def test_great_scores_do_not_overflow(question, small_tokenizer):
    found = find_one(question, small_tokenizer, {3: 3e38, 0: -3e38}, {3: 3e38, 0: -3e38}, version_2_with_negative=True)
    assert found.nbest[0].probability == 1 and np.isfinite(found.null_odds) and found.text == "a"


def test_odd_texts_are_written_as_json_writes_them(tmp_path):
    entry = answers.Entry('"\\\u2028é\n\x7f\U0001f600', None, 1e-20, -0.0, 1e22)
    answer = answers.Answer("", None, 0.0, [entry, entry], 1.5)
    examples = [SquadExample(qas_id, "", None) for qas_id in ("a\"é", "b")]
    answers.write(tmp_path, examples, [answer, answer], False)
    names = ("text", "probability", "start_logit", "end_logit")
    numbers = (entry.text, *entry[2:])
    content = {example.qas_id: [dict(zip(names, numbers))] * 2 for example in examples}
    assert (tmp_path / "nbest_predictions.json").read_text() == json.dumps(content, indent=4) + "\n"
    assert not (tmp_path / "null_odds.json").exists()
