#!/usr/bin/env bash
# SST-2: is a phrase of a review positive? The first 20,000 rows, one epoch, three seeds.
#   bash scripts/examples/sst_2.sh uncased_L-12_H-768_A-12 glue/SST-2 results/sst_2
set -euo pipefail
mkdir -p "$3/data"
head -n 20001 "$2/train.tsv" > "$3/data/train.tsv"
cp "$2/dev.tsv" "$3/data/dev.tsv"
python run_classifier.py --task_name=SST-2 --do_train --do_eval --init_checkpoint="$1" --data_dir="$3/data" \
  --output_dir="$3" --max_seq_length=64 --train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=1 --num_seeds=3 \
  --group_by_length
