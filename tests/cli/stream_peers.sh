#!/usr/bin/env bash
. "$(dirname "$0")/stream_lib.sh"
small_run 4 --codec gap --trl v3
url=$store/trl
put_delta() { object_put "$url" "deltas/step_00000$1.safetensors" "run/deltas/step_00000$1.safetensors"; }
object_put "$url" anchors/step_000001.safetensors run/step_000001/model.safetensors
put_delta 2

it "lists the versions of a TRL bucket"
deltawire log "$url" >out.txt
grep -q '^version .*encoding (trl)$' out.txt
grep -q '^ *2  .* 1?  .* gap_delta; digest$' out.txt
grep -q '^ *1  .* -  .* whole; no checksum$' out.txt
deltawire log "$url" --json | holds '[(v["version"], v["base"]) for v in o["versions"]] == [(2, 1), (1, None)]'

it "brings a directory to any of them, and reports what was proven"
deltawire pull "$url" --into model --at 1 >out.txt
grep -q '^model: version 1 from nothing' out.txt
grep -q 'trl: not verified' out.txt
[ "$(state_of model)" = "$(state_of run/step_000001)" ]
deltawire pull "$url" --into model --json >out.json
holds 'o["format"] == "trl" and o["from"] == 1 and o["version"] == 2' <out.json
holds 'o["verified"] is True and o["notes"] == []' <out.json
[ "$(state_of model)" = "$(state_of run/step_000002)" ]
prints 'version 2: nothing new' deltawire pull "$url" --into model

it "follows it, and runs a command after each version"
deltawire follow "$url" --into model --until 4 --interval 0.2 --json \
    --exec 'echo "$DELTAWIRE_VERSION" >>seen.txt' >follow.json &
follower=$!
wait_until grep -q 2 seen.txt # the version that is there at the start
put_delta 3
wait_until grep -q '"version":3' follow.json
put_delta 4
wait $follower
[ "$(xargs <seen.txt)" = '2 3 4' ]
tail -n 1 follow.json | holds 'o == {"event": "stopped", "version": 4}'
[ "$(state_of model)" = "$(state_of run/step_000004)" ]

it "accepts a number without a file, and reports it"
object_remove "$url" deltas/step_000003.safetensors
deltawire pull "$url" --into other --at 2 --quiet >/dev/null
fails 6 'version 3 is not there' deltawire pull "$url" --into other --at 3
# files that deltawire wrote name their base, so the gap is known to be a lost upload
fails 4 'not version 3' deltawire pull "$url" --into other --quiet
[ "$(state_of other)" = "$(state_of run/step_000002)" ]

it "verifies it as far as the format goes"
fails 4 'found: the list is on stdout' deltawire verify "$url" --quiet
grep -q '^fault: .*not version 3' out.last
put_delta 3
deltawire verify "$url" >out.txt
grep -q 'versions *4, of which 4 were replayed' out.txt
grep -q 'faults *0' out.txt
deltawire verify "$url" --json | holds 'o["format"] == "trl" and o["replayed"] == 4 and o["faults"] == []'

it "refuses options that are only for deltawire streams"
fails 7 'mirror\|are for streams' deltawire follow "$url" --into model --quiet --listen 127.0.0.1:0
deltawire keygen key.pem >/dev/null
fails 11 'no signatures' deltawire pull "$url" --into model --trust key.pem.pub
fails 11 'no signatures' deltawire log "$url" --trust key.pem.pub

it "accepts a checkpoint as the base of the first delta"
bare=$store/bare
object_put "$bare" deltas/step_000001.safetensors run/deltas/step_000001.safetensors
fails 6 '\-\-base' deltawire pull "$bare" --into new
deltawire pull "$bare" --into new --base run/base --quiet >/dev/null
[ "$(state_of new)" = "$(state_of run/step_000001)" ]

it "looks for a deltawire stream first"
deltawire publish "$bare" run/base --quiet >/dev/null
deltawire log "$bare" --json | holds '"stream" in o'
