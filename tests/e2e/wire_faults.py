#!/usr/bin/env python3
# labels: slow servers
"""A publisher and a follower behind a proxy that makes the network fail (fault_proxy), over
a real S3 server: each fault at each request in turn, random faults, and wrong clocks.

A command succeeds or reports in one line what is wrong. Run again, it succeeds. The follower then
has exactly the published bits, and `deltawire verify` finds no fault in the stream.

DW_TEST_S3_ENDPOINT names the server; without it this is skipped (77).
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DELTAWIRE = os.environ.get("DELTAWIRE", str(ROOT / "build/deltawire"))
PROXY = os.environ.get("DW_FAULT_PROXY",
                       str(pathlib.Path(DELTAWIRE).parent / "tests/servers/fault_proxy"))

KINDS = ["reset", "cut", "stall", "delay", "500", "503", "429", "307", "lost", "truncate",
         "stall-reply", "flip", "error-200", "204", "412", "garbage"]
N_STEPS = 4
TIMEOUT = {"stall": "1", "stall-reply": "1"}  # these end only by the client's timeout
N_TRIES = 60  # of a command, with random faults
# what a broken network may look like: bytes that are wrong, missing, of another version,
# too late, refused, or signed wrongly
EXPECTED_CODES = {3, 4, 5, 6, 7, 8, 9, 10, 11}


class Failed(Exception):
    pass


class Proxy:
    """A fault_proxy in front of the server."""

    def __init__(self, where, plan=None, rate=None, seed=1):
        if rate is None:
            path = where / "plan"
            path.write_text(plan)
            how = ["--plan", path]
        else:
            how = ["--rate", str(rate), "--seed", str(seed)]
        to = os.environ["DW_TEST_S3_ENDPOINT"].removeprefix("http://")
        self.process = subprocess.Popen([PROXY, "--to", to, "--delay-ms", "100", *how],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        port = self.process.stdout.readline().split()[1]
        self.endpoint = f"http://127.0.0.1:{port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=60)
        counts = dict(line.split() for line in err.splitlines())
        self.n_requests = int(counts.pop("requests"))
        self.n_faults = sum(map(int, counts.values()))


class Run:
    """A stream, a trainer with its baseline, and a follower's directory."""

    def __init__(self, work, checkpoints, name):
        self.dir = work / name
        self.dir.mkdir()
        self.checkpoints = checkpoints
        self.url = f"{os.environ['DW_TEST_STORE']}/{work.name}/{name}"
        self.n_errors = 0

    def call(self, *args, endpoint=None, timeout="3", env=None):
        options = ["--endpoint", endpoint, "--timeout", timeout] if endpoint else []
        return subprocess.run(
            [DELTAWIRE, *args, *options], text=True, capture_output=True, check=False,
            timeout=300, env=os.environ | {"XDG_CACHE_HOME": str(self.dir / "cache")}
            | (env or {}))

    def must(self, *args, timeout="60", **how):
        """A command that must succeed at once, also on a busy machine."""
        done = self.call(*args, timeout=timeout, **how)
        if done.returncode != 0:
            raise Failed(f"{self.url}: exit code {done.returncode} of {' '.join(args)}: "
                         f"{done.stderr}{done.stdout}")
        return done.stdout

    def check_error(self, done, what):
        """An error is one line with the object, and an exit code."""
        self.n_errors += 1
        lines = [line for line in done.stderr.splitlines()
                 if not line.startswith("try: ") and ": no answer for " not in line
                 and not line.endswith("so this one takes over")]
        if done.returncode not in EXPECTED_CODES or len(lines) != 1 or \
                not re.match(r"deltawire: .*: .", lines[0]):
            raise Failed(f"{self.url}: {what}: exit code {done.returncode}, no clear error: "
                         f"{done.stderr}")
        return lines[0]

    def publish_args(self, i):
        return "publish", self.url, str(self.checkpoints[i % len(self.checkpoints)][0])

    def pull_args(self):
        return "pull", self.url, "--into", str(self.dir / "model")

    def is_at(self, i):
        state = json.loads(self.must("verify", str(self.dir / "model"), "--json"))["state"]
        want = self.checkpoints[i % len(self.checkpoints)][1]
        if state != want:
            raise Failed(f"{self.url}: the follower has {state}, {want} was published")

    def is_whole(self):
        report = json.loads(self.must("verify", self.url, "--json"))
        if report["faults"]:
            raise Failed(f"{self.url}: {report['faults']}")


def checkpoints_of(work):
    """[(path, state)]"""
    subprocess.run([DELTAWIRE, "synth", "-o", work / "run", "--params", "100K", "--steps",
                    str(N_STEPS), "--write", "both", "--quiet"], check=True,
                   stdout=subprocess.DEVNULL)
    paths = [work / "run/base", *sorted((work / "run").glob("step_*"))]
    return [(p, json.loads(subprocess.run([DELTAWIRE, "verify", p, "--json"], check=True,
                                          capture_output=True).stdout)["state"])
            for p in paths]


def count_requests(run):
    """How many requests a publish and a pull take."""
    run.must(*run.publish_args(0))
    run.must(*run.pull_args())
    counts = []
    for args in run.publish_args(1), run.pull_args():
        with Proxy(run.dir, plan="") as proxy:
            run.must(*args, endpoint=proxy.endpoint)
        counts.append(proxy.n_requests)
    run.is_at(1)
    return counts


def one_fault_at_each_request(run, kind, n_publish, n_pull):
    """KIND happens at the first, second, ... request of a publish, and of a pull."""
    run.must(*run.publish_args(0))
    run.must(*run.pull_args())
    fired = 0
    for n in range(1, max(n_publish, n_pull) + 1):
        for args, n_most in (run.publish_args(n), n_publish), (run.pull_args(), n_pull):
            if n > n_most:
                run.must(*args)
                continue
            with Proxy(run.dir, plan=f"{n} {kind}\n") as proxy:
                done = run.call(*args, endpoint=proxy.endpoint,
                                timeout=TIMEOUT.get(kind, "3"))
            fired += proxy.n_faults
            if done.returncode != 0:
                run.check_error(done, f"{kind} at request {n} of {args[0]}")
                run.must(*args)
        run.is_at(n)
    run.is_whole()
    if fired == 0:
        raise Failed(f"{kind}: never happened")
    return f"{kind}: {fired} faults, {run.n_errors} errors reported"


def stale_lists(run):
    """Every other list of both is an old one."""
    with Proxy(run.dir, plan="random 0.5 stale GET list-type\n") as proxy:
        for n in range(16):
            for args in run.publish_args(n), run.pull_args():
                run.must(*args, endpoint=proxy.endpoint)
            run.is_at(n)
            if n % 3 == 2:
                shutil.rmtree(run.dir / "model")
                shutil.rmtree(run.dir / "cache")
    run.is_whole()
    if proxy.n_faults == 0:
        raise Failed("stale: never happened")
    return f"stale: {proxy.n_faults} faults"


def until_done(run, args, endpoint, what):
    for _ in range(N_TRIES):
        done = run.call(*args, endpoint=endpoint)
        if done.returncode == 0:
            return
        run.check_error(done, what)
    raise Failed(f"{run.url}: {what}: no success in {N_TRIES} tries: {done.stderr}")


def faults_by_chance(run, rate, seed):
    """Both are behind one proxy and retry until it works; a `follow` runs all the time."""
    run.must(*run.publish_args(0))
    n_versions = 8
    with Proxy(run.dir, rate=rate, seed=seed) as proxy:
        follow = subprocess.Popen(
            [DELTAWIRE, "follow", run.url, "--into", run.dir / "followed", "--interval",
             "0.2", "--endpoint", proxy.endpoint, "--timeout", "10", "--json"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            for n in range(1, n_versions):
                what = f"rate {rate}, seed {seed}, version {n}"
                until_done(run, run.publish_args(n), proxy.endpoint, what)
                until_done(run, run.pull_args(), proxy.endpoint, what)
                run.is_at(n)
            head = json.loads(run.must("status", run.url, "--json"))["head"]
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline and follow.poll() is None and \
                    version_of(run.dir / "followed") != head:
                time.sleep(0.2)
        finally:
            follow.terminate()
            err = follow.communicate(timeout=60)[1]
    if follow.returncode != 0 or version_of(run.dir / "followed") != head:
        raise Failed(f"{run.url}: follow ended with {follow.returncode} at version "
                     f"{version_of(run.dir / 'followed')} of {head}: {err}")
    if json.loads(run.must("verify", str(run.dir / "followed"), "--json"))["state"] != \
            run.checkpoints[(n_versions - 1) % len(run.checkpoints)][1]:
        raise Failed(f"{run.url}: follow made something else")
    run.is_whole()
    return f"rate {rate}, seed {seed}: {proxy.n_faults} faults, {run.n_errors} errors reported"


def version_of(directory):
    try:
        return json.loads((directory / ".deltawire/state.json").read_text())["version"]
    except (OSError, ValueError, KeyError):
        return None


def fake_clock(offset=None, file=None):
    library = next(iter(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if library is None:
        return None
    env = {"LD_PRELOAD": str(library), "FAKETIME_DONT_FAKE_MONOTONIC": "1",
           "FAKETIME_NO_CACHE": "1"}
    return env | ({"FAKETIME": offset} if offset else {"FAKETIME_TIMESTAMP_FILE": str(file)})


def wrong_clock(run, offset):
    """The server refuses what is signed with such a time (RequestTimeTooSkewed)."""
    env = fake_clock(offset)
    for n in range(3):
        run.must(*run.publish_args(n), env=env)
        run.must(*run.pull_args(), env=env)
        run.is_at(n)
    run.is_whole()
    return f"clock off by {offset}"


def clock_that_jumps(run):
    """The clock moves an hour forward and two days back while a follower runs."""
    clock = run.dir / "clock"
    clock.write_text("+0\n")
    run.must(*run.publish_args(0))
    follow = subprocess.Popen(
        [DELTAWIRE, "follow", run.url, "--into", run.dir / "model", "--interval", "0.2",
         "--until", "4", "--timeout", "60"], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env=os.environ | fake_clock(file=clock))
    try:
        for n, offset in enumerate(["+0", "+1h", "-2d", "+0"], 1):
            clock.write_text(offset + "\n")
            run.must(*run.publish_args(n), env=fake_clock(file=clock))
            deadline = time.monotonic() + 180
            while follow.poll() is None and version_of(run.dir / "model") != n:
                if time.monotonic() > deadline:
                    raise Failed(f"{run.url}: clock {offset}: the follower stays at "
                                 f"{version_of(run.dir / 'model')}")
                time.sleep(0.1)
        err = follow.communicate(timeout=60)[1]
    finally:
        follow.kill()
    if follow.returncode != 0:
        raise Failed(f"{run.url}: follow ended with {follow.returncode}: {err}")
    run.is_at(4)
    run.is_whole()
    return "clock that jumps"


def main():
    if "DW_TEST_S3_ENDPOINT" not in os.environ or \
            not os.environ.get("DW_TEST_STORE", "").startswith("s3:"):
        print("skipped: no DW_TEST_S3_ENDPOINT and DW_TEST_STORE on it; "
              "scripts/test.sh servers brings both")
        return 77
    chosen = sys.argv[1:]
    work = pathlib.Path(tempfile.mkdtemp(prefix="dw-wire-"))
    n_failed = 0
    try:
        checkpoints = checkpoints_of(work)
        n_publish, n_pull = count_requests(Run(work, checkpoints, "count"))
        print(f"- a publish takes {n_publish} requests, a pull {n_pull}", flush=True)
        jobs = [(kind, one_fault_at_each_request, kind, n_publish, n_pull) for kind in KINDS]
        jobs += [("stale", stale_lists)]
        jobs += [(f"seed-{seed}", faults_by_chance, rate, seed)
                 for seed, rate in enumerate([0.05, 0.1, 0.2], 1)]
        if fake_clock("+0"):
            jobs += [("ahead", wrong_clock, "+1h"), ("behind", wrong_clock, "-1d"),
                     ("jumps", clock_that_jumps)]
        else:
            print("- wrong clocks: left out, there is no libfaketime")
        jobs = [job for job in jobs if not chosen or job[0] in chosen]
        # they wait for each other's timeouts more than they work
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            pending = {pool.submit(function, Run(work, checkpoints, name), *args): name
                       for name, function, *args in jobs}
            for done in concurrent.futures.as_completed(pending):
                try:
                    print(f"- {done.result()}", flush=True)
                except Exception as error:  # report each; none stops the others
                    n_failed += 1
                    print(f"FAILED: {pending[done]}: {error}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return n_failed != 0


if __name__ == "__main__":
    sys.exit(main())
