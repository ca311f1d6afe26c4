#!/usr/bin/env bash
. "$(dirname "$0")/lib.sh"
small_run 1
delta=run/deltas/step_000001.safetensors

it "shows a delta"
deltawire inspect $delta >out.txt
grep -q "^$delta: a delta" out.txt
grep -q "^  codec      class" out.txt
grep -q "^  blocks " out.txt
deltawire inspect $delta --json |
    holds "o['kind'] == 'delta' and o['bytes'] == $(stat -c %s $delta)"

it "shows the tensors of a delta, which add up"
prints 'BF16 .* model.embed_tokens.weight$' deltawire inspect $delta --tensors
deltawire inspect $delta --tensors --json |
    holds 'sum(t["changed"] for t in o["tensors"]) == o["changed"]'

it "shows TRL's layouts"
deltawire diff run/base run/step_000001 -o raw.st --trl v1 >/dev/null
prints 'raw (TRL v1)' deltawire inspect raw.st
deltawire diff run/base run/step_000001 -o gap.st --codec gap >/dev/null
prints 'gap (TRL v3)' deltawire inspect gap.st

it "shows checkpoints by file, index and directory"
prints '^run/base: a checkpoint' deltawire inspect run/base
prints 'BF16 .* model.layers.0.self_attn.q_proj.weight$' \
    deltawire inspect run/base/model.safetensors --tensors
deltawire synth -o sharded --params 300K --steps 0 --shard 100K --json >/dev/null
deltawire inspect sharded/base/model.safetensors.index.json --tensors --json >out.json
holds 'o["kind"] == "checkpoint" and o["files"] > 1' <out.json
holds 'sum(t["bytes"] for t in o["tensors"]) == o["bytes"]' <out.json

it "keeps control characters of names away from the terminal"
make_checkpoint evil.safetensors '{"\u001b[31mred": [1]}'
prints '\\x1b\[31mred' deltawire inspect evil.safetensors --tensors
make_checkpoint c1.safetensors '{"\u009b31mred\u0085 \u00a0\u00e9": [1]}'
prints '\\xc2\\x9b31mred\\xc2\\x85 '$'\u00a0\u00e9' \
    deltawire inspect c1.safetensors --tensors
make_checkpoint turned.safetensors '{"a\u202ethgiew.\u2066b": [1]}'
prints 'a\\xe2\\x80\\xaethgiew\.\\xe2\\x81\\xa6b' deltawire inspect turned.safetensors --tensors

it "reports that an apply is pending"
deltawire inspect run/base >out.txt
grep -q pending out.txt && die "nothing is pending"
deltawire inspect run/base --json | holds 'o["pending"] is False'
mkdir run/base/.deltawire sharded/base/.deltawire
touch run/base/.deltawire/model.safetensors.patch sharded/base/.deltawire/patch
for path in run/base run/base/model.safetensors sharded/base; do
    prints '^  pending    an apply was interrupted' deltawire inspect $path
    deltawire inspect $path --json | holds 'o["pending"] is True'
done

it "shows a version of a stream"
deltawire publish stream run/step_000001 --quiet
prints '^stream: version 0 of a stream' deltawire inspect stream
deltawire inspect stream --at 0 --json | holds 'o["kind"] == "stream" and o["content"] == "anchor"'
fails 6 "version 0 has no companion file 'config.json'" deltawire inspect stream --file config.json
fails 6 "" deltawire inspect stream --at 7
fails 2 "--tensors is for deltas and checkpoints" deltawire inspect stream --tensors
fails 2 "for streams, and run/step_000001 is none" deltawire inspect run/step_000001 --file config.json

it "reports files that are neither deltas nor checkpoints"
echo hello >text
unchanged fails 3 "text: " deltawire inspect text
unchanged fails 6 "nowhere: " deltawire inspect nowhere
mkdir empty
unchanged fails 6 "empty: " deltawire inspect empty
