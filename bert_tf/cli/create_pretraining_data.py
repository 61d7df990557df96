"""Turns text into the records that run_pretraining.py trains on: sentence pairs with masked pieces.

The text holds one sentence a line and a blank line between documents. The same seed gives the same records as the
original BERT's script, byte for byte.
"""

import logging

from absl import flags

from bert_tf import files, tokenization
from bert_tf.cli import app
from bert_tf.pretraining import instances, records

logger = logging.getLogger("bert_tf")


def define_flags(values):
    """The original's flags with its defaults, and after them the new ones."""
    defaults = instances.Settings()

    def define(kind, name, text, default=None, **limits):
        default = getattr(defaults, name, default)
        getattr(flags, f"DEFINE_{kind}")(name, default, text, flag_values=values, **limits)

    define("string", "input_file", "Text files, one sentence a line: names and globs, separated by commas.")
    define("string", "output_file", "TFRecord files to write, separated by commas; instances go to them in turn.")
    define("string", "vocab_file", "The vocabulary, one WordPiece a line.")
    define("bool", "do_lower_case", "Whether to lower-case: True for uncased models, False for cased ones.", True)
    define("bool", "do_whole_word_mask", "Whether to mask all pieces of a word together.")
    define("integer", "max_seq_length", "Pieces in a sequence, [CLS] and [SEP] included.")
    define("integer", "max_predictions_per_seq", "Most masked pieces in a sequence.")
    define("integer", "random_seed", "The seed of every random choice.")
    define("integer", "dupe_factor", "How often to go over the text, with other masks each time.")
    define("float", "masked_lm_prob", "The share of a sequence's pieces to mask.")
    define("float", "short_seq_prob", "The share of documents made into shorter sequences.")
    define("bool", "no_false_random_next", "Never label a document's own sentences as a random next: where no other "
           "document is drawn, take what does follow. The original keeps the false label.")
    define("integer", "num_shards", "Cut the text into so many parts, each with a seed and a shuffle of its own, so "
           "that memory holds one part. 1 gives the original's records.", 1, lower_bound=1)
    define("integer", "num_workers", "Processes that work on the shards. It does not change the records.", 1,
           lower_bound=1)
    define("bool", "strip_accents", "Whether to strip accents; follows --do_lower_case when not given.")
    define("bool", "allow_case_mismatch", "Go on where --do_lower_case does not fit the vocabulary.", False)
    flags.mark_flags_as_required(["input_file", "output_file", "vocab_file"], flag_values=values)


def run(values):
    """Checks everything that can be checked before the work, makes the records, says what they hold."""
    settings = instances.Settings(**{name: values[name].value for name in instances.Settings.__dataclass_fields__})
    inputs = files.expand(values.input_file, "input_file")
    outputs = [path.strip() for path in values.output_file.split(",")]
    records.check_outputs(outputs, [*inputs, values.vocab_file])
    tokenizer = tokenization.FullTokenizer(values.vocab_file, values.do_lower_case, values.strip_accents)
    if not values.allow_case_mismatch:
        tokenization.check_casing(tokenizer.vocab, values.do_lower_case)
    for path in sorted({path for path in inputs if inputs.count(path) > 1}):
        logger.warning("--input_file names %s %d times: so often it is read", path, inputs.count(path))
    if values.num_workers > values.num_shards:
        logger.warning("--num_workers=%d: %d have work, one to a shard", values.num_workers, values.num_shards)
    counts = records.create(
        inputs, outputs, values.vocab_file, tokenizer, settings, values.num_shards, values.num_workers
    )
    for doubt in counts.doubts():
        logger.warning("%s", doubt)
    logger.info("%s\nwritten to %s", counts.table(), ", ".join(outputs))


def main(argv=None):
    """Runs the script and returns its exit status."""
    return app.main(define_flags, run, argv, __doc__)
