#!/usr/bin/env bash
# A trainer's bf16 checkpoints become a stream of fp8 or int8 weights.
. "$(dirname "$0")/stream_lib.sh"
small_run 6

quantized() { # URL STEP SCHEME [OPTION...]
    local from=run/base
    [ "$2" -eq 0 ] || from=$(printf 'run/step_%06d' "$2")
    deltawire publish "$1" "$from" --step "$2" --quantize "$3" --quiet "${@:4}" >/dev/null
}
# types DIR: the element types of a checkpoint
types() {
    deltawire inspect "$1" --json | json '" ".join(sorted(o["dtypes"]))'
}
tensor=model.layers.0.mlp.down_proj.weight

it "publishes each scheme, and a follower gets a checkpoint that engines load"
for scheme in fp8-block fp8-row int8-row; do
    url=$store/$scheme
    for i in 0 1 2 3; do quantized "$url" $i $scheme; done
    deltawire pull "$url" --into "pulled-$scheme" --quiet >/dev/null
    deltawire verify "$url" --quiet >/dev/null
    for verb in log status inspect stats; do
        prints "quantised:\\? *$scheme, F32 rounded to bf16 first$" deltawire $verb "$url"
        deltawire $verb "$url" --json |
            holds "o['quantized'] == {'scheme': '$scheme', 'rounded': 'bf16'}"
    done
done
[ "$(types pulled-fp8-block)" = "BF16 F32 F8_E4M3" ]
[ "$(types pulled-fp8-row)" = "BF16 F32 F8_E4M3" ]
[ "$(types pulled-int8-row)" = "BF16 F32 I8" ]

it "shows what is quantised, and how many scales changed"
for scheme in fp8-block fp8-row int8-row; do
    prints "  quantised  $scheme, [0-9]* tensors" deltawire inspect "pulled-$scheme"
    deltawire inspect "pulled-$scheme" --json | holds "o['quantized'] == '$scheme'"
    deltawire stats "$store/$scheme" >out.stats
    grep -q "  quantised  $scheme" out.stats
    grep -q "  scales     [0-9,]* changed, [0-9.]* % a step" out.stats
    deltawire stats "$store/$scheme" --json |
        holds '[k["elements"] > 0 for k in o["kinds"] if k["kind"] == "scales"] == [True]'
done
object_get "$store/int8-row" "$(object_of "$store/int8-row" 1)" delta.safetensors
deltawire inspect delta.safetensors --json >out.delta
holds '0 < o["changed_scales"] < o["changed_quantized"] < o["changed"]' <out.delta
prints "  quantised  [0-9,]* weights and [0-9,]* scales of them" \
    deltawire inspect delta.safetensors

it "gives the same weights from scratch as through deltas"
for scheme in fp8-block fp8-row int8-row; do
    quantized "$store/$scheme-3" 3 $scheme
    deltawire pull "$store/$scheme-3" --into "fresh-$scheme" --quiet >/dev/null
    same_weights "pulled-$scheme" "fresh-$scheme"
done

it "publishes nothing that differs only in bits that the scheme drops"
deltawire publish "$store/fp8-block" run/step_000003 --quantize fp8-block --json |
    holds 'o["version"] == 4 and o["changed"] == 0'

it "refuses another scheme, or none, by name"
unchanged fails 5 "quantised as fp8-block.*quantised as int8-row" \
    deltawire publish "$store/fp8-block" run/step_000004 --quantize int8-row
fails 5 "quantised as fp8-block.*unquantised" \
    deltawire publish "$store/fp8-block" run/step_000004
fails 5 "rounded to bf16 first.*quantised from F32 as they are: drop --quantize-from-f32" \
    deltawire publish "$store/fp8-block" run/step_000004 --quantize fp8-block --quantize-from-f32
deltawire publish "$store/plain" run/base --quiet >/dev/null
fails 5 "not quantised.*quantised as fp8-row" \
    deltawire publish "$store/plain" run/step_000001 --quantize fp8-row
head_is 4 "$store/fp8-block"
head_is 0 "$store/plain"

it "refuses a wrong command line"
fails 2 "'fp8' is none of fp8-block, fp8-row, int8-row" \
    deltawire publish "$store/none" run/base --quantize fp8
fails 2 "go only with --quantize" \
    deltawire publish "$store/none" run/base --quantize-keep '*.up_proj.*'
fails 2 "with --quantize version 0 is uploaded" \
    deltawire publish "$store/none" run/base --quantize fp8-row --base

it "refuses a checkpoint that is quantised already"
fails 2 "quantised already" \
    deltawire publish "$store/twice" pulled-fp8-block --quantize fp8-block
fails 5 "quantise the trainer's weights in the stream's scheme, or publish to another URL" \
    deltawire publish "$store/fp8-block" pulled-fp8-block

it "takes patterns of tensors, and refuses one that matches nothing"
quantized "$store/patterns" 0 int8-row --quantize-keep '*.down_proj.weight' \
    --quantize-also 'model.embed_tokens.weight'
deltawire pull "$store/patterns" --into patterns --quiet >/dev/null
deltawire inspect patterns --tensors --json >out.patterns
holds '{t["name"]: t["dtype"] for t in o["tensors"]}["model.embed_tokens.weight"] == "I8"' \
    <out.patterns
holds "{t['name']: t['dtype'] for t in o['tensors']}['$tensor'] == 'BF16'" <out.patterns
fails 5 "give the same patterns of tensors to keep and to quantise" \
    deltawire publish "$store/patterns" run/step_000001 --quantize int8-row
fails 5 "$tensor.*the stream has it as BF16, these weights as I8: .*the same patterns" \
    deltawire publish "$store/patterns" run/step_000001 --quantize int8-row \
    --quantize-also 'model.embed_tokens.weight' --quantize-keep '*.gate_proj.weight'
fails 2 "no_such" deltawire publish "$store/none" run/base --quantize fp8-row \
    --quantize-keep 'no_such*'

it "refuses weights that are not finite, and goes on with the next checkpoint"
for bits in 7fc0 7f80 ff80; do
    rm -rf bad
    cp -r run/step_000004 bad
    set_weight bad $tensor $bits
    fails 2 "$tensor" deltawire publish "$store/fp8-block" bad --quantize fp8-block
done
head_is 4 "$store/fp8-block"
fails 2 "$tensor" deltawire publish "$store/bad" bad --quantize fp8-block
quantized "$store/fp8-block" 4 fp8-block
deltawire pull "$store/fp8-block" --into pulled-fp8-block --quiet >/dev/null
quantized "$store/fp8-block-4" 4 fp8-block
deltawire pull "$store/fp8-block-4" --into fresh-4 --quiet >/dev/null
same_weights pulled-fp8-block fresh-4

it "watches a trainer, and publishes nothing twice after a restart"
mkdir output
cp -r run/step_000001 output/checkpoint-1
start watch publish "$store/watch" --watch output --quantize fp8-row --json
watch=$!
wait_until head_is 0 "$store/watch"
cp -r run/step_000002 output/new
mv output/new output/checkpoint-2
wait_until head_is 1 "$store/watch"
kill -TERM $watch
ends $watch 0
touch output/checkpoint-2/model.safetensors # as if it were copied
start watch publish "$store/watch" --watch output --quantize fp8-row --json
watch=$!
cp -r run/step_000003 output/new
mv output/new output/checkpoint-3
wait_until head_is 2 "$store/watch"
kill -TERM $watch
ends $watch 0
deltawire log "$store/watch" --json |
    holds '[v["step"] for v in o["versions"]] == ["3", "2", "1"]'

it "watches on after a checkpoint that is not finite, also after a restart"
mkdir output2
cp -r run/step_000001 output2/checkpoint-1
set_weight output2/checkpoint-1 $tensor 7f80
start finite publish "$store/finite" --watch output2 --quantize fp8-row
finite=$!
wait_until grep -q "checkpoint-1: skipped.*$tensor.*element [0-9]* is infinite" err.finite
cp -r run/step_000002 output2/new
mv output2/new output2/checkpoint-2
wait_until head_is 0 "$store/finite"
cp -r run/step_000003 output2/new
set_weight output2/new $tensor 7fc0
mv output2/new output2/checkpoint-3
wait_until grep -q "checkpoint-3: skipped.*$tensor.*element [0-9]* is NaN" err.finite
kill -TERM $finite
ends $finite 0
start finite publish "$store/finite" --watch output2 --quantize fp8-row --json
finite=$!
wait_until grep -q '"event":"passed over".*"code":"not finite".*checkpoint-3' out.finite
cp -r run/step_000004 output2/new
mv output2/new output2/checkpoint-4
wait_until head_is 1 "$store/finite"
kill -TERM $finite
ends $finite 0
deltawire log "$store/finite" --json |
    holds '[v["step"] for v in o["versions"]] == ["4", "2"]'

it "does not go back to old checkpoints because their files were touched"
sleep 1 # times have whole seconds
touch output/checkpoint-*/model.safetensors
start watch publish "$store/watch" --watch output --quantize fp8-row --json
watch=$!
cp -r run/step_000004 output/new
mv output/new output/checkpoint-4
wait_until head_is 3 "$store/watch"
kill -TERM $watch
ends $watch 0
deltawire log "$store/watch" --json |
    holds '[v["step"] for v in o["versions"]] == ["4", "3", "2", "1"]'

it "repair takes what was pulled from a quantised stream, and refuses another model"
deltawire pull "$store/watch" --into watched --quiet >/dev/null
deltawire synth -o other --params 900K --steps 1 --write checkpoints --quiet >/dev/null
fails 5 "quantised as fp8-row.*another model" deltawire repair "$store/watch" other/base
deltawire repair "$store/watch" watched --quiet >/dev/null
head_is 4 "$store/watch"
quantized "$store/watch" 5 fp8-row
deltawire verify "$store/watch" --quiet >/dev/null

it "repair quantises a trainer's checkpoint as the stream is"
for scheme in fp8-block int8-row; do
    url=$store/repaired-$scheme
    echo '{"model_type": "tiny"}' >run/step_000003/config.json
    for i in 0 1; do
        quantized "$url" $i $scheme --quantize-keep '*.down_proj.weight' --quantize-also '*embed_tokens*'
    done
    object_remove "$url" "$(object_of "$url" 0)"
    fails 6 "no version of this stream can be rebuilt" deltawire repair "$url"
    deltawire repair "$url" run/step_000003 --quiet >/dev/null
    head_is 2 "$url"
    deltawire pull "$url" --into "repaired-$scheme" --quiet >/dev/null
    quantized "$store/whole-$scheme" 3 $scheme --quantize-keep '*.down_proj.weight' \
        --quantize-also '*embed_tokens*'
    deltawire pull "$store/whole-$scheme" --into "whole-$scheme" --quiet >/dev/null
    same_weights "repaired-$scheme" "whole-$scheme"
    cmp "repaired-$scheme/config.json" "whole-$scheme/config.json"
    grep -q quantization_config "repaired-$scheme/config.json"
    quantized "$url" 4 $scheme --quantize-keep '*.down_proj.weight' --quantize-also '*embed_tokens*'
    head_is 3 "$url"
done
rm run/step_000003/config.json

it "leaves nothing behind if the first checkpoint is not finite"
cp -r run/base not-finite
python3 - not-finite/model.safetensors $tensor <<'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    f.seek(8 + n + json.loads(f.read(n))[sys.argv[2]]["data_offsets"][0] + 20)
    f.write(b"\xc0\x7f")
END
fails 2 "$tensor.*element 10 is NaN" \
    deltawire publish "$store/first" not-finite --quantize fp8-block
[ -z "$(object_list "$store/first" "")" ]
quantized "$store/first" 0 int8-row # another scheme, as if nothing had been there

it "goes on after kill -9 at any instant"
for i in 0 1 2 3 4 5 6; do
    from=run/base
    [ $i -eq 0 ] || from=$(printf 'run/step_%06d' $i)
    start killed publish "$store/killed" "$from" --step $i --quantize fp8-block
    killed=$!
    sleep "0.0$((RANDOM % 10))"
    kill -9 $killed 2>/dev/null || true
    wait $killed 2>/dev/null || true
done
quantized "$store/killed" 6 fp8-block
deltawire verify "$store/killed" --quiet >/dev/null
deltawire pull "$store/killed" --into killed --quiet >/dev/null
quantized "$store/fp8-block-6" 6 fp8-block
deltawire pull "$store/fp8-block-6" --into fresh-6 --quiet >/dev/null
same_weights killed fresh-6
