import sys

from bert_tf.cli import extract_features

sys.exit(extract_features.main())
