#!/usr/bin/env bash
. "$(dirname "$0")/stream_lib.sh"
small_run 8
url=$store/run
for i in 0 1 2 3 4 5 6; do
    if [ "$i" -eq 0 ]; then
        deltawire publish "$url" run/base --fold none --anchor-factor 0 --quiet >/dev/null
    else
        publish_step "$url" "$i" --fold none --anchor-factor 0
    fi
done

it "folds many deltas into one"
mkdir work
deltawire compact "$url" --fold 3 --anchor-factor 0 --work work --json >out.json
holds '[(m["from"], m["to"]) for m in o["made"]] == [(0, 3), (3, 6)]' <out.json
holds 'all(m["bytes"] > 0 for m in o["made"])' <out.json
[ -z "$(ls work)" ] || die "left in the work directory: $(ls -A work)"
deltawire pull "$url" --into model --at 3 --quiet >/dev/null
deltawire pull "$url" --into model --at 6 --json | holds 'o["steps"] == 1'
is_at model 6

it "makes nothing twice"
prints '^nothing is due$' deltawire compact "$url" --fold 3 --anchor-factor 0
deltawire verify "$url" --quiet >/dev/null

it "adds the whole model"
fails 2 "does not go with --watch" deltawire compact "$url" --anchor --watch
url=$store/anchored
deltawire publish "$url" run/base --anchor-factor 0 --quiet >/dev/null
for i in 1 2 3 4; do
    publish_step "$url" "$i" --anchor-factor 0
    [ "$i" -ne 2 ] || deltawire follow "$url" --into slow --id slow-one --until 2 --quiet
done
deltawire compact "$url" --anchor --json |
    holds '[(m["from"], m["to"]) for m in o["made"]] == [(None, 4)]'
for i in 5 6; do publish_step "$url" "$i" --anchor-factor 0; done
deltawire pull "$url" --into fresh --at 4 --json | holds 'o["steps"] == 1'
is_at fresh 4
deltawire status "$url" --json | holds 'o["anchor"] == 4'

it "goes on as versions come, is killed, and goes on"
watched=$store/watched
deltawire publish "$watched" run/base --anchor-factor 0 --quiet >/dev/null
start keeper compact "$watched" --watch --fold 2 --anchor-factor 0
keeper=$!
for i in 1 2; do publish_step "$watched" "$i" --anchor-factor 0; done
wait_until grep -q '^fold from version 0 to 2:' out.keeper
kill -KILL $keeper
wait $keeper 2>/dev/null || true
start keeper compact "$watched" --watch --fold 2 --anchor-factor 0 --json
keeper=$!
for i in 3 4; do publish_step "$watched" "$i" --anchor-factor 0; done
wait_until grep -q '"event": *"made"' out.keeper
kill -TERM $keeper
ends $keeper 0
deltawire verify "$watched" --json | holds 'o["faults"] == []'
deltawire pull "$watched" --into late --json | holds 'o["steps"] == 3'
same_weights late run/step_000004

it "a watch makes folds beside its publishes"
mkdir output
cp -r run/step_000001 output/checkpoint-1
start watch publish "$store/both" --watch output --fold 2 --anchor-factor 0
watch=$!
for i in 2 3 4 5; do
    wait_until grep -q "version $((i - 2))," out.watch
    cp -r "$(printf 'run/step_%06d' "$i")" "output/checkpoint-$i"
done
folded() { object_list "$store/both" ways/ | grep -- '-from-' >/dev/null; }
wait_until folded
wait_until grep -q 'version 4,' out.watch
kill -INT $watch
ends $watch 0
deltawire pull "$store/both" --into both --quiet
same_weights both run/step_000005

it "needs the number of versions to keep"
fails 2 "--keep N is missing" deltawire gc "$url"
fails 2 "at least 1" deltawire gc "$url" --keep 0

it "stores a version whole if none is, and drops those before it"
deltawire publish "$store/plain" run/base --anchor-factor 0 --quiet
for i in 1 2 3; do publish_step "$store/plain" "$i" --anchor-factor 0; done
deltawire gc "$store/plain" --keep 3 --json | holds \
    'o["floor"] == 0 and all(r["key"].startswith("receipts/") for r in o["removed"])'
prints "held by .*version 2 is not stored whole yet: without --dry-run" \
    deltawire gc "$store/plain" --keep 2 --dry-run
deltawire gc "$store/plain" --keep 2 --json | holds 'o["floor"] == 2 and o["objects"] == 3'
for v in 2 3; do
    deltawire pull "$store/plain" --into plain --at $v --quiet >/dev/null
    is_at plain $v
done
deltawire verify "$store/plain" --json | holds 'o["faults"] == []'

it "drops old versions by itself if the publisher is told how many stay"
fails 2 "anchor" deltawire publish "$store/few" run/base --keep 2 --anchor-factor 0
deltawire publish "$store/few" run/base --keep 2 --quiet
for i in 1 2 3 4 5 6; do publish_step "$store/few" "$i" --anchor-every 2 --keep 2; done
deltawire status "$store/few" --json | holds '2 <= o["floor"] <= 5'
[ "$(object_list "$store/few" ways/ | grep -c anchor)" -le 3 ]
rm -rf few
deltawire pull "$store/few" --into few --quiet >/dev/null
is_at few 6
fails 6 "version 0" deltawire pull "$store/few" --into few --at 0

it "keeps what a follower needs"
deltawire gc "$url" --keep 2 --json | holds 'o["floor"] <= 2 and "slow-one" in o["held_by"]'
prints 'forgot follower slow-one' deltawire gc "$url" --forget slow-one
deltawire status "$url" --json | holds 'o["followers"] == []'

it "reports what it would remove"
object_list "$url" "" >before.txt
deltawire gc "$url" --keep 2 --dry-run --json >out.json
holds 'o["dry_run"] and o["floor"] == 4 and o["objects"] == len(o["removed"]) > 0' <out.json
object_list "$url" "" | cmp - before.txt
deltawire gc "$url" --keep 2 --dry-run >out.txt
grep -q '^would remove objects/' out.txt

it "removes what nobody needs, and reports it"
deltawire gc "$url" --keep 2 >out.txt
grep -q '^removed objects/' out.txt
grep -q '^  floor      version 4, before 2$' out.txt
deltawire status "$url" --json | holds 'o["floor"] == 4'
[ "$(object_list "$url" objects/ | wc -l)" -lt "$(grep -c '^objects/' before.txt)" ]
deltawire verify "$url" --json | holds 'o["faults"] == []'

it "kept versions can still be reached"
for v in 4 5 6; do
    deltawire pull "$url" --into kept --at $v --quiet >/dev/null
    is_at kept $v
done

it "reports that older versions were collected"
fails 6 "version 2" deltawire pull "$url" --into gone --at 2
deltawire log "$url" --json | holds 'o["versions"][-1]["collected"] and not o["versions"][0]["collected"]'

it "brings a follower forward whose version is gone"
deltawire pull "$url" --into slow --quiet >/dev/null
is_at slow 6

it "versions can still be published"
publish_step "$url" 7
deltawire pull "$url" --into slow --quiet >/dev/null
is_at slow 7

it "keeps an older anchor if the newest is damaged, and names a command that helps"
deltawire compact "$url" --anchor --quiet >/dev/null
object_get "$url" "ways/$(printf '%020d' 7)-anchor.json" way.json
anchor=$(json 'o["objects"][0]["key"]' <way.json)
object_get "$url" "$anchor" anchor.bin
printf 'damage' | dd of=anchor.bin bs=1 seek=100000 conv=notrunc status=none
object_remove "$url" "$anchor"
object_put "$url" "$anchor" anchor.bin
deltawire gc "$url" --keep 1 >out.txt
grep -q '^  floor      version 4, before 4$' out.txt
grep -q "damaged .* version 7, .* After the next publish run: deltawire compact $url --anchor" out.txt
publish_step "$url" 6
deltawire compact "$url" --anchor --quiet >/dev/null
deltawire gc "$url" --keep 1 >out.txt
grep -q '^  floor      version 8, before 4$' out.txt
rm -rf fresh
deltawire pull "$url" --into fresh --quiet >/dev/null
same_weights fresh run/step_000006
