import signal

import numpy as np
import pytest

import deltawire as dw


def models(n=50000, seed=0):
    rng = np.random.default_rng(seed)
    old = {"a": rng.standard_normal(n).astype(np.float32),
           "b": (rng.integers(0, 65536, (10, n // 10), np.uint16), "BF16")}
    new = {"a": old["a"].copy(), "b": (old["b"][0].copy(), "BF16")}
    new["a"][::97] += 1
    new["b"][0][3, ::31] ^= 1
    return old, new


@pytest.mark.parametrize("codec", ["class", "gap", "raw"])
def test_round_trip(tmp_path, codec):
    old, new = models()
    delta = dw.diff(old, new, codec=codec, base_version=6, new_version=7)
    info = delta.info
    assert (info.codec, info.base_version, info.new_version) == (codec, 6, 7)
    assert info.n_changed == len(range(0, 50000, 97)) + len(range(0, 5000, 31))
    assert [t.name for t in delta.tensors] == ["a", "b"]
    delta.save(tmp_path / "delta")
    assert (tmp_path / "delta").read_bytes() == delta.tobytes()
    wanted = dw.digest(new).state
    for again in (delta, dw.Delta(tmp_path / "delta"), dw.Delta(delta.tobytes()),
                  dw.Delta(str(tmp_path / "delta"))):
        start = {"a": old["a"].copy(), "b": (old["b"][0].copy(), "BF16")}
        again.verify(start)
        again.apply(start)
        assert dw.digest(start).state == wanted


def test_a_wrong_base_is_left_alone():
    old, new = models()
    other, _ = models(seed=1)
    before = dw.digest(other)
    with pytest.raises(dw.Stale) as caught:
        dw.diff(old, new).apply(other)
    assert caught.value.code == "stale" and dw.digest(other) == before
    with pytest.raises(dw.Mismatch):
        dw.diff(old, new).apply({"a": old["a"]})
    with pytest.raises(dw.Mismatch):
        dw.diff(old, {"a": new["a"]})
    assert issubclass(dw.Stale, dw.Error) and not issubclass(dw.Stale, dw.Mismatch)


def test_damage_is_found():
    old, new = models()
    data = bytearray(dw.diff(old, new).tobytes())
    for at in range(0, len(data), len(data) // 40):
        data[at] ^= 64
        with pytest.raises((dw.Corrupt, dw.Unsupported)):
            dw.Delta(data).apply(old)
        data[at] ^= 64
    dw.Delta(data).apply(old)
    with pytest.raises(dw.Corrupt):
        dw.Delta(b"")


def test_checkpoints_on_disk(tmp_path):
    old, new = models()
    dw.write_checkpoint(tmp_path / "m.safetensors", old)
    delta = dw.diff(old, new)
    report = delta.apply_to_checkpoint(tmp_path / "m.safetensors")
    assert report.new_state == dw.digest(new).state and not report.already_applied
    assert dw.digest(dw.Checkpoint(tmp_path / "m.safetensors")) == dw.digest(new)
    assert delta.apply_to_checkpoint(tmp_path / "m.safetensors").already_applied
    with pytest.raises(dw.NotFound) as caught:
        delta.apply_to_checkpoint(tmp_path / "none")
    assert "none" in caught.value.where


def test_update_base():
    old, new = models()
    dw.diff(old, new, update_base=True)
    assert dw.digest(old) == dw.digest(new)


def test_progress_and_its_exceptions():
    old, new = models(4_000_000)
    seen = []
    dw.diff(old, new, threads=1, progress=lambda done, total: seen.append((done, total)))
    assert seen and all(done <= total for done, total in seen)

    class Stop(Exception):
        pass

    def stop(done, total):
        raise Stop(done)

    before = dw.digest(old)
    for call in (lambda: dw.diff(old, new, progress=stop),
                 lambda: dw.diff(old, new).apply(old, progress=stop),
                 lambda: dw.digest(old, progress=stop)):
        with pytest.raises(Stop):
            call()
    assert dw.digest(old) == before
    with pytest.raises(TypeError):
        dw.digest(old, progress=5)


def test_a_signal_stops_long_work():
    old, _ = models(4_000_000)

    def interrupt(done, total):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        dw.digest(old, threads=1, progress=interrupt)


def test_threads_share_a_delta(in_threads):
    old, new = models()
    delta, wanted = dw.diff(old, new), dw.digest(new)

    def work():
        for _ in range(20):
            start = {"a": old["a"].copy(), "b": (old["b"][0].copy(), "BF16")}
            delta.apply(start, threads=1)
            assert dw.digest(start, threads=1) == wanted

    in_threads(4, work)
    delta.close()
    with pytest.raises(dw.Invalid):
        delta.info
