#!/usr/bin/env bash
# A trainer starts again from an older checkpoint: `publish --watch` follows it back.
. "$(dirname "$0")/stream_lib.sh"
small_run 6
url=$store/run

steps_are() { # STEP...: of all versions
    deltawire log "$url" -n 100 --json >out.log
    [ "$(json '" ".join(v["step"] for v in reversed(o["versions"]))' <out.log)" = "$*" ]
}
head_is_step() { # STEP-IN-RUN: the newest version has these weights
    deltawire log "$url" -n 1 --json | holds "o['versions'][0]['state'] == '$(state_at "$1")'"
}
save() { # STEP-IN-RUN N: like a trainer, over existing files
    mkdir -p "output/checkpoint-$2"
    cp "run/$(printf 'step_%06d' "$1")/model.safetensors" "output/checkpoint-$2/new.tmp"
    mv "output/checkpoint-$2/new.tmp" "output/checkpoint-$2/model.safetensors"
}
begin() { # NAME
    start "$1" publish "$url" --watch output
    watch=$!
}
stop() {
    kill -TERM $watch
    ends $watch 0
}
# the watch reports what it ignores only after it has decided about all
decided() { # NAME N
    grep -q "^deltawire: output: leaves $2 checkpoints alone" "err.$1"
}

mkdir output
for i in 1 2 3 4; do save $i ${i}0; done
begin first
wait_until steps_are 10 20 30 40

it "publishes a lower step that is written again, and reports it; other files do not count"
echo '{}' >output/checkpoint-20/eval_results.json
while date >>output/checkpoint-30/train.log; do sleep 0.1; done &
logger=$!
save 5 30
wait_until steps_are 10 20 30 40 30
kill $logger
head_is_step 5
wait_until grep -q '^deltawire: output/checkpoint-30: published after step 40: the trainer went back' err.first
stop

it "publishes what was written again while it did not run, and not what was discarded"
save 3 50
sleep 1.1 # times are compared in seconds
save 6 20
begin second
wait_until steps_are 10 20 30 40 30 20
head_is_step 6
wait_until decided second 3
wait_until grep -q '^deltawire: output/checkpoint-20: published after step 30: the trainer went back' err.second
wait_until grep -q '^deltawire: output/checkpoint-50: not published: .*checkpoint-20 is newer, so the trainer discarded' err.second
stop

it "ignores what was published or discarded, whatever its step"
begin third
wait_until decided third 5
save 1 60 # the next one to publish
wait_until steps_are 10 20 30 40 30 20 60
stop

it "does not bring back what a publish by hand left behind"
deltawire publish "$url" output/checkpoint-20 --step 20 --quiet >/dev/null
begin fourth
wait_until decided fourth 6
save 3 30
wait_until steps_are 10 20 30 40 30 20 60 20 30
stop

it "goes back to the newest checkpoint that was left"
rm -r output/checkpoint-[3456]0
begin fifth
wait_until steps_are 10 20 30 40 30 20 60 20 30 20
head_is_step 6
stop

it "recognises copies by their weights"
deltawire log "$url" -n 1 --json >out.log
touch -d "$(json 'o["versions"][0]["created"]' <out.log)" output/checkpoint-*/* # a close call
begin sixth
wait_until grep -q '^output/checkpoint-10: version 0 has these weights already' out.sixth
save 2 70
wait_until steps_are 10 20 30 40 30 20 60 20 30 20 70
stop

it "brings followers there"
deltawire pull "$url" --into served --quiet >/dev/null
[ "$(state_of served)" = "$(state_at 2)" ]
