#!/usr/bin/env bash
# labels: slow
# The whole loop in short: a trainer, an environment, two rollout servers and their agents,
# with nothing between them but a store and HTTP. wordle-demo itself fails where a server's
# weights are not the trainer's in the end; here is what its metrics must say. One server,
# one agent and the trainer get a SIGKILL on the way.
set -euo pipefail
demo=${WORDLE_DEMO:-$(dirname "$0")/../../build/examples/wordle/wordle-demo}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir

it() { echo "- $*"; }
die() {
    echo "FAILED: $*" >&2
    exit 1
}

it "ends with the trainer's weights on every server, through kills"
"$demo" --deltawire "${DELTAWIRE:-$(dirname "$0")/../../build/deltawire}" \
    --warmup 40 --steps 12 --record "$dir/run" \
    --kill rollout-0@2 --kill agent-1@4 --kill trainer@6 | tee "$dir/out"
[ "$(grep -c ' equal$' "$dir/out")" -eq 4 ] || die "not every server was proven equal"

it "leaves nothing behind"
left=$(find "$dir" -maxdepth 1 -name 'wordle-demo-*')
[ -z "$left" ] || die "$left is still there"

it "has finite rewards, versions that advance, and one stream"
python3 - "$dir/run" <<'END'
import json, math, sys

lines = [json.loads(line) for line in open(sys.argv[1] + "/train.jsonl")]
steps = [line for line in lines if line["event"] == "step"]
starts = [line for line in lines if line["event"] == "start"]
end = lines[-1]
assert len(starts) == 2 and starts[1]["resumed"], "the trainer was to be started twice"
assert starts[0]["stream"] == starts[1]["stream"], "the second start made another stream"
assert end["event"] == "end" and steps[-1]["step"] == 12, end
for line in steps:
    for key in ("reward", "win_rate", "entropy", "ratio", "norm", "lag"):
        assert math.isfinite(line[key]), (key, line)
    assert 0 <= line["win_rate"] <= 1 and line["max_lag"] <= 8, line
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

it "ends at a signal, and leaves nothing behind then either"
"$demo" --deltawire "${DELTAWIRE:-$(dirname "$0")/../../build/deltawire}" --warmup 100000 \
    >"$dir/out" &
pid=$!
until [ -n "$(find "$dir" -path '*wordle-demo-*/train.jsonl' 2>/dev/null)" ]; do
    kill -0 $pid || die "it ended by itself"
    sleep 0.1
done
kill -INT $pid
status=0
wait $pid || status=$?
[ $status -eq 130 ] || die "exit status $status"
left=$(find "$dir" -maxdepth 1 -name 'wordle-demo-*')
[ -z "$left" ] || die "$left is still there"
