#!/usr/bin/env bash
# Verbs on a long stream: they read only as many records as they show.
. "$(dirname "$0")/stream_lib.sh"

counter=$(dirname "$deltawire")/tests/libcount_reads.so
maker=$(dirname "$deltawire")/tests/long_stream
if ! is_file_store || [ ! -e "$counter" ] || grep -q __asan_init "$deltawire" ||
    grep -q __tsan_init "$deltawire"; then
    echo "needs a store in a directory, and a program that libraries can be preloaded to"
    exit 77
fi
url=$store/long
n=300
mkdir -p "${url#file://}"
"$maker" "$url" $n

# reads MOST COMMAND...: the command succeeds, and opens at most MOST records
reads() {
    local most=$1 found
    shift
    env LD_PRELOAD="$counter" COUNT_FILE="$scratch/count" "$deltawire" "$@" >out.txt
    found=$(cat "$scratch/count")
    [ "$found" -le "$most" ] || die "$*: $found records, not at most $most"
}

it "log reads the versions that it shows"
reads 15 log "$url" -n 5
[ "$(awk 'NR > 1 {print $1}' out.txt | xargs)" = '300 299 298 297 296' ]
reads 100 log "$url" -n 50

it "status reads the newest versions"
reads 100 status "$url" --json
holds 'o["head"] == 300 and o["anchor"] == 151 and o["catch_up_bytes"] > 0' <out.txt

it "pull reads what it fetches"
reads 60 pull "$url" --into model --quiet
reads 30 pull "$url" --into model --quiet

it "gc reads what it relies on"
reads 40 gc "$url" --keep 300 --json
holds 'o["objects"] == 0' <out.txt
reads 50 gc "$url" --keep 100 --json
holds 'o["floor"] == 151 and o["objects"] > 151' <out.txt

it "also without the hint"
object_remove "$url" latest.json
reads 15 log "$url" -n 5
reads 110 status "$url"
reads 60 pull "$url" --into other --quiet
reads 40 gc "$url" --keep 100
cmp model/model.safetensors other/model.safetensors

it "everything that is left is intact"
deltawire verify "$url" --json | holds 'o["faults"] == []'

it "status notices a hole far below the head if a follower waits at it"
far=$store/far
mkdir -p "${far#file://}"
"$maker" "$far" 3
deltawire follow "$far" --into slow --id slow-one --until 3 --quiet
"$maker" "$far" 1010
deltawire status "$far" --quiet >/dev/null
object_remove "$far" "$(commit_key 4)"
fails 3 'version 4 is missing' deltawire status "$far"
fails 3 'version 4 is missing' deltawire pull "$far" --into slow
fails 3 '1 fault was found' deltawire verify "$far" --no-decode
