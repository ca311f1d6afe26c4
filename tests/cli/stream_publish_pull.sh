#!/usr/bin/env bash
# Versions go into a stream and come out the same.
. "$(dirname "$0")/stream_lib.sh"
small_run 5
url=$store/run

it "makes a stream with the whole model as version 0"
deltawire publish "$url" run/base --json >out.json
holds 'o["version"] == 0 and o["created"] and o["bytes"] >= o["model_bytes"]' <out.json
[ "$(json 'o["state"]' <out.json)" = "$(state_at 0)" ]

it "uploads what changed"
deltawire publish "$url" run/step_000001 --step 1 --notes 'first step' --json >out.json
holds 'o["version"] == 1 and not o["created"] and o["ratio"] > 20' <out.json
[ "$(json 'o["state"]' <out.json)" = "$(state_at 1)" ]
[ "$(json 'o["changed"]' <out.json)" = \
    "$(deltawire inspect run/deltas/step_000001.safetensors --json | json 'o["changed"]')" ]
deltawire publish "$url" run/step_000002 --step 2 >out.txt
grep -q '^  version    2$' out.txt
grep -q '^  changed    .* of .* elements' out.txt
grep -q '^  full model .* times the size of this version' out.txt

it "fills a new directory"
deltawire pull "$url" --into model --json >out.json
holds 'o["from"] is None and o["version"] == 2 and o["steps"] >= 1' <out.json
is_at model 2

it "reports that nothing is new"
keeps model deltawire pull "$url" --into model >out.txt
grep -q '^model: version 2: nothing new$' out.txt

it "fetches what changed since"
publish_step "$url" 3
deltawire pull "$url" --into model --json >out.json
holds 'o["from"] == 2 and o["version"] == 3 and o["steps"] == 1' <out.json
holds "o['bytes'] < $(stat -c %s run/base/model.safetensors) / 10" <out.json
is_at model 3

it "goes to any version, forth and back"
deltawire pull "$url" --into other --at 1 >out.txt
grep -q '^other: version 1 from nothing: ' out.txt
is_at other 1
deltawire pull "$url" --into other --at 3 --quiet >/dev/null
is_at other 3
deltawire pull "$url" --into other --at 0 --quiet >/dev/null
is_at other 0
keeps other fails 6 "version 9" deltawire pull "$url" --into other --at 9

it "reports which version a directory holds, and finds a damaged one"
prints '^  holds      version 3 of stream [0-9a-f]\{32\}$' deltawire verify model
cp -r model damaged
weights=$(find damaged -name '*.safetensors' | sed -n 1p)
flip_bit "$weights" $(($(stat -c %s "$weights") - 7))
unchanged fails 3 "damaged: the weights .* are not version 3" deltawire verify damaged
cp -r model changed
sed -i 's/"version":3/"version":7/' changed/.deltawire/state.json
fails 3 "the record of its version is damaged" deltawire verify changed

it "refuses a directory that holds something else"
mkdir foreign
cp run/base/model.safetensors foreign/
flip_bit foreign/model.safetensors $(($(stat -c %s foreign/model.safetensors) - 7))
echo precious >foreign/notes.txt
keeps foreign fails 8 "foreign: it holds weights that are neither" deltawire pull "$url" --into foreign

it "accepts one that holds the weights of version 0"
mkdir known
cp run/base/model.safetensors known/
echo precious >known/notes.txt
deltawire pull "$url" --into known --json | holds 'o["from"] == 0 and o["version"] == 3'
is_at known 3
[ "$(cat known/notes.txt)" = precious ]

it "works without its baseline"
rm -r cache
publish_step "$url" 4
deltawire pull "$url" --into model --quiet >/dev/null
is_at model 4

it "keeps the baseline in --baseline DIR"
publish_step "$url" 5 --baseline here/baseline
[ -n "$(ls here/baseline)" ]

it "also publishes weights that did not change"
deltawire publish "$url" run/step_000005 --json | holds 'o["version"] == 6 and o["changed"] == 0'

it "refuses another model"
make_checkpoint zeros.safetensors '{"b": [3], "a": [2]}'
fails 5 "$url" deltawire publish "$url" zeros.safetensors
deltawire status "$url" --json | holds 'o["head"] == 6'

it "refuses what is no checkpoint"
fails 6 "nowhere: " deltawire publish "$url" nowhere
fails 6 "empty" deltawire pull "$store/empty" --into never
[ ! -e never/model.safetensors ]

it "publishes F32 as BF16, as Python does, and says so; --f32 leaves it"
deltawire synth -o f32 --params 100K --steps 1 --dtype f32 --write checkpoints --quiet >/dev/null
for keep in '' --f32; do
    # shellcheck disable=SC2086 # a word or none
    deltawire publish "$store/f32$keep" f32/base $keep >/dev/null 2>err.txt
    if [ -z "$keep" ]; then grep -q 'weights are F32, and published as BF16.*--f32' err.txt; fi
    deltawire publish "$store/f32$keep" f32/step_000001 --quiet
    deltawire pull "$store/f32$keep" --into "f32-model$keep" --quiet
done
same_weights f32-model--f32 f32/step_000001
python3 - <<'END'
import array, json, struct
def tensors(path):
    data = open(path + "/model.safetensors", "rb").read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8:start]).items():
        if name != "__metadata__":
            yield name, t["dtype"], data[start + t["data_offsets"][0]:start + t["data_offsets"][1]]
pulled = {name: (dtype, array.array("H", data)) for name, dtype, data in tensors("f32-model")}
for name, _, data in tensors("f32/step_000001"):
    rounded = array.array("H", (x + 0x7fff + (x >> 16 & 1) >> 16 for x in array.array("I", data)))
    assert pulled[name] == ("BF16", rounded), name
END
fails 5 "as BF16.*your model as F32" deltawire publish "$store/f32" f32/base --f32
