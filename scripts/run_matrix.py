"""Trains a small model in every combination of devices, precision, XLA, calls and micro-batches, and says what works.

    python scripts/run_matrix.py --readme=README.md

Each cell is one run of run_pretraining.py, a process of its own, on the text that the tests use. It works when it ends
with status 0 and the mean loss of its last steps is below that of its first. A cell that is refused with a message is
listed with it. The table is written between the two marks in the README.
"""

import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from absl import flags

from bert_tf.cli import app
from bert_tf.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "tests/goldens/pretrain_data"
STEPS, ENDS = 15, 5
TIME_LIMIT = 600  # seconds for a cell; none takes a tenth of it
STRATEGIES = {"one": ("one device", [], ["--strategy=one"]),
              "mirrored": ("mirrored, 2 virtual CPU devices", [], ["--strategy=mirrored", "--virtual_devices=2"]),
              "multi_worker": ("2 workers", ["bash", "scripts/launch_local_workers.sh", "2"],
                               ["--strategy=multi_worker"])}
PRECISIONS = ("float32", "bfloat16", "float16")
COLUMNS = tuple(itertools.product((False, True), (1, 5), (1, 2)))
BEGIN, END = "<!-- matrix: made by scripts/run_matrix.py -->", "<!-- end of matrix -->"


def define_flags(values):
    flags.DEFINE_string("readme", None, "The file whose table is to be replaced.", flag_values=values)
    flags.mark_flag_as_required("readme", flag_values=values)
    flags.DEFINE_integer("num_processes", 1, "Run so many cells at a time.", lower_bound=1, flag_values=values)
    flags.DEFINE_string("only", "", "Run only the cells whose name holds this, such as mirrored/float16; the readme "
                        "stays as it is.", flag_values=values)


def main(values):
    readme = pathlib.Path(values.readme)
    if not (readme.is_file() and BEGIN in readme.read_text(encoding="utf-8")):
        raise UserError(f"--readme={readme}: no file with the line {BEGIN}")
    with tempfile.TemporaryDirectory() as folder:
        make_data(folder)
        def run_and_say(cell):
            strategy, precision, (xla, loop, parts) = cell
            name = f"{strategy}/{precision}/xla={xla}/loop={loop}/accumulation={parts}"
            result = run_cell(folder, strategy, precision, xla, loop, parts) if values.only in name else "not run"
            print(f"{name}: {result}", flush=True)
            return result

        cells = list(itertools.product(STRATEGIES, PRECISIONS, COLUMNS))
        with concurrent.futures.ThreadPoolExecutor(values.num_processes) as pool:
            results = dict(zip(cells, pool.map(run_and_say, cells)))
    table = make_table(results)
    print(table)
    if not values.only:
        replace(readme, table)


def make_data(folder):
    """Records and a config of a small model."""
    run([sys.executable, "create_pretraining_data.py", f"--input_file={TEXT}/corpus.txt",
         f"--output_file={folder}/records", f"--vocab_file={TEXT}/vocab.txt", "--max_seq_length=64",
         "--max_predictions_per_seq=10", "--dupe_factor=1", "--short_seq_prob=0"])
    vocab_size = len((TEXT / "vocab.txt").read_text(encoding="utf-8").splitlines())
    config = {"vocab_size": vocab_size, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2}
    (pathlib.Path(folder) / "bert_config.json").write_text(json.dumps(config))


def run(command):
    """Status and text of a command; a status of 124 for one that hangs, which is ended with all that it started."""
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        text, _ = process.communicate(timeout=TIME_LIMIT)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return 124, f"error: hung for {TIME_LIMIT} seconds"


def run_cell(folder, strategy, precision, xla, iterations_per_loop, accumulation):
    """"works", or the message of the run's end."""
    _, launcher, devices = STRATEGIES[strategy]
    output_dir = tempfile.mkdtemp(dir=folder)
    status, text = run([*launcher, sys.executable, "run_pretraining.py", "--do_train", *devices,
                        f"--bert_config_file={folder}/bert_config.json", f"--input_file={folder}/records",
                        f"--output_dir={output_dir}", "--max_seq_length=64", "--max_predictions_per_seq=10",
                        "--train_batch_size=16", f"--num_train_steps={STEPS}", "--num_warmup_steps=1",
                        "--learning_rate=3e-3", f"--precision={precision}", f"--xla={xla}",
                        f"--iterations_per_loop={iterations_per_loop}",
                        f"--gradient_accumulation_steps={accumulation}"])
    if status:
        errors = re.findall(r"error: (.*)", text)
        return errors[-1] if errors else f"failed with status {status}: {text.strip().rpartition(chr(10))[2]}"
    losses = [json.loads(line)["loss"] for line in open(os.path.join(output_dir, "train_log.jsonl"))]
    first, last = (sum(part) / ENDS for part in (losses[:ENDS], losses[-ENDS:]))
    return "works" if len(losses) == STEPS and last < first else f"the loss went from {first:.3f} to {last:.3f}"


def make_table(results):
    """The results as a Markdown table, with a note for whatever does not work."""
    head = [f"{'XLA' if xla else 'no XLA'}, {loop} step{'s' * (loop > 1)} a call, {parts} micro-batch"
            f"{'es' * (parts > 1)}" for xla, loop, parts in COLUMNS]
    lines = ["| devices | precision | " + " | ".join(head) + " |", "|---" * (2 + len(COLUMNS)) + "|"]
    notes = []
    for strategy, precision in itertools.product(STRATEGIES, PRECISIONS):
        cells = [results[strategy, precision, column] for column in COLUMNS]
        notes += [cell for cell in cells if cell not in ("works", "not run", *notes)]
        marks = [cell if cell in ("works", "not run") else f"no ({notes.index(cell) + 1})" for cell in cells]
        lines.append(" | ".join([f"| {STRATEGIES[strategy][0]}", precision, *marks]) + " |")
    lines.append("| TPU | float32, bfloat16" + " | not run" * len(COLUMNS) + " |")
    return "\n".join(lines + [f"\n({number}) {note}" for number, note in enumerate(notes, start=1)])


def replace(readme, table):
    """Puts the table between its marks."""
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    readme.write_text(before + BEGIN + "\n\n" + table + "\n\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(app.main(define_flags, main, description=__doc__))
