#!/usr/bin/env python3
"""wordle-rollout with the real `deltawire follow`: its results, their versions, refusals, and
kills. Every token is compared with a model in plain Python with the weights that the answer
names."""
import copy
import http.client
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import threading
import urllib.parse

import tiny_qwen3 as tiny
from lib import (DEADLINE_S, Server, in_parallel, program, run_tests, scratch, start, wait_until)

ROLLOUT, DELTAWIRE = program("WORDLE_ROLLOUT"), program("DELTAWIRE")
BUCKET, INTO, MODEL = f"file://{scratch}/bucket", scratch / "weights", scratch / "model"
CLOSE = 2e-3  # of log-probabilities: fp32 sums against doubles
versions = [tiny.new_weights(1)]


# ---- the stream, the follower, the server ----

def publish_weights(weights, bucket=BUCKET, baseline=scratch / "baseline"):
    folder = scratch / "checkpoint"
    tiny.write_checkpoint(folder, weights)
    subprocess.run([DELTAWIRE, "publish", bucket, folder, "--baseline", baseline,
                    "--fold", "none", "--quiet"], check=True, stdout=subprocess.DEVNULL)


def publish():
    """The next version, through the command."""
    if published:
        versions.append(tiny.changed(versions[-1], len(versions)))
    publish_weights(versions[-1])
    published.append(len(versions) - 1)


published = []


def follow(at=None, *options, into=INTO, bucket=BUCKET):
    engine = ["--engine", f"vllm={at.url}", "--engine-check", "0.1"] if at else []
    return start(DELTAWIRE, "follow", bucket, "--into", into, "--interval", "0.05",
                 "--no-report", "--quiet", *engine, *options)


def serve(listen="127.0.0.1:0", *options, weights=INTO):
    return Server(ROLLOUT, "--weights", weights, "--model", MODEL, "--listen", listen,
                  "--max-seqs", "8", "--max-len", "400", *options)


def stop(process, number=signal.SIGTERM):
    process.send_signal(number)
    process.wait(DEADLINE_S)


def wait_for_label(at):
    newest = f":{published[-1]}"
    wait_until(f"version {newest}",
               lambda: at.get("/weight_info")["weight_version"].endswith(newest)
               and not at.get("/is_paused")["is_paused"])


def state_of_head():
    said = subprocess.run([DELTAWIRE, "log", BUCKET, "-n", "1", "--json"], check=True,
                          capture_output=True, text=True).stdout
    return json.loads(said)["versions"][0]["state"]


# ---- completions ----

def complete(at, **body):
    body = {"prompt": "WORDLE\n", "max_tokens": 6, "logprobs": 0, "return_token_ids": True,
            **body}
    return at.post("/v1/completions", body)["choices"]


def check(choice, models, greedy=False, only=None):
    """Tokens and log-probabilities are those of the named versions."""
    prompt, ids = choice["prompt_token_ids"], choice["token_ids"]
    of = choice["weight_versions"]
    logps = choice["logprobs"]["token_logprobs"]
    assert len(ids) == len(of) == len(logps) > 0
    assert choice["weight_version"] == str(min(of)) and of == sorted(of)
    for i in range(len(ids)) if only is None else only:
        if of[i] not in models:
            models[of[i]] = tiny.Model(versions[of[i]])
        expected = models[of[i]].after(prompt + ids[:i])
        assert abs(expected[ids[i]] - logps[i]) < CLOSE, (i, of, expected[ids[i]], logps[i])
        if greedy:
            assert max(expected) - expected[ids[i]] < CLOSE, (i, of)


def test_before_there_are_weights():
    global server
    server = serve()
    assert "config.json" in server.want(503, "GET", "/health")["error"]["message"]
    tiny.write_model(MODEL)
    assert "weights" in server.want(503, "GET", "/health")["error"]["message"]
    server.want(503, "POST", "/v1/completions", {"prompt": "WORDLE\n"})
    server.want(503, "GET", "/digest")
    assert server.get("/weight_info") == {"weight_version": "default"}
    assert server.get("/get_world_size") == {"world_size": 1}
    assert server.get("/v1/models")["data"][0]["id"] == "policy"
    publish()
    global follower
    follower = follow(server)
    wait_for_label(server)
    assert server.get("/health")["status"] == "ok"
    assert server.get("/v1/models")["data"][0]["max_model_len"] == 400


def test_what_it_computes():
    models = {}
    for prompt in ("WORDLE\n", "WORDLE\ncrane .gy..\nabout !!!!!\n", "x"):
        (choice,) = complete(server, prompt=prompt, temperature=0, max_tokens=20)
        assert choice["prompt_token_ids"] == tiny.encode(prompt)
        assert choice["text"] == tiny.decode(choice["token_ids"])
        # special ones are tokens, but no text
        shown = [token for token, i in zip(choice["logprobs"]["tokens"], choice["token_ids"])
                 if i < len(tiny.LETTERS)]
        assert "".join(shown) == choice["text"]
        assert choice["finish_reason"] == "length" or choice["token_ids"][-1] == tiny.EOS
        check(choice, models, greedy=True)
        (same,) = complete(server, prompt=tiny.encode(prompt), temperature=0, max_tokens=20)
        assert same == choice
    # several samples of several prompts, as text and as tokens; a seed repeats the samples
    many = {"prompt": ["WORDLE\n", "ab"], "n": 20, "seed": 5, "temperature": 1.3}
    choices = complete(server, **many)
    assert [c["index"] for c in choices] == list(range(40))
    assert all(c["prompt_token_ids"] == tiny.encode("ab") for c in choices[20:])
    assert len({tuple(c["token_ids"]) for c in choices}) > 30
    for choice in choices:
        check(choice, models)
    assert complete(server, **many) == choices
    assert complete(server, **{**many, "seed": 6}) != choices
    assert complete(server, **{**many, "prompt": [tiny.encode("WORDLE\n"), tiny.encode("ab")]}) \
        == choices


def usage(at, **body):
    answer = at.post("/v1/completions", {"max_tokens": 6, "logprobs": 0,
                                         "return_token_ids": True, **body})
    return answer["choices"][0], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_games_go_on():
    """A prompt that continues a sample is computed from there on, with the same result."""
    models, prompt = {}, tiny.encode("WORDLE\n")
    for turn in range(6):
        choice, n_cached = usage(server, prompt=prompt, seed=turn, max_tokens=5)
        assert n_cached == (0 if turn == 0 else kept), turn
        check(choice, models)
        kept = len(prompt) + len(choice["token_ids"]) - 1  # the last one was not fed
        prompt = prompt + choice["token_ids"] + tiny.encode(" .gy..\n")
    # a common beginning is not reused, and does no harm
    other = prompt[:20] + tiny.encode("~") + prompt[21:]
    choice, _ = usage(server, prompt=other, temperature=0)
    check(choice, models, greedy=True)
    # more games at once than there are slots
    games = [tiny.encode(f"game {i}\n") for i in range(12)]
    for turn in range(3):
        for i, choice in enumerate(complete(server, prompt=games, seed=turn)):
            check(choice, models)
            games[i] += choice["token_ids"] + tiny.encode(" ....g\n")


def test_sampling():
    """The frequencies of tokens equal their probabilities; with top_p only the likeliest."""
    model = tiny.Model(versions[0])
    p = [math.exp(x) for x in model.after(tiny.encode("WORDLE\n"))]
    counts = [0] * tiny.V
    for choice in complete(server, n=256, prompt=["WORDLE\n"] * 12, max_tokens=1, seed=1):
        counts[choice["token_ids"][0]] += 1
    n = sum(counts)
    for i in range(tiny.V):
        assert abs(counts[i] - n * p[i]) < 6 * math.sqrt(n * p[i]) + 4, (i, counts[i], n * p[i])
    likeliest = max(range(tiny.V), key=lambda i: p[i])
    for choice in complete(server, n=64, max_tokens=1, top_p=0.001):
        assert choice["token_ids"] == [likeliest]


def test_stops():
    (whole,) = complete(server, temperature=0, max_tokens=12)
    text = whole["text"]
    for stop_at in (text[3], text[3:5], ["~~~~", text[3:6]]):
        first = stop_at if isinstance(stop_at, str) else stop_at[1]
        (cut,) = complete(server, temperature=0, max_tokens=12, stop=stop_at)
        assert cut["text"] == text[:text.index(first)] and cut["finish_reason"] == "stop"
        # the tokens of the stop are returned, with their log-probabilities
        n = len(cut["token_ids"])
        assert cut["token_ids"] == whole["token_ids"][:n]
        assert tiny.decode(cut["token_ids"]).endswith(first)
        assert cut["logprobs"]["token_logprobs"] == whole["logprobs"]["token_logprobs"][:n]


def test_what_is_refused():
    good = {"prompt": "WORDLE\n"}
    for wrong in ({"prompt": ""}, {"prompt": []}, {"prompt": 5}, {"prompt": [tiny.V]},
                  {"prompt": [-1]}, {"prompt": ["a", 5]}, {"prompt": [["a"]]}, {"prompt": None},
                  {"prompt": "a" * 400}, {"max_tokens": 0}, {"max_tokens": 10**9},
                  {"max_tokens": 400}, {"max_tokens": "6"}, {"n": 0}, {"n": 257}, {"n": True},
                  {"temperature": -1}, {"temperature": "hot"}, {"top_p": 0}, {"top_p": 2},
                  {"stop": ""}, {"stop": 5}, {"stop": ["a"] * 17}, {"stop": "a" * 65},
                  {"seed": "x"}, {"stream": True}, {"echo": True}, {"top_k": 5},
                  {"prompt": ["a"] * 1025}, {"prompt": ["a"] * 100, "n": 100},
                  {"repetition_penalty": 1.1}, {"logit_bias": {"1": 1}}):
        server.want(400, "POST", "/v1/completions", {**good, **wrong})
    # refused before the memory is allocated
    for wrong, why in (({"prompt": ["a"] * 16, "n": 256, "max_tokens": 65}, "more than 262144"),
                       ({"prompt": [[1] * 399] * 12, "n": 256, "max_tokens": 1},
                        "more than 1048576"),
                       ({"prompt": "a" * 5201}, "more than 5200 bytes")):
        said = server.want(400, "POST", "/v1/completions", {**good, **wrong})
        assert why in said["error"]["message"], said
    for raw in ("", "x", "[]", "{", b"\xff"):
        server.want(400, "POST", "/v1/completions", raw=raw)
    server.want(413, "POST", "/v1/completions", {**good, "user": "x" * (5 << 20)})
    server.want(404, "GET", "/v1/completions")
    server.want(404, "GET", "/metrics")
    # neutral options are not refused
    complete(server, top_k=-1, min_p=0, stream=False, echo=False, stop=None, seed=None, top_p=1)


def test_control():
    """The control interface of docs/OPERATIONS.md, section 2."""
    info = {"format": "deltawire/1", "kind": "snapshot", "stream": "0" * 32,
            "from_version": None, "version": 0, "state": state_of_head(), "dir": str(INTO),
            "patch": None}
    stop(follower)
    server.want(400, "POST", "/pause")
    server.want(400, "POST", "/pause?mode=abort")
    server.want(500, "POST", "/update_weights", {"update_info": info})  # no session
    server.want(500, "POST", "/finish_weight_update", {"weight_version": "1"})
    server.post("/start_weight_update", {})
    again = server.want(500, "POST", "/start_weight_update", {})
    assert "already active" in again["error"]["message"]
    server.want(500, "POST", "/update_weights", {"update_info": info})  # not paused
    for _ in range(2):
        assert server.post("/pause?mode=keep") == {"status": "paused"}
    assert server.get("/is_paused") == {"is_paused": True}
    server.want(503, "GET", "/digest")
    server.want(400, "POST", "/update_weights", {})
    for wrong, status in (({"format": "x"}, 400), ({"version": -1}, 400),
                          ({"state": "0" * 16}, 500), ({"version": 1}, 500),
                          ({"kind": "patch", "from_version": 5}, 500), ({"kind": "x"}, 400)):
        server.want(status, "POST", "/update_weights", {"update_info": {**info, **wrong}})
        server.post("/start_weight_update", {})  # a failure ended the session
    server.want(400, "POST", "/finish_weight_update", {"weight_version": 5})
    for _ in range(2):
        server.post("/update_weights", {"update_info": info})
    server.post("/finish_weight_update", {"weight_version": None})
    for _ in range(2):
        assert server.post("/resume") == {"status": "resumed"}
    assert complete(server)[0]["weight_version"] == "0"


def test_a_sample_over_two_versions():
    """A request survives a pause and continues with the new weights; results of the old ones are
    not used any more."""
    other = follow()  # has no engine: the test pauses the server
    models = {}
    for _ in range(20):
        answers = []
        asker = threading.Thread(target=lambda: answers.extend(
            complete(server, max_tokens=390, n=4)))
        asker.start()
        while server.get("/health")["requests"] == 0 and asker.is_alive():
            pass
        server.post("/pause?mode=keep")
        publish()
        wait_until("the directory", lambda: control_version() == published[-1])
        spans = asker.is_alive()
        server.post("/resume")
        asker.join()
        for choice in answers:
            of = choice["weight_versions"]
            change = next((i for i in range(1, len(of)) if of[i] != of[i - 1]), None)
            if spans and change:
                check(choice, models, only=range(change - 1, min(change + 3, len(of))))
                stop(other)
                return
    raise AssertionError("no sample spanned a version")


def control_version():
    """The version in the follower's control block (docs/FORMAT.md, section 13)."""
    block = (INTO / ".deltawire/control").read_bytes()
    return int.from_bytes(block[136:144], "little")


def test_versions_under_load():
    """Versions arrive while requests run: each token belongs to its version."""
    follower = follow(server)
    wait_for_label(server)
    ends, lock, answers = threading.Event(), threading.Lock(), []

    def next_version(follower):
        publish()
        newest = published[-1]
        if follower:
            wait_for_label(server)
        with lock:
            n = len(answers)
        wait_until("answers", lambda: sum(
            int(c["weight_version"]) == newest for _, c in answers[n:]) >= 3)

    def ask(i):
        n, begin = 0, tiny.encode("WORDLE\n" + "crane .gy..\n" * (i % 3))
        prompt = begin
        while not ends.is_set():
            n += 1
            greedy = i % 2 == 0
            got = complete(server, temperature=0 if greedy else 1, n=1 if greedy else 3,
                           max_tokens=6 if n % 4 else 20, stop="\n", prompt=prompt)
            # games that continue, also across versions
            prompt = prompt + got[0]["token_ids"] + [1] if n % 5 else begin
            with lock:
                answers.extend((greedy, choice) for choice in got)

    def drive(i):
        if i > 0:
            ask(i)
            return
        try:
            for _ in range(3):
                next_version(follower)
            stop(follower)
            other = follow()  # it does not know the server
            for _ in range(3):
                next_version(None)
            stop(other)
        finally:
            ends.set()

    in_parallel(4, drive)
    seen = {version for _, choice in answers for version in choice["weight_versions"]}
    # samples of each version and of two versions; neighbours share work
    texts = {(len(set(c["weight_versions"])), c["weight_version"], *c["prompt_token_ids"],
              *c["token_ids"]): (greedy, c) for greedy, c in answers}
    some = [texts[key] for key in sorted(texts)]
    some = some[::1 + len(some) // 30]
    models = {}
    for greedy, choice in some:
        check(choice, models, greedy)
    assert len(seen & set(published[-6:])) == 6, seen
    proof = server.get("/digest")
    assert proof["equal"] and proof["weight_version"] == str(published[-1])
    assert proof["digest"] == state_of_head() and len(proof["weight_stream"]) == 32
    print(f"   {len(answers)} samples of {len(seen)} versions, {len(some)} checked")


def test_kills():
    """Server and follower are killed and come back."""
    global server
    models = {}
    follower = follow(server)
    wait_for_label(server)
    for number in range(4):
        ends = threading.Event()

        def traffic():
            while not ends.is_set():
                try:
                    complete(server, n=4, max_tokens=30)
                except (OSError, AssertionError, ValueError, ConnectionError):
                    pass  # it is away

        thread = threading.Thread(target=traffic)
        thread.start()
        try:
            if number % 2 == 0:
                stop(server.process, signal.SIGKILL)
            else:
                stop(follower, signal.SIGKILL)
            publish()
            if number % 2 == 0:
                server = serve(server.url[len("http://"):])
            else:
                follower = follow(server)
            wait_for_label(server)
            (choice,) = complete(server, temperature=0)
            assert choice["weight_version"] == str(published[-1])
            check(choice, models, greedy=True)
            assert server.get("/digest")["digest"] == state_of_head()
        finally:
            ends.set()
            thread.join()
    stop(follower)


def test_no_engine():
    """A follower that does not know the server: steps hold the snapshot."""
    other, second = follow(), serve()
    publish()
    for at in (server, second):
        wait_until("the new version",
                   lambda at=at: complete(at)[0]["weight_version"] == str(published[-1]))
    assert second.get("/weight_info")["weight_version"] == "default"
    stop(other)
    assert second.end(signal.SIGINT) == 0


def test_a_directory_made_anew():
    """The weights are removed while it runs, and come back as other files."""
    shutil.rmtree(INTO)
    wait_until("it notices", lambda: server.ask("GET", "/health")[0] == 503)
    server.want(503, "POST", "/v1/completions", {"prompt": "WORDLE\n"})
    other = follow(server)
    wait_until("weights", lambda: server.ask("GET", "/health")[0] == 200)
    publish()
    wait_for_label(server)
    (choice,) = complete(server, temperature=0)
    assert choice["weight_version"] == str(published[-1])
    check(choice, {}, greedy=True)
    assert server.get("/digest")["digest"] == state_of_head()
    stop(other)


def test_other_streams():
    """Another stream takes the directory with the same version number: results of the first one's
    weights are not used. Weights that are no numbers are reported."""
    into = scratch / "others"
    second = serve(weights=into)
    broken = tiny.new_weights(3)
    broken["model.norm.weight"] = [0x7fc0] * tiny.H
    prompt = tiny.encode("WORDLE\n")
    for name, weights in (("a", tiny.new_weights(1)), ("b", tiny.new_weights(2)),
                          ("c", broken)):
        bucket = f"file://{scratch}/stream-{name}"
        publish_weights(weights, bucket, scratch / f"baseline-{name}")
        other = follow(bucket=bucket, into=into)
        wait_until("weights", lambda: second.ask("GET", "/health")[0] == 200)
        if weights is broken:
            said = second.want(503, "POST", "/v1/completions", {"prompt": "x", "top_p": 0.9})
            assert "no number" in said["error"]["message"], said
        else:
            choice, n_cached = usage(second, prompt=prompt, temperature=0)
            assert choice["weight_version"] == "0" and n_cached == 0, (name, n_cached)
            check(choice, {0: tiny.Model(weights)}, greedy=True)
            prompt = prompt + choice["token_ids"] + tiny.encode("x")
        assert second.get("/digest")["equal"]
        stop(other)
        shutil.rmtree(into)
        wait_until("it notices", lambda: second.ask("GET", "/health")[0] == 503)
    assert second.end() == 0


def test_digest_once():
    """All weights are read once for each version, however many requests there are."""
    other = follow()
    wait_for_label(server)
    stop(other)  # it would find the changed byte
    proof = server.get("/digest")
    assert proof["equal"]
    with open(INTO / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte[0] ^ 1]))
        file.flush()
        try:
            assert server.get("/digest") == proof
        finally:
            file.seek(-1, 2)
            file.write(byte)
    other = follow()
    publish()
    wait_until("the new version",
               lambda: server.get("/digest")["weight_version"] == str(published[-1]))
    assert server.get("/digest")["equal"]
    stop(other)


def test_a_long_write():
    """Requests wait while a follower writes, however long; if it has ended, they fail."""
    other = follow()
    publish()
    wait_until("the new version",
               lambda: server.get("/digest")["weight_version"] == str(published[-1]))
    other.send_signal(signal.SIGSTOP)  # it exists, but makes no progress
    os.waitpid(other.pid, os.WUNTRACED)
    answers = []
    asker = threading.Thread(target=lambda: answers.append(complete(server)))
    with open(INTO / ".deltawire/control", "r+b", buffering=0) as block:
        def set_sequence(number):
            block.seek(128)
            block.write(number.to_bytes(8, "little"))

        block.seek(128)
        sequence = int.from_bytes(block.read(8), "little")
        set_sequence(sequence + 1)
        try:
            asker.start()
            wait_until("it has the request", lambda: server.get("/health")["requests"] == 1)
            for _ in range(3):  # each tries for a while
                assert server.get("/health")["status"] == "ok"
        finally:
            set_sequence(sequence)
        asker.join()
        assert len(answers) == 1
        set_sequence(sequence + 1)
        stop(other, signal.SIGKILL)
        try:
            server.want(503, "GET", "/health")
            server.want(503, "POST", "/v1/completions", {"prompt": "x"})
        finally:
            set_sequence(sequence)
    assert server.get("/health")["status"] == "ok"


def test_who_leaves():
    """Nothing is computed for a client that has left."""
    server.post("/pause?mode=keep")
    body = json.dumps({"prompt": "WORDLE\n", "n": 20, "max_tokens": 300}).encode()
    with socket.create_connection((server.at.hostname, server.at.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
                       + str(len(body)).encode() + b"\r\n\r\n" + body)
        wait_until("it has the request", lambda: server.get("/health")["requests"] == 1)
    wait_until("it drops it", lambda: server.get("/health")["requests"] == 0)
    server.post("/resume")
    complete(server)


def test_many_connections():
    """One client address cannot take all connections."""
    clients = [socket.create_connection((server.at.hostname, server.at.port))
               for _ in range(600)]
    try:
        other = http.client.HTTPConnection(server.at.hostname, server.at.port, timeout=DEADLINE_S,
                                           source_address=("127.0.0.2", 0))
        other.request("GET", "/health")
        assert other.getresponse().status == 200
        other.close()
    finally:
        for client in clients:
            client.close()
    wait_until("room", lambda: answers_health(server))


def answers_health(at):
    try:
        return at.ask("GET", "/health")[0] == 200
    except OSError:
        return False


def test_control_by_itself():
    """The control interface only at its own address."""
    second = serve("127.0.0.1:0", "--control", "127.0.0.1:0")
    control = copy.copy(second)
    control.url = second.line("controlled")
    control.at = urllib.parse.urlsplit(control.url)
    other = follow(control)
    publish()
    wait_for_label(control)
    assert complete(second)[0]["weight_version"] == str(published[-1])
    for method, path in (("POST", "/pause?mode=keep"), ("POST", "/resume"),
                         ("GET", "/weight_info"), ("POST", "/update_weights")):
        second.want(404, method, path)
    control.want(404, "POST", "/v1/completions", {"prompt": "x"})
    control.post("/pause?mode=keep")
    assert second.get("/health")["paused"]
    control.post("/resume")
    complete(second)
    stop(other)
    assert second.end() == 0


def test_the_end():
    """Waiting requests get an error, and the process exits with 0."""
    server.post("/pause?mode=keep")
    answers = []
    asker = threading.Thread(target=lambda: answers.append(
        server.ask("POST", "/v1/completions", {"prompt": "WORDLE\n"})))
    asker.start()
    wait_until("it has the request", lambda: server.get("/health")["requests"] == 1)
    assert server.end() == 0
    asker.join()
    assert answers[0][0] == 503, answers


def test_use():
    for wrong in ([], ["--weights", "x", "more"], ["--weights", "x", "--max-seqs", "0"]):
        assert subprocess.run([ROLLOUT, *wrong], capture_output=True,
                              check=False).returncode == 2
    for listen in ("127.0.0.1:123456", "127.0.0.1:70000", "127.0.0.1:0x", "[::1]:0 ", "\x1b[1m"):
        said = subprocess.run([ROLLOUT, "--weights", "x", "--listen", listen], text=True,
                              capture_output=True, check=False, timeout=DEADLINE_S)
        assert said.returncode == 1 and "HOST:PORT" in said.stderr, said
        assert "\x1b" not in said.stderr
    said = subprocess.run([ROLLOUT, "--help"], capture_output=True, text=True, check=True)
    assert "Example" in said.stdout


server = follower = None
run_tests(globals())
