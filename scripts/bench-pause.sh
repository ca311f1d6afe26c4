#!/bin/sh
# Measures how long an engine is paused for a version, compares it with other methods,
# and measures the cost of an idle agent. Prints a table; build/bench-pause.json has the
# same as JSON. Takes about ten minutes.
#
#     VERSIONS    versions to follow (100)
#     SIZE        bytes of the model (1200000000)
#     DISK        a directory on a disk, to try that too
#     IDLE        seconds to watch the idle agent (60)
#
# The snapshot is in /dev/shm, as recommended for an engine that reads it in place.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}
trace=${DW_SHARED:-../shared}/data/rl-trace
work=$(mktemp -d)
memory=$(mktemp -d -p /dev/shm)
clean_up() {
    rm -rf "$work" "$memory" ${DISK:+"$DISK/deltawire-bench-pause"}
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

set -- --snapshots "$memory/snapshot" ${DISK:+"$DISK/deltawire-bench-pause"}
[ ! -d "$trace" ] || set -- "$@" --trace "$trace"
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "$(nproc) cores, load at the start: $(cut -d' ' -f1-3 /proc/loadavg)"
venv=$(scripts/venv.sh torch)
"$venv/bin/python" bench/pause_bench.py --bench "$build/bench/pause_bench" \
    --engine "$build/bench/pause_engine" --deltawire "$build/deltawire" \
    --port "$(scripts/free-ports.py)" --python "$venv/bin/python" \
    --work "$work" --json "$build/bench-pause.json" \
    --versions "${VERSIONS:-100}" --size "${SIZE:-1200000000}" --idle "${IDLE:-60}" "$@"
echo "load at the end: $(cut -d' ' -f1-3 /proc/loadavg); the same as JSON: $build/bench-pause.json"
