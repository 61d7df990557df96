"""`extract_features.py`: the original's lines, number for number; its further outputs; what it refuses."""

import gzip
import json
import shutil

import numpy as np
import pytest

from bert_tf import extraction
from bert_tf.cli import extract_features


@pytest.fixture
def tiny(goldens):
    return goldens / "tiny_ckpt"


@pytest.fixture
def call(tiny, goldens, tmp_path, capsys, caplog):
    """`call(layers="-1", ...)` runs the tiny model on the golden input -> exit status, standard error, log."""

    def run(*words, **values):
        values = {"input_file": goldens / "extract_features" / "input.txt", "output_file": tmp_path / "out",
                  "init_checkpoint": tiny / "step2000", "bert_config_file": tiny / "bert_config.json",
                  "vocab_file": tiny / "vocab.txt", "layers": "-1,-2", "max_seq_length": 32, "batch_size": 4} | values
        flags = [f"--{name}={value}" for name, value in values.items() if value is not None]
        caplog.clear()
        with caplog.at_level("INFO"):
            status = extract_features.main(["extract_features.py", *words, *flags])
        return status, capsys.readouterr().err, caplog.text

    return run


def refused(result, tmp_path, *parts):
    status, error, _ = result
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert status == 2 and len(lines) == 1 and "Traceback" not in error
    for part in parts:
        assert part in lines[0]
    assert not list(tmp_path.glob("out*"))


def read_lines(path):
    with (gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8")) as file:
        return [json.loads(line) for line in file]


def assert_equal(lines, expected, tolerance):
    """Equal in keys, order, indices and tokens; values within `tolerance`."""
    assert len(lines) == len(expected)
    for line, wanted in zip(lines, expected, strict=True):
        assert list(line) == list(wanted) and line["linex_index"] == wanted["linex_index"]
        assert [token["token"] for token in line["features"]] == [token["token"] for token in wanted["features"]]
        for token, wanted_token in zip(line["features"], wanted["features"], strict=True):
            assert list(token) == list(wanted_token)
            layers, wanted_layers = token["layers"], wanted_token["layers"]
            assert [list(layer) for layer in layers] == [list(layer) for layer in wanted_layers]
            assert [layer["index"] for layer in layers] == [layer["index"] for layer in wanted_layers]
            np.testing.assert_allclose([layer["values"] for layer in layers],
                                       [layer["values"] for layer in wanted_layers], rtol=0, atol=tolerance)


@pytest.fixture
def golden_lines(goldens):
    return read_lines(goldens / "extract_features" / "output_tiny_layers-1,-2_L32.jsonl.gz")


@pytest.mark.parametrize("batch_size", [1, 4])
def test_lines_equal_the_originals(call, golden_lines, tmp_path, batch_size):
    status, _, log = call(batch_size=batch_size)
    assert status == 0 and "39/39 restored; extra: 7" in log
    assert "out: 11 lines, 147 tokens" in log and "cut to --max_seq_length=32: 1 lines, 21 tokens dropped" in log
    assert_equal(read_lines(tmp_path / "out"), golden_lines, 1e-5)


def test_lines_equal_the_originals_for_a_real_model(call, shared, tmp_path):
    folder = shared("checkpoints/minilm_l6")
    status, _, _ = call(input_file=shared("goldens/extract_features/input_minilm.txt"), init_checkpoint=folder,
                        bert_config_file=None, vocab_file=None, layers=None, max_seq_length=24)
    assert status == 0
    golden = shared("goldens/extract_features/output_minilm_layers-1,-2,-3,-4_L24.jsonl.gz")
    assert_equal(read_lines(tmp_path / "out"), read_lines(golden), 5e-5)


def test_windows_and_one_hot_lookup_change_nothing(call, golden_lines, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "WINDOW_BYTES", 1)
    assert call("--use_one_hot_embeddings", batch_size=2)[0] == 0
    assert_equal(read_lines(tmp_path / "out"), golden_lines, 1e-5)


def test_layers_may_be_counted_from_the_first(call, golden_lines, tmp_path):
    assert call(layers="1,0")[0] == 0
    lines = read_lines(tmp_path / "out")
    for line in lines:
        for token in line["features"]:
            for layer in token["layers"]:
                layer["index"] -= 2
    assert_equal(lines, golden_lines, 1e-5)


def vectors_of(golden_lines):
    """Line by line an array [layers, tokens, H]."""
    return [np.array([[layer["values"] for layer in token["layers"]] for token in line["features"]]).transpose(1, 0, 2)
            for line in golden_lines]


@pytest.mark.parametrize(("pooling", "pool"), [
    ("cls", lambda values: values[:, 0]), ("mean", lambda values: values.mean(axis=1)),
    ("max", lambda values: values.max(axis=1)),
])
def test_pooled_vectors(call, golden_lines, tmp_path, pooling, pool):
    expected = [pool(values) for values in vectors_of(golden_lines)]
    assert call(pooling=pooling)[0] == 0
    for index, (line, wanted) in enumerate(zip(read_lines(tmp_path / "out"), expected, strict=True)):
        assert list(line) == ["linex_index", "layers"] and line["linex_index"] == index
        assert [layer["index"] for layer in line["layers"]] == [-1, -2]
        np.testing.assert_allclose([layer["values"] for layer in line["layers"]], wanted, rtol=0, atol=1e-5)
    assert call(pooling=pooling, output_format="npz")[0] == 0
    with np.load(tmp_path / "out") as file:
        assert sorted(file.files) == ["layer_-1", "layer_-2"]
        np.testing.assert_allclose(file["layer_-2"], [wanted[1] for wanted in expected], rtol=0, atol=1e-5)


def test_npz_holds_every_token(call, golden_lines, tmp_path, tiny):
    assert call(output_format="npz")[0] == 0
    vocab = (tiny / "vocab.txt").read_text(encoding="utf-8").split("\n")
    with np.load(tmp_path / "out") as file:
        splits, ids, last, before = (file[name] for name in ("row_splits", "input_ids", "layer_-1", "layer_-2"))
    assert (splits.dtype, ids.dtype, last.dtype, len(splits)) == (np.int64, np.int32, np.float32, 12)
    for line, values, start, end in zip(golden_lines, vectors_of(golden_lines), splits[:-1], splits[1:], strict=True):
        assert [vocab[number] for number in ids[start:end]] == [token["token"] for token in line["features"]]
        np.testing.assert_allclose([last[start:end], before[start:end]], values, rtol=0, atol=1e-5)


def test_numbers_are_rounded_as_python_rounds(tmp_path):
    values = np.random.default_rng(3).normal(size=(1, 5000)).astype(np.float32)
    values[0, :4] = [0.0078125, -0.0078125, -1e-9, 2.5e-7]
    row = extraction.Row([0], [0], 0)
    extraction.JsonWriter(tmp_path / "out", [-1], {}, pooled=True).write([(row, values)])
    expected = {"linex_index": 0, "layers": [{"index": -1, "values": [round(float(x), 6) for x in values[0]]}]}
    assert (tmp_path / "out").read_text() == json.dumps(expected) + "\n"


def test_flags_that_mean_nothing_are_named(call, tmp_path):
    status, _, log = call("--nouse_tpu", master="grpc://x")
    assert status == 0 and "--master has no effect" in log and "num_tpu_cores" not in log


def test_a_folder_with_spaces_needs_no_other_flag(call, tiny, golden_lines, tmp_path):
    folder = tmp_path / "my model"
    shutil.copytree(tiny / "step2000", folder)
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copyfile(tiny / name, folder / name)
    assert call(init_checkpoint=folder, bert_config_file=None, vocab_file=None)[0] == 0
    assert_equal(read_lines(tmp_path / "out"), golden_lines, 1e-5)


def test_casing_is_the_folders_unless_a_flag_contradicts(call, tiny, golden_lines, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny / "step2000", folder)
    (folder / "model.json").write_text('{"do_lower_case": true, "strip_accents": null}')
    assert call(init_checkpoint=folder)[0] == 0
    assert_equal(read_lines(tmp_path / "out"), golden_lines, 1e-5)
    (tmp_path / "out").unlink()
    refused(call("--nodo_lower_case", init_checkpoint=folder), tmp_path, "was trained with True")
    assert call("--nodo_lower_case", "--allow_case_mismatch", init_checkpoint=folder)[0] == 0
    assert read_lines(tmp_path / "out")[0]["features"][1]["token"] != "the"


# Wrong on purpose.


@pytest.mark.parametrize(("values", "parts"), [
    ({"layers": "-1,-3"}, ("--layers=-1,-3: the model has 2 layers",)),
    ({"layers": None}, ("--layers=-1,-2,-3,-4 (the default): the model has 2 layers; pass --layers=-1,-2",)),
    ({"layers": "2"}, ("between -2 and 1",)),
    ({"layers": "last"}, ("'last' is no whole number",)),
    ({"layers": "-1,-1"}, ("layer -1 is named twice",)),
    ({"max_seq_length": 129}, ("--max_seq_length=129", "max_position_embeddings, 128")),
    ({"max_seq_length": 2}, ("between 3 and",)),
    ({"batch_size": 0}, ("batch_size",)),
    ({"pooling": "sum"}, ("pooling",)),
    ({"input_file": "none.txt"}, ("none.txt: cannot be read",)),
    ({"init_checkpoint": "none"}, ("none: no such checkpoint",)),
    ({"bert_config_file": None}, ("no bert_config.json beside the checkpoint", "--bert_config_file")),
    ({"vocab_file": None}, ("no vocab.txt beside the checkpoint", "--vocab_file")),
    ({"output_file": "/none/out"}, ("--output_file=/none/out: there is no folder /none",)),
])
def test_wrong_flags_are_refused(call, tmp_path, values, parts):
    refused(call(**values), tmp_path, *parts)


def test_wrong_text_is_refused_with_its_line(call, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"")
    refused(call(input_file=text), tmp_path, "the file is empty")
    text.write_bytes(b"good\nb\xe4d\n")
    refused(call(input_file=text), tmp_path, "text:2: byte 0xe4 is not UTF-8")


def test_a_vocabulary_larger_than_the_config_or_cased_is_refused(call, tiny, tmp_path):
    vocab = tmp_path / "vocab"
    pieces = (tiny / "vocab.txt").read_text(encoding="utf-8")
    vocab.write_text(pieces + "one\ntoo\nmany\n", encoding="utf-8")
    refused(call(vocab_file=vocab), tmp_path, "pieces, the model")
    vocab.write_text("\n".join(pieces.split("\n")[:1000] + [f"Word{n}" for n in range(100)]) + "\n", encoding="utf-8")
    refused(call(vocab_file=vocab), tmp_path, "hold upper case", "--allow_case_mismatch")
    assert call("--allow_case_mismatch", vocab_file=vocab)[0] == 0
