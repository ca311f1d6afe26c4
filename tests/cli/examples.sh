#!/usr/bin/env bash
# The examples in C: their usage.
. "$(dirname "$0")/lib.sh"

examples=$(dirname "$deltawire")/examples

usage_of() { # CODE PROGRAM ARGUMENT...
    local code=$1 status=0
    shift
    "$examples/$1" "${@:2}" >out.txt 2>err.txt || status=$?
    [ $status -eq "$code" ] || die "exit code $status, not $code: $* ($(cat err.txt))"
}

it "shows how it is called"
for program in apply_in_memory diff_arrays embed in_process_engine publish_and_follow \
    snapshot_reader walk_checkpoint; do
    usage_of 0 $program --help
    grep -q "^usage: .*$program" out.txt || die "$program: no usage"
    [ ! -s err.txt ]
done

it "refuses options that it does not know, and writes no file"
for program in apply_in_memory diff_arrays embed in_process_engine publish_and_follow \
    snapshot_reader walk_checkpoint; do
    usage_of 2 $program --frobnicate
    grep -q "^usage: .*$program" err.txt || die "$program: no usage"
    [ ! -s out.txt ]
done
[ "$(ls)" = "$(printf 'err.txt\nout.txt')" ]

it "refuses missing arguments"
usage_of 2 snapshot_reader
usage_of 2 walk_checkpoint
