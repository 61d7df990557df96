import sys

from bert_tf.cli import run_squad

sys.exit(run_squad.main())
