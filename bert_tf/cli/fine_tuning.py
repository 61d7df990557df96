"""What the scripts that fine-tune share: which folder's model and settings hold, how long training is, its batches."""

import dataclasses
import fractions
import hashlib
import logging
import math
import os

from bert_tf import batching, checkpoint, cluster, feature_cache, files, model_dir, modeling, run_dir, tokenization
from bert_tf.cli import models, training
from bert_tf.errors import UserError
from bert_tf.training.state import EXAMPLES_SEEN

logger = logging.getLogger("bert_tf")


@dataclasses.dataclass(frozen=True)
class Base:
    """The model that flags and folders name: its config and how text becomes ids.

    `prefixes` are the checkpoint that --output_dir stands for and --init_checkpoint, as far as there are such;
    `prefix` is the one whose folder says `info` of a fine-tuned model (else the first, and {}).
    """

    prefixes: list
    prefix: str | None
    info: dict
    config: modeling.BertConfig
    vocab_file: str
    tokenizer: tokenization.FullTokenizer

    def agreed(self, values, flag, noted):
        """What a flag says, else `noted` by the model's folder; None without either.

        Only training may turn a model to something else: `UserError` where the two differ.
        """
        given = values[flag].value
        if None not in (given, noted) and given != noted and not values.do_train:
            raise UserError(f"--{flag}={given}, but {self.prefix} was trained with {noted}; leave the flag out")
        return noted if given is None else given

    def length(self, values, usual, least, is_of_the_task):
        """The sequence length of --max_seq_length, else of the folder if it is a model of the task, else `usual`."""
        length = self.agreed(values, "max_seq_length", self.info.get("max_seq_length") if is_of_the_task else None)
        length = usual if length is None else length
        limit = self.config.max_position_embeddings
        if not least <= length <= limit:
            raise UserError(f"--max_seq_length={length} must lie between {least} and the model's {limit} positions "
                            "(max_position_embeddings in its config)")
        return length


def find_base(values, start_from):
    """The `Base` of the flags and of the folders of the checkpoints in --output_dir and at --init_checkpoint."""
    begins = values.do_train and values.overwrite_output_dir
    newest = None if begins else model_dir.latest(values.output_dir)
    prefixes = [prefix for prefix in (newest, start_from) if prefix]
    if not prefixes and not values.do_train:
        raise UserError(f"nothing to evaluate: {values.output_dir} holds no checkpoint, and no --init_checkpoint is "
                        "given")
    infos = [(prefix, model_dir.read_info(prefix)) for prefix in prefixes]
    if newest and start_from and not values.do_train and os.path.realpath(start_from) != os.path.realpath(newest):
        say_passed_over(values, newest, start_from, infos[1][1])
    prefix, info = next((row for row in infos if row[1]), (prefixes[0] if prefixes else None, {}))
    config = modeling.BertConfig.from_json_file(find_file(values, prefixes, model_dir.CONFIG, "bert_config_file"))
    vocab_file = find_file(values, prefixes, model_dir.VOCAB, "vocab_file")
    tokenizer = model_dir.load_tokenizer(vocab_file, config, prefix, values.do_lower_case, values.allow_case_mismatch)
    return Base(prefixes, prefix, info, config, vocab_file, tokenizer)


def say_passed_over(values, newest, start_from, info):
    """Says that the model is the one in --output_dir; `UserError` where --init_checkpoint may be another to ask.

    It may be what training began with, as in the original's commands: the same file, or, by its `info`, no model of a
    task.
    """
    begun_with = run_dir.read(values.output_dir).get("init_checkpoint")
    if ("kind" in info or "labels" in info) and begun_with != checkpoint.digest(start_from):
        raise UserError(f"--init_checkpoint={values.init_checkpoint} is fine-tuned, and so is {newest} in "
                        "--output_dir; leave the first out, or give --output_dir a folder without checkpoints")
    logger.info("the model is %s; --init_checkpoint, with which training begins, is not read", newest)


def find_file(values, prefixes, name, flag):
    """The path that a flag gives, else of the file `name` beside the first checkpoint that has one."""
    given = values[flag].value
    for path in [given] if given else [os.path.join(os.path.dirname(prefix), name) for prefix in prefixes]:
        if files.exists(path):
            return path
    raise UserError(f"--{flag}={given}: no such file" if given else f"--{flag} is missing, and no {name} lies beside "
                    f"{' or '.join(prefixes) or 'a checkpoint'}")


def casing(tokenizer):
    """What a model's folder notes of how its text is lower-cased."""
    return {"do_lower_case": tokenizer.do_lower_case, "strip_accents": tokenizer.basic_tokenizer.strip_accents}


def kept(values, what, path, others, settings, make):
    """What `make()` makes of the file `path`, the files `others` and `settings`: from the cache, if it is there.

    `what` says in a word what that is. Of several workers the chief alone keeps it.
    """
    folder = feature_cache.default_folder() if values.features_dir is None else values.features_dir
    if not folder or not files.exists(path):  # a dataset's path is none
        return make()
    workers = cluster.Cluster.from_environment()
    place = hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:8]
    return feature_cache.load_or_make(folder, f"{what}-{os.path.basename(path)}-{place}",
                                      feature_cache.fingerprint([path, *others], settings), make,
                                      workers is None or workers.is_chief)


def make_plan(values, num_examples, num_counted=None):
    """The `Plan` of training on `num_examples` for --num_train_epochs.

    With --original_steps the steps follow from `num_counted`, what the original counts in place of examples.
    """
    batch_size = values.train_batch_size
    if values.original_steps:
        steps = int((num_counted or num_examples) / batch_size * values.num_train_epochs)
        total = steps * batch_size
    else:
        # As the flag is written: a tenth of 30 examples is 3, which in floating point is a little more.
        total = math.ceil(num_examples * fractions.Fraction(str(values.num_train_epochs)))
        steps = math.ceil(total / batch_size)
    if not steps:
        raise UserError(f"--num_train_epochs={values.num_train_epochs} of {num_examples} examples do not fill a batch "
                        f"of {batch_size}, so that --original_steps makes no step")
    return training.Plan(steps, int(steps * values.warmup_proportion), total)


def make_course(values, runtime, rows, make, plan, start_from, settings, metric_names, evaluated_on):
    """The `training.Course` of training on all of `rows`, features of which `make(numbers)` makes a batch.

    The order is one that seed and epoch decide, the last batch short. `settings` are the task's own part of the
    fingerprint; other arguments as for `training.find_start` and `training.Course`. A run whose steps so far are not
    of the same size (the short last batch of one that is to go on, or another batch size) takes the steps that are
    left of the data. `UserError` too where it had other labels.
    """
    lengths = rows.lengths if values.group_by_length else None

    def order(start):
        return batching.training_order(len(rows), values.train_batch_size, values.seed, start, end=plan.num_examples,
                                       lengths=lengths)

    feed = training.training_feed(values, runtime, order, make, rows.where)
    start = training.find_start(values, runtime, feed, start_from, settings, metric_names)
    had = model_dir.read_info(start.newest).get("labels") if start.newest else None
    if had is not None and had != settings.get("labels"):
        raise UserError(f"{values.output_dir} holds a run with other labels, {had!r:.100} in place of "
                        f"{settings.get('labels')!r:.100}; give the run a folder of its own")
    if start.newest and EXAMPLES_SEEN in checkpoint.list_variables(start.newest):
        plan = go_on(values, plan, start.newest, len(rows))
    training.check_selection(values, plan, start.newest)
    return training.Course(plan, feed, start, evaluated_on)


def go_on(values, plan, newest, num_examples):
    """The `training.Plan` of a run that goes on from the checkpoint `newest`, whatever batches it had before.

    `UserError` for another batch size where it decides which examples are together, but between two epochs.
    """
    batch_size, step = values.train_batch_size, checkpoint.step_of(newest)
    seen = int(dict(checkpoint.read(newest, [EXAMPLES_SEEN]))[EXAMPLES_SEEN])
    if seen == step * batch_size:
        return plan
    earlier = run_dir.read(values.output_dir).get("train_batch_size", batch_size)
    if values.group_by_length and earlier != batch_size and seen % num_examples:
        raise UserError(f"--train_batch_size={batch_size}: with --group_by_length a run of another, {earlier}, can go "
                        f"on with it only after a whole epoch, not after {seen} of {num_examples} examples")
    left, warmup = max(0, plan.num_examples - seen), plan.num_examples * values.warmup_proportion - seen
    steps = left // batch_size if values.original_steps else math.ceil(left / batch_size)
    num_warmup_steps = step + math.ceil(warmup / batch_size) if warmup > 0 else min(plan.num_warmup_steps, step)
    return dataclasses.replace(plan, num_train_steps=step + steps, num_warmup_steps=num_warmup_steps)


def give_weights(values, runtime, model, objective, base, course, evaluate, write_model_dir):
    """Trains a model along its `Course`, or without one restores it from a checkpoint -> the step of its weights.

    `evaluate` and `write_model_dir` are as for `training.run`.
    """
    if course is None:
        return models.restore(values, model, base.prefixes[0])
    state = training.prepare(values, runtime, model, course)
    logger.info("%d steps, %d of warm-up, over %d examples", course.plan.num_train_steps,
                course.plan.num_warmup_steps, course.plan.num_examples)
    return training.run(values, runtime, course, state, objective, evaluate, write_model_dir)
