"""Files of labelled words to sentences, and the scheme that their labels are in.

Two kinds of file are read. In columns: a word a line with its labels beside it, and a blank line after each sentence.
In JSON lines: an object a line, with a sentence's words and labels in lists.
"""

import collections
import functools
import itertools
import json
import logging
import re
import sys
import typing

from bert_tf import files
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

NAMED_LINES, NAMED_LABELS, NAME_LENGTH = 5, 30, 40
DOCUMENT_MARK = "-DOCSTART-"
# What the lists of words and labels and the document are usually called in JSON lines, the likelier first.
TOKENS, LABELS, DOCUMENTS = ("tokens", "words"), ("labels", "tags", "ner_tags"), ("document", "doc_id", "document_id")
JSON_NAMES = (".json", ".jsonl", ".ndjson")
JSON_LIKE = re.compile(r'\s*\{\s*"\w')

BEGINNING, ENDING = "BSU", "ESLU"  # BIOES has as many names as letters: BILOU (L, U for E, S), BMES (M for I)
ENTITY_LABEL = re.compile("O|[BIESLUM](-.+)?", re.DOTALL)


class Columns(typing.NamedTuple):
    """What the user says of a file's columns.

    `token_column` and `label_column` are numbers from 0, negative ones from the end, also as texts, or names in JSON
    lines; None where they are to be found out. `is_labelled` is True where labels must be there, False where none are
    wanted, None where they are read if the file has any.
    """

    token_column: int | str | None = None
    label_column: int | str | None = None
    is_labelled: bool | None = True


class Sentence(typing.NamedTuple):
    """The words of a sentence as in the file, the label of each or None in files without, and the line of each.

    Lines count from 1; in JSON lines all words have the sentence's. `document` is the number from 0 of the document.
    """

    tokens: list[str]
    labels: list[str] | None
    lines: list[int]
    document: int


class Layout(typing.NamedTuple):
    """How the lines of a file of columns are read: cells apart by `separator`, `width` of them at least."""

    separator: str
    width: int
    token: int
    label: int | None


def read(path, columns=Columns()):
    """The list of a file's `Sentence`s, in its order; what was found out about its columns is said in the log.

    `UserError` with file and line for a line of fewer columns than the first, a label without a word and the reverse,
    and for a file without a sentence. What is left out or doubtful is counted and said in one line at the end.
    """
    notes = collections.defaultdict(list)
    made = list((_read_json_lines if is_json_lines(path) else _read_columns)(path, columns, notes))
    if notes:
        logger.warning("%s: %s", path, _noted(notes))
    if not made:
        raise UserError(f"{path}: holds no sentence")
    labels = sorted({label for sentence in made for label in sentence.labels or ()})
    logger.info("%s: %d sentences in %d documents, %d words, %s", path, len(made), made[-1].document + 1,
                sum(len(sentence.tokens) for sentence in made),
                f"{len(labels)} labels: {listed(labels)}" if labels else "no labels")
    return made


def is_json_lines(path):
    """Whether a file is JSON lines: by its name, else by how its first line that is not blank begins."""
    if str(path).endswith(JSON_NAMES):
        return True
    first = next((line for _, line in files.read_lines(path) if line.strip()), "")
    return JSON_LIKE.match(first) is not None


# Columns.


def _read_columns(path, columns, notes):
    """Yields the `Sentence`s of a file of columns.

    A line that begins with "#" and a blank is a comment where it stands before a sentence's first word and cannot be
    a word: its number of columns is not that of the words, or its label stands on no other line.
    """
    layout = find_layout(path, columns)
    known = functools.cache(lambda: _labels_of_words(path, layout))
    for document, block in _blocks(path):
        made = Sentence([], None if layout.label is None else [], [], document)
        for number, line in block:
            cells = _cells(line, layout.separator)
            if _is_hash(line) and not made.tokens and (
                    len(cells) != layout.width
                    or layout.label is not None and cells[layout.label] not in known()):
                notes["comment lines left out"].append(number)
                continue
            _add_word(made, cells, number, layout, path)
            if len(cells) > layout.width:
                notes[f"lines of more columns than the first ({layout.width}): a blank inside a word?"].append(number)
        if made.tokens:
            yield made


def _blocks(path):
    """Yields `(document, [(line number, line), ...])` for the lines between blank ones and document marks."""
    document, is_open, block = 0, False, []
    for number, line in itertools.chain(files.read_lines(path), [(0, "")]):
        is_mark = line.startswith(DOCUMENT_MARK) and line.split(maxsplit=1)[0] == DOCUMENT_MARK
        if line.strip() and not is_mark:
            block.append((number, line))
            continue
        if block:
            yield document, block
            block, is_open = [], True
        if is_mark and is_open:
            document, is_open = document + 1, False


def _labels_of_words(path, layout):
    """The labels on the lines of a file that are no comments for certain, or of all lines without such."""
    labels = {True: set(), False: set()}
    for _, block in _blocks(path):
        for _, line in block:
            cells = _cells(line, layout.separator)
            if len(cells) >= layout.width:
                labels[_is_hash(line)].add(cells[layout.label])
    return labels[False] or labels[True]


def _is_hash(line):
    """Whether a line may be a comment."""
    return line[:1] == "#" and line[1:2] in ("", " ", "\t")


def _cells(line, separator):
    """The cells of a line; blanks around them are no part of them, unless a cell is nothing else."""
    if separator == "\t":
        return [cell.strip(" ") or cell for cell in line.rstrip(" \t").split("\t")]
    return [cell for cell in line.replace("\t", " ").split(" ") if cell]


def find_layout(path, columns):
    """The `Layout` of a file of columns, found from its first sentence; it is said in the log.

    Words are in the first column (the second where the first counts them), labels in the last. `UserError` for a
    column that is not there, for one that holds words and labels, and for a file without a line of words.
    """
    block = []
    for _, rows in _blocks(path):
        words = [row for row in rows if not _is_hash(row[1])]
        block = words or rows
        if words:
            break
    if not block:
        raise UserError(f"{path}: the file is empty" if not files.size_of(path) else f"{path}: holds no sentence")
    where, separator = f"{path}:{block[0][0]}", "\t" if "\t" in block[0][1].rstrip(" \t") else " "
    rows = [_cells(line, separator) for _, line in block]
    width = len(rows[0])
    if columns.is_labelled and width == 1:
        raise UserError(f"{where}: expected a word and its label, found one column ({_shown(rows[0][0])}); put a tab "
                        "or a blank between them")
    is_wanted = columns.is_labelled is not False and width > 1
    counts = len(rows) > 1 and [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    token = int(counts and width > 1 + is_wanted)
    if columns.token_column is not None:
        token = _column(columns.token_column, "token_column", width, where)
    label = -1 if is_wanted else None
    if is_wanted and columns.label_column is not None:
        label = _column(columns.label_column, "label_column", width, where)
    if is_wanted and label % width == token % width:
        raise UserError(f"{where}: words and labels would both be in column {token % width} of {width}; say "
                        "--token_column and --label_column")
    logger.info("%s: words in column %d%s of %d, separated by %s", path, token % width,
                "" if label is None else f", labels in column {label % width}", width,
                "tabs" if separator == "\t" else "blanks")
    return Layout(separator, width, token, label)


def _column(said, flag, width, where):
    """The number of a column that the user names."""
    try:
        number = int(said)
    except ValueError as error:
        raise UserError(f"{where}: --{flag}={said} is no number, and only the columns of JSON lines have names"
                        ) from error
    if not -width <= number < width:
        raise UserError(f"{where}: there is no column {number} for --{flag}, the line has {width} (the first is 0)")
    return number


def _add_word(made, cells, line, layout, path):
    """Adds the word of a line to a `Sentence`, and its label."""
    if len(cells) < layout.width:
        raise UserError(f"{path}:{line}: expected {layout.width} columns as in the first line of words, found "
                        f"{len(cells)} ({_shown(' '.join(cells))})")
    token, label = cells[layout.token], "" if layout.label is None else cells[layout.label].strip()
    if not token:
        raise UserError(f"{path}:{line}: the column of the word is empty (the line holds "
                        f"{_shown(' '.join(cells).strip())}); a sentence ends with a line that is all blank")
    made.tokens.append(sys.intern(token))
    made.lines.append(line)
    if layout.label is not None:
        if not label:
            raise UserError(f"{path}:{line}: the word {_shown(token)} has no label; words outside of all entities "
                            "have O")
        made.labels.append(sys.intern(label))


# JSON lines.


def _read_json_lines(path, columns, notes):
    """Yields the `Sentence`s of a file of JSON lines."""
    names, previous, document = None, None, -1
    for number, row in files.read_json_lines(path):
        if row is None:
            notes["blank lines left out"].append(number)
            continue
        where = f"{path}:{number}"
        if names is None:
            names = _find_names(row, columns, where)
        elif names[1] is None and columns.is_labelled is None and (
                late := _find_name(row, columns.label_column, LABELS)):
            raise UserError(f"{where}: here are labels, in {late!r}, in the lines before there are none; label all "
                            "sentences or, to predict them, none (--unlabelled_test passes labels over)")
        tokens, labels = (None if name is None else _texts(row, name, where) for name in names)
        if labels is not None and len(labels) != len(tokens):
            raise UserError(f"{where}: {len(tokens)} words in {names[0]!r} but {len(labels)} labels in {names[1]!r}")
        if not tokens:
            notes["sentences without a word left out"].append(number)
            continue
        in_document = next((row[name] for name in DOCUMENTS if name in row), "")
        if type(in_document) not in (str, int):
            raise UserError(f"{where}: the document is {_shown(in_document)}, neither a text nor a whole number")
        if in_document != previous:
            previous, document = in_document, document + 1
        yield Sentence(tokens, labels, [number] * len(tokens), document)


def _find_name(row, said, usual):
    """Which name an object has, of what the user says or, without, of the usual ones; None for none."""
    return next((name for name in (usual if said is None else (said,)) if name in row), None)


def _find_names(row, columns, where):
    """What the lists of words and of labels are called, None where none are wanted, by a file's first object."""
    def find(said, flag, usual, is_needed):
        found = _find_name(row, said, usual)
        if found is None and is_needed:
            raise UserError(f"{where}: there is no {' or '.join(usual) if said is None else said}, only "
                            f"{_shown(', '.join(row))}; say --{flag}")
        return found

    token = find(columns.token_column, "token_column", TOKENS, True)
    label = None
    if columns.is_labelled is not False:
        label = find(columns.label_column, "label_column", LABELS, columns.is_labelled)
    if token == label:
        raise UserError(f"{where}: words and labels would both be {token!r}; say --token_column and --label_column")
    logger.info("%s: words from %r%s", where.rpartition(":")[0], token,
                "" if label is None else f", labels from {label!r}")
    return token, label


def _texts(row, name, where):
    """The texts of a list in a JSON object; whole numbers, as which labels may stand, are written out."""
    values = row.get(name)
    if not isinstance(values, list):
        raise UserError(f"{where}: {name!r} is {'missing' if name not in row else 'no list, but ' + _shown(values)}")
    for place, value in enumerate(values):
        if type(value) not in (str, int) or value == "":
            raise UserError(f"{where}: {name!r}[{place}] is {_shown(value)}, not a text that is not empty")
        if type(value) is str and files.SURROGATE.search(value):
            raise UserError(f"{where}: {name!r}[{place}] holds half a surrogate pair, which is no text; save the file "
                            "as UTF-8")
    return [sys.intern(str(value)) for value in values]


# Schemes.


def find_scheme(sentences, path):
    """The scheme that labelled sentences are in: "BIO", "IOB1", "BIOES" or "plain"; it is said in the log.

    Labels that are not all O or B-, I-, E-, S- and a type are plain. Of BIO, where B- begins every entity, and IOB1,
    where it begins those alone that come right after one of their type, the labels contradict the one found less. What
    contradicts it is counted and said; it is read as `to_bio` does. `path` is what the log names.
    """
    labels = {label for sentence in sentences for label in sentence.labels}
    if not all(map(ENTITY_LABEL.fullmatch, labels)):
        logger.info("%s: plain labels", path)
        return "plain"
    likely = ("BIOES",) if {label[0] for label in labels} & set("ESLUM") else ("BIO", "IOB1")
    flaws = {scheme: _flaws(sentences, scheme) for scheme in likely}
    scheme = min(likely, key=lambda scheme: sum(map(len, flaws[scheme].values())))
    logger.info("%s: labels in the scheme %s", path, scheme)
    _say_flaws(path, flaws[scheme])
    return scheme


def check_scheme(sentences, scheme, path):
    """Counts and says where the labels of a file contradict a scheme; `UserError` for one that cannot be in it."""
    for sentence in sentences if scheme != "plain" else ():
        for label, line in zip(sentence.labels, sentence.lines):
            if not ENTITY_LABEL.fullmatch(label):
                raise UserError(f"{path}:{line}: the label {_shown(label)} is not in the scheme {scheme} of the "
                                "others")
    _say_flaws(path, _flaws(sentences, scheme))


def to_bio(labels, scheme):
    """The labels of a sentence in BIO, each entity beginning with B-; plain ones as they are.

    An entity begins at B- or S-, and at I- or E- where none of its type is open; all other labels go on with one. So
    any labels can be read, and those in BIO stay. Source: conlleval.
    """
    if scheme == "plain":
        return list(labels)
    made, opened = [], None
    for label in labels:
        if label == "O":
            made.append(label)
            opened = None
            continue
        prefix, kind = label[0], label[1:]
        made.append(("B" if prefix in BEGINNING or kind != opened else "I") + kind)
        opened = None if prefix in ENDING else kind
    return made


def _flaws(sentences, scheme):
    """The lines where labels contradict their scheme, in lists by a phrase that says how."""
    flaws = collections.defaultdict(list)
    for sentence in sentences if scheme != "plain" else ():
        bio = ["O", *to_bio(sentence.labels, scheme), "O"]
        for place, (label, line) in enumerate(zip(sentence.labels, sentence.lines), start=1):
            if label == "O":
                continue
            prefix, kind = label[0], label[1:]
            if scheme == "IOB1":
                if prefix == "B" and bio[place - 1] not in (f"B{kind}", f"I{kind}"):
                    flaws["B- that come after no entity of their type, read as I-"].append(line)
                continue
            if bio[place][0] == "B" and prefix not in BEGINNING:
                flaws["entities that begin without B-, read as if with it"].append(line)
            if scheme == "BIOES" and prefix not in ENDING and bio[place + 1] != f"I{kind}":
                flaws["entities that end without E- or S-, read as if with it"].append(line)
    return flaws


def _say_flaws(path, flaws):
    if flaws:
        logger.warning("%s: labels that contradict their scheme: %s", path, _noted(flaws))


def listed(names):
    """Names of labels as a message lists them, in one line: the first ones of many, the start of long."""
    shown = [" ".join(name[:NAME_LENGTH].split()) for name in names[:NAMED_LABELS]]
    return ", ".join(shown) + f", ... ({len(names)} in all)" * (len(names) > NAMED_LABELS)


def _noted(notes):
    """`notes`, line numbers by a phrase, as the log says them."""
    return "; ".join(f"{len(lines)} {phrase} (line {', '.join(map(str, lines[:NAMED_LINES]))}"
                     f"{', ...' * (len(lines) > NAMED_LINES)})" for phrase, lines in notes.items())


def _shown(value):
    """A value of a file as a message names it, in one line."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = value if isinstance(value, str) else json.dumps(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return repr(text) if isinstance(value, str) else text
