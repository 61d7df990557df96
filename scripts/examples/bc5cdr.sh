#!/usr/bin/env bash
# BC5CDR: chemicals and diseases in abstracts. Three seeds, each scored on the test file.
#   bash scripts/examples/bc5cdr.sh uncased_L-12_H-768_A-12 BC5CDR-IOB results/bc5cdr
set -euo pipefail
python run_ner.py --do_train --do_eval --init_checkpoint="$1" --data_dir="$2" --dev_file="$2/test.tsv" \
  --output_dir="$3" --max_seq_length=128 --train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=3 \
  --num_seeds=3 --group_by_length
