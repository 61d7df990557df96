"""Measures training beside KerasHub and Hugging Face in PyTorch: examples per second on the same rows, in turn.

    python scripts/benchmark_training.py --vocab_file=vocab.txt --data_dir=glue/MRPC --task_name=MRPC
    python scripts/benchmark_training.py --vocab_file=vocab.txt --input_file=train.tfrecord

The first fine-tunes a classifier, the second pretrains on records of create_pretraining_data.py. Every way of the
table `WAYS` starts from random weights of the same --shape and goes through the same --num_rows rows, in the same
number of batches, again and again: the first pass (tracing, compiling) is not counted, whole passes for --seconds
after it are. First each way is tried for one pass, and the best of each library and padding kept (--settings); these
run in turn, --rounds times, each in a process of its own. Speeds in the table are medians; a ratio is the median of
those of the rounds. The machine must be quiet: beside other work PyTorch, whose threads wait for each other, loses
more than TensorFlow, whose threads take work from each other. How many cores other programs kept busy before each
measurement is written down.

What is timed. Ours: run_classifier.py and run_pretraining.py as a user runs them, as their `train_log.jsonl` says.
KerasHub: `fit` on ids that were made before, padded to --max_seq_length as its preprocessor pads ("fixed"), or in
batches of like length padded to their longest, which a user would have to write ("sorted"). PyTorch: a loop over
batches of like length, padded to their longest. All use Adam with decoupled decay and clip to a global norm of 1.
In pretraining KerasHub has no next sentence loss, and Hugging Face scores all positions, not only the masked ones.
Ours run with TF_ENABLE_ONEDNN_OPTS=1, as they set it themselves; TensorFlow does so only on processors with AVX-512,
so that KerasHub is measured without it and with it ("onednn").

Peers need `pip install keras-hub` and `pip install torch transformers`, in this Python or in those that
--keras_python and --torch_python name; without them their rows are left out. They run with the C library told to
keep freed memory, as our scripts tell it themselves.
"""

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import flags

from bert_tf import files
from bert_tf.cli import app
from bert_tf.errors import UserError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TIME_LIMIT = 1800.0  # seconds for one measurement, compiling included
BUSY = 0.2  # cores that other programs keep busy, beyond which a warning is given
KEEP_FREED_MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=2147483647:"
                                       "glibc.malloc.top_pad=67108864"}

# Layers, hidden size, heads, intermediate size.
SHAPES = {"minilm": (6, 384, 12, 1536), "bert-small": (4, 512, 8, 2048), "bert-base": (12, 768, 12, 3072)}

# Name, library, options: "onednn", and flags of our scripts or what benchmark_peers.py reads.
WAYS = (
    ("ours-float32", "ours", {}),
    ("ours-float32-sorted", "ours", {"group_by_length": True}),
    ("ours-bfloat16", "ours", {"precision": "bfloat16"}),
    ("ours-float32-xla", "ours", {"xla": True}),
    ("keras-fixed", "KerasHub", {"dtype": "float32", "jit_compile": False, "padding": "fixed"}),
    ("keras-fixed-onednn", "KerasHub", {"dtype": "float32", "jit_compile": False, "padding": "fixed", "onednn": True}),
    ("keras-fixed-xla", "KerasHub", {"dtype": "float32", "jit_compile": True, "padding": "fixed", "onednn": True}),
    ("keras-fixed-bfloat16", "KerasHub", {"dtype": "mixed_bfloat16", "jit_compile": False, "padding": "fixed",
                                          "onednn": True}),
    ("keras-sorted-onednn", "KerasHub", {"dtype": "float32", "jit_compile": False, "padding": "longest",
                                         "onednn": True}),
    ("torch-float32", "PyTorch", {"compile": False, "autocast": False, "padding": "longest"}),
    ("torch-float32-compiled", "PyTorch", {"compile": True, "autocast": False, "padding": "longest"}),
    ("torch-bfloat16", "PyTorch", {"compile": False, "autocast": True, "padding": "longest"}),
)


def define_flags(values):
    flags.DEFINE_string("data_dir", None, "A folder with a task's files, to fine-tune on.", values)
    flags.DEFINE_string("task_name", None, "The task of --data_dir, such as MRPC.", values)
    flags.DEFINE_string("input_file", None, "Records, to pretrain on: names and globs, separated by commas.", values)
    flags.DEFINE_string("vocab_file", None, "The vocabulary.", values)
    flags.DEFINE_bool("do_lower_case", True, "Whether to lower-case.", values)
    flags.DEFINE_enum("shape", "minilm", sorted(SHAPES), "The model's shape.", values)
    flags.DEFINE_integer("max_seq_length", 128, "Tokens that longer rows are cut to; as the records were made.",
                         lower_bound=5, upper_bound=512, flag_values=values)
    flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked pieces in a record; as the records were made.",
                         lower_bound=1, flag_values=values)
    flags.DEFINE_integer("train_batch_size", 32, "Rows in a step.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("num_rows", 640, "Rows in a pass; a multiple of the batch size.", lower_bound=1,
                         flag_values=values)
    flags.DEFINE_float("seconds", 20.0, "Time whole passes until they took so long.", lower_bound=0.0,
                       flag_values=values)
    flags.DEFINE_integer("rounds", 3, "How often each way is measured.", lower_bound=1, flag_values=values)
    flags.DEFINE_string("settings", "best", "best: try all ways, measure the best of each library; all; or the names "
                        f"of ways, separated by commas: {', '.join(name for name, _, _ in WAYS)}.", values)
    flags.DEFINE_string("keras_python", sys.executable, "The Python to run KerasHub in.", values)
    flags.DEFINE_string("torch_python", sys.executable, "The Python to run PyTorch in.", values)
    flags.DEFINE_string("output_file", None, "All numbers, as JSON.", values)
    flags.mark_flags_as_required(["vocab_file"], flag_values=values)


def check_flags(values):
    """`UserError` for flags that contradict each other."""
    if bool(values.data_dir) == bool(values.input_file):
        raise UserError("give --data_dir to fine-tune, or --input_file to pretrain")
    if values.data_dir and not values.task_name:
        raise UserError("--task_name is missing: it says which task's files --data_dir holds")
    if values.num_rows % values.train_batch_size:
        raise UserError(f"--num_rows={values.num_rows} must be a multiple of --train_batch_size="
                        f"{values.train_batch_size}, since the libraries treat a short last batch differently")
    if values.output_file:
        files.check_output(values.output_file, "output_file")
    find_ways(values)


def find_ways(values):
    """The rows of `WAYS` that --settings names; for best and all, all that fit what is measured."""
    settings = values.settings
    known = {way[0]: way for way in WAYS if not (values.input_file and "group_by_length" in way[2])}
    if settings in ("best", "all"):
        return list(known.values())
    unknown = [name for name in settings.split(",") if name not in known]
    if unknown:
        raise UserError(f"--settings={settings}: {unknown[0]!r} is none of best, all, {', '.join(known)}")
    return [known[name] for name in settings.split(",")]


def classification_rows(values, folder):
    """Writes drawn rows of a task as its training file -> arrays by name, number of classes, flags for our script."""
    from bert_tf import batching, tokenization
    from bert_tf.classification import examples, features, tasks

    task = tasks.find(values.task_name)
    if not task.labels:
        raise UserError(f"--task_name={task.name} predicts a score; the peers are set up for labels only")
    path, table = examples.find_table(task, "train", values.data_dir, task.language)
    found = list(examples.read(path, table, task, task.language))
    check_enough(values, len(found), path)
    drawn = [found[n] for n in np.random.RandomState(0).permutation(len(found))[:values.num_rows]]
    data_dir = os.path.join(folder, "data")
    train_file = os.path.join(data_dir, table.file.format(language=task.language))
    files.make_folder(os.path.dirname(train_file))
    lines = dict(files.read_lines(path))
    with files.replacing(train_file) as file:
        file.writelines(f"{lines[number]}\n" for number in [1] * table.header + [row.line for row in drawn])
    tokenizer = tokenization.FullTokenizer(values.vocab_file, values.do_lower_case)
    rows = features.convert(drawn, path, tokenizer, values.max_seq_length, task)
    whole = batching.Sizes(values.max_seq_length, xla=False, static=True)
    batch = features.make_batch(rows, np.arange(len(rows)), whole)
    arrays = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids", "label_ids")}
    return arrays, task.num_classes, {"data_dir": data_dir, "task_name": task.name, "num_train_epochs": 10000,
                                      "do_lower_case": values.do_lower_case}


def pretraining_rows(values, folder):
    """Writes the first records of --input_file -> arrays by name, 2 classes, flags for our script."""
    import tensorflow as tf

    from bert_tf import tokenization
    from bert_tf.pretraining import reading, records

    paths = records.record_files(values.input_file, "input_file")
    input_file = os.path.join(folder, "train.tfrecord")
    with tf.io.TFRecordWriter(input_file) as writer:
        for record in tf.data.TFRecordDataset(paths).take(values.num_rows):
            writer.write(record.numpy())
    vocab_size = max(tokenization.load_vocab(values.vocab_file).values()) + 1
    drawn = reading.RecordFiles([input_file], reading.Limits(
        values.max_seq_length, values.max_predictions_per_seq, vocab_size, type_vocab_size=2))
    check_enough(values, len(drawn), values.input_file)
    return drawn.read(np.arange(len(drawn))), 2, {
        "input_file": input_file, "max_predictions_per_seq": values.max_predictions_per_seq,
        "num_train_steps": 10000, "num_warmup_steps": 1000}


def check_enough(values, num_rows, path):
    if num_rows < values.num_rows:
        raise UserError(f"--num_rows={values.num_rows}: {path} holds {num_rows}")


def make_job(values, folder):
    """Everything that is the same for all ways, its files in `folder`."""
    from bert_tf import tokenization

    layers, hidden, heads, intermediate = SHAPES[values.shape]
    config = {"vocab_size": max(tokenization.load_vocab(values.vocab_file).values()) + 1, "hidden_size": hidden,
              "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": intermediate,
              "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
              "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02}
    make_rows = classification_rows if values.data_dir else pretraining_rows
    arrays, num_classes, script_flags = make_rows(values, folder)
    rows_file, config_file = os.path.join(folder, "rows.npz"), os.path.join(folder, "bert_config.json")
    np.savez(rows_file, **arrays)
    with files.replacing(config_file) as file:
        json.dump(config, file)
    common = {"do_train": True, "bert_config_file": config_file, "vocab_file": values.vocab_file,
              "train_batch_size": values.train_batch_size, "max_seq_length": values.max_seq_length}
    return {"script": "run_classifier.py" if values.data_dir else "run_pretraining.py",
            "flags": {**common, **script_flags}, "rows": rows_file, "num_rows": values.num_rows,
            "mean_length": float(arrays["input_mask"].sum() / values.num_rows),
            "longest": int(arrays["input_mask"].sum(axis=1).max()), "config": config, "num_classes": num_classes,
            "batch_size": values.train_batch_size, "pythons": {"KerasHub": values.keras_python,
                                                               "PyTorch": values.torch_python}}


def measure(job, way, seconds, folder):
    """One measurement: a dictionary with `examples_per_second`, or with `skipped`, the reason why not."""
    name, library, options = way
    measured = {"name": name, "library": library, "padding": options.get("padding"), "busy_before": busy_cores()}
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    if library != "ours":
        environment["TF_ENABLE_ONEDNN_OPTS"] = str(int(options.get("onednn", False)))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run = run_ours if library == "ours" else run_peer
        measured |= run({**job, "library": library, "options": options}, seconds, place, environment)
    print(json.dumps(measured), file=sys.stderr, flush=True)  # so that a run that is broken off was not in vain
    return measured


def busy_cores():
    """How many cores other programs keep busy, over a second; None where the system does not tell."""
    def read():
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, idle, wait = map(int, file.readline().split()[1:6])
        return user + nice + system, idle + wait

    if not os.path.exists("/proc/stat"):
        return None
    (busy, idle), _, (busy_then, idle_then) = read(), time.sleep(1.0), read()
    ticks = busy_then - busy + idle_then - idle
    return os.cpu_count() * (busy_then - busy) / ticks if ticks else None


def run_ours(job, seconds, place, environment):
    """Runs our script until enough of its steps are logged, then ends it with a signal, as Ctrl-C would."""
    from bert_tf.training import journal

    output_dir, screen = os.path.join(place, "run"), os.path.join(place, "screen.txt")
    settings = {**job["flags"], **job["options"], "output_dir": output_dir}
    command = [sys.executable, os.path.join(ROOT, job["script"]),
               *(f"--{flag}={value}" for flag, value in settings.items())]
    started = time.perf_counter()
    with open(screen, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        while True:
            log = journal.read_log(os.path.join(output_dir, journal.LOG))
            speed = steady_speed(log, job["num_rows"] // job["batch_size"], seconds)
            if speed is not None:
                return {"examples_per_second": speed}
            if process.poll() is not None:
                raise UserError(f"{' '.join(command)}: {last_line(files.read_text(screen))}")
            if time.perf_counter() - started > TIME_LIMIT:
                return {"skipped": f"no speed after {TIME_LIMIT:.0f} seconds"}
            time.sleep(1.0)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def steady_speed(log, steps_per_pass, seconds):
    """Examples per second over the whole passes after the first that took `seconds`; None while there are too few."""
    taken = examples = 0.0
    for number, row in enumerate(log[steps_per_pass:], start=1):
        taken += 1.0 / row["steps_per_second"]
        examples += row["examples"]
        if number % steps_per_pass == 0 and taken >= seconds:
            return examples / taken
    return None


def run_peer(job, seconds, place, environment):
    """Runs benchmark_peers.py in the library's Python."""
    job_file = os.path.join(place, "job.json")
    with files.replacing(job_file) as file:
        json.dump({**job, "seconds": seconds}, file)
    command = [job["pythons"][job["library"]], os.path.join(ROOT, "scripts", "benchmark_peers.py"), job_file]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT,
                              env={**environment, **KEEP_FREED_MEMORY})
    except subprocess.TimeoutExpired:
        return {"skipped": f"no speed after {TIME_LIMIT:.0f} seconds"}
    except OSError as error:
        return {"skipped": f"{command[0]}: {error.strerror}"}
    return json.loads(last_line(done.stdout)) if done.returncode == 0 else {"skipped": last_line(done.stderr)}


def last_line(text):
    return text.strip().rpartition("\n")[2]


def best_of_each(trials):
    """The names of the fastest of each library and padding; one that was left out everywhere has none."""
    best = {}
    for trial in trials:
        kind, speed = (trial["library"], trial["padding"]), trial.get("examples_per_second", 0.0)
        if speed > best.get(kind, (0.0, None))[0]:
            best[kind] = (speed, trial["name"])
    return [name for _, name in best.values()]


def summarize(rounds):
    """`{name: (lowest, median, highest speed, ratio)}` of rounds of measurements, those that were skipped left out.

    The ratio is the median over rounds of the speed of our fastest way in that round to this one's.
    """
    speeds, ratios = {}, {}
    for measured in rounds:
        measured = [one for one in measured if "skipped" not in one]
        ours = max((one["examples_per_second"] for one in measured if one["library"] == "ours"), default=None)
        for one in measured:
            speeds.setdefault(one["name"], []).append(one["examples_per_second"])
            if ours:
                ratios.setdefault(one["name"], []).append(ours / one["examples_per_second"])
    return {name: (min(found), statistics.median(found), max(found),
                   statistics.median(ratios[name]) if name in ratios else None) for name, found in speeds.items()}


def report(title, rounds):
    """Prints a table of `summarize`, and why ways were skipped."""
    print(f"\n{title}\n{'':26}{'examples/s':>12}{'lowest':>10}{'highest':>10}{'ours is':>14}")
    for name, (lowest, median, highest, ratio) in summarize(rounds).items():
        times = "" if ratio is None else f"{ratio:8.2f} times"
        print(f"{name:26}{median:12.1f}{lowest:10.1f}{highest:10.1f}{times:>14}")
    for name, reason in {one["name"]: one["skipped"] for part in rounds for one in part if "skipped" in one}.items():
        print(f"{name:26}left out: {reason}")


def machine():
    """One line: processor, cores, operating system, Python, load average."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        names = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
        model = names[0] if names else model
    return (f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system()}, Python {platform.python_version()}, "
            f"load {os.getloadavg()[0]:.1f}")


def run(values):
    check_flags(values)
    app.load_tensorflow()
    ways = find_ways(values)
    with tempfile.TemporaryDirectory() as folder:
        job = make_job(values, folder)
        result = {"machine": machine(), "job": job, "seconds": values.seconds, "trial": [], "rounds": []}
        print(f"{result['machine']}\n{job['script']}, {values.shape}, {job['num_rows']} rows in batches of "
              f"{job['batch_size']}, {job['mean_length']:.1f} tokens each, the longest {job['longest']}")
        if values.settings == "best":
            result["trial"] = [measure(job, way, 0.0, folder) for way in ways]
            report("One pass each, to find the best of each library", [result["trial"]])
            names = best_of_each(result["trial"])
            ways = [way for way in ways if way[0] in names]
        for _ in range(values.rounds):
            result["rounds"].append([measure(job, way, values.seconds, folder) for way in ways])
    report(f"Medians of {values.rounds} rounds", result["rounds"])
    measured = [one for part in result["rounds"] for one in part]
    print("; ".join(sorted({one["versions"] for one in measured if "versions" in one})))
    busiest = max((one["busy_before"] or 0.0 for one in measured), default=0.0)
    if busiest > BUSY:
        print(f"up to {busiest:.1f} cores were busy with other programs: measure again when the machine is quiet")
    if values.output_file:
        with files.replacing(values.output_file) as file:
            file.write(json.dumps({**result, "summary": summarize(result["rounds"])}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(app.main(define_flags, run, description=__doc__))
