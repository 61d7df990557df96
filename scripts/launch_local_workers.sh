#!/usr/bin/env bash
# Runs a training command as N workers on this machine, to rehearse --strategy=multi_worker:
#
#   scripts/launch_local_workers.sh 2 python run_pretraining.py --strategy=multi_worker --input_file=...
#
# Each worker gets a TF_CONFIG with free ports on 127.0.0.1; its lines are marked with its number. A signal goes to all
# of them. The exit status is 0 if every worker's is, else that of the first that failed.
set -uo pipefail

if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: $0 N COMMAND [ARGUMENT ...]" >&2
  exit 2
fi
count=$1
shift

addresses=$(python3 - "$count" <<'PYTHON'
import socket
import sys

sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(", ".join(f'"127.0.0.1:{one.getsockname()[1]}"' for one in sockets))
PYTHON
) || exit 2

workers=()
trap 'kill -TERM "${workers[@]}" 2>/dev/null' INT TERM
for ((index = 0; index < count; index++)); do
  TF_CONFIG="{\"cluster\": {\"worker\": [$addresses]}, \"task\": {\"type\": \"worker\", \"index\": $index}}" \
    "$@" > >(sed -u "s/^/[$index] /") 2>&1 &
  workers+=($!)
done

status=0
for worker in "${workers[@]}"; do
  code=0
  wait "$worker" || code=$?
  while kill -0 "$worker" 2>/dev/null; do # a signal ended the wait, not the worker
    code=0
    wait "$worker" || code=$?
  done
  [ "$status" -ne 0 ] || status=$code
done
exit "$status"
