"""Several runs of one command: over seeds, of which the best is kept, and over tasks; each ends in a table."""

import copy
import logging
import os
import statistics

import keras

from bert_tf import checkpoint, files, model_dir
from bert_tf.errors import UserError

logger = logging.getLogger("bert_tf")

SEEDS, TASKS = "seeds.tsv", "tasks.tsv"


def changed(values, **settings):
    """A copy of the parsed flags, some of them set."""
    values = copy.deepcopy(values)
    for name, value in settings.items():
        setattr(values, name, value)
    return values


def check(values, kind):
    """`UserError` for several seeds where they have no meaning, or on a `Runtime.kind` that cannot start again."""
    if values.num_seeds < 2:
        return
    if not (values.do_train and values.do_eval):
        raise UserError(f"--num_seeds={values.num_seeds} compares trainings by their evaluation: give --do_train and "
                        "--do_eval")
    if kind in ("multi_worker", "tpu"):
        raise UserError(f"--num_seeds={values.num_seeds} works on one machine only, not with --strategy={kind}; start "
                        "a run for each --seed")


def over_seeds(values, run, choose):
    """Makes --num_seeds runs in `seed_<n>` below --output_dir, and --output_dir the model of the best.

    `run(values)` trains, evaluates and returns the metrics by name; `choose(metrics)` names the one by which the best
    is found: the greatest, the smallest where the name ends in "loss". Returns the means; `seeds.tsv` tells all.
    """
    folders, rows = {}, {}
    for seed in range(values.seed, values.seed + values.num_seeds):
        folders[seed] = os.path.join(values.output_dir, f"seed_{seed}")
        logger.info("seed %d: %s", seed, folders[seed])
        rows[seed] = run(changed(values, seed=seed, output_dir=folders[seed], do_predict=False))
        keras.utils.clear_session()
    means = {name: statistics.mean(row[name] for row in rows.values()) for name in rows[values.seed]}
    deviations = {name: statistics.stdev(row[name] for row in rows.values()) for name in means}
    write_table(os.path.join(values.output_dir, SEEDS), "seed",
                {**rows, "mean": means, "standard deviation": deviations})
    metric = choose(means)
    sign = -1 if metric.endswith("loss") else 1
    best = max(rows, key=lambda seed: sign * rows[seed][metric])
    logger.info("the best %s has seed %d: %s is its model", metric, best, values.output_dir)
    adopt(folders[best], values.output_dir)
    return means


def adopt(source, folder):
    """Makes `folder` the model that the run in `source` left: its checkpoint and what lies beside it."""
    prefix = model_dir.find(source)
    for earlier in checkpoint.list_prefixes(folder):
        checkpoint.delete(earlier)
    adopted = os.path.join(folder, os.path.basename(prefix))
    checkpoint.write(adopted, dict(checkpoint.read(prefix)))
    checkpoint.update_state(folder, adopted)
    for name in (model_dir.CONFIG, model_dir.VOCAB, model_dir.INFO):
        with files.open_binary(os.path.join(source, name)) as file:
            content = file.read()
        with files.replacing(os.path.join(folder, name), "wb") as file:
            file.write(content)


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
