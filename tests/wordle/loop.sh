#!/usr/bin/env bash
# labels: slow
# The whole loop in short: a trainer, an environment and two rollout servers, with nothing
# between them but a store and HTTP. Each gets a SIGKILL on the way. wordle-demo itself fails
# where a server's weights are not the trainer's in the end; here is what its metrics must
# say, that its proof can fail, and that nothing stays behind however it ends.
set -euo pipefail
demo=${WORDLE_DEMO:-$(dirname "$0")/../../build/examples/wordle/wordle-demo}
deltawire=${DELTAWIRE:-$(dirname "$0")/../../build/deltawire}
programs=$(dirname "$(realpath "$demo")")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir

it() { echo "- $*"; }
die() {
    echo "FAILED: $*" >&2
    exit 1
}
is_running() { kill -0 $pid 2>/dev/null; }
wait_until() { # COMMAND...: true, or false if the demo ends first
    local until_s=$((SECONDS + 180))
    until "$@"; do
        is_running || return 1
        [ $SECONDS -lt $until_s ] || die "not in 180 s: $*"
        sleep 0.05
    done
}
is_there() { compgen -G "$dir/wordle-demo-*/$1" >/dev/null; }
leaves_nothing() {
    local left
    left=$(find "$dir" -maxdepth 1 -name 'wordle-demo-*')
    [ -z "$left" ] || die "$left is still there"
}
# Starts a demo as $pid, which has no end unless options say so, and waits for a file of it.
start_until() { # FILE [OPTION...]
    "$demo" --deltawire "$deltawire" --warmup 100000 "${@:2}" >"$dir/out" 2>"$dir/err" &
    pid=$!
    wait_until is_there "$1" || die "it ended by itself: $(cat "$dir/err")"
}
ends_with() { # STATUS
    local status=0
    wait $pid || status=$?
    [ $status -eq "$1" ] || die "exit status $status, not $1: $(cat "$dir/err")"
    [ -z "$children" ] || ! ps -o pid,args -p "$children" | grep wordle- ||
        die "processes are still there"
    leaves_nothing
}
children_of() { pgrep -d, -P "$1" || true; }

it "ends with the trainer's weights on every server, despite kills"
has_steps() { [ -e "$run/train.jsonl" ] && [ "$(grep -c '"event":"step"' "$run/train.jsonl")" -ge "$1" ]; }
kill_at() { # STEPS PROGRAM
    wait_until has_steps "$1" && pkill -KILL -o -P $pid -x "$2"
}
for steps in 60 600 6000; do # if it ends before the last kill, it was too short
    run=$dir/run-$steps
    "$demo" --deltawire "$deltawire" --warmup 40 --steps $steps --restart --dir "$run" \
        >"$dir/out" &
    pid=$!
    if kill_at 2 wordle-rollout && kill_at 8 wordle-train && kill_at 12 wordle-env; then
        break
    fi
    wait $pid || die "$(cat "$dir/out")"
done
wait "$pid" || die "$(cat "$dir/out")"
cat "$dir/out"
[ "$(grep -c ' equal$' "$dir/out")" -eq 2 ] || die "not every server was proven equal"
[ "$(grep -c 'is started again$' "$dir/out")" -eq 3 ] || die "not all were started again"

it "has finite rewards, increasing versions, and one stream"
python3 - "$run" "$steps" <<'END'
import json, math, sys

steps_wanted = int(sys.argv[2])
lines = [json.loads(line) for line in open(sys.argv[1] + "/train.jsonl")]
steps = [line for line in lines if line["event"] == "step"]
starts = [line for line in lines if line["event"] == "start"]
end = lines[-1]
assert len(starts) == 2 and starts[1]["resumed"], "the trainer was to be started twice"
assert starts[0]["stream"] == starts[1]["stream"], "the second start made another stream"
assert end["event"] == "end" and steps[-1]["step"] == steps_wanted, end
again = lines.index(starts[1])
after = [line["step"] for line in lines[again:] if line["event"] == "step"]
assert after == list(range(starts[1]["trained"] - 40 + 1, steps_wanted + 1)), after
for line in steps:
    for key in ("reward", "win_rate", "entropy", "ratio", "norm", "lag"):
        assert math.isfinite(line[key]), (key, line)
    assert 0 <= line["win_rate"] <= 1, line
    assert line["max_lag"] <= 8, line
    assert line["ratio_off"] < 0.5, "samples and trainer do not agree on probabilities"
versions = [line for line in lines if line["event"] == "version"]
numbers = [line["version"] for line in versions]
assert numbers == sorted(set(numbers)), numbers
assert (numbers[-1], versions[-1]["state"]) == (end["version"], end["state"]), end
evaluations = [line["when"] for line in lines if line["event"] == "evaluation"]
assert evaluations[-1] == "after the last step", evaluations
END

it "ends at a signal, and leaves nothing behind"
for signal_and_file in INT:train.jsonl HUP:env.log TERM:rollout-0.log; do
    start_until "${signal_and_file#*:}"
    children=$(children_of $pid)
    kill -"${signal_and_file%:*}" $pid
    ends_with 130
done

it "ends during the proof"
cat >"$dir/slow" <<'END'
#!/bin/sh
sleep 600
END
chmod +x "$dir/slow"
start_until verify.log --deltawire "$dir/slow" --warmup 1 --steps 1
children=$(children_of $pid)
kill -INT $pid
ends_with 130

it "says which process was killed, and ends the others"
for program in wordle-env wordle-rollout wordle-train; do
    start_until train.jsonl
    children=$(children_of $pid)
    pkill -KILL -o -P $pid -x $program
    ends_with 1
    grep -qE '^wordle-demo: (env|rollout-0|trainer) was killed by signal 9' "$dir/err" ||
        die "$(cat "$dir/err")"
done

it "leaves no process when it is killed"
start_until train.jsonl
children=$(children_of $pid)
[ "$(tr , ' ' <<<"$children" | wc -w)" -eq 4 ] || die "$children are running"
kill -KILL $pid
wait "$pid" || true
are_gone() { ! ps -o pid= -p "$children" >/dev/null; }
until_s=$((SECONDS + 180))
until are_gone; do
    [ $SECONDS -lt $until_s ] || die "$(ps -o pid,args -p "$children") are still there"
    sleep 0.1
done
rm -rf "$dir"/wordle-demo-*

it "fails if a server computes with other weights"
mkdir "$dir/programs"
for program in wordle-demo wordle-train wordle-env; do
    cp "$programs/$program" "$dir/programs/"
done
cat >"$dir/programs/wordle-rollout" <<END
#!/usr/bin/env python3
# Passes requests on to a real server, and changes one digit of its digests.
import http.server, subprocess, sys, urllib.request
real = subprocess.Popen(["$programs/wordle-rollout", *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
url = real.stdout.readline().split()[-1]
class Relay(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)) or None
        try:
            with urllib.request.urlopen(url + self.path, body) as answer:
                status, data = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, data = error.code, error.read()
        if self.path == "/digest":
            data = data[:-3] + (b"0" if data[-3:-2] != b"0" else b"1") + data[-2:]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST
    def log_message(self, *args):
        pass
relay = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay)
print(f"listening on http://127.0.0.1:{relay.server_port}", flush=True)
relay.serve_forever()
END
chmod +x "$dir/programs/wordle-rollout"
status=0
"$dir/programs/wordle-demo" --deltawire "$deltawire" --warmup 2 --steps 2 >"$dir/out" 2>"$dir/err" ||
    status=$?
if [ $status -ne 1 ] || [ "$(grep -c ' DIFFERS$' "$dir/out")" -ne 2 ]; then
    die "$status: $(cat "$dir/out" "$dir/err")"
fi
leaves_nothing

it "refuses directories that it cannot make, and paths that are too long"
refuses() { # TEXT OPTION...
    local status=0
    "$demo" --deltawire "$deltawire" "${@:2}" >/dev/null 2>"$dir/err" || status=$?
    if [ $status -ne 1 ] || ! grep -q "$1" "$dir/err"; then
        die "$status: $(cat "$dir/err")"
    fi
    leaves_nothing
}
long=$(printf '%0600d' 0)
refuses 'cannot be made' --dir "$dir/no/where"
refuses 'cannot be made' --dir "$run"
refuses 'long' --dir "/$long"
refuses 'long' --store "file:///tmp/$long"
