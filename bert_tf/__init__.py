"""BERT for TensorFlow 2: the 2018 reference implementation's scripts, flags, files and numbers."""

__version__ = "0.1.0"
