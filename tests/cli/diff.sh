#!/usr/bin/env bash
. "$(dirname "$0")/lib.sh"
small_run 2

it "writes a delta and reports what it holds"
deltawire diff run/base run/step_000001 -o d.st >out.txt
for word in codec changed size 'full model' 'TRL raw' base new encoded; do
    grep -q "^  $word " out.txt
done
cmp d.st run/deltas/step_000001.safetensors

it "reports the same as JSON"
deltawire diff run/base run/step_000001 -o d.st --from 6 --to 9 --check --json >out.json
holds 'o["base_version"] == 6 and o["new_version"] == 9 and o["checked"]' <out.json
holds 'o["codec"] == "class" and 0.009 < o["density"] < 0.014' <out.json
holds "o['bytes'] == $(stat -c %s d.st) and o['trl_raw_bytes'] == 6 * o['changed']" <out.json
[ "$(json 'o["new_state"]' <out.json)" = "$(state_of run/step_000001)" ]

it "writes every codec, and each leads to the new weights"
i=0
for options in '' '--codec auto' '--codec class' '--codec gap' '--codec raw' \
    '--trl v1' '--trl v3' '--trl v3 --codec gap'; do
    # shellcheck disable=SC2086 # a list of words
    deltawire diff run/base run/step_000001 -o "$i.st" $options --check --quiet >/dev/null
    cp -r run/base "$i"
    deltawire apply "$i.st" --to "$i" --json |
        holds 'o["deltas"][0]["verified"]'
    same_weights "$i" run/step_000001
    i=$((i + 1))
done

it "makes the same bytes on any number of threads"
deltawire diff run/base run/step_000001 -o one.st --threads 1 >/dev/null
deltawire diff run/base run/step_000001 -o five.st --threads 5 >/dev/null
cmp one.st five.st

it "writes an empty delta for equal checkpoints"
deltawire diff run/base run/base -o none.st --json | holds 'o["changed"] == 0'
cp -r run/base same-as-base
deltawire apply none.st --to same-as-base >/dev/null
same_weights same-as-base run/base

it "compares across file layouts"
deltawire synth -o sharded --params 300K --steps 1 --write checkpoints --shard 100K --json \
    >/dev/null
deltawire diff run/base sharded/step_000001/model.safetensors.index.json -o s.st >/dev/null
cmp s.st run/deltas/step_000001.safetensors

it "refuses another model, and leaves every file as it was"
make_checkpoint a.safetensors '{"w": [4, 4], "v": [2]}'
make_checkpoint b.safetensors '{"w": [2, 8], "v": [2]}'
make_checkpoint c.safetensors '{"w": [4, 4]}'
make_checkpoint d.safetensors '{"w": [4, 4], "x": [2]}'
unchanged fails 5 "b.safetensors: tensor 'w': " \
    deltawire diff a.safetensors b.safetensors -o x
unchanged fails 5 "c.safetensors: tensor 'v': it is missing" \
    deltawire diff a.safetensors c.safetensors -o x
unchanged fails 5 "a.safetensors: tensor 'v': the old" \
    deltawire diff c.safetensors a.safetensors -o x
unchanged fails 5 "d.safetensors: tensor 'v': it is missing" \
    deltawire diff a.safetensors d.safetensors -o x

it "never overwrites a checkpoint"
ln -s run/base/model.safetensors link
unchanged fails 2 "would overwrite" deltawire diff run/base run/step_000001 -o link
index=sharded/step_000001/model.safetensors.index.json
for new in sharded/step_000001 $index; do
    unchanged fails 2 "would overwrite" deltawire diff run/base "$new" -o $index
done

it "reports before the work that it cannot write"
mkdir full
mkfifo fifo
for output in nowhere/x full full/ new/ a.safetensors/x fifo; do
    # the two are not the same model, which is found later
    unchanged fails 6 "$output: cannot" deltawire diff a.safetensors b.safetensors -o "$output"
done
unchanged fails 6 "cannot write" deltawire diff a.safetensors b.safetensors -o ''
[ -p fifo ]

it "carries any version, in JSON as a string if it is above 2^63 - 1"
deltawire diff run/base run/step_000001 -o big.st --from 9223372036854775807 --json |
    holds 'o["base_version"] == 2**63 - 1 and o["new_version"] == "9223372036854775808"'
deltawire diff run/base run/step_000001 -o big.st --to 18446744073709551615 >/dev/null
deltawire inspect big.st --json | holds 'int(o["new_version"]) == 2**64 - 1'
prints '0 -> 18446744073709551615$' deltawire inspect big.st

it "reports what it cannot find or write"
unchanged fails 6 "nowhere: " deltawire diff nowhere run/base -o x
unchanged fails 6 "nowhere: " deltawire diff run/base nowhere -o x
unchanged fails 6 "nowhere/x: " deltawire diff run/base run/step_000001 -o nowhere/x
unchanged fails 6 "run: " deltawire diff run/base run/step_000001 -o run
