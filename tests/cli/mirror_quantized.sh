#!/usr/bin/env bash
# labels: slow
# A derived stream: the quantised versions of a bf16 stream.
. "$(dirname "$0")/stream_lib.sh"
small_run 8
ours=$store/bf16 fp8=$store/fp8

mirror() { # TO NAME OPTION...
    deltawire mirror "$ours" "$1" --work "work/$2" "${@:3}"
}
# sources URL: the source versions of all versions, oldest first
sources() {
    deltawire log "$1" -n 0 --json |
        json '" ".join(str(v["source"]["version"]) for v in reversed(o["versions"]))'
}
# equals STREAM STEP SCHEME: the newest version is what publish --quantize makes of the step
equals() {
    local from=run/base
    [ "$2" -eq 0 ] || from=$(printf 'run/step_%06d' "$2")
    rm -rf direct direct.into mirrored.into
    deltawire publish "file://$scratch/direct" "$from" --quantize "$3" --quiet \
        --baseline "$scratch/direct.baseline.$RANDOM$RANDOM" >/dev/null
    deltawire pull "file://$scratch/direct" --into direct.into --quiet >/dev/null
    deltawire pull "$1" --into mirrored.into --quiet >/dev/null
    same_weights direct.into mirrored.into
}

it "publishes each version, quantised, with its source, step and notes"
deltawire publish "$ours" run/base --step first --notes 'a note' --quiet >/dev/null
for i in 1 2 3; do publish_step "$ours" $i; done
id=$(deltawire log "$ours" --json | json 'o["stream"]')
mirror "$fp8" fp8 --quantize fp8-block --once >out.mirror
grep -q '^version 0: the whole model' out.mirror
grep -q '^version 3: [0-9,]* changed' out.mirror
[ "$(sources "$fp8")" = "0 1 2 3" ]
deltawire log "$fp8" --json >out.log
holds "[v['step'] for v in o['versions']] == ['3', '2', '1', 'first']" <out.log
holds "o['versions'][3]['notes'] == 'a note'" <out.log
holds "o['versions'][0]['source']['stream'] == '$id'" <out.log
holds "o['quantized'] == {'scheme': 'fp8-block', 'rounded': 'bf16'}" <out.log
object_get "$ours" "$(commit_key 2)" commit-2
holds "o['versions'][1]['source']['commit_sha256'] == '$(sha256sum <commit-2 | cut -d ' ' -f 1)'" \
    <out.log
deltawire verify "$fp8" --quiet >/dev/null
equals "$fp8" 3 fp8-block

it "does nothing if nothing is new, also without its work directory"
mirror "$fp8" fp8 --quantize fp8-block --once --json | tail -n 1 |
    holds 'o == {"event": "done", "from_version": 3, "version": 3, "versions": 0}'
rm -r work/fp8
mirror "$fp8" fp8 --quantize fp8-block --once --json | tail -n 1 |
    holds 'o == {"event": "done", "from_version": 3, "version": 3, "versions": 0}'

it "follows as the stream grows"
start grows mirror "$ours" "$fp8" --work work/fp8 --quantize fp8-block --until 5 \
    --interval 0.2 --json
grows=$!
publish_step "$ours" 4
publish_step "$ours" 5
ends $grows 0
[ "$(sources "$fp8")" = "0 1 2 3 4 5" ]
equals "$fp8" 5 fp8-block

it "refuses other options, another source, and a stream that no mirror wrote"
fails 5 "quantised as fp8-block" mirror "$fp8" other --quantize int8-row --once
fails 2 "both ends are deltawire streams" mirror "$fp8" other --once
deltawire publish "$store/another" run/base --quiet >/dev/null
fails 8 "was made of stream" deltawire mirror "$store/another" "$fp8" --work work/another \
    --quantize fp8-block --once
fails 8 "not written by a mirror" mirror "$store/another" other --quantize fp8-block --once
fails 2 "TO must be a deltawire stream" mirror "$store/trl" other --quantize fp8-row --as trl
[ "$(sources "$fp8")" = "0 1 2 3 4 5" ]

it "refuses a derived version that is not what the source quantises to"
deltawire mirror "$ours" "$store/kept" --work work/kept --quantize fp8-row --once \
    --quantize-from-f32 --quiet
fails 5 "from F32 as they are.*rounded to bf16 first: add --quantize-from-f32" mirror "$store/kept" kept2 --quantize fp8-row --once

it "goes on after kill -9 at any instant, without a lost or repeated version"
publish_step "$ours" 6
deltawire compact "$ours" --anchor --quiet >/dev/null
for i in 7 8; do publish_step "$ours" $i; done
for _ in $(seq 12); do
    start killed mirror "$ours" "$store/killed" --work work/killed --quantize int8-row --once
    killed=$!
    sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
    kill -9 $killed 2>/dev/null || true
    wait $killed 2>/dev/null || true
done
mirror "$store/killed" killed --quantize int8-row --once --quiet
[ "$(sources "$store/killed")" = "0 1 2 3 4 5 6 7 8" ]
deltawire verify "$store/killed" --quiet >/dev/null
equals "$store/killed" 8 int8-row

it "begins with the oldest version that is kept"
deltawire gc "$ours" --keep 3 --quiet >/dev/null
mirror "$store/late" late --quantize fp8-block --once --quiet
[ "$(sources "$store/late")" = "6 7 8" ]
equals "$store/late" 8 fp8-block

it "skips versions that are not finite, and goes on with the next one"
bf16=$store/nan
skips() { # OPTION...
    deltawire mirror "$bf16" "$store/skips" --work work/skips --quantize fp8-block --once "$@"
}
publish_nan() { # STEP: that checkpoint, with one NaN
    rm -rf bad
    cp -r "$(printf 'run/step_%06d' "$1")" bad
    set_weight bad model.layers.0.mlp.down_proj.weight 7fc0
    deltawire publish "$bf16" bad --step "$1" --quiet >/dev/null
}
publish_nan 1
skips 2>err.skips
grep -q "version 0 is skipped.*down_proj.weight.*element [0-9]* is NaN" err.skips
publish_step "$bf16" 2
publish_nan 3
publish_step "$bf16" 4
skips --json >out.skips
grep -q '"event":"skipped","from_version":0,"code":"not finite"' out.skips
grep -q '"event":"skipped","from_version":2,' out.skips
# version 0 of the derived stream has the objects that its commit names
deltawire inspect "$store/skips" --at 0 --json >first.json
holds 'o["objects"] > 0 and o["bytes"] > 0' <first.json
grep '"from_version":1,"version":0,' out.skips |
    holds "[o['objects'], o['bytes']] == [$(json '"%d, %d" % (o["objects"], o["bytes"])' <first.json)]"
tail -n 1 out.skips |
    holds 'o == {"event": "done", "from_version": 3, "version": 1, "versions": 2}'
[ "$(sources "$store/skips")" = "1 3" ]
publish_nan 5
skips --json | tail -n 1 |
    holds 'o == {"event": "done", "from_version": 3, "version": 1, "versions": 0}'
# --until ends there, too: without --once
deltawire mirror "$bf16" "$store/skips" --work work/skips --quantize fp8-block --until 4 \
    >out.until 2>err.until
grep -q "version 4 is skipped" err.until
grep -q "0 versions were written, the newest is 1, made of FROM's version 3$" err.until
rm -r work/skips
publish_step "$bf16" 6
skips --quiet 2>/dev/null
[ "$(sources "$store/skips")" = "1 3 5" ]
deltawire verify "$store/skips" --quiet >/dev/null
equals "$store/skips" 6 fp8-block

it "goes on after a repair of the derived stream"
mirror "$store/repaired" repaired --quantize fp8-block --once --json >out.repaired
! grep -q '"verified":true' out.repaired || die "nothing was there to compare with"
at=$(deltawire status "$store/repaired" --json | json 'o["head"]')
rm -r work/repaired
object_remove "$store/repaired" "$(object_of "$store/repaired" "$at")"
fails 6 "deltawire repair" mirror "$store/repaired" repaired --quantize fp8-block --once
deltawire repair "$store/repaired" --quiet >/dev/null
mirror "$store/repaired" repaired --quantize fp8-block --once --quiet
[ "$(sources "$store/repaired")" = "6 7 8 7 8" ]
equals "$store/repaired" 8 fp8-block

it "names its own option if the target is gone"
if is_file_store; then
    rm -rf "${store#file://}/repaired"
    fails 9 "empty directory with --work" \
        mirror "$store/repaired" repaired --quantize fp8-block --once
fi

it "stops when asked to"
start stopped mirror "$ours" "$fp8" --work work/fp8 --quantize fp8-block --json
stopped=$!
wait_until grep -q '"from_version":8' out.stopped
kill -TERM $stopped
ends $stopped 0
equals "$fp8" 8 fp8-block
