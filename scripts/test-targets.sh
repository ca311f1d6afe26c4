#!/usr/bin/env bash
# Runs every target that `make help` lists, as small as possible. The log of each is
# build/targets/NAME.log; the last line is 'N passed, N failed', and ', N skipped' if
# some were. A target that fails is run once more; if it passes then, it is called flaky.
#
#     scripts/test-targets.sh [TARGET...]
#
# vLLM is used only if DW_TEST_PEERS is set: it is large.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this

logs=$PWD/build/targets
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$logs"

# `make format` and `make clean` change the tree they run in: they get a copy.
copy_tree() {
    [ -e "$scratch/tree" ] || git clone -q . "$scratch/tree"
}

skip() { # WHY
    echo "skipped: $*"
    return 77
}

with_vllm() { # COMMAND...
    [ -n "${DW_TEST_PEERS:-}" ] || { skip "it installs vLLM; set DW_TEST_PEERS"; return; }
    "$@"
}

run() { # TARGET
    case $1 in
    all | deps | help | package) make "$1" ;;
    wheel) make wheel ARCH="$(uname -m | sed 's/x86_64/cross/; s/aarch64/x86_64/; s/cross/aarch64/')" ;;
    release) make release ARCHS="$(uname -m)" DIR="$scratch/release" &&
        (cd "$scratch/release" && sha256sum -c --quiet SHA256SUMS && ls -- *-source.tar.gz *.cdx.json) ;;
    test) make test STAGES=neon ;;
    test-peers) with_vllm make test-peers PEERS=tests/peers/test_wordle_table.py ;;
    test-gpu) [ -e /dev/nvidia0 ] || { skip "no GPU"; return; }
        make test-gpu ;;
    test-deploy) make test-deploy PARTS=containers ;;
    demo) make demo DEMO='--warmup 10 --steps 5' ;;
    demo-hosts) make demo-hosts DEMO='--warmup 10 --steps 5' ;;
    demo-core) make demo-core SIZE=1M STEPS=2 ;;
    demo-trl) with_vllm make demo-trl STEPS=2 ;;
    bench) make bench SIZE=8M ROUNDS=1 DW_SHARED="$scratch" ;; # without zipnn, which installs PyTorch
    bench-sync) make bench-sync ROUNDS=1 RGW_GIB=2 BENCH_SYNC='--max-object 1M --model 4M
        --large-model 8M --steps 6 --link-steps 2 --upkeep-steps 20' ;;
    bench-pause) make bench-pause VERSIONS=3 SIZE=4000000 IDLE=1 ;;
    bench-gpu) [ -e /dev/nvidia0 ] || { skip "no GPU"; return; }
        make bench-gpu MODELS=tiny ROUNDS=1 ;;
    bench-python) make bench-python ROUNDS=1 LAYERS=1 VLLM="${DW_TEST_PEERS:-0}" ;;
    bench-quantised) make bench-quantised SIZE=1000000 ROUNDS=1 LAYERS=1 DW_SHARED="$scratch" \
        VLLM="${DW_TEST_PEERS:-0}" ;;
    fuzz) make fuzz T=1 SEED=1 ;;
    soak) make soak ROUNDS=2 FOLLOWERS=8 SEED=1 ;;
    install) make install DESTDIR="$scratch/root" &&
        LD_LIBRARY_PATH=$scratch/root/usr/local/lib "$scratch/root/usr/local/bin/deltawire" --version &&
        rm "$scratch"/root/usr/local/lib/libdeltawire.so* && # the archive, as pkg-config says
        PKG_CONFIG_SYSROOT_DIR=$scratch/root PKG_CONFIG_PATH=$scratch/root/usr/local/lib/pkgconfig \
            sh -c 'gcc examples/publish_and_follow.c -o "$1" $(pkg-config --static --cflags --libs deltawire)' \
            sh "$scratch/linked" && "$scratch/linked" "$scratch/stream" ;;
    lint) scripts/install-deps.sh dev && # only the lower layers: all files take a minute more
        make lint FILES='src/base src/kernel src/tensor src/quant src/codec src/layout src/net' ;;
    format) scripts/install-deps.sh dev && copy_tree && make -C "$scratch/tree" format ;;
    clean) copy_tree && mkdir "$scratch/tree/build" && make -C "$scratch/tree" clean &&
        [ ! -e "$scratch/tree/build" ] ;;
    *) echo "scripts/test-targets.sh does not know this target"; return 1 ;;
    esac
}

# Those with vLLM come last: scripts/test.sh installs it meanwhile.
late='test-peers|demo-trl|bench-python|bench-quantised'
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(make help | awk -v late="^($late)\$" '
    $2 ~ late { last = last $2 "\n"; next } { print $2 } END { printf "%s", last }')
passed=0 failed=0 skipped=0
try() { # TARGET
    local status=0
    (run "$1") >"$logs/$1.log" 2>&1 </dev/null || status=$?
    # make ends with 2, whatever the status of the command that failed
    [ $status -ne 2 ] || ! grep -q '^make: .* Error 77$' "$logs/$1.log" || status=77
    return $status
}

for target in "${targets[@]}"; do
    status=0 began=$SECONDS
    try "$target" || status=$?
    if [ $status -ne 0 ] && [ $status -ne 77 ]; then
        tail -n 25 "$logs/$target.log" | sed 's/^/   | /'
        try "$target" && { status=0; echo "flaky: make $target"; }
    fi
    case $status in
    0) passed=$((passed + 1)) outcome=passed ;;
    77) skipped=$((skipped + 1)) outcome=$(grep '^skipped: ' "$logs/$target.log") ;;
    *) failed=$((failed + 1)) outcome="FAILED, exit status $status" ;;
    esac
    echo "make $target: $outcome ($((SECONDS - began)) s)"
    [ "${outcome%%,*}" != FAILED ] || tail -n 25 "$logs/$target.log" | sed 's/^/   | /'
done
echo "$passed passed, $failed failed$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
[ $failed -eq 0 ]
