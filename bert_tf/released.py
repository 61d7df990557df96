"""The models that Google released with the original, and which of them a checkpoint's shapes fit."""

import dataclasses

ADDRESS = "https://storage.googleapis.com/bert_models"
ALL_MINIATURES = f"{ADDRESS}/2020_02_20/all_bert_models.zip"

# A vocabulary is cased when more than this share of its pieces (bracketed ones aside) holds upper case, and Chinese
# when more than this share holds Han characters. Counted: English cased 29 %, English uncased and Chinese 0.01 % upper
# case; Chinese 70 %, English at most 1.7 % Han.
_CASED_SHARE = 0.01
_CHINESE_SHARE = 0.4


@dataclasses.dataclass(frozen=True)
class Released:
    """One released model. Intermediate size is four times the hidden size; 512 positions, 2 token types."""

    name: str
    date: str
    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    cased: bool
    text: str = "English"
    whole_word_masking: bool = False

    @property
    def url(self):
        return f"{ADDRESS}/{self.date}/{self.name}.zip"

    @property
    def shapes(self):
        """`(V, L, H, intermediate size, positions, token types)`, what a checkpoint's shapes tell."""
        return (self.vocab_size, self.num_hidden_layers, self.hidden_size, 4 * self.hidden_size, 512, 2)

    @property
    def parameters(self):
        """Of the encoder and the pooler, without the pretraining heads."""
        width = self.hidden_size
        embeddings = (self.vocab_size + 512 + 2 + 2) * width
        layer = 4 * (width + 1) * width + 2 * width + (width + 1) * 4 * width + (4 * width + 1) * width + 2 * width
        return embeddings + self.num_hidden_layers * layer + (width + 1) * width


UNCASED, CASED, MULTILINGUAL, MULTI_CASED, CHINESE = 30522, 28996, 105879, 119547, 21128

MODELS = (
    Released("uncased_L-12_H-768_A-12", "2018_10_18", UNCASED, 12, 768, 12, cased=False),
    Released("uncased_L-24_H-1024_A-16", "2018_10_18", UNCASED, 24, 1024, 16, cased=False),
    Released("cased_L-12_H-768_A-12", "2018_10_18", CASED, 12, 768, 12, cased=True),
    Released("cased_L-24_H-1024_A-16", "2018_10_18", CASED, 24, 1024, 16, cased=True),
    Released("multi_cased_L-12_H-768_A-12", "2018_11_23", MULTI_CASED, 12, 768, 12, cased=True, text="104 languages"),
    Released("multilingual_L-12_H-768_A-12", "2018_11_03", MULTILINGUAL, 12, 768, 12, cased=False,
             text="102 languages (multi_cased is recommended instead)"),
    Released("chinese_L-12_H-768_A-12", "2018_11_03", CHINESE, 12, 768, 12, cased=False, text="Chinese"),
    Released("wwm_uncased_L-24_H-1024_A-16", "2019_05_30", UNCASED, 24, 1024, 16, cased=False,
             whole_word_masking=True),
    Released("wwm_cased_L-24_H-1024_A-16", "2019_05_30", CASED, 24, 1024, 16, cased=True, whole_word_masking=True),
)

MINIATURE_LAYERS = (2, 4, 6, 8, 10, 12)
MINIATURE_SIZES = (128, 256, 512, 768)
MINIATURES = tuple(
    Released(f"uncased_L-{layers}_H-{size}_A-{size // 64}", "2020_02_20", UNCASED, layers, size, size // 64,
             cased=False)
    for layers in MINIATURE_LAYERS for size in MINIATURE_SIZES
)


def matching(vocab_size, num_hidden_layers, hidden_size, intermediate_size, max_position_embeddings, type_vocab_size,
             vocab=None):
    """The released models, oldest first, that these sizes fit; with a vocabulary (pieces) only those it fits too."""
    shapes = (vocab_size, num_hidden_layers, hidden_size, intermediate_size, max_position_embeddings, type_vocab_size)
    fitting = [model for model in MODELS + MINIATURES if model.shapes == shapes]
    if vocab is None:
        return fitting
    pieces = list(vocab)
    upper, han = _shares(pieces)
    return [
        model for model in fitting
        if len(pieces) == model.vocab_size and (upper > _CASED_SHARE) == model.cased
        and (han > _CHINESE_SHARE) == (model.text == "Chinese")
    ]


def _shares(pieces):
    """The shares of pieces that hold upper case and Han characters; bracketed ones such as [CLS] do not count."""
    pieces = [piece for piece in pieces if not (piece.startswith("[") and piece.endswith("]"))]
    upper = sum(any(map(str.isupper, piece)) for piece in pieces)
    han = sum(any("\u4e00" <= char <= "\u9fff" for char in piece) for piece in pieces)
    return upper / max(1, len(pieces)), han / max(1, len(pieces))
