#!/usr/bin/env bash
# What --version reports about CUDA.
. "$(dirname "$0")/lib.sh"
[ -z "${DW_SANITIZE:-}" ] || exit 77 # the library of the fake driver needs their runtime

it "works without a driver, and says why there is no device"
export DELTAWIRE_CUDA_DRIVER=/nowhere/libcuda.so.1
prints '^deltawire [0-9]*\.[0-9]*\.[0-9]* ' deltawire --version
prints '^CUDA, experimental: .*; no device: cannot load the CUDA driver: ' deltawire --version
prints '"driver": *null.*"fault": *"cannot load.*"devices": *\[\]' deltawire --version --json

it "lists the devices"
export DELTAWIRE_CUDA_DRIVER=$FAKE_CUDA
prints '^CUDA, experimental: .*; driver 13\.0$' deltawire --version
prints '^  device 1: Fake device 1, 1.07 GB, sm_90, 4 multiprocessors$' deltawire --version
prints '"driver": *13000.*"name": *"Fake device 0"' deltawire --version --json

it "measures, and finds the new weights"
version=$(deltawire --version)
if ! grep -q '^CUDA, experimental: no kernels' <<<"$version"; then
    prints '^tiny: 13 tensors, 191616 elements, 1972 changed, ' \
        "$GPU_KERNELS" --rounds 1 --json out.json tiny
    prints '"model": "tiny".*"stage_ms": ' cat out.json
fi

it "has nothing to measure without a device"
export DELTAWIRE_CUDA_DRIVER=/nowhere/libcuda.so.1
status=0
"$GPU_KERNELS" 2>err.last || status=$?
[ $status -eq 77 ] || die "exit code $status, not 77"
grep -q 'no CUDA device: cannot load' err.last || die "$(cat err.last)"
