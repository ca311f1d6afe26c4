"""A real vLLM never serves other weights than it is said to serve: labels of another stream,
versions that lack tensors, tensors that vLLM has tied, directories that moved without the engine.

Its own checksums are compared with those of a vLLM that is started on the version. For other
versions they are computed here, and the computation is compared with such a vLLM.
"""
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
from safetensors.torch import load_file, save_file  # noqa: E402

import deltawire  # noqa: E402
import vllm_server  # noqa: E402
from vllm_server import Server, wait_until  # noqa: E402

DELTAWIRE = os.environ.get("DELTAWIRE", str(vllm_server.HERE.parents[1] / "build/deltawire"))
PROMPTS = [[3, 4, 5]]
N_TOKENS = 8
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
N_STEPS = int(os.environ.get("STEPS", 10))


def make_model(where):
    """A tiny Qwen3 whose configuration ties lm_head, and that has it nevertheless. vLLM loads it,
    finds it equal, and ties it again."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=128, head_dim=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None, pad_token_id=None)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(where)
    return load_file(where / "model.safetensors")


def checksums_of(weights):
    """As vLLM computes them of what it keeps of WEIGHTS."""
    found = {}
    for name in weights:
        head, _, last = name.rpartition(".")
        above, _, part = head.rpartition(".")
        fused, parts = {
            "q_proj": ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
            "gate_proj": ("gate_up_proj", ("gate_proj", "up_proj"))}.get(part, (part, (part,)))
        if part in ("k_proj", "v_proj", "up_proj") or name == HEAD:
            continue
        target = f"{above}.{fused}.{last}" if above else f"{fused}.{last}"
        found[target] = torch.cat([weights[f"{above}.{p}.{last}"] for p in parts]) \
            if len(parts) > 1 else weights[name]
    return {name: hashlib.sha256(w.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()
            for name, w in found.items()}


def unranked(checksums):
    return {name.rpartition(":")[2]: checksum for name, checksum in checksums.items()}


class Stream:
    """A stream of its own weights, and the directory that an agent keeps."""

    def __init__(self, where, model, seed, lacks=()):
        self.where, self.url, self.dir = where, f"file://{where}/run", where / "dir"
        self._luck = torch.Generator().manual_seed(seed)
        self.live = {name: (0.3 * torch.randn(w.shape, generator=self._luck)).to(w.dtype)
                     for name, w in load_file(model / "model.safetensors").items()}
        self.live[HEAD] = self.live[EMBEDDING].clone()
        for name in lacks:
            del self.live[name]
        where.mkdir()
        self.publisher = deltawire.Publisher(self.url, self.live,
                                             baseline_dir=where / "baseline")
        self.id, self.version = self.publisher.stream_id, 0
        self.model = model
        self.pull()
        shutil.copy(model / "config.json", self.dir)

    def pull(self):
        subprocess.run([DELTAWIRE, "pull", self.url, "--into", self.dir, "--quiet"], check=True)

    def publish(self, *names, share=0.1):
        """The next version: NAMES change, or all. The head is that of the embedding, unless it is
        named."""
        for name in names or self.live:
            weight = self.live[name]
            at = torch.rand(weight.shape, generator=self._luck) < share
            change = (0.5 * torch.randn(weight.shape, generator=self._luck)).to(weight.dtype)
            weight[at] += change[at]
        if HEAD in self.live and HEAD not in names:
            self.live[HEAD].copy_(self.live[EMBEDDING])
        self.version = self.publisher.wait(self.publisher.publish()).version

    @property
    def label(self):
        return f"{self.id}:{self.version}"

    def write(self, name):
        """The newest version as a checkpoint for a vLLM of its own."""
        path = self.where / name
        path.mkdir()
        shutil.copy(self.model / "config.json", path)
        save_file(self.live, path / "model.safetensors", metadata={"format": "pt"})
        return path


class World:
    def __init__(self, where):
        torch.manual_seed(1)
        self.where = where
        make_model(where / "model")
        self.a, self.b = (self.stream(name, seed=seed) for seed, name in enumerate("ab"))
        plugin = where / "plugin"
        vllm_server.install_watched(plugin)
        self.server = Server(self.a.dir, plugin, where / "vllm.log")
        self.server.start()
        self.agent, self.log = None, where / "follow.log"
        # what later tests publish, so that the other vLLMs start beside the server
        self.a.publish()
        self.b.publish()
        paths = [self.a.write("v1"), self.b.write("v1")]
        self.expected = [checksums_of(stream.live) for stream in (self.a, self.b)]
        with open(where / "reference.log", "wb") as log:
            made = subprocess.run(
                [sys.executable, vllm_server.HERE / "vllm_reference.py", json.dumps(PROMPTS),
                 str(N_TOKENS), *paths], env=vllm_server.environment(plugin), text=True,
                check=True, stdout=subprocess.PIPE, stderr=log)
        self.references = [json.loads(line) for line in made.stdout.splitlines()]
        self.server.wait()

    def stream(self, name, **options):
        return Stream(self.where / name, self.where / "model", **options)

    def follow(self, stream, *options):
        """Another agent."""
        self.stop_agent()
        with open(self.log, "wb") as log:
            self.agent = subprocess.Popen(
                [DELTAWIRE, "follow", stream.url, "--into", stream.dir, "--engine",
                 f"vllm={self.server.url}", "--interval", "0.2",
                 *options], stdout=log, stderr=log)

    def stop_agent(self):
        """As if it was killed."""
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
            self.agent = None

    def label(self):
        return self.server.call("GET", "/weight_info")["weight_version"]

    def checksums(self):
        found = self.server.call("POST", "/weight_checker", {"action": "checksum"})
        return unranked(found["checksums"])

    def serves(self, stream):
        """Waits until the engine is said to serve the newest version, and compares."""
        wait_until(lambda: self.label() == stream.label and not self.server.is_paused(),
                   f"{stream.label}; see {self.log}")
        assert self.checksums() == checksums_of(stream.live)

    def refuses(self, *words):
        wait_until(lambda: all(word in self.log.read_text() for word in words),
                   f"{words} in {self.log}")

    def stop(self):
        self.stop_agent()
        self.server.kill()
        for stream in (self.a, self.b):
            stream.publisher.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("truth"))
    try:
        yield world
    finally:
        world.stop()


def test_checksums_are_computed_as_vllm_does(world):
    assert [unranked(found["checksums"]) for found in world.references] == world.expected
    assert world.expected[0] != world.expected[1]


def test_a_first_contact_compares_and_then_patches(world):
    """The engine was started from the directory."""
    stream = world.a
    before = world.checksums()
    world.follow(stream, "--until", "0")
    wait_until(lambda: world.label() == f"{stream.id}:0" and not world.server.is_paused(),
               "version 0")
    assert world.checksums() == before
    world.follow(stream)
    world.serves(stream)
    found = world.server.serves(PROMPTS, N_TOKENS)
    assert {key: found[key] for key in world.references[0]} == world.references[0]


def test_a_version_of_another_stream_with_the_same_number(world):
    world.follow(world.a)
    world.serves(world.a)
    assert world.a.version == world.b.version == 1
    world.b.pull()
    world.follow(world.b)
    world.serves(world.b)
    found = world.server.serves(PROMPTS, N_TOKENS)
    assert {key: found[key] for key in world.references[1]} == world.references[1]


def test_weights_that_are_not_those_of_the_label(world):
    """Somebody else wrote to them; the label stays."""
    world.stop_agent()
    world.server.call("POST", "/weight_checker", {"action": "reset"})
    assert world.checksums() != checksums_of(world.b.live)
    world.follow(world.b)
    wait_until(lambda: world.checksums() == checksums_of(world.b.live), "the weights are back")
    world.serves(world.b)


@pytest.mark.parametrize("label", ["its own", "another"])
def test_a_directory_that_moved_without_the_engine(world, label):
    """The engine slept through a version that changes other elements than the next one."""
    stream = world.b
    world.stop_agent()
    stream.publish("model.layers.0.self_attn.q_proj.weight")
    stream.pull()
    if label == "another":  # as if it had taken that version over
        world.server.call("POST", "/update_weight_version",
                          {"new_version": stream.label, "abort_all_requests": False})
    world.follow(stream)
    stream.publish("model.layers.1.mlp.down_proj.weight")
    world.serves(stream)


@pytest.mark.parametrize("missing", [NORM, "model.layers.1.mlp.down_proj.weight",
                                     "model.layers.0.mlp.up_proj.weight"])
def test_a_version_that_lacks_tensors(world, missing):
    """Refused by name, and the engine goes on with what it had."""
    before = world.checksums()
    other = world.stream(f"lacks-{missing}", seed=7, lacks=[missing])
    world.follow(other)
    world.refuses("nothing was stored", f"the version has no {missing}")
    world.stop_agent()
    wait_until(lambda: world.checksums() == before, "the weights")
    assert other.id not in world.label()
    other.publisher.close()
    world.follow(world.b)
    world.serves(world.b)


def test_a_version_without_the_tensor_that_is_tied(world):
    other = world.stream("tied", seed=8, lacks=[HEAD])
    world.follow(other)
    world.serves(other)
    other.publish()
    world.serves(other)
    other.publisher.close()
    world.follow(world.b)
    world.serves(world.b)


@pytest.mark.parametrize("is_running", [True, False])
def test_tied_tensors_that_become_different(world, is_running):
    stream = world.b
    before = world.checksums()
    world.follow(stream)
    world.serves(stream)
    if not is_running:
        world.stop_agent()
    stream.publish(HEAD)
    if not is_running:
        world.follow(stream)
    world.refuses(f"{HEAD} and {EMBEDDING} are one memory in this engine")
    wait_until(lambda: not world.server.is_paused(), "it goes on")
    assert world.checksums() == before and world.label() != stream.label
    stream.publish()  # they are equal again
    world.serves(stream)


def test_random_streams_labels_and_versions(world):
    """Whenever it names a version, it has that version's weights."""
    luck = random.Random(int(os.environ.get("SEED", 1)))
    bad = world.stream("bad", seed=9, lacks=[NORM])
    stream = world.b
    world.follow(stream)
    for step in range(N_STEPS):
        deed = luck.choice(["publish", "other", "agent", "label", "zero", "behind", "bad", "untie"])
        print(step, deed, stream.label, flush=True)
        if deed == "other":
            stream = world.a if stream is world.b else world.b
        if deed != "publish":
            world.stop_agent()
        if deed == "label":  # of any stream; not the one that is waited for below
            any_label = f"{luck.choice([world.a.id, world.b.id, bad.id])}:{stream.version + 9}"
            world.server.call("POST", "/update_weight_version",
                              {"new_version": any_label, "abort_all_requests": False})
        elif deed == "zero":
            world.server.call("POST", "/weight_checker", {"action": "reset"})
        elif deed == "behind":
            stream.publish(NORM)
            stream.pull()
        elif deed == "bad":
            world.follow(bad)
            world.refuses(f"the version has no {NORM}")
            assert bad.id not in world.label()
        elif deed == "untie":
            stream.publish(HEAD)
            world.follow(stream)
            world.refuses("are one memory in this engine")
            assert world.label() != stream.label
        if deed != "publish":
            world.follow(stream)
        stream.publish(*luck.choice([(), (NORM,), ("model.layers.0.mlp.gate_proj.weight",)])
                       if deed != "untie" else ())
        world.serves(stream)
    bad.publisher.close()


def test_an_engine_of_two_ranks_goes_on_after_a_refusal(world):
    """Its weights are whole, so the agent resumes it. After a patch it has the weights that it
    loads from the directory."""
    stream, alone = world.a, world.server
    world.stop_agent()
    world.server = Server(stream.dir, world.where / "plugin", world.where / "ranks.log",
                          options=("--tensor-parallel-size", "2"))

    def serves():
        wait_until(lambda: world.label() == stream.label and not world.server.is_paused(),
                   f"{stream.label}; see {world.log}")
        return world.server.call("POST", "/weight_checker", {"action": "checksum"})["checksums"]

    bad = world.stream("bad-ranks", seed=10, lacks=[NORM])
    try:
        world.server.start()
        world.server.wait()
        world.follow(stream)
        before = serves()
        assert len(before) > len(unranked(before))
        world.follow(bad)
        world.refuses("nothing was stored", f"the version has no {NORM}")
        wait_until(lambda: not world.server.is_paused(), "it goes on")
        assert bad.id not in world.label()
        world.follow(stream)
        assert serves() == before
        stream.publish()
        after = serves()
        assert after != before
        world.stop_agent()
        world.server.call("POST", "/weight_checker", {"action": "reset"})
        world.follow(stream)
        wait_until(lambda: serves() == after, "it has loaded the directory")
    finally:
        world.stop_agent()
        world.server.kill()
        world.server = alone
        bad.publisher.close()
