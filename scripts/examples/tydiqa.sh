#!/usr/bin/env bash
# TyDi QA, English: questions of people who did not know the answer, about articles of Wikipedia. Three seeds.
#   bash scripts/examples/tydiqa.sh uncased_L-12_H-768_A-12 tydiqa_goldp results/tydiqa
set -euo pipefail
python run_squad.py --do_train --do_eval --init_checkpoint="$1" --train_file="$2/tydiqa.goldp.en.train.json" \
  --predict_file="$2/tydiqa.goldp.en.dev.json" --output_dir="$3" --max_seq_length=256 --doc_stride=128 \
  --train_batch_size=16 --learning_rate=1e-4 --num_train_epochs=2 --num_seeds=3 --group_by_length
