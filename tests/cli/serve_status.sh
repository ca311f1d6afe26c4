#!/usr/bin/env bash
# A stream in a browser, as JSON and as metrics.
. "$(dirname "$0")/stream_lib.sh"
for tool in curl openssl; do
    command -v $tool >/dev/null || { echo "no $tool here: skipped"; exit 77; }
done
small_run 5
url=file://$scratch/store/run

# where NAME: the URL at which the process of that name listens
where() {
    sed -n 's/^listening at //p' "err.$1"
}
listens() {
    [ -n "$(where "$1")" ]
}
get() { # PATH [CURL-OPTION...]
    curl -sS --noproxy '*' --max-time 60 "${@:2}" "$at$1"
}
code() { # PATH [CURL-OPTION...]
    get "$1" -o /dev/null -w '%{http_code}' "${@:2}"
}
status_holds() { # EXPRESSION
    get status | holds "$1"
}

it "answers while there is no stream, and reports that"
start one serve-status "$url" --listen 127.0.0.1:0 --interval 0.2
one=$!
wait_until listens one
at=$(where one)
[ "$(code healthz)" = 200 ]
wait_until status_holds 'o["error"] and o["error"]["code"] == "not found"'
[ "$(code readyz)" = 503 ]
prints '^no version: .*there is no stream here' get readyz
get readyz >out.ready
get status | holds 'o["reason"] + "\n" == open("out.ready").read()'
status_holds 'o["kind"] == "stream" and o["stream"] is None and o["head"] is None'

it "shows the stream once it exists"
new_stream "$url" 3
wait_until status_holds 'len(o["history"]) == 4'
[ "$(code readyz)" = 200 ]
get status >out.status
holds 'o["stream"]["url"].endswith("/store/run") and o["stream"]["elements"] > 300000' <out.status
holds 'o["head"]["version"] == 3 and o["head"]["step"] == "3"' <out.status
holds '[h["version"] for h in o["history"]] == [0, 1, 2, 3]' <out.status
holds 'all(h["bits_per_change"] > 1 for h in o["history"][1:])' <out.status
holds 'o["history"][0]["bits_per_change"] is None' <out.status
holds 'not any(h["applied"] for h in o["history"]) and o["error"] is None' <out.status
holds 'o["errors"][0]["until"] is not None and o["totals"]["requests"] > 4' <out.status

it "shows new versions"
publish_step "$url" 4
wait_until status_holds 'o["head"]["version"] == 4'
get 'status?since=3' | holds '[h["version"] for h in o["history"]] == [4]'

it "shows the followers"
deltawire follow "$url" --into model --until 4 --id rollout-1 --quiet
wait_until status_holds 'o["followers"] and o["followers"][0]["status"] == "stopped"'
status_holds 'o["followers"][0]["id"] == "rollout-1" and o["followers"][0]["lag"] == 0'

it "has a page"
get "" >out.page # read all of it: curl fails if its reader ends early
grep -qi '<!doctype html>' out.page
get "" -I | tr -d '\r' >out.head
grep -q "^Content-Security-Policy: default-src 'none'; script-src 'sha256-" out.head

it "has metrics that Prometheus reads"
get metrics >out.metrics
grep -qx 'deltawire_head_version 4' out.metrics
grep -qx 'deltawire_follower_version{follower="rollout-1"} 4' out.metrics
if command -v promtool >/dev/null; then
    [ -z "$(promtool check metrics <out.metrics 2>&1)" ]
    promtool check rules "$tests/../deploy/prometheus/alerts.yml" >/dev/null
    promtool check config --syntax-only "$tests/../deploy/prometheus/prometheus.yml" >/dev/null
    promtool test rules "$tests/data/alerts_test.yml" >/dev/null
else
    echo "  no promtool here: not checked"
fi

it "a follower that was killed is silent"
object_edit "$url" followers/rollout-1.json 'o |= {"status": "following", "time": "2026-01-02T03:04:05Z"}'
wait_until status_holds 'o["followers"][0]["silent"] is True'
get metrics >out.metrics
grep -qx 'deltawire_follower_silent{follower="rollout-1"} 1' out.metrics

it "has nothing to pin"
[ "$(code pin -X POST -H 'Content-Type: application/json')" = 404 ]

it "reports when the store goes away, goes on, and reports when it is back"
mv store/run store/away
wait_until grep -q '^deltawire: .*the store is absent' err.one
status_holds 'o["head"]["version"] == 4 and o["totals"]["failures"] > 0'
[ "$(code healthz)" = 200 ]
mv store/away store/run
wait_until status_holds 'o["error"] is None'
wait_until grep -q 'works again' err.one

it "ends by SIGINT"
kill -INT $one
ends $one 0
curl -s --noproxy '*' --max-time 5 "$at" >/dev/null && die "it still answers"

it "prints events as JSON, and ends by SIGTERM"
start two serve-status "$url" --listen localhost:0 --json
two=$!
wait_until test -s out.two
head -n 1 out.two | holds 'o["event"] == "listening" and o["url"].startswith("http://localhost:")'
kill -TERM $two
ends $two 0
tail -n 1 out.two | holds 'o["event"] == "stopped"'
[ ! -s err.two ]

it "refuses to be reached by others without a token and TLS"
openssl rand -hex 16 >token
fails 2 "needs a token" deltawire serve-status "$url" --listen 0.0.0.0:0
fails 2 "needs a token" deltawire serve-status "$url" --listen 0.0.0.0:0 --plain
fails 2 "needs TLS" deltawire serve-status "$url" --listen 0.0.0.0:0 --token-file token
fails 2 "no address to listen" deltawire serve-status "$url" --listen 9470
: >empty
fails 2 "no token in it" deltawire serve-status "$url" --token-file empty
fails 6 "missing: cannot open" deltawire serve-status "$url" --token-file missing

it "speaks TLS, and wants the token"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=x \
    -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem 2>/dev/null
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out other.pem 2>/dev/null
fails 5 "not the key of the certificate" deltawire serve-status "$url" --listen 127.0.0.1:0 \
    --tls-cert cert.pem --tls-key other.pem
start three serve-status "$url" --listen 0.0.0.0:0 --token-file token --tls-cert cert.pem \
    --tls-key key.pem
three=$!
wait_until listens three
at=$(where three)
[ "${at#https://0.0.0.0:}" != "$at" ]
at=https://127.0.0.1:${at#https://0.0.0.0:}
[ "$(code healthz --cacert cert.pem)" = 200 ]
[ "$(code "" --cacert cert.pem)" = 200 ]
[ "$(code status --cacert cert.pem)" = 401 ]
[ "$(code status --cacert cert.pem -H 'Authorization: Bearer 00')" = 401 ]
get status --cacert cert.pem -H "Authorization: Bearer $(cat token)" |
    holds 'o["kind"] == "stream"'
get healthz 2>/dev/null && die "a certificate of nobody is trusted"
plain=$(curl -s --noproxy '*' --max-time 60 "http://${at#https://}healthz") || true
[ "$plain" != ok ] || die "it speaks plain HTTP too"
grep -rqF "$(cat token)" out.three err.three && die "the token is shown"

it "reports that a port is taken"
port=${at##*:}
fails 8 "another process listens there" deltawire serve-status "$url" \
    --listen "0.0.0.0:${port%/}" --token-file token --plain
kill -TERM $three
ends $three 0

it "accepts the trusted keys"
deltawire keygen signer >/dev/null
fails 11 "not signed\|no signature" deltawire serve-status "$url" --listen 127.0.0.1:0 \
    --trust signer.pub --quiet
