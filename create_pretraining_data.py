import sys

from bert_tf.cli import create_pretraining_data

if __name__ == "__main__":  # worker processes import this file too
    sys.exit(create_pretraining_data.main())
