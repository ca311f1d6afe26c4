#!/usr/bin/env bash
# A stream that deltawire 0.1 broke: weights changed while version 3 was published, and
# it does not decode. `publish` and `repair` let it continue, and all followers cross
# over.
. "$(dirname "$0")/stream_lib.sh"
is_file_store || exit 77 # the stream is copied into the store
url=$store/run
mkdir -p "${store#file://}"

fresh() {
    chmod -R u+w "${url#file://}" 2>/dev/null || true
    rm -rf "${url#file://}" cache
    cp -r "$tests/golden/torn_stream" "${url#file://}"
}
holds_version() { # DIR VERSION
    deltawire verify "$1" --json 2>/dev/null | holds "o['version'] == $2" 2>/dev/null
}

it "verify names the first version that does not decode"
fresh
fails 3 'found: the list is on stdout' deltawire verify "$url"
grep -q '^fault: .*version 3 cannot be rebuilt.*deltawire repair' out.last
deltawire verify "$url" --no-decode >/dev/null

it "publish restarts the stream by itself, and reports that"
deltawire pull "$url" --into at2 --at 2 --quiet >/dev/null
cp -r at2 behind
deltawire publish "$url" at2 --json >out.publish
holds 'o["version"] == 4 and o["restart"] and o["suspect_from"] == 3' <out.publish
deltawire verify "$url" >/dev/null
deltawire status "$url" --json | holds 'o["suspect"] == {"from": 3, "repaired": 4}'
deltawire pull "$url" --into behind --quiet >/dev/null
same_weights behind at2
deltawire publish "$url" at2 --json >out.publish # and goes on as before
holds 'o["version"] == 5 and "restart" not in o and "suspect_from" not in o' <out.publish
fresh
deltawire publish "$url" at2 >out.publish 2>err.publish
grep -q '^  version  *4, a restart$' out.publish
grep -q 'version 3 could not be decoded, so version 4 restarts the stream' err.publish

it "publish names an object that is missing, and the command that helps"
fresh
object_remove "$url" "$(object_of "$url" 3)"
fails 6 'version 3 cannot be rebuilt.*deltawire repair' deltawire publish "$url" at2 --quiet
head_is 3
fresh

it "continues from a checkpoint"
deltawire pull "$url" --into at1 --at 1 --quiet >/dev/null
mkdir new
cp at1/model.safetensors new/
start following follow "$url" --into followed --interval 0.2
following=$!
wait_until holds_version followed 2
deltawire repair "$url" new --step 7 --json >out.repair
holds 'o["version"] == 4 and o["source"] is None' <out.repair
deltawire log "$url" --json >out.log
holds 'o["versions"][0]["restart"] and o["versions"][0]["step"] == "7"' <out.log

it "followers cross over by themselves, from wherever they stand"
wait_until holds_version followed 4
deltawire pull "$url" --into at1 --quiet >/dev/null
deltawire pull "$url" --into at2 --quiet >/dev/null
deltawire pull "$url" --into empty --quiet >/dev/null
for dir in at1 at2 empty followed; do
    same_weights "$dir" new
done
object_remove "$url" latest.json # and without the hint
deltawire pull "$url" --into at2b --at 2 --quiet >/dev/null
deltawire pull "$url" --into at2b --quiet >/dev/null
same_weights at2b new

it "publish goes on"
deltawire pull "$url" --into at0 --at 0 --quiet >/dev/null
rm -rf newer && mkdir newer && cp at0/model.safetensors newer/
deltawire publish "$url" newer --json >/dev/null
head_is 5
wait_until holds_version followed 5
same_weights followed newer
kill -TERM $following
ends $following 0

it "verify passes: versions below the restart are no faults"
deltawire verify "$url" --json >out.verify
holds 'o["faults"] == [] and o["left_behind"] == 1 and o["decoded"] == 5' <out.verify

it "is copied, mirrored, compacted and collected like any other stream"
deltawire cp "$url" "$store/copy" --quiet >/dev/null
deltawire verify "$store/copy" >/dev/null
deltawire mirror "$url" "$store/slime" --as slime --once --quiet >/dev/null
deltawire mirror "$store/slime" "$store/back" --once --quiet >/dev/null
deltawire pull "$store/back" --into mirrored --quiet >/dev/null
same_weights mirrored newer
deltawire compact "$url" --fold 2 --quiet >/dev/null
deltawire pull "$url" --into compacted --at 1 --quiet >/dev/null
deltawire pull "$url" --into compacted --quiet >/dev/null
same_weights compacted newer
deltawire gc "$url" --keep 1 --quiet >/dev/null
deltawire verify "$url" --json >out.verify
holds 'o["faults"] == [] and o["first_decoded"] == 5' <out.verify # gc made the anchor there
rm -rf empty
deltawire pull "$url" --into empty --quiet >/dev/null
same_weights empty newer

it "continues from the newest version that can be rebuilt, without a checkpoint"
fresh
deltawire repair "$url" --json >out.repair
holds 'o["version"] == 4 and o["source"] == 2' <out.repair
deltawire verify "$url" >/dev/null

it "refuses to repair an intact stream"
fails 2 'nothing to repair: version 4' deltawire repair "$url"
head_is 4

it "an interrupted repair is run again"
fresh
deltawire repair "$url" >/dev/null
object_remove "$url" ways/00000000000000000004-anchor.json
object_remove "$url" latest.json
fails 6 'found: the list is on stdout' deltawire verify "$url"
grep -q '^fault: .*version 4 restarts the stream, and the record of its anchor' out.last
grep -q '^  orphans ' out.last
deltawire repair "$url" --json >out.repair
holds 'o["version"] == 5 and o["source"] == 2' <out.repair
deltawire verify "$url" --json >out.verify
holds 'o["faults"] == [] and o["left_behind_faults"] == 1' <out.verify
deltawire pull "$url" --into crossed --quiet >/dev/null
holds_version crossed 5

it "reports it if no version can be rebuilt"
fresh
object_remove "$url" "$(object_of "$url" 0)"
fails 6 'no version .* can be rebuilt: .*objects/.*deltawire repair .* CHECKPOINT' \
    deltawire repair "$url"
deltawire repair "$url" new --quiet >/dev/null
deltawire pull "$url" --into other --quiet >/dev/null
same_weights other new

it "damage that a restart left behind is no fault"
deltawire verify "$url" --json >out.verify
holds 'o["faults"] == [] and o["left_behind_faults"] == 1 and o["decoded"] == 1' <out.verify
prints 'no fault  *1 damaged or missing' deltawire verify "$url"
object_get "$url" "$(object_of "$url" 1)" object
printf 'x' | dd of=object bs=1 seek=100 conv=notrunc status=none
object_put "$url" "$(object_of "$url" 1)" object
deltawire verify "$url" --json >out.verify
holds 'o["faults"] == [] and o["left_behind_faults"] == 2' <out.verify

it "a hole in the log is named to followers that start from nothing"
small_run 6
url=$store/hole
new_stream "$url" 3
rm -rf at1
deltawire pull "$url" --into at1 --at 1 --quiet >/dev/null
object_remove "$url" "$(commit_key 2)"
fails 3 'version 2 is missing, but version 3 .* hole' deltawire pull "$url" --into part
start hole follow "$url" --into followed2 --interval 0.2 --no-report
hole=$!
wait_until grep -q 'version 2 is missing' err.hole

it "repair leaves it behind"
fails 3 'version 2 is missing.*deltawire repair .* CHECKPOINT' \
    deltawire publish "$url" run/step_000004 --baseline low
deltawire repair "$url" run/step_000004 --quiet >/dev/null
publish_step "$url" 5 --baseline low # it is at version 1, below the gap
publish_step "$url" 6 --baseline low
publish_step "$url" 5 --baseline empty.b
publish_step "$url" 6
head_is 8
wait_until holds_version followed2 8
kill -INT $hole
ends $hole 0
for dir in at1 part at_nothing; do
    deltawire pull "$url" --into "$dir" --quiet >/dev/null
    same_weights "$dir" run/step_000006
done
deltawire log "$url" --json >out.log
holds '[v["version"] for v in o["versions"]] == [8, 7, 6, 5, 4, 3, 1, 0]' <out.log
prints '^ *2  missing' deltawire log "$url"

it "a hole above the restart is an error as before"
object_get "$url" "$(commit_key 6)" kept.json
object_remove "$url" "$(commit_key 6)"
fails 3 'version 6 is missing' deltawire status "$url"
fails 3 'version 6 is missing' deltawire log "$url"
deltawire verify "$url" >out.verify 2>/dev/null || [ $? -eq 3 ]
grep -q '^  decoded  *nothing: repair the faults' out.verify
object_put "$url" "$(commit_key 6)" kept.json
head_is 8
deltawire verify "$url" --json >out.verify
holds 'o["faults"] == [] and o["left_behind_faults"] == 1 and o["decoded"] == 7' <out.verify

it "a damaged anchor whose version has a good delta: verify reports what can be rebuilt"
deltawire compact "$url" --anchor --quiet >/dev/null
object_get "$url" "ways/$(basename "$(commit_key 8)" .json)-anchor.json" way.json
object=$(json 'o["objects"][0]["key"]' <way.json)
object_get "$url" "$object" object
printf 'x' | dd of=object bs=1 seek=5000 conv=notrunc status=none
object_put "$url" "$object" object
fails 3 'found: the list is on stdout' deltawire verify "$url"
grep -q '^fault: .*Version 8: .*its delta from version 7 is good' out.last
deltawire pull "$url" --into around --quiet >/dev/null
same_weights around run/step_000006
