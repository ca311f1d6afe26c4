#!/usr/bin/env bash
# labels: threads
# The pass over memory is spread over threads: what it finds may not depend on them.
. "$(dirname "$0")/lib.sh"
small_run 4

it "gives the same numbers on any number of threads"
for n in 1 2 5; do
    deltawire stats --base run/base run/deltas/*.safetensors --json \
        --threads $n >out.$n
    cmp out.1 out.$n
done
holds 'len(o["steps"]) == 4' <out.1
