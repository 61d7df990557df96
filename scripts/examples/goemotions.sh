#!/usr/bin/env bash
# GoEmotions: which of 28 emotions does a comment show, any number of them? The first 12,000 rows, two epochs, three seeds.
#   bash scripts/examples/goemotions.sh uncased_L-12_H-768_A-12 goemotions results/goemotions
set -euo pipefail
mkdir -p "$3/data"
head -n 12000 "$2/train.tsv" > "$3/data/train.tsv"
cp "$2/dev.tsv" "$3/data/dev.tsv"
python run_classifier.py --task_name=custom --text_columns=0 --label_column=1 --header=false --label_kind=multi \
  --labels_file="$2/labels.txt" --do_train --do_eval --init_checkpoint="$1" --data_dir="$3/data" --output_dir="$3" \
  --max_seq_length=64 --train_batch_size=32 --learning_rate=1e-4 --num_train_epochs=2 --num_seeds=3 --group_by_length
