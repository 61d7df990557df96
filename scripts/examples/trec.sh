#!/usr/bin/env bash
# TREC: what does a question ask for? Six coarse classes, which stand before the first colon. Three seeds.
#   bash scripts/examples/trec.sh uncased_L-12_H-768_A-12 trec results/trec
set -euo pipefail
mkdir -p "$3/data"
sed -E 's/^([A-Z]+):[^ ]+ /\1\t/' "$2/train.txt" > "$3/data/train.tsv"
sed -E 's/^([A-Z]+):[^ ]+ /\1\t/' "$2/test.txt" > "$3/data/dev.tsv"
python run_classifier.py --task_name=custom --label_column=0 --text_columns=1 --header=false --do_train --do_eval \
  --init_checkpoint="$1" --data_dir="$3/data" --output_dir="$3" --max_seq_length=32 --train_batch_size=32 \
  --learning_rate=1e-4 --num_train_epochs=3 --num_seeds=3 --group_by_length
