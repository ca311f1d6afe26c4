#!/usr/bin/env bash
# Weights that other processes map: two copies, weights that are kept elsewhere, a reader
# that sees new versions without a reload.
. "$(dirname "$0")/stream_lib.sh"
small_run 5
url=$store/run
new_stream "$url" 2
reader=$(dirname "$deltawire")/examples/snapshot_reader

it "keeps two copies and a link to the one to read"
mkdir two
echo '{"layers": 1}' >two/config.json
deltawire pull "$url" --into two --copies 2 --at 1 --quiet >/dev/null
is_at two/current 1
is_at two/copy-0 1
is_at two/copy-1 1
before=$(readlink two/current)
cmp two/config.json two/current/config.json
deltawire pull "$url" --into two --copies 2 --quiet >/dev/null
is_at two/current 2
is_at two/copy-0 2
is_at two/copy-1 2
[ "$(readlink two/current)" != "$before" ]

it "verifies both copies"
deltawire verify two --json >found.json
holds 'o["version"] == o["other_version"] == 2' <found.json
deltawire verify two >found.txt
grep -q '^  *other copy  *holds version 2$' found.txt
for copy in copy-0 copy-1; do # the one to read, and the other
    file=two/$copy/model.safetensors
    flip_bit $file $(($(stat -c %s $file) - 3))
    fails 3 "two/$copy" deltawire verify two
    flip_bit $file $(($(stat -c %s $file) - 3))
done
deltawire verify two --quiet >/dev/null
mv two/copy-0 gone
fails 6 copy-0 deltawire verify two
mv gone two/copy-0

it "refuses a directory with another number of copies"
keeps two fails 8 "holds two copies" deltawire pull "$url" --into two
deltawire pull "$url" --into one --quiet >/dev/null
keeps one fails 8 "holds one copy" deltawire pull "$url" --into one --copies 2
fails 2 "copies: 1 or 2" deltawire pull "$url" --into one --copies 3
fails 2 "reader-wait" deltawire pull "$url" --into one --reader-wait never

it "keeps the weights elsewhere"
mkdir kept
deltawire pull "$url" --into linked --weights-dir kept --at 1 --quiet >/dev/null
[ -L linked/model.safetensors ]
is_at linked 1
deltawire pull "$url" --into linked --weights-dir kept --quiet >/dev/null
is_at linked 2
[ "$(find kept -type f | wc -l)" -eq 1 ]
rm kept/* # like a reboot with tmpfs
deltawire pull "$url" --into linked --weights-dir kept --quiet >/dev/null
is_at linked 2
fails 6 nowhere deltawire pull "$url" --into other --weights-dir nowhere

it "can be read while it is followed"
reads() { # VERSION FILE
    grep -q "version $1, state $(state_at "$1")," <<<"$(tail -n 1 "$2")"
}
for dir in one two; do
    copies=$([ $dir = one ] && echo 1 || echo 2)
    deltawire follow "$url" --into $dir --copies "$copies" --interval 0.1 --until 5 --quiet &
    followers+=($!)
    "$reader" $dir >out.$dir &
    readers+=($!)
done
wait_until reads 2 out.one
wait_until reads 2 out.two
for i in 3 4 5; do
    publish_step "$url" $i
    wait_until reads $i out.one
    wait_until reads $i out.two
done
wait "${followers[@]}"
kill "${readers[@]}"
for dir in one two/current; do is_at $dir 5; done

it "reports to a reader that there is nothing to read"
if "$reader" run 1 2>err.txt; then die "it read something"; fi
grep -q 'no follower keeps weights here' err.txt
