"""`deltawire stats` against numpy: tests/format/stats_reference.py."""
import collections
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

import decoder
import dwlib
import stats_reference as reference
from decoder import Tensor, read_checkpoint, write_safetensors
from make_models import KINDS, change, tensor, weights

DELTAWIRE = os.environ.get("DELTAWIRE", str(dwlib.ROOT / "build" / "deltawire"))
TRACE = dwlib.ROOT / "tests" / "data" / "trace"
SHARED = pathlib.Path(os.environ.get("DW_SHARED", dwlib.ROOT.parent / "shared"))


def run(*arguments, **options):
    return subprocess.run([DELTAWIRE, *map(str, arguments)], check=True, capture_output=True,
                          **options).stdout


def stats(*arguments):
    return json.loads(run("stats", *arguments, "--json"))


def close(seen, expected, rel=1e-5):
    assert seen == pytest.approx(expected, rel=rel, abs=1e-9)


# ---- comparing ----

def check_counts(seen, counts):
    n = counts["changed"]
    for key in ("elements", "changed", "again", "trl_raw_bytes"):
        assert seen[key] == counts[key], key
    close(seen["density"], n / counts["elements"])
    if n:
        close(seen["mask_bits_a_change"], counts["mask_bits"] / n)
        close(seen["move_bits_a_change"], counts["move_bits"] / n)
        close(seen["bound_bits_a_change"], (counts["mask_bits"] + counts["move_bits"]) / n)
    else:
        assert seen["bound_bits_a_change"] is None


def check_moves(seen, total):
    for key in ("up", "across_zero", "nan_or_infinity", "without_ulps", "away_from_zero"):
        assert seen[key] == total[key], key
    ulps = collections.Counter()
    for row in seen["ulps"]:
        assert row["least"] == (1 if row["most"] == 1 else row["most"] // 2 + 1)
        ulps.update({(row["most"], True): row["up"], (row["most"], False): row["down"]})
    assert +ulps == total["ulps"]


def check_recurrence(seen, steps, total):
    later = steps[1:]
    n = sum(s["changed"] for s in later)
    for key, count, chance, had in (("one_step", "again", "again_chance", "had_1"),
                                    ("fifteen_steps", "ever", "ever_chance", "had_15")):
        assert seen[key]["changed"] == n and seen[key]["again"] == sum(s[count] for s in later)
        if n:
            close(seen[key]["share"], sum(s[count] for s in later) / n)
            close(seen[key]["chance_by_exponent"], sum(s[chance] for s in later) / n)
            close(seen[key]["chance_by_density"],
                  sum(s["changed"] * s[had] / s["elements"] for s in later) / n)
    assert seen["one_step"]["same_sign"] == total["same_sign"]
    bits, classes = 0.0, collections.defaultdict(collections.Counter)
    for (h, last, up), k in total["directions"].items():
        classes[h, last][up] += k
    for counts in classes.values():
        bits += reference.mask_bits(sum(counts.values()), counts[True])
    close(seen["sign_bits_a_change_given_history"], bits / total["changed"])


def check_folds(seen, steps):
    expected = []
    for k in (1, 2, 4, 8, 16):
        ends = range(k - 1, len(steps))
        if ends:
            total = sum(sum(s["changed"] for s in steps[i - k + 1:i + 1]) for i in ends)
            expected.append([k, len(ends), total, sum(steps[i]["union", k] for i in ends)])
    assert [[f["steps"], f["windows"], f["sum"], f["union"]] for f in seen] == expected


def check(seen, versions):
    """All of a report against versions, which are dicts of tensors."""
    steps, groups = reference.analyse(versions)
    total = reference.new_counts()
    for step in steps:
        reference.merge(total, step)
    assert len(seen["steps"]) == len(steps)
    for row, step in zip(seen["steps"], steps):
        check_counts(row, step)
        assert row["same_sign"] == step["same_sign"]
    check_counts(seen["total"], total)
    check_moves(seen["total"]["moves"], total)
    by_kind, by_layer = (collections.defaultdict(reference.new_counts) for _ in range(2))
    for (layer, kind), counts in groups.items():
        for _, one in counts:
            reference.merge(by_kind[kind], one)
            reference.merge(by_layer[layer], one)
    assert {row["kind"] for row in seen["kinds"]} == set(by_kind)
    for row in seen["kinds"]:
        check_counts(row, by_kind[row["kind"]])
    assert {row["layer"] for row in seen["layers"]} == set(by_layer)
    for row in seen["layers"]:
        check_counts(row, by_layer[row["layer"]])
    exponents = {(e["dtype"], e["exponent"]): [e["elements"], e["changed"]]
                 for e in seen["exponents"]}
    assert exponents == {key: list(pair) for key, pair in total["exponents"].items()}
    check_recurrence(seen["recurrence"], steps, total)
    check_folds(seen["folds"], steps)


# ---- runs ----

def trace_versions(folder, n_steps):
    versions = [read_checkpoint(folder / "base")]
    for step in range(1, n_steps + 1):
        content = (folder / "deltas" / f"step_{step:06d}.safetensors").read_bytes()
        versions.append(dwlib.apply(versions[-1], content))
    return versions


def deltas_of(folder):
    return sorted((folder / "deltas").glob("step_*.safetensors"))


def test_trace_slice():
    seen = stats("--base", TRACE / "base", *deltas_of(TRACE))
    check(seen, trace_versions(TRACE, 12))
    assert 6.4 < seen["total"]["bound_bits_a_change"] < 6.7


@pytest.mark.parametrize("dtype, n_steps", [("bf16", 18), ("f32", 4)])
def test_synthetic_run(tmp_path, dtype, n_steps):
    """Long enough to fill the histories; also dense changes."""
    report = json.loads(run("synth", "-o", tmp_path / "run", "--params", "200K", "--steps",
                            n_steps, "--dtype", dtype, "--write", "both", "--json"))
    versions = [read_checkpoint(tmp_path / "run" / d)
                for d in ["base"] + [f"step_{i + 1:06d}" for i in range(n_steps)]]
    seen = stats("--base", tmp_path / "run" / "base", *deltas_of(tmp_path / "run"))
    check(seen, versions)
    for row, step in zip(seen["steps"], report["steps"]):
        assert row["changed"] == step["changed"] and row["bytes"] == step["bytes"]
        if row["to"] > 1:
            close(row["again"] / row["changed"], step["again"])


def test_stream(tmp_path):
    """The same run through a stream gives the same results, except for the transfer."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run("synth", "-o", tmp_path / "run", "--params", "200K", "--steps", "9", "--write", "both")
    url = f"file://{tmp_path}/stream"
    folders = ["base"] + [f"step_{i:06d}" for i in range(1, 10)]
    for folder in folders:
        run("publish", url, tmp_path / "run" / folder, "--fold", "2", env=env)
    versions = [read_checkpoint(tmp_path / "run" / f) for f in folders]
    check(stats(url), versions)
    seen = stats(url, "--from", 3, "--to", 8)
    check(seen, versions[3:9])
    log = json.loads(run("log", url, "-n", 0, "--json"))["versions"]
    sizes = {v["version"]: v["bytes"] for v in log}
    assert [s["bytes"] for s in seen["steps"]] == [sizes[v] for v in range(4, 9)]
    ways = {(w["from"], v["version"]): w["bytes"] for v in log for w in v["shortcuts"]}
    assert {(w["from"], w["to"]): w["bytes"] for w in seen["shortcuts"]} == {
        (a, b): n for (a, b), n in ways.items() if 3 < b <= 8 and (a is None or a >= 3)}
    for way in seen["shortcuts"]:
        if way["from"] is not None:
            assert way["delta_bytes"] == sum(sizes[v] for v in range(way["from"] + 1, way["to"] + 1))


def test_every_type(tmp_path):
    """All element types, with NaNs and zeros among them, dense and sparse, odd shapes."""
    random = np.random.default_rng(7)
    base, versions = {}, []
    for i, (dtype, *_rest) in enumerate(decoder.DTYPES):
        units = weights(random, dtype, 96 * 64)
        base[f"model.layers.{i % 3}.w_{dtype}.weight"] = tensor(dtype, units)
    for name, shape in (("model.embed_tokens.weight", (70, 80)), ("lm_head.weight", (3, 64, 64)),
                        ("model.layers.0.mlp.gate_proj.weight", (64, 3)),
                        ("model.layers.0.mlp.experts.5.up_proj.weight", (5, 64)),
                        ("model.norm.weight", (64,)), ("empty", (0, 8)), ("scalar", ())):
        units = weights(random, "BF16", int(np.prod(shape, dtype=int)))
        base[name] = tensor("BF16", units, shape)
    base["lines.F16"] = tensor("F16", weights(random, "F16", 100 * 90), (100, 90))
    base["lines.C64"] = tensor("C64", weights(random, "C64", 2 * 70 * 80), (70, 80))
    versions.append(base)
    for step in range(5):
        new = {}
        for i, (name, t) in enumerate(versions[-1].items()):
            density = (0.01, 0.2, 0, 1)[(step + i) % 4]
            kind = KINDS[(step + i // 4) % len(KINDS)]
            old = np.frombuffer(t.data, f"<u{reference.width_of(t.dtype)}")
            new[name] = Tensor(t.dtype, t.shape, change(random, t.dtype, old, density, kind).tobytes())
        versions.append(new)
    paths = []
    for i, version in enumerate(versions):
        write_safetensors(tmp_path / f"{i}.st", version)
        if i > 0:
            paths.append(tmp_path / f"delta{i}.st")
            run("diff", tmp_path / f"{i - 1}.st", tmp_path / f"{i}.st", "-o", paths[-1])
    seen = stats("--base", tmp_path / "0.st", *paths)
    check(seen, versions)
    moves = seen["total"]["moves"]
    assert min(moves[k] for k in ("across_zero", "nan_or_infinity", "without_ulps")) > 0
    check(stats("--base", tmp_path / "0.st", *paths[:2]), versions[:3])
    check(stats("--base", tmp_path / "0.st", *paths[:1]), versions[:2])


@pytest.fixture(scope="module")
def real_trace():
    folder = SHARED / "data" / "rl-trace"
    if not folder.exists():
        pytest.skip("the whole trace is not here")
    return folder


def test_real_trace_in_full(real_trace):
    """Three steps."""
    check(stats("--base", real_trace / "base", *deltas_of(real_trace)[:3]),
          trace_versions(real_trace, 3))


def test_real_trace(real_trace):
    """All steps: the known facts about this trace."""
    seen = stats("--base", real_trace / "base", *deltas_of(real_trace))
    total = seen["total"]
    assert total["changed"] == 2393468 and total["elements"] == 12 * 16779520
    assert round(total["bound_bits_a_change"], 2) == 6.64
    assert 0.89 < sum(u["up"] + u["down"] for u in total["moves"]["ulps"]
                      if u["most"] == 1) / total["changed"] < 0.91
    one = seen["recurrence"]["one_step"]
    assert 0.20 < one["share"] < 0.22 and 0.87 < one["same_sign_share"] < 0.89
