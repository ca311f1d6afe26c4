#!/usr/bin/env bash
. "$(dirname "$0")/lib.sh"

it "runs tests in a HOME of their own"
[ "$HOME" != "$(getent passwd "$(id -u)" | cut -d : -f 6)" ]
[ -z "$(ls -A "$HOME")" ]
env | grep '^XDG_' && die "directories of the user are named"
[ "$AWS_EC2_METADATA_DISABLED" = true ]
deltawire synth -o run --params 100K --steps 1 --write checkpoints --quiet >/dev/null
deltawire publish "$PWD/stream" run/base --quiet >/dev/null
[ -d "$HOME/.cache/deltawire/baselines" ]

it "gives one to each, and removes it"
status=0
# shellcheck disable=SC2016 # the other shell expands it
own=$(HOME=$HOME/user XDG_CONFIG_HOME=/nowhere "$DW_TEST_DIR/own_home.sh" sh -c '
    touch "$HOME/mark"
    echo "$HOME"
    [ -z "$(env | grep ^XDG_)" ] && exit 7') || status=$?
[ $status -eq 7 ]
[ -n "$own" ] && [ "$own" != "$HOME" ] && [ "$own" != "$HOME/user" ] && [ ! -e "$own" ]
