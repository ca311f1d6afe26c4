#!/usr/bin/env bash
# Links in a checkpoint directory: their targets belong to others and are never changed.
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run
new_stream "$url" 2

# hf_cache NAME CKPT...: a cache as huggingface_hub makes it, each file of the checkpoint a
# blob, and NAME/snapshots/main of links to them
hf_cache() {
    mkdir -p "$1/blobs" "$1/snapshots/main"
    for file in "$2"/*; do
        sum=$(sha256sum <"$file" | cut -d ' ' -f 1)
        cp "$file" "$1/blobs/$sum"
        ln -s "../../blobs/$sum" "$1/snapshots/main/$(basename "$file")"
    done
}

it "pulls into a snapshot of the Hugging Face cache, and leaves the blobs alone"
hf_cache hf run/base
keeps hf/blobs deltawire pull "$url" --into hf/snapshots/main >out.pull 2>err.pull
grep -q "main: 1 file of the weights was a link or had a second name" err.pull
is_at hf/snapshots/main 2
[ -f hf/snapshots/main/model.safetensors ] && [ ! -L hf/snapshots/main/model.safetensors ]
[ "$(find hf/blobs -type f | wc -l)" -eq "$(find run/base -type f | wc -l)" ]

it "reports it in JSON, and nothing if there were no links"
hf_cache hf2 run/base
deltawire pull "$url" --into hf2/snapshots/main --at 1 --json | holds 'o["private_files"] == 1'
deltawire pull "$url" --into hf2/snapshots/main --json | holds 'o["private_files"] == 0'
deltawire pull "$url" --into fresh 2>err.fresh >/dev/null
sed -i '/: no answer for [0-9]* s /d' err.fresh # a slow server
[ ! -s err.fresh ] || die "$(cat err.fresh)"

it "leaves files with several names alone"
mkdir linked
ln run/base/model.safetensors other-name
ln run/base/model.safetensors linked/model.safetensors
keeps run/base deltawire pull "$url" --into linked --quiet
is_at linked 2
cmp other-name run/base/model.safetensors

it "follows into a snapshot, through a link to the directory"
hf_cache hf3 run/base
ln -s hf3/snapshots/main model
keeps hf3/blobs deltawire follow "$url" --into model --until 2 --no-report >/dev/null 2>err.follow
grep -q "private copy now" err.follow
is_at hf3/snapshots/main 2
[ -L model ]

it "works on shards and their index"
deltawire synth -o sharded --params 300K --steps 2 --write checkpoints --shard 100K --json \
    >/dev/null
deltawire publish "$store/sharded" sharded/base --quiet >/dev/null
for i in 1 2; do
    deltawire publish "$store/sharded" "sharded/step_00000$i" --quiet >/dev/null
done
hf_cache hf4 sharded/base
n=$(find sharded/base -name 'model-*' | wc -l)
[ "$n" -gt 1 ]
keeps hf4/blobs deltawire pull "$store/sharded" --into hf4/snapshots/main --json |
    holds "o[\"private_files\"] == $n"
[ "$(state_of hf4/snapshots/main)" = "$(state_of sharded/step_000002)" ]

it "copies nothing into a directory that it refuses"
hf_cache hf5 run/step_000003
keeps hf5 fails 8 "neither version 0 nor" deltawire pull "$url" --into hf5/snapshots/main
[ -L hf5/snapshots/main/model.safetensors ]

it "refuses to apply a delta through links"
hf_cache hf6 run/base
for to in hf6/snapshots/main hf6/snapshots/main/model.safetensors; do
    keeps hf6 fails 8 "it is a symbolic link" \
        deltawire apply run/deltas/step_000001.safetensors --to $to
done
mkdir two && cp run/base/model.safetensors two/
ln two/model.safetensors two/second
keeps two fails 8 "several names" deltawire apply run/deltas/step_000001.safetensors --to two
rm two/second
deltawire apply run/deltas/step_000001.safetensors --to two >/dev/null
same_weights two run/step_000001
