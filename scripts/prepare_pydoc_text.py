"""Writes the prose of Python's own manual (`pydoc_data.topics`) as text to pretrain on, a part of it held out.

    python scripts/prepare_pydoc_text.py --train_file=train.txt --heldout_file=heldout.txt

One sentence a line, a blank line between documents, as create_pretraining_data.py reads it. A document is a section
of the manual. No sentence is written twice, so the held-out ones are new to a model trained on the others. The same
Python gives the same files; other versions have other manuals.
"""

import logging
import re
import sys

from absl import flags

from bert_tf import files
from bert_tf.cli import app
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

# Shorter sections hold too little to tell which sentence follows which.
FEWEST_SENTENCES = 3
FEWEST_WORDS = 4  # in a sentence
LEAST_PROSE = 0.7  # the share of a sentence's words that are plain

# A heading and the line of punctuation below it.
_HEADING = re.compile(r"^\S.*\n([*=\-~^\"])\1{2,}$", re.MULTILINE)
_MARKER = re.compile(r"^([*+-]|\d+\.|\(?[a-z0-9]\)|\[\d+\]|(New|Changed|Deprecated|Added)[\w ]* version [\w.]+:)\s+")
_CODE_OR_TABLE = re.compile(r"::=|^\s*(\+[-=]|\||>>>|\.\.\. )", re.MULTILINE)
# The manual's literals ("x"), emphasis (*x*) and footnotes ([1]), whose marks carry nothing.
_MARKS = re.compile(r"[\"“”]|(?<!\w)\*+(?=\w)|(?<=\w)\*+(?!\w)|\s*\[\d+\]")
_SENTENCE_END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?:(?<=[.!?])\s+(?=[A-Z_(])|(?<=[:;])\s+)")
_PLAIN_WORD = re.compile(r"\(?[A-Za-z]+([-'’][A-Za-z]+)*[.,;:!?)]*")


def define_flags(values):
    flags.DEFINE_string("train_file", None, "The text to train on, to be written.", values, required=True)
    flags.DEFINE_string("heldout_file", None, "The text to evaluate on, to be written.", values, required=True)
    flags.DEFINE_integer("heldout_every", 10, "Every so manieth document is held out.", lower_bound=2,
                         flag_values=values)


def read_documents(topics):
    """The sections of a dict of topics as lists of sentences, each sentence only where it comes first."""
    documents, seen = [], set()
    # Short topics repeat parts of long ones: the longest first keeps sections whole.
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        for section in _HEADING.sub("\0", topics[name]).split("\0"):
            # A dict drops repetitions inside the section and keeps the order.
            sentences = [sentence for sentence in dict.fromkeys(read_sentences(section)) if sentence not in seen]
            if len(sentences) >= FEWEST_SENTENCES:
                documents.append(sentences)
                seen.update(sentences)
    return documents


def read_sentences(section):
    """Yields the sentences of a section's paragraphs, without tables, grammar, code and marks."""
    for paragraph in re.split(r"\n\s*\n", section):
        if _CODE_OR_TABLE.search(paragraph):
            continue
        # Items of a list may follow each other without a blank line.
        for item in re.split(r"\n(?=\s*(?:\*|\d+\.) )", paragraph):
            text = " ".join(_MARKS.sub("", _MARKER.sub("", " ".join(item.split()))).split())
            yield from filter(is_prose, _SENTENCE_END.split(text))


def is_prose(sentence):
    """Whether a line reads as a sentence of English rather than as a signature, a heading or code."""
    words = sentence.split()
    plain = sum(_PLAIN_WORD.fullmatch(word) is not None for word in words)
    ended = sentence.endswith((".", "!", "?", ":", ";", ".)"))
    return ended and len(words) >= FEWEST_WORDS and plain >= LEAST_PROSE * len(words)


def write(path, documents):
    """Writes documents, and says how many."""
    with files.replacing(path) as file:
        file.write("\n".join("".join(sentence + "\n" for sentence in document) for document in documents))
    logger.info("%s: %d documents, %d sentences, %d words", path, len(documents), sum(map(len, documents)),
                sum(len(sentence.split()) for document in documents for sentence in document))


def run(values):
    files.check_output(values.train_file, "train_file")
    files.check_output(values.heldout_file, "heldout_file", [values.train_file])
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UserError("this Python has no pydoc_data.topics; install the whole standard library") from error
    documents = read_documents(topics)
    every = values.heldout_every
    if every > len(documents):
        raise UserError(f"--heldout_every={every}: there are {len(documents)} documents, so none would be held out; "
                        "give a smaller number")
    write(values.train_file, [document for number, document in enumerate(documents) if number % every != every - 1])
    write(values.heldout_file, documents[every - 1::every])


if __name__ == "__main__":
    sys.exit(app.main(define_flags, run, description=__doc__))
