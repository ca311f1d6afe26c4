#!/usr/bin/env bash
# Says what works in a store, and what a publisher and a follower would do there.
. "$(dirname "$0")/stream_lib.sh"
small_run 1
url=$store/run

# checks EXPRESSION [OPTION...]: what `check --json` says of $url
checks() {
    deltawire check "$url" --size 300K --json "${@:2}" >out.check
    holds "$1" <out.check
}
# fails_with CODE URL [OPTION...]: neither could work there
fails_with() {
    local status=0
    deltawire check "${@:2}" --json >out.check || status=$?
    [ "$status" -eq "$1" ] || die "exit code $status, not $1"
    holds 'not o["publisher"]["ok"] and not o["follower"]["ok"]' <out.check
}
leaves_nothing() {
    [ -z "$(object_list "$url" probe/)" ] || die "left: $(object_list "$url" probe/)"
}
is_file_store && mkdir -p "${url#file://}"

it "where nothing is yet"
checks 'all(o[s]["ok"] for s in ("list", "read", "range", "write", "delete", "create_once"))'
holds 'o["upload"]["bytes"] == o["download"]["bytes"] and 65536 <= o["upload"]["bytes"] <= 300000' \
    <out.check
holds 'o["stream"] is None and o["head"] is None and o["left_over"] is None' <out.check
holds '"begin a new stream" in o["publisher"]["text"] and o["follower"]["ok"]' <out.check
holds 'abs(o["clock_offset_seconds"]) < 600 and o["round_trip_seconds"] >= 0' <out.check
is_file_store || holds 'o["keys"]["source"] == "the environment" and o["server"] != ""' <out.check
leaves_nothing

it "beside a stream, which stays as it is"
new_stream "$url" 1
before=$(object_list "$url" "")
checks 'o["head"] == 1 and len(o["stream"]) == 32'
holds '"after version 1" in o["publisher"]["text"]' <out.check
holds '"fetch version 1" in o["follower"]["text"]' <out.check
[ "$before" = "$(object_list "$url" "")" ]
deltawire verify "$url" --quiet >/dev/null
prints '^  create     once: of two writers at once one won$' deltawire check "$url"
leaves_nothing

it "ends with the publisher and the follower"
deltawire check "$url" >out.text
[ "$(tail -n 2 out.text | cut -d ' ' -f 3 | tr '\n' ' ')" = "publisher follower " ]

it "of a damaged stream, and of one that is not trusted"
deltawire keygen key --quiet >/dev/null
fails_with 11 "$url" --trust key.pub
deltawire cp "$url" "$store/damaged" --quiet >/dev/null
echo rubbish >rubbish
object_put "$store/damaged" stream.json rubbish
fails_with 3 "$store/damaged"

it "many at once do not disturb each other"
for i in 1 2 3; do
    start "many$i" check "$url" --size 100K --json
    ids[i]=$!
done
for i in 1 2 3; do
    ends "${ids[i]}" 0
    holds 'o["create_once"]["ok"]' <"out.many$i"
done
leaves_nothing

it "refuses a size that is too large"
fails 2 "at most 1 GiB" deltawire check "$url" --size 2000M

is_file_store || exit 0

it "makes no directory that is not there"
deltawire check missing/run --json |
    holds 'o["list"] is None and "make the directory" in o["publisher"]["text"]'
[ ! -e missing ]

it "a file in the place of the directory"
echo x >file
fails 2 "not a directory" deltawire check file

if [ "$(id -u)" -ne 0 ]; then
    as_other() { "$deltawire" "$@"; }
else # permissions do not stop root
    as_other() { setpriv --reuid=65534 --regid=65534 --clear-groups "$deltawire" "$@"; }
    chmod a+rx "$scratch"
fi
it "of a directory that may only be read"
chmod a-w,a+rX -R "${url#file://}"
as_other check "$url" --json >out.check
holds 'o["write"]["error"]["code"] == "denied" and o["range"]["ok"]' <out.check
holds '"may not write" in o["publisher"]["text"] and not o["publisher"]["ok"]' <out.check
holds '"--no-report" in o["follower"]["text"]' <out.check

it "of a directory that may not be read"
chmod a-r "${url#file://}"
[ "$(id -u)" -ne 0 ] || chown 65534 "${url#file://}"
status=0
as_other check "$url" --json >out.check || status=$?
[ "$status" -eq 10 ]
holds 'not o["follower"]["ok"]' <out.check
chmod -R u+rwX "${url#file://}"
