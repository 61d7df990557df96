"""A tagger's logits and loss, computed again in NumPy, and the same without padding."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import batching, modeling
from bert_tf.tagging.objective import LOSS, Objective

CONFIG = modeling.BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                             intermediate_size=32, max_position_embeddings=32, type_vocab_size=2,
                             initializer_range=0.3)


@pytest.fixture(scope="module")
def model():
    return modeling.BertForTokenClassification(CONFIG, 5)


@pytest.fixture(scope="module")
def batch():
    """Four rows of 32 to 3 tokens, about half of which have a label; the last row does not count."""
    rng = np.random.RandomState(3)
    mask = (np.arange(32) < np.array([[32], [20], [3], [9]])).astype(np.int32)
    labels = np.where(rng.randint(0, 2, mask.shape) * mask, rng.randint(0, 5, mask.shape), -1).astype(np.int32)
    return {"input_ids": rng.randint(5, 60, mask.shape).astype(np.int32) * mask, "input_mask": mask,
            "segment_ids": np.zeros_like(mask), "label_ids": labels,
            "example_weights": np.array([1, 1, 1, 0], np.float32)}


@pytest.mark.parametrize("xla", [False, True])
def test_the_loss_is_the_mean_over_words_that_have_a_label(model, batch, xla):
    objective = Objective(5)

    @tf.function(jit_compile=xla)
    def compute(batch):
        outputs = objective.forward(model, batch)
        return (outputs["logits"], objective.sums(outputs, batch)[LOSS], objective.weights(batch)[LOSS],
                objective.accuracy_sums(outputs, batch)[LOSS])

    places = np.arange(batch["input_ids"].size, dtype=np.int32)
    logits, *found = compute({**batch, "token_indices": places})
    counted = (batch["label_ids"] >= 0) & (batch["example_weights"][:, None] > 0)
    rows, labels = logits.numpy().astype(np.float64)[counted], batch["label_ids"][counted]
    losses = np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(rows)), labels]
    expected = [losses.sum(), counted.sum(), (rows.argmax(axis=1) == labels).sum()]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    cut = batching.unpad({name: batch[name] for name in batch if name != "label_ids"}, batching.Sizes(32, xla))
    unpadded, *again = compute({**cut, "label_ids": batch["label_ids"][:, :cut["input_ids"].shape[1]]})
    np.testing.assert_allclose(again, expected, rtol=1e-6)
    np.testing.assert_allclose(unpadded.numpy()[counted], logits.numpy()[counted], rtol=0, atol=1e-6)


def test_a_copy_is_the_same_and_names_are_the_classifiers(model, batch):
    assert {"output_weights", "output_bias"} <= {weight.path for weight in model.weights}
    again = modeling.BertForTokenClassification.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(batch["input_ids"])["logits"],
                                  model({"input_ids": batch["input_ids"]})["logits"])
