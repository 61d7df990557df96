"""The layers of the encoder: embeddings, attention, feed-forward.

Inside the encoder activations are [T, H]: one row for each token that is not padding. Attention alone sees [B, S].
Every layer makes its variables in `build` from the configuration alone; their paths are the original's names.

Shapes: B batch, S sequence, T tokens in a batch without padding, N rows, I their width, H hidden, A heads, D head
size, Q positions that attend (S, or the few that a head reads), L layers.
"""

import functools

import keras
import tensorflow as tf

from bert_tf.layers import ExactLayer, LayerNorm, create_initializer, dense, dropout, get_activation


class Embeddings(ExactLayer):
    """The sum of word, type and position embeddings, normalised: ids [N] -> [N, H] of the compute dtype."""

    def __init__(self, config, use_one_hot_embeddings=False, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.use_one_hot_embeddings = use_one_hot_embeddings

    def build(self, input_shape=None):
        config = self.config
        for name, rows in (("word_embeddings", config.vocab_size), ("token_type_embeddings", config.type_vocab_size),
                           ("position_embeddings", config.max_position_embeddings)):
            setattr(self, name, self.add_weight(name=name, shape=(rows, config.hidden_size),
                                                initializer=create_initializer(config.initializer_range)))
        self.layer_norm = LayerNorm(name="LayerNorm", dtype=self.dtype_policy)
        self.layer_norm.build((None, config.hidden_size))

    def call(self, input_ids, token_type_ids, positions, length, dropout_key=None):
        config = self.config
        # The tables stay float32: casting one whole would cost more than casting the rows that are read.
        if self.use_one_hot_embeddings:
            words = tf.one_hot(input_ids, config.vocab_size) @ self.word_embeddings
        else:
            words = tf.gather(tf.convert_to_tensor(self.word_embeddings), input_ids)
        # The small tables' gradients must be dense, as the original's are: the clip norm depends on it.
        types = tf.one_hot(token_type_ids, config.type_vocab_size) @ self.token_type_embeddings
        places = tf.gather(tf.convert_to_tensor(self.position_embeddings)[:length], positions)
        rows = self.layer_norm(words + types + places)
        return dropout(rows, config.hidden_dropout_prob, dropout_key, site=0)


class SelfAttention(ExactLayer):
    """Scaled dot-product attention of many heads (Vaswani et al., 2017), without the output projection.

    `attention(rows, layout=layout)`: queries, keys and values come from rows [T, H] -> context [T, H], probabilities
    [B, A, S, S]. With `queries` [B * Q, H] only these attend -> [B * Q, H], [B, A, Q, S].
    """

    def __init__(self, config, site, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.site = site

    def build(self, input_shape=None):
        config = self.config
        for name in ("query", "key", "value"):
            projection = dense(config.hidden_size, config.initializer_range, name=name, dtype=self.dtype_policy)
            projection.build((None, config.hidden_size))
            setattr(self, name, projection)

    def call(self, rows, layout, queries=None, dropout_key=None):
        config = self.config
        head_size = config.hidden_size // config.num_attention_heads
        batch = tf.shape(layout.bias)[0]

        def heads(x):  # [B * Q, H] -> [B, A, Q, D]
            split = tf.reshape(x, [batch, -1, config.num_attention_heads, head_size])
            return tf.transpose(split, [0, 2, 1, 3])

        query = layout.unpack(self.query(rows)) if queries is None else self.query(queries)
        query = heads(query * tf.cast(head_size ** -0.5, query.dtype))
        key, value = (heads(layout.unpack(projection(rows))) for projection in (self.key, self.value))
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) + layout.bias
        probabilities = tf.nn.softmax(scores)
        kept = dropout(tf.cast(probabilities, rows.dtype), config.attention_probs_dropout_prob, dropout_key, self.site)
        context = tf.transpose(tf.matmul(kept, value), [0, 2, 1, 3])
        context = tf.reshape(context, [-1, config.hidden_size])
        return layout.pack(context) if queries is None else context, probabilities


class AddAndNorm(ExactLayer):
    """A dense layer, dropout, the residual connection and LayerNorm: rows [N, I], residual [N, H] -> [N, H]."""

    def __init__(self, config, input_size, site, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.input_size = input_size
        self.site = site

    def build(self, input_shape=None):
        config = self.config
        self.dense = dense(config.hidden_size, config.initializer_range, name="dense", dtype=self.dtype_policy)
        self.dense.build((None, self.input_size))
        self.layer_norm = LayerNorm(name="LayerNorm", dtype=self.dtype_policy)
        self.layer_norm.build((None, config.hidden_size))

    def call(self, rows, residual, dropout_key=None):
        rows = dropout(self.dense(rows), self.config.hidden_dropout_prob, dropout_key, self.site)
        return self.layer_norm(rows + residual)


class EncoderLayer(ExactLayer):
    """One block of the encoder: attention and a feed-forward layer, each added to its input and normalised.

    `layer(rows [T, H], layout)` -> rows [T, H], attention probabilities [B, A, S, S]. With `positions` int32 [B, Q]
    only these are computed: rows [B * Q, H], probabilities [B, A, Q, S].
    """

    def __init__(self, config, index, **kwargs):
        super().__init__(name=f"layer_{index}", **kwargs)
        self.config = config
        self.index = index

    def build(self, input_shape=None):
        config, policy = self.config, self.dtype_policy
        site = 1 + 3 * self.index  # dropout sites: 0 in the embeddings, then three a layer
        with keras.name_scope("attention"):
            self.attention = SelfAttention(config, site, name="self", dtype=policy)
            self.attention.build()
            self.attention_output = AddAndNorm(config, config.hidden_size, site + 1, name="output", dtype=policy)
            self.attention_output.build()
        with keras.name_scope("intermediate"):
            self.intermediate = dense(config.intermediate_size, config.initializer_range,
                                      get_activation(config.hidden_act), name="dense", dtype=policy)
            self.intermediate.build((None, config.hidden_size))
        self.feed_forward_output = AddAndNorm(config, config.intermediate_size, site + 2, name="output", dtype=policy)
        self.feed_forward_output.build()

    def call(self, rows, layout, positions=None, dropout_key=None):
        queries = None if positions is None else layout.select(rows, positions)
        context, probabilities = self.attention(rows, layout=layout, queries=queries, dropout_key=dropout_key)
        rows = self.attention_output(context, rows if queries is None else queries, dropout_key=dropout_key)
        return self.feed_forward_output(self.intermediate(rows), rows, dropout_key=dropout_key), probabilities


class Encoder(ExactLayer):
    """The stack of L layers: rows [T, H] -> the rows after each layer, the attention probabilities of each layer.

    `recompute`, set before a program is traced, saves memory for time: between the passes only the rows are kept, and
    the backward pass computes the activations of a layer again. Probabilities are then None, unless
    `return_attention`: then nothing is recomputed.
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.recompute = False

    def build(self, input_shape=None):
        self.encoder_layers = [EncoderLayer(self.config, index, dtype=self.dtype_policy)
                               for index in range(self.config.num_hidden_layers)]
        for layer in self.encoder_layers:
            layer.build()

    def call(self, rows, layout, positions=None, dropout_key=None, return_attention=False):
        outputs, attention = [], []
        for layer in self.encoder_layers:
            last = layer is self.encoder_layers[-1]
            run = functools.partial(layer, layout=layout, positions=positions if last else None)
            if self.recompute and not return_attention:
                rows, probabilities = _recomputed(run, rows, dropout_key), None
            else:
                rows, probabilities = run(rows, dropout_key=dropout_key)
            outputs.append(rows)
            attention.append(probabilities)
        return outputs, attention


def _recomputed(run, rows, dropout_key):
    """The rows of `run(rows, dropout_key=...)`, without keeping what is needed for their gradient."""

    @tf.recompute_grad
    def forward(rows):
        # The key must depend on the rows, or the masks of all layers are drawn ahead and kept; XLA would leave out a
        # dependency that it can prove to be none. Where the rows are not numbers the masks do not matter.
        key = None if dropout_key is None else dropout_key + tf.cast(tf.math.is_nan(rows[0, 0]), tf.int32)
        return run(rows, dropout_key=key)[0]

    # A gather above gives a sparse gradient, which `recompute_grad` does not take.
    dense = tf.custom_gradient(lambda rows: (tf.identity(rows), tf.convert_to_tensor))
    return dense(forward(rows))
