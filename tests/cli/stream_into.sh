#!/usr/bin/env bash
# pull and follow make the directory that --into names, and those above it.
. "$(dirname "$0")/stream_lib.sh"
small_run 1
url=$store/run
new_stream "$url" 1

it "pull makes the directories"
deltawire pull "$url" --into a/b/c --quiet >/dev/null
is_at a/b/c 1

it "follow makes the directories"
deltawire follow "$url" --into d/e/f/ --until 1 --no-report --quiet >/dev/null
is_at d/e/f 1

it "makes none if there is no stream"
fails 6 "no stream" deltawire pull "$store/nothing" --into g/h
[ ! -e g ] || die "a directory was made"

it "fails at once if a part of the path is a file"
echo text >file
for verb in pull follow; do
    fails 6 "file/model: cannot make the directory: a part of its path is there, but is no" \
        timeout 60 "$deltawire" $verb "$url" --into file/model
    fails 6 "file: cannot make the directory: a part of its path is there, but is no" \
        timeout 60 "$deltawire" $verb "$url" --into file
done
[ "$(cat file)" = text ]

it "fails at once if a directory cannot be made"
if [ "$(id -u)" -ne 0 ]; then
    mkdir locked
    chmod a-w locked
    fails 6 "locked/x/y: cannot make the directory" \
        timeout 60 "$deltawire" follow "$url" --into locked/x/y
else
    fails 6 "/proc/x/y: cannot make the directory" \
        timeout 60 "$deltawire" follow "$url" --into /proc/x/y
fi
