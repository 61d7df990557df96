"""The table of released models: addresses, sizes, and what a checkpoint's shapes and vocabulary tell apart."""

import pathlib

import pytest

from bert_tf import files, released

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"
BASE = (12, 768, 3072, 512, 2)
LARGE = (24, 1024, 4096, 512, 2)


def names(*sizes, vocab=None):
    return [(model.name, model.date) for model in released.matching(*sizes, vocab=vocab)]


def test_there_are_thirty_three_with_an_address_each():
    models = released.MODELS + released.MINIATURES
    assert len(models) == 33 and len({model.url for model in models}) == 33
    assert released.MODELS[0].url == (
        "https://storage.googleapis.com/bert_models/2018_10_18/uncased_L-12_H-768_A-12.zip")
    assert released.MINIATURES[0].url == (
        "https://storage.googleapis.com/bert_models/2020_02_20/uncased_L-2_H-128_A-2.zip")
    assert {model.date for model in models} == {"2018_10_18", "2018_11_03", "2018_11_23", "2019_05_30", "2020_02_20"}


@pytest.mark.parametrize("model", released.MODELS + released.MINIATURES, ids=lambda model: model.url[48:-4])
def test_a_name_says_layers_sizes_and_heads(model):
    assert model.name.endswith(f"_L-{model.num_hidden_layers}_H-{model.hidden_size}_A-{model.num_attention_heads}")
    assert model.hidden_size == 64 * model.num_attention_heads
    assert model.cased == ("cased" in model.name.replace("uncased", ""))


def test_parameter_counts_are_the_published_ones():
    by_name = {model.name: model.parameters for model in released.MODELS}
    assert by_name["uncased_L-12_H-768_A-12"] == 109_482_240
    assert by_name["uncased_L-24_H-1024_A-16"] == by_name["wwm_uncased_L-24_H-1024_A-16"] == 335_141_888


def test_sizes_find_every_model_that_fits():
    base = "uncased_L-12_H-768_A-12"
    assert names(30522, *BASE) == [(base, "2018_10_18"), (base, "2020_02_20")]
    assert [name for name, _ in names(28996, *LARGE)] == ["cased_L-24_H-1024_A-16", "wwm_cased_L-24_H-1024_A-16"]
    assert [name for name, _ in names(119547, *BASE)] == ["multi_cased_L-12_H-768_A-12"]
    assert [name for name, _ in names(105879, *BASE)] == ["multilingual_L-12_H-768_A-12"]
    assert [name for name, _ in names(21128, *BASE)] == ["chinese_L-12_H-768_A-12"]
    assert [name for name, _ in names(30522, 2, 128, 512, 512, 2)] == ["uncased_L-2_H-128_A-2"]
    assert names(30522, 12, 768, 3072, 512, 16) == names(30522, 3, 128, 512, 512, 2) == []


@pytest.mark.parametrize(("folder", "size", "fits"), [
    ("bert-base-uncased", 30522, "uncased_L-12_H-768_A-12"), ("bert-base-cased", 28996, "cased_L-12_H-768_A-12"),
    ("bert-base-chinese", 21128, "chinese_L-12_H-768_A-12"),
])
def test_the_released_vocabularies_fit_their_models(shared, folder, size, fits):
    vocab = [line for _, line in files.read_lines(shared(f"vocab/{folder}/vocab.txt"))]
    assert names(size, *BASE, vocab=vocab)[0][0] == fits


def test_a_vocabulary_of_the_other_casing_fits_none():
    assert names(30522, *BASE, vocab=["[CLS]"] * 522 + ["Word"] * 30000) == []
    assert names(28996, *BASE, vocab=["word"] * 28996) == []
    assert names(21128, *BASE, vocab=["word"] * 21128) == []


def markdown():
    """The README's two tables: the larger models by name, the miniatures by layers and hidden size."""
    lines = ["| model | text | casing | L | H | A | vocabulary | parameters |", "| --- | --- | --- |" + " ---: |" * 5]
    for model in released.MODELS:
        text = model.text + (", whole word masking" if model.whole_word_masking else "")
        casing = "cased" if model.cased else "uncased"
        numbers = (model.num_hidden_layers, model.hidden_size, model.num_attention_heads, model.vocab_size,
                   model.parameters)
        cells = " | ".join(f"{number:,}" if number > 9999 else str(number) for number in numbers)
        lines.append(f"| [{model.name}]({model.url}) | {text} | {casing} | {cells} |")
    lines += ["", "| uncased English miniatures |" + "".join(f" H={size} |" for size in released.MINIATURE_SIZES),
              "| --- |" + " --- |" * len(released.MINIATURE_SIZES)]
    for layers in released.MINIATURE_LAYERS:
        row = [model for model in released.MINIATURES if model.num_hidden_layers == layers]
        lines.append(f"| L={layers} |" + "".join(f" [{layers}/{model.hidden_size}]({model.url}) |" for model in row))
    lines += ["", f"All miniatures in one file: [all_bert_models.zip]({released.ALL_MINIATURES})"]
    return "\n".join(lines) + "\n"


def test_the_readme_holds_every_model_with_its_address():
    table = markdown()
    for model in released.MODELS + released.MINIATURES:
        assert f"]({model.url})" in table
    assert table in README.read_text(encoding="utf-8")
