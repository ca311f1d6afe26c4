"""A follower in a user's program: it waits, it reports, it takes parameters."""
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
import warnings

import numpy as np
import pytest

import deltawire as dw


def model(value=0.0):
    return {"w": np.full(1000, value, np.float32)}


def follower_infos(url):
    with dw.Stream(url) as stream:
        return {f.id: f for f in stream.followers()}


def logged(caplog, text):
    """The log messages with TEXT: on a slow machine, slow waits are logged too."""
    return [r.getMessage() for r in caplog.records
            if r.name == "deltawire" and text in r.getMessage()]


# ---- waiting ----

def test_a_stream_that_does_not_exist_yet_is_waited_for(url, caplog, wait_until):
    def publish():
        wait_until(lambda: logged(caplog, "no stream"))
        dw.Publisher(url, model(1)).close()
    thread = threading.Thread(target=publish)
    thread.start()
    into = model()
    with dw.Follower(url, tensors=into) as follower:
        follower.sync()
    thread.join()
    assert into["w"][0] == 1
    warnings = logged(caplog, "no stream")
    assert len(warnings) == 1 and "open_timeout" in warnings[0], warnings


def test_a_first_publish_that_still_runs_is_waited_for(url, tmp_path, caplog, wait_until):
    dw.Publisher(f"file://{tmp_path}/other", model(1)).close()
    whole, stream = tmp_path / "other", url.removeprefix("file://")
    os.makedirs(stream)
    shutil.copy(whole / "stream.json", stream)
    with pytest.raises(dw.NotFound, match="no version yet"):
        dw.Follower(url, tensors=model(), open_timeout=0)

    def finish():
        wait_until(lambda: logged(caplog, "no version yet"))
        shutil.copytree(whole, stream, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("commits", "latest.json",
                                                      "stream.json"))
        shutil.copytree(whole / "commits", stream + "/commits.new")
        os.rename(stream + "/commits.new", stream + "/commits")
    thread = threading.Thread(target=finish)
    thread.start()
    into = model()
    with dw.Follower(url, tensors=into) as follower:
        follower.sync()
    thread.join()
    assert into["w"][0] == 1
    assert len(logged(caplog, "no version yet")) == 1


def test_waiting_has_a_limit(url):
    for limit in (0, 0.3):
        with pytest.raises(dw.NotFound, match="no stream"):
            dw.Follower(url, tensors=model(), open_timeout=limit)
    assert not os.path.exists(url.removeprefix("file://"))


def test_a_limit_holds_while_a_server_is_away(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = dw.Store("s3://bucket/run", endpoint="http://127.0.0.1:9")
    with pytest.raises(dw.Unavailable, match="after [1-9] tr"):  # a request has ten, if it may
        dw.Follower(store, tensors=model(), open_timeout=0.3)


def test_only_the_stream_is_waited_for(url, tmp_path):
    """Waiting does not help if a file name is wrong."""
    dw.write_checkpoint(tmp_path / "base.safetensors", model())
    dw.Publisher(url, model(), base=tmp_path / "base.safetensors").close()
    with pytest.raises(dw.NotFound, match="nowhere"):
        dw.Follower(url, into=tmp_path / "d", base=tmp_path / "nowhere").sync()


def test_control_c_ends_the_waiting(url, python):
    python(f"""
        import os, signal, threading, numpy
        import deltawire
        try:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            deltawire.Follower({url!r}, tensors={{"w": numpy.zeros(4, "f")}})
        except KeyboardInterrupt:
            print("interrupted")
        """)


def test_wait_returns_none_if_the_time_is_over(url):
    with dw.Publisher(url, model()) as publisher, \
            dw.Follower(url, tensors=model(5)) as follower:
        assert follower.wait(60) == 0
        follower.sync()
        assert follower.wait(0) is None
        assert follower.wait(0.2) is None
        publisher.wait(publisher.publish())
        assert follower.wait(60) == 1


# ---- reporting ----

def served_status(command, url, wait_until):
    """The followers that `deltawire serve-status` shows."""
    def rows():
        with urllib.request.urlopen(place + "/status") as answer:
            return json.load(answer).get("followers")

    with subprocess.Popen([command, "serve-status", url, "--listen", "127.0.0.1:0", "--json"],
                          stdout=subprocess.PIPE, text=True) as server:
        try:
            place = json.loads(server.stdout.readline())["url"].rstrip("/")
            return [(row["id"], row["version"], row["status"]) for row in wait_until(rows)]
        finally:
            server.terminate()


def test_it_is_in_status_and_serve_status(url, tmp_path, wait_until):
    command = os.environ["DELTAWIRE"]
    into = tmp_path / "model"
    with dw.Publisher(url, model()) as publisher, \
            dw.Follower(url, into=into) as follower:
        (name,) = follower_infos(url)
        assert follower_infos(url)[name].status == "following"
        follower.sync()
        assert follower_infos(url)[name].version == 0
        publisher.wait(publisher.publish())
        follower.wait(60)
        follower.sync()
        status = json.loads(subprocess.run([command, "status", url, "--json"], check=True,
                                           capture_output=True).stdout)
        (shown,) = status["followers"]
        assert (shown["id"], shown["version"], shown["status"]) == (name, 1, "following")
        assert served_status(command, url, wait_until) == [(name, 1, "following")]
    stopped = follower_infos(url)[name]
    assert (stopped.status, stopped.version) == ("stopped", 1)
    # the command gives the directory the same name
    subprocess.run([command, "follow", url, "--into", into, "--until", "1", "-q"], check=True)
    assert list(follower_infos(url)) == [name]


def test_names_and_silence(url):
    dw.Publisher(url, model()).close()
    dw.Follower(url, tensors=model(), id="engine-7").close()
    assert list(follower_infos(url)) == ["engine-7"]
    dw.Follower(url, tensors=model(), report=False).close()
    dw.Follower(url, tensors=model(), id="quiet", report=False).close()
    assert list(follower_infos(url)) == ["engine-7"]
    with dw.Follower(url, tensors=model(), id="own") as follower:
        follower.report("serving", "42")
        follower.sync()
        assert follower_infos(url)["own"][3:5] == ("serving", "42")
    assert follower_infos(url)["own"].status == "stopped"


# Names of followers in memory belong to the machine: another process that takes one in between
# is not the fault of the library, so these tests have several tries.
TRIES = 50


def keeps_names(url):
    dw.Publisher(url, model()).close()
    with dw.Follower(url, tensors=model()) as a, dw.Follower(url, tensors=model()) as b:
        a.sync()
        b.sync()
        names = set(follower_infos(url))
        assert len(names) == 2 and all("-memory-" in name for name in names)
    for info in follower_infos(url).values():
        assert (info.status, info.version) == ("stopped", None)
        assert "was at version 0" in info.message
    with dw.Follower(url, tensors=model()) as a, dw.Follower(url, tensors=model()) as b:
        return set(follower_infos(url)) == names


def test_memory_keeps_its_name(url):
    """Each has its own name, which the next process uses again. A closed follower in memory keeps
    nothing in the stream."""
    assert any(keeps_names(f"{url}-{i}") for i in range(TRIES))


def leaves_one_name(url, python):
    dw.Publisher(url, model()).close()
    for _ in range(2):
        python(f"""
            import os, signal, numpy
            import deltawire
            f = deltawire.Follower({url!r}, tensors={{"w": numpy.zeros(1000, "f")}})
            f.sync()
            os.kill(os.getpid(), signal.SIGKILL)
            """, status=-9)
    infos = follower_infos(url).values()
    assert all((info.status, info.version) == ("following", 0) for info in infos)
    return len(infos) == 1


def test_a_killed_process_leaves_its_name(url, python):
    assert any(leaves_one_name(f"{url}-{i}", python) for i in range(TRIES))


def test_an_error_is_reported(url, tmp_path):
    into = tmp_path / "model"
    with dw.Publisher(url, model()), dw.Follower(url, into=into, id="f") as follower:
        follower.sync()
        shutil.move(into, tmp_path / "elsewhere")
        with pytest.raises(dw.Conflict):
            follower.poll()
        info = follower_infos(url)["f"]
        assert (info.status, info.version) == ("error", None)
        assert "replaced or removed" in info.message
        follower.sync()
        assert follower_infos(url)["f"][1:4:2] == (0, "following")


def test_a_report_that_fails_is_logged_once(url, caplog):
    path = url.removeprefix("file://")
    with dw.Publisher(url, model()) as publisher:
        open(os.path.join(path, "followers"), "w").close()
        with dw.Follower(url, tensors=model()) as follower:
            for _ in range(3):
                publisher.wait(publisher.publish())
                follower.sync()
            assert follower.version == 3
    warnings = logged(caplog, "followers")
    assert len(warnings) == 1 and "report=False" in warnings[0], warnings


def test_no_directory_is_made_above_the_stream(tmp_path):
    url = f"file://{tmp_path}/mount/stream"
    with dw.Publisher(url, model()), dw.Follower(url, tensors=model()) as follower:
        shutil.move(tmp_path / "mount", tmp_path / "away")
        with pytest.raises(dw.Unavailable):
            follower.report("following")
        with pytest.raises(dw.Unavailable):
            follower.sync()
        assert not (tmp_path / "mount").exists()
        shutil.move(tmp_path / "away", tmp_path / "mount")


def test_a_killed_update_is_finished_without_the_store(url, tmp_path, monkeypatch):
    into = tmp_path / "into"
    weights = model(0)
    with dw.Publisher(url, weights) as publisher, dw.Follower(url, into=into) as follower:
        follower.sync()
        weights["w"][:] = 1
        publisher.wait(publisher.publish())
        follower.stage()
        follower.prepare()  # close leaves this to the next open, as a kill does
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        away = dw.Store("s3://bucket/run", endpoint=endpoint, region="here", tries=1)
        with pytest.raises(dw.Unavailable):
            dw.Follower(away, into=into, open_timeout=0)
    stored = (into / "model.safetensors").read_bytes()[-4000:]
    assert (np.frombuffer(stored, np.float32) == 1).all()


# ---- parameters ----

def test_tensors_that_take_gradients(url, tmp_path):
    torch = pytest.importorskip("torch")
    weights = {"w": torch.nn.Parameter(torch.arange(8.0)),
               "x": torch.ones(4, requires_grad=True)}
    served = {name: torch.zeros_like(t).requires_grad_() for name, t in weights.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dw.write_checkpoint(tmp_path / "model.safetensors", weights)
        assert dw.digest(weights) == dw.digest(dw.Checkpoint(tmp_path / "model.safetensors"))
        delta = dw.diff(served, weights)
        with dw.Publisher(url, weights), dw.Follower(url, tensors=served) as follower:
            follower.sync()
    for name, tensor in weights.items():
        assert torch.equal(served[name], tensor) and served[name].requires_grad
    zeros = {name: torch.zeros_like(t).requires_grad_() for name, t in weights.items()}
    delta.apply(zeros)
    assert torch.equal(zeros["w"], weights["w"])


def test_a_tensor_that_cannot_be_taken_is_named(url):
    torch = pytest.importorskip("torch")
    odd = {"fine": torch.zeros(2), "odd.one": torch.zeros(4).to_sparse()}
    for take in (dw.digest, lambda t: dw.Publisher(url, t)):
        with pytest.raises(Exception, match="odd.one"):
            take(odd)
    with pytest.raises(BufferError, match="odd.one"):
        dw.Publisher(url, {"odd.one": bytes(4)}).close()
        dw.Follower(url, tensors={"odd.one": bytes(4)})


# ---- PyTorch ----

def test_the_follower_of_pytorch(url):
    torch = pytest.importorskip("torch")
    import deltawire.torch
    source, served = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def train():
        time.sleep(0.5)
        with deltawire.torch.Publisher(source, url=url, dtype=None):
            pass
    thread = threading.Thread(target=train)
    with pytest.raises(dw.NotFound):
        deltawire.torch.Follower(served, url, open_timeout=0)
    thread.start()
    with deltawire.torch.Follower(served, url, id="torch") as follower:
        thread.join()
        assert follower.wait(60) == 0
        assert follower.sync() == 0
        assert torch.equal(served.weight, source.weight)
        assert follower.wait(0.1) is None
        assert follower_infos(url)["torch"][1:4:2] == (0, "following")
    assert follower_infos(url)["torch"].status == "stopped"


def test_a_thread_of_pytorch_that_ended_is_reported(url, wait_until):
    torch = pytest.importorskip("torch")
    import deltawire.torch
    source, served = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def pause():
        raise RuntimeError("the engine is gone")
    with deltawire.torch.Publisher(source, url=url, dtype=None):
        follower = deltawire.torch.Follower(served, url, pause=pause, id="torch").start(0.05)
        wait_until(lambda: follower.error is not None
                   and follower_infos(url)["torch"].status == "error")
        assert "the engine is gone" in follower_infos(url)["torch"].message
        with pytest.raises(RuntimeError):
            follower.close()
        assert follower_infos(url)["torch"].status == "stopped"
