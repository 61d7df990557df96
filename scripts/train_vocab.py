"""Trains a WordPiece vocabulary (`vocab.txt`) on text of a new domain or language.

    python scripts/train_vocab.py --input_file='corpus/*.txt' --vocab_file=vocab.txt --vocab_size=30522

Words are counted as `BasicTokenizer` makes them, so that the vocabulary is one of exactly the words that the models
will see; Hugging Face's `tokenizers` learns the pieces from the counts. The same input gives the same file.
"""

import collections
import itertools
import logging
import os
import string
import sys

from bert_tf import files
from bert_tf.cli import app
from bert_tf.errors import UserError
from bert_tf.tokenization import SPECIAL_TOKENS, BasicTokenizer

# `WordpieceTokenizer` makes longer words [UNK], whatever the vocabulary holds.
LONGEST_WORD = 200

logger = logging.getLogger("bert_tf")


def define_flags(values):
    from absl import flags

    flags.DEFINE_string("input_file", None, "Texts: a comma-separated list of names and globs.", flag_values=values)
    flags.DEFINE_string("vocab_file", None, "The vocabulary to write.", flag_values=values)
    flags.DEFINE_integer("vocab_size", 30522, "The number of pieces at most.", lower_bound=1, flag_values=values)
    flags.DEFINE_bool("do_lower_case", True, "Whether the model lower-cases its text.", flag_values=values)
    flags.DEFINE_bool("strip_accents", None, "Whether it strips accents (if not given: as it lower-cases).",
                      flag_values=values)
    flags.DEFINE_integer("min_frequency", 2, "How often a piece of several characters must be seen.", lower_bound=1,
                         flag_values=values)
    flags.DEFINE_integer("limit_alphabet", 10000, "How many different characters, the most frequent, get a piece.",
                         lower_bound=1, flag_values=values)
    flags.DEFINE_integer("num_unused", 0, "How many pieces [unused0] ... to leave room for later ones.", lower_bound=0,
                         flag_values=values)
    flags.mark_flags_as_required(["input_file", "vocab_file"], flag_values=values)


def count_words(paths, tokenizer):
    """How often each of `BasicTokenizer`'s words stands in the files."""
    counts = collections.Counter()
    for path in paths:
        for _, line in files.read_lines(path):
            counts.update(tokenizer.fast_tokenize(line))
    return counts


def single_characters(counts, tokenizer, limit):
    """The pieces of one character: the `limit` most frequent ones, and ASCII's whatever the text holds.

    A character gets its "##" piece where it stands inside a word; letters and digits of ASCII always do.
    """
    frequency, inside = collections.Counter(), set()
    for word, count in counts.items():
        for char in word:
            frequency[char] += count
        inside.update(word[1:])
    ascii_letters = set("".join(tokenizer.fast_tokenize(string.ascii_letters + string.digits)))
    # Equal frequencies in the order of code points, so that the choice does not depend on the order of the text.
    frequent = sorted(frequency, key=lambda char: (-frequency[char], char))[:limit]
    alphabet = {*frequent, *ascii_letters, *string.punctuation}
    return sorted(alphabet), sorted("##" + char for char in alphabet & (inside | ascii_letters))


def learn(counts, reserved, vocab_size, min_frequency):
    """`reserved` and after it the pieces that `tokenizers` learns from the word counts, `vocab_size` at most."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError as error:
        raise UserError("training a vocabulary needs the package `tokenizers`: pip install tokenizers") from error
    # Without normaliser and pre-tokenizer every string is one word, as it is. All single characters are reserved in
    # a fixed order, because equally frequent pairs are merged in the order of the ids of their parts.
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=reserved, show_progress=False
    )
    words = itertools.chain.from_iterable(itertools.repeat(word, count) for word, count in counts.items())
    tokenizer.train_from_iterator(words, trainer)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.get)


def train(values, paths):
    """The pieces of the vocabulary that the flags ask for of the files, in the order of their ids."""
    tokenizer = BasicTokenizer(values.do_lower_case, values.strip_accents)
    counts = count_words(paths, tokenizer)
    if not counts:
        raise UserError(f"--input_file={values.input_file}: the files hold no words")
    initial, continuing = single_characters(counts, tokenizer, values.limit_alphabet)
    unused = [f"[unused{number}]" for number in range(values.num_unused)]
    reserved = [*SPECIAL_TOKENS, *unused, *initial, *continuing]
    if len(reserved) > values.vocab_size:
        raise UserError(
            f"--vocab_size={values.vocab_size} is too small: special tokens, unused pieces and single characters are "
            f"{len(reserved)} already; raise it or lower --limit_alphabet={values.limit_alphabet}"
        )
    alphabet = set(initial)
    kept = {word: count for word, count in counts.items() if len(word) <= LONGEST_WORD and alphabet.issuperset(word)}
    total, dropped = sum(counts.values()), sum(counts.values()) - sum(kept.values())
    logger.info("%d words, %d different; left out as too long or of rare characters: %d (%.3f %%)",
                total, len(counts), dropped, 100 * dropped / total)
    return learn(kept, reserved, values.vocab_size, values.min_frequency)


def run(values):
    paths = files.expand(values.input_file, "input_file")
    files.check_output(values.vocab_file, "vocab_file", paths)
    pieces = train(values, paths)
    with files.replacing(values.vocab_file) as file:
        file.writelines(piece + "\n" for piece in pieces)
    logger.info("%s: %d pieces", values.vocab_file, len(pieces))
    if len(pieces) < values.vocab_size:
        logger.warning("no other piece is seen %d times: set vocab_size in bert_config.json to %d",
                       values.min_frequency, len(pieces))


if __name__ == "__main__":
    sys.exit(app.main(define_flags, run, description=__doc__))
