"""Tensors on devices: what the package refuses, and its work over a fake driver of CUDA, which
runs the kernels on the CPU. Real devices: tests/gpu."""
import os
import pathlib

import numpy as np
import pytest

import deltawire as dw
from fake_device import Pinned

FAKE = pathlib.Path(os.environ.get("DW_LIB", "")).parent / "tests/libfake_cuda.so"


@pytest.fixture
def device(python):
    """Runs a script in a process that has two devices, and the names of tests/python."""
    if not FAKE.exists():
        pytest.skip("the fake driver was not built")

    def run(script, *args):
        here = str(pathlib.Path(__file__).parent)
        head = ("import sys; sys.path.insert(0, sys.argv.pop(1))\n"
                "import numpy as np, deltawire as dw\n"
                "from fake_device import OnDevice\n"
                "fault = dw.device_fault('cuda:0')\n"
                "print(fault) if fault else None\n")
        lines = [line.removeprefix("    " * 2) for line in script.splitlines()]
        body = "\n".join("    " + line for line in lines)
        out = python(head + "if not fault:\n" + body + "\n    print('done')\n", here, *args,
                     DELTAWIRE_CUDA_DRIVER=str(FAKE))
        if "no kernels" in out:
            pytest.skip("this build has no kernels")
        assert out.endswith("done\n"), out
        return out
    return run


def test_a_machine_without_a_driver(python):
    out = python("""
        import deltawire as dw
        print(dw.device_fault("cuda:0"))
    """, DELTAWIRE_CUDA_DRIVER="/nowhere/libcuda.so.1")
    assert "/nowhere/libcuda.so.1" in out or "no kernels" in out


def test_names_of_devices():
    for bad in ("cpu", "cuda", "cuda:x", "cuda:99999", ""):
        with pytest.raises(dw.Invalid):
            dw.device_fault(bad)
    with pytest.raises(TypeError):
        dw.device_fault(0)


def test_pinned_memory():
    values = np.arange(100, dtype=np.float32)
    assert dw.digest({"x": Pinned(values)}) == dw.digest({"x": values})


def test_digests_and_copies(device):
    device("""
        values = {"a": np.arange(70000, dtype=np.float32), "b": np.arange(9, dtype=np.uint8),
                  "c": np.empty((0, 4), np.float32), "d": np.arange(5, dtype=np.int64)}
        there = {"a": OnDevice(values["a"], 0), "b": OnDevice(values["b"], 1),
                 "c": OnDevice(values["c"], 1), "d": values["d"]}
        assert dw.digest(there) == dw.digest(values)

        into = {name: np.zeros_like(array) for name, array in values.items()}
        dw.cast(there, {"a": into["a"], "b": OnDevice(into["b"], 1),
                        "c": OnDevice(into["c"], 0), "d": OnDevice(into["d"], 0)})
        assert all(np.array_equal(into[name], values[name]) for name in values)
        assert dw.device_fault("cuda:1") is None and dw.device_fault("cuda:7")
    """)


def test_what_is_refused(device):
    device("""
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        def error(kind, call):
            try:
                call()
            except kind as caught:
                assert caught.where == "x", caught
                return caught.text
            raise AssertionError("not refused")
        text = error(dw.Unsupported, lambda: dw.digest({"x": OnDevice(x, 7)}))
        assert "CUDA's device 7" in text, text
        text = error(dw.Invalid, lambda: dw.digest({"x": OnDevice(x.T)}))
        assert "C-contiguous" in text, text
        text = error(dw.Invalid, lambda: dw.digest({"x": OnDevice(x, 0, says=1)}))
        assert "__dlpack_device__" in text, text
        x.setflags(write=False)
        error(dw.Invalid, lambda: dw.cast({"x": x}, {"x": OnDevice(x)}))
        try:
            dw.write_checkpoint("m.safetensors", {"x": OnDevice(np.zeros(4, np.float32))})
        except dw.Unsupported as caught:
            assert "x" in str(caught), caught
        else:
            raise AssertionError("not refused")
    """)


@pytest.mark.parametrize("baseline", ["device", "host"])
def test_publish_and_follow(device, tmp_path, baseline):
    """Each version is exact, with tensors on two devices and on the host."""
    device("""
        rng = np.random.default_rng(1)
        live = {"a": rng.standard_normal(70000, np.float32), "b": np.arange(999, dtype=np.uint16),
                "c": rng.standard_normal((30, 5), np.float32), "d": np.arange(7)}
        followed = {"a": (np.zeros(70000, np.uint16), "BF16")} | {
            name: array.copy() for name, array in live.items() if name != "a"}
        def placed(arrays):
            return {"b": OnDevice(arrays["b"], 1), "c": OnDevice(arrays["c"], 0),
                    "d": arrays["d"]}
        url = sys.argv[1]
        expected = np.empty(70000, np.uint16)
        with dw.Publisher(url, placed(live) | {"a": OnDevice(live["a"], 0)},
                          as_bf16=["a"], baseline=sys.argv[2]) as publisher, \\
                dw.Follower(url, tensors=placed(followed) | {"a": followed["a"]}) as follower:
            for version in range(1, 6):
                for array in live.values():
                    where = rng.random(array.shape) < 0.1
                    array[where] = rng.integers(1, 9, int(where.sum()))
                ticket = publisher.publish(cuda_streams={"cuda:0": 0, "cuda:1": 0, "cuda:5": 0})
                assert publisher.wait(ticket).version == version
                follower.sync()
                dw.cast({"a": live["a"]}, {"a": (expected, "BF16")})
                assert np.array_equal(followed["a"][0], expected)
                assert all(np.array_equal(live[n], followed[n]) for n in "bcd")
            for bad in ({"cuda:0": "x"}, {0: 0}, [5]):
                try:
                    publisher.publish(cuda_streams=bad)
                except (TypeError, AttributeError):
                    continue
                raise AssertionError(bad)
    """, f"file://{tmp_path}/stream", baseline)


@pytest.mark.parametrize("baseline", ["device", "host"])
def test_shards_on_devices(device, tmp_path, baseline):
    device("""
        live = np.arange(1000, dtype=np.uint16)
        parts = [("x", 0, OnDevice(live[:400])), ("x", 400, OnDevice(live[400:]))]
        shape = {"x": (None, "U16", (1000,))}
        followed = np.zeros_like(live)
        for _ in range(2):  # the second one reads its baseline back
            with dw.Publisher(sys.argv[1], shape, shards=parts,
                              baseline=sys.argv[2]) as publisher:
                for _ in range(2):
                    live[350:450] += 5
                    publisher.wait(publisher.publish())
        with dw.Follower(sys.argv[1], tensors={"x": followed}) as follower:
            follower.sync()
        assert np.array_equal(live, followed)
        parts[1] = ("x", 400, live[400:])
        try:
            dw.Publisher(sys.argv[1], shape, shards=parts)
        except dw.Invalid as caught:
            assert "same device" in caught.text and caught.where == "x"
        else:
            raise AssertionError("not refused")
    """, f"file://{tmp_path}/stream", baseline)


def test_two_ranks_on_devices(device, tmp_path):
    """Each rank keeps the baseline of its own shards, in either memory."""
    device("""
        import threading
        live = np.arange(60000, dtype=np.uint16)
        shape, halves = {"x": (None, "U16", (60000,))}, (live[:40000], live[40000:])
        followed, faults = np.zeros_like(live), []
        gate = threading.Barrier(3, timeout=300)
        def rank(number, baseline):
            try:
                with dw.Publisher(sys.argv[1], shape, rank=number, n_ranks=2, job="1",
                                  shards=[("x", 40000 * number, OnDevice(halves[number], number))],
                                  baseline=baseline) as publisher:
                    gate.wait()  # it has read the weights
                    for step in range(3):
                        gate.wait()
                        publisher.wait(publisher.publish(step=step))
                        gate.wait()
            except BaseException as fault:
                faults.append(fault)
                gate.abort()
        ranks = [threading.Thread(target=rank, args=pair) for pair in enumerate(("host", "device"))]
        for thread in ranks:
            thread.start()
        try:
            gate.wait()
            for step in range(3):
                live[step::7] += 1
                gate.wait()
                gate.wait()
                with dw.Follower(sys.argv[1], tensors={"x": followed}, report=False) as follower:
                    follower.sync()
                    assert follower.version == step + 1
                assert np.array_equal(live, followed)
        except BaseException:
            gate.abort()
            print(faults)
            raise
        for thread in ranks:
            thread.join()
        assert not faults, faults
    """, f"file://{tmp_path}/stream")


def test_where_a_baseline_is(tmp_path):
    with pytest.raises(ValueError, match="baseline"):
        dw.Publisher(f"file://{tmp_path}/stream", {"x": np.zeros(4, np.float32)}, baseline="gpu")


def test_a_layout_with_targets_on_devices(device, tmp_path):
    device("""
        import test_layout
        from test_layout import as_bf16, learnt, load, random
        old, new = random(1), random(1)
        for array in new.values():
            array[::2, 3] ^= 1
        live = {name: array.copy() for name, array in old.items()}
        url, directory = "file://" + sys.argv[1] + "/run", sys.argv[1] + "/dir"
        publisher = dw.Publisher(url, as_bf16(live))
        follower = dw.Follower(url, into=directory)
        follower.sync()
        for name, array in new.items():
            live[name][:] = array
        publisher.wait(publisher.publish())
        base = follower.state
        follower.stage()
        layout = learnt()
        layout.end()
        engine, wanted = load(old), load(new)
        bound = {"qk": OnDevice(engine["qk"], 1), "v": OnDevice(engine["v"], 0)}
        layout.bind(bound)
        assert layout.compare(as_bf16(new)) == {"q": 6, "k": 6, "v": 6}
        layout.prepare(follower.staged_path)
        assert layout.compare(as_bf16(old)) == {}
        report = layout.store(base=base)
        assert report.n_stored == 18 and report.reached == report.state
        assert all(np.array_equal(engine[name], wanted[name]) for name in wanted)
        for bad in (lambda: layout.store(), lambda: layout.apply(follower.staged_path)):
            try:
                bad()
                raise SystemExit("taken")
            except (dw.Invalid, dw.Stale) as error:
                assert "stored before" in str(error) or "cuda:" in str(error), error
        assert all(np.array_equal(engine[name], wanted[name]) for name in wanted)
        layout.write(as_bf16(old))
        layout.prepare(follower.staged_path)
        layout.bind(bound | {"v": engine["v"]})  # partly on the host
        layout.apply(follower.staged_path)
        assert all(np.array_equal(engine[name], wanted[name]) for name in wanted)
        follower.close()
        publisher.close()
    """, str(tmp_path))
