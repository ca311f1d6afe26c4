#!/usr/bin/env bash
# `publish --watch` reports directories that it cannot use, each once.
. "$(dirname "$0")/stream_lib.sh"
small_run 1
url=$store/run

warned() { # REGEXP: exactly one line of the watch matches
    [ "$(grep -c "^deltawire: $1" err.watch)" -eq 1 ]
}

mkdir -p output
start watch publish "$url" --watch output
watch=$!

it "reports that it waits"
wait_until warned 'output: no checkpoint yet'

it "reports what is wrong with a directory"
mkdir -p made/checkpoint-10 made/checkpoint-20 made/global_step_7/actor made/runs made/final \
    made/tmp-checkpoint-30
echo weights >made/checkpoint-20/pytorch_model.bin
echo state >made/checkpoint-20/optimizer.pt
echo events >made/runs/events.out.tfevents
cp run/base/model.safetensors made/final/
mv made/* output/ # each appears as a whole
wait_until warned 'output/checkpoint-10: it is empty'
wait_until warned 'output/checkpoint-20: its weights are not safetensors files (pytorch_model.bin'
wait_until warned 'output/global_step_7: there are no .safetensors files in it'
wait_until warned 'output/final: its name has no step'

it "reports it once, and publishes what becomes usable"
cp run/base/model.safetensors output/checkpoint-10/
wait_until head_is 0
cp run/step_000001/model.safetensors output/global_step_7/
wait_until head_is 1
[ "$(deltawire log "$url" -n 1 --json | json 'o["versions"][0]["step"]')" = 7 ]
kill -TERM $watch
ends $watch 0
warned 'output/checkpoint-20: '
warned 'output/final: '
if grep -q 'output/runs\|output/tmp' err.watch; then die "it speaks of other directories"; fi
