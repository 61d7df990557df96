import dataclasses
import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import batching, feature_cache, tokenization
from bert_tf.errors import UserError
from bert_tf.squad import examples, features
from bert_tf.squad.examples import Context, SquadExample

VOCABULARIES = {"en": "checkpoints/minilm_l6/vocab.txt", "zh": "vocab/bert-base-chinese/vocab.txt",
                "tiny": "goldens/tiny_ckpt/vocab.txt"}
FIRST_UNIQUE_ID = 1000000000
RUNS = [(name, number) for name in ("train-v1.1", "train-v2.0", "dev-v1.1", "dev-v2.0")
        for number in range(4 if "v1.1" in name else 3)]


@pytest.fixture(scope="module")
def recorded(shared):
    found = {}
    for name in {name for name, _ in RUNS}:
        with gzip.open(shared(f"goldens/squad/features_{name}.json.gz")) as file:
            found[name] = json.load(file)
    return found


@pytest.fixture(scope="module")
def tokenizers(shared):
    return {(vocab, lower): tokenization.FullTokenizer(shared(VOCABULARIES[vocab]), lower)
            for vocab, lower in (("en", True), ("en", False), ("zh", True))}


def original_fields(made, number, rows, tokenizer, is_training, max_seq_length):
    """What the original's `InputFeatures` holds of a window."""
    begin, end = made.row_splits[number], made.row_splits[number + 1]
    ids, words, best = made.input_ids[begin:end].tolist(), made.words[begin:end], made.is_max_context[begin:end]
    first, example_number = made.first_lengths[number], int(made.example_numbers[number])
    padding = [0] * (max_seq_length - len(ids))
    positions = made.start_positions[number], made.end_positions[number]
    return {"unique_id": FIRST_UNIQUE_ID + number, "example_index": example_number,
            "doc_span_index": number - int(np.searchsorted(made.example_numbers, example_number)),
            "tokens": tokenizer.convert_ids_to_tokens(ids),
            "token_to_orig_map": {str(at): word for at, word in enumerate(words.tolist()) if word >= 0},
            "token_is_max_context": {str(at): bool(best[at]) for at, word in enumerate(words) if word >= 0},
            "input_ids": ids + padding, "input_mask": [1] * len(ids) + padding,
            "segment_ids": [0] * first + [1] * (len(ids) - first) + padding,
            "start_position": int(positions[0]) if is_training else None,
            "end_position": int(positions[1]) if is_training else None,
            "is_impossible": is_training and rows[example_number].is_impossible}


@pytest.mark.parametrize("name, number", RUNS)
def test_recorded_features(shared, recorded, tokenizers, name, number):
    file, run = recorded[name], recorded[name]["runs"][number]
    path, is_training = shared(f"goldens/squad/{name}.json"), file["is_training"]
    kept = {row["qas_id"] for row in file["examples"]}  # the original does not find every answer that ours finds
    rows = [row for row in examples.read(path, is_training, file["version_2_with_negative"]) if row.qas_id in kept]
    tokenizer, length = tokenizers[run["vocab"], run["do_lower_case"]], run["max_seq_length"]
    made = features.convert(rows, path, tokenizer, length, run["doc_stride"], run["max_query_length"], is_training)
    assert len(made) == len(run["features"])
    for window, wanted in enumerate(run["features"]):
        assert original_fields(made, window, rows, tokenizer, is_training, length) == wanted
