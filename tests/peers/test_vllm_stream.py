"""The thread of a worker that follows a stream by itself, without vLLM: the engine is a list of
the steps that were requested."""
import os
import time

import numpy as np
import pytest

import deltawire
from deltawire._drive import Driven
from deltawire._engines import EngineError
from deltawire.vllm.stream import StreamSource
from vllm_server import wait_until


class Stream:
    def __init__(self, where, name="run"):
        self.url = f"file://{where}/{name}"
        self.weights = {"w": np.arange(4096, dtype=np.float32)}
        # no folds: each version is a step
        self.publisher = deltawire.Publisher(self.url, self.weights, fold_every=0)

    def publish(self, n):
        for _ in range(n):
            self.weights["w"][:7] += 1
            self.publisher.wait(self.publisher.publish())

    def reports(self):
        with deltawire.Stream(self.url) as stream:
            return [(f.version, f.status, f.message) for f in stream.followers()]

    def wait_for(self, *report):
        wait_until(lambda: self.reports() == [report], f"the report {report}")


@pytest.fixture
def stream(tmp_path):
    stream = Stream(tmp_path)
    yield stream
    stream.publisher.close()


@pytest.fixture
def source(stream, tmp_path):
    opened = []

    def open_source(interval=0.02):
        opened.append(StreamSource(stream.url, dir=str(tmp_path / "dir"), id="worker",
                                   interval=interval))
        opened[-1].start()
        return opened[-1]

    yield open_source
    for one in opened:
        one.close()


def serve(source, version, whole=False):
    """Acts like the back end; returns the steps that the engine took."""
    steps = []

    def on_step(to, patch):
        assert os.path.getsize(patch) > 0
        steps.append(to)

    with source.lock:
        source.bring(version, None if whole else on_step)
        source.served = version
    return steps


def test_a_directory_that_no_engine_has_taken_goes_to_the_newest(stream, source, tmp_path):
    """An engine that joins late, in a directory of an earlier run."""
    with deltawire.Follower(stream.url, into=tmp_path / "dir", report=False) as before:
        before.sync()
    stream.publish(3)
    late = source()
    stream.wait_for(3, "staged", "3")  # present, but not served
    stream.publish(2)
    stream.wait_for(5, "staged", "5")
    serve(late, 5, whole=True)
    stream.wait_for(5, "serving", "")
    stream.publish(1)
    stream.wait_for(5, "staged", "6")  # the engine needs the patch
    assert serve(late, 6) == [6]
    stream.wait_for(6, "serving", "")


def test_steps_of_a_route_are_staged_one_after_the_other(stream, source):
    one = source()
    stream.wait_for(0, "staged", "0")
    serve(one, 0, whole=True)
    stream.wait_for(0, "serving", "")
    stream.publish(1)
    stream.wait_for(0, "staged", "1")
    stream.publish(2)
    assert serve(one, 1) == [1]  # not the newest
    wait_until(lambda: stream.reports()[0][:2] == (1, "staged"), "the next step is staged")
    serve(one, 3)
    stream.wait_for(3, "serving", "")


def test_an_update_right_after_another_finds_the_directory_finished(stream, source):
    one = source(interval=600)  # so that the thread does not interfere
    wait_until(lambda: one.position()[0] == 0, "the directory is filled")
    serve(one, 0, whole=True)
    stream.publish(1)
    assert serve(one, 1) == [1]
    assert one.position() == (1, deltawire.digest(stream.weights).state)


def test_a_staged_version_is_taken_over_while_the_store_is_away(stream, source, tmp_path):
    one = source()
    stream.wait_for(0, "staged", "0")
    serve(one, 0, whole=True)
    stream.publish(1)
    stream.wait_for(0, "staged", "1")
    os.rename(tmp_path / "run", tmp_path / "away")
    assert serve(one, 1) == [1]
    assert one.position() == (1, deltawire.digest(stream.weights).state)
    os.rename(tmp_path / "away", tmp_path / "run")
    stream.wait_for(1, "serving", "")


def test_an_apply_that_fails_is_done_again(stream, source):
    one = source()
    stream.wait_for(0, "staged", "0")
    serve(one, 0, whole=True)

    class Failing:
        """The follower, whose apply fails N times."""

        def __init__(self, follower, n):
            self.follower, self.n = follower, n

        def __getattr__(self, name):
            return getattr(self.follower, name)

        def apply(self):
            self.n -= 1
            if self.n >= 0:
                raise deltawire.Unavailable("a reader holds the weights")
            self.follower.apply()

    with one.lock:
        failing = one._follower = Failing(one._follower, 3)
    stream.publish(1)
    assert serve(one, 1) == [1]  # the engine does not wait for the directory
    stream.wait_for(1, "serving", "")
    assert failing.n == -1
    stream.publish(1)
    stream.wait_for(1, "staged", "2")


def test_the_directory_waits_for_the_engine(stream, source):
    """A step that the engine did not store is not in the directory either."""
    one = source()
    stream.wait_for(0, "staged", "0")
    serve(one, 0, whole=True)
    stream.publish(1)
    stream.wait_for(0, "staged", "1")

    def fails(to, patch):
        assert one._follower.version == 0
        raise RuntimeError("as the test wants")

    with pytest.raises(RuntimeError, match="as the test wants"):
        one.bring(1, fails)
    stream.wait_for(1, "staged", "1")  # all of it is there for the engine to load
    assert one.position() == (1, deltawire.digest(stream.weights).state)
    with one.lock:
        stream.publish(1)
        assert one.bring(2, lambda to, patch: "stored") == "stored"
        assert one._follower.version == 1
        one.settle()
        assert one.position() == (2, deltawire.digest(stream.weights).state)


def test_a_fault_that_is_no_end_does_not_end_the_thread(stream, source):
    one = source()
    stream.wait_for(0, "staged", "0")
    with one.lock:
        finish = one._finish

        def fails():
            one._finish = finish
            raise deltawire.Invalid("as the test wants")

        one._finish = fails
    stream.publish(1)
    stream.wait_for(1, "staged", "1")


class Engine:
    """An engine whose only worker is in this process; a restart makes it forget its state."""

    url = "in this process"

    def __init__(self, where):
        self.where, self.source, self.n_starts = where, None, 0
        self.version, self.is_mixed = "default", False

    def n_workers(self):
        return 1

    def label(self):
        return self.version

    def follow(self, info, timeout):
        self.stop()
        self.n_starts += 1
        self.source = StreamSource(
            info["url"], dir=str(self.where / f"dir-{self.n_starts}"), id=info["id"],
            interval=0.02)
        self.source.start()

    def update(self, stream, version, timeout):
        if self.source is None:
            raise EngineError("POST /update_weights: status 500: an update that names no "
                              "directory needs the stream's url")
        serve(self.source, version, whole=self.version == "default")
        self.version = str(version)

    def stop(self):
        if self.source is not None:
            self.source.close()
        self.source, self.version = None, "default"


def test_an_engine_that_joins_or_is_restarted_is_driven(stream, tmp_path):
    engine = Engine(tmp_path)
    driven = Driven(engine, {"url": stream.url})

    def bring(version):
        with deltawire.Stream(stream.url) as opened:
            driven.bring(version, opened, time.monotonic() + 60)
        assert engine.version == str(version)

    try:
        stream.publish(4)
        bring(4)  # of an existing stream
        stream.publish(1)
        bring(5)
        first = driven.id
        engine.stop()
        stream.publish(3)
        bring(8)  # detected by its label
        assert driven.id != first and engine.n_starts == 2
    finally:
        engine.stop()


def test_an_engine_that_is_restarted_before_its_first_update(stream, tmp_path):
    engine = Engine(tmp_path)
    driven = Driven(engine, {"url": stream.url})
    driven._begin(time.monotonic() + 60)
    stream.wait_for(0, "staged", "0")
    engine.stop()
    try:
        with deltawire.Stream(stream.url) as opened:
            driven.bring(0, opened, time.monotonic() + 60)
        assert engine.version == "0" and engine.n_starts == 2
    finally:
        engine.stop()
