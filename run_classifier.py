import sys

from bert_tf.cli import run_classifier

sys.exit(run_classifier.main())
