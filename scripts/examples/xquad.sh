#!/usr/bin/env bash
# XQuAD's English part, 1,190 questions of SQuAD 1.1: where in a paragraph is the answer? Three seeds.
#   bash scripts/examples/xquad.sh uncased_L-12_H-768_A-12 xquad_split results/xquad
set -euo pipefail
python run_squad.py --do_train --do_eval --init_checkpoint="$1" --train_file="$2/train-v1.1.json" \
  --predict_file="$2/dev-v1.1.json" --output_dir="$3" --max_seq_length=256 --doc_stride=128 --train_batch_size=16 \
  --learning_rate=1e-4 --num_train_epochs=5 --num_seeds=3 --group_by_length
