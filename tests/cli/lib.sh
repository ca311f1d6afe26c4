# Sourced by the tests in this directory. Each runs in a temporary directory and ends at
# the first command that does not do what is expected.
# shellcheck shell=bash
set -euo pipefail

deltawire=${DELTAWIRE:-$(cd "$(dirname "$0")/../.." && pwd)/build/deltawire}
scratch=$(mktemp -d)
finish() {
    local status=$?
    if [ $status -ne 0 ] && [ $status -ne 77 ]; then
        echo "FAILED after: ${said:-the start}" >&2
    fi
    # background processes of the test must not write here any more
    for id in $(jobs -pr; jobs -ps); do
        { kill -KILL "$id" && wait "$id"; } 2>/dev/null || true
    done
    chmod -R u+w "$scratch"
    rm -rf "$scratch"
    exit $status
}
trap finish EXIT
cd "$scratch"

# The interpreter itself: some machines find it through a script that takes longer than it.
# In the background, start "$python", so that $! is its id.
python=$(python3 -c 'import sys; print(sys.executable)')
python3() {
    "$python" "$@"
}

# it SENTENCE: what the following commands show
it() {
    said=$*
    echo "- $*"
}

deltawire() {
    "$deltawire" "$@"
}

die() {
    echo "$*" >&2
    exit 1
}

# fails CODE PATTERN COMMAND...: the command must fail with that exit code and one line
# on stderr that matches the pattern; a line 'try: ...' may follow.
fails() {
    local code=$1 pattern=$2 status=0
    shift 2
    "$@" >"$scratch/out.last" 2>"$scratch/err.last" || status=$?
    sed -i '/: no answer for [0-9]* s /d' "$scratch/err.last" # a slow server
    [ $status -eq "$code" ] ||
        die "exit code $status, not $code: $* ($(cat "$scratch/err.last"))"
    [ "$(grep -vc '^try: ' "$scratch/err.last")" -eq 1 ] ||
        die "not one line: $(cat "$scratch/err.last")"
    grep -q "^deltawire: .*$pattern" <<<"$(head -n 1 "$scratch/err.last")" ||
        die "not '$pattern': $(cat "$scratch/err.last")"
}

# prints PATTERN COMMAND...: the command must succeed and print a line that matches. (With
# pipefail, `COMMAND | grep -q` fails now and then: grep ends first, COMMAND gets SIGPIPE.)
prints() {
    local pattern=$1 out
    shift
    out=$("$@") || die "exit code $?: $*"
    grep -q -e "$pattern" <<<"$out" || die "not '$pattern': $out"
}

# wait_until COMMAND...: tries until it succeeds; the limit only ends a test that hangs
wait_until() {
    for _ in $(seq 1800); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    die "waited in vain: $*"
}

# unchanged COMMAND...: the command must not create, remove or change any file here,
# except for the test's own out.* and err.*
unchanged() {
    local before status=0
    before=$(snapshot)
    "$@" || status=$?
    [ "$before" = "$(snapshot)" ] ||
        die "files changed: $(diff <(echo "$before") <(snapshot))"
    return $status
}

snapshot() {
    find . -type f ! -name 'out.*' ! -name 'err.*' -print0 | sort -z | xargs -0r sha256sum
}

# json EXPRESSION: a Python expression over the object `o` that is read from stdin.
json() {
    python3 -S -c 'import json, sys; o = json.load(sys.stdin); print(eval(sys.argv[1]))' "$1"
}

# holds EXPRESSION: the expression must be true.
holds() {
    [ "$(json "$1")" = True ] || die "does not hold: $1"
}

state_of() { # CKPT
    deltawire verify "$1" --json | json 'o["state"]'
}

# A small run: run/base, run/step_00000N and run/deltas/step_00000N.safetensors.
small_run() { # STEPS [OPTION...]
    deltawire synth -o run --params 300K --steps "$1" --write both "${@:2}" --json >/dev/null
}

# same_weights CKPT CKPT: single files, equal byte for byte
same_weights() {
    cmp "$1/model.safetensors" "$2/model.safetensors"
}

flip_bit() { # FILE OFFSET
    python3 - "$1" "$2" <<'END'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2]))
    byte = f.read(1)[0] ^ 4
    f.seek(int(sys.argv[2]))
    f.write(bytes([byte]))
END
}

# make_checkpoint FILE JSON: tensors of U8 zeros, {"name": [shape], ...}
make_checkpoint() {
    python3 - "$1" "$2" <<'END'
import json, math, struct, sys
shapes, header, at = json.loads(sys.argv[2]), {}, 0
for name, shape in sorted(shapes.items()):
    n = math.prod(shape)
    header[name] = {"dtype": "U8", "shape": shape, "data_offsets": [at, at + n]}
    at += n
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + bytes(at))
END
}
