#!/usr/bin/env bash
. "$(dirname "$0")/lib.sh"
small_run 3
bench() {
    deltawire bench --size 1M --rounds 1 --threads 2 "$@"
}

it "measures as many steps as a trace has, and prints a table and JSON of one run"
bench --trace run --json-file b.json >out.txt 2>err.txt
grep -q 'bits a change, 3 steps, files whole' out.txt
grep -q '^measuring: ' err.txt
holds 'o["weights"] == "rl-trace" and o["trace_steps"] == 3 and o["equal"]' <b.json
holds 'all(p["equal"] for p in o["peers"])' <b.json
holds "f\"{o['trace_bits_a_change']:.3f} bits\" in \"$(grep 'files whole' out.txt)\"" <b.json
[ "$(ls)" = "$(printf '%s\n' b.json err.txt out.txt run)" ]

it "replaces the file, and prints the same on stdout"
bench --trace run --json --json-file b.json >out.json
cmp out.json b.json

it "stops at the first step that is missing"
rm run/deltas/step_000002.safetensors
bench --trace run --json | holds 'o["trace_steps"] == 1'
rm run/deltas/step_000001.safetensors
unchanged fails 6 "run: no deltas/step_000001" deltawire bench --trace run --quiet

it "refuses a trace without weights"
mkdir -p empty/base empty/deltas
make_checkpoint empty/base/model.safetensors '{}'
touch empty/deltas/step_000001.safetensors
unchanged fails 2 "empty: the base of the trace holds no weights" \
    deltawire bench --trace empty --quiet

it "reports at once that it cannot write"
unchanged fails 6 "nowhere/b.json: " deltawire bench --json-file nowhere/b.json
unchanged fails 6 "nowhere: " deltawire bench --trace nowhere --quiet
