"""Shows what a pretrained BERT puts in the place of [MASK].

    python scripts/fill_masks.py --init_checkpoint=FOLDER "Paris is the [MASK] of France." ["..." ...]

Works with any checkpoint that holds the masked language model head, the original released ones too.
"""

import sys

from absl import flags

from bert_tf import model_dir, tokenization
from bert_tf.cli import app
from bert_tf.errors import UserError

MASK = "[MASK]"


def define_flags(values):
    flags.DEFINE_string("init_checkpoint", None, "The checkpoint: a prefix, one of its files or a folder.", values,
                        required=True)
    flags.DEFINE_string("bert_config_file", None, "The model's config (default: bert_config.json beside the "
                        "checkpoint).", values)
    flags.DEFINE_string("vocab_file", None, "The vocabulary (default: vocab.txt beside the checkpoint).", values)
    flags.DEFINE_bool("do_lower_case", None, "Lower-case the text: for uncased models (default: as the model's folder "
                      "says, else true).", values)
    flags.DEFINE_integer("top_k", 5, "How many fillers to show.", lower_bound=1, flag_values=values)


class MaskFiller:
    """A model, its heads and its vocabulary, loaded once to fill many masks. Errors as `checkpoint.restore`."""

    def __init__(self, init_checkpoint, bert_config_file=None, vocab_file=None, do_lower_case=None):
        from bert_tf import checkpoint, modeling

        prefix = model_dir.find(init_checkpoint)
        config_file = model_dir.find_file(prefix, model_dir.CONFIG, bert_config_file, "bert_config_file")
        vocab_file = model_dir.find_file(prefix, model_dir.VOCAB, vocab_file, "vocab_file")
        self.config = modeling.BertConfig.from_json_file(config_file)
        self.tokenizer = make_tokenizer(prefix, vocab_file, do_lower_case)
        if self.tokenizer.vocab_size > self.config.vocab_size:
            raise UserError(f"{vocab_file} has {self.tokenizer.vocab_size} pieces, vocab_size in {config_file} is "
                            f"{self.config.vocab_size}; use the vocabulary that the model was trained with")
        self.model = modeling.BertForPreTraining(self.config)
        report = checkpoint.restore(self.model, prefix)
        # The next sentence head is not looked at; some released models lack it.
        untrained = [name for name in report.missing + [row[0] for row in report.misshapen]
                     if name.startswith("cls/predictions/")]
        if untrained:
            raise UserError(f"{prefix}: no masked language model head to fill masks with, it lacks "
                            f"{checkpoint.shorten(untrained)}; take a checkpoint from pretraining")

    def fill(self, text, top_k):
        """For every [MASK] of `text`, from left to right, its `top_k` fillers as a list of (piece, probability)."""
        import numpy as np
        import tensorflow as tf

        ids, positions = self.encode(text)
        logits = self.model(np.array([ids]), masked_lm_positions=np.array([positions]))["masked_lm_logits"][0]
        # Ids beyond the vocabulary stand for nothing; [UNK] and its like are no fillers, but keep their probability.
        probabilities = tf.nn.softmax(logits[:, :self.tokenizer.vocab_size]).numpy()
        special = [self.tokenizer.vocab[token] for token in tokenization.SPECIAL_TOKENS]
        fillers = []
        for row in probabilities:
            ranked = [number for number in np.argsort(-row, kind="stable") if number not in special]
            fillers.append([(self.tokenizer.inv_vocab[number], float(row[number])) for number in ranked[:top_k]])
        return fillers

    def encode(self, text):
        """`[CLS] text [SEP]` as int32 ids, and the positions of its masks; `UserError` where it cannot be filled."""
        import numpy as np

        require_mask(text)
        vocab = self.tokenizer.vocab
        ids, positions = [vocab["[CLS]"]], []
        for part in text.split(MASK):
            ids += self.tokenizer.encode(part)
            positions.append(len(ids))
            ids.append(vocab[MASK])
        ids[-1] = vocab["[SEP]"]  # after the last part stands no mask
        longest = self.config.max_position_embeddings
        if len(ids) > longest:
            raise UserError(f"{text[:40]!r}... takes {len(ids)} tokens, the model has {longest} positions; shorten it")
        return np.array(ids, np.int32), np.array(positions[:-1], np.int32)


def require_mask(text):
    """`UserError` for a text without a mask."""
    if MASK not in text:
        raise UserError(f"no {MASK} in {text!r}; put it where a word is to be filled in")


def make_tokenizer(prefix, vocab_file, do_lower_case):
    """The checkpoint's tokenizer, with the casing that its folder notes where none is given."""
    info = model_dir.read_info(prefix)
    lowered = info.get("do_lower_case", True) if do_lower_case is None else do_lower_case
    accents = info.get("strip_accents") if lowered == info.get("do_lower_case") else None
    tokenizer = tokenization.FullTokenizer(vocab_file, lowered, accents)
    tokenization.check_casing(tokenizer.vocab, lowered, prefix)
    return tokenizer


def run(values, texts):
    if not texts:
        raise UserError(f'no text is given; write one as an argument: "The {MASK} is open."')
    for text in texts:
        require_mask(text)
    app.load_tensorflow()
    filler = MaskFiller(values.init_checkpoint, values.bert_config_file, values.vocab_file, values.do_lower_case)
    for text in texts:
        print(text)
        for fillers in filler.fill(text, values.top_k):
            print("  " + "  ".join(f"{piece} {probability:.3f}" for piece, probability in fillers))


def main(argv=None):
    """Runs the script and returns its exit status."""
    return app.main(define_flags, run, argv, __doc__, positional=True)


if __name__ == "__main__":
    sys.exit(main())
