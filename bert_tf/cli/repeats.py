"""Several runs of one command: over seeds, of which the best is kept, and over tasks; each ends in a table."""

import copy
import logging
import os

import keras
import numpy as np

from bert_tf import checkpoint, files, model_dir, run_dir
from bert_tf.cli import models
from bert_tf.errors import UserError
from bert_tf.training.selection import find_best

logger = logging.getLogger("bert_tf")

SEEDS, TASKS = "seeds.tsv", "tasks.tsv"


def changed(values, **settings):
    """A copy of the parsed flags, some of them set."""
    values = copy.deepcopy(values)
    for name, value in settings.items():
        setattr(values, name, value)
    return values


def check(values, kind):
    """`UserError` for several runs where they have no meaning, or on a `Runtime.kind` that cannot start again.

    Also where --output_dir, whose model the best of several seeds will be, holds one that no seeds left.
    """
    several_tasks = "task_name" in values and "," in (values.task_name or "")
    if kind in ("multi_worker", "tpu") and (values.num_seeds > 1 or several_tasks):
        raise UserError(f"--strategy={kind} makes one run in a process, not several seeds or tasks; start a command "
                        "for each")
    if values.num_seeds < 2:
        return
    folder = values.output_dir
    is_ours = files.exists(os.path.join(folder, SEEDS)) and not files.exists(os.path.join(folder, run_dir.FINGERPRINT))
    if checkpoint.latest(folder) and not is_ours:
        raise UserError(f"--output_dir={folder} holds checkpoints, and --num_seeds={values.num_seeds} would put the "
                        "best seed's in their place; give it a folder of its own")
    for flag in ("init_checkpoint", "teacher"):
        given = values[flag].value if flag in values else None
        if given and models.is_in_folder(checkpoint.find(given), folder):
            raise UserError(f"--{flag}={given} lies in --output_dir, where --num_seeds={values.num_seeds} puts the "
                            "best seed's model; give it a folder of its own")
    if not (values.do_train and values.do_eval):
        raise UserError(f"--num_seeds={values.num_seeds} compares trainings by their evaluation: give --do_train and "
                        "--do_eval")


def run(values, kind, run_once, choose, results):
    """`run_once(values)` with --seed alone, or `over_seeds` -> the metrics; checks first.

    `choose(metrics)` names the metric that seeds are compared by where --best_metric does not, `results` all files
    that a run leaves beside its model.
    """
    check(values, kind)
    if values.num_seeds == 1:
        return run_once(values)
    best_by = values.best_metric if values["best_metric"].present else None
    return over_seeds(values, run_once, lambda metrics: best_by or choose(metrics), results)


def over_seeds(values, run, choose, results):
    """Makes --num_seeds runs in `seed_<n>` below --output_dir, and --output_dir the model of the best, with `results`.

    `run(values)` trains, evaluates, predicts and returns the metrics by name; `choose(metrics)` names the one by which
    the best is found: the greatest, the smallest where the name ends in "loss". Returns the means; `seeds.tsv` tells
    all.
    """
    folders, rows, use_ema = {}, {}, values.use_ema
    if use_ema is None:  # for all alike, whatever the folder of each says
        use_ema = bool(values.ema_decay) and model_dir.read_folder(values.output_dir).get("use_ema", False)
    for seed in range(values.seed, values.seed + values.num_seeds):
        folders[seed] = os.path.join(values.output_dir, f"seed_{seed}")
        logger.info("seed %d: %s", seed, folders[seed])
        rows[seed] = run(changed(values, seed=seed, output_dir=folders[seed], use_ema=use_ema))
        keras.utils.clear_session()
    columns = {name: [float(row[name]) for row in rows.values()] for name in rows[values.seed]}
    means = {name: float(np.mean(column)) for name, column in columns.items()}
    deviations = {name: float(np.std(column, ddof=1)) for name, column in columns.items()}
    write_table(os.path.join(values.output_dir, SEEDS), "seed",
                {**rows, "mean": means, "standard deviation": deviations})
    metric = choose(means)
    best = find_best(rows, metric)
    if best is None:
        raise UserError(f"{metric} is no number with any seed; {values.output_dir} holds the runs, and none is chosen")
    logger.info("the best %s has seed %d: %s is its model", metric, best, values.output_dir)
    adopt(folders[best], values.output_dir, results)
    return means


def adopt(source, folder, results):
    """Makes `folder` the model that the run in `source` left: its checkpoint, and of the files `results` its own."""
    prefix = model_dir.find(source)
    adopted = os.path.join(folder, os.path.basename(prefix))
    checkpoint.write(adopted, dict(checkpoint.read(prefix)))
    checkpoint.update_state(folder, adopted)
    for earlier in checkpoint.list_prefixes(folder):
        if os.path.basename(earlier) != os.path.basename(adopted):
            checkpoint.delete(earlier)
    for name in (model_dir.CONFIG, model_dir.VOCAB, model_dir.INFO, *results):
        if files.exists(os.path.join(source, name)):
            files.copy(os.path.join(source, name), os.path.join(folder, name))
        else:
            files.remove(os.path.join(folder, name))  # another run's


def write_table(path, head, rows):
    """Writes rows of metrics by name as tab-separated text, a column for each metric that any has, and logs them."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = ["\t".join([head, *names])]
    lines += ["\t".join([str(key), *(f"{row[name]:.6g}" if name in row else "" for name in names)])
              for key, row in rows.items()]
    files.make_folder(os.path.dirname(path))
    with files.replacing(path) as file:
        file.write("\n".join(lines) + "\n")
    for line in lines:
        logger.info("  %s", line.replace("\t", "  "))
