"""The thread of vLLM's back end that prepares an agent's patches. It needs no vLLM."""
import fcntl
import os
import threading

import pytest

from deltawire.vllm.ahead import Ahead


class Watch:
    def __init__(self, where):
        self.own = where / ".deltawire"
        self.own.mkdir()
        self.prepared, self.called = [], threading.Event()
        self.ahead = Ahead(self.prepare, None)
        self.ahead.watch(str(where))

    def prepare(self, path):
        with open(path, "rb") as patch:
            self.prepared.append(patch.read())
        self.called.set()

    def stage(self, text):
        temporary = self.own / "patch.tmp-1"
        temporary.write_bytes(text)
        self.called.clear()
        os.rename(temporary, self.own / "staged")

    def ready(self):
        return [path for path in self.own.glob("engine-*") if ".tmp-" not in path.name]

    def says(self, patch):
        found = os.stat(patch)
        wanted = f"{found.st_ino} {found.st_size} {found.st_mtime_ns}\n"
        for _ in range(6000):
            if [path.read_text() for path in self.ready()] == [wanted]:
                return True
            self.ahead._stop.wait(0.05)
        return False


@pytest.fixture
def watch(tmp_path):
    watch = Watch(tmp_path)
    yield watch
    watch.ahead.stop()


def test_each_patch_is_prepared_once(watch):
    for text in b"one", b"the next":
        watch.stage(text)
        assert watch.called.wait(300)
        os.rename(watch.own / "staged", watch.own / "patch")  # as an agent does meanwhile
        assert watch.says(watch.own / "patch")
    assert watch.prepared == [b"one", b"the next"]


def test_the_file_is_locked_while_the_thread_lives(watch):
    watch.stage(b"a patch")
    assert watch.says(watch.own / "staged")
    [path] = watch.ready()
    with open(path) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    watch.ahead.stop()
    assert not watch.ready()


def test_a_patch_that_cannot_be_prepared_is_not_waited_for(watch):
    class Log:
        def warning(self, *words):
            self.words = words

    watch.ahead._log = log = Log()
    watch.ahead._on_staged = lambda path: 1 / 0
    watch.stage(b"a patch")
    assert watch.says(watch.own / "staged")
    assert "not prepared" in log.words[0]
