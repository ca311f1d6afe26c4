"""The requests of trainers to engines that fail: over real connections, to a server that answers
as the test wants."""
import http.server
import json
import socket
import subprocess
import threading
import types
import urllib.error
import urllib.request

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
    too_long = ".".join(["nobody" * 10] * 5)  # so that no name server is asked for it
    assert away(f"http://{too_long}:8000")
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


def token(label):
    return {"token_ids": [7], "logprobs": {"content": [{"logprob": -1.0}]},
            "weight_versions": [{"version": label}]}


@pytest.fixture
def gate(server, monkeypatch):
    _trl_gate = pytest.importorskip("deltawire._trl_gate")
    monkeypatch.setattr(_trl_gate, "GIVE_UP_S", 0.3)
    monkeypatch.setattr(_trl_gate, "UNLABELLED_REST_S", 0.01)
    gate = _trl_gate.Gate([f"http://127.0.0.1:{server.port}"], lambda: STREAM)
    yield gate
    gate.close()


def complete(gate):
    """What TRL's rollouts ask for: the status and the answer."""
    request = urllib.request.Request(
        gate.url + "/v1/completions", json.dumps({"prompt": [1, 2], "max_tokens": 4}).encode(),
        {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def sample(*turns):
    """TRL's sample of a conversation: its generated turns, and a token of context before each."""
    ids, mask, logprobs = [], [], []
    for tokens, probabilities in turns:
        ids += [0, *tokens]
        mask += [0] + [1] * len(tokens)
        logprobs += [0.0, *probabilities]
    return types.SimpleNamespace(input_ids=np.array(ids), completion_mask=np.array(mask),
                                 old_log_probs=np.array(logprobs, np.float32))


@pytest.mark.parametrize("choice, message", [
    (token("default"), "calls its weights 'default', which is no version"),
    (token("3"), "calls its weights '3', which is no version of the stream abab"),
    (token("cd" * 16 + ":3"), "which is no version of the stream abab"),
    ({"token_ids": [], "weight_versions": []}, "answers with no token"),
])
def test_servers_that_never_have_a_version_end_the_wait(server, gate, choice, message):
    server.answers["/inference/v1/generate"] = {"choices": [choice]}
    status, answer = complete(gate)
    assert status == 503 and message in answer["error"]
    assert gate.n_unlabelled >= 1
    server.answers["/inference/v1/generate"] = {"choices": [token(f"{STREAM}:3")]}
    status, answer = complete(gate)
    assert status == 200
    assert answer["choices"][0]["token_ids"] == [7]
    assert answer["choices"][0]["logprobs"] == {"token_logprobs": [-1.0]}
    assert gate.version(sample(([7], [-1.0]))) == 3


def test_a_sample_has_the_oldest_version_of_its_turns(server, gate):
    for tokens, label in (([7], 5), ([8], 4)):
        choice = token(f"{STREAM}:{label}") | {"token_ids": tokens}
        server.answers["/inference/v1/generate"] = {"choices": [choice]}
        assert complete(gate)[0] == 200
    assert gate.version(sample(([7], [-1.0]))) == 5
    assert gate.version(sample(([7], [-1.0]), ([8], [-1.0]))) == 4
    assert gate.version(sample(([7], [-1.0]), ([9], [-1.0]))) is None  # of another server


def test_a_gate_forwards_other_requests(server, gate):
    server.answers["/v1/models"] = {"data": [{"max_model_len": 256}]}
    with urllib.request.urlopen(gate.url + "/v1/models", timeout=300) as answer:
        assert json.load(answer) == server.answers["/v1/models"]
    assert "/v1/models" in server.asked


@pytest.mark.filterwarnings("ignore::deltawire.PublishWarning")
class TestLayouts:
    """Trainers of other versions of TRL: stand-ins with the layout of 1.18's release notes, in
    which no object has the methods of a weight transfer, and with no seam at all."""

    @pytest.fixture
    def trainer(self, tmp_path):
        trl_1_18 = pytest.importorskip("trl_1_18")
        return trl_1_18.AsyncGRPOTrainer

    def test_a_trainer_of_1_18(self, tmp_path, server, trainer):
        import torch

        from deltawire.trl import WeightTransfer

        url = f"file://{tmp_path}/run"
        transfer = WeightTransfer(url)
        made = trainer(tmp_path, transfer.gate([f"http://127.0.0.1:{server.port}"]))
        transfer.attach(made)
        served = server.answers["/inference/v1/generate"] = {"choices": [None]}

        def serve(_):
            label = f"{transfer.publisher.stream_id}:{transfer.version}"
            served["choices"] = [token(label) | {"token_ids": [7 + transfer.version]}]

        transfer._on_sync = serve
        made.train()
        assert transfer.versions == {1: 0, 2: 1, 3: 2, 4: 3}
        assert made.model_version == made.worker_version == 4
        assert made.samples and all(
            sample.metrics["deltawire/version"] == sample.input_ids[-1] - 7
            and transfer.versions[sample.model_version] == sample.input_ids[-1] - 7
            for sample in made.samples)
        into = {name: torch.zeros(p.shape, dtype=torch.bfloat16)
                for name, p in made.model.named_parameters()}
        with deltawire.Follower(url, tensors=into) as follower:
            follower.sync()
        for name, p in made.model.named_parameters():
            assert torch.equal(into[name], p.detach().to(torch.bfloat16)), name

    def test_no_seam(self, tmp_path, trainer, monkeypatch):
        import sys
        import trl_1_18

        from deltawire.trl import WeightTransfer

        monkeypatch.setitem(sys.modules, "trl", trl_1_18)
        made = trainer(tmp_path, "http://127.0.0.1:1")
        monkeypatch.delattr(trainer, "_sync_weight")
        with pytest.raises(RuntimeError, match="TRL 1.18.0: AsyncGRPOTrainer has not a "
                                               "`_sync_weight` or an object with init_weight"):
            WeightTransfer(f"file://{tmp_path}/run").attach(made)
