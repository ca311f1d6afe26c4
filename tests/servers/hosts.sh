# Hosts, that is, network namespaces, to be sourced:
#
#     trainer  10.77.1.2 ---- 10.77.1.1  store  10.77.2.1 ---- 10.77.2.2  rollouts
#                                     10.77.0.1
#
# The store reaches both and forwards nothing, so trainer and rollouts cannot reach each
# other. The names of the namespaces begin with $name, which the caller sets. The caller
# also defines `skip TEXT`, which ends the script.
# shellcheck shell=bash
hosts_all="trainer rollouts store"

# Runs a command on a host.
on() { # HOST COMMAND...
    # shellcheck disable=SC2154 # of the caller
    ip netns exec "$name-$1" "${@:2}"
}

hosts_allowed() {
    [ "$(id -u)" -eq 0 ] || skip "only root makes network namespaces"
    command -v ip >/dev/null || skip "no ip here; scripts/install-deps.sh servers brings it"
    ip netns add "$name-store" 2>/dev/null || skip "network namespaces are not allowed here"
}

hosts_link() { # HOST NUMBER
    ip netns add "$name-$1"
    on "$1" ip link set lo up
    ip link add eth0 netns "$name-$1" type veth peer name "$1" netns "$name-store" ||
        skip "the kernel has no veth"
    on "$1" ip address add "10.77.$2.2/24" dev eth0
    on store ip address add "10.77.$2.1/24" dev "$1"
    on "$1" ip link set eth0 up
    on store ip link set "$1" up
    on "$1" ip route add 10.77.0.1 via "10.77.$2.1"
}

# After hosts_allowed.
hosts_start() {
    on store ip link set lo up
    on store ip address add 10.77.0.1/32 dev lo
    on store sh -c 'echo 0 >/proc/sys/net/ipv4/ip_forward'
    hosts_link trainer 1
    hosts_link rollouts 2
}

# Kills all processes on the hosts.
hosts_kill() { # NAME
    local host pids
    for host in $hosts_all; do
        pids=$(ip netns pids "$1-$host" 2>/dev/null || true)
        # shellcheck disable=SC2086 # a list of words
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
    done
}

hosts_remove() { # NAME
    local host
    for host in $hosts_all; do
        ip netns del "$1-$host" 2>/dev/null || true # and the links in it
    done
}
