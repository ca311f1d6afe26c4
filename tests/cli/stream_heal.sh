#!/usr/bin/env bash
# The weights of a follower's directory, or deltawire's own files beside them, are damaged:
# `pull` and `follow` fetch what does not match again, warn, and end with exactly the
# trainer's weights. What somebody else put there is not touched.
. "$(dirname "$0")/stream_lib.sh"
small_run 14
url=$store/run
options=(--anchor-every 3 --fold none)
deltawire publish "$url" run/base "${options[@]}" --quiet >/dev/null
for i in 1 2 3 4; do publish_step "$url" "$i" "${options[@]}"; done

cat >damage.py <<'END'
"""damage.py KIND FILE: in place, as a failing disk or a careless program does it."""
import os, random, sys
kind, path = sys.argv[1:]
r = random.Random(kind)
with open(path, "r+b") as f:
    data = bytearray(f.read())
    size, head = len(data), 8 + int.from_bytes(data[:8], "little")
    if kind == "every4000":
        for i in range(4000, size - 2, 4000):
            data[i] ^= 0x55
            data[i + 1] ^= 0x33
    elif kind == "bit":
        data[head + r.randrange(size - head)] ^= 4
    elif kind == "last":
        data[-1] ^= 128
    elif kind == "length":
        data[3] ^= 255
    elif kind == "header":
        data[40] ^= 1
    elif kind == "name":
        data = data.replace(b"layernorm", b"layermorn", 1)
    elif kind == "zeros":
        data[head:] = bytes(size - head)
    elif kind == "garbage":
        data = bytearray(r.randbytes(size))
    elif kind == "cut":
        del data[size * 2 // 3:]
    elif kind == "empty":
        data.clear()
    elif kind == "longer":
        data += b"more"
    else:
        sys.exit("what?")
    f.seek(0)
    f.write(data)
    f.truncate()
END
damage() { # KIND FILE
    if [ "$1" = remove ]; then rm "$2"; else python3 -B damage.py "$1" "$2"; fi
}
warns() { # a line of err.last
    grep -q "^deltawire: warning: .*: the weights were damaged" err.last ||
        die "no warning: $(cat err.last)"
}
pulls() { # DIR OPTION...: brings it to version 4
    deltawire pull "$url" --into "$@" --quiet >/dev/null 2>err.last || die "$(cat err.last)"
    is_at "$1" 4
    same_weights "$1" run/step_000004
}

it "pull repairs weights with any damage"
pulls model
for kind in every4000 bit last length header name zeros garbage cut empty longer; do
    damage $kind model/model.safetensors
    deltawire pull "$url" --into model >out.last 2>err.last || die "$kind: $(cat err.last)"
    warns
    is_at model 4
    same_weights model run/step_000004
done
rm model/model.safetensors
pulls model
deltawire pull "$url" --into model --json | holds '"warnings" not in o and o["steps"] == 0'
damage every4000 model/model.safetensors
deltawire pull "$url" --into model --json |
    holds 'o["warnings"][0]["code"] == "corrupt" and o["version"] == 4'

it "also in a copy of the directory, and together with an older or no other version"
cp -r model copy
damage bit copy/model.safetensors
pulls copy
deltawire pull "$url" --into older --at 2 --quiet >/dev/null
damage every4000 older/model.safetensors
pulls older

it "also of deltawire's own files"
own=$(cd model && find . -name '*state.json' -o -name '*control')
[ "$(wc -w <<<"$own")" -eq 2 ] || die "these files: $own"
for name in $own; do
    for kind in garbage empty cut longer remove; do
        damage $kind "model/$name"
        pulls model
        damage $kind "model/$name"
        damage every4000 model/model.safetensors
        pulls model
    done
done

it "goes on from weights whose state file is gone, without fetching the model"
rm "model/$(grep state.json <<<"$own")"
deltawire pull "$url" --into model --json | holds 'o["objects"] == 0 and o["version"] == 4'

it "repairs shards"
mkdir shards
python3 -B - <<'END'
import json, struct
with open("run/step_000004/model.safetensors", "rb") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    header, data = json.loads(f.read(n)), f.read()
header.pop("__metadata__", None)
names = sorted(header)
parts, index = [names[: len(names) // 2], names[len(names) // 2:]], {}
for i, part in enumerate(parts):
    name, at, table, blob = f"model-0000{i + 1}-of-00002.safetensors", 0, {}, b""
    for k in part:
        a, b = header[k]["data_offsets"]
        table[k] = dict(header[k], data_offsets=[len(blob), len(blob) + b - a])
        blob += data[a:b]
        index[k] = name
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    with open(f"shards/{name}", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)
with open("shards/model.safetensors.index.json", "w") as f:
    json.dump({"metadata": {}, "weight_map": index}, f)
END
cp -r shards sharded
deltawire pull "$url" --into sharded --quiet >/dev/null # they are version 4
[ ! -e sharded/model.safetensors ]
damage every4000 sharded/model-00001-of-00002.safetensors
deltawire pull "$url" --into sharded --quiet >/dev/null
is_at sharded 4
[ ! -e sharded/model.safetensors ]
rm sharded/model-00002-of-00002.safetensors
pulls sharded
[ "$(ls sharded)" = model.safetensors ] || die "left over: $(ls sharded)"

it "never replaces weights that somebody else put there"
cp run/step_000002/model.safetensors mine
flip_bit mine 100000
refuses() { # CODE PATTERN DIR OPTION...
    local before
    before=$(sha256sum "$3/model.safetensors")
    fails "$1" "$2" deltawire pull "$url" --into "${@:3}"
    [ "$before" = "$(sha256sum "$3/model.safetensors")" ] || die "$3 was changed"
}
mkdir foreign && cp mine foreign/model.safetensors
refuses 8 "Name an empty directory" foreign
cp mine model/new && mv model/new model/model.safetensors
refuses 3 "somebody else put them there" model
damage header model/model.safetensors
refuses 3 "" model
rm model/model.safetensors
pulls model
deltawire publish "$store/other" run/base --quiet >/dev/null
deltawire pull "$store/other" --into other --quiet >/dev/null
damage last other/model.safetensors
refuses 3 "they are damaged" other
damage name other/model.safetensors
refuses 5 "the stream has it" other

it "says what to do if the stream cannot rebuild the version"
deltawire publish "$store/short" run/base --base --quiet >/dev/null
deltawire pull "$store/short" --into short --base run/base --quiet >/dev/null
damage every4000 short/model.safetensors
url=$store/short refuses 6 'Name it with' short --quiet
deltawire pull "$store/short" --into short --base run/base --quiet >/dev/null
same_weights short run/base

it "fetches nothing if the disk is full, and repairs the weights once there is room"
damage every4000 model/model.safetensors
(ulimit -f 100 && trap '' XFSZ && deltawire pull "$url" --into model) >/dev/null 2>err.last &&
    die "there was room"
pulls model

# ---- while it runs ----

version=4
agent=
finish_agent() {
    [ $? -eq 0 ] || tail -n 9 out.agent err.agent
    [ -z "$agent" ] || kill "$agent" 2>/dev/null || true
    finish
}
trap finish_agent EXIT
echo : >at-pause
follow() {
    # shellcheck disable=SC2016 # for the engine
    start agent follow "$url" --into model --interval 0.1 --json --engine exec \
        --pause 'sh ./at-pause' --resume true --apply \
        'cp "$DELTAWIRE_DIR/model.safetensors" served.new && mv served.new served'
    agent=$!
    wait_until served
}
stop() {
    kill -INT "$agent"
    ends "$agent" 0
    agent=
}
served() { # the engine and the directory have the newest version
    cmp -s model/model.safetensors "$(step_file)" && cmp -s served "$(step_file)" &&
        [ "$(deltawire verify model --json | json 'o["version"]')" = $version ]
}
step_file() {
    printf 'run/step_%06d/model.safetensors' $((1 + (version - 1) % 14))
}
publish_next() {
    version=$((version + 1))
    deltawire publish "$url" "$(dirname "$(step_file)")" --step $version "${options[@]}" \
        --quiet >/dev/null
}
has_warned() {
    grep -q '^{"event":"warning".*the weights were damaged' out.agent
}

it "follow heals weights that are damaged while it runs, and its engine gets the version"
for kind in every4000 zeros header cut longer empty garbage remove; do
    follow
    damage $kind model/model.safetensors
    publish_next
    wait_until served
    [ $kind = remove ] || has_warned || die "$kind: no warning"
    stop
done

it "also its own files"
for name in $own; do
    follow
    for kind in garbage cut remove; do
        damage $kind "model/$name"
        publish_next
        wait_until served
    done
    stop
done

it "also weights and patches that are damaged between their preparation and the stores"
follow
echo 'mv at-pause at-pause.old; rm -rf pending; cp -r model pending' >at-pause
publish_next
wait_until served
stop
patch=$(cd pending && find . -name '*patch')
[ -n "$patch" ] || die "no patch in $(ls -A pending)"
for kind in garbage cut empty longer every4000; do
    rm -rf again && cp -r pending again
    damage $kind "again/$patch"
    deltawire pull "$url" --into again --quiet >/dev/null 2>err.last || die "$(cat err.last)"
    cmp again/model.safetensors "$(step_file)"
done
for kind in garbage every4000 cut header; do
    rm -rf again && cp -r pending again
    damage $kind again/model.safetensors
    deltawire pull "$url" --into again --quiet >/dev/null 2>err.last || die "$(cat err.last)"
    cmp again/model.safetensors "$(step_file)"
done
for what in "garbage model/$patch" "cut model/$patch" "every4000 model/model.safetensors" \
    "garbage model/model.safetensors"; do
    follow
    echo "mv at-pause at-pause.old; : >at-pause; python3 -B damage.py $what" >at-pause
    publish_next
    wait_until test -e at-pause.old
    publish_next
    wait_until served
    rm at-pause.old
    stop
done

it "waits before it fetches a model again and again, and says so"
follow
damage every4000 model/model.safetensors
publish_next
wait_until served
damage every4000 model/model.safetensors
publish_next
wait_until grep -q 'damaged again soon after they were fetched again' out.agent
wait_until served
stop
