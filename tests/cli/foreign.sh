#!/usr/bin/env bash
# Other systems' versions: only mirror reads them, and every other verb says so. Other
# kinds of files, and other models, are refused by name.
. "$(dirname "$0")/stream_lib.sh"
small_run 2 --codec gap --trl v3
url=$store/trl
object_put "$url" anchors/step_000001.safetensors run/step_000001/model.safetensors
object_put "$url" deltas/step_000002.safetensors run/deltas/step_000002.safetensors

it "names the system and the command that reads its versions"
for verb in log verify status stats 'compact --anchor' repair inspect 'gc --keep 1' \
    'pull --into model' 'follow --into model' 'serve-status --quiet --listen 127.0.0.1:0'; do
    # shellcheck disable=SC2086 # a verb and its options
    fails 7 "versions of trl, not a deltawire stream" \
        deltawire ${verb%% *} "$url" ${verb#"${verb%% *}"}
    grep -q "^try: deltawire mirror $url OURS" err.last
done
fails 7 'versions of trl' deltawire cp "$url" "$store/copy"
[ ! -e model ] || [ -z "$(ls model)" ]

it "finds them in a directory without a scheme, but a checkpoint first"
mkdir slime
cp -r run/step_000001 slime/weight_v000001
echo '{"weight_map":{}}' >slime/weight_v000001/model.safetensors.index.json
fails 7 'versions of slime' deltawire verify slime
cp run/step_000001/model.safetensors slime/
[ "$(state_of slime)" = "$(state_of run/step_000001)" ]

it "follows their mirror"
deltawire mirror "$url" "$store/ours" --work work --once --quiet
deltawire pull "$store/ours" --into model --quiet
[ "$(state_of model)" = "$(state_of run/step_000002)" ]

it "looks for a deltawire stream first"
deltawire publish "$url" run/base --quiet
deltawire log "$url" --json | holds '"stream" in o'

it "says what a file of PyTorch is, and how to convert it"
python3 - <<'END'
import pickle, zipfile
with zipfile.ZipFile("trained.pt", "w") as f:
    f.writestr("archive/data.pkl", pickle.dumps({}))
with open("old.pt", "wb") as f:
    pickle.dump({"weight": 1}, f, protocol=2)
END
mkdir -p bin
cp trained.pt bin/pytorch_model.bin
printf 'version https://git-lfs.github.com/spec/v1\n' >pointer.safetensors
for file in trained.pt old.pt bin; do
    unchanged fails 7 'PyTorch.*save_file(torch.load' deltawire publish "$store/new" $file
done
mkdir gguf
printf 'GGUF\003\0\0\0\0' >gguf/model.gguf
for file in gguf gguf/model.gguf; do
    unchanged fails 7 'a GGUF file.*gguf_file=FILE' deltawire publish "$store/new" $file
done
fails 7 'git lfs pull' deltawire verify pointer.safetensors

it "names the first tensor that another model lacks or has too many"
make_checkpoint two.safetensors '{"embed.weight": [4], "lm_head.weight": [4]}'
make_checkpoint one.safetensors '{"embed.weight": [4]}'
deltawire publish "$store/two" two.safetensors --quiet
deltawire publish "$store/one" one.safetensors --quiet
fails 5 "'lm_head.weight' is missing here; if it is tied" deltawire publish "$store/two" one.safetensors
fails 5 "'lm_head.weight' is not in the stream; if it is tied" deltawire publish "$store/one" two.safetensors
