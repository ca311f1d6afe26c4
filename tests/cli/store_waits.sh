#!/usr/bin/env bash
# A store that does not answer is reported before the error.
. "$(dirname "$0")/lib.sh"

export AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x AWS_EC2_METADATA_DISABLED=true

# A server that accepts connections and never answers.
"$python" -c '
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    time.sleep(1)' >port.txt &
server=$!
client=
end_processes() {
    local status=$?
    kill -KILL $server $client 2>/dev/null || true
    (exit $status) || finish
    finish
}
trap end_processes EXIT
wait_until test -s port.txt
endpoint=http://127.0.0.1:$(cat port.txt)

it "reports that it waits"
"$deltawire" log s3://bucket/run --endpoint "$endpoint" >out.txt 2>err.txt &
client=$!
wait_until grep -q '^deltawire: s3://bucket/run: no answer for [0-9]* s ([0-9]* tr[a-z]*), still trying$' err.txt
kill -KILL $client
wait $client 2>/dev/null || true

it "does not report it with --quiet"
status=0
deltawire log s3://bucket/run --endpoint "$endpoint" --timeout 6 -q 2>err.txt || status=$?
[ $status -eq 9 ] && [ "$(grep -c '^deltawire: ' err.txt)" -eq 1 ]
