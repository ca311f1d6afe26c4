"""Uses an installed wheel, with Python's library alone: scripts/test-wheel.sh runs it in a root
that has nothing else.

    wheel_check.py CERTIFICATE KEY [EMULATOR]

CERTIFICATE is of localhost; EMULATOR runs programs of this processor, if the kernel does not."""
import array
import http.server
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import threading

import deltawire

certificate, key, *emulator = sys.argv[1:]
package = pathlib.Path(deltawire.__file__).parent
scratch = pathlib.Path(tempfile.mkdtemp())
os.environ["HOME"] = str(scratch)
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"


def run(*words, **environment):
    """With the console script, which an emulator cannot start: it runs the command itself."""
    call = [*emulator, package / "bin/deltawire"] if emulator else ["deltawire"]
    return subprocess.run([*call, *words], capture_output=True, text=True,
                          env={**os.environ, **environment})


# A stream in a directory: published here, read by the command.
url = str(scratch / "stream")
trained, served = ({"w": array.array("f", [i * seed for i in range(10_000)])} for seed in (1, 0))
with deltawire.Publisher(url, trained) as trainer:
    trained["w"][77] = 0.5
    version = trainer.wait(trainer.publish(step=1)).version
    with deltawire.Follower(url, tensors=served) as engine:
        while engine.version != version:
            engine.stage(version)
            engine.apply()
            engine.finish()
assert served == trained
log = run("log", url)
assert log.returncode == 0 and log.stdout.count("\n") >= 2, log
assert run("verify", url).returncode == 0
assert (package / "deltawire.1").read_text().startswith(".")


# HTTPS: the bucket's server is trusted by its certificate only. It has no objects.
class Empty(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = []

    def do_GET(self):
        self.seen.append(self.path)
        listing = "list-type=2" in self.path
        body = (b'<?xml version="1.0"?><ListBucketResult><KeyCount>0</KeyCount>'
                b"<IsTruncated>false</IsTruncated></ListBucketResult>" if listing else
                b"<Error><Code>NoSuchKey</Code></Error>")
        self.send_response(200 if listing else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty)
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
bucket = {"AWS_ENDPOINT_URL": f"https://localhost:{server.server_port}", "AWS_REGION": "x",
          "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
done = run("log", "s3://bucket/none", AWS_CA_BUNDLE=certificate, **bucket)
assert done.returncode == 6 and Empty.seen, done
print(f"deltawire {deltawire.__version__} works here: {sys.platform} {os.uname().machine}")
