"""BERT (Devlin et al., 2018): its configuration, the model, and the model with the heads of each task.

A variable's path is its name in the original's checkpoints (`bert/encoder/layer_0/attention/self/query/kernel`), for
every layer makes its variables in `build` from the configuration alone, and the models build in `__init__`.

Shapes: B batch, S sequence, T tokens in a batch without padding, H hidden, A heads, V vocabulary, P masked positions,
C classes, L layers.
"""

import dataclasses
import functools
import json

import keras
import tensorflow as tf

from bert_tf import files
from bert_tf.encoder import Embeddings, Encoder
from bert_tf.errors import UserError
from bert_tf.heads import LinearHead, MaskedLmHead, mean_of_tokens
from bert_tf.layers import dense, dropout, get_activation
from bert_tf.unpadding import Layout, find_token_indices, in_xla


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The numbers that decide a BERT's shape; `bert_config.json` in and out, keys that we do not know kept in `extra`.

    A value of the wrong type or out of range is a `UserError`. Source of the defaults: the original.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    extra: dict = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and (type(value) is not int or value < 1):
                raise UserError(f"{field.name} must be a whole number above 0, not {value!r}")
            if field.type is float:
                fits = type(value) in (int, float) and 0 <= value < 1
                if not fits and not (value is None and field.name.endswith("prob")):
                    raise UserError(f"{field.name} must be a number from 0 to below 1, not {value!r}")
        if not (self.hidden_act is None or isinstance(self.hidden_act, str) or callable(self.hidden_act)):
            raise UserError(f"hidden_act must be a name, not {self.hidden_act!r}")
        get_activation(self.hidden_act)
        if self.hidden_size % self.num_attention_heads:
            raise UserError(f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                            f"{self.num_attention_heads}")

    @classmethod
    def from_dict(cls, json_object):
        """A configuration from a dictionary; every key is kept, `vocab_size` must be there."""
        if not isinstance(json_object, dict):
            raise UserError(f"a configuration is a JSON object, not {type(json_object).__name__}")
        known = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        if "vocab_size" not in json_object:
            raise UserError("vocab_size is missing")
        return cls(**{key: value for key, value in json_object.items() if key in known},
                   extra={key: value for key, value in json_object.items() if key not in known})

    @classmethod
    def from_json_file(cls, json_file):
        """A configuration from a `bert_config.json`; what is wrong with it is a `UserError` that names the file."""
        try:
            return cls.from_dict(files.read_json_object(json_file))
        except UserError as error:
            raise UserError(str(error) if str(json_file) in str(error) else f"{json_file}: {error}") from error

    def to_dict(self):
        """Every value by its name, those that we do not know included."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "extra"}
        return {**values, **self.extra}

    def to_json_string(self):
        """The text of a `bert_config.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


@keras.saving.register_keras_serializable("bert_tf")
class BertModel(keras.Model):
    """The encoder with its embeddings and pooler.

    `model(input_ids, input_mask=None, token_type_ids=None)`, int32 [B, S] each (a mask of ones, types of zeros where
    left out), or one dictionary of them -> a dictionary:

      embedding_output    [B, S, H]
      all_encoder_layers  L times [B, S, H]
      sequence_output     [B, S, H], the last layer
      pooled_output       [B, H], tanh of a dense layer over the first token
      attention_probs     L times [B, A, S, S], with `return_attention=True`

    Padding is not computed: where `input_mask` is 0 outputs hold 0 (a sequence that is masked whole is computed whole,
    as the original does). Under XLA, which needs to know all shapes, plain tensors are computed with their padding
    unless `token_indices` int32 [T] says where the tokens are (`find_token_indices`; batches from `bert_tf.batching`
    bring it).

    `output_positions` int32 [B, P]: the last layer is computed at these positions only; `sequence_output` is then
    [B, P, H], and the dictionary holds no [B, S, H].
    `training=True` drops out; `dropout_key` int32 [2] then decides every mask (default: a new one for each call).
    """

    def __init__(self, config, use_one_hot_embeddings=False, name="bert", **kwargs):
        super().__init__(name=name, autocast=False, **kwargs)
        self.config = config
        self.use_one_hot_embeddings = use_one_hot_embeddings
        self.build()

    def build(self, input_shape=None):
        config, policy = self.config, self.dtype_policy
        self.embeddings = Embeddings(config, self.use_one_hot_embeddings, name="embeddings", dtype=policy)
        self.embeddings.build()
        self.encoder = Encoder(config, name="encoder", dtype=policy)
        self.encoder.build()
        with keras.name_scope("pooler"):
            self.pooler = dense(config.hidden_size, config.initializer_range, "tanh", name="dense", dtype=policy)
            self.pooler.build((None, config.hidden_size))
        self.seed_generator = keras.random.SeedGenerator(name="dropout_seed")

    def call(self, input_ids, input_mask=None, token_type_ids=None, token_indices=None, output_positions=None,
             dropout_key=None, return_attention=False, training=False):
        if isinstance(input_ids, dict):
            return self.call(**input_ids, dropout_key=dropout_key, return_attention=return_attention,
                             training=training)
        input_ids = tf.cast(input_ids, tf.int32)
        input_mask = tf.ones_like(input_ids) if input_mask is None else tf.cast(input_mask, tf.int32)
        token_type_ids = tf.zeros_like(input_ids) if token_type_ids is None else tf.cast(token_type_ids, tf.int32)
        self._check_shapes(input_ids, input_mask, token_type_ids)
        dropout_key = self._dropout_key(dropout_key) if training else None
        positions = None if output_positions is None else tf.pad(tf.cast(output_positions, tf.int32), [[0, 0], [1, 0]])
        if token_indices is None and not in_xla():
            token_indices = find_token_indices(input_mask, positions)
        layout = Layout.of(input_mask, token_indices)
        embedded = self._embed(input_ids, token_type_ids, layout, dropout_key)
        layers, attention = self.encoder(embedded, layout=layout, positions=positions, dropout_key=dropout_key,
                                         return_attention=return_attention)
        outputs = self._lay_out(input_mask, layout, embedded, layers, positions)
        if return_attention:
            outputs["attention_probs"] = attention
        return outputs

    def _check_shapes(self, input_ids, input_mask, token_type_ids):
        if input_ids.shape.rank != 2:
            raise UserError(f"input_ids must have two dimensions, [batch, sequence], not {input_ids.shape.rank}")
        for name, array in (("input_mask", input_mask), ("token_type_ids", token_type_ids)):
            if not array.shape.is_compatible_with(input_ids.shape):
                raise UserError(f"{name} has shape {array.shape}, input_ids {input_ids.shape}; they must be the same")
        length, limit = input_ids.shape[1], self.config.max_position_embeddings
        if length is not None and length > limit:
            raise UserError(f"a sequence of {length} tokens is longer than max_position_embeddings, {limit}")

    def _dropout_key(self, dropout_key):
        return tf.cast(self.seed_generator.next(), tf.int32) if dropout_key is None else dropout_key

    def _embed(self, input_ids, token_type_ids, layout, dropout_key):
        batch, length = tf.unstack(tf.shape(input_ids))
        positions = tf.tile(tf.range(length), [batch])
        ids, types, positions = (layout.pack_ids(tf.reshape(places, [-1]))
                                 for places in (input_ids, token_type_ids, positions))
        return self.embeddings(ids, token_type_ids=types, positions=positions, length=length, dropout_key=dropout_key)

    def _lay_out(self, input_mask, layout, embedded, layers, positions):
        """The output dictionary, rows [T, H] laid out as [B, S, H]."""
        batch, length = tf.unstack(tf.shape(input_mask))
        hidden = self.config.hidden_size
        if positions is not None:
            last = tf.reshape(layers[-1], [batch, -1, hidden])
            return {"sequence_output": last[:, 1:], "pooled_output": self.pooler(last[:, 0])}
        kept = (input_mask != 0) | tf.reduce_all(input_mask == 0, axis=1, keepdims=True)

        def lay_out(rows):
            sequence = tf.reshape(layout.unpack(rows), [batch, length, hidden])
            return sequence if layout.token_indices is None else sequence * tf.cast(kept, rows.dtype)[:, :, None]

        first = layout.select(layers[-1], tf.zeros([batch, 1], tf.int32))
        all_encoder_layers = [lay_out(rows) for rows in layers]
        return {"embedding_output": lay_out(embedded), "all_encoder_layers": all_encoder_layers,
                "sequence_output": all_encoder_layers[-1], "pooled_output": self.pooler(first)}

    def get_config(self):
        return {"config": self.config.to_dict(), "use_one_hot_embeddings": self.use_one_hot_embeddings,
                "name": self.name, "dtype": keras.saving.serialize_keras_object(self.dtype_policy)}

    @classmethod
    def from_config(cls, config):
        dtype = keras.saving.deserialize_keras_object(config["dtype"])
        return cls(**{**config, "config": BertConfig.from_dict(config["config"]), "dtype": dtype})


class TaskModel(keras.Model):
    """The encoder, on which a task's head stands; what every such model shares. `SETTINGS` name its own attributes."""

    SETTINGS = ()

    def __init__(self, config, name, **kwargs):
        super().__init__(name=name, autocast=False, **kwargs)
        self.config = config
        self.bert = BertModel(config, dtype=self.dtype_policy)

    def get_config(self):
        return {"config": self.config.to_dict(), **{name: getattr(self, name) for name in self.SETTINGS},
                "name": self.name, "dtype": keras.saving.serialize_keras_object(self.dtype_policy)}

    @classmethod
    def from_config(cls, config):
        dtype = keras.saving.deserialize_keras_object(config["dtype"])
        return cls(**{**config, "config": BertConfig.from_dict(config["config"]), "dtype": dtype})


@keras.saving.register_keras_serializable("bert_tf")
class BertForPreTraining(TaskModel):
    """The encoder with the masked language model and next sentence heads.

    Called as `BertModel`, and with `masked_lm_positions` int32 [B, P]: adds `masked_lm_logits` float32 [B, P, V]
    ([B, S, V] without positions) and `next_sentence_logits` float32 [B, 2] (0: is the next sentence, 1: random) to
    its dictionary.
    """

    def __init__(self, config, name="bert_for_pretraining", **kwargs):
        super().__init__(config, name, **kwargs)
        self.masked_lm = MaskedLmHead(config, dtype=self.dtype_policy)
        self.next_sentence = LinearHead(config, 2, scope=("cls", "seq_relationship"), name="next_sentence",
                                        dtype=self.dtype_policy)
        self.built = True

    def call(self, input_ids, input_mask=None, token_type_ids=None, masked_lm_positions=None, token_indices=None,
             dropout_key=None, training=False):
        if isinstance(input_ids, dict):
            return self.call(**input_ids, dropout_key=dropout_key, training=training)
        outputs = self.bert(input_ids, input_mask, token_type_ids, token_indices=token_indices,
                            output_positions=masked_lm_positions, dropout_key=dropout_key, training=training)
        rows = outputs["sequence_output"]
        logits = self.masked_lm(tf.reshape(rows, [-1, self.config.hidden_size]),
                                table=tf.convert_to_tensor(self.bert.embeddings.word_embeddings))
        batch, positions = tf.unstack(tf.shape(rows)[:2])
        return {**outputs,
                "masked_lm_logits": tf.reshape(logits, [batch, positions, self.config.vocab_size]),
                "next_sentence_logits": self.next_sentence(outputs["pooled_output"])}


@keras.saving.register_keras_serializable("bert_tf")
class BertForClassification(TaskModel):
    """The encoder with a linear classifier over the first token; with one class, a score.

    Called as `BertModel` -> a dictionary: `pooled_output` [B, H] and `logits` float32 [B, C]. `pooling` says what the
    pooler reads: "cls", the first token, at which alone the last layer is then computed, or "mean", the mean of all
    tokens. `dropout_prob` is the classifier's own, whatever the configuration says.
    """

    SETTINGS = ("num_classes", "dropout_prob", "pooling")

    def __init__(self, config, num_classes, dropout_prob=0.1, pooling="cls", name="bert_for_classification", **kwargs):
        super().__init__(config, name, **kwargs)
        self.num_classes = num_classes
        self.dropout_prob = dropout_prob
        self.pooling = pooling
        self.classifier = LinearHead(config, num_classes, name="classifier", dtype=self.dtype_policy)
        self.built = True

    def call(self, input_ids, input_mask=None, token_type_ids=None, token_indices=None, dropout_key=None,
             training=False):
        if isinstance(input_ids, dict):
            return self.call(**input_ids, dropout_key=dropout_key, training=training)
        dropout_key = self.bert._dropout_key(dropout_key) if training else None
        run = functools.partial(self.bert, input_ids, input_mask, token_type_ids, token_indices=token_indices,
                                dropout_key=dropout_key, training=training)
        if self.pooling == "mean":
            pooled_output = self.bert.pooler(mean_of_tokens(run()["sequence_output"], input_mask))
        else:
            no_positions = tf.zeros([tf.shape(input_ids)[0], 0], tf.int32)  # but the first, which is always computed
            pooled_output = run(output_positions=no_positions)["pooled_output"]
        site = 1 + 3 * self.config.num_hidden_layers  # the first dropout site beyond the encoder's
        kept = dropout(pooled_output, self.dropout_prob, dropout_key, site)
        return {"pooled_output": pooled_output, "logits": self.classifier(kept)}


@keras.saving.register_keras_serializable("bert_tf")
class BertForQuestionAnswering(TaskModel):
    """The encoder with a linear head that scores each token as the first and as the last of an answer.

    Called as `BertModel` -> a dictionary of `start_logits` and `end_logits`, float32 [B, S]. For padding they say
    nothing, unless `with_padding`: then it is computed as in the original.
    """

    def __init__(self, config, name="bert_for_question_answering", **kwargs):
        super().__init__(config, name, **kwargs)
        self.span = LinearHead(config, 2, scope=("cls", "squad"), name="span", dtype=self.dtype_policy)
        self.built = True

    def call(self, input_ids, input_mask=None, token_type_ids=None, token_indices=None, with_padding=False,
             dropout_key=None, training=False):
        if isinstance(input_ids, dict):
            return self.call(**input_ids, with_padding=with_padding, dropout_key=dropout_key, training=training)
        batch, length = tf.unstack(tf.shape(input_ids))
        positions = tf.tile(tf.range(length)[None], [batch, 1]) if with_padding else None
        rows = self.bert(input_ids, input_mask, token_type_ids, token_indices=token_indices,
                         output_positions=positions, dropout_key=dropout_key, training=training)["sequence_output"]
        logits = tf.reshape(self.span(tf.reshape(rows, [-1, self.config.hidden_size])), [batch, length, 2])
        return dict(zip(("start_logits", "end_logits"), tf.unstack(logits, axis=2)))


@keras.saving.register_keras_serializable("bert_tf")
class BertForTokenClassification(TaskModel):
    """The encoder with a linear classifier over each token.

    Called as `BertModel` -> a dictionary of `logits` float32 [B, S, C], which say nothing for padding. `dropout_prob`
    is the classifier's own, whatever the configuration says.
    """

    SETTINGS = ("num_classes", "dropout_prob")

    def __init__(self, config, num_classes, dropout_prob=0.1, name="bert_for_token_classification", **kwargs):
        super().__init__(config, name, **kwargs)
        self.num_classes = num_classes
        self.dropout_prob = dropout_prob
        self.classifier = LinearHead(config, num_classes, name="classifier", dtype=self.dtype_policy)
        self.built = True

    def call(self, input_ids, input_mask=None, token_type_ids=None, token_indices=None, dropout_key=None,
             training=False):
        if isinstance(input_ids, dict):
            return self.call(**input_ids, dropout_key=dropout_key, training=training)
        dropout_key = self.bert._dropout_key(dropout_key) if training else None
        rows = self.bert(input_ids, input_mask, token_type_ids, token_indices=token_indices, dropout_key=dropout_key,
                         training=training)["sequence_output"]
        site = 1 + 3 * self.config.num_hidden_layers  # the first dropout site beyond the encoder's
        kept = dropout(tf.reshape(rows, [-1, self.config.hidden_size]), self.dropout_prob, dropout_key, site)
        return {"logits": tf.reshape(self.classifier(kept), [*tf.unstack(tf.shape(input_ids)), self.num_classes])}
