#!/usr/bin/env bash
# Companion files: what publish takes from a checkpoint, and what the stream then has.
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run

for step in 1 2 3; do
    echo '{"model_type": "tiny"}' >run/step_00000$step/config.json
    echo '{"tokens": []}' >run/step_00000$step/tokenizer.json
    echo '{"step": 1}' >run/step_00000$step/trainer_state.json
done

names() { # the companion files of the newest version
    deltawire inspect "$url" --json | json '",".join(f["name"] for f in o["files"])'
}
n_stored() {
    object_list "$url" files/ | wc -l
}

it "publishes the usual files of a directory"
deltawire publish "$url" run/step_000001 --json >out.json
holds 'o["files"] == 2 and o["file_bytes"] == 38' <out.json
[ "$(names)" = config.json,tokenizer.json ]
deltawire inspect "$url" --file config.json | cmp - run/step_000001/config.json
prints '^ *23 *0  config.json$' deltawire inspect "$url"

it "shows them with the newest version"
deltawire status "$url" --json | holds '[(f["name"], f["bytes"]) for f in o["files"]] == [
    ("config.json", 23), ("tokenizer.json", 15)] and len(o["files"][0]["sha256"]) == 64'
prints '^  files  *2, 38 B$' deltawire status "$url"

it "stores only what changed"
echo '{"model_type": "tiny", "x": 1}' >run/step_000002/config.json
deltawire publish "$url" run/step_000002 --json | holds 'o["files"] == 2 and o["file_bytes"] == 31'
[ "$(n_stored)" = 3 ]
deltawire inspect "$url" --json |
    holds '[f["version"] for f in o["files"]] == [1, 0]'
deltawire inspect "$url" --at 0 --file config.json | cmp - run/step_000001/config.json
fails 6 "there is no version 99 yet: the newest is [0-9]*$" deltawire inspect "$url" --at 99
fails 6 "there is no version 99 yet" deltawire inspect "$url" --at 99 --file config.json

it "takes what --with names, and leaves out what --without names"
deltawire publish "$url" run/step_000003 --with '*_state.json' --without 'tok*' --quiet
[ "$(names)" = config.json,trainer_state.json ]

it "keeps the files if a checkpoint is a single file, or has none"
deltawire publish "$url" run/step_000003/model.safetensors --quiet
[ "$(names)" = config.json,trainer_state.json ]
mkdir bare
cp run/step_000003/model.safetensors bare/
deltawire publish "$url" bare --quiet
[ "$(names)" = config.json,trainer_state.json ]
deltawire publish "$url" run/step_000003/model.safetensors --with tokenizer.json --quiet
[ "$(names)" = tokenizer.json ]

it "publishes none with --without '*'"
deltawire publish "$url" run/step_000003 --without '*' --json | holds 'o["files"] == 0'
[ -z "$(names)" ]
deltawire log "$url" -n 2 --json | holds '[v["files"] for v in o["versions"]] == [0, 1]'

it "publishes none with --without '*' of a single file either"
deltawire publish "$url" run/step_000003/model.safetensors --with tokenizer.json --quiet
[ "$(names)" = tokenizer.json ]
deltawire publish "$url" run/step_000003/model.safetensors --without '*' --quiet
[ -z "$(names)" ]

it "refuses what is no whole file: followers would remove theirs"
head=$(deltawire status "$url" --json | json 'o["head"]')
cp -r run/step_000001 bad
refuses() { # CODE TEXT OPTION...
    fails "$1" "$2" deltawire publish "$url" bad "${@:3}"
}
printf '{"a": 1' >bad/config.json
refuses 4 "bad/config.json: it is not JSON"
printf 'not json' >bad/config.json
refuses 2 "bad/config.json: it is not JSON: it begins neither with { nor with \["
echo '{}' >bad/config.json
refuses 2 "../config.json: this cannot be the name of a companion file" --with ../config.json
refuses 6 "there is no file 'vocab.txt' in it" --with vocab.txt
ln -s nowhere bad/vocab.txt
refuses 6 "bad/vocab.txt: the link leads nowhere.* leave it out"
rm bad/vocab.txt
mkfifo bad/vocab.txt
refuses 2 "bad/vocab.txt: this is not a regular file.* leave it out"
(cd bad && seq -f 'f%.0f.py' 1025 | xargs touch)
refuses 2 "more than 1024 companion files" --with '*.py'
[ "$(deltawire status "$url" --json | json 'o["head"]')" = "$head" ]
deltawire publish "$url" bad --without vocab.txt --quiet
[ "$(names)" = config.json,tokenizer.json ]

it "warns of a --with that matches nothing"
deltawire publish "$url" run/step_000003 --with 'nothing*.py' --with 'trainer*' >out.warned 2>&1
grep -q "^deltawire: warning: nothing\*.py: none of the files" out.warned
[ "$(grep -c warning out.warned)" = 1 ]
deltawire publish "$url" run/step_000003 --with 'nothing*.py' --json | holds 'o["files"] == 2'

it "follows links to files and passes over directories"
mkdir linked
ln -s ../run/step_000002/model.safetensors linked/model.safetensors
ln -s ../run/step_000002/config.json linked/config.json
mkdir linked/vocab.json linked/extra.py
deltawire publish "$url" linked --with '*' --quiet
[ "$(names)" = config.json ]
deltawire inspect "$url" --file config.json | cmp - run/step_000002/config.json

it "verifies, copies and collects them"
deltawire verify "$url" --quiet
deltawire cp "$url" "$store/copy" --quiet
deltawire inspect "$store/copy" --at 0 --file tokenizer.json | cmp - run/step_000001/tokenizer.json
key=$(object_list "$url" files/ | sed -n 1p)
object_get "$url" "$key" kept
object_remove "$url" "$key"
fails 6 "1 fault was found" deltawire verify "$url"
grep -q "companion file 'config.json' is missing" out.last
object_put "$url" "$key" kept
deltawire compact "$url" --anchor --quiet
before=$(n_stored)
deltawire gc "$url" --keep 1 --quiet
[ "$(n_stored)" = 1 ] && [ "$before" -gt 1 ]
deltawire inspect "$url" --file config.json | cmp - run/step_000002/config.json
deltawire verify "$url" --quiet

it "repairs with the files of the checkpoint"
object_remove "$url" "$(object_list "$url" files/)"
deltawire repair "$url" run/step_000003 --quiet
deltawire inspect "$url" --file tokenizer.json | cmp - run/step_000003/tokenizer.json

it "repairs without files that are lost and not given"
object_list "$url" files/ >list # the repair's: config.json, then tokenizer.json
object_remove "$url" "$(sed -n 1p list)"
deltawire repair "$url" run/step_000003/model.safetensors --quiet
[ "$(names)" = tokenizer.json ]
deltawire pull "$url" --into repaired --quiet
cmp repaired/tokenizer.json run/step_000003/tokenizer.json

it "repair takes --with only with a checkpoint"
fails 2 "files of a checkpoint: name one" deltawire repair "$url" --with '*.py'
fails 2 "files of a checkpoint: name one" deltawire repair "$url" --without '*'

it "stores a lost file again if the same file is published"
deltawire publish "$store/lost" run/step_000003 --quiet
for key in $(object_list "$store/lost" files/); do object_remove "$store/lost" "$key"; done
deltawire publish "$store/lost" run/step_000003 --json | holds 'o["file_bytes"] == 38'
deltawire pull "$store/lost" --into lost --quiet
cmp lost/config.json run/step_000003/config.json
cmp lost/tokenizer.json run/step_000003/tokenizer.json
deltawire publish "$store/lost" run/step_000003 --json | holds 'o["file_bytes"] == 0'

it "signs them"
deltawire keygen trainer.key --json >public.key
deltawire publish "$store/signed" run/step_000003 --sign-key trainer.key --quiet
deltawire inspect "$store/signed" --trust "$(json 'o["key"]' <public.key)" \
    --file config.json | cmp - run/step_000003/config.json
key=$(object_list "$store/signed" files/ | sed -n 1p)
printf '%s' '{"model_type": "evil"}
' >evil
object_put "$store/signed" "$key" evil
fails 3 "companion file 'config.json'" deltawire inspect "$store/signed" --file config.json

it "watches DIR itself for changed files, too"
mkdir output
cp run/step_000001/{model.safetensors,config.json} output/
start watch publish "$store/watched" --watch output --json
watch=$!
wait_until eval "deltawire inspect $store/watched --file config.json 2>/dev/null | cmp -s - output/config.json"
echo '{"model_type": "tiny", "changed": 1}' >output/config.new
mv output/config.new output/config.json
wait_until eval "deltawire inspect $store/watched --file config.json | cmp -s - output/config.json"
kill -TERM $watch
ends $watch 0

it "watches DIR itself for changes of what --with names, not of what --without names"
echo 'print(1)' >output/model.py
echo '{"a": 1}' >output/generation_config.json
start watch publish "$store/globs" --watch output --with '*.py' --without 'gen*' --json
watch=$!
wait_until eval "deltawire inspect $store/globs --file model.py 2>/dev/null | cmp -s - output/model.py"
echo '{"a": 2}' >output/gen.new
mv output/gen.new output/generation_config.json
sleep 3 # three scans: two that find it unchanged
echo 'print(2)' >output/model.new
mv output/model.new output/model.py
wait_until eval "deltawire inspect $store/globs --file model.py | cmp -s - output/model.py"
kill -TERM $watch
ends $watch 0
head_is 1 "$store/globs"
rm output/model.py output/generation_config.json

it "publishes a checkpoint whose files stay incomplete without them"
mkdir -p steps/checkpoint-1 steps/checkpoint-2
cp run/step_000001/{model.safetensors,config.json} steps/checkpoint-1/
cp run/step_000002/model.safetensors steps/checkpoint-2/
: >steps/checkpoint-2/config.json
start steps publish "$store/steps" --watch steps --json
steps=$!
wait_until head_is 1 "$store/steps"
kill -TERM $steps
ends $steps 0
grep -q '"event":"without files"' out.steps
deltawire inspect "$store/steps" --file config.json | cmp - steps/checkpoint-1/config.json
deltawire pull "$store/steps" --into stepped --quiet
cmp stepped/model.safetensors run/step_000002/model.safetensors
