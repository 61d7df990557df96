"""The tokenizer against the recorded outputs of the original, and its fast path against its reference classes."""

import gzip
import hashlib
import json
import logging
import pickle
import sys
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_tf import tokenization
from bert_tf.errors import UserError

VOCABS = {
    "en": "checkpoints/minilm_l6/vocab.txt",
    "zh": "vocab/bert-base-chinese/vocab.txt",
    "cased": "vocab/bert-base-cased/vocab.txt",
}
PIECES = [*tokenization.SPECIAL_TOKENS, "want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "a", "##a", "b",
          "##b", "i", "s", "##σ", "σ", "ς", "##ς", "中", ".", "ᄀ", "##ᅡ", "##ᆨ", "\u302e", "##\u302e", "é", "##é",
          "[", "]", "sep", "##\U0001d165", "α"]


def read_gz(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def write_vocab(path, pieces=PIECES):
    path.write_text("".join(piece + "\n" for piece in pieces), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    return write_vocab(tmp_path_factory.mktemp("vocab") / "vocab.txt")


def check_offsets(tokenizer, text):
    """Spans are ordered, inside the text and not empty, and what they hold normalises to their piece."""
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text) and len(ids) == len(spans)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(a <= c and b <= d for (a, b), (c, d) in zip(spans, spans[1:]))
    for number, (start, end) in zip(ids, spans):
        piece = tokenizer.inv_vocab[number]
        held = "".join(tokenizer.basic_tokenizer.tokenize(text[start:end]))
        piece = piece.removeprefix("##") if len(piece) > 2 else piece
        # A sigma's form depends on what follows; a hangul syllable may hold several pieces; sorted marks trade places.
        if piece != "[UNK]" and not any(map(unicodedata.combining, held)):
            assert piece.replace("ς", "σ") in held.replace("ς", "σ")
            assert piece == held or unicodedata.normalize("NFD", text[start:end]) != text[start:end] or "Σ" in text


@pytest.mark.parametrize("name", ["en", "zh", "cased"])
def test_every_recorded_string(name, shared, goldens):
    file = shared(VOCABS[name])
    recorded = [value for key, value in json.loads((goldens / "tokenization/vocab_sha256.json").read_text()).items()
                if key.startswith(f"tokenization_{name}:")]
    assert hashlib.sha256(file.read_bytes()).hexdigest() == recorded[0]["sha256"]
    tokenizers = {name: tokenization.FullTokenizer(str(file), name == "lower") for name in ("lower", "cased")}
    assert tokenizers["lower"].vocab_size == recorded[0]["lines"]
    for line in read_gz(goldens / f"tokenization/tokenization_{name}.jsonl.gz").splitlines():
        row = json.loads(line)
        for casing in set(row) & set(tokenizers):
            tokenizer, text = tokenizers[casing], row["text"]
            tokens = tokenizer.tokenize(text)
            assert tokens == row[casing]["tokens"], row["n"]
            assert tokenizer.convert_tokens_to_ids(tokens) == tokenizer.encode(text) == row[casing]["ids"], row["n"]
            if "basic" in row[casing]:
                assert tokenizer.basic_tokenizer.tokenize(text) == row[casing]["basic"], row["n"]
            check_offsets(tokenizer, text)


def test_recorded_bytes(shared, goldens):
    lower, cased = (tokenization.FullTokenizer(str(shared(VOCABS["en"])), casing) for casing in (True, False))
    for row in json.loads((goldens / "tokenization/bytes.json").read_text()):
        text = bytes.fromhex(row["hex"])
        assert tokenization.convert_to_unicode(text) == tokenization.printable_text(text) == row["unicode"]
        for tokenizer, tokens in ((lower, row["lower_tokens"]), (cased, row["cased_tokens"])):
            assert tokenizer.tokenize(text) == tokens
            assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == tokens
            assert tokenizer.encode_with_offsets(text) == tokenizer.encode_with_offsets(row["unicode"])


def test_every_character_class(goldens):
    recorded = json.loads((goldens / "tokenization/char_classes.json").read_text())
    codes = {key: {code for first, last in ranges for code in range(first, last + 1)}
             for key, ranges in recorded.items() if key != "unidata_version"}
    same_unicode = unicodedata.unidata_version == recorded["unidata_version"]
    checked = [(code, chr(code)) for code in range(sys.maxunicode + 1)
               if same_unicode or code not in codes["unassigned"]]
    clean = tokenization.BasicTokenizer()._clean_text
    cleaned = [(code, char, clean(char)) for code, char in checked]
    assert {code for code, char in checked if tokenization._is_whitespace(char)} == codes["whitespace"]
    assert {code for code, char in checked if tokenization._is_control(char)} == codes["control"]
    assert {code for code, char in checked if tokenization._is_punctuation(char)} == codes["punctuation"]
    assert {code for code, _ in checked if tokenization._is_chinese_char(code)} - codes["unassigned"] == (
        codes["chinese"] - codes["unassigned"])
    assert {code for code, char in checked if not char.split()} == codes["python_str_split_whitespace"]
    assert {code for code, _, result in cleaned if not result} == codes["removed_by_clean_text"]
    assert {code for code, _, result in cleaned if result == " "} == codes["becomes_space_in_clean_text"]
    assert all(result in ("", " ", char) for _, char, result in cleaned)


def test_every_lower_cased_and_stripped_character(goldens):
    recorded = json.loads(read_gz(goldens / "tokenization/lower_strip_map.json.gz"))
    ranges = json.loads((goldens / "tokenization/char_classes.json").read_text())["unassigned"]
    unassigned = {code for first, last in ranges for code in range(first, last + 1)}
    tokenizer = tokenization.BasicTokenizer()
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        mapped = recorded.get(f"{code:X}")
        if mapped is None and code in unassigned:  # a newer Python may know the character
            continue
        expected = char if mapped is None else "".join(chr(int(number, 16)) for number in mapped)
        assert tokenizer._normalize(char).strip(" ") == expected.strip(" "), hex(code)


TEXT = st.one_of(
    st.text(st.characters()),
    st.text(st.sampled_from("aAbB ΣσςαİßéÉe\u0301\u0327\u034f\u302e\U0001d165\U0001d15e\u1715각가中,.'[]#\0\ufffd\u200b"
                            "\u00ad\x0b\x1c\x85\u2028\u3000\t\n\ud800\udfffﬁǅ1")),
    st.lists(st.sampled_from(["[SEP]", "[sep]", "[UNK]", "[MASK", "]", " ", "unwanted", "running", "Σ", "a" * 199,
                              "a" * 200, "A" * 201, "é" * 200, "\u0301", "각" * 67])).map("".join),
)


@given(TEXT, st.booleans(), st.sampled_from([None, True, False]), st.booleans())
@settings(max_examples=700, deadline=None)
@example("ΑΣ\x00Σ ΑΣ\u0301", True, None, False)
@example("a\u302e\u034f\U0001d165 a\u302e\U0001d165", True, None, False)
def test_fast_path_equals_reference_classes(vocab_file, text, do_lower_case, strip_accents, keep):
    tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case, strip_accents, keep_special_tokens=keep)
    tokens = tokenizer.tokenize(text)
    assert tokenizer.encode(text) == tokenizer.convert_tokens_to_ids(tokens)
    assert tokenizer.encode(text) == tokenizer.encode(text), "the second answer comes from memory"
    words = tokenizer.basic_tokenizer.tokenize(text)
    assert tokenizer.basic_tokenizer.fast_tokenize(text) == words
    assert len(tokenizer.basic_tokenizer.character_spans(text)) == sum(map(len, words))
    check_offsets(tokenizer, text)


@pytest.mark.parametrize(
    "text, spans",
    [
        ("unwanted, RUNNING", [(0, 2), (2, 6), (6, 8), (8, 9), (10, 14), (14, 17)]),
        ("wx\u200bz\u200b b", [(0, 4), (6, 7)]),  # [UNK] spans its word, without what is dropped behind it
        ("e\u0301 É", [(0, 2), (3, 4)]),
        ("İ", [(0, 1)]),
        ("각", [(0, 1), (0, 1), (0, 1)]),
        ("中a中", [(0, 1), (1, 2), (2, 3)]),
        ("a\x0bb", [(0, 1), (2, 3)]),
        (" \u3000a\r\n", [(2, 3)]),
        ("\u0301a", [(1, 2)]),
        ("", []),
    ],
)
def test_offsets(vocab_file, text, spans):
    assert tokenization.FullTokenizer(vocab_file).encode_with_offsets(text)[1] == spans


def test_special_tokens_in_a_text_are_text_unless_asked_for(vocab_file):
    plain = tokenization.FullTokenizer(vocab_file)
    assert plain.tokenize("a[SEP]b [sep]") == ["a", "[", "sep", "]", "b", "[", "sep", "]"]
    keeping = tokenization.FullTokenizer(vocab_file, keep_special_tokens=True)
    tokens = ["a", "[SEP]", "b", "[", "sep", "]"]
    assert keeping.tokenize("a[SEP]b [sep]") == tokens
    assert keeping.convert_ids_to_tokens(keeping.encode("a[SEP]b [sep]")) == tokens
    assert keeping.encode_with_offsets("a[SEP]b")[1] == [(0, 1), (1, 6), (6, 7)]


def test_word_length_limit(vocab_file):
    for limit in (3, 200):
        tokenizer = tokenization.FullTokenizer(vocab_file, max_input_chars_per_word=limit)
        assert tokenizer.encode("a" * limit) != [tokenizer.vocab["[UNK]"]]
        assert tokenizer.encode("a" * (limit + 1)) == [tokenizer.vocab["[UNK]"]]


def test_reference_functions():
    vocab = {"[UNK]": 0, "un": 1, "##want": 2, "##ed": 3}
    wordpiece = tokenization.WordpieceTokenizer(vocab)
    assert wordpiece.tokenize("") == []
    assert wordpiece.tokenize("unwanted unwantedX") == ["un", "##want", "##ed", "[UNK]"]
    assert tokenization.convert_tokens_to_ids(vocab, ["un", "##ed"]) == [1, 3]
    assert tokenization.convert_ids_to_tokens({1: "un"}, [1]) == ["un"]
    assert tokenization.whitespace_tokenize(" a\tb ") == ["a", "b"]
    with pytest.raises(KeyError):
        tokenization.convert_tokens_to_ids(vocab, ["absent"])
    with pytest.raises(ValueError, match="not int"):
        tokenization.convert_to_unicode(3)


def test_vocabulary_lines(tmp_path, caplog):
    path = tmp_path / "vocab.txt"
    lines = ["\ufeff[PAD]\r", "[UNK]", "", " [CLS]\t", "x\u2028y", "\u2028", "[SEP]", "twice", "[MASK]", "\x85"]
    lines.append("twice")
    path.write_bytes("\n".join(lines).encode("utf-8"))
    expected = ["[PAD]", "[UNK]", "", "[CLS]", "x\u2028y", "", "[SEP]", "twice", "[MASK]", "", "twice"]
    with caplog.at_level(logging.WARNING, "bert_tf"):
        vocab = tokenization.load_vocab(str(path))
    assert vocab == {piece: number for number, piece in enumerate(expected)}
    assert len(caplog.records) == 1
    assert "'twice' on lines 8, 11" in caplog.text and "'' on lines 3, 6, 10" in caplog.text
    tokenizer = tokenization.FullTokenizer(str(path))
    assert tokenizer.vocab == vocab and tokenizer.vocab_size == 11
    assert tokenizer.convert_ids_to_tokens(range(11)) == expected


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_vocabulary_counts_lines(tmp_path_factory, lines, end):
    lines = [*tokenization.SPECIAL_TOKENS, *lines]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_bytes(("\n".join(lines) + "\n" * (end or not lines[-1])).encode("utf-8"))
    assert tokenization.load_vocab(str(path)) == {
        line.replace("\r", "").strip(): number for number, line in enumerate(lines)}
    tokenizer = tokenization.FullTokenizer(str(path))
    text = " ".join(lines)
    assert tokenizer.encode(text) == tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", r"vocab.txt: the vocabulary lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[mask]\n", r"lacks \[MASK\]"),
        (b"[PAD]\n\xff\n", r"vocab.txt:2: byte 0xff is not UTF-8"),
        (None, "vocab.txt: cannot be read"),
    ],
)
def test_unusable_vocabularies_are_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "vocab.txt").write_bytes(content)
    for load in (tokenization.load_vocab, tokenization.FullTokenizer):
        with pytest.raises(UserError, match=message):
            load(str(tmp_path / "vocab.txt"))


def test_memory_is_bounded(vocab_file, monkeypatch):
    monkeypatch.setattr(tokenization._Memo, "LIMIT", 20_000)
    tokenizer = tokenization.FullTokenizer(vocab_file)
    text = " ".join(f"a{number}b" for number in range(3000)) + " " + "a,b" * 50_000
    ids = tokenizer.encode(text)
    assert ids == tokenizer.encode_with_offsets(text)[0] == tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
    for memo in (tokenizer._ids, tokenizer._word_ids, tokenizer._spanned_ids):
        assert len(memo) <= 70 and all(len(key) <= 200 for key in memo)


def test_pickles_without_its_memory(vocab_file):
    tokenizer = tokenization.FullTokenizer(vocab_file)
    ids = tokenizer.encode("unwanted running")
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert not copy._ids and copy.encode("unwanted running") == ids


def test_recorded_case_checks(goldens):
    for do_lower_case, checkpoint, message in json.loads((goldens / "tokenization/case_check.json").read_text()):
        try:
            tokenization.validate_case_matches_checkpoint(do_lower_case, checkpoint)
            found = None
        except ValueError as error:
            assert isinstance(error, UserError)
            found = str(error)
        assert found == message


@pytest.mark.parametrize("folder, lower", [("bert-base-uncased", True), ("bert-base-chinese", True),
                                           ("bert-base-cased", False)])
def test_casing_of_released_vocabularies(shared, caplog, folder, lower):
    vocab = tokenization.load_vocab(str(shared(f"vocab/{folder}/vocab.txt")))
    tokenization.check_casing(vocab, lower)
    assert not caplog.records
    if not lower:
        with pytest.raises(tokenization.CaseMismatchError, match="hold upper case.*--allow_case_mismatch"):
            tokenization.check_casing(vocab, True)
    elif "uncased" in folder:
        tokenization.check_casing(vocab, False)
        assert "no piece of the vocabulary holds upper case" in caplog.text


@pytest.mark.parametrize("name, lower", [
    ("uncased_L-12_H-768_A-12", True), ("wwm_uncased_L-24_H-1024_A-16", True), ("uncased_L-2_H-128_A-2", True),
    ("chinese_L-12_H-768_A-12", True), ("multilingual_L-12_H-768_A-12", True), ("cased_L-24_H-1024_A-16", False),
    ("wwm_cased_L-24_H-1024_A-16", False), ("multi_cased_L-12_H-768_A-12", False), ("bert_model", None),
    ("uncased_or_cased", None), ("cased_L-12_H-768_A-12/tuned/uncased_L-4_H-256_A-4", True),
])
def test_casing_of_checkpoint_names(name, lower):
    path = f"/models/{name}/model.ckpt-7"
    for do_lower_case in (True, False):
        if lower in (None, do_lower_case):
            tokenization.check_casing(["[CLS]", "a"], do_lower_case, path)
        else:
            with pytest.raises(tokenization.CaseMismatchError, match="by its name .*--allow_case_mismatch"):
                tokenization.check_casing(["[CLS]", "a"], do_lower_case, path)
