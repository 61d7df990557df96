#!/usr/bin/env bash
# ChnSentiCorp: is a Chinese review positive? From random weights if $1 is a folder of a config and a vocabulary alone.
#   bash scripts/examples/chnsenticorp.sh chinese_L-12_H-768_A-12 chnsenticorp results/chnsenticorp
set -euo pipefail
start=(--bert_config_file="$1/bert_config.json" --vocab_file="$1/vocab.txt")
if compgen -G "$1/*.ckpt*.index" > /dev/null; then start=(--init_checkpoint="$1"); fi
python run_classifier.py --task_name=custom --do_train --do_eval --do_predict "${start[@]}" --data_dir="$2" \
  --output_dir="$3" --max_seq_length=128 --train_batch_size=32 --learning_rate=2e-4 --num_train_epochs=3 \
  --group_by_length
