import os
import signal
import subprocess
import sys
import time

import pytest

from bert_tf import files
from bert_tf.cli import app, common
from bert_tf.errors import UserError

FLAGS = (("integer", "number", 3, "A number."), ("bool", "yes", False, "Yes."), ("string", "text", None, "A text."))


def define(values):
    common.define(values, FLAGS)


def run_with(argv, run=None):
    seen = []
    status = app.main(define, run or seen.append, ["script", *argv], "What it does.")
    return status, seen


def test_flags_reach_the_script():
    status, (values,) = run_with(["--number=5", "--yes", "--text=é=x"])
    assert status == 0 and (values.number, values.yes, values.text) == (5, True, "é=x")


def test_scripts_can_be_called_one_after_another():
    for number in (1, 2):
        assert run_with([f"--number={number}"])[1][0].number == number
    assert run_with([])[1][0].number == 3


@pytest.mark.parametrize("argv, part", [(["--nunber=3"], "nunber"), (["--number=x"], "number"), (["word"], "'word'"),
                                        (["--number"], "number"), (["--yes=maybe"], "yes")])
def test_what_absl_refuses_is_one_line(argv, part, capsys):
    status, seen = run_with(argv)
    error = capsys.readouterr().err
    assert (status, seen) == (2, []) and error.startswith("error: ") and error.count("\n") == 1 and part in error


@pytest.mark.parametrize("argument", ["--help", "-h", "--helpfull"])
def test_help_lists_every_flag_and_runs_nothing(argument, capsys):
    status, seen = run_with([argument, "--nonsense"])
    text = capsys.readouterr().out
    assert (status, seen) == (0, []) and text.startswith("What it does.")
    assert all(f"--{name}" in text or f"--[no]{name}" in text for _, name, _, _ in FLAGS)


def test_a_users_mistake_is_one_line_and_another_error_is_not_hidden(capsys):
    def refuse(values):
        raise UserError("a.txt:3: wrong\nin two lines")

    def fail(values):
        raise ZeroDivisionError

    assert run_with([], refuse)[0] == 2
    assert capsys.readouterr().err == "error: a.txt:3: wrong in two lines\n"
    with pytest.raises(ZeroDivisionError):
        run_with([], fail)


@pytest.mark.parametrize("door", ["run_pretraining.py", "create_pretraining_data.py"])
def test_help_needs_no_tensorflow(door):
    root = os.path.dirname(os.path.dirname(os.path.dirname(app.__file__)))
    code = ("import runpy, sys; sys.argv = [sys.argv[1], '--help']\n"
            "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
            "except SystemExit as end:\n    assert not end.code\n"
            "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code, os.path.join(root, door)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--output_" in done.stdout and "--vocab_file" in done.stdout


def test_tensorflow_is_loaded_quietly(capfd, caplog):
    with caplog.at_level("INFO", "bert_tf"):
        app.load_tensorflow()
    assert "TensorFlow 2." in caplog.text and "CPU:0" in caplog.text
    assert "cuda" not in capfd.readouterr().err.lower()


def test_an_interrupt_is_one_line(capsys):
    def interrupt(values):
        raise KeyboardInterrupt

    assert run_with([], interrupt)[0] == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_sigterm_removes_what_is_half_written(tmp_path):
    def write(values):
        with files.replacing(tmp_path / "out") as file:
            file.write("half")
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        run_with([], write)
    assert caught.value.code == 143 and not os.listdir(tmp_path) and signal.getsignal(signal.SIGTERM) is before


def test_sigterm_in_a_callback_that_lets_no_exception_through_ends_the_program_all_the_same(tmp_path):
    class Awkward:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def wait(values):
        Awkward()
        with files.replacing(tmp_path / "out") as file:
            file.write("half")
            time.sleep(20)

    hook = sys.unraisablehook
    with pytest.raises(SystemExit) as caught:
        run_with([], wait)
    assert caught.value.code == 143 and not os.listdir(tmp_path) and sys.unraisablehook is hook
