"""Ctrl-C at any instant leaves handles that go on. What is compared are the live weights."""
import random
import signal
import sys
import threading
import time
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")

import deltawire as dw  # noqa: E402
import deltawire.torch  # noqa: E402
from at_each_line import at_each_line, is_interrupted  # noqa: E402
from deltawire import _drive  # noqa: E402
from deltawire._drive import Driven, bring_all  # noqa: E402
from deltawire.vllm.ahead import Ahead  # noqa: E402
from deltawire.vllm.stream import StreamSource  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)  # buffers are copied
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.bfloat16()

    def change(self):
        with torch.no_grad():
            for tensor in self.state_dict().values():
                tensor.view(-1)[random.randrange(tensor.numel())] += 1


def same(a, b):
    return all(map(torch.equal, a.state_dict().values(), b.state_dict().values()))


@pytest.fixture
def world(url):
    """A trainer, and a model that follows it."""
    model = Model()
    with deltawire.torch.Publisher(model, url=url, fold_every=0) as publisher:
        yield model, publisher, url


def followed(url, like):
    """The newest version of a stream."""
    tensors = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    with dw.Follower(url, tensors=tensors, empty=True, report=False) as follower:
        follower.sync()
    return tensors


class Gate:
    """Counts calls of pause and resume, and sees that nothing changes in a model that runs."""

    def __init__(self, model):
        self.model, self.runs = model, True
        self.seen = None

    def pause(self):
        assert not self.runs or self.seen is None or same(self.model, self.seen)
        self.runs = False

    def resume(self):
        self.runs, self.seen = True, Model()
        self.seen.load_state_dict(self.model.state_dict())


@pytest.mark.parametrize("empty", [False, True])
def test_sync(world, empty):
    model, publisher, url = world
    served = Model()
    gate = Gate(served)

    def make():
        return deltawire.torch.Follower(served, url, pause=gate.pause, resume=gate.resume,
                                        empty=empty, report=False)

    follower = make()

    def publish():
        nonlocal follower
        if empty:  # the first version of a handle comes in another way
            follower.close()
            follower = make()
        model.change()
        publisher.wait(publisher.publish())

    def check():
        assert empty or not gate.runs or gate.seen is None or same(served, gate.seen)
        assert follower.sync() == publisher.version == follower.version
        assert same(served, model)
        assert gate.runs and follower.native.update_state is None

    at_each_line(lambda: follower.sync(), check, 30, publish)
    follower.close()


def test_an_interrupt_in_a_callback(world):
    """It may come after the callback has done its work."""
    model, publisher, url = world
    served = Model()
    state, fails = [], []

    def say(word):
        state.append(word)
        if fails and fails[0] == word:
            fails.pop()
            raise KeyboardInterrupt

    follower = deltawire.torch.Follower(served, url, pause=lambda: say("pause"),
                                        resume=lambda: say("resume"))
    for word in ("pause", "resume"):
        model.change()
        publisher.wait(publisher.publish())
        fails.append(word)
        with pytest.raises(KeyboardInterrupt):
            follower.sync()
        if word == "resume":
            assert same(served, model)
        follower.sync()  # nothing new, and the model runs
        assert same(served, model) and state[-1] == "resume"
    follower.close()


def test_a_model_is_resumed_while_the_store_is_away(world, tmp_path):
    model, publisher, url = world
    served, calls = Model(), []
    follower = deltawire.torch.Follower(served, url, pause=lambda: calls.append("pause"),
                                        resume=lambda: calls.append("resume"))
    n = 0
    while calls[-1:] != ["pause"]:  # until an interrupt leaves it paused
        n += 1
        follower.sync()
        model.change()
        publisher.wait(publisher.publish())
        assert is_interrupted(n, follower.sync)
    hidden = (tmp_path / "stream").rename(tmp_path / "hidden")
    with pytest.raises(dw.Error):
        follower.sync()
    assert calls[-1] == "resume" and same(served, model)
    hidden.rename(tmp_path / "stream")
    follower.close()


@pytest.mark.parametrize("in_place", [False, True])
def test_publish(url, in_place):
    """Steps of an optimizer go on at once: they must not reach into what is being read."""
    model = Model()
    if not in_place:
        model.float()
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with deltawire.torch.Publisher(model, optimizer, url=url, dtype=None,
                                   fold_every=0) as publisher:
        states = {dw.digest(model.state_dict()).state}

        def check():
            states.add(dw.digest(model.state_dict()).state)
            optimizer.step()
            states.add(dw.digest(model.state_dict()).state)
            report = publisher.wait(publisher.publish())
            assert report.state == dw.digest(model.state_dict()).state

        at_each_line(optimizer.step, check, 30)
        at_each_line(publisher.publish, check, 30)
    assert {v.state for v in dw.Stream(url).versions()} <= states


def test_open_and_close(url):
    model, served = Model(), Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1)

    handles = []

    def publish():
        handles.append(deltawire.torch.Publisher(model, optimizer, url=url, fold_every=0))
        handles[-1].close()

    def follow():
        handles.append(deltawire.torch.Follower(served, url, report=False))
        handles[-1].start(0.05)
        handles[-1].close()

    def close():
        while handles:  # if that was interrupted
            handles.pop().close()

    def check_publish():
        close()
        model.change()
        with deltawire.torch.Publisher(model, optimizer, url=url, fold_every=0) as publisher:
            optimizer.step()
            assert publisher.wait().state == dw.digest(model.state_dict()).state

    def check_follow():
        close()
        with deltawire.torch.Follower(served, url, report=False) as follower:
            follower.sync()
            assert same(served, model)
        with torch.no_grad():
            served.first.weight.zero_()

    at_each_line(publish, check_publish, 60)
    at_each_line(follow, check_follow, 30)


def test_a_close_of_a_publisher(url):
    """Steps of the optimizer wait for what is being read, or publish nothing any more."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    publisher = None

    def make():
        nonlocal publisher
        publisher = deltawire.torch.Publisher(model, optimizer, url=url, fold_every=0)

    def check():
        n_steps = publisher.steps
        optimizer.step()
        assert publisher.steps == n_steps or optimizer._optimizer_step_pre_hooks
        publisher.close()
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks

    at_each_line(lambda: publisher.close(), check, 5, make)


def test_memory_that_moves(world):
    model, publisher, url = world
    served = Model()
    with deltawire.torch.Follower(served, url) as follower:
        follower.sync()

        def move():
            served.first.weight = torch.nn.Parameter(served.first.weight.detach().clone())
            served.frozen.weight.data = served.frozen.weight.data.clone()
            model.change()
            publisher.wait(publisher.publish())

        def check():
            follower.sync()
            assert same(served, model)

        at_each_line(follower.sync, check, 50, move)


def test_real_signals(world):
    """At any instruction, and inside the library."""
    model, publisher, url = world
    served, n_interrupts = Model(), 0
    gate = Gate(served)
    follower = deltawire.torch.Follower(served, url, pause=gate.pause, resume=gate.resume)
    follower.sync()
    for i in range(150):
        model.change()
        version = publisher.wait(publisher.publish()).version
        seconds = (1 + i % 50) * 1e-4
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            follower.sync()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            n_interrupts += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if i % 2:
            assert follower.sync() == version
            assert same(served, model) and gate.runs
    assert n_interrupts > 0
    follower.close()


def test_trl(url):
    trl = pytest.importorskip("deltawire.trl", reason="transformers is not installed")
    model = Model()
    transfer = trl.WeightTransfer(url, dtype=None, fold_every=0)

    def sync():
        model.change()
        transfer.send_weights(iter(model.state_dict().items()))
        transfer.resume()

    def check():
        number = transfer.model_version
        known = {n: version for n, version in transfer.versions.items() if n <= number}
        sync()
        assert transfer.model_version == number + 1
        assert known.items() <= transfer.versions.items()
        tensors = followed(url, model.state_dict())
        assert all(torch.equal(tensors[name], tensor)
                   for name, tensor in model.state_dict().items())

    at_each_line(sync, check, 30)  # opening, too
    transfer.destroy()


def test_a_worker_that_follows_a_stream(world, tmp_path):
    """Of vLLM's back end, without vLLM."""
    model, publisher, url = world
    version, engine = None, {}
    source = StreamSource(url, dir=str(tmp_path / "dir"), interval=3600)

    def publish():
        nonlocal version
        model.change()
        version = publisher.wait(publisher.publish()).version

    def bring():
        source.bring(version, lambda to, patch: engine.update({to: patch}))

    def check():
        assert source.bring(version, None) == dw.digest(model.state_dict()).state
        with dw.Checkpoint(source.dir) as checkpoint:
            assert dw.digest(checkpoint).state == dw.digest(model.state_dict()).state
        assert source.position()[0] == version

    version = publisher.version
    check()
    at_each_line(bring, check, 15, publish)
    assert engine
    source.close()


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_thread_that_looks_ahead(tmp_path):
    """Of vLLM's back end, without vLLM."""
    ahead = Ahead(None, None)

    def check():
        ahead.watch(str(tmp_path))
        assert len(threads("deltawire-ahead")) == 1
        ahead.stop()
        assert not threads("deltawire-ahead")

    at_each_line(lambda: ahead.watch(str(tmp_path)), check, 5)
    at_each_line(ahead.stop, check, 3, lambda: ahead.watch(str(tmp_path)))


class Engine:
    """Of a trainer that drives. Its worker stages nothing."""

    is_mixed = False

    def n_workers(self):
        return 1

    def follow(self, info, timeout):
        pass


def test_engines_that_are_driven(world, monkeypatch):
    """A call that was interrupted twice goes on with no version."""
    driven, url, calls = Driven(Engine(), {}), world[2], []

    class Event(threading.Event):
        def set(self):
            if threads("deltawire-drive") and not calls:
                calls.append(self)
                raise KeyboardInterrupt
            super().set()

    def trace(frame, event, _):
        if frame.f_code is not bring_all.__code__:
            return None
        if event == "line" and threads("deltawire-drive"):
            raise KeyboardInterrupt
        return trace

    def bring(seconds):
        return bring_all([driven], 0, lambda: dw.Stream(url), time.monotonic() + seconds)

    with monkeypatch.context() as patch:
        patch.setattr(_drive, "threading", types.SimpleNamespace(
            Event=Event, Thread=threading.Thread))
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                bring(3600)
        finally:
            sys.settrace(None)
    assert calls and threads("deltawire-drive")
    failures = []
    last = threading.Thread(target=lambda: failures.append(bring(0)), daemon=True)
    last.start()
    last.join(30)
    assert isinstance(failures[0][driven], TimeoutError)
