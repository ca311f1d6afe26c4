#!/bin/sh
# Starts a Space: settings and secrets come as variables of the environment. The token goes
# into a file that only this user can read, and out of the environment.
set -eu

: "${STREAM_URL:?set the variable STREAM_URL to the stream, for instance hf://buckets/me/name/run}"
: "${DELTAWIRE_TOKEN:?set the secret DELTAWIRE_TOKEN: openssl rand -hex 32}"

umask 077
token=${TMPDIR:-/tmp}/deltawire-token
rm -f "$token"
printf '%s\n' "$DELTAWIRE_TOKEN" >"$token"
unset DELTAWIRE_TOKEN

# --plain: the Space's proxy brings TLS.
exec deltawire serve-status "$STREAM_URL" --listen 0.0.0.0:7860 --plain --token-file "$token" "$@"
