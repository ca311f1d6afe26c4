#!/usr/bin/env bash
# The page of `deltawire stats --html` in a real browser: its script runs to the end and
# draws, whatever was measured.
. "$(dirname "$0")/lib.sh"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "SKIP: no chromium"
    exit 77
}
export HOME=$scratch
small_run 5
deltawire publish file://"$scratch"/stream run/base --quiet >/dev/null
for i in 1 2 3 4 5; do
    deltawire publish file://"$scratch"/stream run/step_00000$i --fold 2 --quiet >/dev/null
done
deltawire diff run/base run/base -o same.st >/dev/null
deltawire synth -o f32 --params 300K --steps 3 --dtype f32 --quiet >/dev/null

# draws WHAT N PAGE: the browser makes N figures out of the page, each with its drawing
draws() {
    it "$1"
    # it would ask its maker's servers for news
    LD_PRELOAD=$(dirname "$deltawire")/tests/libloopback_only.so \
        timeout 120 "$browser" --headless --no-sandbox --disable-gpu --enable-logging=stderr \
        '--host-resolver-rules=MAP * ~NOTFOUND' \
        --user-data-dir="$scratch/browser" --dump-dom "file://$scratch/$3" >dom.html 2>err.log ||
        die "the browser failed: $(tail -n 3 err.log)"
    ! grep -E 'CONSOLE.*(Error|Uncaught)' err.log || die "the script failed"
    python3 - "$2" <<'END'
import re, sys
dom = open("dom.html").read()
figures = re.findall("<figure.*?</figure>", dom, re.S)
assert len(figures) == int(sys.argv[1]), f"{len(figures)} figures"
for f in figures:
    assert "<figcaption>" in f and ("<svg" in f or "<table" in f), f[:200]
    assert not re.search('="[^"]*(NaN|undefined|Infinity)[^"]*"', f), f[:2000]
    assert not re.search("undefined|Infinity|NaN [^o]", re.sub("<[^>]*>", " ", f)), f[:2000]
END
}

stats() {
    deltawire stats "$@" --html page.html >/dev/null
}
stats file://"$scratch"/stream
draws "draws a stream" 9 page.html
stats --base run/base run/deltas/step_000001.safetensors
draws "draws a single step" 7 page.html
stats --base run/base same.st
draws "draws a step that changed nothing" 5 page.html
stats --base f32/base f32/deltas/*.safetensors
draws "draws dense changes" 8 page.html
