"""Looks into, checks and converts checkpoints of the original's format.

  python convert_checkpoint.py inspect    --init_checkpoint=PATH
  python convert_checkpoint.py validate   --init_checkpoint=PATH [--golden=FILE.npz]
  python convert_checkpoint.py to-keras   --init_checkpoint=PATH --output_file=FILE.weights.h5
  python convert_checkpoint.py from-keras --input_file=FILE.weights.h5 --bert_config_file=FILE --output_checkpoint=PATH

PATH is a checkpoint's prefix (.../bert_model.ckpt), one of its files, or a folder. inspect lists the variables,
parameters and released models that fit; validate loads the checkpoint into the model of its config, computes, and
compares with recorded outputs; to-keras and from-keras carry the weights to Keras' format and back, bit by bit.
"""

import functools
import sys

from absl import flags

from bert_tf.cli import app
from bert_tf.errors import UserError
from bert_tf.model_dir import CONFIG, VOCAB, find, find_file


def main(argv=None):
    """Runs the sub-command `argv[1]`; returns the exit status."""
    argv = list(sys.argv if argv is None else argv)
    name = argv[1] if len(argv) > 1 else "--help"
    if name.startswith("-"):
        if name.lstrip("-") in ("help", "h", "helpfull"):
            print(__doc__.strip())
            return 0
    elif name in COMMANDS:
        define_flags, run, description = COMMANDS[name]
        return app.main(define_flags, functools.partial(_run, run), [f"{argv[0]} {name}", *argv[2:]], description)
    return app.main(lambda values: None, functools.partial(_refuse, name), argv[:1])


def _run(command, values):
    app.load_tensorflow()
    command(values)


def _refuse(name, values):
    raise UserError(f"{name!r} is no sub-command; the first argument is one of {', '.join(COMMANDS)}")


def _define_input(values):
    flags.DEFINE_string("init_checkpoint", None, "The checkpoint: a prefix, one of its files or a folder.",
                        flag_values=values, required=True)


def _define_config(values, required=False):
    flags.DEFINE_string("bert_config_file", None, f"The model's config (default: {CONFIG} beside the checkpoint).",
                        flag_values=values, required=required)


def _define_allow_missing(values):
    flags.DEFINE_bool("allow_missing", False, "Leave encoder variables that the checkpoint lacks at their initial "
                      "values, instead of refusing.", flag_values=values)


def _define_vocab(values):
    flags.DEFINE_string("vocab_file", None, f"The vocabulary (default: {VOCAB} beside the checkpoint, if there).",
                        flag_values=values)


def define_inspect(values):
    _define_input(values)
    _define_vocab(values)


def define_validate(values):
    define_inspect(values)
    _define_config(values)
    _define_allow_missing(values)
    flags.DEFINE_string("golden", None, "An .npz of recorded inputs and outputs, arrays `case/name`, to compare with.",
                        flag_values=values)
    flags.DEFINE_float("tolerance", 5e-5, "The largest absolute difference to the recorded outputs that passes.",
                       lower_bound=0.0, flag_values=values)


def define_to_keras(values):
    _define_input(values)
    _define_config(values)
    _define_allow_missing(values)
    flags.DEFINE_string("output_file", None, "The file to write; its name ends in .weights.h5.", flag_values=values,
                        required=True)


def define_from_keras(values):
    flags.DEFINE_string("input_file", None, "The Keras file; its name ends in .weights.h5.", flag_values=values,
                        required=True)
    _define_config(values, required=True)
    flags.DEFINE_string("output_checkpoint", None, "The prefix of the checkpoint to write, .../bert_model.ckpt.",
                        flag_values=values, required=True)


def _vocab(values, prefix):
    from bert_tf import tokenization

    path = find_file(prefix, VOCAB, values.vocab_file, "vocab_file", required=False)
    return path, path and list(tokenization.FullTokenizer(path).inv_vocab.values())


def _config(values, prefix):
    from bert_tf import modeling

    path = find_file(prefix, CONFIG, values.bert_config_file, "bert_config_file")
    return path, modeling.BertConfig.from_json_file(path)


def run_inspect(values):
    from bert_tf import conversion

    prefix = find(values.init_checkpoint)
    _, vocab = _vocab(values, prefix)
    print("\n".join([f"checkpoint: {prefix}", *conversion.describe(prefix, vocab)]))


def run_validate(values):
    from bert_tf import conversion

    prefix = find(values.init_checkpoint)
    config_path, config = _config(values, prefix)
    vocab_path, vocab = _vocab(values, prefix)
    if vocab and len(vocab) > config.vocab_size:
        raise UserError(f"{vocab_path} has {len(vocab)} pieces, vocab_size in {config_path} is {config.vocab_size}; "
                        "use the vocabulary that the model was trained with")
    if vocab and len(vocab) < config.vocab_size:
        print(f"{config.vocab_size - len(vocab)} ids of the config have no piece in {vocab_path}")
    model, report = conversion.load(prefix, config, values.allow_missing)
    print("\n".join([f"{type(model).__name__} of {config_path}", report.summary(), *report.details()]))
    conversion.try_forward(model)
    print("forward pass: all outputs are finite")
    if values.golden:
        _compare(values, conversion.compare(model, values.golden))


def _compare(values, differences):
    for name, difference in differences.items():
        print(f"{name}: largest difference {difference:.2e}")
    worst = max(differences, key=differences.get)
    if differences[worst] > values.tolerance:
        raise UserError(f"{values.golden}: {worst} differs by {differences[worst]:.2e}, more than "
                        f"--tolerance={values.tolerance:g}")
    print(f"{len(differences)} recorded outputs equal within {values.tolerance:g}")


def run_to_keras(values):
    from bert_tf import conversion

    prefix = find(values.init_checkpoint)
    _, config = _config(values, prefix)
    report = conversion.to_keras(prefix, config, values.output_file, values.allow_missing)
    print("\n".join([report.summary(), *report.details(), f"written: {values.output_file}"]))
    left = len(report.extra) + report.slots + (report.global_step is not None)
    if left:
        print(f"not carried over, the model has no place for them: {left} tensors (heads by name above, "
              "optimizer state and global_step)")


def run_from_keras(values):
    from bert_tf import conversion

    _, config = _config(values, values.output_checkpoint)
    model = conversion.from_keras(values.input_file, config, values.output_checkpoint)
    print(f"{type(model).__name__}: {len(model.weights)} variables written: {values.output_checkpoint}")


COMMANDS = {
    "inspect": (define_inspect, run_inspect, "Lists variables, parameters and the released models that fit."),
    "validate": (define_validate, run_validate, "Loads a checkpoint into its model, computes, compares."),
    "to-keras": (define_to_keras, run_to_keras, "Writes a checkpoint's weights as a Keras .weights.h5."),
    "from-keras": (define_from_keras, run_from_keras, "Writes a Keras .weights.h5 as a checkpoint."),
}
