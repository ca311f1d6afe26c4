#!/usr/bin/env bash
# Analytics: over a stream and over deltas, as text, JSON and a page.
# tests/format/test_stats.py shows that the numbers are right.
. "$(dirname "$0")/stream_lib.sh"
trace=$tests/data/trace
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"
url=file://$scratch/stream

small_run 6
new_stream "$url" 6

# stats ARGUMENT...: must leave nothing behind
stats() {
    local status=0
    deltawire stats "$@" || status=$?
    [ -z "$(ls -A "$TMPDIR")" ] || die "left behind: $(ls -A "$TMPDIR")"
    return $status
}

it "prints a stream's report in the width of a terminal"
stats "$url" >out.txt
for words in 'steps  *6, from version 0 to 6' 'bound  *6' 'By step' 'By kind' 'q_proj' 'By layer' \
    'Moves, in ulps' 'Recurrence' 'Folded deltas'; do
    grep -q "$words" out.txt || die "no '$words'"
done
! grep -nE '^.{91}' out.txt || die "too wide"

it "finds the same in a stream and in its deltas, and does not change the checkpoint"
deltawire compact "$url" --anchor --quiet >/dev/null
stats "$url" --json >out.stream
unchanged stats --base run/base run/deltas/*.safetensors --json >out.deltas
python3 - <<'END'
import json
a, b = json.load(open("out.stream")), json.load(open("out.deltas"))
for key in ("elements", "kinds", "layers", "groups", "exponents", "recurrence", "folds"):
    assert a[key] == b[key], key
assert [s["changed"] for s in a["steps"]] == [s["changed"] for s in b["steps"]]
assert a["shortcuts"] and not b["shortcuts"]
END

it "walks from --from to --to, the last 16 steps by default"
stats "$url" --from 2 --to 5 --json |
    holds '[(s["from"], s["to"]) for s in o["steps"]] == [(2, 3), (3, 4), (4, 5)]'
stats "$url" --to 1 --json | holds 'len(o["steps"]) == 1'

it "writes a page that needs nothing else"
stats "$url" --html page.html >out.txt
grep -q '^By step' out.txt
python3 - <<'END'
import json, re
page = open("page.html").read()
assert not re.search(r"\b(src|href|srcset)\s*=|@import|url\(|fetch\(|XMLHttp|WebSocket", page)
assert set(re.findall(r"https?://[^\"'` ]*", page)) == {"http://www.w3.org/2000/svg"}
report = json.loads(re.search(r"const R = (.*);\n", page).group(1))
assert len(report["steps"]) == 6 and "DELTAWIRE_REPORT" not in page
END

it "keeps names from ending the page's script"
cp run/deltas/step_000001.safetensors '<!--x.st'
stats --base run/base '<!--x.st' --html page.html >/dev/null
! grep -q '<!--x' page.html || die "a name is in the page as it is"
grep -qF '\u003c!--x.st' page.html

it "takes TRL's files"
unchanged stats --base "$trace/base" "$trace"/deltas/*.safetensors --json |
    holds '(len(o["steps"]) == 12 and o["total"]["bits_a_change"] > 48
        and 6.4 < o["total"]["bound_bits_a_change"] < 6.7
        and o["total"]["bound_bits_a_change"] < o["total"]["class_bits_a_change"])'

it "walks over a stream whose version 0 was not uploaded"
deltawire publish "file://$scratch/based" run/base --base --quiet >/dev/null
publish_step "file://$scratch/based" 1
stats "file://$scratch/based" --base run/base --json | holds 'o["steps"][0]["changed"] > 0'
fails 6 "--base" stats "file://$scratch/based"

it "reports what is wrong"
deltawire publish "file://$scratch/one" run/base --quiet >/dev/null
fails 6 "nothing to compare" stats "file://$scratch/one"
fails 6 "no version 9 yet: the newest is 6" stats "$url" --to 9
fails 6 "no stream here" stats "file://$scratch/nowhere"
fails 2 "is no stream; of deltas, name" stats run/deltas/step_000001.safetensors
fails 2 "is no stream" stats nowhere
fails 2 "must be greater" stats "$url" --from 4 --to 4
fails 2 "too many" stats "$url" "$url"
fails 2 "are for streams" stats --base run/base --from 1 run/deltas/step_000001.safetensors
fails 6 "no/such/dir" stats "$url" --work no/such/dir
fails 6 "no/such/page.html" stats "$url" --html no/such/page.html
fails 6 "nowhere.st: cannot open" stats --base run/base nowhere.st
fails 6 "nowhere: " stats --base nowhere run/deltas/step_000001.safetensors

it "refuses deltas that do not fit or are damaged"
fails 4 "step_000002.safetensors: .*not version 1" \
    stats --base run/base run/deltas/step_000002.safetensors
grep -q '^try: deltawire inspect run/deltas/step_000002' err.last
fails 4 "step_000001.safetensors: .*at version 1 already" \
    stats --base run/base run/deltas/step_000001.safetensors{,}
deltawire synth -o other --params 4M --steps 1 --quiet >/dev/null
fails 5 "" stats --base run/base other/deltas/step_000001.safetensors
cp run/deltas/step_000001.safetensors bad.st
flip_bit bad.st $(($(stat -c %s bad.st) - 40))
fails 3 "bad.st: " stats --base run/base bad.st

it "reports that there is no room"
limited() {
    (
        ulimit -f 64
        "$deltawire" "$@"
    )
}
fails 6 "cannot take .* for scratch" limited stats "$url"
[ -z "$(ls -A "$TMPDIR")" ]

# stopped_by SIGNAL CODE: sends the signal while the command walks over its scratch file.
# False if it had ended before.
stopped_by() {
    local status=0
    start "$1" stats --base long/base long/deltas/*.safetensors --json
    until grep -qs "$TMPDIR" "/proc/$!/maps"; do
        kill -0 $! 2>/dev/null || break
        sleep 0.01
    done
    kill "-$1" $! 2>/dev/null || true
    wait $! || status=$?
    [ $status -ne 0 ] || return 1
    [ $status -eq "$2" ] || die "exit code $status, not $2"
}

it "leaves nothing behind when it is stopped or killed"
deltawire synth -o long --params 8M --steps 12 --quiet >/dev/null
for signal in INT:130 TERM:143 KILL:137; do
    until stopped_by "${signal%:*}" "${signal#*:}"; do :; done
    [ -z "$(ls -A "$TMPDIR")" ] || die "left behind: $(ls -A "$TMPDIR")"
done
holds 'o["error"]["code"] == "cancelled"' <out.INT
