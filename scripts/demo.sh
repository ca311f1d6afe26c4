#!/bin/sh
# Shows the core at work: a synthetic RL run is shipped, step by step, as deltas to a
# receiver that holds its own copy of the weights.
#
#     scripts/demo.sh [PARAMS [STEPS]]      64M and 6 unless told
#
# Takes its files' space in TMPDIR: about 2 bytes x PARAMS x (STEPS + 2).
set -eu
cd "$(dirname "$0")/.."
deltawire=${DELTAWIRE:-build/deltawire}
params=${1:-64M} steps=${2:-6}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
run=$scratch/run receiver=$scratch/receiver wire=$scratch/wire

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

# ---- the trainer makes a run; the receiver starts from the same base -----------------
printf '%sdeltawire demo%s: %s parameters in bf16, %s RL steps at lr 1e-6\n\n' \
    "$bold" "$plain" "$params" "$steps"
"$deltawire" synth -o "$run" --params "$params" --steps "$steps" --write checkpoints \
    --json >/dev/null
cp -r "$run/base" "$receiver"
mkdir "$wire"

line ┌ ┬ ┐
row step changed 'full, MB' 'TRL raw' 'TRL gap' 'ours, MB' bits 'enc. ms' 'apply ms' equal
line ├ ┼ ┤
old=$run/base
n=1 sum_full=0 sum_raw=0 sum_gap=0 sum_ours=0 sum_changed=0
while [ "$n" -le "$steps" ]; do
    new=$(printf '%s/step_%06d' "$run" "$n")

    # the trainer writes what changed ...
    made=$("$deltawire" diff "$old" "$new" -o "$scratch/delta" --from $((n - 1)) --json)
    "$deltawire" diff "$old" "$new" -o "$scratch/raw" --trl v1 --json >/dev/null
    "$deltawire" diff "$old" "$new" -o "$scratch/gap" --codec gap --json >/dev/null
    # ... the file is sent ...
    mv "$scratch/delta" "$wire/"
    # ... and the receiver's own checkpoint becomes the trainer's, in place
    applied=$("$deltawire" apply "$wire/delta" --to "$receiver" --json)

    equal=NO
    if cmp -s "$receiver/model.safetensors" "$new/model.safetensors" &&
        [ "$("$deltawire" verify "$receiver" --json | field state)" = \
            "$(echo "$made" | field new_state)" ]; then
        equal=yes
    fi
    full=$(size "$new/model.safetensors") ours=$(size "$wire/delta")
    raw=$(size "$scratch/raw") gap=$(size "$scratch/gap")
    row "$n" "$(calc %.2f "100 * $(echo "$made" | field density)") %" \
        "$(mb "$full")" "$(mb "$raw")" "$(mb "$gap")" "$(mb "$ours")" \
        "$(echo "$made" | field bits_a_change | cut -c 1-4)" \
        "$(calc %.0f "1000 * $(echo "$made" | field encode_seconds)")" \
        "$(calc %.0f "1000 * $(echo "$applied" | field seconds)")" "$equal"
    if [ $equal = NO ]; then
        echo "demo: the receiver's weights differ from the trainer's in step $n" >&2
        exit 1
    fi
    sum_full=$((sum_full + full)) sum_raw=$((sum_raw + raw)) sum_gap=$((sum_gap + gap))
    sum_ours=$((sum_ours + ours))
    sum_changed=$((sum_changed + $(echo "$made" | field changed)))
    rm -rf "$old"
    old=$new n=$((n + 1))
done
line ├ ┼ ┤
row all '' "$(mb $sum_full)" "$(mb $sum_raw)" "$(mb $sum_gap)" "$(mb $sum_ours)" \
    "$(calc %.2f "8 * $sum_ours / $sum_changed")" '' '' yes
line └ ┴ ┘

cat <<END

  ${bold}$(calc %.0f "$sum_full / $sum_ours")x${plain} fewer bytes than full syncs
  ${bold}$(calc %.1f "$sum_raw / $sum_ours")x${plain} fewer than TRL's raw deltas (v1)
  ${bold}$(calc %.1f "$sum_gap / $sum_ours")x${plain} fewer than TRL's gap deltas (v3)

The receiver's file equals the trainer's byte for byte after every step.
'bits' are bits a changed weight; 'apply' includes reading and checking the whole
checkpoint, and syncing it to disk.

Next:  $deltawire --help  the verbs on your own checkpoints
       README.md, docs/        how it works, the format, the C API
       make bench              sizes and speeds beside other ways
END
