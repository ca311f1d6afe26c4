#!/bin/sh
# Runs every fuzz target for a while, one after the other.
#
#     scripts/fuzz.sh SECONDS [TARGET...]      TARGET: safetensors for fuzz_safetensors.c
#     SEED            makes the same inputs as another run with this number
#
# New inputs gather in build-fuzz/found/TARGET, crashes in build-fuzz/crashes. A crash
# that was fixed belongs into tests/fuzz/corpus/TARGET, where `make test` replays it.
set -eu
cd "$(dirname "$0")/.."

seconds=$1
shift
if [ $# -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        name=${source##*/fuzz_}
        set -- "$@" "${name%.c}"
    done
fi

mkdir -p build-fuzz/crashes
cmake --preset fuzz >build-fuzz/build.log
cmake --build --preset fuzz -j "${JOBS:-$(nproc)}" >>build-fuzz/build.log

crashed=
for name in "$@"; do
    echo "== fuzz_$name: $seconds s"
    mkdir -p "build-fuzz/found/$name"
    ASAN_OPTIONS=allocator_may_return_null=1 "build-fuzz/fuzz_$name" \
        -max_total_time="$seconds" -print_final_stats=1 ${SEED:+"-seed=$SEED"} \
        -artifact_prefix="build-fuzz/crashes/$name-" \
        "build-fuzz/found/$name" "tests/fuzz/corpus/$name" || crashed="$crashed $name"
done
[ -z "$crashed" ] || { echo "crashed:$crashed; inputs in build-fuzz/crashes" >&2; exit 1; }
