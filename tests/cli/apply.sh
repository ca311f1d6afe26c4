#!/usr/bin/env bash
. "$(dirname "$0")/lib.sh"
small_run 4
deltas=(run/deltas/*)
fresh() { # a copy of the base to write on
    rm -rf model
    cp -r run/base model
}

it "brings a checkpoint to the new version in place"
fresh
inode=$(stat -c %i model/model.safetensors)
deltawire apply "${deltas[0]}" --to model >out.txt
same_weights model run/step_000001
grep -q "applied [0-9,]* changes" out.txt
[ "$inode" = "$(stat -c %i model/model.safetensors)" ]
[ "$(ls -A model)" = model.safetensors ]

it "does nothing the second time"
unchanged deltawire apply "${deltas[0]}" --to model >out.txt
grep -q "already applied" out.txt
deltawire apply "${deltas[0]}" --to model --json | holds 'o["deltas"][0]["already_applied"]'

it "applies several in order, also named by file"
fresh
deltawire apply "${deltas[@]}" --to model/model.safetensors --json >out.json
holds '[d["new_version"] for d in o["deltas"]] == [1, 2, 3, 4]' <out.json
same_weights model run/step_000004
[ "$(json 'o["deltas"][3]["new_state"]' <out.json)" = "$(state_of run/step_000004)" ]

it "continues a chain of deltas after an earlier run"
fresh
deltawire apply "${deltas[@]:0:2}" --to model >/dev/null
deltawire apply "${deltas[@]}" --to model --json >out.json
holds '[d["already_applied"] for d in o["deltas"]] == [True, True, False, False]' <out.json
same_weights model run/step_000004
unchanged deltawire apply "${deltas[@]}" --to model --json >out.json
holds 'all(d["already_applied"] for d in o["deltas"])' <out.json

it "refuses a wrong base and changes nothing"
fresh
unchanged fails 4 "step_000003.safetensors: the weights are not version 2" \
    deltawire apply "${deltas[2]}" --to model
grep -q "^try: deltawire inspect run/deltas/step_000003.safetensors" err.last
prints "^  base *$(state_of run/step_000002)" deltawire inspect "${deltas[2]}"
fails 4 "step_000003" deltawire apply "${deltas[0]}" "${deltas[2]}" --to model --quiet
same_weights model run/step_000001

it "refuses another model and changes nothing"
make_checkpoint other.safetensors '{"w": [4, 4]}'
unchanged fails 5 "step_000001.safetensors: tensor 'model.embed_tokens.weight': " \
    deltawire apply "${deltas[0]}" --to other.safetensors

it "checks every delta before it applies the first"
fresh
head -c 1000 "${deltas[1]}" >cut.st
unchanged fails 3 "cut.st: " deltawire apply "${deltas[0]}" cut.st --to model

it "works on shards and their index"
deltawire synth -o sharded --params 300K --steps 1 --write checkpoints --shard 100K --json \
    >/dev/null
for target in copy copy/model.safetensors.index.json; do
    cp -r sharded/base copy
    deltawire apply "${deltas[0]}" --to $target >/dev/null
    diff -r copy sharded/step_000001
    rm -r copy
done

it "accepts names with dots and slashes"
make_checkpoint old.safetensors '{"../../etc/passwd": [9], "..": [3], "/abs": [1]}'
cp old.safetensors new-names.safetensors
flip_bit new-names.safetensors $(($(stat -c %s old.safetensors) - 1))
deltawire diff old.safetensors new-names.safetensors -o names.st >/dev/null
deltawire apply names.st --to old.safetensors >/dev/null
cmp old.safetensors new-names.safetensors

it "finds no checkpoint, or no delta"
unchanged fails 6 "nowhere: " deltawire apply "${deltas[0]}" --to nowhere
unchanged fails 6 "nowhere: " deltawire apply nowhere --to run/base
unchanged fails 7 "not a delta" deltawire apply run/base/model.safetensors --to run/base
