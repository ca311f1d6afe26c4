#!/usr/bin/env bash
# A full disk and a read-only directory: no half file is left behind.
. "$(dirname "$0")/lib.sh"
small_run 1
delta=run/deltas/step_000001.safetensors

# limited BLOCKS COMMAND...: files can grow to at most BLOCKS x 1024 bytes
limited() {
    (
        ulimit -f "$1"
        shift
        "$@"
    )
}

it "leaves nothing behind if a delta or a run did not fit"
unchanged fails 6 "x.st: cannot write" \
    limited 2 "$deltawire" diff run/base run/step_000001 -o x.st
unchanged fails 6 "x.st: cannot write" \
    limited 2 "$deltawire" convert $delta -o x.st --base run/base --trl v1
unchanged fails 6 "cannot write" limited 64 "$deltawire" synth -o full --params 300K

it "does not change the checkpoint if the patch does not fit"
unchanged fails 6 "cannot write" limited 2 "$deltawire" apply $delta --to run/base

it "reports a full stdout"
status=0
deltawire inspect run/base >/dev/full 2>err.txt || status=$?
[ $status -eq 6 ] && grep -q 'stdout: cannot write' err.txt

# Root may write everywhere, so this runs as another user.
as_nobody() {
    if [ "$(id -u)" -eq 0 ]; then
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
    else
        "$@"
    fi
}
cp "$deltawire" deltawire
chmod 755 . deltawire
if as_nobody ./deltawire --version >/dev/null 2>&1; then
    it "leaves a read-only directory as it was"
    chmod -R a-w,a+rX run
    unchanged fails 6 "run/x: " as_nobody ./deltawire diff run/base run/step_000001 -o run/x
    unchanged fails 6 "run/base/" as_nobody ./deltawire apply $delta --to run/base
    as_nobody ./deltawire verify run/base $delta >/dev/null
else
    echo "  (read-only directories not tried: cannot run as another user)"
fi
