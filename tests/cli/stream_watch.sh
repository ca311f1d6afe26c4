#!/usr/bin/env bash
# A trainer saves checkpoints to disk; each is published.
. "$(dirname "$0")/stream_lib.sh"
small_run 6
url=$store/run

step_of_head() {
    deltawire log "$url" -n 1 --json | json 'o["versions"][0]["step"]'
}

it "publishes existing checkpoints in order of steps"
mkdir output
cp -r run/step_000001 output/checkpoint-100
cp -r run/step_000002 output/checkpoint-1000
cp -r run/step_000003 output/checkpoint-200
start one publish "$url" --watch output --json
one=$!
wait_until head_is 2
[ "$(step_of_head)" = 1000 ]
holds "o['versions'][0]['state'] == '$(state_at 2)'" < <(deltawire log "$url" --json)
holds "o['versions'][1]['state'] == '$(state_at 3)'" < <(deltawire log "$url" --json)
[ "$(deltawire log "$url" --json | json 'o["versions"][1]["step"]')" = 200 ]

it "waits until a checkpoint is complete"
mkdir output/checkpoint-1100
head -c 100000 run/step_000004/model.safetensors >output/checkpoint-1100/model.safetensors
sleep 4
head_is 2
cp run/step_000004/model.safetensors output/checkpoint-1100/model.safetensors
wait_until head_is 3
deltawire log "$url" -n 1 --json | holds "o['versions'][0]['state'] == '$(state_at 4)'"

it "lets temporary names finish"
mkdir output/checkpoint-1200
touch -d '1 hour' output/checkpoint-1200/optimizer.pt.tmp # newer than the weights
cp run/step_000005/model.safetensors output/checkpoint-1200/
sleep 4
head_is 3
rm output/checkpoint-1200/optimizer.pt.tmp
wait_until head_is 4

it "survives rotation"
mkdir output/checkpoint-1300
touch -d '1 hour' output/checkpoint-1300/optimizer.pt.tmp # so it is never complete
cp run/step_000005/model.safetensors output/checkpoint-1300/
rm output/checkpoint-1300/model.safetensors # remove this first: without the other file it would be complete
rm -r output/checkpoint-1300 output/checkpoint-100
cp -r run/step_000006 output/checkpoint-1400
wait_until head_is 5
[ "$(step_of_head)" = 1400 ]

it "stops cleanly"
kill -TERM $one
ends $one 0
tail -n 1 out.one | holds 'o["event"] == "stopped"'

it "continues where it stopped"
start two publish "$url" --watch output
two=$!
sleep 4
head_is 5
cp -r run/step_000001 output/checkpoint-1500
wait_until head_is 6
wait_until grep -q '^output/checkpoint-1500: version 6, .* changed, ' out.two
kill -INT $two
ends $two 0
head_is 6

it "publishes a directory that is rewritten"
mkdir single
cp run/base/model.safetensors single/
start three publish "$store/single" --watch single --json
three=$!
wait_until head_is 0 "$store/single"
cp run/step_000001/model.safetensors single/new.tmp
mv single/new.tmp single/model.safetensors
wait_until head_is 1 "$store/single"
sleep 3
head_is 1 "$store/single"
kill -TERM $three
ends $three 0
deltawire log "$store/single" -n 1 --json | holds "o['versions'][0]['state'] == '$(state_at 1)'"

it "ends if somebody else publishes"
start four publish "$url" --watch output
four=$!
cp -r run/step_000002 output/checkpoint-1600
wait_until head_is 7
publish_step "$url" 3
cp -r run/step_000004 output/checkpoint-1700
ends $four 8
grep -q "^deltawire: $url: .*somebody else publishes here" err.four

it "waits for a directory that is not there yet"
start five publish "$store/late" --watch later/output
five=$!
wait_until grep -q '^deltawire: later/output: it is not there yet: waiting for it$' err.five
mkdir -p later/output
cp -r run/step_000001 later/output/checkpoint-1
wait_until head_is 0 "$store/late"
kill -TERM $five
ends $five 0
