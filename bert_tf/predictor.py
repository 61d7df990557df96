"""A fine-tuned model that stays loaded: texts in, names of labels or answers out.

Shapes: N texts, C classes.
"""

import re

from bert_tf import batching, checkpoint, model_dir, modeling
from bert_tf.classification import answers, features, tasks
from bert_tf.classification.objective import build_objective
from bert_tf.errors import UserError
from bert_tf.runtime import Runtime, keep_operations_apart
from bert_tf.squad import answers as squad_answers
from bert_tf.squad import examples as squad_examples
from bert_tf.squad import features as squad_features
from bert_tf.squad import outputs as squad_outputs
from bert_tf.squad.objective import Objective as SquadObjective
from bert_tf.tagging import answers as tagging_answers
from bert_tf.tagging import features as tagging_features
from bert_tf.tagging import scores as tagging_scores
from bert_tf.tagging.objective import Objective as TaggingObjective


class Predictor:
    """The model in a folder that run_classifier.py, run_squad.py or run_ner.py left, loaded once to answer many times.

    `Predictor(folder)` is a `Classifier`, `QuestionAnswerer` or `Tagger`, which say what they take and give. `folder`
    may be a checkpoint's prefix too. `use_ema` takes the moving averages of the weights, or not (None: as the folder
    says). Texts of like length share a batch of at most `batch_size`; the same texts in batches of the same size give
    the same bits as the script does. It is traced once for all lengths (with `xla` compiled once for each of a few
    shapes), and threads may share it.
    `UserError` for a folder of another kind or one whose head was never trained, and for what is no text.
    """

    def __new__(cls, folder, *settings, **named):
        kind = model_dir.read_info(model_dir.find(folder)).get("kind")
        fitting = {QuestionAnswerer.KIND: QuestionAnswerer, Tagger.KIND: Tagger}.get(kind, Classifier)
        return super().__new__(fitting if cls is Predictor else cls)

    def __init__(self, folder, precision="float32", xla=False, batch_size=8, use_ema=None):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        runtime = Runtime(precision=precision, xla=xla, strategy="one")
        prefix = model_dir.find(folder)
        self._info = info = model_dir.read_info(prefix)
        missing = [name for name in self.NEEDED if name not in info]
        if missing:
            raise UserError(f"{prefix}: {model_dir.INFO} beside it lacks {', '.join(missing)}: not the folder of a "
                            f"{type(self).__name__}; fine-tune the model with {self.SCRIPT}")
        self.max_seq_length, self.batch_size = info["max_seq_length"], batch_size
        self.config = modeling.BertConfig.from_json_file(
            model_dir.find_file(prefix, model_dir.CONFIG, None, "bert_config_file"))
        vocab_file = model_dir.find_file(prefix, model_dir.VOCAB, None, "vocab_file")
        self.tokenizer = model_dir.load_tokenizer(vocab_file, self.config, prefix)
        if not model_dir.is_evaluated(info, prefix, use_ema):
            info.pop("null_score_diff_threshold", None)  # found for other weights
        self._take(info, prefix)
        if not self.LEAST <= self.max_seq_length <= self.config.max_position_embeddings:
            raise UserError(f"{prefix}: {model_dir.INFO} beside it says max_seq_length {self.max_seq_length}, which "
                            f"must lie between {self.LEAST} and the model's {self.config.max_position_embeddings} "
                            "positions")
        keep_operations_apart()
        model = self._build_model(info, runtime.policy)
        averaged = model_dir.uses_averages(prefix) if use_ema is None else use_ema
        report = checkpoint.restore(model, prefix, averaged=averaged)
        untrained = report.missing + report.misshapen
        if untrained:
            raise UserError(f"{prefix}: a head that was never trained cannot answer: {checkpoint.shorten(untrained)}")
        self._predict = self._build_predict(model, runtime, batching.Sizes(self.max_seq_length, xla))

    def _take(self, info, prefix):
        """Takes from what the folder says more than every model needs; `UserError` where it contradicts itself."""


class Classifier(Predictor):
    """The `Predictor` on a folder of run_classifier.py.

    `predictor([text, (text_a, text_b), ...])` -> a list with a dictionary for each, in the same order:

      label          the name of the likeliest label; or, where a text can have several,
      labels         the names of all with a probability of at least a half
      probabilities  a float for each label's name, in the order of the model's classes
      score          in place of these, where the model predicts a number
      truncated      whether tokens were cut off
    """

    SCRIPT, NEEDED = "run_classifier.py", ("task", "labels", "max_seq_length")
    LEAST = features.MIN_SEQ_LENGTH

    def __call__(self, texts):
        pairs = _pairs(texts, self.config)
        made = features.of_texts(pairs, self.tokenizer, self.max_seq_length)
        logits = self.logits(made)
        probabilities = answers.probabilities(logits, self.task.kind).tolist()
        decided = answers.decisions(logits, self.task.kind).tolist()
        return [{**self._answer(*row), "truncated": truncated}
                for *row, truncated in zip(decided, probabilities, made.truncated.tolist())]

    def logits(self, made):
        """The logits float32 [N, C] of `classification.features.Features`."""
        return self._predict(made, self.batch_size)

    def _take(self, info, prefix):
        labels, info_file = tuple(info["labels"]), f"{prefix}: {model_dir.INFO} beside it"
        kind = info.get("kind", "single" if labels else "regression")
        if kind not in features.LABEL_TYPES:
            raise UserError(f"{info_file} is of a {kind}, not of a classifier; fine-tune the model with "
                            f"{self.SCRIPT}")
        self.task = tasks.Task(info["task"], {}, labels, kind=kind)
        if bool(labels) != (kind != "regression"):
            raise UserError(f"{info_file} says {kind}, and {len(labels)} labels")

    def _build_model(self, info, policy):
        return modeling.BertForClassification(self.config, self.task.num_classes, pooling=info.get("pooling", "cls"),
                                              dtype=policy)

    def _build_predict(self, model, runtime, sizes):
        return answers.build_predict(model, build_objective(self.task), runtime, sizes)

    def _answer(self, decided, probabilities):
        names = self.task.labels
        if self.task.kind == "regression":
            return {"score": decided}
        if self.task.kind == "multi":
            return {"labels": [name for name, holds in zip(names, decided) if holds],
                    "probabilities": dict(zip(names, probabilities))}
        return {"label": names[decided], "probabilities": dict(zip(names, probabilities))}


class QuestionAnswerer(Predictor):
    """The `Predictor` on a folder of run_squad.py.

    `predictor([(question, context), ...])` -> a list with a dictionary for each, in the same order:

      text                   the answer, as it stands in the context; "" for none
      start, end             its first character in the context and the one behind its last; None for none
      probability            of this answer among the best ones, a float
      no_answer_probability  where the model was trained with --version_2_with_negative: that of none
      truncated              whether the question was cut to the model's max_query_length

    Contexts may be of any length: they are read in overlapping windows.
    """

    KIND = "span"
    SCRIPT, NEEDED = "run_squad.py", ("max_seq_length", "doc_stride", "max_query_length", "version_2_with_negative")
    LEAST = squad_features.SPECIAL + 2

    def __call__(self, texts):
        pairs = _pairs(texts, self.config)
        if not all(context is not None for _, context in pairs):
            raise UserError("give pairs of a question and a context: [(question, context), ...]")
        asked = [squad_examples.SquadExample(str(number), question, squad_examples.Context.of(context))
                 for number, (question, context) in enumerate(pairs)]
        limit = self._info["max_query_length"]
        made = squad_features.of_examples(asked, self.tokenizer, self.max_seq_length, self._info["doc_stride"], limit)
        logits = self._predict(made, self.batch_size)
        found = squad_answers.find(asked, made, self.tokenizer, *logits, self._settings)
        return [{**self._describe(answer), "truncated": len(self.tokenizer.encode(question)) > limit}
                for answer, (question, _) in zip(found, pairs)]

    def _take(self, info, prefix):
        squad_features.check_lengths(self.max_seq_length, info["doc_stride"], info["max_query_length"])
        self._settings = squad_answers.Settings(
            version_2_with_negative=info["version_2_with_negative"], answer_text="offsets",
            null_score_diff_threshold=info.get("null_score_diff_threshold", 0.0))

    def _build_model(self, info, policy):
        return modeling.BertForQuestionAnswering(self.config, dtype=policy)

    def _build_predict(self, model, runtime, sizes):
        return squad_outputs.build_predict(model, SquadObjective(), runtime, sizes)

    def _describe(self, answer):
        start, end = answer.span or (None, None)
        found = {"text": answer.text, "start": start, "end": end, "probability": answer.probability}
        if self._settings.version_2_with_negative:
            found["no_answer_probability"] = answer.null_probability
        return found


class Tagger(Predictor):
    """The `Predictor` on a folder of run_ner.py.

    `predictor([text, [word, ...], ...])` -> a list with a dictionary for each, in the same order. A text is split at
    white space; words may be given as a list instead. Each is a document of its own, also for a model that was trained
    with --document_context.

      words          the words
      labels         the likeliest label of each
      probabilities  the probability of that
      entities       of labels that make entities: a dictionary for each, with its `type`, its `text` (words joined by
                     blanks), `start` and `end`, its first character in the text and the one behind its last (of words
                     given as a list: word numbers), and `score`, the least probability of its labels
    """

    KIND = "tags"
    SCRIPT, NEEDED = "run_ner.py", ("max_seq_length", "doc_stride", "labels", "scheme")
    LEAST = tagging_features.SPECIAL + 1

    def __call__(self, texts):
        if isinstance(texts, (str, bytes)):
            raise UserError("give a list of texts, also of a single one: [text] or [[word, ...]]")
        asked = [_words(number, text) for number, text in enumerate(texts, start=1)]
        made = tagging_features.of_sentences([words for words, _ in asked], self.tokenizer, self.max_seq_length,
                                             self._info["doc_stride"])
        probabilities = tagging_answers.probabilities(self._predict(made, self.batch_size))
        decided = tagging_answers.decisions(probabilities)
        likely = probabilities.max(axis=1, initial=0.0).tolist()
        found, place = [], 0
        for words, spans in asked:
            here = slice(place, place := place + len(words))
            labels = [self._info["labels"][number] for number in decided[here].tolist()]
            found.append(self._describe(words, spans, labels, likely[here]))
        return found

    def _take(self, info, prefix):
        tagging_features.check_lengths(self.max_seq_length, info["doc_stride"])
        if not info["labels"]:
            raise UserError(f"{prefix}: {model_dir.INFO} beside it names no labels")

    def _build_model(self, info, policy):
        return modeling.BertForTokenClassification(self.config, len(info["labels"]), dtype=policy)

    def _build_predict(self, model, runtime, sizes):
        return tagging_answers.build_predict(model, TaggingObjective(len(self._info["labels"])), runtime, sizes)

    def _describe(self, words, spans, labels, likely):
        found = {"words": words, "labels": labels, "probabilities": likely}
        if self._info["scheme"] == tagging_scores.PLAIN:
            return found
        entities = [{"type": entity.type, "text": " ".join(words[entity.start:entity.end]),
                     "start": spans[entity.start][0], "end": spans[entity.end - 1][1],
                     "score": min(likely[entity.start:entity.end])} for entity in tagging_answers.entities(labels)]
        return {**found, "entities": entities}


def _words(number, text):
    """The words of a text or a list of words, and where each begins and ends in it."""
    if isinstance(text, str):
        found = list(re.finditer(r"\S+", text))
        return [word[0] for word in found], [word.span() for word in found]
    if not isinstance(text, (list, tuple)) or not all(isinstance(word, str) for word in text):
        raise UserError(f"text {number} is {text!r:.100}, neither a text nor a list of words")
    return list(text), [(place, place + 1) for place in range(len(text))]


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
