"""The hosts of a real loop: TRL's trainer in this process, vLLM servers with the back end
`deltawire`, a follower beside each, connected only by a stream."""
import os
import subprocess
import sys

import vllm_server
from recording_gate import Gate
from vllm_server import Server

ROOT = vllm_server.HERE.parents[1]
EXAMPLE = ROOT / "examples/trl-wordle"
SITE = ROOT / "build-python/site"
DELTAWIRE = os.environ.get("DELTAWIRE", str(ROOT / "build/deltawire"))

sys.path[:0] = [str(EXAMPLE)]


def even_tokens(completion_ids, **_):
    """A reward that a random model can learn, and that differs within a group."""
    return [sum(t % 2 == 0 for t in ids) / max(len(ids), 1) for ids in completion_ids]


class Host:
    """A machine of the rollout: vLLM on its own copy of the checkpoint, and its follower."""

    def __init__(self, where, name, base, url):
        self.where, self.name, self.url = where / name, name, url
        self.where.mkdir()
        self.server = Server(base, SITE, self.where / "vllm.log", backend="deltawire")
        self.gate = Gate(self.server.port)
        self.follower = None

    def follow(self):
        with open(self.where / "follow.log", "ab") as log:
            self.follower = subprocess.Popen(
                [DELTAWIRE, "follow", self.url, "--into", self.where / "model",
                 "--engine", f"vllm={self.server.url}",
                 "--interval", "0.2", "--id", self.name, "--json"],
                stdout=log, stderr=log)

    def stop_following(self):
        if self.follower is not None:
            self.follower.terminate()
            self.follower.wait(300)
            self.follower = None

    def stop(self):
        try:
            self.stop_following()
        finally:
            self.server.kill()
            self.gate.close()

    def looked_at(self, prompts, n_tokens):
        """What it serves without other requests: the label, checksums and greedy tokens."""
        with self.gate.closed():
            return {"version": self.server.label()} | self.server.serves(prompts, n_tokens)
