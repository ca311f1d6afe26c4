# Sourced by the tests of streams. They run over any store: DW_TEST_STORE is the URL below
# which each test makes its own streams, a directory of its own by default. With s3:// the
# server is AWS_ENDPOINT_URL, and objects are got at by tests/servers/s3_request.py.
# shellcheck shell=bash
tests=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/cli/lib.sh
. "$tests/cli/lib.sh"

store=${DW_TEST_STORE:-file://$scratch/store}/$(basename "$scratch")
# baselines must not outlive the test
export XDG_CACHE_HOME=$scratch/cache

is_file_store() {
    case $store in file:*) ;; *) return 1 ;; esac
}

# ---- objects ----

s3() { # METHOD PATH [FILE]
    python3 "$tests/servers/s3_request.py" "$1" "$AWS_ENDPOINT_URL/$2" "${@:3}"
}

object_get() { # URL KEY FILE
    if is_file_store; then
        cp "${1#file://}/$2" "$3"
    else
        s3 GET "${1#s3://}/$2" >"$3"
    fi
}

object_put() { # URL KEY FILE
    if is_file_store; then
        mkdir -p "$(dirname "${1#file://}/$2")"
        cp "$3" "$scratch/object.new"
        mv -f "$scratch/object.new" "${1#file://}/$2" # at once, as stores do
    else
        s3 PUT "${1#s3://}/$2" "$3" >/dev/null
    fi
}

object_remove() { # URL KEY
    if is_file_store; then
        rm -f "${1#file://}/$2"
    else
        s3 DELETE "${1#s3://}/$2" >/dev/null
    fi
}

# object_list URL PREFIX: keys that begin with PREFIX
object_list() {
    if is_file_store; then
        (cd "${1#file://}" && find . -type f ! -name '*.tmp-*' | sed 's,^\./,,' |
            grep "^$2" | sort)
    else
        local bucket=${1#s3://} root prefix
        root=${bucket#*/} bucket=${bucket%%/*}
        prefix=$root/$2
        s3 GET "$bucket?list-type=2&prefix=${prefix//\//%2F}" |
            grep -o '<Key>[^<]*</Key>' | sed "s,<Key>$root/\(.*\)</Key>,\1,"
    fi
}

# object_edit URL KEY STATEMENT: Python over the JSON object `o`; the seal is recomputed
object_edit() {
    object_get "$1" "$2" edited.json
    PYTHONPATH=$tests/format python3 -B - "$3" <<'END'
import json, sys
from decoder import xxh64
with open("edited.json") as f:
    o = json.load(f)
exec(sys.argv[1])
sealed = o.pop("seal", None) is not None
text = json.dumps(o, separators=(",", ":"))
if sealed:
    head, tail = text[:-1] + ',"seal":"', '"}'
    text = "%s%016x%s" % (head, xxh64((head + "0" * 16 + tail).encode()), tail)
with open("edited.json", "w") as f:
    f.write(text)
END
    object_put "$1" "$2" edited.json
    rm edited.json
}

commit_key() { # VERSION
    printf 'commits/%020d.json' "$1"
}

# object_of URL VERSION: the key of the first object that the version's commit names
object_of() {
    object_get "$1" "$(commit_key "$2")" commit.json
    json 'o["objects"][0]["key"]' <commit.json
    rm commit.json
}

# ---- streams ----

# new_stream URL VERSION: versions 0 to VERSION out of run/, which small_run made
new_stream() {
    deltawire publish "$1" run/base --quiet >/dev/null
    for i in $(seq "$2"); do
        publish_step "$1" "$i"
    done
}

publish_step() { # URL STEP [OPTION...]
    deltawire publish "$1" "run/$(printf 'step_%06d' "$2")" --step "$2" --quiet "${@:3}" \
        >/dev/null
}

# state_at STEP: of the checkpoint in run/; kept until its files change
state_at() {
    local ckpt=run/base kept
    [ "$1" -eq 0 ] || ckpt=$(printf 'run/step_%06d' "$1")
    kept=$scratch/out.state-$(stat -c %i-%.9Y-%s "$ckpt"/*.safetensors | tr '\n' -)
    [ -s "$kept" ] || state_of "$ckpt" >"$kept"
    cat "$kept"
}

# is_at DIR VERSION: the directory is what was published as that version
is_at() {
    deltawire verify "$1" --json >out.verify
    [ "$(json 'o["state"] + " " + str(o["version"])' <out.verify)" = "$(state_at "$2") $2" ] ||
        die "$1 is not step $2: $(cat out.verify)"
}

# head_is VERSION [URL]: the newest version of $url, or of URL
head_is() {
    deltawire status "${2:-$url}" --json | holds "o['head'] == $1"
}

# stands_at DIR VERSION: the directory says so
stands_at() {
    [ "$(json 'o["version"]' <"$1/.deltawire/state.json")" = "$2" ]
}

files_of() { # DIR
    find "$1" -type f -print0 | sort -z | xargs -0r sha256sum
}

# keeps DIR COMMAND...: the command must not change the directory's files
keeps() {
    local dir=$1 before status=0
    before=$(files_of "$dir")
    shift
    "$@" || status=$?
    [ "$before" = "$(files_of "$dir")" ] ||
        die "$dir changed: $(diff <(echo "$before") <(files_of "$dir"))"
    return $status
}

# start NAME VERB...: runs it in the background, output in out.NAME and err.NAME, its id
# in $!
start() {
    env --default-signal=INT "$deltawire" "${@:2}" >"out.$1" 2>"err.$1" &
}

# set_weight DIR TENSOR BITS: sets the last element of a bf16 tensor
set_weight() {
    python3 - "$1/model.safetensors" "$2" "$3" <<'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    end = json.loads(f.read(n))[sys.argv[2]]["data_offsets"][1]
    f.seek(8 + n + end - 2)
    f.write(struct.pack("<H", int(sys.argv[3], 16)))
END
}

# ends ID CODE: the background process ends with that exit code
ends() {
    local status=0
    wait "$1" || status=$?
    [ $status -eq "$2" ] || die "exit code $status, not $2"
}
