#!/bin/sh
# Measures how long an engine stands still for a version, beside other ways to take one
# over, and what an agent costs that has nothing to do. One table on stdout, the same as
# JSON in build/bench-pause.json. Takes about ten minutes.
#
#     VERSIONS    versions to follow (100)
#     SIZE        bytes of the model (1200000000)
#     DISK        a directory on a disk, to try that too
#     IDLE        seconds to watch the idle agent (60)
#
# The snapshot lies in /dev/shm, as is right for an engine that reads it in place.
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
    --python "$venv/bin/python" --work "$work" --json "$build/bench-pause.json" \
    --versions "${VERSIONS:-100}" --size "${SIZE:-1200000000}" --idle "${IDLE:-60}" "$@"
echo "load at the end: $(cut -d' ' -f1-3 /proc/loadavg); the same as JSON: $build/bench-pause.json"
