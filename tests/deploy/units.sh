#!/usr/bin/env bash
# labels: slow
# systemd's own check of the units and the drop-ins under deploy/systemd.
tree=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/cli/lib.sh
. "$tree/tests/cli/lib.sh"
command -v systemd-analyze >/dev/null || {
    echo "skipped: no systemd-analyze (Debian's package systemd)"
    exit 77
}
version=$(systemd-analyze --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
[ "$version" -ge 250 ] || {
    echo "skipped: systemd $version, and credentials are from 250 on"
    exit 77
}

units=(deltawire-follow@.service deltawire-serve-status@.service deltawire-publish@.service)

# fresh: the units here, as installed
fresh() {
    rm -rf units
    mkdir units
    for unit in "${units[@]}"; do
        sed "s|^ExecStart=deltawire |ExecStart=$deltawire |" \
            "$tree/deploy/systemd/$unit" >"units/$unit"
        grep -q "^ExecStart=$deltawire " "units/$unit"
    done
}

# verified UNIT: it loads without a warning
verified() {
    systemd-analyze verify --man=no "./units/$1" >out.verify 2>&1 || die "$(cat out.verify)"
    [ ! -s out.verify ] || die "$1: $(cat out.verify)"
}

with() { # UNIT EXAMPLE
    mkdir -p "units/$1.d"
    cp "$tree/deploy/systemd/examples/$2" "units/$1.d/"
}

it "loads the units without a warning"
fresh
for unit in "${units[@]}"; do
    verified "$unit"
done

it "finds an unknown setting in a unit and in a drop-in"
sed -i 's/^ProtectSystem=/ProtectSistem=/' "units/${units[0]}"
(verified "${units[0]}") 2>/dev/null && die "not found"
fresh
with "${units[0]}" tmpfs.conf
echo ReadWritePath=/x >>"units/${units[0]}.d/tmpfs.conf"
(verified "${units[0]}") 2>/dev/null && die "not found in a drop-in"

it "loads the drop-ins and mounts"
fresh
for example in tmpfs memory tls; do
    with "${units[0]}" $example.conf
done
cp "$tree"/deploy/systemd/examples/*.mount units/
verified "${units[0]}"
with "${units[1]}" tls.conf
verified "${units[1]}"
with "${units[2]}" sign.conf
verified "${units[2]}"
if [ "$version" -ge 254 ]; then
    with "${units[0]}" backoff.conf
    verified "${units[0]}"
fi
for mount in units/*.mount; do
    verified "$(basename "$mount")"
done
for example in "$tree"/deploy/systemd/examples/*.conf; do
    case $(basename "$example" .conf) in
    tmpfs | memory | tls | sign | backoff) ;;
    *) die "not looked at: $example" ;;
    esac
done

it "exposes little"
fresh
for unit in "${units[@]}"; do
    systemd-analyze security --offline=yes --threshold=15 --no-pager "units/$unit" \
        >out.security || die "$(tail -n 1 out.security)"
done

it "hardens all of them alike"
hardening() {
    sed -n '/^NoNewPrivileges=/,/^$/p' "units/$1" | grep -v '^ProtectHome='
}
for unit in "${units[@]:1}"; do
    diff <(hardening "${units[0]}") <(hardening "$unit")
done
[ "$(hardening "${units[0]}" | wc -l)" -gt 20 ]
