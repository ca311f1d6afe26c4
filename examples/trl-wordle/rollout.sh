#!/bin/sh
# vLLM and its follower in one container: if one of them ends, both end, and the
# container is restarted.
#
#     MODEL           the model that vLLM starts with
#     STREAM_URL      the stream to follow
#     PORT            vLLM's (8000)
#     VLLM_OPTIONS    more of its options
#     FOLLOW_OPTIONS  more of the follower's
set -eu
: "${MODEL:?}" "${STREAM_URL:?}"
port=${PORT:-8000}

# shellcheck disable=SC2086 # lists of words
vllm serve "$MODEL" --host 0.0.0.0 --port "$port" --dtype bfloat16 --enable-scale-out \
    --weight-transfer-config '{"backend":"deltawire"}' ${VLLM_OPTIONS:-} &
engine=$!
# shellcheck disable=SC2086
deltawire follow "$STREAM_URL" --into "${WEIGHTS_DIR:-/dev/shm/model}" --interval 1 \
    --engine "vllm=http://127.0.0.1:$port" --listen 127.0.0.1:9470 ${FOLLOW_OPTIONS:-} &
follower=$!
stop() { kill "$engine" "$follower" 2>/dev/null || true; }
trap stop INT TERM
while kill -0 "$engine" 2>/dev/null && kill -0 "$follower" 2>/dev/null; do
    sleep 1
done
stop
wait
exit 1
