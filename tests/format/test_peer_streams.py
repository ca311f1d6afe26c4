"""The buckets of other systems, made by independent writers (peer_writers.py): `deltawire
pull`, `log` and `verify` of every version, compared bit for bit by the stock safetensors
package."""
import hashlib
import json
import os
import pathlib
import subprocess
import tempfile

import numpy
import pytest
import safetensors

import decoder
import dwlib
import peer_writers as peers
from decoder import Tensor
from make_models import change, weights

DELTAWIRE = os.environ.get("DELTAWIRE", str(dwlib.ROOT / "build" / "deltawire"))
SHARED = pathlib.Path(os.environ.get("DW_SHARED", dwlib.ROOT.parent / "shared"))
N_VERSIONS = 6
SHAPES = {"model.embed.weight": ((64, 300), "BF16"), "model.norm": ((300,), "F32"),
          "model.q.weight": ((40, 300), "BF16"), "model.scale": ((), "BF16"),
          "model.empty": ((0, 4), "BF16"), "fp8": ((50, 8), "F8_E4M3")}


@pytest.fixture
def tmp_path():
    """In memory if possible, because every pull syncs and there are many"""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shm) as path:
        yield pathlib.Path(path)


def run(*arguments, code=0):
    done = subprocess.run([DELTAWIRE, *map(str, arguments), "--json"], capture_output=True,
                          text=True)
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def stock_read(path):
    names = {v: k for k, v in peers.STOCK_NAMES.items()}
    return {name: Tensor(t["dtype"] if t["dtype"] not in names else names[t["dtype"]],
                         tuple(t["shape"]), bytes(t["data"]))
            for name, t in safetensors.deserialize(path.read_bytes())}


def make_versions(shapes, n_versions, seed=1, still=()):
    """Weights before version 1 and after each; nothing changes in versions STILL"""
    random = numpy.random.default_rng(seed)
    versions = [{}]
    for name, (shape, dtype) in shapes.items():
        n = int(numpy.prod(shape, dtype=int))
        versions[0][name] = Tensor(dtype, shape, weights(random, dtype, n).tobytes())
    for version in range(1, n_versions + 1):
        new = dict(versions[-1])
        for name, t in new.items():
            if version in still or (name == "model.norm" and version % 2):
                continue
            old = numpy.frombuffer(t.data, peers.unit_type(t.dtype))
            new[name] = Tensor(t.dtype, t.shape,
                               change(random, t.dtype, old, 0.02, "step").tobytes())
        versions.append(new)
    return versions


def save(path, model):
    path.mkdir()
    (path / "model.safetensors").write_bytes(peers.stock_save(model, {"format": "pt"}))
    return path


BF16 = {name: (shape, "BF16") for name, (shape, _) in SHAPES.items()}


@pytest.fixture(params=["raw-v1", "raw", "gap"])
def trl(request, tmp_path):
    versions = make_versions(BF16, N_VERSIONS, still={5})
    root = tmp_path / "bucket"
    for v in range(1, N_VERSIONS + 1):
        peers.trl_put(root, versions[v - 1], versions[v], v, request.param, interval=4)
    return root, versions, {}


def slime(root, versions, encoding, checksum):
    for v in range(1, N_VERSIONS + 1):
        if v == 4:
            peers.slime_put_whole(root, versions[v], v)
        else:
            peers.slime_put(root, versions[v - 1], versions[v], v, v - 1, encoding, checksum,
                            n_files=1 + v % 3)


@pytest.fixture(params=["xor/xxh3-128", "overwrite/adler32"])
def packed(request, tmp_path):
    versions = make_versions(SHAPES, N_VERSIONS)
    root = tmp_path / "shared"
    slime(root, versions, *request.param.split("/"))
    return root, versions, {"--base": save(tmp_path / "base", versions[0])}


def flat(options):
    return [x for pair in options.items() for x in pair]


def check_versions(root, versions, options, tmp_path, listed):
    """In place from version to version, at once, and back again"""
    walked = tmp_path / "walked"
    for v in listed:
        report = run("pull", root, "--into", walked, "--at", v, *flat(options))
        assert report["version"] == v
        assert stock_read(walked / "model.safetensors") == versions[v]
        if v not in (listed[2], listed[-1]):
            continue
        fresh = tmp_path / f"fresh-{v}"
        run("pull", root, "--into", fresh, "--at", v, *flat(options))
        assert stock_read(fresh / "model.safetensors") == versions[v]
    assert run("pull", root, "--into", walked, *flat(options))["steps"] == 0
    back = run("pull", root, "--into", walked, "--at", listed[1], *flat(options))
    assert back["version"] == listed[1]
    assert stock_read(walked / "model.safetensors") == versions[listed[1]]


def test_trl(trl, tmp_path):
    root, versions, options = trl
    listed = [1, 2, 3, 4, 6]
    check_versions(root, versions, options, tmp_path, listed)
    log = run("log", root)
    assert log["format"] == "trl"
    rows = log["versions"][::-1]
    assert [r["version"] for r in rows] == listed
    assert [r["base"] for r in rows] == [None, 1, 2, None, 4]
    assert not any(r["base_is_named"] or r["checksum"] for r in rows)
    found = run("verify", root)
    assert (found["versions"], found["replayed"], found["checked"]) == (5, 5, 0)
    assert found["missing"] == 1 and found["faults"] == []
    assert "does not show which" in found["notes"][0] and "no checksums" in found["notes"][1]


def test_trl_notes_what_its_format_does_not_show(trl, tmp_path):
    root, versions, _ = trl
    report = run("pull", root, "--into", tmp_path / "m")
    assert report["missing"] == 1 and report["verified"] is False
    assert report["notes"] == ["version 5 has no file: nothing changed, or an upload was "
                               "lost. TRL's format does not show which. The next whole "
                               "anchor corrects it"]
    missing = run("pull", root, "--into", tmp_path / "m", "--at", 5, code=6)
    assert "changes nothing has no file" in missing["error"]["text"]


def test_trl_anchor_that_leaves_out(tmp_path):
    versions = make_versions(BF16, 4)
    same = versions[4]["model.q.weight"] = versions[3]["model.q.weight"]
    root = tmp_path / "bucket"
    for v in range(1, 5):
        peers.trl_put(root, versions[v - 1], versions[v], v, "gap", interval=4,
                      only=set(BF16) - {"model.q.weight"} if v == 4 else None)
    run("pull", root, "--into", tmp_path / "m")
    found = stock_read(tmp_path / "m" / "model.safetensors")
    assert found == versions[4] and found["model.q.weight"] == same
    assert run("log", root)["versions"][0]["partial"] is True


def test_packed(packed, tmp_path):
    root, versions, options = packed
    listed = list(range(1, N_VERSIONS + 1))
    check_versions(root, versions, options, tmp_path, listed)
    is_slime = (root / "weight_v000001").exists()
    rows = run("log", root)["versions"][::-1]
    assert [r["base"] for r in rows] == [0, 1, 2, None if is_slime else 3, 4, 5]
    found = run("verify", root, *flat(options))
    assert found["replayed"] == N_VERSIONS and found["faults"] == []
    assert found["checked"] == sum(
        len(peers.changed_names(versions[v - 1], versions[v])) for v in listed
        if not (is_slime and v == 4))
    report = run("pull", root, "--into", tmp_path / "proven", "--at", 3, *flat(options))
    assert report["verified"] is True and report["checked"] > 0


def test_packed_without_its_base(packed, tmp_path):
    root, versions, _ = packed
    failed = run("pull", root, "--into", tmp_path / "m", "--at", 2, code=6)
    assert "--base" in failed["error"]["text"]
    found = run("verify", root)
    assert found["faults"] == [] and "--base" in found["notes"][0]
    if (root / "weight_v000001").exists():  # from its whole version on
        assert found["replayed"] == 3
        run("pull", root, "--into", tmp_path / "m")
        assert stock_read(tmp_path / "m" / "model.safetensors") == versions[N_VERSIONS]


def test_a_damaged_frame_changes_nothing(packed, tmp_path):
    root, versions, options = packed
    model = tmp_path / "m"
    run("pull", root, "--into", model, "--at", 2, *flat(options))
    for path in (root / "weight_v000003", root / "delta-00000003"):
        for file in sorted(path.glob("*.safetensors"))[-1:]:
            content = bytearray(file.read_bytes())
            content[-3] ^= 0x10
            file.write_bytes(content)
    failed = run("pull", root, "--into", model, "--at", 3, *flat(options), code=3)
    assert failed["error"]["code"] == "corrupt"
    assert stock_read(model / "model.safetensors") == versions[2]
    found = run("verify", root, *flat(options), code=3)
    assert found["faults"][0]["code"] == "corrupt"


def test_a_wrong_base_is_found_out(packed, tmp_path):
    root, versions, _ = packed
    wrong = save(tmp_path / "wrong", versions[3])
    failed = run("pull", root, "--into", tmp_path / "m", "--at", 1, "--base", wrong, code=3)
    assert "checksum" in failed["error"]["text"]


def test_a_run_that_was_started_again(packed, tmp_path):
    root, versions, options = packed
    run("pull", root, "--into", tmp_path / "m", "--at", 2, *flat(options))
    for path in sorted(root.iterdir()):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    others = make_versions(SHAPES, N_VERSIONS, seed=2)
    others[0] = versions[0]
    for v in range(1, 4):
        peers.slime_put(root, others[v - 1], others[v], v, v - 1)
    failed = run("pull", root, "--into", tmp_path / "m", *flat(options), code=4)
    assert "started again" in failed["error"]["text"]
    assert stock_read(tmp_path / "m" / "model.safetensors") == versions[2]


@pytest.mark.skipif(not (SHARED / "data" / "rl-trace" / "base").exists(),
                    reason=f"no {SHARED / 'data' / 'rl-trace'}: set DW_SHARED")
def test_real_changes(tmp_path_factory):
    """A real run as TRL wrote it, and the same changes as slime would write them"""
    trace = SHARED / "data" / "rl-trace"
    tmp_path = tmp_path_factory.mktemp("real")
    model, n = tmp_path / "m", 3
    base = decoder.read_checkpoint(trace / "base")
    versions, root = [base], tmp_path / "slime"
    for v in range(1, n + 1):
        report = run("pull", trace, "--into", model, "--at", v, "--base", trace / "base")
        assert report["format"] == "trl" and report["version"] == v
        versions.append(stock_read(model / "model.safetensors"))
        peers.slime_put(root, versions[v - 1], versions[v], v, v - 1,
                        "xor" if v % 2 else "overwrite")
    states = json.loads((trace / "states.json").read_text())["states"]
    for v in range(1, n + 1):
        report = run("pull", root, "--into", tmp_path / "s", "--at", v,
                     "--base", trace / "base")
        assert report["verified"]
        found = stock_read(tmp_path / "s" / "model.safetensors")
        assert found == versions[v]
        content = b"".join(found[name].data for name in sorted(found))
        assert hashlib.sha256(content).hexdigest() == states[str(v)]
