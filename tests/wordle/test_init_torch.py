"""transformers opens the model of `wordle-train --init`."""
import json
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = os.environ.get("WORDLE_TRAIN", ROOT / "build/examples/wordle/wordle-train")
TEXT = "WORDLE\ncrane .gy..\ntr?il !!!!!\n"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    if not os.access(TRAIN, os.X_OK):
        pytest.skip(f"{TRAIN} is not built")
    path = tmp_path_factory.mktemp("init") / "model"
    subprocess.run([TRAIN, "--init", path, "--hidden", "32", "--layers", "3"], check=True)
    return path


def test_tokenizer_has_a_token_for_each_character(model_dir):
    tok = transformers.AutoTokenizer.from_pretrained(model_dir)
    ids = tok(TEXT)["input_ids"]
    assert len(ids) == len(TEXT)
    assert tok.decode(ids) == TEXT
    assert [tok.decode([i]) for i in ids] == list(TEXT)
    assert tok("a<|endoftext|>")["input_ids"][-1] == tok.eos_token_id
    assert len(tok) <= json.loads((model_dir / "config.json").read_text())["vocab_size"]


def test_model_is_a_qwen3_that_guesses_evenly(model_dir):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.bfloat16
    tok = transformers.AutoTokenizer.from_pretrained(model_dir)
    ids = torch.tensor([tok(TEXT)["input_ids"]])
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
    assert 3.5 < loss < 6.5  # log of the vocabulary's size is 4.6


def test_a_directory_with_a_model_is_refused(model_dir):
    before = (model_dir / "model.safetensors").read_bytes()
    made = subprocess.run([TRAIN, "--init", model_dir], capture_output=True, text=True)
    assert made.returncode == 1 and "holds a model" in made.stderr
    assert (model_dir / "model.safetensors").read_bytes() == before
