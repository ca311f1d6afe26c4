#!/bin/sh
# Measures encoding, decoding and storing on a GPU: docs/FIGURES.md. Prints a table;
# build/bench-gpu.json has the same as JSON. Then publishes and follows with PyTorch, beside
# its own methods, if there is one that sees the GPU: build/bench-gpu-torch.json. Takes a few
# minutes.
#
#     MODELS      0.6b 7.6b: those that are wanted
#     ROUNDS      the median counts (7)
#     BENCH_GPU   the program, if it was built on another machine
#     JSON        the file for JSON
#     PYTHON      the Python that has PyTorch (python3)
#     SITE        the directory of the package, if it was built on another machine
#     TORCH_JSON  the file for JSON of the part with PyTorch
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}
program=${BENCH_GPU:-}
if [ -z "$program" ]; then
    cmake --preset release >/dev/null
    cmake --build --preset release -j "${JOBS:-$(nproc)}" --target gpu_kernels >/dev/null
    program=$build/bench/gpu_kernels
fi
mkdir -p "$build"
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "$(nproc) cores, load at the start: $(cut -d' ' -f1-3 /proc/loadavg)"
status=0
# shellcheck disable=SC2086 # MODELS is a list
"$program" --rounds "${ROUNDS:-7}" --json "${JSON:-$build/bench-gpu.json}" \
    ${MODELS:-0.6b 7.6b} || status=$?
[ $status -ne 77 ] || echo "bench-gpu: this machine has no GPU that CUDA sees" >&2
[ $status -eq 0 ] || exit $status

python=${PYTHON:-python3}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "bench-gpu: $python has no PyTorch that sees a GPU, so nothing is published"
    exit 0
fi
site=${SITE:-}
if [ -z "$site" ]; then
    scripts/package.sh >/dev/null
    site=$PWD/build-python/site
fi
# shellcheck disable=SC2086
PYTHONPATH=$site exec "$python" bench/gpu_publish.py --rounds "${ROUNDS:-7}" \
    --json "${TORCH_JSON:-$build/bench-gpu-torch.json}" ${MODELS:-0.6b 7.6b}
