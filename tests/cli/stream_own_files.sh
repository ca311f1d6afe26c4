#!/usr/bin/env bash
# Everything of deltawire's own in a follower's directory lies in .deltawire, which no
# companion file can reach, and which nobody else's files are taken for.
. "$(dirname "$0")/stream_lib.sh"
small_run 2
url=$store/run

it "publishes companion files of any other name"
cp -r run/base base
for name in model.safetensors.deltawire-patch model.safetensors.deltawire-staged \
    model.safetensors.tmp-1-2; do
    echo "not ours" >base/$name
done
deltawire publish "$url" base --with 'model.safetensors.*' --quiet >/dev/null
publish_step "$url" 1

it "installs them, and they are no patch"
for version in 0 1 0 1; do
    deltawire pull "$url" --into m --at $version --quiet
    is_at m $version
    for name in base/model.safetensors.?*; do cmp "$name" "m/$(basename "$name")"; done
    deltawire verify m --quiet >/dev/null
done

it "warns of a patch that its state file does not name, and removes it"
stray=m/.deltawire/model.safetensors.patch
echo "not ours" >$stray
deltawire pull "$url" --into m >/dev/null 2>err.stray
[ "$(grep -c '^deltawire: warning: m: .* the patch was removed, and not applied$' err.stray)" = 1 ]
[ ! -e $stray ] && is_at m 1
echo "not ours" >$stray
deltawire pull "$url" --into m --json | holds 'len(o["warnings"]) == 1'
echo "not ours" >$stray
deltawire follow "$url" --into m --until 1 --no-report >/dev/null 2>err.stray
grep -q 'warning: m: .* the patch was removed' err.stray
deltawire pull "$url" --into m --json | holds 'not o.get("warnings")'

it "does not finish a patch that its state file does not name, and leaves it to the next pull"
echo "not ours" >$stray
keeps m fails 8 "$stray: .* does not name this patch" deltawire recover m
keeps m fails 8 "$stray: .* does not name this patch" \
    deltawire apply run/deltas/step_000002.safetensors --to m
deltawire pull "$url" --into m --quiet 2>/dev/null
deltawire recover m | grep 'nothing to recover' >/dev/null

it "refuses names that could be its own, or weights"
cp -r run/base own
mkdir own/.deltawire
echo x >own/.deltawire-x
echo x >own/Model.SafeTensors.Index.JSON
fails 2 "begins with a dot" deltawire publish "$url" own --with .deltawire-x
fails 2 "is a name for weights" deltawire publish "$url" own --with Model.SafeTensors.Index.JSON
deltawire publish "$url" own --with '*' --without Model.SafeTensors.Index.JSON --quiet >/dev/null
deltawire inspect "$url" --json | holds 'all(f["name"][0] != "." for f in o["files"])'

it "changes nothing if somebody's file or link has the name of its directory"
mkdir precious
echo mine >precious/state.json
for what in file link; do
    mkdir $what
    [ $what = file ] && echo mine >file/.deltawire || ln -s ../precious link/.deltawire
    keeps $what fails 8 "$what/.deltawire: this is no directory" \
        deltawire pull "$url" --into $what
done
[ "$(ls precious)" = state.json ]

it "does not apply a delta to weights that a follower keeps"
keeps m fails 8 "a follower keeps these weights" \
    deltawire apply run/deltas/step_000002.safetensors --to m
mkdir new
cp m/* new
deltawire apply run/deltas/step_000002.safetensors --to new >/dev/null
same_weights new run/step_000002
