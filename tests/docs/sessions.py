"""A shell and a Python interpreter that run a document's blocks, one after the other."""
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

from blocks import Fault, commands, same_output

PATIENCE = 300  # seconds that a command or a Python block may take
# Commands that run until they are stopped.
ENDLESS = re.compile(r"deltawire (follow (?!.*--until)|serve-status |publish .*--watch |"
                     r"mirror (?!.*--once))", re.S)

SHELL = """
exec 0</dev/null
while IFS= read -r -d '' file <&"$1" && IFS= read -r -d '' command <&"$1"; do
    eval "$command" >"$file" 2>&1
    echo $? >&"$2"
done
"""

PYTHON = """
import json, os, sys, traceback
answers = os.fdopen(int(sys.argv[1]), "w")
names = {"__name__": "__main__"}
for line in sys.stdin:
    block = json.loads(line)
    try:
        # the block's lines keep their numbers, so that a traceback shows them
        exec(compile("\\n" * (block["line"] - 1) + block["text"], block["file"], "exec"), names)
        said = ""
    except BaseException:
        said = traceback.format_exc()
    print(json.dumps(said), file=answers, flush=True)
"""


class Session:
    """A process that reads work from one descriptor and answers on another, a line each."""

    def start(self, arguments, directory, environment, stdin):
        answers, ours = os.pipe()
        self.process = subprocess.Popen(
            [*arguments, str(ours)], cwd=directory, env=environment, stdin=stdin,
            pass_fds=[ours, *self.work], start_new_session=True)
        os.close(ours)
        self.answers = os.fdopen(answers)

    def answer(self, what):
        if not select.select([self.answers], [], [], PATIENCE)[0]:
            raise Fault(f"{what}: has not ended after {PATIENCE} s")
        line = self.answers.readline()
        if not line:
            raise Fault(f"{what}: ends the session")
        return line

    def end(self):
        """Ends it and everything that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            time.sleep(0.2)
        self.process.wait()
        self.answers.close()


class Shell(Session):
    def __init__(self, scratch, directory, environment):
        self.scratch, self.n_commands = scratch, 0
        theirs, self.ours = os.pipe()
        self.work = [theirs]
        self.start(["bash", "-c", SHELL, "bash", str(theirs)], directory, environment,
                   subprocess.DEVNULL)
        os.close(theirs)

    def run(self, document, block):
        endless = []
        for command in commands(block):
            what = f"{document}:{command.line}: $ {command.text}"
            endless += self.run_one(what, command)
        for what, pid in endless:
            status, printed = self.shell(what, f"kill {pid}; wait {pid}")
            if status != 0:
                raise Fault(f"{what}: exit status {status} when it is stopped\n{printed}")

    def run_one(self, what, command):
        """Returns the processes that it started and did not end."""
        if not ENDLESS.match(command.text) or command.text.rstrip().endswith("&"):
            status, printed = self.shell(what, command.text)
            if status != 0:
                raise Fault(f"{what}: exit status {status}\n{printed}")
            self.compare(what, command, printed)
            return []
        # in a subshell, because the text may end with a comment
        status, _ = self.shell(what, f"( exec {command.text}\n) & echo $! >'{self.scratch}/pid'")
        pid = (self.scratch / "pid").read_text().strip()
        deadline = time.monotonic() + PATIENCE
        while not self.has_printed(command, printed := self.file.read_text(errors="replace")):
            if self.shell(what, f"kill -0 {pid}", keep=True)[0] != 0:
                raise Fault(f"{what}: ends by itself\n{printed}")
            if time.monotonic() > deadline:
                self.compare(what, command, printed)
                raise Fault(f"{what}: prints nothing in {PATIENCE} s")
            time.sleep(0.1)
        if self.shell(what, f"kill -0 {pid}", keep=True)[0] != 0:
            raise Fault(f"{what}: ends by itself\n{printed}")
        return [(what, pid)]

    @staticmethod
    def has_printed(command, printed):
        """Whether it has printed what the document shows; it may have gone on since."""
        shown = list(command.shown)
        lines = [line for line in printed.splitlines() if ": no answer for " not in line]
        return bool(printed) and (not shown or any(
            same_output(shown, lines[:n]) for n in range(1, len(lines) + 1)))

    def shell(self, what, text, keep=False):
        """Returns the exit status and the output."""
        self.n_commands += 1
        file = self.scratch / f"output-{self.n_commands}"
        if not keep:
            self.file = file
        os.write(self.ours, f"{file}\0{text}\0".encode())
        status = int(self.answer(what))
        return status, file.read_text(errors="replace")

    @staticmethod
    def compare(what, command, printed):
        shown = list(command.shown)
        lines = [line for line in printed.splitlines() if ": no answer for " not in line]
        if shown and not same_output(shown, lines):
            raise Fault(f"{what}: the document shows\n" + "\n".join(shown) +
                        f"\nand it prints\n{printed}")

    def end(self):
        super().end()
        os.close(self.ours)


class Python(Session):
    def __init__(self, directory, environment):
        self.work = []
        self.start([sys.executable, "-u", "-c", PYTHON], directory, environment, subprocess.PIPE)

    def run(self, document, block):
        what = f"{document}:{block.line}: the Python block"
        task = json.dumps({"file": str(document), "line": block.line, "text": block.text})
        self.process.stdin.write(task.encode() + b"\n")
        self.process.stdin.flush()
        said = json.loads(self.answer(what))
        if said:
            raise Fault(f"{what} fails\n{said}")
