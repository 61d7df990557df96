"""Text to WordPiece ids, exactly as the original computes them, and with character offsets.

`BasicTokenizer.tokenize` and `WordpieceTokenizer` are the specification: one readable step after the other. The fast
path, `FullTokenizer.encode` and `encode_with_offsets`, rests on one observation: once a text is split at white space,
nothing in a word depends on another word. So the ids of a word are worked out once and remembered; and inside a word
nearly every character is normalised by itself, from a table that fills as characters turn up.
"""

import itertools
import logging
import re
import string
import unicodedata

from bert_tf import files
from bert_tf.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

logger = logging.getLogger("bert_tf")

# Han characters only: kana and hangul are not parted. First and last code point of each block.
_CHINESE_BLOCKS = (
    (0x4E00, 0x9FFF),  # CJK Unified Ideographs
    (0x3400, 0x4DBF),  # Extension A
    (0x20000, 0x2A6DF),  # Extension B
    (0x2A700, 0x2B73F),  # Extension C
    (0x2B740, 0x2B81F),  # Extension D
    (0x2B820, 0x2CEAF),  # Extension E
    (0xF900, 0xFAFF),  # Compatibility Ideographs
    (0x2F800, 0x2FA1F),  # Compatibility Ideographs Supplement
)

# `str.split` splits at these control characters, which cleaning drops without a space; NUL, dropped too but no
# white space, stands in for them.
_SPLITTING_CONTROLS = re.compile("[\v\f\x1c-\x1f\x85]")

# Stands in the table for a character whose result depends on its neighbours. Cleaning drops U+FFFD, so that the
# table holds it for nothing else.
_DEPENDS_ON_NEIGHBOURS = "\ufffd"


def convert_to_unicode(text):
    """`text` as str: bytes are decoded as UTF-8, what is not UTF-8 left out; `ValueError` for other types."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"text must be str or bytes, not {type(text).__name__}")


def printable_text(text):
    """`text` as a log or `print` takes it: types and errors as `convert_to_unicode`."""
    return convert_to_unicode(text)


def _is_whitespace(char):
    """Whether cleaning makes `char` a space: tab, line feed, carriage return, category Zs."""
    return char in "\t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char):
    """Whether cleaning drops `char`: category Cc or Cf, but tab, line feed and carriage return are white space."""
    return unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r"


def _is_punctuation(char):
    """Whether `char` is a word of its own: category P*, and all ASCII signs, "$" and "~" included."""
    return char in string.punctuation or unicodedata.category(char).startswith("P")


def _is_chinese_char(code):
    """Whether the code point `code` is a Han character, a word of its own."""
    return any(first <= code <= last for first, last in _CHINESE_BLOCKS)


def whitespace_tokenize(text):
    """The words of `text` between white space."""
    return text.split()


class _Memo(dict):
    """A dict from text to a sequence that computes what it lacks, and starts afresh when it holds too much.

    `size` estimates its bytes from above, so that a hostile text cannot exhaust the memory. `LIMIT` is some 300,000
    words of prose.
    """

    LIMIT = 1 << 27
    LONGEST_KEY = 200

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.size = 0

    def __missing__(self, key):
        value = self.compute(key)
        if len(key) <= self.LONGEST_KEY:
            if self.size > self.LIMIT:
                self.clear()
                self.size = 0
            self.size += 250 + 4 * len(key) + 150 * len(value)
            self[key] = value
        return value

    def __reduce__(self):
        return type(self), (self.compute,)


class _CharacterTable(dict):
    """The table for `str.translate`: code point to what `compute` makes of the character."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def __missing__(self, code):
        value = self[code] = self.compute(chr(code))
        return value

    def __reduce__(self):
        return type(self), (self.compute,)


class BasicTokenizer:
    """Text to words: clean, part Han characters, lower-case and strip accents, part punctuation.

    `strip_accents=None` follows `do_lower_case`, as the original always does. The strings of `never_split` are kept
    whole wherever they stand.
    """

    def __init__(self, do_lower_case=True, strip_accents=None, never_split=()):
        self.do_lower_case = do_lower_case
        self.strip_accents = do_lower_case if strip_accents is None else strip_accents
        self._kept = re.compile("({})".format("|".join(map(re.escape, never_split)))) if never_split else None
        self._table = _CharacterTable(self._spaced)
        self._widths = _CharacterTable(self._width)

    def tokenize(self, text):
        """The words of `text` (str or bytes)."""
        words = []
        for part, whole in self._parts(convert_to_unicode(text)):
            if whole:
                words.append(part)
                continue
            for word in whitespace_tokenize(self._tokenize_chinese_chars(self._clean_text(part))):
                words.extend(self._normalize(word).split())
        return words

    def fast_tokenize(self, text):
        """Equals `tokenize(text)` for any str, many times as fast."""
        spaced = text.translate(self._table)
        if _DEPENDS_ON_NEIGHBOURS in spaced or self._kept and self._kept.search(text):
            return self.tokenize(text)
        return spaced.split()

    def character_spans(self, text):
        """For each character of `"".join(tokenize(text))` the `(start, end)` in `text` (str) that it comes from.

        A stripped accent belongs to the character before it, a dropped control character to none, and characters
        that one is decomposed into (hangul) all have its span.
        """
        spans = []
        for at, width in enumerate(map(self._widths.__getitem__, map(ord, text))):
            if width == 1:
                spans.append((at, at + 1))
            elif width:
                spans.extend([(at, at + 1)] * width)
            elif spans and spans[-1][1] == at and unicodedata.category(text[at]) == "Mn":
                spans[-1] = (spans[-1][0], at + 1)
        return spans

    def _parts(self, text):
        """`text` in parts, each with whether it stays whole."""
        parts = self._kept.split(text) if self._kept else [text]
        return [(part, number % 2 == 1) for number, part in enumerate(parts)]

    def _clean_text(self, text):
        """Drops NUL, U+FFFD and control characters; white space of any kind becomes a space."""
        kept = (char for char in text if char not in "\0\ufffd" and not _is_control(char))
        return "".join(" " if _is_whitespace(char) else char for char in kept)

    def _tokenize_chinese_chars(self, text):
        """Puts spaces around Han characters."""
        return "".join(f" {char} " if _is_chinese_char(ord(char)) else char for char in text)

    def _normalize(self, word):
        """Lower-cases, strips accents (NFD without non-spacing marks) and puts spaces around punctuation."""
        if self.do_lower_case:
            word = word.lower()
        if self.strip_accents:
            word = "".join(char for char in unicodedata.normalize("NFD", word) if unicodedata.category(char) != "Mn")
        return "".join(f" {char} " if _is_punctuation(char) else char for char in word)

    def _spaced(self, char):
        """What `char` comes to, with spaces where it parts words."""
        spaced = self._normalize(self._tokenize_chinese_chars(self._clean_text(char)))
        final_sigma = self.do_lower_case and char == "Σ"
        # NFD sorts neighbouring combining characters; the non-spacing ones among them are gone here.
        sorted_marks = self.strip_accents and any(map(unicodedata.combining, spaced))
        return _DEPENDS_ON_NEIGHBOURS if final_sigma or sorted_marks else spaced

    def _width(self, char):
        """How many characters `char` comes to."""
        return len("".join(self.tokenize(char)))


class WordpieceTokenizer:
    """Words to pieces: the longest piece of the vocabulary first, from left to right.

    A word of which some part is in no piece, or that is longer than `max_input_chars_per_word`, is one `unk_token`.
    """

    def __init__(self, vocab, unk_token="[UNK]", max_input_chars_per_word=200):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._longest_piece = max(map(len, vocab), default=0)

    def tokenize(self, text):
        """The pieces of the words of `text` (str or bytes; words as `BasicTokenizer` gives them)."""
        return [piece for word in whitespace_tokenize(convert_to_unicode(text)) for piece in self.pieces(word)]

    def pieces(self, word):
        """The pieces of one word."""
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        vocab, length = self.vocab, len(word)
        if word in vocab:
            return [word]
        pieces, start, prefix = [], 0, ""
        while start < length:
            for end in range(min(length, start + self._longest_piece), start, -1):
                piece = prefix + word[start:end]
                if piece in vocab:
                    break
            else:
                return [self.unk_token]
            pieces.append(piece)
            start, prefix = end, "##"
        return pieces


class FullTokenizer:
    """Text to pieces and ids: `BasicTokenizer`, then `WordpieceTokenizer`.

    `tokenize` runs the two as they are; `encode` and `encode_with_offsets` give the same ids fast. "[SEP]" and its
    like inside a text are text ("[", "sep", "]") unless `keep_special_tokens`. `vocab` maps pieces to ids, `inv_vocab`
    ids to pieces, `vocab_size` counts the ids: a piece that stands on two lines has two. Errors as `load_vocab`.
    """

    def __init__(
        self,
        vocab_file,
        do_lower_case=True,
        strip_accents=None,
        max_input_chars_per_word=200,
        keep_special_tokens=False,
    ):
        self.inv_vocab = dict(enumerate(_read_pieces(vocab_file)))
        self.vocab = {piece: number for number, piece in self.inv_vocab.items()}
        self.vocab_size = len(self.inv_vocab)
        self.do_lower_case = do_lower_case
        never_split = SPECIAL_TOKENS if keep_special_tokens else ()
        self.basic_tokenizer = BasicTokenizer(do_lower_case, strip_accents, never_split)
        self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab, max_input_chars_per_word=max_input_chars_per_word)
        self._word_ids = _Memo(self._compute_word_ids)
        self._ids = _Memo(self._compute_ids)
        self._spanned_ids = _Memo(self._compute_spanned_ids)

    def tokenize(self, text):
        """The pieces of `text` (str or bytes)."""
        words = self.basic_tokenizer.tokenize(text)
        return [piece for word in words for piece in self.wordpiece_tokenizer.pieces(word)]

    def convert_tokens_to_ids(self, tokens):
        """The ids of pieces; `KeyError` for one that the vocabulary lacks."""
        return convert_by_vocab(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids):
        """The pieces of ids; `KeyError` for one that the vocabulary lacks."""
        return convert_by_vocab(self.inv_vocab, ids)

    def encode(self, text):
        """The ids of `text` (str or bytes), without [CLS] and [SEP]: `convert_tokens_to_ids(tokenize(text))`."""
        words = _SPLITTING_CONTROLS.sub("\0", convert_to_unicode(text)).split()
        return list(itertools.chain.from_iterable(map(self._ids.__getitem__, words)))

    def encode_with_offsets(self, text):
        """The ids of `text`, and for each the `(start, end)` of its characters in `text`.

        `text[start:end]` normalises to the piece, to the whole word where the piece is [UNK]. Starts and ends never
        decrease and no span is empty; pieces made from one character (hangul) share its span. For bytes the positions
        are those in `convert_to_unicode(text)`.
        """
        text = _SPLITTING_CONTROLS.sub("\0", convert_to_unicode(text))
        ids, spans, end = [], [], 0
        for word in text.split():
            start = text.index(word, end)
            end = start + len(word)
            for number, first, last in self._spanned_ids[word]:
                ids.append(number)
                spans.append((start + first, start + last))
        return ids, spans

    def _compute_ids(self, text):
        """The ids of a text without white space, as a tuple."""
        words = self.basic_tokenizer.fast_tokenize(text)
        if len(words) == 1:
            return self._word_ids[words[0]]
        return tuple(itertools.chain.from_iterable(map(self._word_ids.__getitem__, words)))

    def _compute_word_ids(self, word):
        """The ids of one of `BasicTokenizer`'s words."""
        return tuple(map(self.vocab.__getitem__, self.wordpiece_tokenizer.pieces(word)))

    def _compute_spanned_ids(self, text):
        """`(id, start, end)` for each piece of a text without white space."""
        spanned, first = [], 0
        spans = self.basic_tokenizer.character_spans(text)
        for word in self.basic_tokenizer.fast_tokenize(text):
            ids = self._word_ids[word]
            last = first + len(word)
            if len(ids) == 1:  # a whole word, or [UNK]
                spanned.append((ids[0], spans[first][0], spans[last - 1][1]))
            else:
                spanned.extend(self._split_spans(ids, spans[first:last]))
            first = last
        return spanned

    def _split_spans(self, ids, spans):
        """`(id, start, end)` for each piece of a word whose characters have `spans`."""
        first = 0
        for number in ids:
            last = first + len(self.inv_vocab[number]) - (2 if first else 0)  # without "##"
            yield number, spans[first][0], spans[last - 1][1]
            first = last


def _read_pieces(vocab_file):
    """The pieces of a vocabulary file, one a line; errors and warnings as `load_vocab`."""
    pieces = [line.strip() for _, line in files.read_lines(vocab_file)]
    lines = {}
    for number, piece in enumerate(pieces, start=1):
        lines.setdefault(piece, []).append(number)
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        raise UserError(f"{vocab_file}: the vocabulary lacks {', '.join(missing)}; add each on a line of its own")
    repeated = [f"{piece!r} on lines {', '.join(map(str, at[:10]))}" for piece, at in lines.items() if len(at) > 1]
    if repeated:
        more = f" and {len(repeated) - 10} more" if len(repeated) > 10 else ""
        logger.warning(
            "%s: pieces that stand more than once take their last id: %s%s",
            vocab_file,
            "; ".join(repeated[:10]),
            more,
        )
    return pieces


def load_vocab(vocab_file):
    """The vocabulary of a file as a dict from piece to id, which is the number of its line from 0.

    Whatever a line holds, it counts; white space around a piece is taken off; a piece that stands twice takes its
    last id and is warned about. `UserError` for a file that cannot be read, is not UTF-8 or lacks one of
    `SPECIAL_TOKENS`.
    """
    return {piece: number for number, piece in enumerate(_read_pieces(vocab_file))}


def convert_by_vocab(vocab, items):
    """`vocab[item]` for each item; `KeyError` for one that the vocabulary lacks."""
    return [vocab[item] for item in items]


def convert_tokens_to_ids(vocab, tokens):
    """The ids of `tokens`; `KeyError` for one that `vocab` lacks."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab, ids):
    """The pieces of `ids`; `KeyError` for one that `inv_vocab` lacks."""
    return convert_by_vocab(inv_vocab, ids)


class CaseMismatchError(UserError, ValueError):
    """The text's casing is not the model's; a `ValueError` too, as in the original."""


def validate_case_matches_checkpoint(do_lower_case, init_checkpoint):
    """The original's check, text and all: `CaseMismatchError` when the folder of `bert_model.ckpt` says otherwise.

    It knows the seven models of the first releases; `check_casing` knows all.
    """
    found = re.search(r"([A-Za-z0-9_-]+)/bert_model.ckpt", init_checkpoint or "")
    lowered = _FIRST_RELEASES.get(found[1]) if found else None
    if lowered is None or lowered == bool(do_lower_case):
        return
    name, kind, wanted = found[1], "lowercased" if lowered else "cased", lowered
    raise CaseMismatchError(
        f"You passed in `--do_lower_case={do_lower_case}` with `--init_checkpoint={init_checkpoint}`. However, "
        f"`{name}` seems to be a {kind} model, so you should pass in `--do_lower_case={wanted}` so that the "
        "fine-tuning matches how the model was pre-training. If this error is wrong, please just comment out this "
        "check."
    )


# Whether the model lower-cases.
_FIRST_RELEASES = {
    "uncased_L-24_H-1024_A-16": True,
    "uncased_L-12_H-768_A-12": True,
    "multilingual_L-12_H-768_A-12": True,
    "chinese_L-12_H-768_A-12": True,
    "cased_L-12_H-768_A-12": False,
    "cased_L-24_H-1024_A-16": False,
    "multi_cased_L-12_H-768_A-12": False,
}

# The folders of every model that Google released, whole word masking and the 24 miniatures included.
_RELEASED_FOLDER = re.compile(r"(?<![A-Za-z])(multi_cased|cased|uncased|multilingual|chinese)_L-\d+_H-\d+_A-\d+")

_OVERRIDE = "--allow_case_mismatch goes on regardless"


def check_casing(vocab, do_lower_case, checkpoint_name=None):
    """Checks `do_lower_case` against a vocabulary (dict or list of pieces) and the checkpoint's path.

    `CaseMismatchError` when text is lower-cased and more than 1 % of the pieces hold upper case (bracketed ones such
    as [CLS] and [unused1] do not count), or when the path names a released model of the other casing. A warning when
    text is not lower-cased and no piece holds upper case.
    """
    pieces = [piece for piece in vocab if not (piece.startswith("[") and piece.endswith("]"))]
    upper = sum(piece != piece.lower() for piece in pieces)
    if do_lower_case and upper > 0.01 * len(pieces):
        raise CaseMismatchError(
            f"--do_lower_case=True, but {upper} of the vocabulary's {len(pieces)} pieces hold upper case: pass "
            f"--do_lower_case=False ({_OVERRIDE})"
        )
    names = _RELEASED_FOLDER.findall(checkpoint_name or "")
    if names and (names[-1] not in ("cased", "multi_cased")) != bool(do_lower_case):
        wanted = not do_lower_case
        raise CaseMismatchError(
            f"--do_lower_case={bool(do_lower_case)}, but by its name {checkpoint_name} is "
            f"{'a lower-cased' if wanted else 'a cased'} model: pass --do_lower_case={wanted} ({_OVERRIDE})"
        )
    if pieces and not do_lower_case and not upper:
        logger.warning(
            "--do_lower_case=False, but no piece of the vocabulary holds upper case: words with capitals become "
            "[UNK]; is it a lower-cased model (--do_lower_case=True)?"
        )
