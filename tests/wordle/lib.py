"""Shared by the tests beside it: programs, requests, and how to fail."""
import atexit
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

DEADLINE_S = 180  # for every wait
scratch = pathlib.Path(tempfile.mkdtemp(prefix="wordle."))
running = []


def clean_up():
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()
    shutil.rmtree(scratch, ignore_errors=True)


atexit.register(clean_up)


def program(name):
    path = os.environ.get(name)
    if not path or not os.access(path, os.X_OK):
        print(f"skipped: {name} names no program")
        sys.exit(77)
    return path


def start(*command, **options):
    process = subprocess.Popen([str(word) for word in command], **options)
    running.append(process)
    return process


class Server:
    """A program that prints its URL."""

    def __init__(self, *command):
        self.process = start(*command, stdout=subprocess.PIPE, text=True)
        self.url = self.line("listening")
        self.at = urllib.parse.urlsplit(self.url)

    def line(self, word):
        """The next URL that it prints after WORD."""
        line = self.process.stdout.readline()
        assert line.startswith(word + " on http://"), (word, line)
        return line.split()[-1]

    def ask(self, method, path, body=None, raw=None):
        """(status, answer)"""
        connection = http.client.HTTPConnection(self.at.hostname, self.at.port,
                                                timeout=DEADLINE_S)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body)
            connection.request(method, path, data)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def get(self, path):
        return self.want(200, "GET", path)

    def post(self, path, body=None):
        return self.want(200, "POST", path, body)

    def want(self, status, method, path, body=None, raw=None):
        got, answer = self.ask(method, path, body, raw)
        assert got == status, f"{method} {path} {body}: {got} {answer}"
        if status != 200:
            assert answer["error"]["message"], answer
        return answer

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def wait_until(what, ask):
    """Waits until ASK() is true, and returns its value."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        got = ask()
        if got:
            return got
        time.sleep(0.01)
    raise AssertionError(f"not in {DEADLINE_S} s: {what}")


def in_parallel(n, work):
    """Runs WORK(i) for each i in its own thread; raises the first exception."""
    failures = []

    def run(i):
        try:
            work(i)
        except BaseException as failure:  # noqa: B036 it is raised below
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def run_tests(module):
    """Runs each function of the caller whose name begins with test_, in order."""
    for name, test in list(module.items()):
        if name.startswith("test_"):
            began = time.monotonic()
            test()
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
