#!/usr/bin/env bash
# The copies that `publish` keeps on disk: their size, a full disk, and that nothing
# removes them while they are used. Uses real filesystems if it may mount them.
unset DW_TEST_STORE # a directory, whatever the other tests run over
. "$(dirname "$0")/stream_lib.sh"
deltawire synth -o run --params 2M --steps 20 --write both --json >/dev/null
model=$(stat -c %s run/base/model.safetensors)
baselines=cache/deltawire/baselines
step() { printf 'run/step_%06d' "$1"; }

# used DIR: its bytes on the disk
used() { du -s --block-size=1 "$1" | cut -f 1; }

# whole_copies DIR: the number of files as large as the model
whole_copies() { find "$1" -type f -size +$((model / 2))c | wc -l; }

it "keeps one copy of the model, also with folds"
deltawire publish s run/base --anchor-factor 0 --fold 4 --quiet >/dev/null
for i in $(seq 20); do
    deltawire publish s "$(step "$i")" --anchor-factor 0 --fold 4 --quiet >/dev/null
    [ "$(whole_copies cache)" -eq 1 ] || die "$(find cache -type f -printf '%p %s\n')"
    [ "$(used cache)" -lt $((model * 3 / 2)) ] || die "$(used cache) bytes at version $i"
done
find s/ways -name '*-from-*' -printf '%f\n' | sort >ways.txt
for way in 4-from-0 8-from-4 12-from-8 16-from-12 20-from-16; do
    printf '%020d-from-%020d.json\n' "${way%-from*}" "${way#*from-}"
done | sort | cmp - ways.txt

it "the folds lead to the same weights"
deltawire pull s --into pulled --at 0 --quiet >/dev/null
deltawire pull s --into pulled --json | holds 'o["steps"] == 5'
same_weights pulled "$(step 20)"
prints 'faults  *0' deltawire verify s

it "the list shows the bytes on the disk"
deltawire cache --json >out.json
python3 - "$(used $baselines/*)" <<'END'
import json, sys
(copy,) = json.load(open("out.json"))["copies"]
assert abs(copy["bytes"] - int(sys.argv[1])) <= 64 * 1024, (copy, sys.argv)
END

it "a publish that is killed at any instant leaves nothing behind"
for i in $(seq 30); do
    (timeout -s KILL "0.$(printf '%02d' $((5 + i % 15)))" "$deltawire" publish s \
        "$(step $((1 + i % 16)))" --fold 2 --quiet >/dev/null || true) 2>/dev/null
done
wait_until deltawire publish s "$(step 17)" --fold 2 --quiet
for i in 18 19 20 17; do
    deltawire publish s "$(step "$i")" --fold 2 --quiet >/dev/null
done
[ "$(whole_copies cache)" -eq 1 ] || die "$(find cache -type f -printf '%p %s\n')"
left=$(find cache -name '*spool*')
[ -z "$left" ] || die "left behind: $left"
prints 'faults  *0' deltawire verify s

it "prune leaves the copies of an idle watch alone"
mkdir output
cp -r run/step_000001 output/checkpoint-1
start watch publish "file://$scratch/watched" --watch output
watch=$!
wait_until grep -q 'version 0' out.watch
deltawire cache --prune --unused-for 0 >out.txt
grep -q "in use .*$scratch/watched" out.txt
[ "$(find $baselines -mindepth 1 -maxdepth 1 | wc -l)" -eq 1 ]
cp -r run/step_000002 output/checkpoint-2
wait_until grep -q 'version 1' out.watch
[ "$(find $baselines -mindepth 1 -maxdepth 1 | wc -l)" -eq 1 ]
kill -INT $watch
ends $watch 0
deltawire cache --prune --unused-for 0 >out.txt
[ -z "$(find $baselines -mindepth 1)" ]

# ---- small disks ----

mkdir disk
unmount_and_finish() {
    local status=$?
    set +e
    for id in $(jobs -p); do kill "$id"; done 2>/dev/null
    umount -l "$scratch/disk" 2>/dev/null
    (exit $status)
    finish
}

# mounts TYPE BYTES [OPTION...]: an empty filesystem at disk/
mounts() {
    umount disk 2>/dev/null || true
    command -v "mkfs.$1" >/dev/null || return 1
    rm -f disk.img
    truncate -s "$2" disk.img
    "mkfs.$1" -q "${@:3}" disk.img >/dev/null 2>&1 && mount -o loop disk.img disk 2>/dev/null
}

# leaves FREE: fills disk/ up to so many free bytes
leaves() {
    local free
    free=$(($(stat -f -c '%a * %S' disk)))
    fallocate -l $((free - $1)) disk/filler
}
nothing_big() { [ -z "$(find "$1" -type f ! -name filler -size +64k)" ]; }

if ! mounts ext4 64M -m 0; then
    echo "  skipped: this system does not let tests mount a disk of their own"
    exit 0
fi
trap unmount_and_finish EXIT
mkdir disk/cache
XDG_CACHE_HOME=$PWD/disk/cache

it "fails before it writes if there is no room for a copy"
leaves $((model * 3 / 4))
fails 6 'the disk has .* free, but .* --baseline DIR' deltawire publish t run/base
nothing_big disk
[ ! -e t ]
fails 6 'the disk has .* free' deltawire publish t run/base --baseline disk/b
nothing_big disk

it "counts the tensors that a quantised stream keeps as they are"
fails 6 'the disk has .* free, but .* --baseline DIR' deltawire publish t run/base \
    --quantize fp8-block --quantize-keep '*.mlp.*' --quantize-keep '*.[qvo]_proj.*'
nothing_big disk
[ ! -e t ]

it "counts version 0 if the stream is on the same disk"
rm disk/filler
leaves $((model * 3 / 2))
fails 6 'and version 0 on the same disk' \
    deltawire publish disk/u run/base --baseline disk/b
nothing_big disk/b
[ ! -e disk/u ]
