#!/usr/bin/env bash
. "$(dirname "$0")/stream_lib.sh"
small_run 4
url=$store/run
deltawire publish "$url" run/base --fold 2 --quiet >/dev/null
for i in 1 2 3 4; do
    publish_step "$url" "$i" --fold 2 --notes "note $i"
done

it "lists versions, newest first"
deltawire log "$url" >out.txt
[ "$(awk '{print $1}' out.txt | xargs)" = 'version 4 3 2 1 0' ]
grep -q ' note 3$' out.txt
deltawire log "$url" --json >out.json
holds '[v["version"] for v in o["versions"]] == [4, 3, 2, 1, 0]' <out.json
holds '[v["content"] for v in o["versions"]] == ["delta"] * 4 + ["anchor"]' <out.json
holds '[v["step"] for v in o["versions"]] == ["4", "3", "2", "1", ""]' <out.json
holds '[v["notes"] for v in o["versions"]][:2] == ["note 4", "note 3"]' <out.json
holds 'all(len(v["state"]) == 16 and v["created"].endswith("Z") for v in o["versions"])' <out.json
holds 'o["head"] == 4 and o["floor"] == 0' <out.json

it "shows shortcuts to a version"
holds 'any(w["from"] == 2 for w in o["versions"][0]["shortcuts"])' <out.json
holds 'any(w["from"] == 0 for w in o["versions"][2]["shortcuts"])' <out.json
grep -q '^ *4 .* 2 ' out.txt

it "shows when each part of a version was done"
timed=$store/timed
deltawire cp "$url" "$timed" --quiet >/dev/null
deltawire follow "$timed" --into engine --until 4 --interval 0.1 --quiet
deltawire log "$timed" --timing >out.txt
grep -q '^ *captured .*, encoded .*, proven .*, hashed .*, uploaded .* ms$' out.txt
grep -q '^ *4  .*: fetched .*, staged .*, prepared .*, stored .* ms$' out.txt
deltawire log "$timed" --timing --json >out.json
holds 'all(v["times_ms"]["uploaded"] >= v["times_ms"]["hashed"] > 0 for v in o["versions"][:4])' <out.json
holds '[f["version"] for f in o["followers"]] == [4]' <out.json
holds '0 < o["followers"][0]["times_ms"]["fetched"] <= o["followers"][0]["times_ms"]["stored"]' <out.json
deltawire log "$timed" --json | holds '"times_ms" not in o["versions"][0] and "followers" not in o'

it "lists as many as asked for"
deltawire log "$url" -n 2 --json | holds 'len(o["versions"]) == 2'
deltawire log "$url" -n 0 --json | holds 'len(o["versions"]) == 5'
fails 2 "'x' is not a whole number" deltawire log "$url" -n x

it "prints no control characters"
publish_step "$url" 1 --notes "$(printf 'red \033[31m')"
prints 'red \\x1b\[31m' deltawire log "$url" -n 1

it "prints no marks that change the direction of text or hide it"
deltawire publish "$store/turned" run/base --quiet --notes $'safe\u202egpj.exe \u2066\u200bend' --step $'2\u202e' >/dev/null
deltawire log "$store/turned" -n 1 >out.txt
deltawire status "$store/turned" >>out.txt
deltawire log "$store/turned" -n 1 --json >out.json
fails 6 'no\\xe2\\x80\\xaefile' deltawire inspect $'no\u202efile'
grep -qF 'safe\xe2\x80\xaegpj.exe \xe2\x81\xa6\xe2\x80\x8bend' out.txt
holds 'o["versions"][0]["notes"] == "safe\u202egpj.exe \u2066\u200bend"' <out.json
python3 - <<'END'
for name in "out.txt", "out.json":
    text = open(name, encoding="utf-8").read()
    assert all(c == "\n" or c.isprintable() for c in text), ascii(text)
END

it "keeps its columns if a step has a long name"
long=$store/long
deltawire publish "$long" run/base --step 'checkpoint-of-a-very-long-run-2026' --quiet >/dev/null
deltawire publish "$long" run/base --step 'Schrittgröße-äöü-äöü' --quiet >/dev/null
deltawire log "$long" >out.txt
python3 - out.txt <<'END'
import sys
lines = open(sys.argv[1], encoding="utf-8").read().splitlines()
column = lines[0].index("content")
assert [line[column:].split()[0] for line in lines[1:]] == ["delta", "anchor"], lines
assert "…" in lines[1] and "…" in lines[2], lines
END
deltawire log "$long" --json | holds 'o["versions"][1]["step"].endswith("run-2026")'

it "shows the state of a stream"
deltawire pull "$url" --into model --at 3 --quiet >/dev/null
deltawire follow "$url" --into behind --id slow-one --until 5 --quiet
publish_step "$url" 2
deltawire status "$url" --json >out.json
holds 'len(o["stream"]) == 32 and o["head"] == 6 and o["floor"] == 0 and o["anchor"] == 0' <out.json
deltawire inspect run/base --json >out.base
holds "o['tensors'] == $(json 'o["n_tensors"]' <out.base)" <out.json
holds "o['elements'] == $(json 'o["elements"]' <out.base)" <out.json
holds '0 <= o["age_seconds"] < 600' <out.json
holds 'o["stored_bytes"] == o["delta_bytes"] + o["anchor_bytes"] + o["fold_bytes"]' <out.json
holds 'o["anchor_bytes"] >= o["model_bytes"] and o["fold_bytes"] > 0' <out.json
holds 'o["anchor_bytes"] < o["catch_up_bytes"] < 1.5 * o["anchor_bytes"]' <out.json

it "shows the versions of followers"
holds '[(f["id"], f["version"], f["lag"]) for f in o["followers"]] == [("slow-one", 5, 1)]' <out.json
deltawire status "$url" >out.txt
grep -q '^  slow-one: version 5, 1 behind, stopped, .* ago, host ' out.txt
grep -q '^  head       version 6, .* old$' out.txt

it "a follower that was killed is silent"
object_edit "$url" followers/slow-one.json \
    'o |= {"status": "following", "time": "2026-01-02T03:04:05Z"}'
prints '^  slow-one: version 5, 1 behind, silent since 2026-01-02T03:04:05Z (was following)' \
    deltawire status "$url"
deltawire status "$url" --json | holds 'o["followers"][0]["silent"] is True'

it "shows which version a follower of memory had"
object_edit "$url" followers/slow-one.json \
    'o |= {"version": None, "status": "stopped", "message": "its memory was at version 5"}'
prints '^  slow-one: its memory was at version 5, stopped, .* ago, host ' deltawire status "$url"
object_edit "$url" followers/slow-one.json 'o |= {"version": 5, "message": ""}'

it "a follower ahead of the head shows that the store was rolled back"
deltawire status "$url" --json >out.json
head=$(json 'o["head"]' <out.json)
for version in $(seq 4 "$head"); do object_remove "$url" "$(commit_key "$version")"; done
object_remove "$url" latest.json
deltawire status "$url" --json >out.json
holds 'o["head"] == 3 and o["followers"][0]["ahead"] == o["followers"][0]["version"] - 3' <out.json
prints 'slow-one: version .* ahead of the head' deltawire status "$url"
