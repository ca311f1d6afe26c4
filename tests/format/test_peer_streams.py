"""The buckets of other systems, made by independent writers (peer_writers.py): the stream
that `deltawire mirror` makes of them, every version compared bit for bit by the stock
safetensors package."""
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
    return [json.loads(line) for line in done.stdout.splitlines()][-1]


def mirror(root, tmp_path, *options, code=0):
    """One stream for all calls of a test"""
    return run("mirror", root, tmp_path / "ours", "--work", tmp_path / "work", "--once",
               *options, code=code)


def steps(tmp_path):
    """The numbers of the mirrored versions"""
    log = run("log", tmp_path / "ours", "-n", 0)
    return [int(v["step"]) for v in log["versions"][::-1]]


def read_version(tmp_path, version):
    run("pull", tmp_path / "ours", "--into", tmp_path / "pulled", "--at", version)
    return stock_read(tmp_path / "pulled" / "model.safetensors")


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


def check_versions(versions, tmp_path, listed):
    assert steps(tmp_path) == listed
    for i, number in enumerate(listed):
        assert read_version(tmp_path, i) == versions[number]


def test_trl(trl, tmp_path):
    """A number without a file is accepted: TRL's format does not show why it has none"""
    root, versions, _ = trl
    done = mirror(root, tmp_path)
    assert done["event"] == "done" and done["from_version"] == N_VERSIONS
    check_versions(versions, tmp_path, [1, 2, 3, 4, 6])


def test_trl_anchor_that_leaves_out(tmp_path):
    versions = make_versions(BF16, 4)
    versions[4]["model.q.weight"] = versions[3]["model.q.weight"]
    root = tmp_path / "bucket"
    for v in range(1, 5):
        peers.trl_put(root, versions[v - 1], versions[v], v, "gap", interval=4,
                      only=set(BF16) - {"model.q.weight"} if v == 4 else None)
    mirror(root, tmp_path)
    check_versions(versions, tmp_path, [1, 2, 3, 4])


def test_packed(packed, tmp_path):
    root, versions, options = packed
    mirror(root, tmp_path, *flat(options))
    check_versions(versions, tmp_path, list(range(N_VERSIONS + 1)))


def test_packed_without_its_base(packed, tmp_path):
    """From its whole version on"""
    root, versions, _ = packed
    mirror(root, tmp_path)
    check_versions(versions, tmp_path, [4, 5, 6])


def test_without_a_base_and_a_whole_version(tmp_path):
    versions = make_versions(SHAPES, 1)
    peers.slime_put(tmp_path / "shared", versions[0], versions[1], 1, 0)
    failed = mirror(tmp_path / "shared", tmp_path, code=6)
    assert "--base" in failed["error"]["text"]


def test_a_damaged_frame_changes_nothing(packed, tmp_path):
    root, versions, options = packed
    file = sorted((root / "weight_v000003").glob("*.safetensors"))[-1]
    content = bytearray(file.read_bytes())
    content[-3] ^= 0x10
    file.write_bytes(content)
    failed = mirror(root, tmp_path, *flat(options), code=3)
    assert failed["error"]["code"] == "corrupt"
    check_versions(versions, tmp_path, [0, 1, 2])


def test_a_wrong_base_is_found_out(packed, tmp_path):
    root, versions, _ = packed
    wrong = save(tmp_path / "wrong", versions[3])
    failed = mirror(root, tmp_path, "--base", wrong, code=3)
    assert "checksum" in failed["error"]["text"]


def test_a_run_that_was_started_again(packed, tmp_path):
    root, versions, options = packed
    mirror(root, tmp_path, *flat(options), "--until", 2)
    for path in sorted(root.iterdir()):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    others = make_versions(SHAPES, N_VERSIONS, seed=2)
    others[0] = versions[0]
    for v in range(1, 4):
        peers.slime_put(root, others[v - 1], others[v], v, v - 1)
    failed = mirror(root, tmp_path, *flat(options), code=4)
    assert "started again" in failed["error"]["text"]
    check_versions(versions, tmp_path, [0, 1, 2])


@pytest.mark.skipif(not (SHARED / "data" / "rl-trace" / "base").exists(),
                    reason=f"no {SHARED / 'data' / 'rl-trace'}: set DW_SHARED")
def test_real_changes(tmp_path_factory):
    """A real run as TRL wrote it, and the same changes as slime would write them"""
    trace = SHARED / "data" / "rl-trace"
    tmp_path = tmp_path_factory.mktemp("real")
    n = 3
    mirror(trace, tmp_path, "--base", trace / "base", "--until", n)
    versions = [read_version(tmp_path, v) for v in range(n + 1)]
    states = json.loads((trace / "states.json").read_text())["states"]
    for v, found in enumerate(versions):
        content = b"".join(found[name].data for name in sorted(found))
        assert hashlib.sha256(content).hexdigest() == states[str(v)]
    again = tmp_path_factory.mktemp("slime")
    for v in range(1, n + 1):
        peers.slime_put(again / "slime", versions[v - 1], versions[v], v, v - 1,
                        "xor" if v % 2 else "overwrite")
    mirror(again / "slime", again, "--base", trace / "base")
    check_versions(versions, again, list(range(n + 1)))
