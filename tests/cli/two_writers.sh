#!/usr/bin/env bash
# labels: slow
# Two writers of one stream. The second one reads the head, and before it claims the
# stream the first one goes on: what the second does must follow from the newer head.
. "$(dirname "$0")/stream_lib.sh"

pauser=$(dirname "$deltawire")/tests/libpause_link.so
if ! is_file_store || [ ! -e "$pauser" ] || grep -q __asan_init "$deltawire" ||
    grep -q __tsan_init "$deltawire"; then
    echo "needs a store in a directory, and a program that libraries can be preloaded to"
    exit 77
fi
small_run 6
ours=$store/ours
new_stream "$ours" 3

# begin URL VERB...: runs it in the background until it is about to claim the stream at URL
begin() {
    rm -f gate.*
    LD_PRELOAD=$pauser PAUSE_AT=${1#file://}/epochs/ PAUSE_GATE=$scratch/gate \
        "$deltawire" "${@:2}" >out.begun 2>err.begun &
    begun=$!
    wait_until test -e gate.reached
}
# goes_on CODE: lets it claim the stream, and end with that code
goes_on() {
    local status=0
    touch gate.open
    wait $begun || status=$?
    [ $status -eq "$1" ] || die "exit code $status, not $1: $(cat out.begun err.begun)"
}
quantize=(--quantize fp8-block --once)
mirror() { # TO NAME OPTION...
    deltawire mirror "$ours" "$1" --work "work/$2" "${@:3}"
}
# sources URL: the source versions of all versions, oldest first
sources() {
    deltawire log "$1" -n 0 --json |
        json '" ".join(str(v["source"]["version"]) for v in reversed(o["versions"]))'
}

it "a mirror does not go back behind another one"
to=$store/fp8
begin "$to" mirror "$ours" "$to" --work work/a "${quantize[@]}" --json
mirror "$to" b "${quantize[@]}" --quiet # versions 0 to 3
goes_on 0
[ "$(sources "$to")" = "0 1 2 3" ] || die "$(sources "$to")"
tail -n 1 out.begun | holds 'o["version"] == 3 and o["versions"] == 0'
for i in 4 5; do publish_step "$ours" $i; done
begin "$to" mirror "$ours" "$to" --work work/a "${quantize[@]}" --json
mirror "$to" b "${quantize[@]}" --until 4 --quiet
goes_on 0
[ "$(sources "$to")" = "0 1 2 3 4 5" ] || die "$(sources "$to")"
tail -n 1 out.begun | holds 'o["version"] == 5 and o["versions"] == 1'
deltawire verify "$to" --quiet >/dev/null

it "a mirror that proves the newest version proves the newest"
begin "$to" mirror "$ours" "$to" --work work/a "${quantize[@]}"
publish_step "$ours" 6
mirror "$to" b "${quantize[@]}" --quiet
goes_on 0
[ "$(sources "$to")" = "0 1 2 3 4 5 6" ] || die "$(sources "$to")"

it "a mirror that another one has replaced says so"
to=$store/replaced
LD_PRELOAD=$pauser PAUSE_AT=${to#file://}/$(commit_key 2) PAUSE_GATE=$scratch/gate2 \
    "$deltawire" mirror "$ours" "$to" --work work/c "${quantize[@]}" >out.begun 2>err.begun &
begun=$!
wait_until test -e gate2.reached
mirror "$to" d "${quantize[@]}" --quiet --take-over
touch gate2.open
status=0
wait $begun || status=$?
[ $status -eq 8 ] || die "exit code $status: $(cat err.begun)"
grep -q 'another writer.* took over the stream' err.begun
[ "$(sources "$to")" = "0 1 2 3 4 5 6" ] || die "$(sources "$to")"

it "mirrors of another system's versions keep their order too"
trl=$store/trl to=$store/of-trl
mirror "$trl" trl --as trl --once --quiet
begin "$to" mirror "$trl" "$to" --work work/e --once
deltawire mirror "$trl" "$to" --work work/f --once --quiet
goes_on 0
deltawire log "$to" -n 0 --json |
    holds '[v["step"] for v in o["versions"]] == [str(i) for i in range(6, -1, -1)]'

it "two first publishes make two versions"
to=$store/first
begin "$to" publish "$to" run/step_000001 --baseline "$scratch/first.a" --json
deltawire publish "$to" run/base --baseline "$scratch/first.b" --quiet >/dev/null
goes_on 0
holds 'o["version"] == 1 and not o["created"]' <out.begun
deltawire pull "$to" --into first --quiet >/dev/null
is_at first 1

it "a repair follows on what was published meanwhile"
to=$store/broken
new_stream "$to" 2
object_remove "$to" "$(object_of "$to" 2)" # only the publisher's baseline has version 2
begin "$to" repair "$to" --json
publish_step "$to" 3 --anchor-every 1000
goes_on 0
holds 'o["version"] == 4 and o["source"] == 1' <out.begun
deltawire pull "$to" --into repaired --quiet >/dev/null
same_weights repaired run/step_000001
begin "$to" publish "$to" run/step_000005 --baseline "$scratch/broken.b" --quiet
deltawire repair "$to" run/step_000004 --quiet >/dev/null
goes_on 0
deltawire pull "$to" --into repaired --quiet >/dev/null
same_weights repaired run/step_000005
deltawire status "$to" --json | holds 'o["head"] == 6'

it "mirrors at random instants neither lose, repeat nor reorder versions"
for round in $(seq 6); do
    to=$store/random-$round
    for name in a b c; do
        start "$name" mirror "$ours" "$to" --work "work/random-$round-$name" \
            "${quantize[@]}" --take-over
        pids+=($!)
        sleep "0.0$((RANDOM % 10))"
    done
    for id in "${pids[@]}"; do
        status=0
        wait "$id" || status=$?
        case $status in
        0 | 8) ;;
        *) die "exit code $status: $(cat err.a err.b err.c)" ;;
        esac
    done
    pids=()
    ! grep -q 'other options' err.a err.b err.c || die "$(cat err.a err.b err.c)"
    mirror "$to" "random-$round-a" "${quantize[@]}" --quiet
    [ "$(sources "$to")" = "0 1 2 3 4 5 6" ] || die "$(sources "$to")"
done
