#!/usr/bin/env bash
# Refusals name the next step, and that step makes the stream usable again.
. "$(dirname "$0")/stream_lib.sh"
is_file_store || exit 77 # its files are damaged
small_run 4
url=$store/run
root=${url#file://}

# again VERSION: makes a new stream with so many versions and its own baseline
again() {
    chmod -R u+w "$root" 2>/dev/null || true
    rm -rf "$root" baseline fresh model
    deltawire publish "$url" run/base --baseline baseline --quiet >/dev/null
    for i in $(seq "$1"); do publish_step "$url" "$i" --baseline baseline "${@:2}"; done
}
# goes_on BASELINE STEP: the stream takes a version, and a new follower reaches it
goes_on() {
    publish_step "$url" "$2" --baseline "$1"
    rm -rf model
    deltawire pull "$url" --into model --quiet >/dev/null
    same_weights model "$(printf 'run/step_%06d' "$2")"
}

it "the only version lost its object: repair restarts the stream"
again 0
object_remove "$url" "$(object_of "$url" 0)"
fails 6 'version 0 cannot be rebuilt: .*there is no such object.*deltawire repair .* CHECKPOINT' \
    deltawire publish "$url" run/step_000001 --baseline fresh
fails 6 'there is no such object' deltawire pull "$url" --into model
grep -q '^try: deltawire verify' err.last
fails 6 'found: the list is on stdout' deltawire verify "$url"
grep -q 'if there is no copy, .*deltawire repair URL CHECKPOINT' out.last
deltawire repair "$url" run/step_000001 --quiet >/dev/null
goes_on fresh 2

it "a collected stream lost its anchor: repair restarts it"
for kind in objects ways; do
    again 3 --anchor-every 2
    deltawire gc "$url" --keep 1 --quiet >/dev/null
    find "$root/$kind" -name '*-anchor*' -delete
    fails 6 'version 3 cannot be rebuilt: .*deltawire repair .* CHECKPOINT' \
        deltawire publish "$url" run/step_000004 --baseline fresh
    fails 6 'there is no such object' deltawire pull "$url" --into model
    grep -q '^try: deltawire verify' err.last
    deltawire repair "$url" run/step_000003 --quiet >/dev/null
    goes_on fresh 4
done

it "the newest commit is damaged: it is restored, or removed with latest.json"
again 2
deltawire cp "$url" "$store/mirror" --quiet >/dev/null
newest=$root/$(commit_key 2)
chmod u+w "$newest"
sed -i 's/"version":2/"version":5/' "$newest"
for verb in "publish URL run/step_000003 --baseline baseline" "repair URL run/step_000003" \
    "pull URL --into model" "status URL" "gc URL --keep 1"; do
    # shellcheck disable=SC2086
    fails 3 'the newest commit.*deltawire cp.*remove it and latest.json' \
        deltawire ${verb/URL/$url}
done
rm -f "$newest"
deltawire cp "$store/mirror" "$url" --quiet >/dev/null
goes_on baseline 3
again 2
rm -f "$newest" "$root/latest.json"
fails 11 'start again with an empty directory' \
    deltawire publish "$url" run/step_000003 --baseline baseline
goes_on fresh 3

it "the newest commit is lost: pull, log and follow warn, gc refuses"
again 3 --anchor-every 2
object_get "$url" "$(commit_key 3)" kept.json
object_remove "$url" "$(commit_key 3)"
object_list "$url" "" >before.txt
deltawire pull "$url" --into model >/dev/null 2>err.pull
grep -q 'warning: .*latest.json says that version 3 was committed' err.pull
is_at model 2
deltawire log "$url" >/dev/null 2>err.log
grep -q 'warning: .*latest.json says that version 3 was committed' err.log
for verb in log "pull --into model"; do
    deltawire $verb "$url" --json >out.json 2>err.json
    holds 'o["warnings"][0]["code"] == "corrupt"' <out.json
    holds '"latest.json says that version 3 was" in o["warnings"][0]["text"]' <out.json
    [ ! -s err.json ]
done
deltawire log "$url" --json | holds 'o["head"] == 2'
deltawire follow "$url" --into fresh --until 2 --no-report --json >out.json 2>err.json
grep '"event":"warning"' out.json >out.warning
holds 'o["where"].endswith("3.json") and "latest.json says" in o["text"]' <out.warning
[ ! -s err.json ]
rm -rf fresh
deltawire follow "$url" --into fresh --until 2 --no-report >/dev/null 2>err.follow
[ "$(grep -c 'latest.json says that version 3 was committed' err.follow)" -eq 1 ]
fails 3 'latest.json says that version 3 was committed' deltawire gc "$url" --keep 1
object_list "$url" "" >after.txt
cmp before.txt after.txt
object_put "$url" "$(commit_key 3)" kept.json
deltawire pull "$url" --into model >/dev/null 2>err.pull
[ ! -s err.pull ]
deltawire pull "$url" --into model --json | holds '"warnings" not in o'
is_at model 3
deltawire gc "$url" --keep 1 --quiet >/dev/null

it "gc also believes anchors and folds, and warns about followers"
again 2 --anchor-every 2
deltawire follow "$url" --into model --until 2 --id node --quiet >/dev/null
object_remove "$url" latest.json
object_get "$url" "$(commit_key 2)" kept.json
object_remove "$url" "$(commit_key 2)"
fails 3 'ways/.*-anchor.json says that version 2 was committed' deltawire gc "$url" --keep 1
find "$root/ways" -name '*2-*' -delete
deltawire gc "$url" --keep 1 >/dev/null 2>err.gc
grep -q 'warning: followers/node.json: it names version 2, which has no commit' err.gc
deltawire gc "$url" --keep 1 --json | holds 'o["warnings"][0]["where"] == "followers/node.json"'
object_put "$url" "$(commit_key 2)" kept.json
deltawire pull "$url" --into again --quiet >/dev/null # nothing of it was removed
is_at again 2
rm -rf again
object_remove "$url" "$(commit_key 2)"
deltawire gc "$url" --forget node --quiet >/dev/null
deltawire gc "$url" --keep 1 >/dev/null 2>err.gc
[ ! -s err.gc ]

it "stream.json is lost: the cached copy stays, and nothing is announced"
rm -rf "$root" cache
deltawire publish "$url" run/base --quiet >/dev/null
publish_step "$url" 1
object_get "$url" stream.json kept.json
object_remove "$url" stream.json
fails 3 'stream.json is missing, but commits/' deltawire publish "$url" run/step_000002
grep -q 'begins a new' err.last && die "it says that a new stream begins"
[ "$(deltawire cache --json | json 'len(o["copies"])')" -eq 1 ]
object_put "$url" stream.json kept.json
publish_step "$url" 2

it "a first publish that failed leaves a baseline that can be made again"
for baseline in "--baseline fresh" ""; do
    rm -rf "$root" cache fresh
    mkdir -p "$root" cache fresh
    touch "$root/commits" # no commit can be written
    # shellcheck disable=SC2086
    fails 7 'commits/' deltawire publish "$url" run/base $baseline
    weights=$(find cache fresh -name model.safetensors)
    rm "$root/commits"
    truncate -s 1000 "$weights"
    # shellcheck disable=SC2086
    deltawire publish "$url" run/base $baseline --quiet >/dev/null
    rm -rf model
    deltawire pull "$url" --into model --quiet >/dev/null
    same_weights model run/base
done

it "a directory in use: the message names the process"
start follow follow "$url" --into kept --no-report
follower=$!
wait_until grep -q '^version 0' out.follow
fails 8 "another process ($follower) keeps this directory up to date. Stop it, or name another" \
    deltawire pull "$url" --into kept
kill "$follower"
ends "$follower" 0
deltawire pull "$url" --into kept --quiet >/dev/null
