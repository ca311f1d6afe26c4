#!/usr/bin/env bash
# labels: slow
# Mirrors deltawire streams to TRL and slime, and back; also after kills.
. "$(dirname "$0")/stream_lib.sh"
small_run 8
ours=$store/ours
ours2=$store/ours2
formats='trl slime'

mirror() { # FROM TO NAME OPTION...
    deltawire mirror "$1" "$2" --work "work/$3" "${@:4}"
}

# states URL: the states of all versions of a deltawire stream, oldest first
states() {
    deltawire log "$1" --json | json '" ".join(v["state"] for v in reversed(o["versions"]))'
}

# numbers URL: the versions of TRL or slime there, ascending
numbers() {
    object_list "$1" '' | sed -nE 's,^(anchors|deltas)/step_0*([0-9]+)\.safetensors$,\2,p
        s,^weight_v0*([0-9]+)/model\.safetensors\.index\.json$,\1,p' | sort -n | xargs
}

# peer_is URL VERSION: VERSION is the newest, and no number is repeated or
# missing
peer_is() {
    [ "$(numbers "$1")" = "$(seq 0 "$2" | xargs)" ]
}

it "writes each version in the other formats, with the same number"
new_stream "$ours" 3
new_stream "$ours2" 3
for format in $formats; do
    mirror "$ours" "$store/$format" "$format" --as "$format" --once >out.mirror 2>err.mirror
    grep -q '^version 3: [0-9,]* changed' out.mirror
    peer_is "$store/$format" 3
done

it "mirrors them back, bit for bit"
for format in $formats; do
    mirror "$store/$format" "$store/back-$format" "back-$format" --once \
        --json >out.mirror
    [ "$(states "$store/back-$format")" = "$(states "$ours")" ]
    deltawire log "$store/back-$format" --json >out.log
    holds '[v["step"] for v in o["versions"]] == ["3", "2", "1", "0"]' <out.log
    holds 'o["versions"][0]["notes"].startswith("mirrored from version 3")' <out.log
done

it "does nothing if nothing is new, also without its work directory"
for format in $formats; do
    mirror "$ours" "$store/$format" "$format" --once --json | tail -n 1 |
        holds 'o == {"event": "done", "from_version": 3, "version": 3, "versions": 0}'
    rm -r "work/$format"
    mirror "$ours" "$store/$format" "$format" --as "$format" --once --json | tail -n 1 |
        holds 'o == {"event": "done", "from_version": 3, "version": 3, "versions": 0}'
done

it "follows as the stream grows, both ways at once"
for format in $formats; do
    start "to-$format" mirror "$ours" "$store/$format" --work "work/$format" --until 5 \
        --interval 0.2 --json
    to=$!
    start "back-$format" mirror "$store/$format" "$store/back-$format" \
        --work "work/back-$format" --until 5 --interval 0.2
    pids="${pids:-} $to $!"
done
publish_step "$ours" 4
publish_step "$ours" 5
for pid in $pids; do
    ends "$pid" 0
done
for format in $formats; do
    peer_is "$store/$format" 5
    [ "$(states "$store/back-$format")" = "$(states "$ours")" ]
    grep -q '"event":"version","from_version":5,"version":5,' "out.to-$format"
done

it "goes on after kill -9 at any instant, without a lost or repeated version"
publish_step "$ours" 6
publish_step "$ours" 7
publish_step "$ours" 8
for format in $formats; do
    for _ in $(seq 8); do
        start killed mirror "$ours" "$store/killed-$format" --as "$format" \
            --work "work/killed-$format" --once
        killed=$!
        sleep "0.$((RANDOM % 4))$((RANDOM % 10))"
        kill -9 $killed 2>/dev/null || true
        wait $killed 2>/dev/null || true
        start killed mirror "$store/killed-$format" "$store/killed-back-$format" \
            --work "work/killed-back-$format" --once
        killed=$!
        sleep "0.$((RANDOM % 4))$((RANDOM % 10))"
        kill -9 $killed 2>/dev/null || true
        wait $killed 2>/dev/null || true
    done
    mirror "$ours" "$store/killed-$format" "killed-$format" --as "$format" --once --quiet
    peer_is "$store/killed-$format" 8
    mirror "$store/killed-$format" "$store/killed-back-$format" "killed-back-$format" --once \
        --quiet
    [ "$(states "$store/killed-back-$format")" = "$(states "$ours")" ]
done

it "stops when asked to"
start stopped mirror "$ours" "$store/trl" --work work/trl --json
stopped=$!
wait_until grep -q '"from_version":8' out.stopped
kill -TERM $stopped
ends $stopped 0
tail -n 1 out.stopped | holds 'o["event"] == "stopped" and o["version"] == 8'

it "begins with the stream's first version, and writes the whole model after a gap"
mirror "$ours" "$store/late" late --as slime --until 6 --quiet
deltawire compact "$ours" --anchor --quiet >/dev/null
deltawire gc "$ours" --keep 1 --quiet >/dev/null
deltawire log "$ours" --json | holds 'o["floor"] == 8'
mirror "$ours" "$store/late" late --once --json | sed -n 1p |
    holds 'o["from_version"] == 8 and o["whole"]'
mirror "$ours" "$store/later" later --as trl --once --quiet
[ "$(numbers "$store/later")" = 8 ]
mirror "$store/later" "$store/renumbered" renumbered --once >out.mirror 2>err.mirror
grep -q '^version 8 is version 0 there: the whole model' out.mirror
grep -q "1 version was written, the newest is 0, made of FROM's version 8$" err.mirror

it "mirrors TRL to slime, also when it is started again"
mirror "$store/trl" "$store/slime-of-trl" slime-of-trl --as slime --once --quiet
peer_is "$store/slime-of-trl" 8
rm -r work/slime-of-trl
mirror "$store/trl" "$store/slime-of-trl" slime-of-trl --once --json | tail -n 1 |
    holds 'o == {"event": "done", "from_version": 8, "version": 8, "versions": 0}'

# as_of_trl FILE: without the digests that only deltawire writes
as_of_trl() {
    python3 - "$1" <<'END'
import json, sys
data = open(sys.argv[1], "rb").read()
n = int.from_bytes(data[:8], "little")
header = json.loads(data[8:8 + n])
kept = ("format", "version", "sparse", "model_version", "encoding")
header["__metadata__"] = {key: header["__metadata__"][key] for key in kept}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[1], "wb") as f:
    f.write(len(text).to_bytes(8, "little") + text + data[8 + n:])
END
}

it "ends when FROM's run is started again, and publishes nothing of the new run"
new_stream "$store/new-run" 2
publish_step "$store/new-run" 5 # as its version 3
publish_step "$store/new-run" 6
mirror "$store/new-run" "$store/new-trl" new-trl --as trl --once --quiet
mirror "$ours2" "$store/old-trl" old-trl --as trl --once --quiet
start again mirror "$store/old-trl" "$store/again" --work work/again --interval 0.2
again=$!
wait_until grep -q '^version 3' out.again
for version in 3 4; do
    key=deltas/step_00000$version.safetensors
    object_get "$store/new-trl" "$key" delta
    as_of_trl delta
    object_put "$store/old-trl" "$key" delta
done
ends $again 4
grep -q "a run was started again" err.again
[ "$(states "$store/again")" = "$(states "$ours2")" ]
fails 4 "a run was started again" mirror "$store/old-trl" "$store/again" again --once

it "goes to a later whole version if the newest one in TO does not decode any more"
mirror "$ours2" "$store/repaired-trl" repaired-trl --as trl --once --quiet
rm -r work/repaired-trl
object_remove "$ours2" "$(object_of "$ours2" 2)"
deltawire repair "$ours2" "$(printf run/step_%06d 5)" --quiet >out.repair
mirror "$ours2" "$store/repaired-trl" repaired-trl --once --json | sed -n 1p |
    holds 'o["from_version"] == 4 and o["whole"]'

it "refuses what it cannot do, and reports what to do"
fails 2 "use deltawire cp" mirror "$ours" "$store/copy" copy --once
fails 6 "neither a deltawire stream nor" mirror "$store/nothing" "$store/copy" none --once
fails 8 "versions of trl are here" mirror "$ours" "$store/trl" x1 --as slime --once
fails 8 "versions of slime are here" mirror "$store/trl" "$store/slime" x2 --as deltawire --once
fails 8 "not written by a mirror" mirror "$store/trl" "$ours" x3 --once
deltawire keygen a.key --quiet >/dev/null
fails 11 "carry no signature" mirror "$store/trl" "$store/copy" x5 --once --trust a.key.pub
fails 2 "none of deltawire, trl" mirror "$ours" "$store/copy" x6 --as floppy --once
fails 2 "slime has no such choice" mirror "$ours" "$store/copy" x7 --as slime --trl v1
deltawire synth -o other --params 200K --steps 1 --write checkpoints --json >/dev/null
deltawire publish "$store/other" other/base --quiet >/dev/null
deltawire publish "$store/other" other/step_000001 --quiet >/dev/null
fails 5 "." mirror "$store/other" "$store/late" x8 --once
