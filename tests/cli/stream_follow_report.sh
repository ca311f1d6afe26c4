#!/usr/bin/env bash
# A follower that cannot report its version logs that once, and goes on.
. "$(dirname "$0")/stream_lib.sh"
is_file_store || exit 77 # a file replaces the directory of the reports
small_run 3
url=$store/run
new_stream "$url" 1
place=${url#file://}/followers
rm -rf "$place"
touch "$place"

says() { # N PATTERN FILE: so many lines
    [ "$(grep -c -e "$2" "$3")" -eq "$1" ]
}

it "logs it once, with the reason and the next step"
start one follow "$url" --into model --interval 0.2 --id one
one=$!
wait_until says 1 'followers' err.one
wait_until stands_at model 1
grep -q 'deltawire status.* does not show the version of this follower.*--no-report' err.one

it "goes on, and does not log it again"
publish_step "$url" 2
wait_until stands_at model 2
sleep 5.5 # the next report is due
publish_step "$url" 3
wait_until stands_at model 3
says 1 'does not show' err.one

it "logs that reports work again"
rm "$place"
kill -TERM $one
ends $one 0
says 1 'shows this follower again' err.one
deltawire status "$url" --json | holds 'o["followers"][0]["status"] == "stopped"'

it "reports both in JSON"
rm -r "$place"
touch "$place"
deltawire follow "$url" --into model --until 3 --id one --json >out.json
says 1 '"event":"report_failed","code":"' out.json

it "reports nothing with --no-report"
deltawire follow "$url" --into model --until 3 --no-report -q >out 2>err
[ ! -s out ] && [ ! -s err ]
