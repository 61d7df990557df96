import keras
import numpy as np
import pytest

from bert_tf import batching, modeling
from bert_tf.errors import UserError
from bert_tf.pretraining import objective
from bert_tf.runtime import Runtime
from bert_tf.training.evaluation import build_evaluation

SMALL = dict(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
             max_position_embeddings=16, type_vocab_size=2)
NAMES = {"loss", "masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy"}


def make_records(number=12):
    rng = np.random.RandomState(0)
    lengths = rng.randint(8, 17, [number, 1])
    mask = (np.arange(16) < lengths).astype(np.int32)
    return {"input_ids": rng.randint(5, 40, [number, 16]).astype(np.int32) * mask, "input_mask": mask,
            "segment_ids": (np.arange(16) > 5).astype(np.int32) * mask,
            "masked_lm_positions": rng.randint(1, 8, [number, 3]).astype(np.int32),
            "masked_lm_ids": rng.randint(5, 9, [number, 3]).astype(np.int32),
            "masked_lm_weights": (np.arange(3) < rng.randint(1, 4, [number, 1])).astype(np.float32),
            "next_sentence_labels": rng.randint(0, 2, number).astype(np.int32),
            "example_weights": np.ones(number, np.float32)}


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    model = modeling.BertForPreTraining(modeling.BertConfig(**SMALL))
    model.masked_lm.output_bias.assign(np.eye(40, dtype=np.float32)[6] * 2)
    return model


def measure(model, batches, how="unpadded", xla=False):
    records = make_records()

    def make(numbers):
        batch = {name: array[numbers] for name, array in records.items()}
        if how == "unpadded":
            return batching.unpad(batch, batching.Sizes(16, xla), batch["masked_lm_positions"])
        return {**batch, "token_indices": np.arange(batch["input_ids"].size, dtype=np.int32)}

    return build_evaluation(model, objective, Runtime(xla=xla))(batching.Feed(lambda start: batches, make))


def by_hand(model, batches):
    records = make_records()
    totals, losses = np.zeros(6), []
    for numbers in batches:
        batch = {name: array[numbers] for name, array in records.items()}
        outputs = objective.forward(model, batch)
        values = []
        for logits, labels, weights in (
                (outputs["masked_lm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"]),
                (outputs["next_sentence_logits"], batch["next_sentence_labels"], 1.0)):
            logits = logits.numpy().astype(np.float64)
            chosen = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
            loss = np.log(np.exp(logits).sum(-1)) - chosen
            weights = np.broadcast_to(weights, loss.shape)
            values += [(loss * weights).sum(), ((logits.argmax(-1) == labels) * weights).sum(), weights.sum()]
        totals += values
        losses.append(values[0] / (values[2] + 1e-5) + values[3] / values[5])
    return {"loss": np.mean(losses),
            "masked_lm_loss": totals[0] / totals[2], "masked_lm_accuracy": totals[1] / totals[2],
            "next_sentence_loss": totals[3] / totals[5], "next_sentence_accuracy": totals[4] / totals[5]}


def test_metrics_are_means_over_all_weights_and_the_loss_over_batches(model):
    batches = [np.arange(4), np.arange(4, 8), np.arange(8, 12)]
    found, expected = measure(model, batches), by_hand(model, batches)
    assert set(found) == NAMES and all(type(value) is np.float32 for value in found.values())
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=2e-6), name
    assert 0 < found["masked_lm_accuracy"] < 1
    assert found["loss"] != pytest.approx(found["masked_lm_loss"] + found["next_sentence_loss"], rel=1e-6)


def test_padding_xla_and_the_cut_into_batches_change_nothing(model):
    batches = [np.arange(6), np.arange(6, 12)]
    found = measure(model, batches)
    for other in (measure(model, batches, "padded"), measure(model, batches, "padded", xla=True)):
        for name in NAMES:
            assert other[name] == pytest.approx(found[name], rel=3e-6), name
    cut = measure(model, [np.arange(12)])
    for name in NAMES - {"loss"}:
        assert cut[name] == pytest.approx(found[name], rel=3e-6), name


def test_nothing_drops_out(model):
    batches = [np.arange(6)]
    assert measure(model, batches) == measure(model, batches)


def test_a_bad_record_is_an_error_and_no_result(model):
    def make(numbers):
        if numbers[0]:
            raise UserError("records: record 1 is bad")
        batch = {name: array[numbers] for name, array in make_records().items()}
        return batching.unpad(batch, batching.Sizes(16, False), batch["masked_lm_positions"])

    evaluate = build_evaluation(model, objective, Runtime())
    with pytest.raises(UserError, match="record 1 is bad"):
        evaluate(batching.Feed(lambda start: np.array([[0], [1]]), make))


def test_batches_without_a_masked_piece_count_as_nothing(model):
    def make(numbers):
        batch = {name: array[numbers] for name, array in make_records().items()}
        batch["masked_lm_weights"] = np.zeros_like(batch["masked_lm_weights"])
        return batch

    found = build_evaluation(model, objective, Runtime())(batching.Feed(lambda start: [np.arange(3)], make))
    assert found["masked_lm_loss"] == 0 and found["masked_lm_accuracy"] == 0
    assert found["loss"] == pytest.approx(found["next_sentence_loss"], rel=1e-6)
