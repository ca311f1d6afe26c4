#!/usr/bin/env bash
# The synthetic run: its files, its statistics, its determinism.
. "$(dirname "$0")/lib.sh"

it "writes a base and deltas"
deltawire synth -o run --params 4M --steps 3 --json >report.json
[ -f run/base/model.safetensors ]
[ "$(ls run/deltas)" = "$(printf 'step_%06d.safetensors\n' 1 2 3)" ]
[ "$(ls run)" = "$(printf 'base\ndeltas')" ]
deltawire inspect run/base --json |
    holds '3.9e6 < o["elements"] < 4.1e6 and o["dtypes"] == {"BF16": o["elements"]}'

it "has the statistics of a real run"
holds 'len(o["steps"]) == 3' <report.json
holds 'all(0.009 < s["density"] < 0.013 for s in o["steps"])' <report.json
holds 'all(0.87 < s["one_ulp"] < 0.92 for s in o["steps"])' <report.json
holds 'all(0.18 < s["again"] < 0.24 for s in o["steps"][1:])' <report.json
holds 'all(6.4 < s["bits_a_change"] < 7.3 for s in o["steps"])' <report.json

it "gives the same bytes for the same seed, on any number of threads"
deltawire synth -o again --params 4M --steps 3 --threads 5 >table.txt
diff -r run again
grep -q '^ *step ' table.txt
deltawire synth -o other --params 4M --steps 1 --seed 7 --json >/dev/null
cmp -s run/base/model.safetensors other/base/model.safetensors && die "seed 7 is seed 0"

it "writes checkpoints that the deltas lead to"
deltawire synth -o both --params 300K --steps 2 --write both --shard 200K --json >/dev/null
[ -f both/base/model.safetensors.index.json ]
deltawire verify both/base both/deltas/step_000001.safetensors >/dev/null
deltawire verify both/step_000002 both/deltas/step_000002.safetensors --json |
    holds 'o["standing"] == "new"'

it "makes dense changes with fp32 weights"
deltawire synth -o f32 --params 300K --steps 1 --dtype f32 --write checkpoints --json |
    holds 'o["steps"][0]["density"] > 0.9'
[ -d f32/step_000001 ] && [ ! -e f32/deltas ]

it "never mixes with an older run"
unchanged fails 8 "run/base: cannot make a new directory" deltawire synth -o run --steps 1

it "stops at a signal and leaves no half file"
env --default-signal=INT "$deltawire" synth -o long --params 300K --steps 99999 --json \
    >out.json &
long=$!
wait_until test -e long/deltas/step_000003.safetensors
kill -INT $long
status=0
wait $long || status=$?
[ $status -eq 130 ] || die "exit code $status"
holds 'o["error"]["code"] == "cancelled"' <out.json
[ -z "$(find long -name '*.tmp-*')" ]
deltawire inspect "$(find long/deltas -type f | sort | tail -n 1)" >/dev/null
