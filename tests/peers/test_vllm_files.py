"""A host that has only a stream starts a real vLLM: `deltawire pull` into an empty directory makes
all that `vllm serve` needs. It answers like a server on the trainer's directory."""
import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import vllm_server  # noqa: E402
from vllm_server import Server  # noqa: E402

DELTAWIRE = os.environ.get("DELTAWIRE", str(vllm_server.HERE.parents[1] / "build/deltawire"))
CHARACTERS = "abcdefghijklmnopqrstuvwxyz .,?!\n:"
SPECIAL = ["<pad>", "<start>", "<end>"]
TEMPLATE = ("{% for m in messages %}<start>{{ m['role'] }}: {{ m['content'] }}<end>{% endfor %}"
            "{% if add_generation_prompt %}<start>assistant: {% endif %}")
COMPANIONS = {"config.json", "generation_config.json", "tokenizer.json",
              "tokenizer_config.json"}


def make_model(path, seed):
    """A tiny Qwen3 with a tokenizer of characters, as transformers saves them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    vocabulary = {text: i for i, text in enumerate(SPECIAL + sorted(CHARACTERS))}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", bos_token="<start>", eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, head_dim=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, tie_word_embeddings=False, initializer_range=0.3,
        bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config.max_length = 200
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


class Serve(Server):
    """`vllm serve DIR`, with the directory's own tokenizer and template. The command itself does
    not start in the build for CPUs, which has another name; this is the server that it starts."""

    def __init__(self, directory, log):
        super().__init__(directory, None, log)

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server",
             "--model", self.directory, "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(self.port),
             "--enforce-eager", "--max-model-len", str(vllm_server.MAX_TOKENS)],
            env=vllm_server.environment(vllm_server.HERE),
            stdout=self.log, stderr=self.log, start_new_session=True)

    def answers(self):
        """Texts and tokens, of a plain prompt and of a chat."""
        sampling = {"model": "m", "temperature": 0, "max_tokens": 24, "ignore_eos": True,
                    "return_token_ids": True}
        plain = self.call("POST", "/v1/completions", sampling | {"prompt": "hello, world"})
        chat = self.call("POST", "/v1/chat/completions", sampling | {
            "messages": [{"role": "user", "content": "who are you?"}]})
        return [(answer["choices"][0].get("text") or answer["choices"][0]["message"]["content"],
                 answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens"])
                for answer in (plain, chat)]


def run(*args):
    return subprocess.run([DELTAWIRE, *map(str, args)], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


@pytest.fixture(autouse=True)
def own_baselines(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def served(directory, log):
    server = Serve(directory, log)
    server.start()
    try:
        server.wait()
        return server.answers()
    finally:
        if server.process.poll() is None:
            server.kill()


def test_an_empty_host_serves_what_the_trainer_has(tmp_path):
    url = f"file://{tmp_path}/stream"
    make_model(tmp_path / "trainer-0", 1)
    make_model(tmp_path / "trainer-1", 2)
    # version 1 has another template too
    template = tmp_path / "trainer-1/chat_template.jinja"
    assert template.exists()
    template.write_text(TEMPLATE.replace("assistant", "robot"))
    for version in range(2):
        run("publish", url, tmp_path / f"trainer-{version}", "--step", version)

    # a host that joins at version 0, and goes to version 1 with `pull` again
    target = tmp_path / "host"
    report = json.loads(run("pull", url, "--into", target, "--at", 0, "--json"))
    names = {path.name for path in target.iterdir()}
    assert COMPANIONS <= names
    assert report["files_installed"] >= len(COMPANIONS)
    assert report["files_kept"] == []
    for version in range(2):
        trainer = tmp_path / f"trainer-{version}"
        if version == 1:
            report = json.loads(run("pull", url, "--into", target, "--json"))
            assert report["files_installed"] == 1  # the template
        for path in trainer.iterdir():
            if not path.name.endswith(".safetensors"):
                assert (target / path.name).read_bytes() == path.read_bytes(), path.name
    wanted = served(tmp_path / "trainer-1", tmp_path / "trainer.log")
    assert served(target, tmp_path / "host.log") == wanted
    assert all(len(tokens) == 24 for _, tokens, _ in wanted)
