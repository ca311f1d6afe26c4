"""A strict Google Cloud Storage on loopback: its XML API, the token endpoint and the
metadata server. It behaves as documented, but its tokens live for seconds.

    with Google(lifetime=2) as google:
        google.url                 of all services; they differ in the path
        google.key_file(...)       the file of a service account, as Google makes it
        google.objects, .counts, .refuse, .parts_pass, .revoke(): as those of a Cloud
"""
import base64
import hashlib
import json
import pathlib
import secrets
import subprocess
import sys
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cloud as clouds

EMAIL = "trainer@project.iam.gserviceaccount.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
USER = {"client_id": "id.apps.googleusercontent.com", "client_secret": "a+b/c=",
        "refresh_token": "1//refresh-token"}
LEAST_PART = 5 << 20
SHA256_INFO = bytes.fromhex("3031300d060960864801650304020105000420")
Refused = clouds.Refused


class Google(clouds.Cloud):
    def __init__(self, lifetime=3600.0):
        super().__init__(lifetime, Handler)
        self.keys = {}  # token -> (None, None, when it expires)
        self.has_account = True
        self.pem = subprocess.run(["openssl", "genpkey", "-algorithm", "RSA", "-quiet"],
                                  check=True, capture_output=True, text=True).stdout
        modulus = subprocess.run(["openssl", "rsa", "-noout", "-modulus"], input=self.pem,
                                 check=True, capture_output=True, text=True).stdout
        self.modulus, self.key_id = int(modulus.split("=")[1], 16), secrets.token_hex(20)

    def issue(self, lifetime=None):
        token = "ya29." + secrets.token_urlsafe(60)
        lifetime = self.lifetime if lifetime is None else lifetime
        with self.lock:
            self.keys[token] = (None, None, time.time() + lifetime)
            self.counts["issued"] += 1
        # a whole number, as Google sends it, so the last seconds are a surprise
        return {"access_token": token, "expires_in": int(lifetime + 0.999),
                "token_type": "Bearer"}

    def key_file(self, **changes):
        return json.dumps({"type": "service_account", "project_id": "project",
                           "private_key_id": self.key_id, "private_key": self.pem,
                           "client_email": EMAIL, "token_uri": self.url + "/token",
                           **changes})

    def user_file(self, **changes):
        return json.dumps({"type": "authorized_user", **USER,
                           "token_uri": self.url + "/token", **changes})

    def check_signature(self, text, signature):
        """RS256, RFC 7518: PKCS #1 with SHA-256."""
        n = (self.modulus.bit_length() + 7) // 8
        found = pow(int.from_bytes(signature, "big"), 65537, self.modulus).to_bytes(n, "big")
        end = b"\0" + SHA256_INFO + hashlib.sha256(text).digest()
        if len(signature) != n or found != b"\0\1" + b"\xff" * (n - 2 - len(end)) + end:
            raise Refused(400, "invalid_grant", "Invalid JWT Signature.")


class Handler(clouds.Handler):
    def route(self):
        service = {"token": self.token, "computeMetadata": self.metadata}
        service.get(self.top, self.storage)()

    def explain(self, refused):
        if self.top == "token":
            return json.dumps({"error": refused.code, "error_description": refused.message})
        return super().explain(refused)

    # ---- services that give tokens ----

    def token(self):
        self.server.count("token")
        form = dict(urllib.parse.parse_qsl(self.body.decode()))
        if self.command != "POST" or self.headers.get("Content-Type") != \
                "application/x-www-form-urlencoded":
            raise Refused(400, "invalid_request")
        if form.get("grant_type") == "refresh_token":
            if {name: form.get(name) for name in USER} != USER:
                raise Refused(400, "invalid_grant", "Token has been expired or revoked.")
        elif form.get("grant_type") == "urn:ietf:params:oauth:grant-type:jwt-bearer":
            self.check_assertion(form["assertion"])
        else:
            raise Refused(400, "unsupported_grant_type")
        self.reply(200, json.dumps(self.server.issue()))

    def check_assertion(self, text):
        if "=" in text or text.count(".") != 2:
            raise Refused(400, "invalid_request", "no JWT")
        head, claims, signature = (base64.b64decode(part + "=" * (-len(part) % 4), "-_", True)
                                   for part in text.split("."))
        head, claims, now = json.loads(head), json.loads(claims), time.time()
        if head != {"alg": "RS256", "typ": "JWT", "kid": self.server.key_id}:
            raise Refused(400, "invalid_grant", "Invalid JWT header.")
        self.server.check_signature(text.rsplit(".", 1)[0].encode(), signature)
        if claims["iss"] != EMAIL:
            raise Refused(400, "invalid_grant", "Invalid grant: account not found")
        if claims["aud"] != self.server.url + "/token" or claims["scope"] != SCOPE:
            raise Refused(400, "invalid_scope")
        if not now - 300 < claims["iat"] <= now + 1 or claims["exp"] - claims["iat"] > 3600:
            raise Refused(400, "invalid_grant", "Invalid JWT: must be a short-lived token")

    def metadata(self):
        self.server.count("metadata")
        if self.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in self.headers:
            raise Refused(403, "Forbidden")
        right = self.path_only == ("/computeMetadata/v1/instance/service-accounts/default/"
                                   "token") and self.server.has_account
        body = json.dumps(self.server.issue()) if right else "no such account"
        self.reply(200 if right else 404, body, Metadata_Flavor="Google")

    # ---- objects ----

    def check_token(self, bucket):
        text = self.headers.get("Authorization")
        if text is None:
            self.server.counts["unsigned"] += 1
            if bucket == "public" and self.command in ("GET", "HEAD"):
                return
            raise Refused(403, "AccessDenied", "Anonymous caller does not have access")
        with self.server.lock:
            known = self.server.keys.get(text.removeprefix("Bearer "))
        if not text.startswith("Bearer ") or not known:
            raise Refused(401, "AuthenticationRequired")
        if time.time() > known[2]:
            self.server.counts["expired"] += 1
            raise Refused(401, "AuthenticationRequired", "expired")

    def storage(self):
        self.server.count("storage")
        bucket, key = self.place()
        self.check_token(bucket)
        if bucket == "forbidden":
            raise Refused(403, "AccessDenied")
        names = {name.lower() for name in self.headers}
        if any(name.startswith(("x-amz-", "if-none-match")) for name in names):
            raise Refused(400, "InvalidArgument", "headers of S3")
        generation = self.headers.get("x-goog-if-generation-match")
        if generation is not None and (self.command != "PUT" or "uploadId" in self.query):
            raise Refused(400, "InvalidArgument", "no preconditions here")
        if generation not in (None, "0"):
            raise Refused(412, "PreconditionFailed")
        if self.command == "DELETE" and "uploadId" not in self.query:
            with self.server.lock:
                if self.server.objects.pop((bucket, key), None) is None:
                    raise Refused(404, "NoSuchKey")
            return self.reply(204)
        if self.command == "POST" and "uploadId" in self.query:
            parts = self.server.uploads.get(self.query["uploadId"])
            if parts is None:
                raise Refused(404, "NoSuchUpload")
            if any(len(parts[number]) < LEAST_PART for number in sorted(parts)[:-1]):
                raise Refused(400, "EntityTooSmall")
        self.serve(bucket, key, generation is not None)
