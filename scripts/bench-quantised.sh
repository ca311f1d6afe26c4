#!/bin/sh
# Measures quantised models: the bytes of each step of the real trace, quantised and not,
# and how fast weights are quantised, compared and encoded. Prints a table for each
# scheme; build/bench-quantised-SCHEME.json has the same as JSON. Takes about a minute.
#
#     SCHEMES     fp8-block fp8-row int8-row: those that are wanted
#     SIZE        bytes of bf16 weights for the rates (1200000000)
#     THREADS     2
#     ROUNDS      of the rates; the best counts (7)
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}
trace=${DW_SHARED:-../shared}/data/rl-trace

if [ ! -d "$trace" ]; then
    echo "bench-quantised: no trace at $trace (set DW_SHARED); only rates, on synthetic weights" >&2
    trace=
fi
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "$(nproc) cores, load at the start: $(cut -d' ' -f1-3 /proc/loadavg)"
for scheme in ${SCHEMES:-fp8-block fp8-row int8-row}; do
    printf '\n== %s\n' "$scheme"
    "$build/bench/quant_bench" "$scheme" "${SIZE:-1200000000}" "${THREADS:-2}" \
        "${ROUNDS:-7}" "$build/bench-quantised-$scheme.json" ${trace:+"$trace"}
done
echo
echo "load at the end: $(cut -d' ' -f1-3 /proc/loadavg)"
