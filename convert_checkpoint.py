import sys

from bert_tf.cli import convert_checkpoint

sys.exit(convert_checkpoint.main())
