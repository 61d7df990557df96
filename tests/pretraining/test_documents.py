import unittest.mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.errors import UserError
from bert_tf.pretraining import documents, instances


def _encode(text):
    """A piece a character, as its code point; what is not printable gives none."""
    return [ord(char) for char in text if char.isprintable() and not char.isspace()]


def _read(spans):
    """The documents of `spans` as lists of strings without spaces, and the counts."""
    counts = instances.Counts()
    found = documents.read(spans, _encode, counts)
    return [
        ["".join(map(chr, document.ids[start:stop])) for start, stop in zip(document.starts, document.starts[1:])]
        for document in found
    ], counts


def _files(tmp_path, *contents):
    paths = []
    for number, content in enumerate(contents):
        paths.append(str(tmp_path / f"{number}.txt"))
        (tmp_path / f"{number}.txt").write_bytes(content)
    return documents.whole(paths)


@pytest.mark.parametrize("contents, expected", [
    ((b"one\ntwo\n\nthree\n",), [["one", "two"], ["three"]]),
    ((b"\n\n\none\n \t\n\n\ntwo\n\n",), [["one"], ["two"]]),
    ((b"one\r\n\r\ntwo\r\n",), [["one"], ["two"]]),
    ((b"one\rtwo",), [["onetwo"]]),  # the original's reader drops every "\r"
    ((b"one", b"two\n"), [["one", "two"]]),  # the end of a file ends no document
    ((b"one\n\n", b"two\n"), [["one"], ["two"]]),
    ((b"one\n", b"\ntwo\n"), [["one"], ["two"]]),
    ((b"\xef\xbb\xbfone\n", b"\xef\xbb\xbf\ntwo\n"), [["one", "two"]]),  # to the original a mark is not blank
    (("one\x85two\u2028three\x0bfour\n\x85\n\u2003\nfive".encode(),), [["onetwothreefour"], ["five"]]),
    ((b"\x01\n",), []),
])
def test_what_ends_sentences_and_documents(tmp_path, contents, expected):
    assert _read(_files(tmp_path, *contents))[0] == expected


def test_counts(tmp_path):
    found, counts = _read(_files(tmp_path, b"one\n\x01\ntwo\n\n\n\x01\n\x02\n\nthree\n\n"))
    assert found == [["one", "two"], ["three"]]
    assert (counts.documents, counts.sentences, counts.single_sentence_documents) == (2, 3, 1)
    assert (counts.empty_documents, counts.empty_sentences) == (1, 3)


def test_a_byte_that_is_not_utf_8_names_file_and_line(tmp_path):
    spans = _files(tmp_path, b"one\n\ntwo\n\nthr\xff\n")
    for part in (spans, documents.cut(spans, 2)[1]):
        with pytest.raises(UserError, match=r"0\.txt:5: byte 0xff is not UTF-8"):
            _read(part)


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"1\.txt: the file is empty"):
        _files(tmp_path, b"one\n", b"")


LINES = st.lists(st.sampled_from(["a", "bb", "ccc dd", "", "", " ", "\u2003"]), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=3), st.integers(1, 9), st.booleans(), st.sampled_from([0, 3, 1 << 16]))
def test_shards_are_the_documents_in_order(tmp_path_factory, contents, num_shards, ended, look_back):
    end = "\n" if ended else ""
    spans = _files(tmp_path_factory.mktemp("text"), *(("\n".join(lines) + end or "x").encode() for lines in contents))
    with unittest.mock.patch.object(documents, "LOOK_BACK", look_back):
        shards = documents.cut(spans, num_shards)
    assert len(shards) == num_shards
    assert [document for shard in shards for document in _read(shard)[0]] == _read(spans)[0]


def test_a_document_that_starts_right_at_the_cut_opens_a_shard(tmp_path):
    spans = _files(tmp_path, b"one\n\n", b"two\n\n", b"six\n\n")
    assert [_read(shard)[0] for shard in documents.cut(spans, 3)] == [[["one"]], [["two"]], [["six"]]]


def test_shards_are_of_about_equal_size(goldens):
    spans = documents.whole([str(goldens / "pretrain_data/corpus.txt")])
    sizes = [sum(span.stop - span.start for span in shard) for shard in documents.cut(spans, 8)]
    assert sum(sizes) == spans[0].stop
    assert max(sizes) - min(sizes) < 3000
