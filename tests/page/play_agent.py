"""A fake agent for the page: answers /status from a dictionary that a test fills.

    python3 tests/page/play_agent.py [STATE]      at http://127.0.0.1:9499/

test_real.py tests the page with a real agent. This one is for cases that are hard to produce
there: hundreds of versions, broken engines, hostile names.
"""
import base64
import datetime
import hashlib
import http.server
import json
import pathlib
import random
import re
import sys
import threading
import urllib.parse

PAGE = pathlib.Path(__file__).resolve().parents[2] / "src/agent/page.html"
MODEL = {"url": "s3://weights/qwen3-0.6b-grpo", "id": "9f86d081884c7d659a2feaa0c55ad015",
         "tensors": 310, "elements": 596049920, "bytes": 1192099840}
PHASES = {"fetch": 58, "decode": 31, "ready": 9, "pause": 6, "scatter": 4.2, "update": 11,
          "resume": 3, "finish": 42}  # typical, in ms


def policy(page):
    """The strictest policy with which the page works: this script, this style, nothing else."""
    def digest(tag):
        inside = re.search(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)[1]
        return "'sha256-" + base64.b64encode(hashlib.sha256(inside).digest()).decode() + "'"
    return (f"default-src 'none'; script-src {digest(b'script')}; "
            f"style-src {digest(b'style')}; img-src data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


def rfc(seconds_ago=0.0):
    t = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)
    return t.strftime("%Y-%m-%dT%H:%M:%S.") + f"{t.microsecond // 1000:03d}Z"


def entry(version, rng, applied=True):
    """A version as in a real run: about 1.13 % of the weights, 6.75 bits each."""
    changed = int(MODEL["elements"] * rng.gauss(0.0113, 0.0007))
    bits = rng.gauss(6.75, 0.03)
    ms = {name: typical * rng.lognormvariate(0, 0.25) for name, typical in PHASES.items()}
    if rng.random() < 0.02:
        ms["pause"] *= 4
        ms["update"] *= 5
    times = {f"{name}_ms": round(x, 3) for name, x in ms.items()}
    times["stopped_ms"] = round(ms["scatter"] + ms["update"] + 0.4, 3)
    if not applied:
        times = dict.fromkeys(times)
    return {"version": version, "from": version - 1, "time": rfc(), "objects": 3,
            "bytes": int(changed * bits / 8), "changed": changed,
            "density": changed / MODEL["elements"], "bits_per_change": bits,
            "applied": applied, **times}


def first(rng):
    """The first version: the whole model."""
    whole = {"version": 0, "from": None, "bytes": MODEL["bytes"], "objects": 5,
             "changed": MODEL["elements"], "density": 1.0, "bits_per_change": 16.0}
    return entry(0, rng) | whole | {"fetch_ms": 9400.0, "decode_ms": 2100.0}


def history(n, start=1, seed=7):
    rng = random.Random(seed)
    return [first(rng) if v == 0 else entry(v, rng) for v in range(start, start + n)]


def engine(state="serving", version=None, where="http://127.0.0.1:8000", error=None,
           driver="vllm", software="vLLM 0.32.0"):
    return {"driver": driver, "where": where, "state": state, "version": version,
            "software": software, "error": error}


def follower(name, version, head, age=4.0, status="following", message=""):
    return {"id": name, "version": version, "host": name.split("-")[0], "status": status,
            "lag": None if version is None else head - version, "message": message,
            "time": rfc(age), "age_seconds": age,
            "silent": age > 180 and status != "stopped"}


def trouble(code, where, text, since, until=None):
    return {"code": code, "where": where, "text": text, "time": rfc(since),
            "until": None if until is None else rfc(until)}


def status(n=24, behind=0, start=1, **changes):
    """A host that follows a stream of N versions, and is so many behind."""
    head = start + n - 1
    at = head - behind
    rows = history(n, start)
    for row in rows[n - behind:]:
        row.update({k: None for k in row if k.endswith("_ms")}, applied=False)
    own = [row for row in rows if row["applied"]]
    answer = {
        "deltawire": "0.5.0", "kind": "follower", "now": rfc(), "started": rfc(7260),
        "stream": MODEL, "head": {"version": head, "created": rfc(3), "step": str(head * 8)},
        "follower": {"id": "gpu03-5c1d", "dir": "/models/policy", "version": at,
                     "phase": "idle", "phase_version": None, "pinned": None},
        "lag": {"versions": behind, "seconds": 3.4 * behind}, "ready": True, "reason": "",
        "engines": [engine(version=at),
                    engine(version=at, where="http://127.0.0.1:8001")],
        "totals": {"versions": len(own), "objects": 3 * n, "requests": 11 * n, "retries": 2,
                   "bytes": sum(r["bytes"] for r in own), "failures": 0, "verified": n,
                   "changed": sum(r["changed"] for r in own), "verify_failures": 0},
        "followers": [follower("gpu03-5c1d", at, head), follower("gpu04-77aa", head, head),
                      follower("gpu05-0b13", head, head, 11),
                      follower("gpu06-e4f0", max(0, head - 2), head, 2, "fetching")],
        "error": None, "errors": [], "history_seq": 0, "history": rows,
    }
    return answer | changes


AWAY = "the endpoint cannot be reached: Connection refused; is the server up?"


def empty():
    return status(n=1) | {
        "stream": None, "head": None, "engines": [engine("unknown", software="")],
        "follower": {"id": "gpu03-5c1d", "dir": "/models/policy", "version": None,
                     "phase": "idle", "phase_version": None, "pinned": None},
        "lag": {"versions": None, "seconds": None}, "ready": False, "followers": [],
        "reason": "no version yet: the stream is empty", "history": [], "started": rfc(3),
        "totals": dict.fromkeys(status(n=1)["totals"], 0)}


def wrong():
    answer = status(n=40, behind=3)
    where = "s3://weights/qwen3-0.6b-grpo/log/0000000040.json"
    answer["ready"], answer["reason"] = False, "the store is away: " + AWAY
    answer["error"] = {"code": "unavailable", "where": where, "text": AWAY,
                       "since": rfc(95)}
    answer["errors"] = [
        trouble("unavailable", where, AWAY, 95),
        trouble("corrupt", "objects/5d/1c40", "checksum of block 12 is wrong: fetched again",
                3700, 3698)]
    answer["engines"] = [
        engine("behind", 36), engine("paused", 37, "http://127.0.0.1:8001"),
        engine("broken", None, "http://127.0.0.1:8002",
               trouble("conflict", "/update_weights", "answers 500: CUDA out of memory", 9)),
        engine("away", None, "http://127.0.0.1:30000", driver="sglang", software="",
               error=trouble("unavailable", "", "Connection refused", 9)),
        engine("unknown", None, None, driver="exec", software="")]
    answer["followers"] += [
        follower("gpu07-1d9e", 31, 40, 4000), follower("gpu08-93b2", 12, 40, 90000, "stopped"),
        follower("gpu09-42cc", None, 40, 20, "error", "no space left on /models")]
    return answer


def stream():
    return status(n=60) | {"kind": "stream", "follower": None, "engines": [],
                           "lag": {"versions": None, "seconds": None},
                           "history": [entry(v, random.Random(v), False)
                                       for v in range(1, 61)]}


STATES = {"plain": status, "empty": empty, "wrong": wrong, "stream": stream,
          "one": lambda: status(n=1), "base": lambda: status(n=20, start=0),
          "behind": lambda: status(n=30, behind=2), "many": lambda: status(n=300),
          "full": lambda: status(n=512, start=90000)}


class Agent:
    """An agent that answers with `answer`; the attributes may be set at any time."""

    def __init__(self, port=0):
        self.answer = status()
        self.refuse = None   # (HTTP status, text) instead of an answer
        self.token = None
        self.posts = []      # (path, headers, body)
        self.post_answer = (200, {})
        self.asked = []      # the query of each GET /status
        self.on_post = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        agent = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def send(self, code, kind, body, **headers):
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(body)

            def refused(self):
                if agent.token and \
                        self.headers.get("Authorization") != f"Bearer {agent.token}":
                    self.send(401, "text/plain", b"a token is wanted")
                    return True
                if agent.refuse:
                    self.send(agent.refuse[0], "text/plain", agent.refuse[1].encode())
                return bool(agent.refuse)

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                agent.may_answer.wait(60)
                if url.path == "/":
                    page = PAGE.read_bytes()
                    self.send(200, "text/html; charset=utf-8", page,
                              Content_Security_Policy=policy(page))
                elif url.path != "/status":
                    self.send(404, "text/plain", b"no such thing")
                elif not self.refused():
                    agent.asked.append(url.query)
                    since = int(urllib.parse.parse_qs(url.query).get("since", ["-1"])[0])
                    body = agent.answer | {"now": rfc(), "history": [
                        v for v in agent.answer["history"] if v["version"] > since]}
                    self.send(200, "application/json", json.dumps(body).encode())

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.refused():
                    return
                agent.posts.append((self.path, dict(self.headers), json.loads(body)))
                if agent.on_post:
                    agent.on_post()
                self.send(agent.post_answer[0], "application/json",
                          json.dumps(agent.post_answer[1]).encode())

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                pass  # a browser that left

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    played = Agent(9499)
    played.answer = STATES[sys.argv[1] if len(sys.argv) > 1 else "plain"]()
    print(played.url, "Enter ends it.")
    input()
    played.stop()
