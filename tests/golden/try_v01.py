#!/usr/bin/env python3
"""Lets a real 0.1 read and continue what this version wrote.

    tests/golden/try_v01.py V01         # a checkout of 0.1, built in V01/build

Prints a line for each thing tried; docs/COMPATIBILITY.md has the result. CI has no 0.1, so
this is run by hand before a release. The weights are those of the golden stream `bf16`.
"""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "format"))
import decoder  # noqa: E402

NEW = os.environ.get("DELTAWIRE", str(HERE.parents[1] / "build" / "deltawire"))
OLD = str(pathlib.Path(sys.argv[1]).resolve() / "build" / "deltawire")
EXPECTED = json.loads((HERE / "v01" / "expected.json").read_text())["bf16"]["versions"]
failures = 0


def run(command, *arguments, code=0, **environment):
    arguments = [str(a) for a in (command, *arguments)]
    done = subprocess.run(arguments, capture_output=True, text=True,
                          env={**os.environ, "XDG_CACHE_HOME": str(work / "cache"),
                               **environment})
    if done.returncode != code:
        raise AssertionError(f"exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def holds(directory, number):
    found = {name: hashlib.sha256(t.data).hexdigest()
             for name, t in decoder.read_checkpoint(directory).items()}
    if found != EXPECTED[number]["sha256"]:
        raise AssertionError(f"{directory.name} has other weights than {number}")


def attempt(what, function, *arguments):
    global failures
    try:
        function(*arguments)
        print(f"ok      {what}")
    except AssertionError as fault:
        failures += 1
        print(f"FAILED  {what}: {fault}")


def publish(by, url, number, *options):
    run(by, "publish", url, work / "ckpt" / str(number), "--step", number, "--quiet", *options)


def stream(name, numbers, *options):
    """This version publishes the checkpoints of these numbers."""
    url = f"file://{work}/{name}"
    for number in numbers:
        publish(NEW, url, number, "--baseline", work / f"{name}-baseline", *options)
    return url


def read_all(url, numbers, *options, skip=()):
    """0.1 pulls every version, verifies and lists the stream."""
    for version, number in enumerate(numbers):
        if version in skip:
            continue
        into = work / "read"
        shutil.rmtree(into, ignore_errors=True)
        run(OLD, "pull", url, "--into", into, "--at", version, "--quiet", *options)
        holds(into, number)
    trust = options[options.index("--trust"):][:2] if "--trust" in options else ()
    for verb in ("verify", "log", "status"):
        run(OLD, verb, url, *trust)


def follow_on(url, numbers, *options, skip=()):
    """0.1 keeps one directory from version to version."""
    into = work / "followed"
    shutil.rmtree(into, ignore_errors=True)
    for version, number in enumerate(numbers):
        if version not in skip:
            run(OLD, "pull", url, "--into", into, "--at", version, "--quiet", *options)
            holds(into, number)


def cross(url, start, number):
    """A follower of 0.1 at version START crosses to the head by itself."""
    into = work / "crossed"
    shutil.rmtree(into, ignore_errors=True)
    run(OLD, "pull", url, "--into", into, "--at", start, "--quiet")
    run(OLD, "pull", url, "--into", into, "--quiet")
    holds(into, number)


def publish_on(url, number, baseline, *options):
    publish(OLD, url, number, "--baseline", baseline, *options)
    into = work / "by-new"
    shutil.rmtree(into, ignore_errors=True)
    trust = [o for o in options if "key" in str(o) and "sign" not in str(o)]
    run(NEW, "pull", url, "--into", into, "--quiet",
        *(["--trust", f"{trust[0]}.pub"] if trust else []))
    holds(into, number)
    run(NEW, "verify", url)


def directory(url, *options):
    """A directory of this version, at version 2, goes on with 0.1, and back."""
    into = work / f"dir{len(options)}"
    current = into / "current" if options else into
    run(NEW, "pull", url, "--into", into, "--at", 2, "--quiet", *options)
    run(OLD, "pull", url, "--into", into, "--at", 3, "--quiet", *options)
    holds(current, 3)
    run(NEW, "pull", url, "--into", into, "--quiet", *options)
    holds(current, 5)


def patch_file(url):
    into, shim = work / "patched", work / "die.so"
    subprocess.run(["cc", "-o", shim, HERE / "die_at_patch.c", "-shared", "-fPIC", "-ldl"],
                   check=True)
    run(NEW, "pull", url, "--into", into, "--at", 4, "--quiet")
    run(NEW, "pull", url, "--into", into, "--quiet", code=9, LD_PRELOAD=str(shim))
    run(OLD, "recover", into)
    holds(into, 5)


def sharded(numbers):
    """Two ranks of this version."""
    new, url = pathlib.Path(NEW).parent, f"file://{work}/sharded"
    subprocess.run(["cc", "-o", work / "ranks", HERE / "publish_ranks.c",
                    f"-I{HERE.parents[1]}/include", f"-L{new}", f"-Wl,-rpath,{new}",
                    "-ldeltawire"], check=True)
    run(work / "ranks", url, *(work / "ckpt" / str(n) for n in numbers))
    read_all(url, numbers)


def edit(url, version, **members):
    """Adds members to a commit, and seals it anew."""
    path = pathlib.Path(url[7:]) / f"commits/{version:020d}.json"
    record = json.loads(path.read_text())
    del record["seal"]
    text = json.dumps({**record, **members}, separators=(",", ":"))[:-1] + ',"seal":"'
    seal = decoder.xxh64((text + "0" * 16 + '"}').encode())
    path.chmod(0o644)
    path.write_text(f'{text}{seal:016x}"}}')


def suspect(url):
    edit(url, 5, suspect_from=3, future={"any": [1, None]})
    read_all(url, range(6))


def required(url):
    edit(url, 5, requires=["future"])
    for by in (OLD, NEW):
        done = subprocess.run([by, "pull", url, "--into", work / "refused"],
                              capture_output=True, text=True)
        if done.returncode != 7 or "future" not in done.stderr:
            raise AssertionError(f"exit code {done.returncode}: {done.stderr.strip()}")


def in_turns(kind):
    """Both versions publish for another system, and both read it."""
    url, base = f"file://{work}/{kind}", work / "ckpt" / "0"
    own = [] if kind == "trl" else ["--base-ckpt", base]
    for number, by in enumerate((NEW, OLD, NEW, OLD), 1):
        publish_peer(by, url, number, kind, own)
    for by in (OLD, NEW):
        into = work / "of-peer"
        shutil.rmtree(into, ignore_errors=True)
        run(by, "pull", url, "--into", into, "--quiet", *(["--base", base] if own else []))
        holds(into, 4)


def publish_peer(by, url, number, kind, options):
    run(by, "publish", url, work / "ckpt" / str(number), "--as", kind, "--quiet", "--baseline",
        work / f"{kind}-baseline", *options)


def cached_baseline():
    """Both versions keep the baseline in the cache, and take it over from each other."""
    url = f"file://{work}/cached"
    for number, by in enumerate((NEW, OLD, NEW, OLD, NEW, NEW, OLD, OLD, NEW, NEW)):
        publish(by, url, number, "--fold", "2,4")
    if len(list((work / "cache/deltawire/baselines").glob("*"))) != 1:
        raise AssertionError("they use different places")
    run(NEW, "pull", url, "--into", work / "of-cached", "--quiet")
    holds(work / "of-cached", 9)
    read_all(url, range(10))
    run(NEW, "verify", url)


def delta_files():
    for diff_by, apply_by in ((NEW, OLD), (OLD, NEW)):
        delta, out = work / "x.delta", work / "applied"
        shutil.rmtree(out, ignore_errors=True)
        run(diff_by, "diff", work / "ckpt/4", work / "ckpt/5", "-o", delta, "--quiet")
        run(apply_by, "apply", delta, "--to", work / "ckpt/4", "--out", out, "--quiet")
        holds(out, 5)
        delta.unlink()


def collected(url):
    run(NEW, "gc", url, "--keep", 1, "--quiet")
    into = work / "after-gc"
    run(OLD, "pull", url, "--into", into, "--quiet")
    holds(into, 5)
    run(OLD, "verify", url)


def main():
    (work / "ckpt").mkdir()
    for number in range(10):
        run(NEW, "pull", f"file://{HERE}/v01/bf16/stream", "--into", work / "ckpt" / str(number),
            "--at", number, "--quiet")
    six = range(6)
    plain = stream("plain", six, "--fold", "2,4", "--anchor-every", "3")
    assert '"host":' in (work / "plain/commits/00000000000000000005.json").read_text()
    attempt("plain, with provenance, folds and anchors: every version", read_all, plain, six)
    attempt("plain: one directory from version to version", follow_on, plain, six)
    silent = stream("silent", six, "--no-provenance", "--fold", "none")
    attempt("without provenance: every version", read_all, silent, six)
    run(NEW, "keygen", work / "trainer.key", "--quiet")
    signed = stream("signed", six, "--sign-key", work / "trainer.key")
    attempt("signed: every version, under --trust", read_all, signed, six, "--trust",
            work / "trainer.key.pub")
    back = (0, 1, 2, 3, 4, 1, 2, 5)
    rolled = stream("rolled", back, "--fold", "2,4")
    attempt("a trainer that went back to older weights: every version", read_all, rolled, back)
    attempt("the same: one directory from version to version", follow_on, rolled, back)
    based = stream("based", six[:1], "--base=golden", "--fold", "none")
    for number in six[1:]:
        publish(NEW, based, number, "--baseline", work / "based-baseline", "--fold", "none")
    attempt("a base with its SHA-256: every version", read_all, based, six, "--base",
            work / "ckpt" / "0")
    restarted = stream("restarted", six[:4], "--fold", "none", "--anchor-factor", "0")
    run(NEW, "repair", restarted, work / "ckpt" / "4", "--quiet")
    publish(NEW, restarted, 5, "--baseline", work / "restarted-baseline", "--fold", "none",
            "--anchor-factor", "0")
    attempt("a restart: every version", read_all, restarted, six)
    attempt("a restart: a follower crosses it", cross, restarted, 1, 5)
    attempt("directory of a follower", directory, plain)
    attempt("patch file of an interrupted apply", patch_file, plain)
    attempt("0.1 publishes on, with this version's baseline", publish_on, plain, 6,
            work / "plain-baseline")
    attempt("0.1 publishes on, without it", publish_on, rolled, 6, work / "old-baseline")
    attempt("0.1 publishes on after a restart", publish_on, restarted, 6,
            work / "old-baseline-2")
    attempt("0.1 publishes on, signed", publish_on, signed, 6, work / "signed-baseline",
            "--sign-key", work / "trainer.key")
    attempt("two ranks: every version", sharded, six)
    odd = stream("odd", six, "--fold", "none", "--anchor-factor", "0")
    attempt("suspect versions, and members of the future, are passed over", suspect, odd)
    attempt("a feature that is required and unknown is refused by name", required, odd)
    attempt("a collected stream", collected, silent)
    attempt("baselines in the cache", cached_baseline)
    attempt("delta files, both ways", delta_files)
    for kind in ("trl", "slime", "skyrl"):
        attempt(f"versions for {kind}, written in turns", in_turns, kind)
    return failures


with tempfile.TemporaryDirectory() as temporary:
    work = pathlib.Path(temporary)
    print(run(OLD, "--version").strip(), "reads what was written by", run(NEW, "--version").strip())
    sys.exit(main() != 0)
