import sys

from bert_tf.cli import run_pretraining

sys.exit(run_pretraining.main())
