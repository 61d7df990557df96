#!/usr/bin/env bash
# ChnSentiCorp: is a Chinese review positive?
#   bash scripts/examples/chnsenticorp.sh chinese_L-12_H-768_A-12 chnsenticorp results/chnsenticorp
set -euo pipefail
python run_classifier.py --task_name=custom --do_train --do_eval --do_predict --init_checkpoint="$1" --data_dir="$2" \
  --output_dir="$3" --max_seq_length=128 --train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=3 \
  --group_by_length
