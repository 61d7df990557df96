"""A classifier that stays loaded: texts in, names of labels and their probabilities out.

Shapes: N texts, C classes, B batch, S sequence.
"""

import numpy as np
import tensorflow as tf

from bert_tf import batching, checkpoint, model_dir, modeling
from bert_tf.classification import answers, features, tasks
from bert_tf.classification.objective import build_objective
from bert_tf.errors import UserError
from bert_tf.runtime import Runtime, keep_operations_apart

INPUTS = {"input_ids": [None, None], "input_mask": [None, None], "segment_ids": [None, None], "token_indices": [None]}


class Predictor:
    """The classifier in a folder that run_classifier.py left, loaded once to answer many times.

    `predictor([text, (text_a, text_b), ...])` -> a list with a dictionary for each, in the same order:

      label          the name of the likeliest label; or, where a text can have several,
      labels         the names of all with a probability of at least a half
      probabilities  a float for each label's name, in the order of the model's classes
      score          in place of these, where the model predicts a number
      truncated      whether tokens were cut off

    `folder` may be a checkpoint's prefix too. `use_ema` takes the moving averages of the weights. Texts of like length
    share a batch of at most `batch_size`; the same texts in batches of the same size give the same bits as
    run_classifier.py does. It is traced once for all lengths (with `xla` compiled once for each of a few shapes), and
    threads may share it.
    `UserError` for a folder that holds no classifier or one whose head was never trained, and for what is no text.
    """

    def __init__(self, folder, precision="float32", xla=False, batch_size=8, use_ema=False):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        runtime = Runtime(precision=precision, xla=xla, strategy="one")
        prefix = model_dir.find(folder)
        info = _read_info(prefix)
        labels = tuple(info["labels"])
        self.task = tasks.Task(info["task"], {}, labels, kind=info.get("kind", "single" if labels else "regression"))
        self.max_seq_length, self.batch_size = info["max_seq_length"], batch_size
        config_file = model_dir.find_file(prefix, model_dir.CONFIG, None, "bert_config_file")
        self.config = modeling.BertConfig.from_json_file(config_file)
        vocab_file = model_dir.find_file(prefix, model_dir.VOCAB, None, "vocab_file")
        self.tokenizer = model_dir.load_tokenizer(vocab_file, self.config, prefix)
        _check(self.task, self.max_seq_length, self.config, prefix)
        self._sizes = batching.Sizes(self.max_seq_length, xla)
        keep_operations_apart()
        model = modeling.BertForClassification(self.config, self.task.num_classes,
                                               pooling=info.get("pooling", "cls"), dtype=runtime.policy)
        _restore(model, prefix, use_ema)
        self._compute = _build_compute(model, build_objective(self.task), xla)

    def __call__(self, texts):
        pairs = _pairs(texts, self.config)
        made = features.of_texts(pairs, self.tokenizer, self.max_seq_length)
        logits = self.logits(made)
        probabilities = answers.probabilities(logits, self.task.kind).tolist()
        decided = answers.decisions(logits, self.task.kind).tolist()
        return [{**self._answer(*row), "truncated": truncated}
                for *row, truncated in zip(decided, probabilities, made.truncated.tolist())]

    def logits(self, made):
        """The logits float32 [N, C] of `features.Features`."""
        logits = np.zeros([len(made), self.task.num_classes], np.float32)
        order = np.argsort(-made.lengths, kind="stable")
        for start in range(0, len(order), self.batch_size):
            numbers = order[start:start + self.batch_size]
            batch = features.make_batch(made, numbers, self._sizes)
            logits[numbers] = self._compute(**{name: tf.constant(batch[name]) for name in INPUTS})
        return logits

    def _answer(self, decided, probabilities):
        names = self.task.labels
        if self.task.kind == "regression":
            return {"score": decided}
        if self.task.kind == "multi":
            return {"labels": [name for name, holds in zip(names, decided) if holds],
                    "probabilities": dict(zip(names, probabilities))}
        return {"label": names[decided], "probabilities": dict(zip(names, probabilities))}


def _read_info(prefix):
    """What the folder of a checkpoint says of its classifier."""
    info = model_dir.read_info(prefix)
    missing = [name for name in ("task", "labels", "max_seq_length") if name not in info]
    if missing or info.get("kind", "single") not in features.LABEL_TYPES:
        raise UserError(f"{prefix}: not the folder of a classifier ({model_dir.INFO} beside it "
                        f"{'lacks ' + ', '.join(missing) if missing else 'is of a ' + info['kind']}); fine-tune the "
                        "model with run_classifier.py")
    return info


def _check(task, max_seq_length, config, prefix):
    """`UserError` for a folder whose parts contradict each other."""
    info_file = f"{prefix}: {model_dir.INFO} beside it"
    if not all(isinstance(label, str) for label in task.labels):
        raise UserError(f"{info_file} holds labels that are no names")
    if bool(task.labels) != (task.kind != "regression"):
        raise UserError(f"{info_file} says {task.kind}, and {len(task.labels)} labels")
    if not features.MIN_SEQ_LENGTH <= max_seq_length <= config.max_position_embeddings:
        raise UserError(f"{info_file} says max_seq_length {max_seq_length}, which must lie between "
                        f"{features.MIN_SEQ_LENGTH} and the model's {config.max_position_embeddings} positions")


def _restore(model, prefix, use_ema):
    """Gives the model its weights, all of them."""
    report = checkpoint.restore(model, prefix, averaged=use_ema)
    untrained = report.missing + report.misshapen
    if untrained:
        raise UserError(f"{prefix}: a head that was never trained cannot answer: {checkpoint.shorten(untrained)}")


def _build_compute(model, objective, xla):
    """A function of a batch's `INPUTS` -> logits float32 [B, C], traced here once and for all shapes."""
    @tf.function(jit_compile=xla, input_signature=[tf.TensorSpec(shape, tf.int32, name)
                                                   for name, shape in INPUTS.items()])
    def compute(*inputs):
        return objective.forward(model, dict(zip(INPUTS, inputs)))["logits"]

    return compute.get_concrete_function()


def _pairs(texts, config):
    """`(text_a, text_b or None)` of each text or pair."""
    if isinstance(texts, (str, bytes, tuple)):
        raise UserError("give a list of texts, also of a single one or a single pair: [text] or [(text_a, text_b)]")
    pairs = []
    for number, text in enumerate(texts, start=1):
        pair = (text, None) if isinstance(text, str) else tuple(text) if isinstance(text, (tuple, list)) else ()
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], (str, type(None))):
            raise UserError(f"text {number} is {text!r:.100}, neither a text nor a pair of texts")
        if pair[1] is not None and config.type_vocab_size < 2:
            raise UserError(f"text {number} is a pair, the model has one segment (type_vocab_size in its config)")
        pairs.append(pair)
    return pairs
