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

it "keeps the links that it made itself"
mkdir kept
deltawire pull "$url" --into elsewhere --weights-dir kept --at 1 >/dev/null
deltawire pull "$url" --into elsewhere --weights-dir kept --json |
    holds 'o["private_files"] == 0'
[ -L elsewhere/model.safetensors ]
is_at elsewhere 2

# kept_for DIR: the file in kept/ that the weights of DIR are a link to
kept_for() { readlink "$1/model.safetensors"; }

# keep_at_1 DIR: a fresh directory of version 1 whose weights are in kept/
keep_at_1() { deltawire pull "$url" --into "$1" --weights-dir kept --at 1 --quiet; }

it "follows only its own link: the target of any other link is not changed"
for option in "" "--weights-dir kept"; do
    rm -rf chain kept && mkdir kept
    keep_at_1 chain
    file=$(kept_for chain)
    mkdir precious && mv "$file" precious/weights
    ln -s "$scratch/precious/weights" "$file"
    # shellcheck disable=SC2086
    keeps precious deltawire pull "$url" --into chain $option --json 2>err.chain |
        holds 'o["private_files"] == 1'
    is_at chain 2
    rm -r precious
done

it "keeps the private copy where the weights are kept, if that is named"
file=$(kept_for chain)
[ -f "$file" ] && [ ! -L "$file" ] && [ "$(dirname "$file")" -ef kept ]

it "leaves weights alone that are kept under several names"
ln "$file" kept/second
deltawire publish "$url" run/step_000003 --quiet >/dev/null
before=$(sha256sum <kept/second)
deltawire follow "$url" --into chain --weights-dir kept --until 3 --no-report --quiet >/dev/null
[ "$before" = "$(sha256sum <kept/second)" ]
is_at chain 3

it "gives a copy of a directory weights of its own"
for option in "" "--weights-dir kept"; do
    rm -rf first second kept && mkdir kept
    keep_at_1 first
    cp -a first second
    file=$(kept_for first)
    before=$(sha256sum <"$file")
    # shellcheck disable=SC2086
    deltawire pull "$url" --into second $option >out.copy 2>err.copy
    grep -q "second: 1 file of the weights was a link or had a second name" err.copy
    [ "$before" = "$(sha256sum <"$file")" ]
    is_at first 1
    is_at second 3
    deltawire pull "$url" --into first --json | holds 'o["private_files"] == 0'
    [ "$(kept_for first)" = "$file" ]
done
[ "$(find kept -type f | wc -l)" -eq 2 ]

it "does so also if the original has changed meanwhile"
rm -rf first second
keep_at_1 first
cp -a first second
deltawire pull "$url" --into first --at 2 --quiet
keeps kept deltawire pull "$url" --into second --quiet
is_at first 2
is_at second 3

it "refuses to apply through the link of a copy"
rm -rf first second kept && mkdir kept
keep_at_1 first
cp -a first second
keeps kept fails 8 "kept for another directory" \
    deltawire apply run/deltas/step_000002.safetensors --to second

it "does not finish, in the weights of the original, an apply that was copied with it"
echo "not ours" >second/.deltawire-patch
keeps kept fails 8 "kept for another directory" \
    deltawire apply run/deltas/step_000002.safetensors --to second
keeps kept deltawire pull "$url" --into second --quiet
is_at first 1
is_at second 3
[ ! -e second/.deltawire-patch ]

it "does not finish an interrupted apply in kept weights that have a second name"
ln "$(kept_for first)" kept/second
echo "not ours" >first/.deltawire-patch
before=$(sha256sum <kept/second)
deltawire pull "$url" --into first --weights-dir kept --at 1 --quiet
[ "$before" = "$(sha256sum <kept/second)" ]
is_at first 1

it "recognises a renamed directory"
mv first renamed
deltawire pull "$url" --into renamed --json | holds 'o["private_files"] == 0'
[ -L renamed/model.safetensors ]
is_at renamed 3
