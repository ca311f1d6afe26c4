#!/usr/bin/env bash
# Compares the kernels with the CPU on a real device (docs/GPU.md), then once more under
# compute-sanitizer if there is one. DEVICE_CHECK names a program that was built on another
# machine; otherwise it is built here.
set -euo pipefail
cd "$(dirname "$0")/.."

check=${DEVICE_CHECK:-}
if [ -z "$check" ]; then
    cmake --preset release >/dev/null
    cmake --build --preset release -j "${JOBS:-$(nproc)}" --target device_check >/dev/null
    check=build/tests/gpu/device_check
fi
trace=${DW_SHARED:-../shared}/data/rl-trace
[ ! -e "$trace" ] || export DW_TRACE=$trace DW_TRACE_STEPS=12
status=0
"$check" || status=$?
[ $status -ne 77 ] || { echo "test-gpu: this machine has no GPU that CUDA sees" >&2; exit 1; }
[ $status -eq 0 ] || exit $status
if command -v compute-sanitizer >/dev/null; then
    # without the large weights, which would take hours
    unset DW_TRACE DW_TRACE_STEPS
    for tool in memcheck racecheck; do
        DW_SMALL=1 compute-sanitizer --tool $tool --error-exitcode 1 "$check"
    done
fi
