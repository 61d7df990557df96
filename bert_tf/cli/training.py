"""What the flags that all training scripts share set in motion: devices, start or resumption, training, evaluation."""

import dataclasses
import logging
import os
import re

from bert_tf import adaptation, batching, checkpoint, model_dir, optimization, run_dir
from bert_tf.cli import common, models
from bert_tf.errors import UserError
from bert_tf.runtime import Runtime
from bert_tf.training import journal, loop, saving
from bert_tf.training.agreement import build_sharing
from bert_tf.training.precision import LossScale
from bert_tf.training.selection import LOG, Selection
from bert_tf.training.state import TrainingState

logger = logging.getLogger("bert_tf")

WEIGHTS = ("best_checkpoint", "use_ema")  # what a model's folder notes of the weights that it stands for


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long training is: steps, those of warm-up, and the examples that they take in all (None: without end)."""

    num_train_steps: int
    num_warmup_steps: int
    num_examples: int | None = None


@dataclasses.dataclass(frozen=True)
class Start:
    """What a run begins with: its fingerprint, the checkpoint it goes on from or None, the initial one or None."""

    settings: dict
    newest: str | None
    init_checkpoint: str | None


@dataclasses.dataclass(frozen=True)
class Course:
    """A training as it is prepared: how long it is, its batches, what it starts from, what it is evaluated on.

    `evaluated_on` is a digest of the data, None where nothing is evaluated.
    """

    plan: Plan
    feed: batching.Feed
    start: Start
    evaluated_on: str | None = None


def make_runtime(values):
    """How the program runs, as the flags say."""
    names = ("precision", "xla", "seed", "deterministic", "virtual_devices", "worker_timeout", "tpu_name", "tpu_zone",
             "gcp_project", "num_tpu_cores")
    return Runtime(strategy="tpu" if values.use_tpu else values.strategy,
                   **{name: values[name].value for name in names})


def make_sizes(values, runtime, static=False):
    """How batches are padded: as little as can be, on a TPU or where `static` always to the same size."""
    return batching.Sizes(values.max_seq_length, values.xla, static=static or runtime.kind == "tpu")


def training_split(values, runtime):
    """How a step's examples are dealt to devices and micro-batches; `UserError` where they do not come out even."""
    batch_size, replicas = values.train_batch_size, runtime.replicas
    accumulation = values.gradient_accumulation_steps or 1
    if values.device_batch_size:
        accumulation = -(-batch_size // (replicas * values.device_batch_size))
    parts = replicas * accumulation
    if batch_size % parts:
        fitting = [size for size in (batch_size // parts * parts, -(-batch_size // parts) * parts) if size]
        raise UserError(f"--train_batch_size={batch_size} cannot be divided among {replicas} devices x {accumulation} "
                        f"micro-batches; {' or '.join(map(str, fitting))} can")
    logger.info("batch of %d = %d per device x %d device%s x %d micro-batch%s", batch_size, batch_size // parts,
                replicas, "s" * (replicas > 1), accumulation, "es" * (accumulation > 1))
    return batching.Split(replicas, accumulation, runtime.first_replica, runtime.local_replicas)


def training_feed(values, runtime, order, make, where):
    """The batches of a training run; see `batching.Feed`."""
    split = training_split(values, runtime)
    rows = values.train_batch_size // (split.replicas * split.accumulation) if runtime.kind == "tpu" else None
    return batching.Feed(order, make, where, split, rows)


def evaluation_feed(runtime, batch_size, order, make, where):
    """The batches of an evaluation; `order()` yields example numbers."""
    split = batching.Split(runtime.replicas, 1, runtime.first_replica, runtime.local_replicas)
    rows = -(-batch_size // split.replicas) if runtime.kind == "tpu" else None
    return batching.Feed(lambda start: order(), make, where, split, rows)


def find_start(values, runtime, feed, start_from, settings, metric_names):
    """Where a run begins, from its folder and flags; nothing is written.

    `settings` are the script's own part of the fingerprint, `metric_names` what its evaluation returns. A folder that
    holds another run and a name that there is not are a `UserError`.
    """
    asked = values.eval_every_steps or values["best_metric"].present
    if asked and values.best_metric not in metric_names:
        raise UserError(f"--best_metric={values.best_metric} is none of {', '.join(metric_names)}")
    if values.optimizer not in optimization.OPTIMIZERS:
        raise UserError(f"--optimizer={values.optimizer} is unknown; use one of {', '.join(optimization.OPTIMIZERS)}")
    settings = {**settings, "init_checkpoint": checkpoint.digest(start_from) if start_from else None,
                "strategy": runtime.kind, "replicas": feed.split.replicas, "accumulation": feed.split.accumulation,
                **{name: values[name].value for name in common.FINGERPRINT}}
    newest = run_dir.find(values.output_dir, settings, values.resume, values.overwrite_output_dir)
    if values.overwrite_output_dir and start_from and models.is_in_folder(start_from, values.output_dir):
        raise UserError(f"--overwrite_output_dir would remove --init_checkpoint={start_from}; move one of them")
    if newest and values.use_ema is None:
        values.use_ema = model_dir.read_info(newest).get("use_ema", False)
        if values.use_ema and not values.ema_decay:
            raise UserError(f"{values.output_dir} stands for moving averages; go on with --ema_decay, or without them "
                            "by --use_ema=false")
    return Start(settings, newest, start_from)


def check_selection(values, plan, newest):
    """`UserError` where a run whose best step is chosen by evaluations would go on or end without that choice."""
    if newest is None or values.eval_every_steps or values.resume or "best_checkpoint" in model_dir.read_info(newest):
        return
    last = max((row["step"] for row in journal.read_log(os.path.join(values.output_dir, LOG))), default=None)
    step = checkpoint.step_of(newest)
    if last is not None and (step < plan.num_train_steps or last == step):
        raise UserError(f"{values.output_dir} holds a run whose best step --eval_every_steps is to choose; give the "
                        "flag again, or --resume to go on without")


def prepare(values, runtime, model, course):
    """The state that training begins with: weights from a checkpoint, what is trained, optimizer, resumption."""
    plan, start = course.plan, course.start
    if start.newest is None:
        models.initialize(values, model, start.init_checkpoint)
    if values.lora_rank:
        adaptation.add_lora(model, values.lora_rank, values.lora_train)
    if values.freeze:
        adaptation.freeze(model, values.freeze)
    model.bert.encoder.recompute = values.recompute
    optimizer = optimization.create_optimizer(
        values.learning_rate, plan.num_train_steps, plan.num_warmup_steps, values.optimizer,
        ema_decay=values.ema_decay, layer_decay=values.layer_decay, num_layers=model.config.num_hidden_layers)
    state = TrainingState(model, optimizer, LossScale() if values.precision == "float16" else None)
    if start.newest:
        state.resume(start.newest, values.train_batch_size)
        logger.info("going on from %s", start.newest)
    return state


def run(values, runtime, course, state, objective, evaluate, write_model_dir):
    """Trains a prepared state to its end, if it is not there, and returns the step whose weights the model then has.

    These are the best ones where --eval_every_steps chose, the averages with --use_ema. `evaluate()` gives the metrics
    to choose by; `write_model_dir(**info)` makes --output_dir a model, and notes `info`.
    """
    num_train_steps, start = course.plan.num_train_steps, course.start
    selection = make_selection(values, runtime, course, state, evaluate) if values.eval_every_steps else None
    # What is the best is noted when training ends, early or not.
    has_ended = start.newest and not values.resume and "best_checkpoint" in model_dir.read_info(start.newest)
    is_complete = has_ended or state.step >= num_train_steps or bool(selection and selection.exhausted)
    if is_complete:
        logger.info("complete at step %d", state.step)
        best = chosen_before(values)
        if best is None and selection and selection.is_up_to(state.step):  # the run ended before it could note it
            best = selection.best_step
    else:
        if runtime.is_chief:
            run_dir.begin(values.output_dir, start.settings, values.overwrite_output_dir)
            write_model_dir(**noted(values))
        describe(state)
        schedule = loop.Schedule(
            values.output_dir, num_train_steps, values.save_checkpoints_steps, values.keep_checkpoint_max,
            values.keep_checkpoint_every_n_steps, values.iterations_per_loop, values.eval_every_steps,
            common.profile_steps(values), values.skip_nonfinite, values.clip_norm)
        saved = loop.train(state, objective, course.feed, runtime, schedule, callbacks(values, runtime), selection)
        logger.info("trained to step %d: %s", state.step, saved)
        best = selection and selection.best_step
    step = use_weights(values, runtime, state, best, write_model_dir)
    if is_complete and runtime.is_chief:
        run_dir.begin(values.output_dir, start.settings)
    return step


def chosen_before(values):
    """The step that --output_dir stands for since an earlier command chose it as the best; None where none did."""
    prefix = model_dir.find(values.output_dir)
    is_best = model_dir.read_info(prefix).get("best_checkpoint") == os.path.basename(prefix)
    return checkpoint.step_of(prefix) if is_best else None


def use_weights(values, runtime, state, best, write_model_dir):
    """Gives the model the weights that are to be used, notes in --output_dir which they are, and returns their step.

    They are those of the step `best`, or of now where it is None, or their averages.
    """
    info = noted(values)
    if best is not None:
        logger.info("step %d was the best: its weights are used", best)
        info["best_checkpoint"] = os.path.basename(saving.prefix_of(values.output_dir, best))
        checkpoint.restore(state.model, saving.prefix_of(values.output_dir, best), averaged=bool(values.use_ema))
    elif values.use_ema:
        state.use_averages()
    known = model_dir.read_info(saving.prefix_of(values.output_dir, state.step))
    if runtime.is_chief and {name: known.get(name) for name in WEIGHTS} != {name: info.get(name) for name in WEIGHTS}:
        write_model_dir(**info)
    return state.step if best is None else best


def noted(values):
    """What --output_dir is to note of which weights it stands for, beside the step."""
    return {"use_ema": True} if values.use_ema else {}


def make_selection(values, runtime, course, state, evaluate):
    """What evaluates while training, the averages in place of the weights if the flags say so."""
    share = build_sharing(runtime)

    def evaluate_now():
        if not values.use_ema:
            return share(evaluate())
        weights = state.use_averages()
        try:
            return share(evaluate())
        finally:
            state.assign(weights)

    selection = Selection(values.output_dir, evaluate_now, values.best_metric, values.early_stopping_patience,
                          runtime.is_chief, evaluated_on=course.evaluated_on, use_ema=bool(values.use_ema))
    selection.begin(state.step)
    return selection


def describe(state):
    """Says how large the model is, what of it is trained, and what of that is decayed."""
    logger.info("%s parameters", f"{state.model.count_params():,}")
    for rate, names in zip((state.optimizer.weight_decay_rate, 0.0), state.optimizer.decay_groups()):
        alike = dict.fromkeys(re.sub(r"layer_\d+", "layer_*", name) for name in names)
        logger.info("weight decay %s on %d variables: %s", rate, len(names), ", ".join(alike))


def callbacks(values, runtime):
    """What shows and logs a run; only the chief's."""
    if not runtime.is_chief:
        return []
    shown = [journal.Bar(), journal.Log(values.output_dir), journal.Curves(values.output_dir)]
    profiled = common.profile_steps(values)
    return [*shown, journal.Profile(values.output_dir, *profiled)] if profiled else shown
