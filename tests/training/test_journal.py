import io
import json
import struct

import pytest
import tensorflow as tf

from bert_tf.training import journal

LOGS = {"loss": 5.25, "masked_lm_loss": 4.5, "next_sentence_loss": 0.75, "learning_rate": 1e-4, "gradient_norm": 2.0,
        "examples": 32.0, "tokens": 900.0, "steps_per_second": 2.0, "examples_per_second": 64.0,
        "tokens_per_second": 1800.0}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drive(callback, first=0, last=4, total=4, logs=LOGS):
    callback.set_params({"steps": total, "initial_step": first})
    callback.on_train_begin()
    for step in range(first + 1, last + 1):
        callback.on_train_batch_end(step, {**logs, "loss": logs["loss"] - step})
    callback.on_train_end()


def rows(folder):
    return [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]


class TestBar:
    @pytest.mark.parametrize("step, total, rate, text", [
        (50, 100, 2.0, "[==========..........] 50/100  loss 5.2500  rate 0.0001  64.0 examples/s  left 0:00:25"),
        (0, 20_000, 1.0, "[....................] 0/20000  loss 5.2500  rate 0.0001  64.0 examples/s  left 5:33:20"),
        (7, 7, 0.001, "[====================] 7/7  loss 5.2500  rate 0.0001  64.0 examples/s  left 0:00:00"),
        (10**6 - 1, 10**6, 1e-6,
         "[===================.] 999999/1000000  loss 5.2500  rate 0.0001  64.0 examples/s  left 277:46:40")])
    def test_its_text(self, step, total, rate, text):
        assert journal.progress_line(step, total, {**LOGS, "steps_per_second": rate}) == text

    def test_a_terminal_sees_one_line_that_is_rewritten(self):
        stream = Terminal()
        drive(journal.Bar(stream))
        lines = stream.getvalue()
        assert lines.startswith("\r[=====") and lines.endswith("\x1b[K\n") and lines.count("\n") == 1
        assert "4/4  loss 1.2500" in lines

    def test_a_file_gets_whole_lines_and_few_of_them(self):
        stream = io.StringIO()
        drive(journal.Bar(stream), last=400, total=400)
        lines = stream.getvalue().splitlines()
        assert len(lines) == 2 and "\r" not in stream.getvalue() and "400/400" in lines[-1]


class TestLog:
    def test_a_line_for_every_step(self, tmp_path):
        drive(journal.Log(str(tmp_path)))
        assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]
        assert rows(tmp_path)[1] == {**LOGS, "step": 2, "loss": 3.25}

    def test_going_on_drops_what_was_logged_after_the_checkpoint(self, tmp_path):
        drive(journal.Log(str(tmp_path)), last=4)
        drive(journal.Log(str(tmp_path)), first=2, last=3, logs={**LOGS, "loss": 100.0})
        assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [(1, 4.25), (2, 3.25), (3, 97.0)]
        drive(journal.Log(str(tmp_path)), first=0, last=1)
        assert [row["step"] for row in rows(tmp_path)] == [1]

    @pytest.mark.parametrize("torn", ['{"step": 3, "lo', "{", '"', "12", "null", '{"loss": 1}', ""])
    def test_a_torn_line_ends_it(self, tmp_path, torn):
        drive(journal.Log(str(tmp_path)), last=2)
        with open(tmp_path / "train_log.jsonl", "a") as file:
            file.write(torn)
        drive(journal.Log(str(tmp_path)), first=2, last=3)
        assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]

    def test_tensorboard_reads_its_points(self, tmp_path):
        drive(journal.Log(str(tmp_path)))
        (path,) = tmp_path.glob("events.out.tfevents.*")
        found = {}
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found[value.tag] = (event.step, float(tf.make_ndarray(value.tensor)))
        assert set(found) == set(LOGS)
        assert found["loss"] == (4, pytest.approx(1.25)) and found["learning_rate"] == (4, pytest.approx(1e-4))

    def test_no_log_is_no_row(self, tmp_path):
        assert journal.read_log(str(tmp_path / "none")) == []


class TestCurves:
    def test_a_picture_of_the_log(self, tmp_path):
        pytest.importorskip("matplotlib")
        drive(journal.Log(str(tmp_path)), last=60, total=60)
        drive(journal.Curves(str(tmp_path)), last=0)
        content = (tmp_path / "curves.png").read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) > 5000
        width, height = struct.unpack(">II", content[16:24])
        assert width > 600 and height > 300 and not list(tmp_path.glob("*.tmp*"))

    def test_none_without_a_row_or_matplotlib(self, tmp_path, monkeypatch, caplog):
        drive(journal.Curves(str(tmp_path)), last=0)
        drive(journal.Log(str(tmp_path)))
        monkeypatch.setattr(journal.importlib.util, "find_spec", lambda name: None)
        with caplog.at_level("INFO", "bert_tf"):
            drive(journal.Curves(str(tmp_path)), last=0)
        assert not (tmp_path / "curves.png").exists() and "matplotlib is not installed" in caplog.text

    def test_smoothing_is_the_mean_of_the_last_values(self):
        assert journal._smooth([1.0, 2.0, 3.0, 4.0], 2) == pytest.approx([1, 1.5, 2.5, 3.5])
        assert journal._smooth([1.0, 2.0, 3.0], 1) == pytest.approx([1, 2, 3])
