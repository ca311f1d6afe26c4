"""A trainer of transformers publishes by a callback."""
import copy
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


def train(where, url, dtype=torch.float32, also=(), wrap=lambda model: model, **options):
    config = transformers.Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, head_dim=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True)
    torch.manual_seed(3)
    model = wrap(transformers.Qwen3ForCausalLM(config).to(dtype))
    rows = [{"input_ids": [i % 64, 1, 2, 3], "labels": [i % 64, 1, 2, 3]} for i in range(64)]
    arguments = transformers.TrainingArguments(
        output_dir=str(where / "out"), max_steps=5, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, learning_rate=1e-2, report_to="none", use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_strategy="no")
    callback = deltawire.trl.PublishCallback(url, **options)
    transformers.Trainer(model, arguments, train_dataset=rows,
                         callbacks=[callback, *also]).train()
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


class Breaks(transformers.TrainerCallback):
    """After a step nothing can be written into the stream any more, because a file replaces its
    directory."""

    def __init__(self, where, step):
        self.objects, self.step = Path(where, "run", "objects"), step

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            self.objects.rename(self.objects.with_name("away"))
            self.objects.touch()


def test_a_finished_training_does_not_raise(tmp_path):
    url = f"file://{tmp_path}/run"
    with pytest.warns(deltawire.PublishWarning, match="training ended"):
        train(tmp_path, url, every=10, also=[Breaks(tmp_path, 2)])
    with deltawire.Stream(url) as stream:
        assert stream.head == 0


def test_a_failure_raises_if_asked_for(tmp_path):
    errors = []
    with pytest.raises(deltawire.Error, match="objects"), \
            pytest.warns(deltawire.PublishWarning):
        train(tmp_path, f"file://{tmp_path}/run", also=[Breaks(tmp_path, 2)],
              raise_on_error=True, on_error=errors.append)
    assert len(errors) == 1


def test_ranks_publish_their_shards(tmp_path):
    """Two ranks of FSDP2, each with half of the model, make one stream."""
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


def test_adapters_are_published_merged(tmp_path):
    peft = pytest.importorskip("peft")
    url = f"file://{tmp_path}/run"
    model = train(tmp_path, url, wrap=lambda model: peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"])))
    plain = {name: p.detach().to(torch.bfloat16)
             for name, p in copy.deepcopy(model).merge_and_unload().named_parameters()}
    last = pulled(url, tmp_path / "into")
    assert last.keys() == plain.keys()
    for name, weight in plain.items():
        assert torch.equal(last[name].view(torch.int16), weight.view(torch.int16))
    _, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "into", output_loading_info=True)
    assert not any(report.values()), report
