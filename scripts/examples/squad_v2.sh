#!/usr/bin/env bash
# SQuAD 2.0, the first four articles: is there an answer, and where? The threshold for none is found on the development
# file. Three seeds.
#   bash scripts/examples/squad_v2.sh uncased_L-12_H-768_A-12 squad_v2 results/squad_v2
set -euo pipefail
mkdir -p "$3"
python -c 'import json, sys
content = json.load(open(sys.argv[1], encoding="utf-8"))
json.dump({**content, "data": content["data"][:4]}, open(sys.argv[2], "w"))' "$2/train-v2.0.json" "$3/train.json"
python run_squad.py --do_train --do_eval --do_predict --version_2_with_negative --init_checkpoint="$1" \
  --train_file="$3/train.json" --predict_file="$2/dev-v2.0.json" --output_dir="$3" --max_seq_length=256 \
  --doc_stride=128 --train_batch_size=16 --learning_rate=1e-4 --num_train_epochs=5 --num_seeds=3 --group_by_length
