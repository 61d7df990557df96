"""The first thing that a new user runs, in miniature: text, vocabulary, records, training, what was learned."""

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from bert_tf.cli import app
from bert_tf.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

import fill_masks  # noqa: E402
import prepare_pydoc_text  # noqa: E402
import quickstart  # noqa: E402

SECTION = '''The "widget" statement
**********************

A *widget* statement opens the "widget" named by its
expression, e.g. "spam".  It returns nothing at all.

   widget_stmt ::= "widget" expression

For example:

   >>> widget(spam)
   42.

* The first item of the list says this.
* The second item of the list says
  that instead. [3]

+-------+------+
| A row | of a |
+-------+------+

It returns nothing at all.

Changed in version 3.3: Support for "spam" in a widget was added.
'''


def call(script, *arguments):
    return subprocess.run([sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)


def test_prose_is_read_from_a_section_without_markup():
    assert prepare_pydoc_text.read_documents({"widget": SECTION}) == [[
        "A widget statement opens the widget named by its expression, e.g. spam.",
        "It returns nothing at all.",
        "The first item of the list says this.",
        "The second item of the list says that instead.",
        "Support for spam in a widget was added.",
    ]]


def test_what_stands_in_two_topics_is_written_once():
    assert len(prepare_pydoc_text.read_documents({"widget": SECTION, "other": SECTION})) == 1


def test_text_is_the_same_each_time_and_the_held_out_part_is_new(tmp_path):
    for name in ("a", "b"):
        done = call("scripts/prepare_pydoc_text.py", f"--train_file={tmp_path / name}.train",
                    f"--heldout_file={tmp_path / name}.heldout")
        assert done.returncode == 0, done.stderr
    train, heldout = (tmp_path / "a.train").read_text(), (tmp_path / "a.heldout").read_text()
    assert (train, heldout) == ((tmp_path / "b.train").read_text(), (tmp_path / "b.heldout").read_text())
    assert len(train.split()) > 25000 and train.count("\n\n") > 80
    assert not {*train.split("\n")} & {*heldout.split("\n")} - {""}
    assert "\n " not in train and " \n" not in train and '"' not in train


@pytest.mark.parametrize(("train", "heldout", "flags", "message"), [
    ("a", "a", [], "--heldout_file="), ("a", "link/a", [], "--heldout_file="), ("", "b", [], "--train_file"),
    ("a", "", [], "--heldout_file"), ("a", "link", [], "link is a folder"), ("no/a", "b", [], "no folder"),
    ("a", "b", ["--heldout_every=100000"], "--heldout_every=100000: there are"),
])
def test_unwritable_places_are_refused_before_anything_is_written(tmp_path, capsys, train, heldout, flags, message):
    (tmp_path / "link").symlink_to(".")
    paths = (f"--{name}={tmp_path / value if value else ''}" for name, value in
             (("train_file", train), ("heldout_file", heldout)))
    assert app.main(prepare_pydoc_text.define_flags, prepare_pydoc_text.run, ["x", *paths, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1 and os.listdir(tmp_path) == ["link"]


@pytest.fixture
def tiny(goldens, tmp_path):
    """The recorded checkpoint with its config and vocabulary, as a released model lies in its folder."""
    folder = tmp_path / "tiny"
    shutil.copytree(goldens / "tiny_ckpt" / "step2000", folder)
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copyfile(goldens / "tiny_ckpt" / name, folder / name)
    return folder


def test_fillers_of_the_recorded_checkpoint(tiny, capsys):
    text = "The [MASK] of the function is [MASK]."
    assert fill_masks.main(["fill_masks.py", "--init_checkpoint", str(tiny), "--top_k=2", text]) == 0
    assert capsys.readouterr().out.splitlines() == [text, "  , 0.231  ' 0.107", "  . 0.190  the 0.129"]
    fillers = fill_masks.MaskFiller(str(tiny)).fill("[MASK][SEP]", 3)
    assert len(fillers) == 1 and len(fillers[0]) == 3


def refused(capsys, *arguments):
    assert fill_masks.main(["fill_masks.py", *arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_what_cannot_be_filled_is_refused(tiny, capsys):
    where = f"--init_checkpoint={tiny}"
    assert "no text is given" in refused(capsys, where)
    assert "no [MASK] in '5'" in refused(capsys, where, "--top_k", "5", "5 [MASK]", "5")
    assert "no [MASK] in 'nothing'" in refused(capsys, where, "a [MASK]", "nothing")
    assert "132 tokens, the model has 128 positions" in refused(capsys, where, "a " * 129 + "[MASK]")
    (tiny / "vocab.txt").unlink()
    assert "no vocab.txt beside the checkpoint" in refused(capsys, where, "[MASK]")


def test_a_checkpoint_without_the_head_is_refused(tiny):
    from bert_tf import checkpoint

    prefix = tiny / "encoder.ckpt"
    checkpoint.write(prefix, {name: value for name, value in checkpoint.read(str(tiny / "model.ckpt-2000"))
                              if name.startswith("bert/")})
    with pytest.raises(UserError, match="no masked language model head.*cls/predictions"):
        fill_masks.MaskFiller(str(prefix))


@pytest.mark.parametrize("script", ["scripts/quickstart.sh", "scripts/test.sh", "scripts/venv.sh", ".ci/run"])
def test_shell_scripts_parse(script):
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


@pytest.fixture
def in_process(monkeypatch):
    """Runs the scripts that the quickstart calls in this process, so that TensorFlow is imported once."""
    def run_script(name, log=None, **values):
        module = importlib.import_module(f"bert_tf.cli.{name.removesuffix('.py')}" if "/" not in name
                                         else name.removesuffix(".py").removeprefix("scripts/"))
        argv = [name, *(f"--{flag}={value}" for flag, value in values.items())]
        main = getattr(module, "main", None)
        calls.append(name)
        assert (main(argv) if main else app.main(module.define_flags, module.run, argv)) == 0

    calls = []
    monkeypatch.setattr(quickstart, "run_script", run_script)
    monkeypatch.setattr(quickstart, "TRAIN_DUPES", 2)
    return calls


def test_quickstart_in_miniature_twice(in_process, tmp_path, capsys):
    folder = tmp_path / "my run"
    argv = ["quickstart.py", f"--output_dir={folder}", "--num_train_steps=20"]
    for _ in range(2):
        assert app.main(quickstart.define_flags, quickstart.run, argv) == 0
        out = capsys.readouterr().out
        rows = [line for line in out.splitlines() if line.startswith(("masked pieces", "next sentence"))]
        assert len(rows) == 2 and all(row.count("%") == 3 for row in rows)
        assert out.count("    before  ") == out.count("    after   ") == len(quickstart.SENTENCES)
    assert in_process.count("run_pretraining.py") == 6
    assert (folder / "model" / "curves.png").read_bytes().startswith(b"\x89PNG")
    first, second = (quickstart.read_results(folder / name) for name in ("untrained", "model"))
    assert first["global_step"] == 1 and second["global_step"] == 20
    assert second["masked_lm_loss"] < first["masked_lm_loss"]


def test_another_run_in_the_folder_is_refused_with_flags_that_there_are(in_process, tmp_path, capsys):
    for name, steps in (("untrained", 1), ("model", 1500)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"seed": 12345, "num_train_steps": steps}))
    (tmp_path / "train.txt").write_text("of the earlier run")
    for flag, part in (("--seed=1", "--seed=12345 (now 1)"),
                       ("--num_train_steps=9", "--num_train_steps=1500 (now 9)")):
        argv = ["quickstart.py", f"--output_dir={tmp_path}", flag]
        assert app.main(quickstart.define_flags, quickstart.run, argv) == 2
        error = capsys.readouterr().err
        assert f"holds a run with {part}; --overwrite_output_dir starts anew, another --output_dir" in error
    (tmp_path / "model" / "run.json").write_text("{")
    argv = ["quickstart.py", f"--output_dir={tmp_path}"]
    assert app.main(quickstart.define_flags, quickstart.run, argv) == 2
    assert "run.json: tells no settings of a run; --overwrite_output_dir" in capsys.readouterr().err
    assert in_process == [] and (tmp_path / "train.txt").read_text() == "of the earlier run"


def test_a_seed_that_the_scripts_would_refuse_is_refused_at_once(in_process, tmp_path, capsys):
    argv = ["quickstart.py", f"--output_dir={tmp_path}", f"--seed={2**31}"]
    assert app.main(quickstart.define_flags, quickstart.run, argv) == 2
    assert "--seed" in capsys.readouterr().err and in_process == []


def test_a_script_that_fails_ends_the_quickstart_with_its_status_and_message(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        quickstart.run_script("create_pretraining_data.py", tmp_path / "log.txt", input_file=tmp_path / "none",
                              output_file=tmp_path / "records", vocab_file=tmp_path / "vocab.txt")
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("\n$ python create_pretraining_data.py --input_file=")
    assert captured.err.startswith("error: ") and "no file matches" in captured.err
