#!/usr/bin/env bash
# labels: slow
# Twelve steps of a real run: TRL's files, and deltas made from them, lead to the
# recorded states.
shared=$(realpath -m "${DW_SHARED:-$(dirname "$0")/../../../shared}")
. "$(dirname "$0")/lib.sh"
trace=$shared/data/rl-trace
if [ ! -e "$trace/states.json" ]; then
    echo "SKIP: no $trace (set DW_SHARED)"
    exit 77
fi

expected() { # STEP
    json "o['states']['$1']" <"$trace/states.json"
}
sha256() { # CKPT
    deltawire verify "$1" --sha256 --json | json 'o["sha256"]'
}
ways=('--codec class' '--codec gap' '--trl v1' '--trl v3')

it "reproduces every recorded state, by TRL's files and by each codec"
for i in trl "${!ways[@]}"; do
    cp -r "$trace/base" "$i"
    chmod -R u+w "$i"
done
[ "$(sha256 trl)" = "$(expected 0)" ]
bytes=0 changed=0
for step in $(seq 12); do
    file=$trace/deltas/$(printf 'step_%06d.safetensors' "$step")
    for i in "${!ways[@]}"; do
        # shellcheck disable=SC2086 # a list of words
        deltawire convert "$file" -o "$i.st" --base trl ${ways[i]} --json >out.json
        if [ "$i" -eq 0 ]; then
            bytes=$((bytes + $(json 'o["bytes"]' <out.json)))
            changed=$((changed + $(json 'o["changed"]' <out.json)))
        fi
        prints '"verified":true' deltawire apply "$i.st" --to "$i" --json
    done
    prints '"verified":false' deltawire apply "$file" --to trl --json
    [ "$(sha256 trl)" = "$(expected "$step")" ]
    for i in "${!ways[@]}"; do
        diff -rq "$i" trl
    done
done

it "takes at most 6.75 bits a change"
python3 -c "print(f'  ({8 * $bytes / $changed:.3f} bits)'); assert 8 * $bytes <= 6.75 * $changed"

it "applies TRL's twelve files in one command"
cp -r "$trace/base" all
chmod -R u+w all
prints 'not verified' deltawire apply "$trace"/deltas/*.safetensors --to all
[ "$(sha256 all)" = "$(expected 12)" ]
