#!/usr/bin/env bash
# A command of --exec that hangs does not end the following.
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run
new_stream "$url" 1

version_of() { # ID VERSION: a follower reports that version
    deltawire status "$url" --json |
        holds "any(f['id'] == '$1' and f['version'] == $2 for f in o['followers'])"
}
is_gone() { # FILE: the process whose number stands there
    ! kill -0 "$(cat "$1")"
}

it "takes a time limit only with a command"
fails 2 'exec-timeout needs --exec' deltawire follow "$url" --into model --exec-timeout 3

it "kills a command that hangs, and those it started"
cat >hang.sh <<'END'
echo "$DELTAWIRE_VERSION" >>seen
[ "$DELTAWIRE_VERSION" -lt 3 ] || exit 0
sleep 1000 &
echo $! >child
echo $$ >leader
trap '' TERM
sleep 1000
END
start hung follow "$url" --into model --id hung --interval 0.1 --exec 'sh ./hang.sh' \
    --exec-timeout 0.2 --until 3
hung=$!
wait_until grep -q 1 seen
cp leader leader.1
wait_until is_gone leader.1
wait_until is_gone child

it "follows on, and runs it for the next version"
publish_step "$url" 2
wait_until grep -q 2 seen
wait_until version_of hung 2

it "reports that it failed"
grep -q '^deltawire: version 1: --exec was killed: it took longer than 0.2 s: sh ./hang.sh$' \
    err.hung
deltawire status "$url" --json |
    holds '"--exec was killed" in o["followers"][0]["message"]'

it "takes the failure back once it works"
publish_step "$url" 3
ends $hung 0
[ "$(cat seen)" = "$(printf '1\n2\n3')" ]
is_at model 3

it "says so in JSON"
deltawire follow "$url" --into other --no-report --until 3 --exec 'sleep 1000' \
    --exec-timeout 0.2 --json >events
grep '"event":"exec"' events | holds 'o["fate"] == "timeout" and o["version"] == 3'
fails 2 exec-timeout deltawire follow "$url" --into other --exec-timeout 0
