#!/usr/bin/env python3
"""Makes tests/golden/streams: streams, and directories of their followers, in the formats that
0.2 promises to read for ever.

    tests/golden/make_streams.py [CASE...]      # with build/deltawire; all cases, or those named

The weights are made by numpy, and expected.json has their hashes: the only part of deltawire in
it is the state digest of tests/format/decoder.py. (The hashes of a quantised stream are those of
a pull: tests/interop/test_quantize.py proves the quantiser.) Ids and times in the streams differ
each time, so run this only to add cases. tests/format/test_golden_streams.py reads the result.
"""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = HERE / "streams"
sys.path.insert(0, str(HERE.parent / "format"))
import decoder  # noqa: E402

BF16, F32, I64 = "BF16", "F32", "I64"
UNITS = {BF16: np.uint16, F32: np.uint32, I64: np.uint64}
SMALL = {"embed.weight": (BF16, (40, 24)), "layers.0.proj.weight": (BF16, (24, 31)),
         "layers.0.norm.weight": (BF16, (31,)), "scale": (BF16, ()), "unused": (BF16, (0, 8))}
WIDE = {"embed.weight": (F32, (20, 24)), "bias": (F32, (37,)), "scale": (F32, ())}
MIXED = {"a.weight": (BF16, (33, 10)), "b.weight": (F32, (7, 11)), "step": (I64, (3,)),
         "none": (F32, (0, 4)), "tiny": (BF16, (1,))}


# ---- the weights ----

def first(rng, layout):
    """Bit patterns of normal numbers, as in trained weights."""
    model = {}
    for name, (dtype, shape) in layout.items():
        bits = np.asarray(rng.standard_normal(shape), dtype=np.float32).view(np.uint32)
        model[name] = (bits >> 16 if dtype == BF16 else bits).astype(UNITS[dtype]).reshape(shape)
    return model


def step(rng, model, share):
    """Moves a share of the weights by up to 3 places; each tenth one anywhere."""
    changed = {}
    for name, units in model.items():
        flat = units.reshape(-1).copy()
        at = np.flatnonzero(rng.random(flat.size) < share)
        near = flat[at] + rng.integers(1, 4, at.size).astype(flat.dtype)
        far = rng.integers(0, 1 << 16, at.size).astype(flat.dtype)
        flat[at] = np.where(rng.random(at.size) < 0.1, far, near)
        changed[name] = flat.reshape(units.shape)
    return changed


def versions(seed, layout, n):
    rng = np.random.default_rng(seed)
    models = [first(rng, layout)]
    for i in range(1, n):  # version 2 has no change, version 3 changes nearly everything
        models.append(step(rng, models[-1], {2: 0.0, 3: 0.9}.get(i, 0.03)))
    return models


def as_tensors(model, layout):
    return {name: decoder.Tensor(layout[name][0], list(layout[name][1]), units.tobytes())
            for name, units in model.items()}


def expect(model, layout):
    """The expected version: a SHA-256 for each tensor, and the digest of FORMAT.md."""
    tensors = as_tensors(model, layout)
    digests = {name: decoder.digest(t.data) for name, t in tensors.items()}
    return {"sha256": {name: hashlib.sha256(t.data).hexdigest() for name, t in tensors.items()},
            "state": "%016x" % decoder.state_digest(tensors, digests)}


# ---- the streams ----

class Case:
    """One stream, published version by version."""

    def __init__(self, name, seed, layout, n):
        self.name, self.layout = name, layout
        self.models = versions(seed, layout, n)
        self.out = OUT / name
        self.url = f"file://{self.out}/stream"
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        self.checkpoints = []
        for i, model in enumerate(self.models):
            path = work / name / str(i)
            path.mkdir(parents=True)
            decoder.write_safetensors(path / "model.safetensors", as_tensors(model, layout))
            self.checkpoints.append(str(path))

    def publish(self, version, *options):
        deltawire("publish", self.url, self.checkpoints[version], "--step", f"s{version}",
                  "--baseline", work / self.name / "baseline", "--no-provenance", *options)

    def expected(self, **more):
        return {"versions": [expect(m, self.layout) for m in self.models], **more}


def deltawire(*arguments, environment=()):
    command = [str(c) for c in (ROOT / "build" / "deltawire", *arguments, "--quiet")]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True,
                   env={**os.environ, **dict(environment)})


def make_bf16():
    c = Case("bf16", 1, SMALL, 10)
    for i in range(10):
        c.publish(i, "--fold", "2", "--anchor-every", "4", "--anchor-factor", "0")
    return c.expected()


def make_f32():
    c = Case("f32", 2, WIDE, 5)
    for i in range(5):
        c.publish(i, "--fold", "none", "--anchor-factor", "0")
    return c.expected()


def make_signed():
    c = Case("signed", 3, SMALL, 4)
    deltawire("keygen", c.out / "trainer.key")
    for i in range(4):
        c.publish(i, "--sign-key", c.out / "trainer.key", "--fold", "2")
    return c.expected()


def make_base():
    c = Case("base", 4, WIDE, 4)
    shutil.copytree(c.checkpoints[0], c.out / "checkpoint")
    for i in range(4):
        c.publish(i, *(["--base=golden/base"] if i == 0 else []), "--fold", "none",
                  "--anchor-factor", "0")
    return c.expected(base="checkpoint")


def make_collected():
    c = Case("collected", 5, WIDE, 8)
    for i in range(8):
        c.publish(i, "--fold", "none", "--anchor-every", "2", "--anchor-factor", "0")
    deltawire("gc", c.url, "--keep", "2")
    return c.expected(floor=6)


def make_sharded():
    c = Case("sharded", 6, MIXED, 4)
    build, program = ROOT / "build", work / "ranks"
    subprocess.run(["cc", "-o", program, HERE / "publish_ranks.c", f"-I{ROOT}/include",
                    f"-L{build}", f"-Wl,-rpath,{build}", "-ldeltawire"], check=True)
    subprocess.run([program, c.url, *c.checkpoints], check=True)
    return c.expected()


def make_quantised():
    c = Case("quantised", 7, SMALL, 4)
    found = []
    for i in range(4):
        c.publish(i, "--quantize", "fp8-block", "--fold", "2")
        into = work / "quantised" / f"at-{i}"
        deltawire("pull", c.url, "--into", into)
        tensors = decoder.read_checkpoint(into)
        digests = {name: decoder.digest(t.data) for name, t in tensors.items()}
        found.append({"sha256": {n: hashlib.sha256(t.data).hexdigest() for n, t in tensors.items()},
                      "state": "%016x" % decoder.state_digest(tensors, digests)})
    return {"versions": found, "quantize": "fp8-block"}


def make_files():
    """Companion files that stay, change and go."""
    c = Case("files", 8, WIDE, 4)
    files = [{"config.json": "{}\n", "vocab.json": '{"a": 1}\n'},
             {"config.json": "{}\n", "vocab.json": '{"a": 2}\n'},
             {"config.json": "{}\n", "vocab.json": '{"a": 2}\n', "merges.txt": ""},
             {"config.json": '{"n": 3}\n'}]
    for i in range(4):
        for name, text in files[i].items():
            (pathlib.Path(c.checkpoints[i]) / name).write_text(text)
        c.publish(i, "--fold", "none")
    for name in DIRECTORIES:
        make_directory(c, name)
    return c.expected(files=files)


# ---- followers' directories, at version 2 on the way to 3 ----

# Ends the process at a rename to a name that ends in KILL_AT; with KILL_AFTER, after it.
KILLER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int rename(const char *from, const char *to)
{
    int (*next)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    const char *end = getenv("KILL_AT");
    const int is_it = strlen(to) >= strlen(end) && !strcmp(to + strlen(to) - strlen(end), end);
    if (!is_it)
        return next(from, to);
    if (getenv("KILL_AFTER"))
        next(from, to);
    _exit(0);
}
"""
DIRECTORIES = {"settled": None,
               "installing": {"KILL_AT": "/config.json"},  # its state names old and new files
               "interrupted": {"KILL_AT": ".patch", "KILL_AFTER": "1"}}  # nothing is stored yet


def make_directory(c, name):
    into, killer = c.out / name, work / "killer.so"
    for version in ("3", "2"):  # back, so that the highest version is noted
        deltawire("pull", c.url, "--into", into, "--at", version)
    (into / "notes.txt").write_text("the user's\n")
    if DIRECTORIES[name]:
        killer.with_suffix(".c").write_text(KILLER)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", killer, killer.with_suffix(".c")], check=True)
        deltawire("pull", c.url, "--into", into,
                  environment={"LD_PRELOAD": str(killer), **DIRECTORIES[name]})


def make_restarted():
    c = Case("restarted", 9, WIDE, 4)
    for i in range(2):
        c.publish(i, "--fold", "none")
    deltawire("repair", c.url, c.checkpoints[2], "--step", "s2", "--no-provenance")
    c.publish(3, "--fold", "none")
    return c.expected(restart=2)


MAKERS = {f.__name__[5:]: f for f in (make_bf16, make_f32, make_signed, make_base, make_collected,
                                      make_sharded, make_quantised, make_files, make_restarted)}
with tempfile.TemporaryDirectory() as directory:
    work = pathlib.Path(directory)
    wanted = OUT / "expected.json"
    result = json.loads(wanted.read_text()) if wanted.exists() else {}
    for case in sys.argv[1:] or MAKERS:
        result[case] = MAKERS[case]()
    wanted.write_text(json.dumps(result, indent=1) + "\n")
