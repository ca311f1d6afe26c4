"""`deltawire mirror`: every version it wrote, compared bit for bit by independent readers
(peer_readers.py)."""
import hashlib
import json
import os
import pathlib
import subprocess

import pytest

import dwlib
import peer_writers
from peer_readers import READERS, load
from test_peer_streams import make_versions

DELTAWIRE = os.environ.get("DELTAWIRE", str(dwlib.ROOT / "build" / "deltawire"))
SHARED = pathlib.Path(os.environ.get("DW_SHARED", dwlib.ROOT.parent / "shared"))
N_VERSIONS = 5
STILL = (3,)  # nothing changes in this one
PLAIN = {"model.embed.weight": ((64, 3000), "BF16"), "model.q.weight": ((40, 30), "BF16"),
         "model.scale": ((), "BF16"), "model.empty": ((0, 4), "BF16")}
MIXED = {**PLAIN, "model.norm": ((300,), "F32"), "fp8": ((50, 8), "F8_E4M3")}
WAYS = [("trl", ()), ("trl", ("--codec", "raw")), ("trl", ("--trl", "v1")),
        ("trl", ("--whole-every", "2")), ("slime", ()), ("slime", ("--codec", "overwrite")),
        ("slime", ("--whole-every", "4"))]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*arguments):
    done = subprocess.run([DELTAWIRE, *map(str, arguments), "--json"], capture_output=True,
                          text=True)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def plain_bytes(model):
    return {name: t.data for name, t in model.items()}


def save(model, path):
    path.write_bytes(peer_writers.stock_save(model, {"format": "pt"}))
    return path


def mirror(versions, tmp_path, *options):
    """The versions as a deltawire stream, and its mirror"""
    for model in versions:
        path = save(model, tmp_path / "next.safetensors")
        run("publish", tmp_path / "stream", path, "--fold", "none")
    run("mirror", tmp_path / "stream", tmp_path / "to", "--once", *options)


@pytest.mark.parametrize("format, options", WAYS)
def test_mirror(tmp_path, format, options):
    versions = make_versions(PLAIN if format == "trl" else MIXED, N_VERSIONS, still=STILL)
    mirror(versions, tmp_path, "--as", format, *options)
    found = READERS[format](tmp_path / "to")
    assert sorted(found) == list(range(N_VERSIONS + 1))
    for version, weights in found.items():
        assert weights == plain_bytes(versions[version]), version


@pytest.mark.parametrize("codec, layout", [("gap", "gap"), ("raw", "raw"), ("v1", "raw-v1")])
def test_deltas_are_those_of_trl(tmp_path, codec, layout):
    """The file equals that of TRL's trainer, tensor by tensor and key by key. It has further
    keys, which TRL's readers ignore."""
    versions = make_versions(PLAIN, 2)
    options = ("--trl", "v1") if codec == "v1" else ("--codec", codec)
    mirror(versions, tmp_path, "--as", "trl", *options)
    theirs = tmp_path / "theirs.safetensors"
    theirs.write_bytes(peer_writers.trl_delta(versions[1], versions[2], layout, 2))
    tensors, metadata = load(tmp_path / "to" / "deltas" / "step_000002.safetensors")
    assert tensors == load(theirs)[0]
    assert metadata.items() >= load(theirs)[1].items()
    theirs.write_bytes(peer_writers.trl_anchor(
        versions[1], 1, {"gap": "gap_delta", "raw": "raw", "v1": None}[codec]))
    tensors, metadata = load(tmp_path / "to" / "anchors" / "step_000001.safetensors")
    assert tensors == load(theirs)[0]
    assert metadata.items() >= load(theirs)[1].items()


def stream_of_trace(trace, root):
    """The steps of the trace as a deltawire stream, and the weights that each version must have."""
    states = json.loads((trace / "states.json").read_text())["states"]
    subprocess.run(["cp", "-r", trace / "base", root / "weights"], check=True)
    subprocess.run(["chmod", "-R", "u+w", root / "weights"], check=True)
    for step in range(len(states)):
        if step > 0:
            run("apply", trace / "deltas" / f"step_{step:06d}.safetensors", "--to",
                root / "weights")
        run("publish", root / "stream", root / "weights", "--fold", "none")
    return {int(step): state for step, state in states.items()}


def sha256(weights):
    return hashlib.sha256(b"".join(weights[name] for name in sorted(weights))).hexdigest()


@pytest.mark.parametrize("trace", ["slice", "whole"])
def test_mirrors_of_a_real_run(tmp_path, trace):
    source = dwlib.ROOT / "tests" / "data" / "trace" if trace == "slice" \
        else SHARED / "data" / "rl-trace"
    if not source.exists():
        pytest.skip("the whole trace is not here")
    states = stream_of_trace(source, tmp_path)
    base = {name: t[2] for file in (source / "base").glob("*.safetensors")
            for name, t in load(file)[0].items()}
    assert sha256(base) == states[0]
    for format in READERS:
        events = run("mirror", tmp_path / "stream", tmp_path / format, "--as", format, "--once",
                   "--work", tmp_path / "work" / format)
        newest = len(states) - 1
        assert events[-1] == {"event": "done", "from_version": newest, "version": newest,
                              "versions": len(states)}
        found = READERS[format](tmp_path / format)
        assert {version: sha256(weights) for version, weights in found.items()} == states
