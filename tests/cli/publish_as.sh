#!/usr/bin/env bash
# labels: slow
# Checkpoints published for the readers of other systems.
. "$(dirname "$0")/stream_lib.sh"
small_run 4

publish_as() { # FORMAT STEP [OPTION...]
    deltawire publish "$store/$1" "run/$(printf 'step_%06d' "$2")" --as "$1" --json "${@:3}"
}

# head_is FORMAT VERSION STEP: a reader gets the checkpoint of that step
head_is() {
    rm -rf got
    deltawire pull "$store/$1" --into got --base run/base --json >out.pull
    holds "o['version'] == $2" <out.pull
    [ "$(state_of got)" = "$(state_at "$3")" ]
}

it "writes one version after the other, and reports sizes and times"
for format in trl slime; do
    base=()
    [ "$format" = trl ] || base=(--base-ckpt run/base)
    for step in 1 2 3; do
        publish_as "$format" "$step" "${base[@]}" >out.publish
        holds "o['version'] == $step and o['objects'] > 0 and not o['skipped']" <out.publish
        holds "o['state'] == '$(state_at $step)'" <out.publish
        head_is "$format" "$step" "$step"
    done
    holds "0 < o['changed'] < 20000 and o['ratio'] > 5" <out.publish
    # the same weights again are a small version
    publish_as "$format" 3 "${base[@]}" | holds 'o["version"] == 4 and o["changed"] == 0'
    head_is "$format" 4 3
done

it "accepts all encodings"
deltawire publish "$store/v1" run/step_000001 --as trl --trl v1 --quiet >/dev/null
deltawire publish "$store/v1" run/step_000002 --as trl --trl v1 --quiet >/dev/null
deltawire log "$store/v1" --json | holds 'o["versions"][0]["encoding"] == "raw"'
for step in 1 2 3; do
    deltawire publish "$store/o" "run/step_00000$step" --as slime --codec overwrite \
        --checksum adler32 --whole-every 3 --max-shard 100K --quiet >/dev/null
done
deltawire log "$store/o" --json >out.log
holds '[v["encoding"] for v in o["versions"]] == ["whole", "overwrite", "whole"]' <out.log
holds 'o["versions"][1]["checksum"] == "adler32" and o["versions"][1]["objects"] > 2' <out.log

it "watches a directory, and goes on with the newest checkpoint after a restart"
mkdir output
cp -r run/step_000001 output/checkpoint-10
start one publish "$store/watched" --as slime --watch output --json
one=$!
wait_until grep -q '"version":1' out.one
cp -r run/step_000002 output/checkpoint-20
wait_until grep -q '"version":2' out.one
kill -TERM $one
ends $one 0
cp -r run/step_000003 output/checkpoint-30
cp -r run/step_000004 output/checkpoint-40
start two publish "$store/watched" --as slime --watch output --json
two=$!
wait_until grep -q '"version":3' out.two
kill -TERM $two
ends $two 0
head_is watched 3 4

it "refuses what does not fit, and writes nothing"
fails 2 "none of trl, slime" deltawire publish "$store/n" run/base --as floppy
fails 2 "go only with --as" deltawire publish "$store/n" run/base --codec xor
fails 2 "no place for it" deltawire publish "$store/n" run/base --as trl --step 5
fails 2 "no place for it" deltawire publish "$store/n" run/base --as trl --fork "$store/x"
fails 2 "begin with a whole one" deltawire publish "$store/n" run/base --as trl --base-ckpt run/base
fails 2 "no codec gap" deltawire publish "$store/n" run/base --as trl --trl v1 --codec gap
fails 2 "neither xor nor overwrite" deltawire publish "$store/n" run/base --as slime --codec gap
deltawire synth -o wide --params 100K --steps 1 --dtype f32 --write checkpoints --json >/dev/null
fails 7 "only BF16, and this is F32" deltawire publish "$store/n" wide/base --as trl
fails 8 "versions of trl are here" deltawire publish "$store/trl" run/step_000001 --as slime
new_stream "$store/ours" 1
fails 8 "a deltawire stream is here" deltawire publish "$store/ours" run/base --as slime
fails 5 "tensor" deltawire publish "$store/slime" wide/base --as slime
