"""A real vLLM is kept at the newest version of a stream by `deltawire follow --engine`.

After each version the server must have the same weights, and generate the same tokens, as a vLLM
that is started on that version's checkpoint. Tokens are compared because in some cases checksums
agreed although generation used old weights.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
from safetensors.torch import load_file, save_file  # noqa: E402

import quantiser  # noqa: E402
import vllm_server  # noqa: E402
from vllm_server import Server, wait_until  # noqa: E402

DELTAWIRE = os.environ.get("DELTAWIRE", str(vllm_server.HERE.parents[1] / "build/deltawire"))
VOCABULARY = 512
N_VERSIONS = 7
N_TOKENS = 24
# The long one fills whole blocks of the cache of prefixes, which an update must empty.
PROMPTS = [[3, 4, 5], [(7 * i) % VOCABULARY for i in range(200)]]
MAX_ANSWER = vllm_server.MAX_TOKENS - len(PROMPTS[0])


def deltawire(*args):
    return subprocess.run([DELTAWIRE, *map(str, args)], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def make_checkpoints(where):
    """A tiny Qwen3, and versions of it in which a few per cent of the weights moved. Half of its
    linear weights are quantised."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, head_dim=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, tie_word_embeddings=False, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None, pad_token_id=None)
    paths = [where / f"v{i}" for i in range(N_VERSIONS)]
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(paths[0])
    quantiser.add_config(paths[0], ignored=["lm_head", "re:.*self_attn.*"])
    weights = load_file(paths[0] / "model.safetensors")
    for path in paths:
        if path != paths[0]:
            shutil.copytree(paths[0], path)
            for w in weights.values():
                moved = torch.rand(w.shape) < 0.03
                w[moved] += (0.5 * torch.randn(w.shape)).to(w.dtype)[moved]
        save_file(quantiser.quantise(weights, part=".mlp."), path / "model.safetensors",
                  metadata={"format": "pt"})
    return paths


def versions_of(answer):
    return [vllm_server.version_of(span["version"]) for span in answer["weight_versions"]]


class World:
    """A stream, a directory that follows it, and the server on that directory."""

    def __init__(self, where):
        self.where = where
        self.url = f"file://{where}/run"
        self.checkpoints = make_checkpoints(where)
        self.newest = -1
        self.publish_next()
        self.directory = where / "model"
        deltawire("pull", self.url, "--into", self.directory)
        for name in ("config.json", "generation_config.json"):
            shutil.copy(self.checkpoints[0] / name, self.directory)
        self.plugin = where / "plugin"
        vllm_server.install_watched(self.plugin)
        self.updates = self.plugin / "updates"
        self.server = Server(self.directory, self.plugin, where / "vllm.log")
        self.follower, self.follow_log = None, where / "follow.log"
        self.references = []

    def start(self):
        self.server.start()  # both import vLLM, which takes most of the time
        with open(self.where / "reference.log", "wb") as log:
            made = subprocess.run(
                [sys.executable, vllm_server.HERE / "vllm_reference.py",
                 json.dumps(PROMPTS), str(N_TOKENS), *self.checkpoints],
                env=vllm_server.environment(self.plugin), text=True, check=True,
                stdout=subprocess.PIPE, stderr=log)
        self.references = [json.loads(line) for line in made.stdout.splitlines()]
        self.server.wait()

    def stop(self):
        self.kill_follower()
        self.server.kill()

    def publish_next(self):
        self.newest += 1
        deltawire("publish", self.url, self.checkpoints[self.newest], "--quiet",
                  "--baseline", self.where / "baseline")

    def follow(self):
        with open(self.follow_log, "ab") as log:
            self.follower = subprocess.Popen(
                [DELTAWIRE, "follow", self.url, "--into", self.directory,
                 "--engine", f"vllm={self.server.url}",
                 "--interval", "0.2", "--json"],
                stdout=log, stderr=log)

    def kill_follower(self):
        if self.follower is not None:
            self.follower.kill()
            self.follower.wait()

    def updates_to(self, version):
        """The kinds of updates to VERSION that the back end got, in order."""
        lines = self.updates.read_text().splitlines() if self.updates.exists() else []
        return [u for u in map(json.loads, lines) if u["version"] == version]

    def ask_for(self, what):
        path = self.updates.with_suffix("." + what)
        path.touch()
        return path

    def reaches_newest(self):
        def arrived():
            assert self.follower.poll() is None, "follow ended: see follow.log"
            return self.server.label() == str(self.newest) and not self.server.is_paused()

        wait_until(arrived, f"vLLM serves version {self.newest}")
        served = self.server.serves(PROMPTS, N_TOKENS)
        assert served["checksums"] == self.references[self.newest]["checksums"]
        assert served["tokens"] == self.references[self.newest]["tokens"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("vllm"))
    try:
        world.start()
        yield world
    finally:
        world.stop()


def test_references_tell_versions_apart(world):
    assert len(world.references) == N_VERSIONS
    for key in ("checksums", "tokens"):
        seen = {json.dumps(r[key]) for r in world.references}
        assert len(seen) == N_VERSIONS, f"some versions have the same {key}"


def test_a_server_that_names_no_version_is_brought_to_it(world):
    assert world.server.label() == "default"
    world.follow()
    world.reaches_newest()
    update = world.updates_to(0)[0]
    assert update["kind"] == "snapshot" and update["from_version"] is None


def test_a_version_arrives(world):
    world.publish_next()
    world.reaches_newest()
    update = world.updates_to(1)[0]
    assert update["dir"] == str(world.directory)
    assert update["kind"] == "patch" and update["from_version"] == 0


def test_requests_outlive_an_update(world):
    """Running requests wait, and continue with the new weights."""
    answers, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            answers.append(world.server.generate(PROMPTS[0], MAX_ANSWER))

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for thread in clients:
        thread.start()
    try:
        wait_until(lambda: len(answers) >= len(clients), "requests are answered")
        world.publish_next()
        wait_until(lambda: world.server.label() == str(world.newest), "the update")
    finally:
        stop.set()
        for thread in clients:
            thread.join()
    assert {a["finish_reason"] for a in answers} == {"length"}
    assert all(len(a["token_ids"]) == MAX_ANSWER for a in answers)
    spans = [versions_of(a) for a in answers]
    assert [str(world.newest - 1), str(world.newest)] in spans
    world.reaches_newest()


def test_an_update_that_fails_is_tried_again(world):
    world.ask_for("refuse")
    world.publish_next()
    world.reaches_newest()
    assert len(world.updates_to(world.newest)) > 1


def test_a_driver_killed_amid_an_update_leaves_it_to_the_next(world):
    """Nothing is generated until the new process has finished the update: the weights may be a
    mix."""
    hold = world.ask_for("hold")
    world.publish_next()
    wait_until(lambda: world.updates_to(world.newest), "the update has begun")
    world.kill_follower()
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(world.server.generate(PROMPTS[0], N_TOKENS)))
    asking.start()
    size = world.follow_log.stat().st_size
    world.follow()
    # it finds the engine busy with the killed one's update, and reports it
    wait_until(lambda: world.follow_log.stat().st_size > size, "the engine is met")
    hold.unlink()
    asking.join()
    assert versions_of(answers[0]) == [str(world.newest)]
    world.reaches_newest()


def test_a_driver_killed_before_it_resumed_leaves_that_to_the_next(world):
    world.kill_follower()
    world.server.call("POST", "/pause?mode=keep")
    world.follow()
    world.reaches_newest()


def test_a_server_killed_and_restarted_is_brought_to_the_newest(world):
    world.server.kill()
    world.publish_next()
    world.server.start()
    world.server.wait()
    world.reaches_newest()


def test_updates_go_on_after_a_restart(world):
    world.publish_next()
    world.reaches_newest()
    world.follower.send_signal(signal.SIGTERM)
    assert world.follower.wait(300) == 0
    assert not world.server.is_paused()
