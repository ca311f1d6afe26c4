"""The page of the command itself: a real stream, a real follower, a store that goes away."""
import json
import os
import pathlib
import subprocess
import threading

import pytest

TRACE = pathlib.Path(__file__).resolve().parents[1] / "data/trace"


def deltawire(*words):
    return subprocess.run([os.environ["DELTAWIRE"], *map(str, words), "--quiet"],
                          check=True, capture_output=True, text=True)


class Stream:
    """Twelve steps of a real run, published one by one."""

    def __init__(self, directory, trace=TRACE):
        self.directory, self.trace = directory, trace
        self.store = directory / "store"
        self.url = f"file://{self.store}"
        self.version = 0
        deltawire("publish", self.url, trace / "base", *self.baseline())
        subprocess.run(["cp", "-r", trace / "base", directory / "trainer"], check=True)
        subprocess.run(["chmod", "-R", "u+w", directory / "trainer"], check=True)

    def baseline(self):
        return "--baseline", self.directory / "baseline"

    def publish(self):
        self.version += 1
        trainer = self.directory / "trainer"
        deltawire("apply", self.trace / f"deltas/step_{self.version:06d}.safetensors",
                  "--to", trainer)
        deltawire("publish", self.url, trainer, "--step", 10 * self.version,
                  *self.baseline())


class Command:
    """A verb that listens, and its address."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [os.environ["DELTAWIRE"], *map(str, words), "--json", "--interval", "0.2",
             "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        first = self.process.stdout.readline()
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.url = json.loads(first)["url"]

    def end(self):
        self.process.terminate()
        assert self.process.wait(300) in (0, 130, 143)


@pytest.fixture
def stream(tmp_path):
    if "DELTAWIRE" not in os.environ:
        pytest.skip("DELTAWIRE names no command")
    return Stream(tmp_path)


@pytest.fixture(params=["follow", "serve-status"])
def shown(request, screen, stream):
    """The page of each verb that has one."""
    if request.param == "follow":
        command = Command("follow", stream.url, "--into", stream.directory / "model",
                          "--engine", "exec", "--pause", "true", "--apply", "true",
                          "--resume", "true", "--id", "host-1")
    else:
        command = Command("serve-status", stream.url)
    screen.look("phone", "dark")
    screen.open(command.url)
    screen.kind, screen.url = request.param, command.url
    yield screen
    if command.process.poll() is None:
        command.end()


def test_updates_live_and_survives_the_store(shown, stream):
    screen, store = shown, stream.store
    follows = screen.kind == "follow"
    screen.expect("Serving the newest weights" if follows else "Version 0 is the newest", "h1")
    screen.run("window.mark = 1")
    for _ in range(3):
        stream.publish()
        screen.expect(f"step {10 * stream.version}", "#tiles")
        screen.expect(f"Version {stream.version}:", "figure:nth-child(1)")
        screen.expect(f"Version {stream.version}:", "figure:nth-child(2)")
        if follows:
            screen.expect(f"Serving version {stream.version}", "#engines")
            screen.expect(f"Version {stream.version}:", "figure:nth-child(4)")
    screen.expect("times less than the whole model", "figure:nth-child(1)")
    screen.expect("The whole model is 1.20 MB.", "figure:nth-child(1)")
    if follows:
        screen.expect("host-1", "#followers")

    away = store.with_name("away")
    store.rename(away)
    if follows:  # for a follower, no news and no stream look the same; a circular link does not
        store.symlink_to(store)
    screen.expect(str(store), "#wrong")
    screen.expect("with trouble" if follows else "The stream has trouble", "h1")
    assert screen.text("#wrong .rows p"), "it is said in words"
    if follows:
        store.unlink()
    away.rename(store)
    screen.wait(lambda: screen.text("#wrong") == "", "the error stays")
    screen.expect("over after", "#errors")
    stream.publish()
    screen.expect(f"step {10 * stream.version}", "#tiles")

    assert screen.run("return window.mark") == 1, "it was loaded again"
    assert screen.run("return document.documentElement.scrollWidth") <= 390
    assert screen.complaints() == []
    assert [u for u in screen.requests() if not u.startswith((screen.url, "data:"))] == []


@pytest.mark.parametrize("shown", ["follow"], indirect=True)
def test_hold_a_version(shown, stream):
    screen = shown
    for _ in range(2):
        stream.publish()
    screen.expect("Serving version 2", "#engines")
    screen.find("#hold button").click()
    screen.find("#sure [value=yes]").click()
    screen.expect("The agent agreed to hold version 2.", "#answer")
    screen.expect("Held at version 2", "h1")
    stream.publish()
    screen.expect("the stream is 1 version ahead", "#why")
    screen.find("#unpin").click()
    screen.find("#sure [value=yes]").click()
    screen.expect("Serving version 3", "#engines")
    screen.expect("Serving the newest weights", "h1")
    assert screen.complaints() == []


def test_the_follower_ends(screen, stream):
    command = Command("follow", stream.url, "--into", stream.directory / "model")
    screen.open(command.url)
    screen.expect("The newest weights are here", "h1")
    command.end()
    screen.expect("No answer from the agent for", "#banner")
