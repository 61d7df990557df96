import numpy as np

from bert_tf.classification import answers


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
