"""A layout is learnt from an engine that fuses and transposes tensors; patches then reach the
engine's own elements."""
import numpy as np
import pytest

import deltawire

SHAPE = (12, 20)


def load(tensors):
    """The engine's own loader: q before k, and padding; v transposed."""
    dtype = tensors["q"].dtype
    padding = np.full((3, SHAPE[1]), -1, np.int64).astype(dtype)
    return {"qk": np.concatenate([tensors["q"], tensors["k"], padding]),
            "v": np.ascontiguousarray(tensors["v"].T)}


def random(seed):
    generator = np.random.default_rng(seed)
    return {name: generator.integers(0, 1 << 16, SHAPE, np.uint16) for name in "qkv"}


def as_bf16(arrays):
    return {name: (array, "BF16") for name, array in arrays.items()}


def learnt(table=None):
    layout = deltawire.Layout(table or {name: ("BF16", SHAPE) for name in "qkv"},
                              {"qk": ("BF16", (27, 20)), "v": ("BF16", (20, 12))})
    spelled = {name: np.empty(SHAPE, np.uint16) for name in "qkv"}
    passes = []
    for number in range(layout.passes()):
        for name, array in spelled.items():
            layout.spell(name, number, array)
        passes.append(load(spelled))
    assert layout.learn("qk", [p["qk"] for p in passes]) == 2 * 12 * 20
    assert layout.learn("v", [p["v"] for p in passes]) == 12 * 20
    return layout


def test_a_patch_goes_to_its_places(tmp_path):
    old, new = random(1), random(1)
    for array in new.values():
        array[::2, 3] ^= 1
    live = {name: array.copy() for name, array in old.items()}
    publisher = deltawire.Publisher(f"file://{tmp_path}/run", as_bf16(live))
    follower = deltawire.Follower(f"file://{tmp_path}/run", into=tmp_path / "dir")
    follower.sync()
    for name, array in new.items():
        live[name][:] = array
    publisher.wait(publisher.publish())
    base = follower.state
    follower.stage()
    patch = follower.staged_path

    layout = learnt()
    layout.forget("k")
    layout.end()
    assert layout.held == {"q": 240, "k": 0, "v": 240} and layout.forgotten == ["k"]
    targets = load(old)
    with pytest.raises(deltawire.Unsupported, match="memory"):
        layout.apply(patch)
    assert layout.sources("qk") == ["q"] and layout.sources("v") == ["v"]
    with pytest.raises(KeyError, match="w"):
        layout.sources("w")
    only_v = np.zeros_like(targets["v"])
    layout.bind({"v": (only_v, "BF16")})
    layout.write_target("v", as_bf16({"v": old["v"]}))  # needs neither q nor the memory of qk
    assert np.array_equal(only_v, targets["v"])
    with pytest.raises(deltawire.Unsupported, match="memory"):
        layout.write_target("qk", as_bf16({"q": old["q"]}))
    with pytest.raises(deltawire.Mismatch, match="no tensor of that name"):
        layout.write_target("v", as_bf16({"q": old["q"]}))
    layout.bind(as_bf16(targets))
    assert layout.compare(as_bf16(old)) == {}
    assert layout.compare(as_bf16(new)) == {"q": 6, "v": 6}
    report = layout.apply(patch, base=base)
    assert report.n_changed == 18 and report.n_stored == 12 and report.forgotten == ["k"]
    assert report.reached == report.state == deltawire.digest(as_bf16(new)).state
    wanted = load(new | {"k": old["k"]})
    assert all(np.array_equal(targets[name], wanted[name]) for name in wanted)
    with pytest.raises(deltawire.Stale, match="not what the patch replaces"):
        layout.apply(patch)

    layout.write(as_bf16(old))
    _, stores = layout.stores(patch)
    for name, (places, before, after) in stores.items():
        at = np.frombuffer(places, np.int64)
        flat = targets[name].reshape(-1)
        assert np.array_equal(flat[at], np.frombuffer(before, np.uint16))
        flat[at] = np.frombuffer(after, np.uint16)
    assert all(np.array_equal(targets[name], wanted[name]) for name in wanted)
    follower.close()
    publisher.close()


def test_what_is_wrong_is_said():
    layout = learnt()
    with pytest.raises(KeyError, match="x"):
        layout.forget("x")
    with pytest.raises(KeyError, match="x"):
        layout.bind({"x": np.zeros(3, np.uint16)})
    with pytest.raises(deltawire.Mismatch, match="size"):
        layout.bind({"v": np.zeros(3, np.uint16)})
    with pytest.raises(deltawire.Mismatch, match="size"):
        layout.spell("q", 0, np.zeros(3, np.uint16))
    with pytest.raises(deltawire.Unsupported, match="element by element"):
        layout.learn("v", [np.full((20, 12), 0x7FFF, np.uint16)] * layout.passes())
    with pytest.raises(deltawire.Invalid):
        layout.compare({})  # the learning has not ended
    layout.end()
    with pytest.raises(deltawire.Invalid):
        layout.end()
    with pytest.raises(deltawire.Mismatch, match="no tensor of that name"):
        layout.compare({})
    with pytest.raises(deltawire.Invalid):
        deltawire.Layout({"q": ("BF17", (1,))}, {})
