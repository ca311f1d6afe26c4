#!/bin/bash
# The trainer and, if DELTAWIRE_TOKEN is set, a page that shows its stream at port 7860.
#
# STREAM_URL the stream, for instance s3://bucket/wordle, hf://buckets/me/name/run
# ENV_URL wordle-env SERVER_URLS of rollout servers, with spaces between STATE_DIR the
# state for a restart (/state) MODEL_OPTIONS --hidden N --layers N, the same as the
# rollout boxes have TRAIN_OPTIONS further ones of wordle-train DELTAWIRE_TOKEN the
# token for visitors of the page: openssl rand -hex 32
set -euo pipefail
: "${STREAM_URL:?set STREAM_URL to the stream, for instance s3://bucket/wordle}"
: "${ENV_URL:?set ENV_URL to wordle-env, for instance http://env:7860}"
: "${SERVER_URLS:?set SERVER_URLS to the rollout servers, with spaces between}"
state=${STATE_DIR:-/state}
umask 077

if [ ! -e "$state/model/config.json" ]; then
    rm -rf "$state/model.new"
    mkdir -p "$state/model.new"
    # shellcheck disable=SC2086 # words
    wordle-train --init "$state/model.new" ${MODEL_OPTIONS:-}
    mv "$state/model.new" "$state/model"
fi
servers=()
for url in $SERVER_URLS; do
    servers+=(--server "$url")
done

page=
if [ -n "${DELTAWIRE_TOKEN:-}" ]; then
    token=${TMPDIR:-/tmp}/deltawire-token
    rm -f "$token"
    printf '%s\n' "$DELTAWIRE_TOKEN" >"$token"
    unset DELTAWIRE_TOKEN
    # --plain: a Space's proxy provides TLS.
    deltawire serve-status "$STREAM_URL" --listen "0.0.0.0:${PORT:-7860}" --plain \
        --token-file "$token" &
    page=$!
fi
# shellcheck disable=SC2086 # words
wordle-train --model "$state/model" --store "$STREAM_URL" --state "$state/run" \
    --env "$ENV_URL" "${servers[@]}" ${TRAIN_OPTIONS:-} &
trainer=$!

stopped=false
trap 'stopped=true; kill "$trainer" $page 2>/dev/null || true' TERM INT
status=0
wait "$trainer" || status=$?
if $stopped; then # the wait ended before the trainer
    wait "$trainer" || true
    exit 0
fi
# the page stays, and shows the result
[ -z "$page" ] || [ $status -ne 0 ] || wait "$page" || true
[ -z "$page" ] || kill "$page" 2>/dev/null || true
exit $status
