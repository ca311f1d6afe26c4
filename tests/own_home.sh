#!/bin/sh
# Runs a test in an empty HOME of its own, which is removed afterwards.
#
#     tests/own_home.sh COMMAND...
#
# So no test reads or writes the files of the user who runs it. Python environments stay
# where scripts/venv.sh keeps them. tests/conftest.py does the same for pytest.
: "${DELTAWIRE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/deltawire}"
HOME=$(mktemp -d) || exit 1
for variable in $(env | sed -n 's/^\(XDG_[A-Z_]*\)=.*/\1/p'); do
    unset "$variable"
done
export DELTAWIRE_CACHE HOME AWS_EC2_METADATA_DISABLED=true
home=$HOME
trap 'chmod -R u+w "$home"; rm -rf "$home"' EXIT
trap 'exit 130' INT TERM HUP
"$@"
