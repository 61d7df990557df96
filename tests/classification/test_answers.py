import dataclasses
import types

import numpy as np
import pytest

from bert_tf import batching, checkpoint, modeling, tokenization
from bert_tf.classification import answers, examples, features, tasks
from bert_tf.classification.objective import build_objective
from bert_tf.runtime import Runtime


@pytest.mark.parametrize("batch_size, settings", [
    (8, {}), (5, {}), (100, {}), (8, {"xla": True}), (3, {"strategy": "mirrored", "virtual_devices": 2}),
    (8, {"strategy": "mirrored", "virtual_devices": 2, "xla": True})])
def test_recorded_predictions_in_the_order_of_the_file_whatever_the_batches(shared, batch_size, settings):
    tiny, task, runtime = shared("goldens/tiny_ckpt"), tasks.find("MRPC"), Runtime(**settings)
    path, table = examples.find_table(task, "test", shared("goldens/glue_data/MRPC"))
    tokenizer = tokenization.FullTokenizer(tiny / "vocab.txt")
    made = features.convert(examples.read(path, table, task), path, tokenizer, 64, task)
    with runtime.start().scope():
        model = modeling.BertForClassification(modeling.BertConfig.from_json_file(tiny / "bert_config.json"), 2)
        checkpoint.restore(model, shared("goldens/e2e/mrpc"))
        predict = answers.build_predict(model, build_objective(task), runtime, batching.Sizes(64, runtime.xla))
        found = answers.probabilities(predict(made, batch_size), task.kind)
    recorded = np.loadtxt(shared("goldens/e2e/mrpc/test_results.tsv"), np.float32, delimiter="\t")
    np.testing.assert_allclose(found, recorded, rtol=0, atol=1e-5)


def make_features(lengths):
    """Features of examples of so many ids."""
    splits = np.concatenate([[0], np.cumsum(lengths)])
    first = np.array(lengths, np.int32)
    values = {"path": "f", "input_ids": np.full(splits[-1], 7, np.int32), "row_splits": splits, "first_lengths": first,
              "label_ids": np.zeros(len(lengths), np.int32), "lines": first, "truncated": first > 9}
    return features.Features(**{field.name: values[field.name] for field in dataclasses.fields(features.Features)})


def test_new_lengths_and_numbers_of_examples_trace_nothing_again():
    config = modeling.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                 intermediate_size=8, max_position_embeddings=64)
    objective, traced = build_objective(tasks.find("MRPC")), []

    def forward(model, batch):
        traced.append({name: tuple(value.shape) for name, value in batch.items()})
        return objective.forward(model, batch)

    with Runtime().start().scope():
        model = modeling.BertForClassification(config, 2)
        predict = answers.build_predict(model, types.SimpleNamespace(forward=forward), Runtime(),
                                        batching.Sizes(64, False))
        first = predict(make_features([5, 9, 3]), 2)
        once = len(traced)
        for lengths in ([30, 3], [64] * 5, [3], [17, 40, 33]):
            assert predict(make_features(lengths), 2).shape == (len(lengths), 2)
        assert len(traced) == once
        np.testing.assert_allclose(predict(make_features([64, 5, 9, 3]), 3)[1:], first, rtol=0, atol=1e-6)


def test_probabilities_are_the_recorded_ones(shared):
    recorded = np.load(shared("goldens/model/tiny_classifier.npz"))
    found = answers.probabilities(recorded["output/logits"], "single")
    np.testing.assert_allclose(found, recorded["output/probabilities"], rtol=0, atol=1e-6)
    assert found.dtype == np.float32


def test_great_logits_do_not_overflow():
    great = np.array([[1000, 0], [-1000, 0]], np.float32)
    assert answers.probabilities(great, "single").tolist() == [[1, 0], [0, 1]]
    assert answers.probabilities(great, "multi").tolist() == [[1, 0.5], [0, 0.5]]


def test_each_of_several_labels_has_a_probability_of_its_own():
    logits = np.random.RandomState(0).normal(0, 8, [50, 4]).astype(np.float32)
    found = answers.probabilities(logits, "multi")
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-np.float64(logits))), rtol=2e-6)
    assert found.dtype == np.float32


def test_scores_are_their_own_answers():
    scores = np.array([[4.5], [-0.25]], np.float32)
    assert answers.probabilities(scores, "regression") is scores


def test_the_file_is_written_as_the_original_writes_it(shared, tmp_path):
    recorded = shared("goldens/e2e/mrpc/test_results.tsv")
    values = np.loadtxt(recorded, np.float32, delimiter="\t")
    answers.write_test_results(tmp_path / "test_results.tsv", values)
    assert (tmp_path / "test_results.tsv").read_bytes() == recorded.read_bytes()


def test_small_numbers_keep_the_originals_form(tmp_path):
    answers.write_test_results(tmp_path / "t", np.array([[1e-5, 0.1], [1, 1.2345678e-12]], np.float32))
    assert (tmp_path / "t").read_text() == "1e-05\t0.1\n1.0\t1.2345678e-12\n"


def test_decisions():
    logits = np.array([[1, 3, 3], [-1, -2, 0]], np.float32)
    assert answers.decisions(logits, "single").tolist() == [1, 2]
    assert answers.decisions(logits, "multi").tolist() == [[True, True, True], [False, False, True]]
    assert answers.decisions(logits[:, :1], "regression").tolist() == [1, -1]


MNLI, STS_B = tasks.find("MNLI"), tasks.find("STS-B")
ODD = dataclasses.replace(MNLI, labels=("a,b", "c\td", "e\\\n"), kind="multi")
LOGITS = np.log(np.array([[2, 6, 2], [1, 1, 8]], np.float32))


@pytest.mark.parametrize("task, logits, expected", [
    (MNLI, LOGITS, "line\tlabel\tp(contradiction)\tp(entailment)\tp(neutral)\ttruncated\n"
     "2\tentailment\t0.200000\t0.600000\t0.200000\tno\n5\tneutral\t0.100000\t0.100000\t0.800000\tyes\n"),
    (ODD, LOGITS - 1, "line\tlabels\tp(a,b)\tp(c\\td)\tp(e\\\\\\n)\ttruncated\n"
     "2\tc\\td\t0.423883\t0.688209\t0.423883\tno\n5\te\\\\\\n\t0.268941\t0.268941\t0.746388\tyes\n"),
    (ODD, LOGITS, "line\tlabels\tp(a,b)\tp(c\\td)\tp(e\\\\\\n)\ttruncated\n"
     "2\ta\\,b,c\\td,e\\\\\\n\t0.666667\t0.857143\t0.666667\tno\n"
     "5\ta\\,b,c\\td,e\\\\\\n\t0.500000\t0.500000\t0.888889\tyes\n"),
    (ODD, LOGITS - 9, "line\tlabels\tp(a,b)\tp(c\\td)\tp(e\\\\\\n)\ttruncated\n"
     "2\t\t0.000247\t0.000740\t0.000247\tno\n5\t\t0.000123\t0.000123\t0.000986\tyes\n"),
    (STS_B, LOGITS[:, :1], "line\tscore\ttruncated\n2\t0.693147\tno\n5\t0\tyes\n")])
def test_the_table_of_predictions(tmp_path, task, logits, expected):
    answers.write_predictions(tmp_path / "p.tsv", task, logits, np.array([2, 5], np.int32), np.array([False, True]))
    assert (tmp_path / "p.tsv").read_text(encoding="utf-8") == expected


def test_predictions_by_id(tmp_path):
    answers.write_predictions(tmp_path / "p.tsv", STS_B, LOGITS[:, 1:2], np.array([2, 5]), np.array([False, False]),
                              ids=["x\ty", "z"])
    assert (tmp_path / "p.tsv").read_text() == "id\tscore\ttruncated\nx\\ty\t1.79176\tno\nz\t0\tno\n"
