"""Text files to documents: one sentence a line, a blank line between documents.

All files together are one stream of lines, which is what the original reads: the end of a file ends no document, so a
last document without a blank line after it runs on into the next file.
"""

import itertools
from array import array
from typing import NamedTuple

from bert_tf import files
from bert_tf.errors import UserError

# How many bytes before the place of a cut are read, to see whether a document starts right there.
LOOK_BACK = 1 << 16


class Document:
    """The pieces of a document's sentences, laid end to end.

    `ids` are all piece ids; sentence `n` is `ids[starts[n]:starts[n + 1]]`, and `len(document)` counts sentences. A
    segment of an instance is a run of sentences, so it is one slice; and a document takes 4 bytes a piece and 8 a
    sentence.
    """

    __slots__ = ("ids", "starts")

    def __init__(self, sentences=()):
        self.ids = array("i")
        self.starts = array("q", [0])
        for sentence in sentences:
            self.append(sentence)

    def append(self, sentence):
        """Adds a sentence, a list of piece ids."""
        self.ids.extend(sentence)
        self.starts.append(len(self.ids))

    def __len__(self):
        return len(self.starts) - 1


class Span(NamedTuple):
    """The bytes `start` to `stop` of a file, whole lines."""

    path: str
    start: int
    stop: int


def whole(paths):
    """The spans of all of `paths`; an empty file is a `UserError`."""
    spans = [Span(path, 0, files.size_of(path)) for path in paths]
    for span in spans:
        if not span.stop:
            raise UserError(f"{span.path}: the file is empty; leave it out of --input_file")
    return spans


def cut(spans, num_shards):
    """Cuts the stream of `spans` into `num_shards` lists of spans of about equal size, at blank lines only.

    A document belongs to the shard in whose share of the bytes it starts, so a shard without such a document is
    empty. Only the lines around each cut are read.
    """
    total = sum(span.stop - span.start for span in spans)
    cuts = [0]
    for shard in range(1, num_shards):
        target = total * shard // num_shards
        cuts.append(cuts[-1] if cuts[-1] >= target else _next_break(spans, target, total))
    cuts.append(total)
    return [_part(spans, start, stop) for start, stop in zip(cuts, cuts[1:])]


def _part(spans, start, stop):
    """The spans of the bytes `start` to `stop` of the stream."""
    part, passed = [], 0
    for span in spans:
        size = span.stop - span.start
        first, last = max(start - passed, 0), min(stop - passed, size)
        if first < last:
            part.append(Span(span.path, span.start + first, span.start + last))
        passed += size
    return part


def _next_break(spans, position, total):
    """The first byte of the stream, from `position` on, that follows a blank line; `total` where there is none."""
    start = max(position - LOOK_BACK, 0)
    before = start
    for span in _part(spans, start, total):
        with files.open_binary(span.path) as file:
            file.seek(span.start)
            if before == start > 0:
                file.readline()  # `start` may be inside a line, whose rest tells nothing
            # Counted by tell(), because a remote file's readline() drops every "\r".
            while file.tell() < span.stop:
                blank = not file.readline().strip()
                at = before + file.tell() - span.start
                if blank and at >= position:
                    return at
        before += span.stop - span.start
    return total


def _lines(spans):
    """Yields the lines of the stream of `spans`, stripped, as the original reads them.

    It drops every "\r", and strips what Python takes for white space, beyond ASCII too. A byte-order mark stays in
    the text, for the tokenizer to drop: a first line of nothing else is not blank to the original.
    """
    for span in spans:
        with files.open_binary(span.path) as file:
            file.seek(span.start)
            while file.tell() < span.stop:
                line = file.readline()
                try:
                    yield line.decode("utf-8").replace("\r", "").strip()
                except UnicodeDecodeError:
                    for _ in files.read_lines(span.path):
                        pass  # it names the line and the byte
                    raise


def read(spans, encode, counts):
    """The documents of `spans` that hold a piece, in order, as a list of `Document`.

    `encode` turns a sentence into piece ids. Sentences without a piece are dropped, then documents without a
    sentence; both are counted in `counts`. A byte that is not UTF-8 is a `UserError` with file and line.
    """
    documents, document, lines = [], Document(), 0
    for line in itertools.chain(_lines(spans), [""]):
        if line:
            lines += 1
            ids = encode(line)
            if ids:
                document.append(ids)
            continue
        counts.empty_sentences += lines - len(document)
        if len(document):
            documents.append(document)
        elif lines:
            counts.empty_documents += 1
        document, lines = Document(), 0
    counts.documents += len(documents)
    counts.sentences += sum(map(len, documents))
    counts.single_sentence_documents += sum(len(document) == 1 for document in documents)
    return documents
