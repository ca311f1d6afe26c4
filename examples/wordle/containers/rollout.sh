#!/bin/bash
# A rollout box: the server, and the follower that keeps its weights at the newest version.
#
#   STREAM_URL      the stream, for instance s3://bucket/wordle, hf://buckets/me/name/run
#   MODEL_DIR       with config.json and tokenizer.json; default: made as the trainer's is
#   MODEL_OPTIONS   for that: the trainer's own, --hidden N --layers N
#   WEIGHTS_DIR     where the weights are kept (/dev/shm/policy)
#   PORT, THREADS   of the server (7860, 1)
#
# The control interface needs no key, so it is only on loopback.
set -euo pipefail
: "${STREAM_URL:?set STREAM_URL to the stream, for instance s3://bucket/wordle}"
weights=${WEIGHTS_DIR:-/dev/shm/policy}
control=127.0.0.1:${CONTROL_PORT:-8001}

model=${MODEL_DIR:-}
if [ -z "$model" ]; then
    model=$(mktemp -d)
    # shellcheck disable=SC2086 # words
    wordle-train --init "$model" ${MODEL_OPTIONS:-}
fi

wordle-rollout --weights "$weights" --model "$model" --listen "0.0.0.0:${PORT:-7860}" \
    --control "$control" --threads "${THREADS:-1}" &
server=$!
deltawire follow "$STREAM_URL" --into "$weights" --interval 1 --engine "vllm=http://$control" &
follower=$!

# If one ends, the other is ended too; then the container is restarted.
status=1
trap 'status=0; kill "$server" "$follower" 2>/dev/null || true' TERM INT
wait -n "$server" "$follower" || true
kill "$server" "$follower" 2>/dev/null || true
wait "$follower" || true
wait "$server" || true
exit $status
