#!/usr/bin/env bash
# The copies that `publish` keeps in the user's cache.
. "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$PWD/cache
deltawire synth -o run --params 200K --steps 1 --quiet >/dev/null
deltawire synth -o other --params 300K --steps 1 --quiet >/dev/null

it "reports that there are none"
prints 'no copies' deltawire cache
prints 'no copies' deltawire cache --prune
fails 2 'dry-run needs --prune' deltawire cache --dry-run

it "reports the first copy, and only the first"
deltawire publish s run/base >/dev/null 2>err.txt
grep -q "keeps a copy of the model, .* in $PWD/cache/deltawire/baselines/" err.txt
grep -q 'deltawire cache --prune. removes old ones' err.txt
deltawire publish s run/base >/dev/null 2>err.txt
[ ! -s err.txt ]

it "starts again after the stream was deleted"
rm -rf s
deltawire publish s run/base --json >out.json
grep -q '"version": *0' out.json
deltawire publish s run/base --json >out.json
grep -q '"version": *1' out.json
deltawire verify s --quiet >/dev/null

it "starts again after all objects were deleted, and with another model"
rm -rf s/*
deltawire publish s other/base --json >out.json
grep -q '"version": *0' out.json
rm -rf pulled
deltawire pull s --into pulled --quiet >/dev/null
cmp <(deltawire inspect pulled --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["elements"])') \
    <(deltawire inspect other/base --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["elements"])')

it "lists the copies: stream, size, last use"
deltawire cache --json >out.json
python3 - "$PWD" <<'END'
import json, sys
copies = json.load(open("out.json"))["copies"]
assert len(copies) == 3 and sum(c["set_aside"] for c in copies) == 2, copies
assert all(c["url"] == f"file://{sys.argv[1]}/s" and c["bytes"] > 100_000 for c in copies)
END
prints 'set aside' deltawire cache
prints 'in 3 copies' deltawire cache

it "prunes copies that were set aside, and all on request"
deltawire cache --prune --dry-run >/dev/null
[ "$(ls cache/deltawire/baselines | wc -l)" -eq 3 ]
deltawire cache --prune >/dev/null
[ "$(ls cache/deltawire/baselines | wc -l)" -eq 1 ]
deltawire cache --prune --unused-for 0 >/dev/null
[ "$(ls cache/deltawire/baselines | wc -l)" -eq 0 ]
deltawire publish s other/base --json >out.json
grep -q '"version": *1' out.json

it "removes nothing that is in use"
note=$(echo cache/deltawire/baselines/*)/.deltawire-cache
exec 9<"$note"
flock --shared 9
deltawire cache --prune --unused-for 0 >out.txt
grep -q 'in use' out.txt
[ -e "$note" ]
exec 9<&-
