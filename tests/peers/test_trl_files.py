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
    import without_gpu
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    without_gpu.prepare()
    url = f"file://{tmp_path}/run"
    transfer = deltawire.trl.WeightTransfer(url, **options)
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, max_steps=1,
        per_device_train_batch_size=2, num_generations=2, report_to="none")
    trainer = AsyncGRPOTrainer(
        str(base), lambda **_: 0.0, args,
        Dataset.from_dict({"prompt": [[{"role": "user", "content": "?"}]]}),
        weight_transfer=transfer, rollout_worker=NoRollouts())
    trainer._sync_weight()
    transfer.destroy()
    with deltawire.Stream(url) as stream:
        return stream.files(stream.head)


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
