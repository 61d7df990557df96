import numpy as np
import pytest

from bert_tf import batching, checkpoint, modeling, tokenization
from bert_tf.classification import answers, examples, features, tasks
from bert_tf.classification.objective import build_objective
from bert_tf.runtime import Runtime


@pytest.mark.parametrize("batch_size, settings", [
    (8, {}), (5, {}), (100, {}), (8, {"xla": True}), (3, {"strategy": "mirrored", "virtual_devices": 2})])
def test_recorded_predictions_in_the_order_of_the_file_whatever_the_batches(shared, batch_size, settings):
    tiny, task, runtime = shared("goldens/tiny_ckpt"), tasks.find("MRPC"), Runtime(**settings)
    path, table = examples.find_table(task, "test", shared("goldens/glue_data/MRPC"))
    tokenizer = tokenization.FullTokenizer(tiny / "vocab.txt")
    made = features.convert(examples.read(path, table, task), path, tokenizer, 64, task)
    with runtime.start().scope():
        model = modeling.BertForClassification(modeling.BertConfig.from_json_file(tiny / "bert_config.json"), 2)
        checkpoint.restore(model, shared("goldens/e2e/mrpc"))
        predict = answers.build_predict(model, build_objective(task), runtime, batching.Sizes(64, runtime.xla))
        found = answers.probabilities(predict(made, batch_size))
    recorded = np.loadtxt(shared("goldens/e2e/mrpc/test_results.tsv"), np.float32, delimiter="\t")
    np.testing.assert_allclose(found, recorded, rtol=0, atol=1e-5)


def test_probabilities_are_the_recorded_ones(shared):
    recorded = np.load(shared("goldens/model/tiny_classifier.npz"))
    found = answers.probabilities(recorded["output/logits"])
    np.testing.assert_allclose(found, recorded["output/probabilities"], rtol=0, atol=1e-6)
    assert found.dtype == np.float32


def test_great_logits_do_not_overflow():
    assert answers.probabilities(np.array([[1000, 0], [-1000, 0]], np.float32)).tolist() == [[1, 0], [0, 1]]


def test_scores_are_their_own_answers():
    scores = np.array([[4.5], [-0.25]], np.float32)
    assert answers.probabilities(scores) is scores


def test_the_file_is_written_as_the_original_writes_it(shared, tmp_path):
    recorded = shared("goldens/e2e/mrpc/test_results.tsv")
    values = np.loadtxt(recorded, np.float32, delimiter="\t")
    answers.write_test_results(tmp_path / "test_results.tsv", values)
    assert (tmp_path / "test_results.tsv").read_bytes() == recorded.read_bytes()


def test_small_numbers_keep_the_originals_form(tmp_path):
    answers.write_test_results(tmp_path / "t", np.array([[1e-5, 0.1], [1, 1.2345678e-12]], np.float32))
    assert (tmp_path / "t").read_text() == "1e-05\t0.1\n1.0\t1.2345678e-12\n"
