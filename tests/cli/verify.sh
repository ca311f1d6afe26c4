#!/usr/bin/env bash
. "$(dirname "$0")/lib.sh"
small_run 3
delta=run/deltas/step_000002.safetensors

it "prints a digest that depends on the weights"
[ "$(state_of run/base)" = "$(state_of run/base/model.safetensors)" ]
[ "$(state_of run/base)" != "$(state_of run/step_000001)" ]
cp -r run/base flipped
flip_bit flipped/model.safetensors $(($(stat -c %s flipped/model.safetensors) - 7))
[ "$(state_of run/base)" != "$(state_of flipped)" ]

it "computes SHA-256 over the tensors in order of their names"
make_checkpoint zeros.safetensors '{"b": [3], "a": [2]}'
[ "$(deltawire verify zeros.safetensors --sha256 --json | json 'o["sha256"]')" = \
    "$(head -c 5 /dev/zero | sha256sum | cut -d ' ' -f 1)" ]

it "reports a checkpoint's version relative to a delta"
prints "1, where the delta starts" deltawire verify run/step_000001 $delta
deltawire verify run/step_000001 $delta --json | holds 'o["standing"] == "base"'
prints "2, where the delta leads" deltawire verify run/step_000002 $delta
deltawire verify run/step_000002 $delta --json | holds 'o["standing"] == "new"'
unchanged fails 4 "step_000002.safetensors: the weights are not version 1" \
    deltawire verify run/step_000003 $delta
unchanged fails 4 "the weights are not version 1" deltawire verify run/base $delta

it "refuses a delta of another model"
unchanged fails 5 "tensor " deltawire verify zeros.safetensors $delta

it "writes nothing"
unchanged fails 6 "nowhere: " deltawire verify run/base nowhere
unchanged deltawire verify run/step_000001 $delta >/dev/null

it "refuses a checkpoint with an interrupted apply"
mkdir run/base/.deltawire
touch run/base/.deltawire/model.safetensors.patch
unchanged fails 1 "run/base: an apply .* was interrupted" deltawire verify run/base
grep -q '^try: deltawire recover run/base$' err.last
unchanged fails 1 "interrupted" deltawire diff run/base run/step_000001 -o x
(deltawire verify run/base --json || true) | holds 'o["error"]["code"] == "interrupted"'

it "reports if there was something to recover"
unchanged fails 3 "safetensors.patch: " deltawire recover run/base
rm -r run/base/.deltawire
prints "nothing to recover" deltawire recover run/base
deltawire recover run/base --json | holds 'o["recovered"] is False'
