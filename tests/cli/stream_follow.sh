#!/usr/bin/env bash
# A directory is kept at the newest version.
. "$(dirname "$0")/stream_lib.sh"
small_run 9
url=$store/run

# events FILE NAME: how many JSON events of that name
events() {
    grep -c "^{\"event\":\"$2\"" "$1" || true
}
has_events() { # FILE NAME N
    [ "$(events "$1" "$2")" -ge "$3" ]
}

reports() { # STATUS: a follower reports it
    deltawire status "$url" --json | holds "any(f['status'] == '$1' for f in o['followers'])"
}

it "waits for a stream that is not there, and reports it once"
start one follow "$url" --into model --interval 0.2 --until 2 --json
one=$!
wait_until has_events out.one error 1
sleep 2.5
[ "$(events out.one error)" -eq 1 ]
new_stream "$url" 2
ends $one 0
is_at model 2
[ "$(events out.one recovered)" -eq 1 ]
tail -n 1 out.one | holds 'o["event"] == "stopped" and o["version"] == 2'

it "runs a command after each version, with the absolute path of the directory"
cat >hook.sh <<'END'
echo "$DELTAWIRE_VERSION $DELTAWIRE_STEP $DELTAWIRE_DIR $DELTAWIRE_STATE" >>out.hook
END
publish_step "$url" 3
start two follow "$url" --into model --interval 0.2 --exec 'sh ./hook.sh' --until 4
two=$!
wait_until test -s out.hook
[ "$(cat out.hook)" = "3 3 $(pwd -P)/model $(state_at 3)" ]
publish_step "$url" 4
ends $two 0
[ "$(tail -n 1 out.hook)" = "4 4 $(pwd -P)/model $(state_at 4)" ]
is_at model 4
[ "$(wc -l <out.hook)" -eq 2 ]
grep -q '^version 4 from 3: 1 step, ' out.two

it "keeps the command from the terminal's input"
deltawire follow "$url" --into typed --until 4 --exec 'cat >in.hook; touch done.hook' \
    --no-report --quiet <<<"typed"
[ -e done.hook ] && [ ! -s in.hook ]

it "waits for the command even if SIGCHLD was ignored"
(
    trap '' CHLD
    fails 1 'ended with exit code 3' deltawire follow "$url" --into ignored --until 4 \
        --exec 'sleep 0.3; exit 3' --no-report --quiet
)

it "stops cleanly and reports that"
start three follow "$url" --into model --interval 0.2 --json
three=$!
publish_step "$url" 5
publish_step "$url" 6
wait_until stands_at model 6
kill -TERM $three
ends $three 0
is_at model 6
tail -n 1 out.three | holds 'o["event"] == "stopped"'
deltawire status "$url" --json >out.json
holds 'len(o["followers"]) == 1' <out.json
holds 'o["followers"][0]["status"] == "stopped" and o["followers"][0]["version"] == 6' <out.json
holds 'o["followers"][0]["id"].startswith(o["followers"][0]["host"].split(".")[0])' <out.json

it "reports under a name, or not at all"
deltawire follow "$url" --into named --id engine-7 --until 6 --quiet
deltawire follow "$url" --into silent --no-report --until 6 --quiet
deltawire status "$url" --json |
    holds 'sorted(f["id"] == "engine-7" for f in o["followers"]) == [False, True]'
fails 2 "exclude each other" deltawire follow "$url" --into x --id a --no-report

it "reaches the newest version after a kill at any instant"
start four follow "$url" --into model --interval 0.1 --json
four=$!
publish_step "$url" 7
sleep "0.$((RANDOM % 5))"
kill -9 $four
wait $four 2>/dev/null || true
deltawire follow "$url" --into model --until 7 --quiet
is_at model 7

it "stays at the good version while the store fails, and reports the failure once"
start five follow "$url" --into model --interval 0.2 --json
five=$!
wait_until reports following
kill -STOP $five
publish_step "$url" 8 --fold none
key=$(object_of "$url" 8)
object_get "$url" "$key" lost
object_remove "$url" "$key"
kill -CONT $five
wait_until has_events out.five error 1
sleep 4
[ "$(events out.five error)" -eq 1 ] || die "reported more than once: $(cat out.five)"
prints "$key" grep '"event":"error"' out.five
is_at model 7
wait_until reports error
deltawire status "$url" --json |
    holds 'any(f["status"] == "error" and f["message"] for f in o["followers"])'

it "goes on once it works again, and reports that too"
object_put "$url" "$key" lost
wait_until stands_at model 8
wait_until has_events out.five recovered 1
kill -INT $five
ends $five 0
is_at model 8
