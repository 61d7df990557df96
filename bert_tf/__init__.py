"""BERT for TensorFlow 2: the 2018 reference implementation's scripts, flags, files and numbers."""

__version__ = "0.1.0"


def __getattr__(name):
    """`bert_tf.Predictor`, imported when it is asked for: it needs TensorFlow, `import bert_tf` alone does not."""
    if name != "Predictor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import os

    from bert_tf.cli.app import ENVIRONMENT

    # As the scripts load TensorFlow, whose numbers differ in their last bits otherwise.
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    from bert_tf.predictor import Predictor

    return Predictor
