"""Publishers and followers as users run them: the command, and processes that use the library
(tests/soak/live.c). Each call has a deadline and returns an Outcome."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

from damage import content
from truth import parse_safetensors

DEADLINE = float(os.environ.get("DEADLINE", 300))
DELTAWIRE = os.environ["DELTAWIRE"]
LIVE = os.environ["SOAK_LIVE"]


class Fault(Exception):
    """Something that must never happen."""


class Outcome:
    def __init__(self, ok, version, text):
        self.ok, self.version, self.text = ok, version, text

    def __str__(self):
        return f"ok, version {self.version}" if self.ok else self.text


def check_end(name, code, err):
    """Crashes and sanitizer reports are faults."""
    if code < 0 or code > 128 or "Sanitizer" in err or "runtime error" in err:
        raise Fault(f"{name}: crashed, status {code}: {err.strip()[-2000:]}")


def refusal(name, code, out, err):
    """A refusal is a documented exit code and one line that names the object."""
    lines = [x for x in err.strip().splitlines()
             if x.startswith("deltawire: ") and not x.endswith("so this one takes over")]
    if not lines and out.startswith("{"):
        try:
            error = json.loads(out.splitlines()[-1])["error"]
            lines = [f"{error.get('where')}: {error.get('text')}"]
        except (ValueError, KeyError, TypeError):
            pass
    if code not in range(1, 12) or len(lines) != 1:
        raise Fault(f"{name}: exit code {code} and no clear refusal: {out[-300:]!r} {err[-300:]!r}")
    if not re.search(r"/|\.json|version \d|tensor", lines[0]):
        raise Fault(f"{name}: names no object: {lines[0]}")
    return lines[0]


def start(args, env, **more):
    return subprocess.Popen(
        args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", env=env, **more,
    )  # fmt: skip


def deltawire(world, *args):
    """Runs the command; raises Fault if it hangs or crashes. Returns its exit code, its output,
    and the error's line."""
    name = "deltawire " + " ".join(args).replace(world.root + "/", "")
    process = world.running = start([DELTAWIRE, *args], world.env)
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Fault(f"{name}: hangs") from None
    code = process.returncode
    world.say(f"{name}: {code} {(err or out).strip()[:600]}")
    check_end(name, code, err)
    return code, out, refusal(name, code, out, err) if code != 0 else ""


def call(world, *args):
    """The same for verbs that print a version with --json."""
    code, out, error = deltawire(world, *args, "--json")
    if code != 0:
        return Outcome(False, None, f"exit code {code}: {error}")
    try:
        return Outcome(True, json.loads(out).get("version"), "")
    except ValueError:
        raise Fault(f"{args[0]}: exit code 0 and no JSON: {out!r}") from None


class Live:
    """A process of tests/soak/live.c."""

    def __init__(self, world, *args):
        self.world = world
        self.name = "live " + args[0]
        self.errors = []
        self.process = start([LIVE, *args], world.env)
        self.reader = threading.Thread(target=self.drain, daemon=True)
        self.reader.start()
        self.opened = self.answer()

    def drain(self):
        for line in self.process.stderr:
            self.errors.append(line)

    def answer(self):
        timer = threading.Timer(DEADLINE, self.hang)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        self.world.say(f"{self.name}: {line.strip()}")
        word = line.split(None, 3)
        if not word:
            self.end()
            raise Fault(f"{self.name}: ended without an answer")
        if word[0] == "ok":
            return Outcome(True, int(word[1]), "")
        return Outcome(False, int(word[1]), word[3].strip() if len(word) > 3 else "")

    def hang(self):
        self.errors.append("hangs")
        self.process.kill()

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError:
            pass
        return self.answer()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        for file in (self.process.stdin, self.process.stdout):
            try:
                file.close()
            except OSError:
                pass

    def end(self):
        """Waits for its end, and checks it."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Fault(f"{self.name}: does not end") from None
        self.reader.join(1)
        self.close()
        text = "".join(self.errors)
        if "hangs" in self.errors:
            raise Fault(f"{self.name}: hangs")
        check_end(self.name, code, text)


# ---- publishers ----------------------------------------------------------------------


class CommandPublisher:
    """`deltawire publish`, a process a version."""

    running = False

    def __init__(self, world):
        self.world = world
        self.baseline = f"{world.root}/baseline" if world.rng.random() < 0.5 else None
        self.roots = [self.baseline or f"{world.home}/.cache"]
        self.options = world.rng.choice([["--fold", "none"], ["--fold", "2"]])
        self.options = [*self.options, "--anchor-every", "3", "--threads", "1", "--timeout", "4"]
        if self.baseline:
            self.options += ["--baseline", self.baseline]
        if world.key:
            self.options += ["--sign-key", world.key]

    def publish(self, step, ckpt=None, more=()):
        path = ckpt or self.world.truth.checkpoint(step)
        return call(self.world, "publish", self.world.url, path, "--step", str(step),
                    *self.options, *more)  # fmt: skip

    def stop(self):
        pass

    def kill(self):
        if self.world.running:
            self.world.running.kill()


class LivePublisher:
    """A trainer that uses the library, with its baseline in memory or in a directory."""

    running = True

    def __init__(self, world):
        self.world = world
        self.baseline = f"{world.root}/baseline" if world.rng.random() < 0.5 else None
        self.roots = [self.baseline] if self.baseline else []
        self.process = None

    def publish(self, step, torn_with=None):
        ckpt = self.world.truth.checkpoint(step)
        if self.process is None:
            first = self.world.truth.checkpoint(0)
            process = Live(self.world, "publish", self.world.url, first, self.baseline or "-",
                           self.world.key or "-")  # fmt: skip
            if not process.opened.ok:
                process.end()
                return process.opened
            self.process = process
            self.world.note(0, "0")
            if step == 0:
                return process.opened
        if torn_with is None:
            return self.process.ask(f"publish {ckpt} {step}")
        other = self.world.truth.checkpoint(torn_with)
        return self.process.ask(f"tear {ckpt} {other} {step}~{torn_with}")

    def stop(self):
        if self.process:
            process, self.process = self.process, None
            process.end()

    def kill(self):
        if self.process:
            self.process.kill()
        self.process = None


# ---- followers -----------------------------------------------------------------------


class DirFollower:
    """Reads the weights of a directory, and its recorded version."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.dir = f"{world.root}/{name}"
        self.roots = [self.dir]
        self.options = ["--into", self.dir, "--threads", "1", "--timeout", "4"]
        if world.key:
            self.options += ["--trust", f"{world.key}.pub"]

    def weights(self):
        try:
            names = [x for x in os.listdir(self.dir) if x.endswith(".safetensors")]
        except OSError:
            return None
        if len(names) != 1:
            return None
        return parse_safetensors(content(f"{self.dir}/{names[0]}") or b"")

    def claim(self):
        """The version in the directory's record; None if there is none, or an apply is in
        progress."""
        try:
            state = json.loads(content(f"{self.dir}/.deltawire/state.json") or b"")
            return None if "next" in state else state.get("version")
        except (ValueError, AttributeError):
            return None

    def remove(self):
        for root in self.roots:
            if os.path.islink(root) or os.path.isfile(root):
                os.unlink(root)
            else:
                shutil.rmtree(root, ignore_errors=True)

    def loaded(self):
        return None, None  # there is no engine

    def verify(self):
        """Whether `verify DIR` passes."""
        return deltawire(self.world, "verify", self.dir, "--quiet")[0] == 0


class PullFollower(DirFollower):
    """Repeated `deltawire pull`."""

    running = False

    def sync(self, _head):
        return call(self.world, "pull", self.world.url, *self.options)

    def stop(self):
        pass

    kill = stop


class FollowFollower(DirFollower):
    """`deltawire follow`, which runs all the time, with or without an engine."""

    running = True

    def __init__(self, world, name):
        super().__init__(world, name)
        self.options += ["--interval", "0.05", "--id", name, "--json", "--quiet"]
        self.served = None
        if world.rng.random() < 0.5:
            self.served = f"{world.root}/{name}-served"
            self.options += [
                "--engine", "exec", "--listen", "127.0.0.1:0", "--apply",
                f'mkdir -p {self.served}.new && cp -L "$DELTAWIRE_DIR"/*.safetensors {self.served}.new/'
                f" && echo $DELTAWIRE_VERSION >{self.served}.new/version && rm -rf {self.served}"
                f" && mv {self.served}.new {self.served}",
            ]  # fmt: skip
        self.process = None

    def loaded(self):
        """The version that the engine has loaded, and its weights."""
        if self.served:
            version = content(f"{self.served}/version")
            blob = content(f"{self.served}/model.safetensors")
            if version and blob and content(f"{self.served}/version") == version:
                return int(version), parse_safetensors(blob)
        return None, None

    def begin(self):
        self.events, self.errors = [], []
        self.process = start([DELTAWIRE, "follow", self.world.url, *self.options], self.world.env)
        for file, into in ((self.process.stdout, self.events), (self.process.stderr, self.errors)):
            threading.Thread(target=lambda f=file, i=into: i.extend(iter(f.readline, "")),
                             daemon=True).start()  # fmt: skip

    def sync(self, head):
        """Waits until it is at HEAD, or returns the reason."""
        if self.process is None:
            self.begin()
        until = time.monotonic() + DEADLINE
        seen = len(self.events)
        while time.monotonic() < until:
            if self.process.poll() is not None:
                return self.ended()
            parsed = [json.loads(x) for x in self.events if x.startswith("{") and x.endswith("}\n")]
            last = [x for x in parsed if x.get("event") in ("version", "error", "recovered")]
            at = max((x["version"] for x in last if x["event"] == "version"), default=-1)
            if last and last[-1]["event"] == "error":
                time.sleep(0.1)  # it tries again; a lasting error is reported once
                if len(self.events) in (seen, len(parsed)):
                    self.world.say(f"follow {self.name}: {last[-1]}")
                    return Outcome(False, at, str(last[-1].get("message", last[-1])))
            elif self.claim() == head or (at >= head and not self.world.rewound):
                return Outcome(True, head if self.world.rewound else max(at, head), "")
            time.sleep(0.01)
        raise Fault(f"follow {self.name}: neither moves nor says why: {self.events[-3:]}")

    def ended(self):
        time.sleep(0.05)  # for its last output
        code, err = self.process.returncode, "".join(self.errors)
        self.process = None
        self.world.say(f"follow {self.name} ended: {code} {err.strip()[-600:]}")
        check_end(f"follow {self.name}", code, err)
        if code == 0:
            raise Fault(f"follow {self.name}: ended by itself with exit code 0")
        return Outcome(False, None, err.strip())

    def stop(self):
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Fault(f"follow {self.name}: does not end") from None
        if code != -signal.SIGTERM:  # it had just started
            check_end(f"follow {self.name}", code, "".join(self.errors))
        self.process = None

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None


class LiveFollower:
    """An engine that follows into its own memory."""

    running = True
    roots = ()

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.process = None
        self.version = None
        self.dump = f"{world.root}/{name}.dump"

    def sync(self, _head):
        if self.process is None:
            shape = self.world.truth.checkpoint(0)
            trust = f"{self.world.key}.pub" if self.world.key else "-"
            process = Live(self.world, "follow", self.world.url, shape, trust)
            if not process.opened.ok:
                process.end()
                return process.opened
            self.process = process
        outcome = self.process.ask(f"sync {self.dump}")
        self.version = outcome.version
        return outcome

    def flip(self):
        at = self.world.rng.randrange(1 << 30)
        self.process.ask(f"flip {at} {at % 8}")

    def weights(self):
        try:
            with open(self.dump, "rb") as f:
                return f.read()
        except OSError:
            return None

    def loaded(self):
        return None, None

    def claim(self):
        return self.version if self.version is not None and self.version >= 0 else None

    def verify(self):
        return False  # only its own sweep can check its memory

    def stop(self):
        self.version = None
        if self.process:
            process, self.process = self.process, None
            process.end()

    def kill(self):
        self.version = None
        if self.process:
            self.process.kill()
        self.process = None

    def remove(self):
        self.kill()
