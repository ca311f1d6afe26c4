#!/usr/bin/env bash
# The files of a publisher and a follower are damaged while neither runs. The next run
# notices it and restores them from the stream.
. "$(dirname "$0")/stream_lib.sh"
small_run 4
url=$store/run
options=(--baseline baseline --fold 2 --anchor-every 20)
deltawire publish "$url" run/base "${options[@]}" --quiet >/dev/null
for i in 1 2 3 4; do publish_step "$url" "$i" "${options[@]}"; done

cat >damage.py <<'END'
import os, random, sys
root, seed = sys.argv[1], int(sys.argv[2])
r = random.Random(seed)
files = sorted(os.path.join(d, f) for d, _, names in os.walk(root) for f in names)
path = files[seed % len(files)]
kind = r.choice(sys.argv[3:])
data = bytearray(open(path, "rb").read())
if kind.startswith("flip") and data:
    end = len(data) if kind == "flip" else min(len(data), 400)
    data[r.randrange(end)] ^= 1 << r.randrange(8)
elif kind == "cut":
    del data[r.randrange(len(data) + 1):]
elif kind == "empty":
    data.clear()
elif kind == "garbage":
    data = bytearray(r.randbytes(len(data)))
elif kind == "other":
    data = bytearray(open(r.choice(files), "rb").read())
os.remove(path)
if kind != "remove":
    open(path, "wb").write(data)
print(kind, path)
END

it "publishes on from a baseline with any damage"
for round in $(seq 50); do
    what=$(python3 -B damage.py baseline "$round" flip flip flip-head cut empty remove \
        garbage other)
    step=$(printf 'run/step_%06d' $((3 + round % 2)))
    deltawire publish "$url" "$step" "${options[@]}" --json >out.json 2>err.txt ||
        die "$what: $(cat err.txt)"
    grep -q "\"version\": *$((4 + round))\b" out.json || die "$what: $(cat out.json)"
    deltawire pull "$url" --into kept --quiet >/dev/null 2>err.txt ||
        die "$what: $(cat err.txt)"
    same_weights kept "$step" || die "$what"
done
deltawire verify "$url" --quiet >/dev/null

it "does not touch weights that are not a baseline"
cp -r run/step_000002 mine
keeps mine fails 8 "Name an empty directory" deltawire publish "$url" run/base --baseline mine

it "goes on from a damaged record of the version"
deltawire pull "$url" --into record --at 2 --quiet >/dev/null
mkdir only && cp record/.deltawire/state.json only
for round in $(seq 12); do
    what=$(python3 -B damage.py only "$round" flip)
    cp only/state.json record/.deltawire
    version=$((2 + round % 2))
    deltawire pull "$url" --into record --at $version --quiet >/dev/null 2>err.txt ||
        die "$what: $(cat err.txt)"
    same_weights record "run/step_00000$version"
    cp record/.deltawire/state.json only
done

it "finds the version of weights whose record is damaged, and fetches only what is new"
deltawire pull "$url" --into record --at 2 --quiet >/dev/null
cp -r record record.good
sed -i 's/"version":2/"version":1/' record/.deltawire/state.json
deltawire pull "$url" --into record --at 3 --json | holds 'o["from"] == 2 and o["steps"] == 1'
is_at record 3

it "finds the version if the record has lost its seal"
for change in pass 'o["version"] = 1' 'o["state"] = o["state"][::-1]' 'o["stream"] = o["stream"][::-1]'; do
    rm -rf record && cp -r record.good record
    python3 -B - "$change" <<'END'
import json, sys
o = json.load(open("record/.deltawire/state.json"))
del o["seal"]
exec(sys.argv[1])
json.dump(o, open("record/.deltawire/state.json", "w"))
END
    deltawire pull "$url" --into record --at 3 --json | holds 'o["from"] == 2 and o["steps"] == 1'
    is_at record 3
done
