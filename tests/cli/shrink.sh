#!/usr/bin/env bash
# Files that shrink while a verb works on them: an error that names the file, and nothing
# wrong is left behind. Only a verb's own files, which it locks, may end it.
. "$(dirname "$0")/lib.sh"

cutter=$(dirname "$deltawire")/tests/libcut_file.so
if [ ! -e "$cutter" ] || grep -q __asan_init "$deltawire" ||
    grep -q __tsan_init "$deltawire"; then
    echo "needs a program that libraries can be preloaded to"
    exit 77
fi
export XDG_CACHE_HOME=$scratch/cache # of baselines
small_run 1 --params 3M
old=run/base/model.safetensors
new=run/step_000001/model.safetensors
delta=run/deltas/step_000001.safetensors

# cut AT FILE COMMAND...: FILE loses most of its bytes when the command starts thread
# number AT
cut() {
    local at=$1 file=$2
    shift 2
    env LD_PRELOAD="$cutter" CUT_AT="$at" CUT_FILE="$PWD/$file" CUT_BYTES=9000 "$@"
}

signal=none # that may end the command
# survives FILE RESET CHECK COMMAND...: whenever FILE is cut, the command succeeds or
# reports that it shrank. RESET runs before each run, CHECK after it.
survives() {
    local file=$1 reset=$2 check=$3 n_failed=0 at status
    shift 3
    for at in 1 2 3 4 5 6; do
        $reset
        status=0
        cut "$at" "$file" "$@" >out.last 2>err.last || status=$?
        case $status in
        0) ;;
        "$signal") n_failed=$((n_failed + 1)) ;;
        4 | 6)
            grep -qE "$(basename "$file").*(shrank|changed while)" err.last ||
                die "cut at $at: $(cat err.last)"
            n_failed=$((n_failed + 1))
            ;;
        *) die "cut at $at: exit code $status: $(cat err.last)" ;;
        esac
        $check
    done
    [ $n_failed -gt 0 ] || die "$file was never missed"
}

cp -r run kept
reset() {
    rm -rf run stream into out.st cache
    cp -r kept run
}
nothing() {
    :
}

it "diff: the new checkpoint, and the old one"
no_delta() {
    [ "$status" -eq 0 ] || [ ! -e out.st ] || die "a delta of a file that shrank"
}
survives "$new" reset no_delta "$deltawire" diff run/base run/step_000001 -o out.st --threads 2
survives "$old" reset no_delta "$deltawire" diff run/base run/step_000001 -o out.st --threads 2

it "apply: a delta is read before the work begins"
reset
cut 1 $delta "$deltawire" apply $delta --to run/base --threads 2 >/dev/null
same_weights run/base kept/step_000001

it "verify: the checkpoint, without and with a delta"
survives "$old" reset nothing "$deltawire" verify run/base --threads 2
survives "$old" reset nothing "$deltawire" verify run/base $delta --threads 2

it "publish: earlier versions can be pulled, a truncated checkpoint is not committed"
stream() {
    reset
    deltawire publish stream run/base >/dev/null
}
good_stream() {
    rm -rf into
    deltawire verify stream >/dev/null
    deltawire pull stream --into into >/dev/null
    if [ "$status" -eq 0 ]; then
        same_weights into kept/step_000001
    else
        same_weights into kept/base
    fi
}
survives "$new" stream good_stream "$deltawire" publish stream run/step_000001 --threads 2

it "pull: the weights of the directory, which the next pull makes good"
pulled() {
    stream
    deltawire pull stream --into into >/dev/null
    deltawire publish stream run/step_000001 >/dev/null
}
recovers() {
    deltawire pull stream --into into >/dev/null
    same_weights into kept/step_000001
}
signal=$((128 + 7)) # SIGBUS
survives into/model.safetensors pulled recovers "$deltawire" pull stream --into into --threads 2
