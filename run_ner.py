import sys

from bert_tf.cli import run_ner

sys.exit(run_ner.main())
