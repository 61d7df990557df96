"""A classifier that stays loaded: its answers are run_classifier.py's, whatever else is asked for at the time."""

import concurrent.futures
import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

import bert_tf
from bert_tf import batching, checkpoint, model_dir, modeling, prediction
from bert_tf.classification import answers, features, tasks
from bert_tf.classification.objective import build_objective
from bert_tf.errors import UserError
from bert_tf.predictor import Classifier, Predictor, QuestionAnswerer, Tagger
from bert_tf.runtime import Runtime

CONFIG = modeling.BertConfig(vocab_size=1500, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                             intermediate_size=32, max_position_embeddings=64, type_vocab_size=2,
                             initializer_range=0.5)
WORDS = "the quiet river crossed an old bridge while bright lanterns hung over every narrow street".split()
INFO = {"task": "moods", "kind": "single", "labels": ["joy", "rage", "calm"], "max_seq_length": 32,
        "do_lower_case": True, "strip_accents": True}


def texts(count, seed=1):
    """Texts and pairs of 0 to 40 words, so that some are cut."""
    rng = np.random.RandomState(seed)
    drawn = [" ".join(rng.choice(WORDS, rng.randint(0, 40))) for _ in range(2 * count)]
    return [(text, other) if rng.randint(2) else text for text, other in zip(drawn[::2], drawn[1::2])]


def write_folder(folder, goldens, config=CONFIG, leave_out=(), **changed):
    """A folder as run_classifier.py leaves it, of a model with random weights."""
    info = {name: value for name, value in (INFO | changed).items() if value is not None}
    num_classes = len(info.get("labels", "?")) or 1
    model = modeling.BertForClassification(config, num_classes, pooling=info.get("pooling", "cls"))
    weights = {name: weight for name, weight in checkpoint.named_weights(model).items() if name not in leave_out}
    if "output_bias" in weights:
        weights["output_bias"] = np.linspace(-1, 1, weights["output_bias"].shape[0], dtype=np.float32)
    checkpoint.write(folder / "model.ckpt-1", {**weights, "global_step": 1})
    checkpoint.update_state(str(folder), "model.ckpt-1")
    model_dir.write(str(folder), config, info, goldens / "pretrain_data/vocab.txt")
    return folder


@pytest.fixture(scope="module")
def folder(goldens, tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("moods"), goldens)


@pytest.fixture(scope="module")
def predictor(folder):
    return Predictor(folder)


def test_answers_are_label_names_and_probabilities(predictor):
    found = predictor(["The quiet river", ("an old bridge", "every street"), "the " * 40])
    assert [answer["truncated"] for answer in found] == [False, False, True]
    for answer in found:
        assert list(answer) == ["label", "probabilities", "truncated"]
        assert list(answer["probabilities"]) == INFO["labels"]
        assert abs(sum(answer["probabilities"].values()) - 1) < 1e-6
        assert answer["label"] == max(answer["probabilities"], key=answer["probabilities"].get)
    assert json.loads(json.dumps(found)) == found
    assert predictor([]) == []


def test_answers_are_those_of_the_script_to_the_bit(folder, predictor):
    """The same rows in batches of the same size: through `answers.build_predict`, as --do_predict has them."""
    asked, runtime = texts(50), Runtime(strategy="one")
    pairs = [text if isinstance(text, tuple) else (text, None) for text in asked]
    made = features.of_texts(pairs, predictor.tokenizer, 32)
    task = tasks.Task("moods", {}, tuple(INFO["labels"]))
    model = modeling.BertForClassification(CONFIG, 3)
    checkpoint.restore(model, folder)
    predict = answers.build_predict(model, build_objective(task), runtime, batching.Sizes(32, xla=False))
    expected = answers.probabilities(predict(made, 8), "single")
    found = np.array([list(answer["probabilities"].values()) for answer in predictor(asked)])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(predictor.logits(made), predict(made, 8))
    labels = [INFO["labels"][number] for number in expected.argmax(axis=1)]
    assert [answer["label"] for answer in predictor(asked)] == labels and len(np.unique(expected, axis=0)) > 40


def test_the_recorded_predictions(shared, tmp_path):
    """A folder of the original's weights gives what the original wrote."""
    tiny, recorded = shared("goldens/tiny_ckpt"), shared("goldens/e2e/mrpc")
    config = modeling.BertConfig.from_json_file(tiny / "bert_config.json")
    weights = dict(checkpoint.read(checkpoint.find(recorded)))
    checkpoint.write(tmp_path / "model.ckpt-9", weights)
    info = {"task": "MRPC", "labels": ["0", "1"], "max_seq_length": 64, "do_lower_case": True}
    model_dir.write(str(tmp_path), config, info, tiny / "vocab.txt")
    rows = (shared("goldens/glue_data/MRPC") / "test.tsv").read_text(encoding="utf-8-sig").splitlines()[1:]
    found = Predictor(tmp_path, batch_size=3)([tuple(row.split("\t")[3:5]) for row in rows])
    expected = np.loadtxt(recorded / "test_results.tsv", delimiter="\t")
    np.testing.assert_allclose([list(answer["probabilities"].values()) for answer in found], expected, atol=1e-5)


def test_no_length_and_no_number_of_texts_is_traced_again(folder, monkeypatch):
    traced, call = [], modeling.BertForClassification.call
    monkeypatch.setattr(modeling.BertForClassification, "call",
                        lambda self, *args, **kwargs: traced.append(1) or call(self, *args, **kwargs))
    predictor = Predictor(folder, batch_size=4)
    for count in (1, 2, 9):
        predictor(texts(count))
    for length in range(35):
        predictor(["the " * length])
    assert len(traced) == 1


def test_threads_get_the_answers_that_one_gets(predictor):
    asked = [texts(number % 7 + 1, seed=number) for number in range(64)]
    alone = [predictor(few) for few in asked]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(predictor, asked)) == alone


def test_another_process_with_nothing_but_the_folder_gives_the_same_bytes(folder, predictor):
    program = ("import json, sys; from bert_tf import Predictor; "
               "print(json.dumps(Predictor(sys.argv[1])(json.loads(sys.argv[2]))))")
    asked = texts(20)
    printed = subprocess.run([sys.executable, "-c", program, str(folder), json.dumps(asked)], check=True,
                             capture_output=True, text=True).stdout
    assert json.loads(printed) == predictor([tuple(text) if isinstance(text, tuple) else text for text in asked])


def test_labels_are_the_folders_own(shared, goldens, tmp_path):
    """The order of the labels in the table of tasks has no say."""
    write_folder(tmp_path, goldens, task="MRPC", labels=["1", "0"])
    (answer,) = Predictor(tmp_path)(["a"])
    logits = Predictor(tmp_path).logits(features.of_texts([("a", None)], Predictor(tmp_path).tokenizer, 32))
    assert list(answer["probabilities"]) == ["1", "0"] and answer["label"] == "10"[logits.argmax()]


def test_several_labels(goldens, tmp_path):
    write_folder(tmp_path, goldens, kind="multi")
    for answer in Predictor(tmp_path)(texts(20)):
        probabilities = answer["probabilities"]
        assert answer["labels"] == [name for name in INFO["labels"] if probabilities[name] >= 0.5]
        assert list(answer) == ["labels", "probabilities", "truncated"]


@pytest.mark.parametrize("kind", ["regression", None])
def test_a_score(goldens, tmp_path, kind):
    write_folder(tmp_path, goldens, kind=kind, labels=[])
    answer, _ = Predictor(tmp_path)([("a", "b"), "c"])
    assert list(answer) == ["score", "truncated"] and isinstance(answer["score"], float)


@pytest.mark.parametrize("settings, tolerance", [({"xla": True}, 1e-5), ({"precision": "bfloat16"}, 0.05),
                                                 ({"batch_size": 3}, 1e-6)])
def test_settings_change_no_more_than_rounding(folder, predictor, settings, tolerance):
    found, expected = ([list(answer["probabilities"].values()) for answer in answering(texts(9))]
                       for answering in (Predictor(folder, **settings), predictor))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_a_long_prediction_says_how_far_it_is(predictor, monkeypatch, caplog):
    monkeypatch.setattr(prediction, "SECONDS_BETWEEN_LINES", -1.0)
    with caplog.at_level("INFO"):
        predictor(texts(9))
    assert [line for line in caplog.messages if "predicted" in line] == [
        f"text: predicted {count} of 9, the longest first" for count in (8, 9)]


def test_the_best_checkpoint_is_taken_and_averages_on_demand(goldens, tmp_path):
    write_folder(tmp_path, goldens, best_checkpoint="model.ckpt-1")
    weights = dict(checkpoint.read(str(tmp_path / "model.ckpt-1")))
    flipped = {"output_bias": -weights["output_bias"], "output_weights": -weights["output_weights"]}
    averages = {f"{name}/ExponentialMovingAverage": value for name, value in flipped.items()}
    checkpoint.write(tmp_path / "model.ckpt-2", {**weights, **flipped})
    checkpoint.write(tmp_path / "model.ckpt-1", {**weights, **averages})
    checkpoint.update_state(str(tmp_path), "model.ckpt-2")
    best, newest, averaged = (list(Predictor(path, **settings)(["river"])[0]["probabilities"].values())
                              for path, settings in ((tmp_path, {}), (tmp_path / "model.ckpt-2", {}),
                                                     (tmp_path, {"use_ema": True})))
    assert averaged == newest != best
    model_dir.note(tmp_path, use_ema=True)  # as a run that was evaluated so leaves it
    noted, raw = (list(Predictor(tmp_path, use_ema=choice)(["river"])[0]["probabilities"].values())
                  for choice in (None, False))
    assert (noted, raw) == (averaged, best)
    with pytest.raises(UserError, match="no moving averages"):
        Predictor(tmp_path / "model.ckpt-2", use_ema=True)


def test_the_folder_decides_what_answers_and_another_kind_is_refused(folder, predictor):
    assert type(predictor) is Classifier and isinstance(Classifier(folder), Predictor)
    for kind in (QuestionAnswerer, Tagger):
        with pytest.raises(UserError, match=f"not the folder of a {kind.__name__}; fine-tune the model with run_"):
            kind(folder)


@pytest.mark.parametrize("changed, message", [
    ({"leave_out": ("output_weights",)}, "a head that was never trained cannot answer: 1 .output_weights."),
    ({"task": None}, "beside it lacks task: not the folder of a Classifier; fine-tune"),
    ({"labels": None}, "lacks labels"), ({"max_seq_length": None}, "lacks max_seq_length"),
    ({"kind": "tagging"}, "kind is 'tagging'; mend"), ({"kind": "regression"}, "says regression, and 3 labels"),
    ({"labels": [1, 2]}, "mend or remove"), ({"max_seq_length": 65}, "between 3 and the model's 64")])
def test_folders_that_are_refused(goldens, tmp_path, changed, message):
    write_folder(tmp_path, goldens, **changed)
    with pytest.raises(UserError, match=message):
        Predictor(tmp_path)


def test_a_checkpoint_with_another_number_of_labels_is_refused(goldens, tmp_path):
    write_folder(tmp_path, goldens)
    (tmp_path / "model.json").write_text(json.dumps({**INFO, "labels": ["joy", "rage"]}))
    with pytest.raises(UserError, match="a head that was never trained cannot answer: 2 .output"):
        Predictor(tmp_path)


def test_settings_that_are_refused(folder, tmp_path):
    for settings, message in (({"batch_size": 0}, "batch_size=0"), ({"precision": "int8"}, "int8 is unknown")):
        with pytest.raises(UserError, match=message):
            Predictor(folder, **settings)
    with pytest.raises(UserError, match=str(tmp_path)):
        Predictor(tmp_path)


@pytest.mark.parametrize("asked, message", [
    ("a text", "give a list of texts"), (("a", "b"), "give a list of texts"), (b"a", "give a list of texts"),
    (["a", 7], "text 2 is 7, neither"), ([("a",)], "text 1 is"), ([("a", "b", "c")], "text 1 is"),
    ([(None, "b")], "text 1 is"), ([b"a"], "text 1 is"), ([None], "text 1 is None")])
def test_what_is_no_text_is_refused(predictor, asked, message):
    with pytest.raises(UserError, match=message):
        predictor(asked)


def test_a_model_of_one_segment_takes_no_pairs(goldens, tmp_path):
    write_folder(tmp_path, goldens, config=dataclasses.replace(CONFIG, type_vocab_size=1))
    one = Predictor(tmp_path)
    assert one([("a", None)]) == one(["a"])
    with pytest.raises(UserError, match="text 2 is a pair, the model has one segment"):
        one(["a", ("a", "b")])


def test_the_package_alone_loads_no_tensorflow():
    subprocess.run([sys.executable, "-c", "import sys, bert_tf; sys.exit('tensorflow' in sys.modules)"], check=True)
    assert bert_tf.Predictor is Predictor and not hasattr(bert_tf, "other")
