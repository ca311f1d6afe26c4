#!/usr/bin/env bash
# Builds and runs the tests, stage by stage.
#
#     scripts/test.sh [STAGE...]      all, or: release cli python package servers docs asan
#                                     tsan fuzz neon peers targets
#     PEERS                           the tests of the stage peers (tests/peers)
#
# `peers` installs gigabytes, so `all` includes it only if DW_TEST_PEERS is set. The
# Python stages install PyTorch and transformers (1.3 GB, once), unless DW_TEST_TORCH=0.
# Two stages run at once (LANES=1: one by one), and each shows its output when it ends.
# Every stage runs, even if earlier ones failed. A stage that cannot be built or started
# counts as one failed test. A test that fails is run once more, by itself: if it passes
# then, it has passed, and the end names it as `flaky`. At the end there are also the times
# of the stages and the failed tests once more. The last line is 'N passed, N failed', and
# ', N skipped' if some were; the exit status is 0 if none failed.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
DW_SHARED=$(realpath -m "${DW_SHARED:-../shared}")
export DW_SHARED
export DELTAWIRE_CACHE=${DELTAWIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/deltawire} # of scripts/venv.sh
export AWS_EC2_METADATA_DISABLED=true GCE_METADATA_HOST=127.0.0.1:9
with=() # the prefix of a stage's commands: env with variables, or nothing
# What the lanes share, and for each stage STAGE.out, its output; .counts, a line 'PASSED
# FAILED SKIPPED' for each part; .failures, the failed tests with the end of their output;
# .flaky, tests that failed, and passed when they ran alone; .seconds, which it took.
state=$(mktemp -d)
# Stands for the user's HOME while tests run. They have others of their own (tests/own_home.sh,
# tests/conftest.py), so at the end it must be empty.
watched=$(mktemp -d)
at_home=(env -u XDG_CACHE_HOME -u XDG_CONFIG_HOME -u XDG_DATA_HOME -u XDG_STATE_HOME "HOME=$watched")

# The tests of each lane run in a network that has only loopback, where a test fails that
# sends anything elsewhere (tests/own_home.sh). What installs packages is started outside.
inside=() network=''
enter_network() {
    local up
    exec {up}< <(exec unshare --net sh -c 'ip link set lo up && echo up && exec sleep infinity' 2>&1)
    network=$!
    read -r up <&"$up" || true
    if [ "$up" = up ]; then
        inside=(nsenter "--net=/proc/$network/ns/net" env DW_TEST_LOOPBACK=1)
    elif mkdir "$state/network" 2>/dev/null; then # once, not in each lane
        echo "== network: skipped: this machine permits no network of the tests' own: $up" |
            tee "$state/network.out"
        echo 0 0 1 >"$state/network.counts"
    fi
}

# The sanitizers of current distributions sometimes fail if the kernel randomizes 32
# bits of addresses, so that is turned off; not every container allows it.
no_aslr=(setarch "$(uname -m)" -R)
"${no_aslr[@]}" true 2>/dev/null || no_aslr=()

# ---- counting -----------------------------------------------------------------------
counts() { # PASSED FAILED SKIPPED
    echo "$1 passed, $2 failed$([ "$3" -eq 0 ] || echo ", $3 skipped")"
}

tally() { # PASSED FAILED SKIPPED
    echo "$*" >>"$state/$stage.counts"
    echo "   $(counts "$@") ($((SECONDS - started)) s)"
}

failed_so() { # NAME LOG: shows the end of LOG now, and a shorter one when all has run
    { echo "   failed: $1"; tail -n 25 "$2" | sed 's/^/   | /'; }
    { echo "   failed: $1"; tail -n 12 "$2" | sed 's/^/   | /'; } >>"$state/$stage.failures"
}

broken() { # LOG WHAT
    failed_so "$2; the end of $1:" "$1"
    tally 0 1 0
}

failed_tests() { # JUNIT
    [ ! -e "$1" ] || python3 scripts/junit.py failed "$1"
}

tally_junit() { # JUNIT OF-THE-SECOND-RUN LOG EXIT-STATUS
    local counted p=0 f=0 s=0
    if [ -e "$1" ] && counted=$(python3 scripts/junit.py sum "$1" "$2" \
        "$state/$stage.failures" "$state/$stage.flaky" 2>&4); then
        read -r p f s <<<"$counted"
    fi
    # If a runner failed without a failed test, it has not run all tests.
    if [ $((p + f + s)) -eq 0 ] || { [ "$4" -ne 0 ] && [ -z "$(failed_tests "$1")" ]; }; then
        broken "$3" "the tests did not run"
    else
        tally "$p" "$f" "$s"
    fi
} 4>&1

# ---- parts of stages ----------------------------------------------------
# Runs COMMAND, or awaits another lane's run of it, once for all stages.
once() { # NAME LOG COMMAND...
    local done=$state/$1.status log=$2
    (
        flock 8
        [ -e "$done" ] || { shift 2; status=0; "$@" >"$log" 2>&1 || status=$?; echo $status >"$done"; }
    ) 8>"$state/$1.lock"
    return "$(cat "$done")"
}

configure_and_build() { # PRESET
    cmake --preset "$1" -DDW_SHARED="$DW_SHARED" && cmake --build --preset "$1" -j "$jobs"
}

build() { # PRESET DIR
    mkdir -p "$2"
    once "build-$1" "$2/build.log" configure_and_build "$1" || {
        broken "$2/build.log" "the build failed"
        return 1
    }
}

# Two runs of ctest over one directory would share its log and its costs, so each stage has
# a directory which includes that of the build. Its logs and results are there, too.
ctest_into() { # DIR NAME CTEST-ARGUMENT...
    local dir=$1 name=$2 out=$1/stages/$stage
    shift 2
    mkdir -p "$out"
    echo "subdirs(\"$PWD/$dir\")" >"$out/CTestTestfile.cmake"
    "${inside[@]}" "${at_home[@]}" "${with[@]}" "${no_aslr[@]}" ctest --test-dir "$out" --no-tests=error "$@" \
        --output-junit "$PWD/$out/$name.xml" >"$out/$name.log" 2>&1
}

run_ctest() { # DIR CTEST-ARGUMENT...
    local dir=$1 out=$1/stages/$stage status=0 names
    shift
    rm -f "$out/ctest.xml" "$out/again.xml"
    ctest_into "$dir" ctest -j "$at_once" "$@" || status=$?
    names=$(failed_tests "$out/ctest.xml" | sed 's/[].[*+?(){}|^$\\]/\\&/g' | paste -sd '|')
    [ -z "$names" ] || ctest_into "$dir" again -R "^($names)\$" || true
    tally_junit "$out/ctest.xml" "$out/again.xml" "$out/ctest.log" $status
}

run_pytest() { # PYTEST-ARGUMENT...
    local out=build/stages/$stage venv status=0
    mkdir -p "$out"
    rm -rf "$out"/{junit,again}.xml "$out/cache"
    # PyTorch is large: DW_TEST_TORCH=0 leaves it out, and skips tests that need it
    local extra=${python_with-torch}
    [ "$extra" != torch ] || [ "${DW_TEST_TORCH:-1}" != 0 ] || extra=
    # shellcheck disable=SC2086 # a word or none
    venv=$(scripts/venv.sh $extra 2>"$out/venv.log") || {
        broken "$out/venv.log" "no Python environment"
        return
    }
    pytest_into junit -n "${workers-$at_once}" --dist loadfile "$@" || status=$?
    # The cache of the first run names what failed; `--lf` also runs what could not be read.
    [ -z "$(failed_tests "$out/junit.xml")" ] || pytest_into again --lf --lfnf=none "$@" || true
    tally_junit "$out/junit.xml" "$out/again.xml" "$out/junit.log" $status
}

pytest_into() { # NAME PYTEST-ARGUMENT...: with $venv, into $out
    local name=$1
    shift
    DELTAWIRE=$PWD/build/deltawire DW_LIB=$PWD/build/libdeltawire.so \
        DW_SIGV4_DRIVER=$PWD/build/tests/sigv4_driver \
        DW_AGENT_DRIVER=$PWD/build/tests/agent_driver \
        DW_WORDLE_LIB=$PWD/build/tests/libwordle_model_shared.so \
        DW_TEST_DIR=$PWD/tests PYTHONDONTWRITEBYTECODE=1 \
        HYPOTHESIS_STORAGE_DIRECTORY=$out/hypothesis \
        "${inside[@]}" "${at_home[@]}" "${with[@]}" timeout -k 30 2400 "$venv/bin/python" -m pytest -q \
        --timeout 900 -o cache_dir="$PWD/$out/cache" --junitxml="$out/$name.xml" "$@" >"$out/$name.log" 2>&1 &
    pytest=$! # `timeout` leaves the lane's process group, and a signal interrupts `wait`
    wait $pytest
}

# From here to stop_server the tests use that server. Returns false if there is none,
# which counts as a failure, or as skipped if it cannot run on this machine.
server='' server_dir=''
start_server() { # NAME
    local status=0
    server=$1 server_dir=$(mktemp -d)
    HOME=$server_dir "${inside[@]}" "tests/servers/$1.sh" start "$server_dir" 2>"build/$stage-$1.log" || status=$?
    if [ $status -eq 0 ]; then
        mapfile -t with < <(sed 's/^export //' "$server_dir/env")
        with=(env "${with[@]}")
        # shellcheck disable=SC1091 # written by the server's script
        with+=("$(. "$server_dir/env" && echo "AWS_ENDPOINT_URL=$DW_TEST_S3_ENDPOINT")"
            "$(. "$server_dir/env" && echo "DW_TEST_STORE=s3://$DW_TEST_S3_BUCKET/tests")")
        return
    fi
    if [ $status -eq 77 ]; then
        tail -n 1 "build/$stage-$1.log" | sed 's/^/   /'
        tally 0 0 1
    else
        broken "build/$stage-$1.log" "$1 does not start"
    fi
    stop_server
    return 1
}

stop_server() {
    [ -z "$server" ] || "tests/servers/$server.sh" stop "$server_dir" || true
    rm -rf "$server_dir"
    server='' server_dir='' with=()
}
# The sanitizers look for faults of memory and threads. Half of the time would go to
# fsync, so the tests' files are in memory, if there is enough of it.
memory=''
run_in_memory() { # COMMAND...
    local free shared
    free=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    shared=$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1) || shared=0
    if [ -w /dev/shm ] && [ "$shared" -ge $((4 << 20)) ] && [ "$free" -ge $((8 << 20)) ]; then
        memory=$(mktemp -d /dev/shm/dw-test.XXXXXX)
        chmod 1777 "$memory" # some tests become another user
        with=(env "TMPDIR=$memory")
    fi
    "$@"
    with=()
    rm -rf ${memory:+"$memory"}
    memory=''
}

# ---- the stages ---------------------------------------------------------------------
stage_release() {
    echo "== release: unit and fault tests"
    build release build && run_ctest build -LE 'cli|servers'
}

stage_cli() {
    echo "== cli: the command as a user calls it"
    build release build && run_ctest build -L cli
}

stage_python() {
    echo "== python: the stock libraries, the independent decoder, the page in a browser"
    build release build || return
    run_pytest tests/interop tests/format tests/servers tests/page tests/wordle \
        --ignore tests/interop/test_s3_clients.py # the stage `servers` runs it
}

# Tests run with the package until `with` is emptied.
build_package() {
    local log=build-python/package.log
    mkdir -p build-python
    once package $log scripts/package.sh || {
        broken $log "the package cannot be built"
        return 1
    }
    with=(env "PYTHONPATH=$PWD/build-python/site")
}

stage_package() {
    echo "== package: the Python package, from its source archive to a trained model"
    build release build && build_package || return
    run_pytest tests/python
    with=()
}

# Real S3 servers, each started once: RADOS Gateway, and Swift, which has no conditional
# create.
stage_servers() {
    echo "== servers: stores, streams and other clients over real S3 servers"
    build release build || return
    if start_server radosgw; then
        run_ctest build -R '^(store/|cli/stream_|e2e/)' \
            -E '^e2e/single_writer'
        run_pytest tests/interop/test_s3_clients.py
        stop_server
    fi
    if start_server swift; then
        with+=(DW_TEST_SKIP=test_list_many) # thousands of objects, each of them slow
        run_ctest build -R '^(store/conformance|e2e/single_writer)'
        stop_server
    fi
}

# What README.md and docs/ show is run. With peers, the Python environment has all that
# their blocks import.
stage_docs() {
    echo "== docs: the commands and Python blocks of README.md and docs/"
    build release build && build_package || return
    start_server radosgw || with=(env) # documents that need a bucket are skipped then
    with+=("PYTHONPATH=$PWD/build-python/site" OMP_NUM_THREADS=1)
    rm -f build/docs-blocks.txt
    local workers=0 python_with=torch # one by one: they share a bucket
    [ -z "${DW_TEST_PEERS:-}" ] || python_with=vllm
    run_pytest tests/docs
    stop_server
    [ ! -e build/docs-blocks.txt ] || sed 's/^/   /' build/docs-blocks.txt
}

stage_peers() {
    echo "== peers: a real vLLM and a real TRL on this machine's processors, and a bucket"
    build release build && build_package || return
    start_server radosgw || with=(env) # without a server, the bucket is a directory
    with+=("PYTHONPATH=$PWD/build-python/site" OMP_NUM_THREADS=1)
    # shellcheck disable=SC2086 # a list of words
    python_with=vllm workers=0 run_pytest ${PEERS:-tests/peers} # vLLM keeps state in a process
    stop_server
}

stage_asan() {
    echo "== asan: all but the slow tests, with address and undefined sanitizers"
    build asan build-asan && run_in_memory run_ctest build-asan -LE 'slow|servers'
}

stage_tsan() {
    echo "== tsan: unit tests and others with threads, with the thread sanitizer"
    build tsan build-tsan && run_in_memory run_ctest build-tsan -L 'unit|threads' -LE 'slow|servers|single'
}

stage_fuzz() {
    echo "== fuzz: each target over its corpus"
    build fuzz build-fuzz && run_ctest build-fuzz
}

# A script whose last line has the counts.
run_script() { # LOG SCRIPT
    mkdir -p "$(dirname "$1")"
    "${at_home[@]}" tests/own_home.sh "$2" >"$1" 2>&1 || true
    sed -n 's/^flaky: //p' "$1" >>"$state/$stage.flaky"
    if [[ $(tail -n 1 "$1") =~ ^([0-9]+)' passed, '([0-9]+)' failed'(', '([0-9]+)' skipped')?$ ]]; then
        [ "${BASH_REMATCH[2]}" -eq 0 ] || failed_so "see $1" "$1"
        tally "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[4]:-0}"
    else
        broken "$1" "the tests did not run"
    fi
}

stage_neon() {
    echo "== neon: the ARM kernels against plain C"
    run_script build-neon/test.log scripts/test-neon.sh
}

stage_targets() {
    echo "== targets: each target of \`make help\`, as small as it gets"
    run_script build/targets.log scripts/test-targets.sh # build/targets has one for each
}

# ---- the lanes ----------------------------------------------------------------------
# Two lanes take stages from one list: the first from its head, where those are that keep
# all processors busy, the second from its end, where they mostly wait, for servers and one
# thread of an engine. Long ones are at both ends, so the lanes end at about the same time.
# `targets` builds and installs where the others test, so only the sanitizers run beside it.
order=(asan tsan release cli python fuzz neon docs package servers peers targets)

next_stage() { # head | tail: takes one from the list; prints nothing if that is empty
    (
        flock 8
        case $1 in
        head) sed -n 1p "$state/queue"; sed -i 1d "$state/queue" ;;
        tail) sed -n '$p' "$state/queue"; sed -i '$d' "$state/queue" ;;
        esac
    ) 8>"$state/queue.lock"
}

run_stage() { # with $stage
    case $stage in
    asan | tsan) ;;
    targets) flock -x 9 ;;
    *) flock -s 9 ;;
    esac
    started=$SECONDS
    "stage_$stage" 9>&- || true # it is in the counts; servers shall not hold the lock
    echo $((SECONDS - started)) >"$state/$stage.seconds"
} 9>"$state/trees.lock"

lane() { # head | tail
    pytest=''
    trap 'stop_server; kill $network 2>/dev/null || true; rm -rf ${memory:+"$memory"}' EXIT
    trap 'kill $pytest 2>/dev/null; exit 130' INT TERM HUP
    enter_network
    while stage=$(next_stage "$1") && [ -n "$stage" ]; do
        if [ "$lanes" -eq 1 ]; then
            run_stage
        else
            echo "-- $stage begins"
            run_stage >"$state/$stage.out" 2>&1
            flock "$state/print.lock" cat "$state/$stage.out"
        fi
    done
}

# The environments take minutes to install, which are mostly spent waiting. So all begin now,
# beside the first stages; a stage that needs one awaits it (scripts/venv.sh).
make_environments() { # STAGE...
    local stages=" $* " torch=torch
    [ "${DW_TEST_TORCH:-1}" != 0 ] || torch=
    [[ ! $stages =~ ' '(docs|package|peers|targets)' ' ]] || scripts/venv.sh package
    [ -z "${DW_TEST_PEERS:-}" ] || [[ ! $stages =~ ' '(docs|peers|targets)' ' ]] || scripts/venv.sh vllm
    # shellcheck disable=SC2086 # a word or none
    [[ ! $stages =~ ' '(package|python|servers)' ' ]] || scripts/venv.sh $torch
}

running=() environments=''
end() {
    for pid in $environments "${running[@]}"; do kill -- "-$pid" 2>/dev/null || true; done
    wait
    rm -rf "$state" "$watched"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

[ $# -gt 0 ] ||
    set -- release cli python package servers docs asan tsan fuzz neon ${DW_TEST_PEERS:+peers} targets
for stage in "$@"; do
    declare -F "stage_$stage" >/dev/null || { echo "test.sh: no stage '$stage'" >&2; exit 2; }
done
for stage in "${order[@]}"; do
    [[ " $* " != *" $stage "* ]] || echo "$stage"
done >"$state/queue"
lanes=${LANES:-2}
[ "$(wc -l <"$state/queue")" -gt 1 ] || lanes=1
at_once=$((jobs + 3 - lanes)) # tests of ctest: they mostly wait
set -m # a process group for each lane
(make_environments "$@" >/dev/null 2>&1 || true) </dev/null &
environments=$!
lane head </dev/null &
running=($!)
[ "$lanes" -eq 1 ] || { lane tail </dev/null & running+=($!); }
set +m
wait "${running[@]}" || true # what did not run is counted below
running=()

times=''
for stage in "$@"; do
    if [ -e "$state/$stage.seconds" ]; then
        times+="$stage $(cat "$state/$stage.seconds"), "
    else
        echo "== $stage: it did not end"
        echo "   failed: the stage $stage did not end" | tee -a "$state/$stage.failures"
        echo 0 1 0 >>"$state/$stage.counts"
    fi
done
if [ -n "$(ls -A "$watched")" ]; then
    stage=home started=$SECONDS
    echo "== home: tests wrote to the HOME of their user"
    find "$watched" >"$state/home.log"
    broken "$state/home.log" "files in HOME"
fi
read -r passed failed skipped < <(cat "$state"/*.counts | awk '
    { p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
[ "$failed" -eq 0 ] || { echo "== failed"; cat "$state"/*.failures; }
echo "== seconds: ${times}all $SECONDS"
[ -z "$(ls "$state"/*.flaky 2>/dev/null)" ] || cat "$state"/*.flaky | sed 's/^/flaky: /'
counts "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
