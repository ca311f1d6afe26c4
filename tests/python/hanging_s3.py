"""The parts of an S3 server that a stream needs. It can leave uploads unanswered, like a store
that hangs, and later refuse them. tests/e2e tests streams with real S3 servers."""
import hashlib
import http.server
import threading
from urllib.parse import parse_qs, unquote, urlparse

LISTED = ("<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
          "<Size>{}</Size></Contents>")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def key(self):
        return unquote(urlparse(self.path).path).split("/", 2)[2]

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/objects/" in self.path and self.server.hangs.is_set():
            self.server.reached.set()
            self.server.ended.wait()
            self.answer(self.server.code)
        elif self.headers.get("If-None-Match") == "*" and self.key() in self.server.objects:
            self.answer(412)
        else:
            self.server.objects[self.key()] = body
            self.answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_GET(self):
        query = parse_qs(urlparse(self.path).query)
        if "list-type" in query:
            prefix, after = (query.get(n, [""])[0] for n in ("prefix", "start-after"))
            found = "".join(LISTED.format(key, len(body))
                            for key, body in sorted(self.server.objects.items())
                            if key.startswith(prefix) and key > after)
            self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}"
                             "</ListBucketResult>".encode())
        elif self.key() not in self.server.objects:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self.answer_range(self.server.objects[self.key()])

    do_HEAD = do_GET

    def answer_range(self, body):
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        if "Range" not in self.headers:
            return self.answer(200, body, ETag=tag)
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last or len(body)), len(body) - 1)
        if first > last:
            return self.answer(416)
        return self.answer(206, body[first:last + 1], ETag=tag,
                           Content_Range=f"bytes {first}-{last}/{len(body)}")

    def do_DELETE(self):
        self.server.objects.pop(self.key(), None)
        self.answer(204)


class HangingS3(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects = {}
        self.code = 403  # the answer to an upload that hung
        self.hangs, self.reached, self.ended = (threading.Event() for _ in range(3))
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *error):
        self.ended.set()
        self.shutdown()
        super().__exit__(*error)
