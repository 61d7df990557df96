"""Writes the encoder's vectors for each line of a text file.

A line is an example; `A ||| B` is a pair. The output holds one JSON object a line:
{"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1, "values": [...]}]}]}
"""

import logging

from absl import flags

from bert_tf import files, model_dir
from bert_tf.cli import app, common
from bert_tf.errors import UserError
from bert_tf.model_dir import CONFIG, VOCAB

logger = logging.getLogger("bert_tf")


def main(argv=None):
    """Runs the script; returns the exit status."""
    return app.main(define_flags, run, argv, __doc__)


def define_flags(values):
    string, boolean, integer = flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_integer
    string("input_file", None, "The text, one example a line, a pair as `A ||| B`.", values, required=True)
    string("output_file", None, "The file to write.", values, required=True)
    string("layers", "-1,-2,-3,-4", "Indices of encoder layers, separated by commas; -1 is the last.", values)
    string("bert_config_file", None, f"The model's config (default: {CONFIG} beside the checkpoint).", values)
    integer("max_seq_length", 128, "The most tokens of an example, [CLS] and [SEP] included; longer ones are cut.",
            flag_values=values)
    string("init_checkpoint", None, "The checkpoint: a prefix, one of its files or a folder.", values, required=True)
    string("vocab_file", None, f"The vocabulary (default: {VOCAB} beside the checkpoint).", values)
    boolean("do_lower_case", None, "Lower-case the text: for uncased models. (default: as the model's folder says, "
            "else true)", values)
    integer("batch_size", 32, "Examples computed at once.", lower_bound=1, flag_values=values)
    boolean("use_one_hot_embeddings", False, "Look words up by a product with one-hot rows.", values)
    flags.DEFINE_enum("output_format", "json", ["json", "npz"], "json, a line each; or a NumPy .npz: layer_-1 ... "
                      "[tokens, hidden size], input_ids [tokens], row_splits [lines + 1].", values)
    flags.DEFINE_enum("pooling", "none", ["none", "cls", "mean", "max"], "One vector a line and layer instead of one "
                      "a token: that of [CLS], or the mean or maximum over all tokens.", values)
    boolean("allow_case_mismatch", False, "Go on although casing and vocabulary or model disagree.", values)
    boolean("allow_missing", False, "Leave encoder variables that the checkpoint lacks at their initial values.",
            values)
    common.define(values, common.NOT_ON_TPUS)


def run(values):
    common.note_obsolete(values, common.NOT_ON_TPUS)
    files.check_output(values.output_file, "output_file", [values.input_file])
    app.keep_freed_memory()
    app.load_tensorflow()
    from bert_tf import checkpoint, extraction, modeling

    prefix = model_dir.find(values.init_checkpoint)
    config_file = model_dir.find_file(prefix, CONFIG, values.bert_config_file, "bert_config_file")
    config = modeling.BertConfig.from_json_file(config_file)
    vocab_file = model_dir.find_file(prefix, VOCAB, values.vocab_file, "vocab_file")
    tokenizer = model_dir.load_tokenizer(vocab_file, config, prefix, values.do_lower_case, values.allow_case_mismatch)
    layers = extraction.parse_layers(values.layers, config.num_hidden_layers)
    _check_length(values, config)
    texts = extraction.read_texts(values.input_file)
    model = modeling.BertModel(config, use_one_hot_embeddings=values.use_one_hot_embeddings)
    logger.info("%s", checkpoint.restore(model, prefix, values.allow_missing,
                                                model_dir.uses_averages(prefix)))
    extractor = extraction.Extractor(model, layers, values.batch_size, values.pooling)
    pooled = values.pooling != "none"
    if values.output_format == "json":
        writer = extraction.JsonWriter(values.output_file, layers, tokenizer.inv_vocab, pooled)
    else:
        writer = extraction.NpzWriter(values.output_file, layers, config.hidden_size, pooled)
    counts = extraction.extract(texts, tokenizer, extractor, writer, values.max_seq_length)
    logger.info("%s: %d lines, %d tokens", values.output_file, counts.lines, counts.tokens)
    if counts.truncated:
        logger.info("cut to --max_seq_length=%d: %d lines, %d tokens dropped", values.max_seq_length,
                    counts.truncated, counts.dropped)


def _check_length(values, config):
    from bert_tf import extraction

    if not extraction.MIN_SEQ_LENGTH <= values.max_seq_length <= config.max_position_embeddings:
        raise UserError(f"--max_seq_length={values.max_seq_length}: must lie between {extraction.MIN_SEQ_LENGTH} and "
                        f"the model's max_position_embeddings, {config.max_position_embeddings}")
