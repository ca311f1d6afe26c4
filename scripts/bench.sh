#!/bin/sh
# Measures the figures of the README: `deltawire bench` on the real trace, two threads,
# and zipnn on a whole checkpoint if it can be installed. Prints tables;
# build/bench.json has the same as JSON.
set -eu
cd "$(dirname "$0")/.."
trace=${DW_SHARED:-../shared}/data/rl-trace
size=${SIZE:-1200M} # 600 million bf16 weights

set -- bench --threads "${THREADS:-2}" --size "$size" --rounds "${ROUNDS:-7}"
if [ -d "$trace" ]; then
    set -- "$@" --trace "$trace"
else
    echo "bench: no trace at $trace (set DW_SHARED); measuring on synthetic weights" >&2
fi
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
build/deltawire "$@" --json-file build/bench.json
echo
echo "the same as JSON: build/bench.json"

if [ -d "$trace" ] && venv=$(scripts/venv.sh zipnn 2>/dev/null); then
    echo
    "$venv/bin/python" bench/zipnn_whole.py "$trace/base"
else
    echo "zipnn: not measured (no trace, or it cannot be installed here)"
fi
