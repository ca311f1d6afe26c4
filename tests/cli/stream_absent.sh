#!/usr/bin/env bash
# A store that goes away and comes back, a store restored from an older copy, and commits
# that are lost: processes wait or refuse, and nothing is written into an empty place.
unset DW_TEST_STORE # always a directory here
. "$(dirname "$0")/stream_lib.sh"
command -v curl >/dev/null || { echo "no curl here: skipped"; exit 77; }
small_run 6
url=file://$scratch/place/run
commit=place/run/commits/0000000000000000000

# The store is a mount point if mounting is allowed, else a directory that is moved.
mkdir place disk
if mount --bind disk place 2>/dev/null; then
    umount place
    come() { mount --bind disk place; }
    go() { wait_until umount place; }
    unmount_and_finish() {
        local status=$?
        set +e
        umount -l place 2>/dev/null
        (exit $status)
        finish
    }
    trap unmount_and_finish EXIT
else
    echo "(mounting is not allowed here: the place is moved instead)"
    come() { rmdir place && mv disk place; }
    go() { mv place disk && mkdir place; }
fi
come

nothing_there() {
    [ -z "$(find place -mindepth 1)" ]
}

it "--watch and follow wait for a store that is not mounted"
mkdir output
cp -r run/step_000001 output/checkpoint-1
start watch publish "$url" --watch output
watch=$!
wait_until head_is 0
start follow follow "$url" --into model --interval 0.2 --listen 127.0.0.1:0
follow=$!
wait_until test -s out.follow
cp -r run/step_000002 output/checkpoint-2
wait_until head_is 1
wait_until grep -q 'version 1' out.follow
go
cp -r run/step_000003 output/checkpoint-3
wait_until grep -q 'the store is absent' err.watch
wait_until grep -q 'the store is absent' err.follow
sleep 2
nothing_there
fails 9 'there is no stream here, but the baseline' deltawire publish "$url" run/step_000004
nothing_there
come
wait_until head_is 2
wait_until grep -q 'version 2' out.follow
[ "$(grep -c 'the store is absent' err.watch)" -eq 1 ] # reported once
kill -INT $watch $follow
ends $watch 0
ends $follow 0
prints 'faults  *0' deltawire verify "$url"
[ "$(state_of model)" = "$(state_at 3)" ]

it "every verb that reads the log reports a lost commit"
for i in 4 5 6; do publish_step "$url" "$i"; done
deltawire pull "$url" --into at2 --at 2 --quiet >/dev/null
cp ${commit}3.json kept.json
rm ${commit}3.json
fails 3 'version 3 is missing' deltawire pull "$url" --into at2
fails 3 'version 3 is missing' deltawire status "$url"
fails 3 'version 3 is missing, but version 5 .* hole' \
    deltawire pull "$url" --into fresh3 --at 3
fails 3 'found: the list is on stdout' deltawire verify "$url"
[ "$(grep -c '^fault: .*hole' out.last)" -eq 1 ]
grep -q '^  orphans .*1 objects whose record is missing' out.last
grep -q '^  leftovers' out.last && die "the objects of a missing version are no leftovers"
start hole follow "$url" --into at2 --interval 0.2 --no-report --listen 127.0.0.1:0
hole=$!
wait_until grep -q 'version 3 is missing' err.hole
at=$(sed -n 's/^listening at //p' err.hole)
get() { curl -sS --noproxy '*' --max-time 60 "${@:2}" "$at$1"; }
is_ready() { # CODE
    [ "$(get readyz -o out.ready -w '%{http_code}')" = "$1" ]
}
wait_until is_ready 503
get status | holds 'o["error"]["code"] == "corrupt" and o["ready"] is False'
prints '^deltawire_lag_versions 3' get metrics
prints '^deltawire_ready 0' get metrics
cp kept.json ${commit}3.json
wait_until grep -q 'version 5' out.hole
wait_until is_ready 200
kill -INT $hole
ends $hole 0

it "verify notices that the newest commit is missing"
mv ${commit}5.json kept.json
fails 3 'found: the list is on stdout' deltawire verify "$url"
grep -q '^fault: .*latest.json says that version 5 was committed' out.last
grep -q '^  orphans ' out.last

it "nobody commits another version under the number of a lost one"
object_list "$url" "" >before.txt
refused='latest.json says that version 5 was committed.* remove latest.json'
fails 3 "$refused" deltawire publish "$url" run/step_000001 --baseline fresh.c
fails 3 "$refused" deltawire repair "$url" run/step_000001
object_list "$url" "" >after.txt
cmp before.txt after.txt
mv kept.json ${commit}5.json
prints 'faults  *0' deltawire verify "$url"

it "a store restored from an older copy is refused, until the newer one is back"
deltawire pull "$url" --into high --quiet >/dev/null
deltawire pull "$url" --into high --at 1 --quiet >/dev/null # an explicit --at is allowed
cp -a place/run newer
rm ${commit}[45].json
object_edit "$url" latest.json 'o["version"] = 3; o["edges"] = [e for e in o["edges"] if e[1] <= 3]'
keeps high fails 11 'version 5, .*older copy' deltawire pull "$url" --into high
keeps high fails 11 'version 5, .*older copy' deltawire pull "$url" --into high --at 2
fails 11 'version 5, .*older copy' deltawire publish "$url" run/step_000001
[ "$(object_list "$url" commits/ | wc -l)" -eq 4 ]
rm -r place/run
mv newer place/run
deltawire pull "$url" --into high --quiet >/dev/null
[ "$(state_of high)" = "$(state_at 6)" ]

it "--new begins a new stream where one was removed, and only there"
deltawire publish "file://$PWD/exp/stream" run/step_000001 --quiet
fails 8 'there is a stream already' deltawire publish "file://$PWD/exp/stream" run/step_000001 --new
rm -r exp
fails 9 'the stream was removed.*to begin a new stream, add --new' \
    deltawire publish "file://$PWD/exp/stream" run/step_000001
deltawire publish "file://$PWD/exp/stream" run/step_000002 --new --quiet
deltawire publish "file://$PWD/exp/own" run/step_000001 --baseline own --quiet
rm -r exp/own
deltawire publish "file://$PWD/exp/own" run/step_000002 --baseline own --new --quiet
deltawire pull "file://$PWD/exp/own" --into pulled --quiet
same_weights pulled run/step_000002
