#!/usr/bin/env bash
# MRPC: do two sentences say the same? Three seeds; a quarter of an hour on two cores with a model of 6 x 384.
#   bash scripts/examples/mrpc.sh uncased_L-12_H-768_A-12 glue/MRPC results/mrpc
set -euo pipefail
python run_classifier.py --task_name=MRPC --do_train --do_eval --init_checkpoint="$1" --data_dir="$2" \
  --output_dir="$3" --max_seq_length=128 --train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=3 \
  --num_seeds=3 --group_by_length
