#!/bin/sh
# Measures the cost of a publish in a training process with PyTorch, compares it with
# TRL's and slime's methods, and measures the cost of an idle hook. Prints a table;
# build/bench-python.json has the same as JSON. Takes about two minutes.
#
#     ROUNDS      versions to publish (5)
#     LAYERS      of the model, shaped as Qwen3-0.6B, which has 28
#     VLLM        0: without vLLM, which is installed otherwise (3.5 GB, once)
#
# Needs 6 GB of memory and 2 GB in /dev/shm, or else in TMPDIR.
set -eu
cd "$(dirname "$0")/.."
scripts/package.sh >build-python.log 2>&1 || { cat build-python.log >&2; exit 1; }
rm -f build-python.log
out=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p build
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "$(nproc) cores, load at the start: $(cut -d' ' -f1-3 /proc/loadavg)"
venv=$(scripts/venv.sh torch)
PYTHONPATH=build-python/site "$venv/bin/python" bench/python_publish.py --out "$out" \
    --rounds "${ROUNDS:-5}" --layers "${LAYERS:-28}" --json build/bench-python.json
if [ "${VLLM:-1}" != 0 ]; then
    PYTHONPATH=build-python/site "$(scripts/venv.sh vllm)/bin/python" bench/vllm_apply.py \
        --rounds "${ROUNDS:-5}" ${LAYERS:+--layers "$LAYERS"}
fi
echo "load at the end: $(cut -d' ' -f1-3 /proc/loadavg); the same as JSON: build/bench-python.json"
