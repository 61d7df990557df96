"""Every script of the project answers at once, and says what is wrong with its flags in one line."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = sorted(str(path.relative_to(ROOT)) for pattern in ("*.py", "scripts/*.py") for path in ROOT.glob(pattern)
                 if path.name not in ("setup.py", "benchmark_peers.py"))  # a part of benchmark_training.py
COMMANDS = [[script] for script in SCRIPTS if script != "convert_checkpoint.py"]
COMMANDS += [["convert_checkpoint.py", name] for name in ("inspect", "validate", "to-keras", "from-keras")]

# Stands in for TensorFlow and says so: whatever imports it fails.
NO_TENSORFLOW = 'raise SystemExit("TensorFlow was imported")\n'


@pytest.fixture(scope="session")
def call(tmp_path_factory):
    """`call("run_pretraining.py", "--help")` -> the finished process, which cannot import TensorFlow."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text(NO_TENSORFLOW)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}

    def run(script, *arguments):
        return subprocess.run([sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True,
                              env=environment, cwd=folder, timeout=30)

    return run


def refused(done, *parts):
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: ")
    for part in parts:
        assert part in done.stderr


def identify(command):
    return " ".join(command)


@pytest.mark.parametrize("command", [*COMMANDS, ["convert_checkpoint.py"]], ids=identify)
def test_help_names_the_flags_without_tensorflow(call, command):
    done = call(*command, "--help")
    assert done.returncode == 0 and done.stderr == "" and "--" in done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=identify)
def test_unknown_flags_are_refused(call, command):
    refused(call(*command, "--no_such_flag=1"), "no_such_flag", "--help")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != ["scripts/quickstart.py"]],
                         ids=identify)
def test_missing_flags_are_refused(call, command):
    refused(call(*command), "--")


@pytest.mark.parametrize("command", COMMANDS, ids=identify)
def test_a_flag_without_its_dashes_is_refused(call, command):
    help_text = call(*command, "--help").stdout
    required = [name for name in ("input_file", "data_dir", "output_file", "output_dir", "vocab_file",
                                  "bert_config_file", "init_checkpoint", "output_checkpoint", "train_file",
                                  "heldout_file", "predict_file", "readme")
                if f"--{name}" in help_text]
    refused(call(*command, *(f"--{name}=none" for name in required), "num_train_steps=5"), "num_train_steps=5")


def test_an_unknown_sub_command_is_refused(call):
    refused(call("convert_checkpoint.py", "convert"), "'convert' is no sub-command", "inspect")
