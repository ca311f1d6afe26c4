#!/usr/bin/env bash
# Compares the kernels with the CPU on a real device, trains and follows with
# PyTorch there, then runs the first once more under compute-sanitizer if there is one.
#
#     GPU_CHECKS      a directory with the programs, if they were built on another machine
#     DW_TRACE        a trace, of which ...
#     DW_TRACE_STEPS  ... so many steps are used (12)
#     PYTHON          the Python that has PyTorch and transformers (python3)
#     SITE            the directory of the package, if it was built on another machine
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${GPU_CHECKS:-}
if [ -z "$dir" ]; then
    cmake --preset release >/dev/null
    cmake --build --preset release -j "${JOBS:-$(nproc)}" --target device_check follow_check publish_check >/dev/null
    dir=build/tests/gpu
fi
trace=${DW_TRACE:-${DW_SHARED:-../shared}/data/rl-trace}
if [ -e "$trace" ]; then
    export DW_TRACE=$trace DW_TRACE_STEPS="${DW_TRACE_STEPS:-12}"
elif [ -n "${DW_TRACE:-}" ]; then
    echo "test-gpu: there is no trace at $DW_TRACE" >&2
    exit 1
fi
for check in device_check follow_check publish_check; do
    status=0
    "$dir/$check" || status=$?
    [ $status -ne 77 ] || { echo "test-gpu: this machine has no GPU that CUDA sees" >&2; exit 1; }
    [ $status -eq 0 ] || exit $status
done

python=${PYTHON:-python3}
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    site=${SITE:-}
    if [ -z "$site" ]; then
        scripts/package.sh >/dev/null
        site=$PWD/build-python/site
    fi
    PYTHONPATH=$site "$python" tests/gpu/torch_check.py
    PYTHONPATH=$site "$python" tests/gpu/vllm_check.py cuda
    PYTHONPATH=$site "$python" tests/gpu/users_check.py cuda
else
    echo "test-gpu: $python has no PyTorch that sees a GPU, so nothing in Python is checked"
fi

if command -v compute-sanitizer >/dev/null; then
    # without the large weights, which would take hours
    export DW_TRACE=$PWD/tests/data/trace DW_TRACE_STEPS=1
    for tool in memcheck racecheck; do
        for check in device_check follow_check publish_check; do
            DW_SMALL=1 compute-sanitizer --tool $tool --error-exitcode 1 "$dir/$check"
        done
    done
fi
