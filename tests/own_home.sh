#!/bin/sh
# Runs a test in an empty HOME of its own, which is removed afterwards.
#
#     tests/own_home.sh COMMAND...
#
# So no test reads or writes the files of the user who runs it. Python environments stay
# where scripts/venv.sh keeps them. tests/conftest.py does the same for pytest.
#
# With DW_TEST_LOOPBACK, which says that the network has only loopback (scripts/test.sh), a test
# fails if something was to leave it: the kernel counts packets that have no route.
: "${DELTAWIRE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/deltawire}"
HOME=$(mktemp -d) || exit 1
for variable in $(env | sed -n 's/^\(XDG_[A-Z_]*\)=.*/\1/p'); do
    unset "$variable"
done
# If a test asks for the keys of a machine after all, it asks this one. Nothing listens.
AWS_EC2_METADATA_DISABLED=true
AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:9
GCE_METADATA_HOST=127.0.0.1:9
export DELTAWIRE_CACHE HOME AWS_EC2_METADATA_DISABLED AWS_EC2_METADATA_SERVICE_ENDPOINT \
    GCE_METADATA_HOST
home=$HOME
trap 'chmod -R u+w "$home"; rm -rf "$home"' EXIT
trap 'exit 130' INT TERM HUP

without_route() {
    [ -z "${DW_TEST_LOOPBACK:-}" ] || cat /proc/net/snmp /proc/net/snmp6 2>/dev/null | awk '
        /^Ip:/ && !column { for (i = 2; i <= NF; i++) if ($i == "OutNoRoutes") column = i; next }
        /^Ip:/ { n += $column }
        $1 == "Ip6OutNoRoutes" { n += $2 }
        END { print n + 0 }'
}

before=$(without_route)
status=0
"$@" || status=$?
if [ "$(without_route)" != "$before" ]; then
    echo "this test, or one that ran beside it, sent packets to an address that is not loopback" >&2
    exit 1
fi
exit $status
