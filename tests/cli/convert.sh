#!/usr/bin/env bash
. "$(dirname "$0")/lib.sh"
small_run 2
delta=run/deltas/step_000001.safetensors
convert() {
    deltawire convert "$@" --base run/base --json
}

it "converts to every codec and back, and keeps versions and digests"
for options in '--codec class' '--codec gap' '--codec raw' '--trl v1' '--trl v3'; do
    # shellcheck disable=SC2086 # a list of words
    convert $delta -o there.st $options | holds 'o["new_version"] == 1'
    cp -r run/base there
    deltawire apply there.st --to there --json |
        holds 'o["deltas"][0]["verified"]'
    same_weights there run/step_000001
    convert there.st -o back.st --codec class | holds 'o["codec"] == "class"'
    cmp back.st $delta
    rm -r there
done

it "writes what diff writes"
convert $delta -o a.st --trl v1 >/dev/null
deltawire diff run/base run/step_000001 -o b.st --trl v1 >/dev/null
cmp a.st b.st
prints 'before .* raw (TRL v1)' deltawire convert a.st -o c.st --base run/base

it "needs the checkpoint that the delta starts from"
unchanged fails 4 "not version 0" \
    deltawire convert $delta -o x --base run/step_000002 --codec raw
grep -q "^try: deltawire inspect " err.last
unchanged fails 6 "nowhere: " deltawire convert $delta -o x --base nowhere
unchanged fails 6 "nowhere: " deltawire convert nowhere -o x --base run/base
unchanged fails 6 "nowhere/x: " \
    deltawire convert $delta -o nowhere/x --base run/step_000002
unchanged fails 2 "would overwrite" \
    deltawire convert $delta -o run/base/model.safetensors --base run/base
