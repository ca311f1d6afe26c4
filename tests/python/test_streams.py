import json
import os
import pickle
import signal
import socket
import subprocess
import threading

import numpy as np
import pytest

import deltawire as dw


def model(n=20000):
    return {"w": np.arange(n, dtype=np.float32), "i": np.arange(16, dtype=np.int64)}


def empty(n=20000):
    return {name: np.zeros_like(array) for name, array in model(n).items()}


def test_stores(tmp_path):
    with dw.Store(f"file://{tmp_path}/s") as store:
        store.put("a/b", b"hello")
        store.put("a/c", bytearray(b"x" * 1000), create=True)
        with pytest.raises(dw.Conflict):
            store.put("a/c", b"other", create=True)
        assert store.get("a/b") == b"hello" and store.get("a/b", 1, 3) == b"ell"
        assert store.get("a/b", 99) == b""
        assert [(e.key, e.n_bytes) for e in store.list()] == [("a/b", 5), ("a/c", 1000)]
        assert [e.key for e in store.list(after="a/b")] == ["a/c"]
        store.remove("a/b")
        with pytest.raises(dw.NotFound):
            store.get("a/b")
        with pytest.raises(dw.Invalid):
            store.put("../x", b"")
        assert store.counts.bytes_written >= 1005 and store.url.startswith("file://")
    with pytest.raises(dw.Invalid):
        store.list()
    with pytest.raises(dw.Error):
        dw.Store("ftp://x")


def test_publish_and_follow(url, tmp_path):
    weights, memory = model(), empty()
    with (dw.Publisher(url, weights, step="start", spool_dir=tmp_path, fold_every=4,
                       anchor_factor=0) as publisher,
          dw.Follower(url, tensors=memory, id="f1") as follower,
          dw.Follower(url, into=tmp_path / "copy", report=False) as on_disk):
        assert follower.version is None and publisher.version == 0
        for step in range(1, 6):
            weights["w"][step::100] *= 1.5
            report = publisher.wait(publisher.publish(step=step, notes=f"step {step}"))
            assert report.version == step and report.state == dw.digest(weights).state
            assert follower.sync().version == step == follower.version
            assert follower.state == report.state == dw.digest(memory).state
        assert on_disk.poll() == 5
        while on_disk.version != 5:
            staged = on_disk.stage()
            assert on_disk.staged == staged
            on_disk.prepare()
            on_disk.apply()
            on_disk.finish()
        assert dw.digest(dw.Checkpoint(on_disk.dir)) == dw.digest(weights)
        follower.report("following", "all is well")
        publisher.drain()
        with dw.Stream(url) as stream:
            assert (stream.head, stream.floor, stream.id) == (5, 0, publisher.stream_id)
            assert [v.step for v in stream.versions()] == ["start", "1", "2", "3", "4", "5"]
            assert stream.version(3).notes == "step 3"
            assert stream.versions(5)[0].state == dw.digest(weights).state
            assert stream.tensors["w"] == ("F32", (20000,))
            assert [(f.id, f.version, f.message) for f in stream.followers()] == [
                ("f1", 5, "all is well")]
            assert any(s.start is not None for s in stream.shortcuts())  # the fold of 4
            with pytest.raises(dw.NotFound):
                stream.version(6)
    with pytest.raises(dw.NotFound):
        dw.Stream(f"file://{tmp_path}/none")


def test_signatures(url, tmp_path):
    key, other = dw.keygen(tmp_path / "key"), dw.keygen(tmp_path / "other")
    with dw.Publisher(url, model(), sign_key=tmp_path / "key") as publisher:
        publisher.wait(publisher.publish())
    assert dw.Stream(url, trust=[key]).version(1).key == key
    with dw.Follower(url, tensors=empty(), trust=[other, key]) as follower:
        assert follower.sync().version == 1
    with pytest.raises(dw.Untrusted) as caught:
        dw.Follower(url, tensors=empty(), trust=[other]).sync()
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.code == "untrusted" and str(again) == str(caught.value)
    with pytest.raises(dw.Conflict):
        dw.keygen(tmp_path / "key")
    with pytest.raises(dw.Error):
        dw.Stream(url, trust=["no key"])
    with pytest.raises(TypeError):
        dw.Stream(url, trust=key)


def altered(store, prefix):
    """Replaces the second half of an object; returns a function that restores it."""
    key = next(e.key for e in store.list(prefix))
    good = store.get(key)
    store.put(key, good[:len(good) // 2] + b"B" * (len(good) - len(good) // 2))
    return lambda: store.put(key, good)


@pytest.mark.parametrize("start", [None, 2])
def test_live_memory_changes_only_once_a_version_is_proven(url, tmp_path, start):
    key, weights, memory = dw.keygen(tmp_path / "key"), model(), model()
    memory["w"] += 0.5  # an engine's weights, which are no version of the stream
    with dw.Publisher(url, weights, sign_key=tmp_path / "key") as publisher:
        for i in range(3):
            weights["w"][i::50] *= 2
            publisher.wait(publisher.publish())
        publisher.drain()
    with dw.Store(url) as store, dw.Follower(url, tensors=memory, trust=[key]) as follower:
        if start is not None:
            follower.sync(start)
        before = {name: array.copy() for name, array in memory.items()}
        mend = altered(store, "objects/00000000000000000000-")
        with pytest.raises(dw.Corrupt, match="altered"):
            follower.sync(0)
        assert follower.version == start
        for name, array in memory.items():
            assert array.tobytes() == before[name].tobytes()
        mend()
        assert follower.sync(0).version == 0 and dw.digest(memory) == dw.digest(model())
        assert follower.sync().version == 3 and dw.digest(memory) == dw.digest(weights)


def test_memory_that_is_declared_empty_is_no_version_until_it_is_proven(url, tmp_path):
    dw.Publisher(url, model()).close()
    with dw.Store(url) as store, dw.Follower(url, tensors=empty(), empty=True) as follower:
        mend = altered(store, "objects/00000000000000000000-")
        with pytest.raises(dw.Corrupt):
            follower.sync()
        assert follower.version is None and follower.state is None
        mend()
        assert follower.sync().version == 0
    with pytest.raises(TypeError):
        dw.Follower(url, into=tmp_path / "d", empty=True)


def test_base_and_fork(url, tmp_path):
    weights = model()
    dw.write_checkpoint(tmp_path / "base.safetensors", weights)
    with dw.Publisher(url, weights, base=tmp_path / "base.safetensors") as publisher:
        weights["w"][7] = -1
        publisher.wait(publisher.publish())
    assert dw.Stream(url).version(0).content == "base"
    memory = empty()
    with dw.Follower(url, tensors=memory, base=tmp_path / "base.safetensors") as follower:
        follower.sync()
    assert dw.digest(memory) == dw.digest(weights)
    fork = f"file://{tmp_path}/fork"
    with dw.Publisher(fork, weights, fork=url):
        pass
    info = dw.Stream(fork).version(0)
    assert info.content == "fork" and info.fork_version == 1


def test_another_writer_takes_over(url):
    first = dw.Publisher(url, model())
    with dw.Publisher(url, model()) as second:
        with pytest.raises(dw.Conflict):
            first.wait(first.publish())
        second.wait(second.publish())
    first.close()


def test_what_nobody_waited_for_is_told_by_close(url):
    first = dw.Publisher(url, model())
    dw.Publisher(url, model()).close()
    first.publish()
    with pytest.raises(dw.Conflict):
        first.close()
    first.close()


def test_tickets(url):
    with dw.Publisher(url, model(), when_busy="fold") as publisher:
        tickets = [publisher.publish() for _ in range(4)]
        assert tickets == sorted(set(tickets))
        fates = []
        for ticket in tickets:
            try:
                fates.append(publisher.wait(ticket).version)
            except dw.Cancelled:
                fates.append(None)
        assert fates[-1] is not None
        assert publisher.captured(tickets[-1]) is True
        with pytest.raises(dw.Invalid):
            publisher.wait(99)
    with pytest.raises(ValueError):
        dw.Publisher(url, model(), when_busy="sometimes")
    with pytest.raises(dw.Invalid):
        dw.Publisher(url, model(), fold_every=1)
    with pytest.raises(TypeError):
        dw.Follower(url)


def test_waits_end(url):
    with dw.Publisher(url, model()), dw.Follower(url, tensors=empty()) as follower:
        follower.sync()
        assert follower.wait(timeout=0.05) is None


def test_close_ends_a_wait_of_another_thread(url):
    with dw.Publisher(url, model()):
        follower = dw.Follower(url, tensors=empty())
        follower.sync()
        waiting, fate = threading.Event(), []

        def wait():
            try:
                follower.wait(max_wait=0.05, progress=lambda *_: waiting.set())
            except dw.Error as error:
                fate.append(error.code)

        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(300)
        assert follower.version == 0  # answered meanwhile
        follower.close()
        thread.join()
        assert fate == ["cancelled"]
        with pytest.raises(dw.Invalid):
            follower.poll()


def test_a_callback_may_not_call_its_own_follower(url):
    with dw.Publisher(url, model()), dw.Follower(url, tensors=empty()) as follower:
        follower.sync()
        with pytest.raises(dw.Invalid) as caught:
            follower.wait(progress=lambda *_: follower.poll())
        assert "callback" in caught.value.text


def test_interrupts(url):
    with dw.Publisher(url, model()), dw.Follower(url, tensors=empty()) as follower:
        follower.sync()
        main = threading.main_thread().ident
        begun = threading.Event()

        def interrupt():
            begun.wait()
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            follower.wait(max_wait=0.05, progress=lambda *_: begun.set())
        thread.join()
        assert follower.sync().version == 0  # works as before


def test_many_threads_publish(url, in_threads):
    with dw.Publisher(url, model()) as publisher:
        def work():
            for _ in range(5):
                publisher.wait(publisher.publish())

        in_threads(4, work)
        assert publisher.version == 20


def test_close_ends_waits_for_tickets(url):
    publisher = dw.Publisher(url, model())
    ticket = publisher.publish()
    publisher.wait(ticket)
    publisher.close()
    with pytest.raises(dw.Invalid):
        publisher.wait(ticket)
    with pytest.raises(dw.Invalid):
        publisher.captured(ticket)


def test_a_store_stays_open_for_those_who_use_it(tmp_path):
    store = dw.Store(f"file://{tmp_path}/s")
    publisher = dw.Publisher(store, model())
    store.close()
    assert publisher.wait(publisher.publish()).version == 1
    publisher.close()


def test_a_child_must_open_anew(url):
    store = dw.Store(url)
    handles = [store, dw.Publisher(store, model()), dw.Follower(url, tensors=empty()),
               dw.Stream(url)]
    calls = [store.list, handles[1].publish, handles[2].sync, handles[3].shortcuts]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in calls:
                try:
                    call()
                    os._exit(2)
                except dw.Invalid as error:
                    assert "fork" in error.text
            for handle in handles:  # does not close the parent's handles
                try:
                    handle.close()
                except dw.Invalid:
                    pass
            handles.clear(), calls.clear()
            del store, handle, call
            with dw.Stream(url) as stream:
                assert stream.head == 0
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    publisher = handles[1]
    assert publisher.wait(publisher.publish()).version == 1
    for handle in handles:
        handle.close()


def test_a_stream_is_named_and_keeps_its_key(tmp_path):
    url = f"file://{tmp_path}/store"
    dw.keygen(tmp_path / "key")
    with dw.Publisher(url, model(), sign_key=tmp_path / "key") as publisher:
        stream = publisher.stream_id
    with pytest.raises(dw.Untrusted, match="new_key"):
        dw.Publisher(url, model())
    with dw.Publisher(url, model(), new_key=True) as publisher:
        publisher.wait(publisher.publish())
    dw.Publisher(url, model()).close()  # the newest version is not signed
    assert dw.Stream(url, stream=stream).id == stream
    dw.Follower(url, into=tmp_path / "into", stream=stream).close()
    for open_it in (dw.Stream, lambda *a, **k: dw.Follower(*a, into=tmp_path / "new", **k),
                    lambda *a, **k: dw.Publisher(*a, model(), new_key=True, **k)):
        with pytest.raises(dw.Untrusted, match="not stream 0000"):
            open_it(url, stream="0" * 32)


def test_a_damaged_baseline_is_found_and_repaired(tmp_path, url):
    """A bit flips in the file of the baseline while the publisher runs."""
    weights = {"w": np.arange(4096, dtype=np.int64), "x": np.arange(100, dtype=np.int64)}
    baseline = tmp_path / "baseline"
    with dw.Publisher(url, weights, baseline_dir=baseline, fold_every=0, sweep_every=1) as publisher:
        weights["x"][0] += 1
        publisher.wait(publisher.publish())
        with dw.Checkpoint(baseline, writable=True) as found:
            np.asarray(found["w"])[7] ^= 1
        for _ in range(3):
            weights["x"][1] += 1
            publisher.wait(publisher.publish())
        publisher.drain()
        head = publisher.version
    with dw.Stream(url) as stream:
        suspects = [v.suspect_from for v in stream.versions()]
    assert any(s is not None and s <= head for s in suspects), suspects
    into = {name: np.zeros_like(array) for name, array in weights.items()}
    with dw.Follower(url, tensors=into, empty=True) as follower:
        assert follower.sync().version == head
    assert all(np.array_equal(into[name], weights[name]) for name in weights)


def test_versions_record_their_writer(url):
    weights = {"w": np.arange(64, dtype=np.int64)}
    with dw.Publisher(url, weights, fold_every=0):
        pass
    with dw.Publisher(url, weights, fold_every=0, provenance=False) as publisher:
        weights["w"][0] += 1
        publisher.wait(publisher.publish())
    with dw.Stream(url) as stream:
        writers = [(v.library, v.host) for v in stream.versions()]
    assert sorted(writers, key=str) == sorted(
        [(dw.__version__, socket.gethostname()), (None, None)], key=str)


def test_versions_of_a_derived_stream_have_a_source(tmp_path):
    url, derived = f"file://{tmp_path}/run", f"file://{tmp_path}/fp8"
    weights = {"mlp.up.weight": np.ones((128, 128), dtype=np.float16)}
    with dw.Publisher(url, weights) as publisher:
        weights["mlp.up.weight"][3, 4] = 2
        publisher.wait(publisher.publish())
    command = os.environ.get("DELTAWIRE", "deltawire")
    subprocess.run([command, "mirror", url, derived, "--quantize", "fp8-block", "--once",
                    "--quiet"], check=True)
    with dw.Stream(url) as stream, dw.Stream(derived) as fp8:
        assert [v.source for v in stream.versions()] == [None, None]
        sources = [v.source for v in fp8.versions()]
        assert [(s.stream, s.version) for s in sources] == [(stream.id, 0), (stream.id, 1)]
        log = json.loads(subprocess.check_output([command, "log", derived, "--json"]))
        assert sources[1]._asdict() == log["versions"][0]["source"]
