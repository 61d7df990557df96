"""Measures the tokenizer on real text, beside the reference classes and Hugging Face's `tokenizers` on one thread.

    python scripts/benchmark_tokenizer.py --input_file='books/*.txt' --vocab_file=vocab.txt

Every way encodes the same lines in this one process, in turn, `--repeats` times; the table holds medians. "cold" is a
tokenizer's first pass over the text, with nothing remembered; "warm" is a later pass. Speeds are UTF-8
bytes per second of processor time, which other programs on the machine disturb less than the clock.
"""

import collections
import os
import statistics
import sys
import time

# Before `tokenizers` is imported: one thread.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from bert_tf import files
from bert_tf.cli import app
from bert_tf.errors import UserError
from bert_tf.tokenization import FullTokenizer

FAST, OFFSETS, REFERENCE, PEER = "encode", "encode_with_offsets", "reference classes", "tokenizers, 1 thread"

# Found by comparing every code point and the recorded outputs of the original (tokenizers 0.23, Unicode 14).
KNOWN_DIFFERENCES = """where `tokenizers` departs from the original, which this package follows:
  a capital sigma at the end of a word becomes U+03C3 there, U+03C2 in the original
  private use characters are dropped there
  the Han characters U+2B820 to U+2B91F are not parted there
  its Unicode tables are older: newer punctuation, marks and format characters count as letters there
  lone surrogates are an error there"""


def define_flags(values):
    from absl import flags

    flags.DEFINE_string("input_file", None, "Texts: a comma-separated list of names and globs.", flag_values=values)
    flags.DEFINE_string("vocab_file", None, "The vocabulary.", flag_values=values)
    flags.DEFINE_bool("do_lower_case", True, "Whether to lower-case.", flag_values=values)
    flags.DEFINE_bool("whole_file", False, "Encode whole files instead of lines.", flag_values=values)
    flags.DEFINE_integer("repeats", 5, "How often each way is timed.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer(
        "reference_bytes",
        2_000_000,
        "About how much of the text, in evenly spaced lines, the slow reference classes are timed on.",
        lower_bound=1,
        flag_values=values,
    )
    flags.mark_flags_as_required(["input_file", "vocab_file"], flag_values=values)


def read_texts(paths, whole_file):
    """The texts to encode, one by one: lines, or whole files."""
    if whole_file:
        return [files.read_text(path) for path in paths]
    return [line for path in paths for _, line in files.read_lines(path)]


def peer(vocab, do_lower_case):
    """Hugging Face's tokenizer with the same settings, as a function from texts to ids; None where it is missing."""
    try:
        import tokenizers
    except ImportError:
        return None
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=200)
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=do_lower_case)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    # Its fastest call: one for all texts, without offsets.
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]


def size(texts):
    return sum(len(text.encode("utf-8")) + 1 for text in texts)


def speed(encode, texts):
    """MB/s of `encode`, a function of a list of texts."""
    start = time.process_time()
    encode(texts)
    return size(texts) / (time.process_time() - start) / 1e6


def measure(values, texts):
    """Median MB/s as `{(way, state): speed}`."""
    sample = texts[:: max(1, size(texts) // values.reference_bytes)]
    found = collections.defaultdict(list)
    for _ in range(values.repeats):
        tokenizer = FullTokenizer(values.vocab_file, values.do_lower_case)
        ways = {
            FAST: lambda texts: [tokenizer.encode(text) for text in texts],
            OFFSETS: lambda texts: [tokenizer.encode_with_offsets(text) for text in texts],
            PEER: peer(tokenizer.vocab, values.do_lower_case),
        }
        for way, encode in ways.items():
            if encode:
                found[way, "cold"].append(speed(encode, texts))
                found[way, "warm"].append(speed(encode, texts))
            tokenizer = FullTokenizer(values.vocab_file, values.do_lower_case)  # nothing remembered
        found[REFERENCE, "cold"].append(
            speed(lambda texts: [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in texts], sample)
        )
    return {key: statistics.median(speeds) for key, speeds in found.items()}


def report(speeds):
    """Prints the table of speeds and ratios."""
    ratios = f"{'/ reference: cold':>20}{'warm':>8}{'/ tokenizers: cold':>20}{'warm':>8}"
    print(f"{'':22}{'MB/s cold':>11}{'warm':>8}{ratios}")
    for way in (REFERENCE, PEER, FAST, OFFSETS):
        cold = speeds.get((way, "cold"))
        if cold is None:
            continue
        warm = speeds.get((way, "warm"), cold)
        row = f"{way:22}{cold:11.2f}{warm:8.2f}"
        for other in (REFERENCE, PEER):
            base = speeds.get((other, "cold"))
            if base:
                row += f"{cold / base:20.1f}{warm / speeds.get((other, 'warm'), base):8.1f}"
        print(row)


def compare(values, texts):
    """Prints how many texts get the same ids from Hugging Face, and the first that do not."""
    tokenizer = FullTokenizer(values.vocab_file, values.do_lower_case)
    other = peer(tokenizer.vocab, values.do_lower_case)
    if other is None:
        print("`tokenizers` is not installed (pip install tokenizers): not compared")
        return
    differing = [text for text, ids in zip(texts, other(texts)) if tokenizer.encode(text) != ids]
    print(f"same ids as `tokenizers`: {len(texts) - len(differing)} of {len(texts)} texts")
    for text in differing[:3]:
        print(f"  not for {ascii(text[:80])}")
    print(KNOWN_DIFFERENCES)


def run(values):
    texts = read_texts(files.expand(values.input_file, "input_file"), values.whole_file)
    if not any(texts):
        raise UserError(f"--input_file={values.input_file}: the files hold no text")
    report(measure(values, texts))
    compare(values, texts)


if __name__ == "__main__":
    sys.exit(app.main(define_flags, run, description=__doc__))
