"""The requests of trainers to engines that fail: over real connections, to a server that answers
as the test wants."""
import asyncio
import collections
import http.server
import json
import multiprocessing
import socket
import subprocess
import threading

import numpy as np
import pytest

import deltawire
from deltawire._engines import Engine, EngineError
from trl_world import DELTAWIRE
from vllm_server import wait_until

STREAM = "ab" * 16


class Server:
    """Notes requests; `fails` are paths that it answers with status 500."""

    def __init__(self):
        asked, fails = [], set()
        answers = {"/is_paused": {"is_paused": False},
                   "/pause": {"status": "paused"}, "/resume": {"status": "resumed"},
                   **{path: {"message": "done"} for path in (
                       "/start_weight_update", "/update_weights", "/finish_weight_update")}}
        self.asked, self.fails, self.answers = asked, fails, answers

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.split("?")[0]
                asked.append(path)
                self.send_response(500 if path in fails else 200)
                body = json.dumps(answers.get(path, {})).encode()
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def test_an_engine_whose_weights_may_be_a_mix_stays_paused(server):
    engine = Engine(f"http://127.0.0.1:{server.port}")

    def update(fails):
        server.asked.clear()
        server.fails.clear()
        server.fails.update(fails)
        if fails:
            with pytest.raises(EngineError):
                engine.update(STREAM, 1, 60)
        else:
            engine.update(STREAM, 1, 60)
        return "/resume" in server.asked

    assert update(["/start_weight_update"])  # nothing was touched
    assert not update(["/update_weights"])
    assert not update(["/start_weight_update"])  # still a mix because of the update before
    assert not update(["/finish_weight_update"])
    assert update([])
    assert update(["/start_weight_update"])


def away(url):
    with pytest.raises(EngineError) as caught:
        Engine(url).call("GET", "/weight_info", timeout=0.5)
    return caught.value.away


def test_who_is_away(server):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert away(f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert away("http://nobody.invalid:8000")
    assert not away(f"https://127.0.0.1:{server.port}")  # speaks no TLS
    with socket.socket() as busy, socket.socket() as first, socket.socket() as second:
        busy.bind(("127.0.0.1", 0))
        busy.listen(0)
        port = busy.getsockname()[1]
        assert not away(f"http://127.0.0.1:{port}")  # connected, and silent
        for other in (first, second):
            other.setblocking(False)
            other.connect_ex(("127.0.0.1", port))
        assert away(f"http://127.0.0.1:{port}")  # takes no connection


def test_a_follower_whose_engine_is_away_does_not_say_that_it_follows(tmp_path):
    url = f"file://{tmp_path}/run"
    weights = {"w": np.arange(64, dtype=np.float32)}

    def report():
        with deltawire.Stream(url) as stream:
            return [(f.version, f.status) for f in stream.followers()]

    with deltawire.Publisher(url, weights), (tmp_path / "log").open("wb") as log, \
            socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        follower = subprocess.Popen(
            [DELTAWIRE, "follow", url, "--into", tmp_path / "dir", "--id", "host", "--engine",
             f"vllm=http://127.0.0.1:{closed.getsockname()[1]}"], stdout=log, stderr=log)
        try:
            wait_until(lambda: report() == [(0, "behind")], "the report of version 0")
        finally:
            follower.terminate()
            follower.wait(300)


def test_a_directory_that_is_not_served_is_waited_for(tmp_path):
    torch = pytest.importorskip("torch")
    trl = pytest.importorskip("deltawire.trl")
    transfer = trl.WeightTransfer(f"file://{tmp_path}/run", followers=["x"], timeout=0.1)
    transfer.send_weights(iter({"w": torch.arange(64.0)}.items()))
    with deltawire.Follower(transfer.url, into=tmp_path / "dir", id="x") as x:
        x.sync()
        for status in ("staged", "behind", "error"):
            x.report(status)
            with pytest.raises(TimeoutError, match=rf"x \({status} at 0\) not at version 0"):
                transfer.resume()
        x.report("serving")
        transfer.resume()
    transfer.destroy()


def test_a_store_is_no_url_for_workers_that_are_driven(tmp_path):
    trl = pytest.importorskip("deltawire.trl")
    with deltawire.Store(f"file://{tmp_path}/run") as store:
        with pytest.raises(ValueError, match="open the store by themselves"):
            trl.WeightTransfer(store, engines=["http://gpu1:8000"], drive=True)
        trl.WeightTransfer(store, engines=["http://gpu1:8000"], drive={"store": {}})


@pytest.fixture
def worker():
    pytest.importorskip("trl")
    pytest.importorskip("vllm")
    from deltawire import _trl_worker

    return _trl_worker


def token(label):
    return {"token_ids": [7], "logprobs": {"content": [{"logprob": -1.0}]},
            "weight_versions": [{"version": label}]}


@pytest.mark.parametrize("choice, message", [
    (token("default"), "calls its weights 'default', which is no version"),
    (token("3"), "calls its weights '3', which is no version of the stream abab"),
    (token("cd" * 16 + ":3"), "which is no version of the stream abab"),
    ({"token_ids": [], "weight_versions": []}, "answers with no token"),
])
def test_servers_that_never_have_a_version_end_the_wait(
        server, worker, monkeypatch, choice, message):
    import aiohttp

    monkeypatch.setattr(worker, "GIVE_UP_S", 0.3)
    monkeypatch.setattr(worker, "UNLABELLED_REST_S", 0.01)
    server.answers[worker.GENERATE] = {"choices": [choice]}
    loop = object.__new__(worker._Loop)  # without TRL's datasets and tokenizers
    loop._servers = [worker._Server(f"http://127.0.0.1:{server.port}")]
    loop._counters = collections.Counter()
    loop._model_version_value = worker._Versions(multiprocessing)
    loop._model_version_value.note(1, 0, STREAM)
    loop.request_timeout, loop.max_tokens, loop.temperature, loop.top_p = 60, 4, 1.0, 1.0
    loop.top_k, loop.min_p, loop.repetition_penalty = -1, None, 1.0

    async def generate():
        worker._turns.set([])
        async with aiohttp.ClientSession() as loop.session:
            return await loop._generate_one_turn([1, 2])

    with pytest.raises(RuntimeError, match=message):
        asyncio.run(generate())
    assert loop._counters["rollout/unlabelled_total"] >= 1
    server.answers[worker.GENERATE] = {"choices": [token(f"{STREAM}:3")]}
    assert asyncio.run(generate()) == ([7], [-1.0])
