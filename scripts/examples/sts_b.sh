#!/usr/bin/env bash
# STS-B: how alike are two sentences, from 0 to 5? Three seeds.
#   bash scripts/examples/sts_b.sh uncased_L-12_H-768_A-12 glue/STS-B results/sts_b
set -euo pipefail
python run_classifier.py --task_name=STS-B --do_train --do_eval --init_checkpoint="$1" --data_dir="$2" \
  --output_dir="$3" --max_seq_length=128 --train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=3 \
  --num_seeds=3 --group_by_length
