"""The companion files that a WeightTransfer takes from TRL's real trainer, without any engine."""
import queue

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("vllm")  # TRL asks for it

import trl_world  # noqa: E402, F401 - finds make_model
from make_model import make_model  # noqa: E402

import deltawire  # noqa: E402
import deltawire.trl  # noqa: E402

OF_MODEL = {"config.json", "generation_config.json"}
OF_TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


class NoRollouts:
    """TRL's protocol of a rollout worker."""

    def __init__(self):
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()

    def start(self):
        pass

    stop = start

    def update_model_version(self, number):
        pass

    def check_health(self, stale_after_s):
        pass


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = tmp_path_factory.mktemp("files") / "base"
    make_model(base)
    return base


def synced(base, tmp_path, **options):
    """The files of the version that a trainer's first sync makes."""
    transfer = deltawire.trl.WeightTransfer(f"file://{tmp_path}/run", **options)
    trainer = made(base, tmp_path)
    transfer.attach(trainer)
    trainer._sync_weight()
    transfer.destroy()
    with deltawire.Stream(transfer.url) as stream:
        return stream.files(stream.head)


def made(base, tmp_path, **options):
    import without_gpu
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    without_gpu.prepare()
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, max_steps=1,
        per_device_train_batch_size=2, num_generations=2, report_to="none")
    return AsyncGRPOTrainer(
        str(base), lambda **_: 0.0, args,
        Dataset.from_dict({"prompt": [[{"role": "user", "content": "?"}]]}),
        rollout_worker=NoRollouts(), **options)


def test_they_are_those_of_the_trainer(base, tmp_path):
    files = synced(base, tmp_path)
    assert set(files) == OF_MODEL | OF_TOKENIZER
    assert files["tokenizer.json"].n_bytes == (base / "tokenizer.json").stat().st_size


def test_other_files_can_be_given(base, tmp_path):
    assert set(synced(base, tmp_path, files={"config.json": b"{}"})) == {"config.json"}


def test_files_can_be_left_out(base, tmp_path):
    assert not synced(base, tmp_path, files={})


def test_weights_of_another_iterator_have_no_files(tmp_path):
    url = f"file://{tmp_path}/run"
    transfer = deltawire.trl.WeightTransfer(url)
    transfer.send_weights(iter([("w", torch.zeros(4, 4))]))
    transfer.resume()
    transfer.destroy()
    with deltawire.Stream(url) as stream:
        assert stream.files(stream.head) is None


def test_adapters_are_merged_and_the_model_stays(base, tmp_path):
    peft = pytest.importorskip("peft")
    transfer = deltawire.trl.WeightTransfer(f"file://{tmp_path}/run")
    # without the argument 1.16 asks a server whether it takes adapters
    trainer = made(base, tmp_path, weight_transfer=transfer, peft_config=peft.LoraConfig(
        r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    transfer.attach(trainer)
    before = {name: t.clone() for name, t in trainer.model.state_dict().items()}
    trainer._sync_weight()
    transfer.destroy()
    assert transfer.versions == {1: 0} and trainer.model_version == 1
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    plain = trainer.model.merge_and_unload()
    wanted = {name: p.detach().to(torch.bfloat16) for name, p in plain.named_parameters()}
    into = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    with deltawire.Follower(transfer.url, tensors=into) as follower:
        follower.sync()
    for name, tensor in wanted.items():
        assert torch.equal(into[name].view(torch.int16), tensor.view(torch.int16)), name
