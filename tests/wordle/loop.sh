#!/usr/bin/env bash
# labels: slow
# The whole loop in short: a trainer, an environment, two rollout servers and their agents,
# with nothing between them but a store and HTTP. wordle-demo itself fails where a server's
# weights are not the trainer's in the end; here is what its metrics must say. A server, an
# agent, the trainer and the environment get a SIGKILL on the way, and in the end the demo.
set -euo pipefail
demo=${WORDLE_DEMO:-$(dirname "$0")/../../build/examples/wordle/wordle-demo}
deltawire=${DELTAWIRE:-$(dirname "$0")/../../build/deltawire}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir

it() { echo "- $*"; }
die() {
    echo "FAILED: $*" >&2
    exit 1
}
left() { find "$dir" -maxdepth 1 -name 'wordle-demo-*'; }
ends_at() { # SIGNAL
    local status=0
    kill -"$1" $pid
    wait $pid || status=$?
    [ $status -eq 130 ] || die "exit status $status after SIG$1"
    leaves_nothing
}
leaves_nothing() { [ -z "$(left)" ] || die "$(left) is still there"; }
# Starts a demo, as $pid, that has no end unless options say so, and waits until it has written
# a file of that name.
start_until() { # FILE [OPTION...]
    "$demo" --deltawire "$deltawire" --warmup 100000 "${@:2}" >"$dir/out" &
    pid=$!
    local until_s=$((SECONDS + 180))
    until [ -n "$(find "$dir" -path "*wordle-demo-*/$1" 2>/dev/null)" ]; do
        kill -0 $pid || die "it ended by itself"
        [ $SECONDS -lt $until_s ] || die "it has not written $1"
        sleep 0.1
    done
}

it "ends with the trainer's weights on every server, despite kills"
"$demo" --deltawire "$deltawire" --warmup 40 --steps 12 --record "$dir/run" \
    --kill env@8 --kill rollout-0@2 --kill agent-1@4 --kill trainer@6 | tee "$dir/out"
[ "$(grep -c ' equal$' "$dir/out")" -eq 4 ] || die "not every server was proven equal"

it "leaves nothing behind"
leaves_nothing
killed=$(grep -o '^[a-z0-9-]* gets SIGKILL' "$dir/out" | cut -d' ' -f1 | tr '\n' ' ')
[ "$killed" = 'rollout-0 agent-1 trainer env ' ] || die "killed were: $killed"

it "has finite rewards, increasing versions, and one stream"
python3 - "$dir/run" <<'END'
import json, math, sys

lines = [json.loads(line) for line in open(sys.argv[1] + "/train.jsonl")]
steps = [line for line in lines if line["event"] == "step"]
starts = [line for line in lines if line["event"] == "start"]
end = lines[-1]
assert len(starts) == 2 and starts[1]["resumed"], "the trainer was to be started twice"
assert starts[0]["stream"] == starts[1]["stream"], "the second start made another stream"
assert end["event"] == "end" and steps[-1]["step"] == 12, end
again = lines.index(starts[1])
after = [line["step"] for line in lines[again:] if line["event"] == "step"]
assert after == list(range(starts[1]["trained"] - 40 + 1, 13)), after
for line in steps:
    for key in ("reward", "win_rate", "entropy", "ratio", "norm", "lag"):
        assert math.isfinite(line[key]), (key, line)
    assert 0 <= line["win_rate"] <= 1 and 0 <= line["consistent_rate"] <= 1, line
    assert line["max_lag"] <= 8, line
    assert line["ratio_off"] < 0.5, "samples and trainer do not agree on probabilities"
versions = [line["version"] for line in lines if "version" in line]
assert versions == sorted(versions), versions
assert len({line["version"] for line in steps}) == len(steps), versions
for server in (0, 1):
    events = [json.loads(line) for line in open(f"{sys.argv[1]}/agent-{server}.log")]
    applied = [event["version"] for event in events if event["event"] == "version"]
    assert applied == sorted(applied) and applied[-1] == end["version"], applied
print(f"  {len(steps)} steps, version {end['version']}, reward {steps[-1]['reward']:.2f}")
END

it "ends at a signal, and leaves nothing behind"
for signal_and_file in INT:train.jsonl HUP:env.log TERM:init.log; do
    start_until "${signal_and_file#*:}"
    ends_at "${signal_and_file%:*}"
done

it "ends during the proof"
cat >"$dir/slow" <<END
#!/bin/sh
[ "\$1" != verify ] || sleep 600
exec $(realpath "$deltawire") "\$@"
END
chmod +x "$dir/slow"
start_until verify-0.log --deltawire "$dir/slow" --warmup 1 --steps 1
ends_at INT
! pgrep -f "$dir/slow" >/dev/null || die "a verification is still there"

it "leaves no process and no directory when it is killed"
start_until train.jsonl
processes=$(pgrep -P $pid)
[ "$(wc -w <<<"$processes")" -ge 7 ] || die "only $processes are running"
kill -KILL $pid
wait $pid || true
until_s=$((SECONDS + 180))
for process in $processes; do
    while kill -0 "$process" 2>/dev/null; do
        [ $SECONDS -lt $until_s ] || die "$(ps -o pid,args -p "$process") is still there"
        sleep 0.1
    done
done
leaves_nothing

it "refuses files that it cannot write, and paths that are too long"
fails_with() { # TEXT
    if [ "$status" -ne 1 ] || ! grep -q "$1" "$dir/err"; then
        die "$status: $(cat "$dir/err")"
    fi
}
status=0
"$demo" --deltawire "$deltawire" --record "$dir/no/where" 2>"$dir/err" || status=$?
fails_with 'cannot be made'
long=$(printf '%0600d' 0)
for cut in "/$long:" "$dir:file:///tmp/$long"; do
    status=0
    TMPDIR=${cut%%:*} "$demo" --deltawire "$deltawire" --store "${cut#*:}" >/dev/null \
        2>"$dir/err" || status=$?
    fails_with 'long'
done
leaves_nothing
