#!/usr/bin/env python3
"""wordle-rollout over a stream that the real command publishes: its results, their versions,
refusals, and kills. Every token is compared with a model in plain Python with the weights that
the answer names."""
import json
import math
import shutil
import signal
import subprocess
import threading

import plain_model as plain
from lib import DEADLINE_S, Server, in_parallel, program, run_tests, scratch, wait_until

ROLLOUT, DELTAWIRE = program("WORDLE_ROLLOUT"), program("DELTAWIRE")
BUCKET = scratch / "bucket"
CLOSE = 2e-3  # of log-probabilities: fp32 sums against doubles
versions, published = [plain.new_weights(1)], []


# ---- the stream and the server ----

def publish_weights(weights, baseline=scratch / "baseline"):
    folder = scratch / "checkpoint"
    plain.write_checkpoint(folder, weights)
    subprocess.run([DELTAWIRE, "publish", f"file://{BUCKET}", folder, "--baseline", baseline,
                    "--quiet"], check=True, stdout=subprocess.DEVNULL)


def publish():
    """The next version, through the command."""
    if published:
        versions.append(plain.changed(versions[-1], len(versions)))
    publish_weights(versions[-1])
    published.append(len(versions) - 1)


def serve(listen="127.0.0.1:0"):
    return Server(ROLLOUT, "--stream", f"file://{BUCKET}", "--listen", listen)


def head():
    said = subprocess.run([DELTAWIRE, "log", f"file://{BUCKET}", "-n", "1", "--json"], check=True,
                          capture_output=True, text=True).stdout
    newest = json.loads(said)["versions"][0]
    return str(newest["version"]), newest["state"]


def wait_for_head(at):
    """Until the weights that it computes with are those of the newest version."""
    def is_there():
        status, said = at.ask("GET", "/digest")
        return status == 200 and (said["weight_version"], said["digest"]) == head()
    wait_until("the newest version", is_there)


# ---- completions ----

def complete(at, **body):
    return at.post("/v1/completions", {"prompt": "WORDLE\n", "max_tokens": 6, **body})["choices"]


def check(choice, models, greedy=False):
    """Tokens and log-probabilities are those of the named version."""
    prompt, ids = choice["prompt_token_ids"], choice["token_ids"]
    logps = choice["logprobs"]["token_logprobs"]
    version = int(choice["weight_version"])
    assert len(ids) == len(logps) > 0
    if version not in models:
        models[version] = plain.Model(versions[version])
    for i, token in enumerate(ids):
        expected = models[version].after(prompt + ids[:i])
        assert abs(expected[token] - logps[i]) < CLOSE, (i, version, expected[token], logps[i])
        if greedy:
            assert max(expected) - expected[token] < CLOSE, (i, version)


def test_before_there_are_weights():
    global server
    server = serve()
    assert "weights" in server.want(503, "GET", "/health")["error"]["message"]
    server.want(503, "POST", "/v1/completions", {"prompt": "WORDLE\n"})
    server.want(503, "GET", "/digest")
    publish()
    wait_for_head(server)
    assert server.get("/health")["status"] == "ok"


def test_what_it_computes():
    models = {}
    for prompt in ("WORDLE\n", "WORDLE\ncrane .gy..\nabout !!!!!\n", "x"):
        (choice,) = complete(server, prompt=prompt, temperature=0, max_tokens=16)
        assert choice["prompt_token_ids"] == plain.encode(prompt)
        assert choice["text"] == plain.decode(choice["token_ids"]).rstrip("\n")
        stopped = plain.decode(choice["token_ids"]).endswith("\n")
        assert choice["finish_reason"] == ("stop" if stopped else "length")
        assert "\n" not in choice["text"]
        check(choice, models, greedy=True)
    # a seed repeats the samples
    many = {"prompt": ["WORDLE\n"] * 20 + ["ab"] * 20, "seed": 5, "temperature": 1.3}
    choices = complete(server, **many)
    assert [c["index"] for c in choices] == list(range(40))
    assert len({tuple(c["token_ids"]) for c in choices}) > 25
    for choice in choices[::4]:
        check(choice, models)
    assert complete(server, **many) == choices
    assert complete(server, **{**many, "seed": 6}) != choices


def test_games_go_on():
    """A prompt that continues a sample is computed from its cache, with the same result; so is one
    that only begins like it, and with more games than there is room for."""
    models = {}
    games = ["WORDLE\n"] * 64
    for turn in range(5):
        for i, choice in enumerate(complete(server, prompt=games, seed=turn, max_tokens=5)):
            if i % 16 == 0:
                check(choice, models)
            games[i] += (choice["text"] + "?????")[:5] + " .gy..\n"
        other = [game[:9] + "z" + game[10:] for game in games[:3]]
        for choice in complete(server, prompt=other, temperature=0):
            check(choice, models, greedy=True)


def test_sampling():
    """The frequencies of tokens equal their probabilities."""
    p = [math.exp(x) for x in plain.Model(versions[0]).after(plain.encode("WORDLE\n"))]
    counts = [0] * plain.V
    for seed in range(40):
        for choice in complete(server, prompt=["WORDLE\n"] * 64, max_tokens=1, seed=seed):
            counts[choice["token_ids"][0]] += 1
    n = sum(counts)
    for i in range(plain.V):
        assert abs(counts[i] - n * p[i]) < 6 * math.sqrt(n * p[i]) + 4, (i, counts[i], n * p[i])


def test_what_is_refused():
    good = {"prompt": "WORDLE\n"}
    for wrong in ({"prompt": ""}, {"prompt": []}, {"prompt": 5}, {"prompt": ["a", 5]},
                  {"prompt": None}, {"prompt": "a" * 128}, {"prompt": "crane1"},
                  {"prompt": ["a"] * 65}, {"max_tokens": 0}, {"max_tokens": 17},
                  {"max_tokens": "6"}, {"temperature": -1}, {"temperature": "hot"},
                  {"stop": "a"}, {"seed": "x"}, {"n": 2}, {"top_p": 0.9}, {"stream": True}):
        server.want(400, "POST", "/v1/completions", {**good, **wrong})
    for raw in ("", "x", "[]", "{", b"\xff"):
        server.want(400, "POST", "/v1/completions", raw=raw)
    server.want(413, "POST", "/v1/completions", {**good, "model": "x" * (1 << 20)})
    server.want(404, "GET", "/v1/completions")


def test_versions_under_load():
    """Versions arrive while requests run: each sample belongs to its version."""
    ends, lock, answers = threading.Event(), threading.Lock(), []

    def ask(i):
        prompt = "WORDLE\n"
        while not ends.is_set():
            got = complete(server, temperature=i % 2, prompt=[prompt] * 3)
            # games that continue, also across versions
            line = (got[0]["text"] + "?????")[:5] + " .....\n"
            prompt = prompt + line if len(prompt) < 80 else "WORDLE\n"
            with lock:
                answers.extend((i % 2 == 0, choice) for choice in got)

    def drive(i):
        if i > 0:
            ask(i)
            return
        try:
            for _ in range(6):
                publish()
                wait_until("answers", lambda: sum(
                    int(c["weight_version"]) == published[-1] for _, c in list(answers)) >= 3)
        finally:
            ends.set()

    in_parallel(4, drive)
    seen = {int(choice["weight_version"]) for _, choice in answers}
    texts = {(c["weight_version"], *c["prompt_token_ids"], *c["token_ids"]): (greedy, c)
             for greedy, c in answers}
    some = [texts[key] for key in sorted(texts)]
    models = {}
    for greedy, choice in some[::1 + len(some) // 30]:
        check(choice, models, greedy)
    assert len(seen & set(published[-6:])) == 6, seen
    wait_for_head(server)


def test_kills():
    """A server that is killed comes back with the newest version."""
    global server
    for _ in range(2):
        server.end(signal.SIGKILL)
        publish()
        server = serve(server.url[len("http://"):])
        wait_for_head(server)
        (choice,) = complete(server, temperature=0)
        assert choice["weight_version"] == str(published[-1])
        check(choice, {}, greedy=True)


def test_other_streams():
    """Another stream takes the place of the first, with version numbers that were there before:
    results of the first one's weights are not used. Weights that are no numbers are reported."""
    other, broken = plain.new_weights(2), plain.new_weights(3)
    broken["model.norm.weight"] = [0x7fc0] * plain.H
    shutil.rmtree(BUCKET)
    publish_weights(other, scratch / "baseline-other")
    wait_for_head(server)
    (choice,) = complete(server, temperature=0)
    assert choice["weight_version"] == "0"
    check(choice, {0: plain.Model(other)}, greedy=True)
    publish_weights(broken, scratch / "baseline-other")
    wait_for_head(server)
    said = server.want(503, "POST", "/v1/completions", {"prompt": "x"})
    assert "no number" in said["error"]["message"], said


def test_the_end():
    assert server.end() == 0


def test_use():
    for wrong in ([], ["--stream", "x", "more"], ["--stream"], ["--stream", "x", "--weights", "y"]):
        assert subprocess.run([ROLLOUT, *wrong], capture_output=True,
                              check=False).returncode == 2
    for listen in ("127.0.0.1:123456", "127.0.0.1:70000", "127.0.0.1:0x", "\x1b[1m"):
        said = subprocess.run([ROLLOUT, "--stream", f"file://{BUCKET}", "--listen", listen], text=True,
                              capture_output=True, check=False, timeout=DEADLINE_S)
        assert said.returncode == 1 and "HOST:PORT" in said.stderr, said
        assert "\x1b" not in said.stderr
    said = subprocess.run([ROLLOUT, "--help"], capture_output=True, text=True, check=True)
    assert "Example" in said.stdout


server = None
run_tests(globals())
