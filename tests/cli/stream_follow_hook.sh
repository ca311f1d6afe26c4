#!/usr/bin/env bash
# A command of --exec that fails or hangs: it is a failure, and it is run again.
. "$(dirname "$0")/stream_lib.sh"
small_run 3
url=$store/run
new_stream "$url" 1

has_failed_at() { # ID VERSION: the follower reports that version, and that its command was killed
    deltawire status "$url" --json |
        holds "any(f['id'] == '$1' and f['version'] == $2 and f['status'] == 'error' and
            '--exec was killed' in f['message'] for f in o['followers'])"
}
is_gone() { # FILE: the process whose number is in FILE
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
    --exec-timeout 2 --until 3
hung=$!
wait_until test -s leader
cp leader leader.1
cp child child.1
wait_until is_gone leader.1
wait_until is_gone child.1

it "goes on following, and runs it for the next version"
publish_step "$url" 2
wait_until grep -q 2 seen

it "reports that it failed"
wait_until has_failed_at hung 2
grep -q '^deltawire: sh ./hang.sh: version 1: --exec was killed: it took longer than 2 s$' \
    err.hung

it "reports success once it works"
publish_step "$url" 3
ends $hung 0
[ "$(sort -u seen)" = "$(printf '1\n2\n3')" ]
is_at model 3
deltawire status "$url" --json | holds 'o["followers"][0]["status"] == "stopped"'

it "reports it in JSON"
status=0
deltawire follow "$url" --into other --no-report --until 3 --exec 'sleep 1000' \
    --exec-timeout 0.2 --json >events || status=$?
[ $status -eq 1 ]
tail -n 1 events | holds '"--exec was killed" in o["error"]["text"]'
grep '"event":"exec"' events | holds 'o["fate"] == "timeout" and o["version"] == 3'
fails 2 exec-timeout deltawire follow "$url" --into other --exec-timeout 0

it "ends with an error if the command fails for the version of --until"
echo 'echo "$DELTAWIRE_DIR" >dir; exit 3' >bad.sh
fails 1 'bad.sh: version 3: --exec ended with exit code 3$' \
    deltawire follow "$url" --into model --id bad --until 3 --exec 'sh ./bad.sh'
[ "$(cat dir)" = "$(pwd -P)/model" ]
deltawire status "$url" --json |
    holds 'any(f["id"] == "bad" and f["status"] == "error" for f in o["followers"])'

it "runs it again for the same version when it is started again"
deltawire follow "$url" --into model --id bad --until 3 --exec 'touch again' >/dev/null
[ -e again ]

it "runs it again while it fails, is not ready meanwhile, and reports it once"
cat >readyz.py <<'END'
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1] + "/readyz")
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
END
is_ready() { # STATUS PATTERN
    python3 readyz.py "${at%/}" >out.ready && grep -q "^$1 .*$2" out.ready
}
status_of() { # ID STATUS
    deltawire status "$url" --json |
        holds "any(f['id'] == '$1' and f['status'] == '$2' for f in o['followers'])"
}
echo 'echo run >>runs; [ -e allowed ]' >picky.sh
start picky follow "$url" --into picky --id picky --interval 0.1 --exec 'sh ./picky.sh' \
    --listen 127.0.0.1:0
picky=$!
has_runs() { [ "$(wc -l <runs)" -ge "$1" ]; }
wait_until has_runs 3
at=$(sed -n 's/^listening at //p' err.picky)
wait_until is_ready 503 'the command for the version failed'
wait_until status_of picky error
touch allowed
wait_until is_ready 200 ready
n_runs=$(wc -l <runs)
wait_until grep -q 'works again after' err.picky
[ "$(grep -c 'ended with exit code 1' err.picky)" -eq 1 ]
kill -TERM $picky
ends $picky 0
[ "$(wc -l <runs)" -eq "$n_runs" ]
