# shellcheck shell=sh disable=SC2154 # what the scripts set
# Shared by the scripts that start a server for tests. They set `name`, define
# `start_server` and end with `serve "$@"`:
#
#     NAME.sh start DIR       its state and logs are below DIR; DIR/env can be
#                             sourced once this returns
#     NAME.sh stop DIR        ends every process of it, also after a start that failed or
#                             was killed; the logs stay
#
# Every process of a server has DW_SERVER_DIR=DIR in its environment from its start. So
# `stop` finds them all without a pid file.
#
# Exit status 77: it cannot run on this machine, for the reason printed.
#
#     SERVER_TIMEOUT          seconds that a start may take (900)
#     SERVER_HOST             address to listen on (127.0.0.1)
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
host=${SERVER_HOST:-127.0.0.1}
PATH=$PATH:/usr/sbin:/sbin

say() {
    echo "$name: $*" >&2
}

need() { # COMMAND...
    for command in "$@"; do
        command -v "$command" >/dev/null && continue
        say "skipped: no $command here; scripts/install-deps.sh servers brings it"
        exit 77
    done
}

fail() {
    say "$*"
    for log in "$dir"/log/*; do
        [ -s "$log" ] && { say "the end of $log:"; tail -n 15 "$log" >&2; }
    done
    exit 1
}

seconds_left() {
    left=$((deadline - $(date +%s)))
    [ "$left" -gt 0 ] || fail "not up after $SERVER_TIMEOUT s, at: $*"
}

# Runs a command that must succeed within the time that is left.
must() {
    seconds_left "$*"
    timeout -k 1 "$left" "$@" >>"$dir/log/start" 2>&1 || fail "failed: $*"
}

# Repeats a command, which must not hang, until it succeeds.
await() {
    until "$@" >>"$dir/log/start" 2>&1; do
        seconds_left "$*"
        sleep 0.1
    done
}

# Starts a daemon that stays in the foreground, in a session of its own.
daemon() { # LOG COMMAND...
    log=$dir/log/$1
    shift
    setsid "$@" </dev/null >>"$log" 2>&1 &
}

free_ports() { # HOST N
    python3 "$here/../../scripts/free-ports.py" "$1" "$2"
}

random_word() { # N
    python3 -c 'import secrets, sys; print(secrets.token_hex(int(sys.argv[1]) // 2))' "$1"
}

# Makes the keys of the two users; a script passes them to its server. The second user
# has no rights in the first one's bucket.
make_keys() {
    access=dwtest$(random_word 14) secret=$(random_word 40)
    denied_access=dwdeny$(random_word 14) denied_secret=$(random_word 40)
    bucket=deltawire-test
}

s3() { # METHOD PATH
    AWS_ACCESS_KEY_ID=$access AWS_SECRET_ACCESS_KEY=$secret \
        python3 "$here/s3_request.py" "$1" "http://$host:$port$2"
}

# Makes the bucket and writes an object: only then does everything work.
await_bucket() {
    await s3 PUT "/$bucket"
    await s3 PUT "/$bucket/ready"
    await s3 DELETE "/$bucket/ready"
}

write_env() {
    cat >"$dir/env.new" <<END
export DW_TEST_S3_SERVER=$name
export DW_TEST_S3_ENDPOINT=http://$host:$port
export DW_TEST_S3_BUCKET=$bucket
export AWS_ACCESS_KEY_ID=$access
export AWS_SECRET_ACCESS_KEY=$secret
export AWS_REGION=us-east-1
export DW_TEST_S3_DENIED_ACCESS_KEY_ID=$denied_access
export DW_TEST_S3_DENIED_SECRET_ACCESS_KEY=$denied_secret
END
    mv "$dir/env.new" "$dir/env"
}

processes() {
    grep -lzsxF "DW_SERVER_DIR=$dir" /proc/[0-9]*/environ |
        sed 's|/proc/||; s|/environ||' | grep -vx "$$" || true
}

# The data is discarded, so processes are killed.
stop_server() {
    unset DW_SERVER_DIR # or grep would find itself
    n=0
    while left=$(processes) && [ -n "$left" ] && [ $n -lt 300 ]; do
        n=$((n + 1))
        # shellcheck disable=SC2086 # a list of words
        kill -KILL $left 2>/dev/null || true
        sleep 0.1
    done
    if [ -n "$left" ]; then
        say "could not end:" "$left"
        return 1
    fi
    release_data
    rm -f "$dir/env"
}

# DIR/data is a directory, a link to one elsewhere, or a filesystem in DIR/data.ext4.
release_data() {
    if mountpoint -q "$dir/data"; then
        umount "$dir/data"
    fi
    rm -f "$dir/data.ext4"
    if [ -L "$dir/data" ]; then
        rm -rf "$(readlink "$dir/data")"
    fi
    rm -rf "$dir/data"
}

serve() {
    if [ $# -ne 2 ] || [ -z "$2" ]; then
        say "usage: $name.sh start|stop DIR"
        exit 2
    fi
    case $1 in
    start)
        mkdir -p "$2"
        dir=$(CDPATH='' cd -- "$2" && pwd)
        if [ -e "$dir/data" ]; then
            say "$dir is in use; stop it first"
            exit 1
        fi
        SERVER_TIMEOUT=${SERVER_TIMEOUT:-900}
        deadline=$(($(date +%s) + SERVER_TIMEOUT))
        rm -rf "$dir/log"
        mkdir -p "$dir/log"
        export DW_SERVER_DIR="$dir"
        # If the start fails, everything that was started is ended.
        trap 'rc=$?; [ $rc -eq 0 ] || stop_server || true; exit $rc' EXIT
        trap 'exit 130' INT TERM HUP
        start_server
        write_env
        ;;
    stop)
        [ -d "$2" ] || exit 0
        dir=$(CDPATH='' cd -- "$2" && pwd)
        stop_server
        ;;
    *)
        say "usage: $name.sh start|stop DIR"
        exit 2
        ;;
    esac
}
