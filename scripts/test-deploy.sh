#!/usr/bin/env bash
# Builds the container files of the commit that is checked out, and runs what deploy/
# describes: in containers, with compose, with its own systemd, and as the pod of the
# sidecar.
#
#     scripts/test-deploy.sh [PART...]      all, or: containers compose systemd kubernetes
#
# Needs podman and root. Images and layers are kept in a store of their own, below
# DELTAWIRE_CACHE or ~/.cache/deltawire: the first run takes some minutes. The base image
# comes from its registry or, if that cannot be reached, from Debian's mirror by mmdebstrap.
# The last line is 'N passed, N failed'. If this machine cannot run containers, it is
# 'skipped: REASON', and the exit status is 77.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD
[ $# -gt 0 ] || set -- containers compose systemd kubernetes
script_of() { # PART
    case $1 in
    containers | compose | systemd) echo "$tree/tests/deploy/live/$1.sh" ;;
    kubernetes) echo "$tree/tests/deploy/live/$1.py" ;;
    *) echo "test-deploy: no part '$1'" >&2; exit 2 ;;
    esac
}
for part in "$@"; do
    script_of "$part" >/dev/null
done
skip() { # REASON
    echo "skipped: $*"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "only root can run these containers"

store=${DELTAWIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/deltawire}/containers
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$store"
exec 9>"$store/lock"
flock -n 9 || { echo "test-deploy: another one runs" >&2; exit 1; }

# ---- podman, with a store and limits of its own -------------------------------------
# podman asks for more open files and processes than some machines allow even root.
least() { # A B
    if [ "$1" = unlimited ] || [ "$1" -gt "$2" ]; then echo "$2"; else echo "$1"; fi
}
files=$(least "$(ulimit -Hn)" 1048576) processes=$(least "$(ulimit -Hu)" 32768)
cat >"$scratch/containers.conf" <<END
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
END
# A command, not a function: podman-compose calls it too. runc knows more kinds of control
# groups than crun.
cat >"$scratch/podman" <<END
#!/bin/sh
export CONTAINERS_CONF=$scratch/containers.conf
exec $(command -v podman) --root "$store/root" --runroot "$store/run" --runtime runc "\$@" 9>&-
END
chmod +x "$scratch/podman"
podman() {
    "$scratch/podman" "$@"
}

# ---- the images ---------------------------------------------------------------------
base=docker.io/library/debian:12-slim
have_base() {
    podman image exists $base && return
    timeout 60 "$scratch/podman" pull -q $base >/dev/null 2>&1 && return
    echo "   no registry: mmdebstrap makes the base image"
    # the setting stays in the image: one failed download must not fail a build
    mmdebstrap --variant=minbase --aptopt='Acquire::Retries "5"' bookworm \
        "$scratch/base.tar" 2>"$scratch/log" &&
        podman import -q "$scratch/base.tar" $base >/dev/null 2>"$scratch/log"
    local status=$?
    rm -f "$scratch/base.tar"
    return $status
}

# Builds and runs a container that does nothing, with the limits of the real ones.
can_run_containers() {
    printf 'FROM %s\nRUN true\n' $base >"$scratch/Dockerfile"
    podman build -q --format docker --network host -t probe "$scratch" &&
        podman run --rm --network none --read-only --cap-drop all \
            --security-opt no-new-privileges localhost/probe true
} >"$scratch/log" 2>&1

build() { # IMAGE ARGUMENT...
    # docker's format, because OCI's has no health checks
    nice "$scratch/podman" build --format docker --network host --build-arg "JOBS=${JOBS:-}" \
        -t "$1" "${@:2}" >"$scratch/log" 2>&1 || { tail -n 25 "$scratch/log"; return 1; }
    echo "   $1, $(podman image inspect --format '{{.Size}}' "$1" | numfmt --to=si)B"
}

needs_machine() { # PART...
    [[ " $* " =~ ' '(systemd|kubernetes)' ' ]]
}

# One compile: the build stages are the same, and so are the files they see.
build_images() { # PART...
    local context=$scratch/space
    deploy/containers/spaces/assemble.sh "$context" &&
        build deltawire-agent -f "$context/deploy/containers/agent.Dockerfile" "$context" &&
        build deltawire-trainer -f "$context/deploy/containers/trainer.Dockerfile" "$context" &&
        build deltawire-spaces "$context" && # the Hub looks for its Dockerfile there
        build deltawire-build --target build "$context" || return
    ! needs_machine "$@" ||
        build deltawire-machine -f tests/deploy/live/machine.Dockerfile tests/deploy/live
}

echo "== images of $(git describe --always --dirty)"
have_base || skip "no registry, and no base image from Debian's mirror: $(tail -n 1 "$scratch/log")"
can_run_containers || skip "podman cannot run containers here: $(tail -n 1 "$scratch/log")"
if ! build_images "$@"; then
    echo "0 passed, 1 failed"
    exit 1
fi
podman image prune -f >/dev/null

# ---- the parts ----------------------------------------------------------------------
podman rm -f -a -t 0 >/dev/null 2>&1 || true # left by a killed run
passed=0 failed=0
for part in "$@"; do
    echo "== $part"
    if DW_PODMAN=$scratch/podman PYTHONDONTWRITEBYTECODE=1 "$(script_of "$part")" >"$scratch/log" 2>&1; then
        passed=$((passed + 1))
        grep '^- ' "$scratch/log" | sed 's/^/   /'
    else
        failed=$((failed + 1))
        sed 's/^/   | /' "$scratch/log"
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
