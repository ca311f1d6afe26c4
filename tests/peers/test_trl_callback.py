"""A trainer of transformers publishes by a callback."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

import deltawire  # noqa: E402
import deltawire.trl  # noqa: E402
from vllm_server import free_port  # noqa: E402


def train(where, url, dtype=torch.float32, **options):
    config = transformers.Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, head_dim=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True)
    torch.manual_seed(3)
    model = transformers.Qwen3ForCausalLM(config).to(dtype)
    rows = [{"input_ids": [i % 64, 1, 2, 3], "labels": [i % 64, 1, 2, 3]} for i in range(64)]
    arguments = transformers.TrainingArguments(
        output_dir=str(where / "out"), max_steps=5, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, learning_rate=1e-2, report_to="none", use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_strategy="no")
    callback = deltawire.trl.PublishCallback(url, **options)
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback]).train()
    assert callback.publisher is None
    return model


def pulled(url, into):
    with deltawire.Follower(url, into=into) as follower:
        follower.sync()
    with deltawire.Checkpoint(into) as checkpoint:
        return {name: torch.from_dlpack(t).clone() for name, t in checkpoint.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_step_is_a_version(tmp_path, dtype):
    url = f"file://{tmp_path}/run"
    model = train(tmp_path, url, dtype)
    with deltawire.Stream(url) as stream:
        assert [v.step for v in stream.versions()][1:] == ["1", "2", "3", "4", "5"]
        states = [v.state for v in stream.versions()]
        assert len(set(states)) == len(states), "a step that changed nothing"
    trained = {name: p.detach().to(torch.bfloat16) for name, p in model.named_parameters()}
    last = pulled(url, tmp_path / "into")
    assert last.keys() == trained.keys()  # tied weights once
    for name, weight in trained.items():
        assert torch.equal(last[name].view(torch.int16), weight.view(torch.int16))


def test_some_steps_and_always_the_last(tmp_path):
    url = f"file://{tmp_path}/run"
    train(tmp_path, url, every=2)
    with deltawire.Stream(url) as stream:
        assert [v.step for v in stream.versions()][1:] == ["2", "4", "5"]


def test_ranks_publish_their_shards(tmp_path):
    """Two of FSDP2, each with half of the model, make one stream."""
    url, port = f"file://{tmp_path}/run", free_port()
    ranks = [subprocess.Popen(
        [sys.executable, Path(__file__).with_name("callback_rank.py"), url, tmp_path],
        env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                          "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"})
        for rank in range(2)]
    assert [rank.wait(300) for rank in ranks] == [0, 0]
    with deltawire.Stream(url) as stream:
        assert [v.step for v in stream.versions()][1:] == ["1", "2", "3"]
    last, trained = pulled(url, tmp_path / "into"), torch.load(tmp_path / "trained.pt")
    assert last.keys() == trained.keys()
    for name, weight in trained.items():
        assert torch.equal(last[name].view(torch.int16), weight.view(torch.int16))
