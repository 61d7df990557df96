#!/usr/bin/env bash
# Weibo: names in Chinese posts, a character a line; the digit behind each, its place in a word, is taken off. From
# random weights, and four times as long, if $1 is a folder of a config and a vocabulary alone.
#   bash scripts/examples/weibo.sh chinese_L-12_H-768_A-12 weibo_zh results/weibo
set -euo pipefail
start=(--bert_config_file="$1/bert_config.json" --vocab_file="$1/vocab.txt" --num_train_epochs=12)
if compgen -G "$1/*.ckpt*.index" > /dev/null; then start=(--init_checkpoint="$1" --num_train_epochs=3); fi
mkdir -p "$3/data"
for split in train dev test; do
  sed -E 's/^(.)[0-9]\t/\1\t/' "$2/weiboNER_2nd_conll.$split" > "$3/data/$split.conll"
done
python run_ner.py --do_train --do_eval --do_predict "${start[@]}" --data_dir="$3/data" --output_dir="$3" \
  --max_seq_length=128 --train_batch_size=32 --learning_rate=2e-4 --group_by_length
