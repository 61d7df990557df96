#!/usr/bin/env bash
# WNUT-17: rare and emerging names in posts, of six types. Three seeds.
#   bash scripts/examples/wnut.sh cased_L-12_H-768_A-12 wnut17 results/wnut
set -euo pipefail
python run_ner.py --do_train --do_eval --init_checkpoint="$1" --train_file="$2/wnut17train.conll" \
  --dev_file="$2/emerging.test.annotated" --output_dir="$3" --max_seq_length=128 --train_batch_size=32 \
  --learning_rate=1e-4 --num_train_epochs=3 --num_seeds=3 --group_by_length
