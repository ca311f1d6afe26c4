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

it "makes a new checkpoint and leaves the old one alone"
fresh
echo '{}' >model/config.json
mkdir model/ignored
sum=$(sha256sum model/model.safetensors)
deltawire apply "${deltas[@]}" --to model --out new >/dev/null
same_weights new run/step_000004
cmp new/config.json model/config.json
[ "$(ls -A new)" = "$(printf 'config.json\nmodel.safetensors')" ]
[ "$sum" = "$(sha256sum model/model.safetensors)" ]

it "makes a new file from a file, also from a read-only one"
chmod a-w model/model.safetensors
deltawire apply "${deltas[0]}" --to model/model.safetensors --out new.safetensors >/dev/null
cmp new.safetensors run/step_000001/model.safetensors

it "follows links, as a download cache has them"
mkdir cache
ln -s ../model/model.safetensors cache/model.safetensors
deltawire apply "${deltas[0]}" --to cache --out from-cache/ >/dev/null
[ ! -L from-cache/model.safetensors ]
same_weights from-cache run/step_000001

it "never replaces what is there, and cleans up after a failure"
unchanged fails 8 "new: is there already" deltawire apply "${deltas[0]}" --to model --out new
unchanged fails 4 "step_000003" deltawire apply "${deltas[2]}" --to model --out new2
unchanged fails 6 "nowhere/new" deltawire apply "${deltas[0]}" --to model --out nowhere/new

it "touches no file that has its temporary name"
for target in model model/model.safetensors; do
    # shellcheck disable=SC2016 # the inner shell expands: it becomes the command
    sh -c 'mkdir out.st.tmp-$$-0 && echo mine >out.st.tmp-$$-0/keep &&
        echo mine >out.st.tmp-$$-1 && mkdir .deltawire &&
        touch .deltawire/out.st.tmp-$$-2.patch &&
        exec "$@"' sh "$deltawire" apply "${deltas[0]}" --to $target --out out.st >/dev/null
    [ "$(cat out.st.tmp-*-0/keep out.st.tmp-*-1)" = "$(printf 'mine\nmine')" ]
    ls -d .deltawire/out.st.tmp-*-2.patch >/dev/null
    [ "$(find . -maxdepth 1 -name 'out.st.tmp-*' | wc -l)" -eq 2 ]
    [ "$(state_of out.st)" = "$(state_of run/step_000001)" ]
    rm -r out.st* .deltawire
done

it "copies no state of other applies"
rm -rf new
mkdir model/.deltawire
touch model/.deltawire/b.st.patch model/.deltawire/staged.tmp-1-2 model/b.st.deltawire-patch
deltawire apply "${deltas[0]}" --to model --out new >/dev/null
[ "$(ls -A new)" = "$(printf 'b.st.deltawire-patch\nconfig.json\nmodel.safetensors')" ]

it "works on shards and their index"
deltawire synth -o sharded --params 300K --steps 1 --write checkpoints --shard 100K --json \
    >/dev/null
for target in sharded/base sharded/base/model.safetensors.index.json; do
    deltawire apply "${deltas[0]}" --to $target --out copy >/dev/null
    diff -r copy sharded/step_000001
    rm -r copy
done
deltawire apply "${deltas[0]}" --to sharded/base >/dev/null
diff -r sharded/base sharded/step_000001

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
