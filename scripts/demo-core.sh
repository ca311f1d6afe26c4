#!/bin/sh
# Shows the main job on a local directory: a trainer publishes a synthetic RL run into a
# stream, step by step; an engine's directory follows it; another joins late.
#
#     scripts/demo-core.sh [PARAMS [STEPS]]      default 64M and 6
#
# Takes its files' space in TMPDIR: about 2 bytes x PARAMS x (STEPS + 5).
set -eu
cd "$(dirname "$0")/.."
deltawire=${DELTAWIRE:-build/deltawire}
params=${1:-64M} steps=${2:-6}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
run=$scratch/run engine=$scratch/engine late=$scratch/late
stream=file://$scratch/stream
export XDG_CACHE_HOME="$scratch/cache"

if [ -t 1 ]; then
    bold=$(printf '\033[1m') green=$(printf '\033[32m') plain=$(printf '\033[0m')
else
    bold='' green='' plain=''
fi

# ---- little helpers -----------------------------------------------------------------
field() { # KEY: its value in the JSON object on stdin
    sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p'
}

calc() { # FORMAT EXPRESSION
    awk "BEGIN { printf \"$1\", $2 }"
}

mb() { # BYTES
    calc %.2f "$1 / 1e6"
}

size() { # FILE
    wc -c <"$1" | tr -d ' '
}

line() { # LEFT MIDDLE RIGHT
    printf '%s' "$1"
    for width in 6 9 11 11 11 11 6 9 10; do
        printf '%*s' "$width" '' | sed 's/ /─/g'
        printf '%s' "$2"
    done
    printf '───────%s\n' "$3"
}

row() {
    printf '│%5s │%8s │%10s │%10s │%10s │%s%10s%s │%5s │%8s │%9s │ ' \
        "$1" "$2" "$3" "$4" "$5" "$bold" "$6" "$plain" "$7" "$8" "$9"
    shift 9
    printf '%s%-5s%s │\n' "$green" "$1" "$plain"
}

# ---- a trainer and an engine, connected only by a stream ----------------------
printf '%sdeltawire demo%s: %s parameters in bf16, %s RL steps at lr 1e-6\n\n' \
    "$bold" "$plain" "$params" "$steps"
"$deltawire" synth -o "$run" --params "$params" --steps "$steps" --write checkpoints \
    --json >/dev/null
# version 0 is the whole model, once
"$deltawire" publish "$stream" "$run/base" --json >/dev/null
"$deltawire" pull "$stream" --into "$engine" --json >/dev/null

line ┌ ┬ ┐
row step changed 'full, MB' 'TRL raw' 'TRL gap' 'ours, MB' bits 'publ. ms' 'pull ms' equal
line ├ ┼ ┤
old=$run/base
n=1 sum_full=0 sum_raw=0 sum_gap=0 sum_ours=0 sum_changed=0
while [ "$n" -le "$steps" ]; do
    new=$(printf '%s/step_%06d' "$run" "$n")
    "$deltawire" diff "$old" "$new" -o "$scratch/raw" --trl v1 --json >/dev/null
    gap=$("$deltawire" diff "$old" "$new" -o "$scratch/gap" --codec gap --json)

    # the trainer commits a version; the engine's directory becomes it, in place
    made=$("$deltawire" publish "$stream" "$new" --step "$n" --json)
    pulled=$("$deltawire" pull "$stream" --into "$engine" --json)

    equal=NO
    if cmp -s "$engine/model.safetensors" "$new/model.safetensors" &&
        [ "$("$deltawire" verify "$engine" --json | field state)" = \
            "$(echo "$made" | field state)" ]; then
        equal=yes
    fi
    full=$(size "$new/model.safetensors") ours=$(echo "$made" | field bytes)
    changed=$(echo "$made" | field changed)
    row "$n" "$(calc %.2f "100 * $(echo "$gap" | field density)") %" \
        "$(mb "$full")" "$(mb "$(size "$scratch/raw")")" "$(mb "$(size "$scratch/gap")")" \
        "$(mb "$ours")" "$(calc %.2f "8 * $ours / $changed")" \
        "$(calc %.0f "$(echo "$made" | field committed)")" \
        "$(calc %.0f "1000 * $(echo "$pulled" | field seconds)")" "$equal"
    if [ $equal = NO ]; then
        echo "demo: the engine's weights differ from the trainer's in step $n" >&2
        exit 1
    fi
    sum_full=$((sum_full + full)) sum_raw=$((sum_raw + $(size "$scratch/raw")))
    sum_gap=$((sum_gap + $(size "$scratch/gap"))) sum_ours=$((sum_ours + ours))
    sum_changed=$((sum_changed + changed))
    rm -rf "$old"
    old=$new n=$((n + 1))
done
line ├ ┼ ┤
row all '' "$(mb $sum_full)" "$(mb $sum_raw)" "$(mb $sum_gap)" "$(mb $sum_ours)" \
    "$(calc %.2f "8 * $sum_ours / $sum_changed")" '' '' yes
line └ ┴ ┘

# ---- somebody joins late, and the whole stream is checked -----------------------------
"$deltawire" pull "$stream" --into "$late" --json >/dev/null
cmp "$late/model.safetensors" "$old/model.safetensors"
checked=$("$deltawire" verify "$stream" --json)

cat <<END

  ${bold}$(calc %.0f "$sum_full / $sum_ours")x${plain} fewer bytes than full syncs
  ${bold}$(calc %.1f "$sum_raw / $sum_ours")x${plain} fewer than TRL's raw deltas (v1)
  ${bold}$(calc %.1f "$sum_gap / $sum_ours")x${plain} fewer than TRL's gap deltas (v3)

The engine's file equals the trainer's byte for byte after every step, as does that of a
directory that joined at the end. All $(echo "$checked" | field objects) objects of the stream were read and checked.
'bits' are bits a changed weight; times are of whole commands, with every check and sync.

Next:  $deltawire --help  the verbs on your own checkpoints and buckets
       README.md, docs/        how it works, the protocol, the C API
       make bench bench-sync   sizes and speeds beside other ways
END
