#!/bin/sh
# Measures quantised models: the bytes of each step of the real trace, quantised and not,
# how fast weights are quantised, compared and encoded, and how fast a vLLM takes a
# version. Prints a table for each scheme; build/bench-quantised-SCHEME.json has the same
# as JSON. Takes a few minutes.
#
#     SCHEMES     fp8-block fp8-row int8-row: those that are wanted
#     SIZE        bytes of bf16 weights for the rates (1200000000)
#     THREADS     2
#     ROUNDS      of the rates; the best counts (7)
#     VLLM        0: without vLLM, which is installed otherwise (3.5 GB, once)
#     LAYERS      of the model in vLLM
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
if [ "${VLLM:-1}" != 0 ]; then
    printf '\n== vLLM\n'
    scripts/package.sh >"$build/package.log" 2>&1 || { cat "$build/package.log" >&2; exit 1; }
    for scheme in int8 fp8; do
        PYTHONPATH=build-python/site "$(scripts/venv.sh vllm)/bin/python" \
            bench/vllm_quantised.py --scheme "$scheme" --rounds "${ROUNDS:-7}" \
            ${LAYERS:+--layers "$LAYERS"}
    done
fi
echo
echo "load at the end: $(cut -d' ' -f1-3 /proc/loadavg)"
