#!/usr/bin/env python3
"""wordle-train with servers and environments that give wrong answers: it trains on none of them,
reports them, and goes on until it is asked to end."""
import http.server
import json
import signal
import threading

from lib import DEADLINE_S, Server, program, run_tests, scratch, start, wait_until

ENV, TRAIN = program("WORDLE_ENV"), program("WORDLE_TRAIN")
VOCAB = 32
env = Server(ENV, "--listen", "127.0.0.1:0")


class Liar:
    """Answers with the result of ANSWER for the path and the body of a request."""

    def __init__(self, answer):
        self.n_asked = 0

        liar = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                liar.n_asked += 1
                data = json.dumps(answer(self.path, json.loads(body or "{}"))).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_DELETE = do_POST

            def log_message(self, *args):
                pass

        self.at = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.at.server_port}"
        threading.Thread(target=self.at.serve_forever, daemon=True).start()


def sampler(version="0", token=1, logp=-1.0, stream=None, before=lambda: None):
    """A server whose samples all have one token; calls BEFORE at each request."""
    def answer(_, body):
        before()
        choice = {"text": "q", "token_ids": [token], "weight_version": version,
                  "logprobs": {"token_logprobs": [logp]}}
        choices = [{"index": i, **choice} for i in range(len(body["prompt"]))]
        return {"choices": choices} | ({"weight_stream": stream} if stream else {})
    return Liar(answer)


def judge(reward):
    """An environment with this reward."""
    def answer(path, body):
        game = {"id": "1", "prompt": "WORDLE\n", "reward": reward, "valid": True, "done": True}
        return game if path.endswith("/guess") else {"games": [game] * body.get("n", 1)}
    return Liar(answer)


def train(name, at_env, server, *options):
    """(the process, its metrics)"""
    path = scratch / f"{name}.jsonl"
    process = start(TRAIN, "--store", f"file://{scratch}/{name}",
                    "--state", scratch / f"{name}.state", "--env", at_env.url, "--server",
                    server.url, "--metrics", path, "--warmup", 0, "--steps", 2,
                    "--groups", 1, "--games", 2, *options)

    def lines():
        assert process.poll() is None or path.exists(), "it ended"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]
    return process, lines


def refused(name, at_env, server, text):
    process, lines = train(name, at_env, server)
    wait_until(text, lambda: any(text in line.get("text", "") for line in lines()))
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    events = [line["event"] for line in lines()]
    assert "step" not in events and events[-1] == "end", events


def test_what_is_refused():
    tokens = "without a usable 'token_ids and logprobs'"
    refused("token", env, sampler(token=VOCAB), tokens)
    refused("logp", env, sampler(logp=-1e300), tokens)
    refused("version", env, sampler(version="x"), "without a usable 'weight_version'")
    refused("stream", env, sampler(stream="0" * 32), "of another stream")
    refused("reward", judge(1e300), sampler(), "without a usable 'reward'")


def test_versions_of_nobody():
    """Samples of a version that does not exist yet are dropped; those of an existing one are
    used."""
    server = sampler(version="7")
    process, lines = train("ahead", env, server, "--evaluate", 0)
    wait_until("a start", lambda: lines())
    wait_until("games", lambda: server.n_asked > 100)
    assert [line["event"] for line in lines()] == ["start"], lines()
    process.send_signal(signal.SIGHUP)
    assert process.wait(DEADLINE_S) == 0
    process, lines = train("there", env, sampler())
    assert process.wait(DEADLINE_S) == 0
    steps = [line for line in lines() if line["event"] == "step"]
    assert [line["step"] for line in steps] == [1, 2], steps
    assert steps[0]["lag"] == 0 and steps[1]["lag"] == 1, steps
    versions = [line["of"] for line in lines() if line["event"] == "version"]
    assert versions == ["step 1", "step 2"], versions


def test_a_stream_that_is_there():
    """Another model without a state is published before its samples are used."""
    process, lines = train("there", env, sampler(), "--steps", 2)
    assert process.wait(DEADLINE_S) == 0  # already done: state and stream are those of before
    for file in (scratch / "there.state").glob("state*"):
        file.unlink()
    (scratch / "there.jsonl").unlink()
    process, lines = train("there", env, sampler(), "--steps", 0)
    assert process.wait(DEADLINE_S) == 0
    start, begun, end = lines()
    assert start["event"] == "start" and not start["resumed"], start
    assert begun["event"] == "version" and begun["of"] == "begun 0", begun
    assert end["state"] == begun["state"] and end["version"] == begun["version"], end


def test_a_store_that_fails():
    """The trainer reports it, and publishes again until the store is back."""
    real, bucket, once = scratch / "real", scratch / "failing", threading.Lock()
    real.mkdir()
    (scratch / "no directory").touch()

    def point_to(target):
        (scratch / "next").symlink_to(target)
        (scratch / "next").rename(bucket)  # at once

    def break_it():
        if once.acquire(blocking=False):
            point_to("no directory")

    point_to(real)
    process, lines = train("failing", env, sampler(before=break_it))
    wait_until("trouble", lambda: any("failing" in line.get("where", "") for line in lines()))
    assert "version" not in [line["event"] for line in lines()]
    point_to(real)
    assert process.wait(DEADLINE_S) == 0
    versions = [(line["version"], line["of"]) for line in lines() if line["event"] == "version"]
    assert versions == [(1, "step 1"), (2, "step 2")], versions


run_tests(globals())
