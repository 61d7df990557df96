"""What the flags of run_pretraining.py set in motion: checks of all that is read, training, evaluation."""

import functools
import logging
import os

from bert_tf import batching, files, model_dir, modeling, run_dir, tokenization
from bert_tf.cli import models, training
from bert_tf.errors import UserError
from bert_tf.pretraining import instances, objective, reading, records
from bert_tf.training import evaluation, loop

logger = logging.getLogger("bert_tf")


def run(values):
    """Checks all that can be checked, then trains and evaluates as asked."""
    runtime = training.make_runtime(values)
    start_from = None if values.init_checkpoint is None else model_dir.find(values.init_checkpoint)
    config_file = models.find_config(values, start_from)
    config = modeling.BertConfig.from_json_file(config_file)
    check_lengths(values, config, config_file)
    paths = records.record_files(values.input_file, "input_file")
    sidecars = records.check_sidecars(paths, values.max_seq_length, values.max_predictions_per_seq, config.vocab_size)
    sidecar = next(filter(None, sidecars), {})
    if not values.allow_case_mismatch:
        check_casing(values, sidecars, start_from)
    if start_from and sidecar:
        compare_vocabularies(sidecar, start_from)
    vocab_file = find_vocabulary(values, config, sidecar) if values.do_train else None
    limits = reading.Limits(values.max_seq_length, values.max_predictions_per_seq, config.vocab_size,
                            config.type_vocab_size)
    record_files = reading.RecordFiles(paths, limits)
    logger.info("%d records in %d file%s", len(record_files), len(paths), "s" * (len(paths) > 1))
    unused = config.vocab_size - sidecar.get("vocab_size", config.vocab_size)
    if unused:
        logger.info("%d ids of the config have no piece in the records' vocabulary: they are never to be predicted",
                    unused)
    if values.do_train:
        plan, feed = training.Plan(values.num_train_steps, values.num_warmup_steps), training_feed(values, runtime,
                                                                                                   record_files)
        start = training.find_start(values, runtime, feed, start_from, fingerprint(values, config, record_files),
                                    evaluation.metric_names(objective))
        training.check_selection(values, plan, start.newest)
        course = training.Course(plan, feed, start, f"{record_files.digest} x {wanted_examples(values)}")
    with runtime.start().scope():
        model = modeling.BertForPreTraining(config, dtype=runtime.policy)
        evaluate = evaluation.build_evaluation(model, objective, runtime)
        evaluate_records = functools.partial(evaluate, evaluation_feed(values, runtime, record_files))
        step = None
        if values.do_train:
            state = training.prepare(values, runtime, model, course)
            step = training.run(values, runtime, course, state, objective, evaluate_records,
                                functools.partial(write_model_dir, values, config, sidecar, vocab_file))
        if values.do_eval:
            results(values, runtime, model, evaluate_records, start_from, step)


def check_lengths(values, config, config_file):
    """`UserError` for a sequence length that no record or no model of this config has."""
    if values.max_seq_length < instances.MIN_SEQ_LENGTH:
        raise UserError(f"--max_seq_length={values.max_seq_length}: a record takes at least "
                        f"{instances.MIN_SEQ_LENGTH} tokens")
    if values.max_seq_length > config.max_position_embeddings:
        raise UserError(f"--max_seq_length={values.max_seq_length} is beyond the model's "
                        f"{config.max_position_embeddings} positions (max_position_embeddings in {config_file})")


def check_casing(values, sidecars, start_from):
    """`UserError` for records of two casings, or of another casing than the checkpoint's."""
    casings = {sidecar["do_lower_case"] for sidecar in sidecars if sidecar and "do_lower_case" in sidecar}
    advice = "make them again (--allow_case_mismatch goes on regardless)"
    if len(casings) > 1:
        raise UserError(f"--input_file={values.input_file}: some records were made with --do_lower_case, others not; "
                        f"{advice}")
    for lowered in casings if start_from else ():
        tokenization.check_casing([], lowered, start_from)
        noted = model_dir.read_info(start_from).get("do_lower_case", lowered)
        if noted != lowered:
            raise UserError(f"the records were made with --do_lower_case={lowered}, {start_from} says {noted}; "
                            f"{advice}")


def compare_vocabularies(sidecar, start_from):
    """Warns of records that were made with another vocabulary than the one beside the checkpoint."""
    vocab_file = model_dir.find_file(start_from, model_dir.VOCAB, None, "vocab_file", required=False)
    if vocab_file and files.sha256(vocab_file) != sidecar.get("vocab_sha256"):
        logger.warning("the records were made with another vocabulary (%s) than the one beside the checkpoint, %s: "
                       "ids that do not mean the same ruin the weights", sidecar.get("vocab_file"), vocab_file)


def find_vocabulary(values, config, sidecar):
    """The vocabulary to put into --output_dir, --vocab_file or the one that the records name; None without either.

    `UserError` for a --vocab_file that is none, is larger than the model's, or is not the records'.
    """
    vocab_file = values.vocab_file
    if vocab_file:
        size = max(tokenization.load_vocab(vocab_file).values()) + 1
        if size > config.vocab_size:
            raise UserError(f"--vocab_file={vocab_file} has {size} pieces, the model {config.vocab_size} (vocab_size "
                            "in its config)")
        if sidecar and files.sha256(vocab_file) != sidecar["vocab_sha256"]:
            raise UserError(f"--vocab_file={vocab_file} is not the vocabulary that the records were made with "
                            f"({sidecar['vocab_file']})")
        return vocab_file
    named = sidecar.get("vocab_file")
    if named and files.exists(named) and files.sha256(named) == sidecar["vocab_sha256"]:
        return named
    where = f"the records' vocabulary, {named}, is not there any more" if named else "the records name no vocabulary"
    logger.info("%s: --vocab_file would copy it into %s", where, values.output_dir)
    return None


def training_feed(values, runtime, record_files):
    """The batches of training, in an order that seed and epoch decide."""
    sizes = training.make_sizes(values, runtime)

    def order(start):
        return batching.training_order(len(record_files), values.train_batch_size, values.seed, start,
                                       values.shuffle_buffer)

    return training.training_feed(values, runtime, order,
                                  lambda numbers: reading.make_batch(record_files, numbers, sizes), record_files.where)


def wanted_examples(values):
    """How many examples an evaluation takes."""
    return values.max_eval_steps * values.eval_batch_size


def evaluation_feed(values, runtime, record_files):
    """The batches of an evaluation, from the first record on."""
    sizes = training.make_sizes(values, runtime)
    wanted = wanted_examples(values)
    if values.do_eval and wanted > len(record_files):
        logger.info("evaluating %d examples of %d records: the first come again, as in the original", wanted,
                    len(record_files))
    return training.evaluation_feed(
        runtime, values.eval_batch_size,
        lambda: batching.evaluation_order(len(record_files), values.eval_batch_size, values.max_eval_steps),
        lambda numbers: reading.make_batch(record_files, numbers, sizes), record_files.where)


def fingerprint(values, config, record_files):
    """All that decides the trajectory of a run, besides what is so for every script."""
    names = ("num_train_steps", "num_warmup_steps", "max_predictions_per_seq", "shuffle_buffer")
    return {"script": "run_pretraining", "records": record_files.digest, "config": config.to_dict(),
            **{name: values[name].value for name in names}}


def write_model_dir(values, config, sidecar, vocab_file, **info):
    """Makes --output_dir a folder that other scripts can use: config, casing and, where it can be had, vocabulary."""
    if values.overwrite_output_dir and not vocab_file:  # an earlier run's must not stand beside these weights
        files.remove(os.path.join(values.output_dir, model_dir.VOCAB))
    info |= {"task": "pretraining", "max_seq_length": values.max_seq_length}
    if sidecar:
        info |= {name: sidecar[name] for name in ("do_lower_case", "strip_accents")}
    model_dir.write(values.output_dir, config, info, vocab_file)


def results(values, runtime, model, evaluate, start_from, step):
    """Evaluates the weights just trained, else the newest of --output_dir, else --init_checkpoint."""
    if step is None:
        prefix = model_dir.latest(values.output_dir) or start_from
        if prefix is None:
            raise UserError(f"nothing to evaluate: {values.output_dir} holds no checkpoint, and no --init_checkpoint "
                            "is given")
        step = models.restore(values, model, prefix)
    with loop.naming_lost_workers(runtime):
        metrics = {"global_step": step, **evaluate()}
    if runtime.is_chief:
        files.make_folder(values.output_dir)
        logger.info("evaluation at step %d:", step)
        run_dir.write_results(values.output_dir, metrics)
