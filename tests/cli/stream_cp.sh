#!/usr/bin/env bash
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run
mirror=$store/mirror
new_stream "$url" 2

it "mirrors a stream"
deltawire cp "$url" "$mirror" --json >out.json
holds 'o["version"] == 2 and o["objects"] > 0 and o["bytes"] > 0' <out.json
deltawire pull "$mirror" --into model --quiet >/dev/null
is_at model 2
deltawire verify "$mirror" --json | holds 'o["faults"] == [] and o["versions"] == 3'
[ "$(deltawire status "$mirror" --json | json 'o["stream"]')" = \
    "$(deltawire status "$url" --json | json 'o["stream"]')" ]

it "copies what is new"
publish_step "$url" 3
deltawire cp "$url" "$mirror" --json | holds 'o["version"] == 3 and o["present"] > 0'
prints '^  copied     0 objects' deltawire cp "$url" "$mirror"
deltawire pull "$mirror" --into model --quiet >/dev/null
is_at model 3

it "mirrors to a directory, from which a follower of the source goes on"
deltawire cp "$url" "file://$scratch/local" --quiet >/dev/null
deltawire pull "$url" --into other --at 1 --quiet >/dev/null
deltawire pull "file://$scratch/local" --into other --quiet >/dev/null
is_at other 3

it "never mixes two streams"
new_stream "$store/another" 1
fails 8 "" deltawire cp "$store/another" "$mirror"
deltawire verify "$mirror" --json | holds 'o["faults"] == []'

it "copies nothing that is damaged"
key=$(object_of "$url" 2)
object_get "$url" "$key" bytes
flip_bit bytes $(($(stat -c %s bytes) / 2))
object_put "$url" "$key" bytes
fails 3 "$key" deltawire cp "$url" "$store/fresh"
deltawire verify "$mirror" --json | holds 'o["faults"] == []'
