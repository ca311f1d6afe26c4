#!/usr/bin/env bash
# labels: slow
# Sends twelve steps of a real run through a stream. Each leads to its recorded state.
. "$(dirname "$0")/stream_lib.sh"
trace=$tests/data/trace
url=$store/trace

expected() { # STEP
    json "o['states']['$1']" <"$trace/states.json"
}
sha256() { # CKPT
    deltawire verify "$1" --sha256 --json | json 'o["sha256"]'
}

it "brings a follower to every recorded state"
cp -r "$trace/base" trainer
chmod -R u+w trainer
deltawire publish "$url" trainer --fold 2 --quiet >/dev/null
deltawire pull "$url" --into model --quiet >/dev/null
[ "$(sha256 model)" = "$(expected 0)" ]
for step in $(seq 12); do
    deltawire apply "$trace/deltas/$(printf 'step_%06d' "$step").safetensors" --to trainer \
        --quiet >/dev/null
    deltawire publish "$url" trainer --step "$step" --fold 2 --quiet >/dev/null
    deltawire pull "$url" --into model --quiet >/dev/null
    [ "$(sha256 model)" = "$(expected "$step")" ] || die "step $step differs"
done

it "uses folds if that is cheaper"
deltawire log "$url" -n 0 --json |
    holds 'any(w["from"] is not None for v in o["versions"] for w in v["shortcuts"])'
deltawire pull "$url" --into late --at 0 --quiet >/dev/null
deltawire pull "$url" --into late --json | holds 'o["version"] == 12 and o["steps"] < 12'
[ "$(sha256 late)" = "$(expected 12)" ]

it "verify passes"
deltawire verify "$url" --json | holds 'o["versions"] == 13 and o["faults"] == []'
