#!/usr/bin/env bash
# CMRC 2018: Chinese questions about Chinese paragraphs, scored by characters. From random weights if $1 is a folder of
# a config and a vocabulary alone.
#   bash scripts/examples/cmrc.sh chinese_L-12_H-768_A-12 cmrc2018 results/cmrc
set -euo pipefail
start=(--bert_config_file="$1/bert_config.json" --vocab_file="$1/vocab.txt")
if compgen -G "$1/*.ckpt*.index" > /dev/null; then start=(--init_checkpoint="$1"); fi
python run_squad.py --do_train --do_eval --do_predict --language=zh "${start[@]}" \
  --train_file="$2/cmrc2018_trial.json" --predict_file="$2/cmrc2018_dev.json" --output_dir="$3" --max_seq_length=256 \
  --doc_stride=128 --max_query_length=32 --train_batch_size=16 --learning_rate=1e-4 --num_train_epochs=2 \
  --group_by_length
