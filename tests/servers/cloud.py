"""A strict cloud on loopback: S3, STS, the container endpoint and instance metadata of AWS.
It behaves as documented, but gives keys that live for seconds. Unlike emulators, it checks
every signature and token. As a proxy it serves all hosts; those of Tigris are as strict as
Tigris is.

    with Cloud(lifetime=2) as cloud:
        cloud.url             of all services; they differ in the path
        cloud.objects         (bucket, key) -> bytes
        cloud.counts          what was asked, by name; "unsigned" counts requests without
                              credentials
        cloud.parts_pass      an event: while it is cleared, parts of uploads and reads of
                              what is below probe/ wait ("held")
        cloud.denied          methods that nobody may use on objects
        cloud.conditional     whether If-None-Match is looked at
        cloud.ahead           seconds that its clock is ahead
"""
import collections
import datetime
import hashlib
import hmac
import http.server
import json
import secrets
import threading
import time
import urllib.parse
import xml.sax.saxutils

TOKEN = "web-identity-token"
ROLE = "arn:aws:iam::1:role/trainer"
CONTAINER_TOKEN = "Basic container-token"
TIGRIS = ("t3.storage.dev", "storage.tigris.dev")


def iso(seconds):
    when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Refused(Exception):
    def __init__(self, status, code, message=""):
        self.status, self.code, self.message = status, code, message


class Cloud(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, lifetime=3600.0, handler=None):
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.lock = threading.Lock()
        self.lifetime = lifetime
        self.objects, self.uploads = {}, {}
        self.keys = {"AKIDLONGLIVED": ("secret", None, None)}
        self.refuse = collections.Counter()  # service -> how many requests get 503
        self.web_token = TOKEN
        self.counts = collections.Counter()
        self.parts_pass = threading.Event()
        self.parts_pass.set()
        self.denied, self.conditional, self.ahead = set(), True, 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *unused):
        self.parts_pass.set()
        self.shutdown()
        self.server_close()

    def issue(self):
        """New keys, as the fields of AWS's answers."""
        access, expires = "ASIA" + secrets.token_hex(8).upper(), time.time() + self.lifetime
        secret, token = secrets.token_hex(20), secrets.token_urlsafe(40)
        with self.lock:
            self.keys[access] = (secret, token, expires)
            self.counts["issued"] += 1
        return {"AccessKeyId": access, "SecretAccessKey": secret, "Token": token,
                "Expiration": iso(expires)}

    def revoke(self):
        """All keys that were issued are expired from now on."""
        with self.lock:
            for access, (secret, token, expires) in self.keys.items():
                if expires:
                    self.keys[access] = (secret, token, 1)

    def has_live_keys(self):
        with self.lock:
            return any(expires and time.time() <= expires
                       for _, _, expires in self.keys.values())

    def count(self, name):
        with self.lock:
            self.counts[name] += 1
            if self.refuse[name] > 0:
                self.refuse[name] -= 1
                raise Refused(503, "ServiceUnavailable")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *unused):
        pass

    def date_time_string(self, timestamp=None):
        return super().date_time_string((timestamp or time.time()) + self.server.ahead)

    def reply(self, status, body=b"", **headers):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.path.startswith("/"):  # as to a proxy
            self.path = "/" + self.path.split("/", 3)[3]
        self.path_only, _, self.query_text = self.path.partition("?")
        self.query = dict(urllib.parse.parse_qsl(self.query_text, keep_blank_values=True))
        self.top = self.path_only.split("/")[1]
        try:
            self.route()
        except Refused as refused:
            self.reply(refused.status, self.explain(refused))

    def route(self):
        service = {"sts": self.sts, "container": self.container, "latest": self.instance}
        service.get(self.top, self.s3)()

    def explain(self, refused):
        error = (f"<Error><Code>{refused.code}</Code>"
                 f"<Message>{xml.sax.saxutils.escape(refused.message)}</Message></Error>")
        return f"<ErrorResponse>{error}</ErrorResponse>" if self.top == "sts" else error

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    # ---- signatures ----

    def check_signature(self, service):
        """Returns the access key."""
        text = self.headers.get("Authorization", "")
        if not text.startswith("AWS4-HMAC-SHA256 "):
            self.server.counts["unsigned"] += 1
            raise Refused(403, "AccessDenied", "no signature")
        fields = dict(part.split("=", 1) for part in text.split(" ", 1)[1].split(", "))
        access, day, region, for_service, end = fields["Credential"].split("/")
        with self.server.lock:
            known = self.server.keys.get(access)
        if not known:
            raise Refused(403, "InvalidAccessKeyId")
        secret, token, expires = known
        if self.headers.get("x-amz-security-token") != token:
            raise Refused(400, "InvalidToken")
        if expires and time.time() > expires:
            self.server.counts["expired"] += 1
            raise Refused(400, "ExpiredToken")
        payload = self.headers["x-amz-content-sha256"]
        if payload != "UNSIGNED-PAYLOAD" and payload != sha256(self.body):
            raise Refused(400, "XAmzContentSHA256Mismatch")
        query = "&".join(sorted(part if "=" in part else part + "="
                                for part in self.query_text.split("&") if part))
        names = fields["SignedHeaders"].split(";")
        for needed in ("host", "x-amz-date") + (("x-amz-security-token",) if token else ()):
            if needed not in names:
                raise Refused(403, "SignatureDoesNotMatch", needed)
        lines = "".join(f"{name}:{' '.join(self.headers[name].split())}\n" for name in names)
        canonical = "\n".join((self.command, self.path_only, query, lines,
                               fields["SignedHeaders"], payload))
        date = self.headers["x-amz-date"]
        to_sign = "\n".join(("AWS4-HMAC-SHA256", date, "/".join((day, region, service, end)),
                             sha256(canonical.encode())))
        key = ("AWS4" + secret).encode()
        for part in (day, region, service, "aws4_request", to_sign):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        if for_service != service or key.hex() != fields["Signature"] or date[:8] != day:
            raise Refused(403, "SignatureDoesNotMatch")
        return access

    # ---- services that give keys ----

    def sts(self):
        form = dict(urllib.parse.parse_qsl(self.body.decode()))
        self.server.count("sts")
        action = form["Action"]
        if form.get("Version") != "2011-06-15" or not form.get("RoleSessionName"):
            raise Refused(400, "ValidationError")
        if action == "AssumeRoleWithWebIdentity":
            if form["WebIdentityToken"] != self.server.web_token:
                raise Refused(400, "InvalidIdentityToken", "the token is not known here")
        elif action == "AssumeRole":
            self.check_signature("sts")
        else:
            raise Refused(400, "InvalidAction")
        if form["RoleArn"] != ROLE:
            raise Refused(403, "AccessDenied", "not authorized to assume " + form["RoleArn"])
        keys = self.server.issue()
        keys["SessionToken"] = keys.pop("Token")
        fields = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
        self.reply(200, f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                        f"<{action}Result><Credentials>{fields}</Credentials>"
                        f"</{action}Result></{action}Response>")

    def container(self):
        self.server.count("container")
        if self.headers.get("Authorization") != CONTAINER_TOKEN:
            raise Refused(401, "Unauthorized")
        self.reply(200, json.dumps(self.server.issue()))

    def instance(self):
        self.server.count("instance")
        if self.path_only == "/latest/api/token":
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if self.command != "PUT" or not 1 <= int(ttl or 0) <= 21600:
                raise Refused(400, "Bad Request")
            self.server.instance_token = secrets.token_urlsafe(20)
            return self.reply(200, self.server.instance_token)
        if self.headers.get("X-aws-ec2-metadata-token") != self.server.instance_token:
            raise Refused(401, "Unauthorized")
        role = "/latest/meta-data/iam/security-credentials/"
        if self.path_only == role:
            return self.reply(200, "node-role")
        if self.path_only != role + "node-role":
            raise Refused(404, "Not Found")
        return self.reply(200, json.dumps({"Code": "Success", **self.server.issue()}))

    # ---- objects ----

    def s3(self):
        self.server.count("s3")
        self.check_signature("s3")
        create = self.headers.get("If-None-Match") == "*"
        if (self.headers["Host"].endswith(TIGRIS)
                and self.headers.get("X-Tigris-Consistent") != "true"):
            raise Refused(400, "InvalidArgument", "consistent in one region only")
        self.serve(*self.place(), create)

    def place(self):
        """Bucket and key."""
        _, bucket, *rest = urllib.parse.unquote(self.path_only).split("/")
        return bucket, "/".join(rest)

    def serve(self, bucket, key, create):
        server, at, query = self.server, (bucket, key), self.query
        create = create and server.conditional
        if not key:
            return self.list(bucket)
        if self.command in server.denied:
            raise Refused(403, "AccessDenied")
        if "uploads" in query:
            upload = secrets.token_hex(8)
            server.uploads[upload] = {}
            return self.reply(200, "<InitiateMultipartUploadResult><UploadId>" + upload +
                              "</UploadId></InitiateMultipartUploadResult>")
        etag = '"' + hashlib.md5(self.body).hexdigest() + '"'
        if "partNumber" in query:
            self.hold()
            server.uploads[query["uploadId"]][int(query["partNumber"])] = self.body
            server.counts["parts"] += 1
            return self.reply(200, ETag=etag)
        if self.command in ("PUT", "POST"):
            with server.lock:
                if create and at in server.objects:
                    raise Refused(412, "PreconditionFailed")
                if self.command == "PUT":
                    server.objects[at] = self.body
                    return self.reply(200, ETag=etag)
                parts = server.uploads.pop(query["uploadId"])
                server.objects[at] = b"".join(parts[number] for number in sorted(parts))
            return self.reply(200, "<CompleteMultipartUploadResult><ETag>x</ETag>"
                                   "</CompleteMultipartUploadResult>")
        if self.command == "DELETE":
            server.uploads.pop(query.get("uploadId"), None)
            if "uploadId" not in query:
                server.objects.pop(at, None)
            return self.reply(204)
        data = server.objects.get(at)
        if data is None:
            raise Refused(404, "NoSuchKey")
        if "/probe/" in key:
            self.hold()
        if self.command == "HEAD":
            return self.reply(200, Content_Length=str(len(data)), ETag='"e"')
        wanted = self.headers.get("Range")
        if not wanted:
            return self.reply(200, data, ETag='"e"')
        first, last = (int(text) for text in wanted.split("=")[1].split("-"))
        if first >= len(data):
            raise Refused(416, "InvalidRange")
        last = min(last, len(data) - 1)
        return self.reply(206, data[first:last + 1], ETag='"e"',
                          Content_Range=f"bytes {first}-{last}/{len(data)}")

    def hold(self):
        if not self.server.parts_pass.is_set():
            self.server.counts["held"] += 1
            self.server.parts_pass.wait()

    def list(self, bucket):
        query, after = self.query, self.query.get("start-after", "")
        after = query.get("continuation-token", after)
        with self.server.lock:
            keys = sorted(key for where, key in self.server.objects if where == bucket
                          and key.startswith(query.get("prefix", "")) and key > after)
        page = keys[:int(query.get("max-keys", 1000))]
        rows = "".join(f"<Contents><Key>{key}</Key>"
                       f"<Size>{len(self.server.objects.get((bucket, key), b''))}</Size>"
                       f"<LastModified>{iso(time.time())}</LastModified></Contents>"
                       for key in page)
        more = len(page) < len(keys)
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
        self.reply(200, f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>"
                        f"{token}{rows}</ListBucketResult>")
