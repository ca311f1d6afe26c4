#!/usr/bin/env bash
# Weights that other processes map: a reader sees new versions without a reload.
. "$(dirname "$0")/stream_lib.sh"
small_run 5
url=$store/run
new_stream "$url" 2
reader=$(dirname "$deltawire")/examples/snapshot_reader

it "refuses a time that is none"
deltawire pull "$url" --into one --quiet >/dev/null
fails 2 "reader-wait" deltawire pull "$url" --into one --reader-wait never

it "can be read while it is followed"
reads() { # VERSION FILE
    grep -q "version $1, state $(state_at "$1")," <<<"$(tail -n 1 "$2")"
}
deltawire follow "$url" --into one --interval 0.1 --until 5 --quiet &
follower=$!
"$reader" one >out.one &
reading=$!
wait_until reads 2 out.one
for i in 3 4 5; do
    publish_step "$url" $i
    wait_until reads $i out.one
done
wait "$follower"
kill "$reading"
is_at one 5

it "reports to a reader that there is nothing to read"
if "$reader" run 1 2>err.txt; then die "it read something"; fi
grep -q 'no follower keeps weights here' err.txt
