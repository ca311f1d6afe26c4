#!/usr/bin/env bash
# While a stream cannot be read, follow asks for it every --interval seconds.
. "$(dirname "$0")/stream_lib.sh"

cat >server.py <<'END'
import http.server

class Nothing(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("asked", "a") as asked:
            asked.write(self.path + "\n")
        body = b"<Error><Code>NoSuchKey</Code></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Nothing)
with open("port.new", "w") as port:
    port.write(str(server.server_address[1]))
__import__("os").rename("port.new", "port")
server.serve_forever()
END
"$python" server.py &
wait_until test -e port
export AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret AWS_REGION=us-east-1

it "keeps asking for a stream that does not exist"
asked_for() { # N
    [ "$(grep -c 'stream\.json' asked)" -ge "$1" ]
}
"$deltawire" follow s3://bucket/run --endpoint "http://127.0.0.1:$(cat port)" --into model \
    --interval 0.05 --json >out.follow 2>&1 &
follower=$!
wait_until asked_for 20 # with doubling waits there would be 5 in a minute
[ "$(grep -c '"event":"error"' out.follow)" -eq 1 ]
kill -TERM $follower
ends $follower 0
