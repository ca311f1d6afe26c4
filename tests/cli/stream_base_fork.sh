#!/usr/bin/env bash
# Streams whose version 0 is not uploaded: a known checkpoint, or a version of another.
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/base

it "uploads nothing if followers have the checkpoint"
deltawire publish "$url" run/base --base='the base of run' --json |
    holds 'o["version"] == 0 and o["bytes"] == 0'
publish_step "$url" 1
deltawire log "$url" --json >out.json
holds 'o["versions"][1]["content"] == "base"' <out.json
holds 'o["versions"][1]["base"] == "the base of run"' <out.json

it "asks for that checkpoint"
fails 6 "base" deltawire pull "$url" --into model
fails 5 "run/step_000002" deltawire pull "$url" --into model --base run/step_000002
deltawire pull "$url" --into model --base run/base --quiet >/dev/null
is_at model 1

it "goes on without it once the directory is filled"
publish_step "$url" 2
deltawire pull "$url" --into model --quiet >/dev/null
is_at model 2

it "starts from a version of another stream"
new_stream "$store/a" 2
deltawire publish "$store/b" run/step_000003 --fork "$store/a@1" --step 3 --json >out.json
holds 'o["version"] == 1' <out.json
deltawire log "$store/b" --json >out.json
holds 'o["versions"][1]["content"] == "fork" and o["versions"][1]["fork_version"] == 1' <out.json
deltawire pull "$store/b" --into forked --quiet >/dev/null
[ "$(state_of forked)" = "$(state_at 3)" ]
deltawire pull "$store/b" --into forked0 --at 0 --quiet >/dev/null
[ "$(state_of forked0)" = "$(state_at 1)" ]

it "refuses a fork of another model, and leaves nothing behind"
fails 5 "quantised" deltawire publish "$store/d" run/step_000003 --fork "$store/a@1" \
    --quantize fp8-block --quantize-also '*'
fails 6 "no stream" deltawire log "$store/d"
[ "$(deltawire status "$store/a" --json | python3 -c 'import json, sys; print(sum(f["status"] == "fork" for f in json.load(sys.stdin)["followers"]))')" = 1 ]

it "refuses both at once"
fails 2 "exclude each other" deltawire publish "$store/c" run/base --base --fork "$store/a"
