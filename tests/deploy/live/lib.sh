# Sourced by the tests beside it, which scripts/test-deploy.sh starts. They have their
# own store of images and containers, which is removed when they end.
# shellcheck shell=bash
tree=$(cd "$(dirname "$0")/../../.." && pwd)
# shellcheck source=tests/cli/lib.sh
. "$tree/tests/cli/lib.sh"
: "${DW_PODMAN:?start scripts/test-deploy.sh}"

podman() {
    "$DW_PODMAN" "$@"
}

leave() {
    local status=$?
    set +e
    if [ $status -ne 0 ]; then
        for container in $(podman ps -a --format '{{.Names}}'); do
            echo "-- $container"
            podman logs "$container"
            podman exec "$container" journalctl --no-pager -n 60 -u 'deltawire-*' 2>/dev/null
        done
    fi
    podman rm -f -a -t 0 >/dev/null 2>&1
    podman rm -f -a -t 0 >/dev/null 2>&1 # containers whose network others shared
    podman volume prune -f >/dev/null 2>&1
    (exit $status)
    finish
}
trap leave EXIT

# Runs the command of the image as the current user, on the files below this directory.
deltawire() {
    podman run --rm --network none --user 0 -v "$scratch:$scratch" -w "$PWD" \
        localhost/deltawire-trainer "$@"
}

# run NAME ARGUMENT...: a container in the background
run() {
    podman run -d --name "$1" "${@:2}" >/dev/null
}

# inside NAME COMMAND...
inside() {
    podman exec "$@"
}

# stops NAME CODE: SIGTERM is enough, and ends it with that exit code
stops() {
    podman stop -t 60 "$1" >/dev/null
    local code
    code=$(podman inspect --format '{{.State.ExitCode}}' "$1")
    [ "$code" = "$2" ] || die "$1 ended with $code, not $2"
}

# asks URL [CURL-OPTION...]: sends a request inside the container $asked
asked=
asks() {
    inside "$asked" curl -fsSk -m 10 "${@:2}" "$1"
}

# code URL [CURL-OPTION...]: the status that it answers with
code() {
    inside "$asked" curl -sk -m 10 -o /dev/null -w '%{http_code}' "${@:2}" "$1"
}

# tls.key and tls.crt
make_certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
        -subj /CN=deltawire -keyout tls.key -out tls.crt 2>/dev/null
}
