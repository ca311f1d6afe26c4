#!/usr/bin/env bash
# Lost records of a stream: a publisher goes on without them, or refuses.
. "$(dirname "$0")/stream_lib.sh"
small_run 4
url=$store/run
new_stream "$url" 2

it "an epoch whose record is lost stays taken"
mkdir kept
for key in $(object_list "$url" epochs/); do
    object_get "$url" "$key" "kept/$(basename "$key")"
    object_remove "$url" "$key"
done
publish_step "$url" 3
publish_step "$url" 4
fails 6 'found: the list is on stdout' deltawire verify "$url"
grep -q '^fault: .*whose record is missing' out.last
for file in kept/*; do
    [ "$(object_list "$url" epochs/ | grep -c "^epochs/$(basename "$file")$")" -eq 0 ]
    object_put "$url" "epochs/$(basename "$file")" "$file"
done
deltawire verify "$url" --quiet >/dev/null
deltawire pull "$url" --into model --quiet >/dev/null
same_weights model run/step_000004

it "makes no new stream over the commits of one that lost its stream.json"
object_get "$url" stream.json kept.json
object_remove "$url" stream.json
object_list "$url" "" >before.txt
fails 3 'stream.json is missing, but commits/.* Restore stream.json from a copy of the stream' \
    deltawire publish "$url" run/step_000003 --baseline fresh
for key in $(object_list "$url" commits/); do
    object_get "$url" "$key" "$(basename "$key").kept"
    object_remove "$url" "$key"
done
fails 3 'stream.json is missing, but epochs/' \
    deltawire publish "$url" run/step_000003 --baseline fresh
for file in *.json.kept; do object_put "$url" "commits/${file%.kept}" "$file"; done
object_list "$url" "" >after.txt
cmp before.txt after.txt

it "goes on when stream.json is back"
object_put "$url" stream.json kept.json
deltawire publish "$url" run/step_000003 --baseline fresh --quiet >/dev/null
deltawire verify "$url" --quiet >/dev/null
deltawire pull "$url" --into model --quiet >/dev/null
same_weights model run/step_000003
