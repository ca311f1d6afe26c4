"""TRL's real AsyncGRPOTrainer, two real vLLM servers and a bucket between them.

After each sync every running server reports that version, and has the same weights and generates
the same tokens as a vLLM that is started on that version's checkpoint. Each sample that TRL
trains on is tagged with the version that made it.
"""
import json
import os
import subprocess
import sys
import uuid

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
pytest.importorskip("trl")

import vllm_server  # noqa: E402
from trl_world import DELTAWIRE, SITE, Host, even_tokens  # noqa: E402
from vllm_server import START_S, wait_until  # noqa: E402

from make_model import make_model  # noqa: E402

N_STEPS = 20
KILL_AT, START_AT, BACK_AT = 6, 8, 11  # syncs
N_TOKENS = 24
PROMPTS = [[3, 4, 5], [(7 * i) % 250 for i in range(100)]]


class Tap:
    """TRL's queue of samples, which keeps what was taken from it."""

    def __init__(self, queue):
        self._queue, self.samples = queue, []

    def get(self, *args, **given):
        sample = self._queue.get(*args, **given)
        self.samples.append(sample)
        return sample

    def qsize(self):
        return self._queue.qsize()


class Run:
    def __init__(self, where):
        store = os.environ.get("DW_TEST_STORE")  # a bucket on a real server
        self.where = where
        self.url = f"{store}/trl-{uuid.uuid4().hex}" if store else f"file://{where}/run"
        self.base = where / "base"
        make_model(self.base, spread=0.2)
        self.hosts = [Host(where, name, self.base, self.url) for name in ("one", "two")]
        self.seen = []  # for each sync: {host: what it serves}, and the hosts that were away
        self.tap = self.transfer = None

    def start(self):
        for host in self.hosts:
            host.server.start()
            host.follow()  # waits for the stream
        for host in self.hosts:
            host.server.wait()

    def stop(self):
        for host in self.hosts:
            host.stop()

    def synced(self, transfer):
        """Called after each sync, before TRL raises its version."""
        number, (one, two) = transfer.model_version, self.hosts
        if number == BACK_AT:
            wait_until(lambda: two.server.label() == str(transfer.version),
                       "the server that was killed is back", START_S)
        assert two.server.url in transfer.away or not KILL_AT < number <= START_AT
        up = [one] if KILL_AT < number < BACK_AT else self.hosts
        self.seen.append({host.name: host.looked_at(PROMPTS, N_TOKENS) for host in up})
        if number == KILL_AT:
            two.server.kill()
        elif number == START_AT:
            two.server.start()

    def train(self):
        import without_gpu
        from datasets import Dataset
        from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

        import deltawire.trl

        without_gpu.prepare()
        self.transfer = deltawire.trl.WeightTransfer(
            self.url, engines=[host.server.url for host in self.hosts], away_after=0.2,
            timeout=START_S, on_sync=self.synced)
        args = AsyncGRPOConfig(
            output_dir=str(self.where / "out"), use_cpu=True, bf16=False, max_steps=N_STEPS,
            per_device_train_batch_size=8, num_generations=4, max_completion_length=16,
            token_budget=0, learning_rate=5e-3, logging_steps=1, report_to="none",
            save_strategy="no",
            vllm_server_base_url=self.transfer.gate([host.gate.url for host in self.hosts]))
        prompts = [[{"role": "user", "content": f"{i}?"}] for i in range(16)]
        trainer = AsyncGRPOTrainer(
            str(self.base), even_tokens, args, Dataset.from_dict({"prompt": prompts}))
        self.transfer.attach(trainer)
        trainer.rollout_queue = self.tap = Tap(trainer.rollout_queue)
        trainer.train()
        self.model = {name: p.detach().to(torch.bfloat16)
                      for name, p in trainer.model.named_parameters()}

    def checkpoint(self, version):
        into = self.where / f"v{version}"
        if not into.exists():
            subprocess.run([DELTAWIRE, "pull", self.url, "--into", into, "--at",
                            str(version), "--quiet"], check=True)
        return into

    def references(self):
        """For each version of the stream: what a vLLM that is started on it serves."""
        versions = sorted(self.transfer.versions.values())
        with open(self.where / "reference.log", "wb") as log:
            made = subprocess.run(
                [sys.executable, vllm_server.HERE / "vllm_reference.py", json.dumps(PROMPTS),
                 str(N_TOKENS), *map(self.checkpoint, versions)],
                env=vllm_server.environment(SITE),
                text=True, check=True, stdout=subprocess.PIPE, stderr=log)
        return dict(zip(versions, map(json.loads, made.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("trl"))
    try:
        run.start()
        run.train()
        yield run
    finally:
        run.stop()


def test_each_sync_is_a_version(run):
    assert list(run.transfer.versions) == list(range(1, N_STEPS + 2))
    assert list(run.transfer.versions.values()) == list(range(N_STEPS + 1))
    assert len(run.seen) == N_STEPS + 1


def test_servers_say_the_version_of_each_sync(run):
    for number, seen in enumerate(run.seen, 1):
        for what in seen.values():
            assert what["version"] == str(run.transfer.versions[number])


def test_servers_hold_and_generate_what_a_fresh_one_does(run):
    references = run.references()
    n_different = {key: len({json.dumps(r[key]) for r in references.values()})
                   for key in ("checksums", "tokens")}
    assert n_different["checksums"] == len(references)
    assert n_different["tokens"] > len(references) // 2
    for number, seen in enumerate(run.seen, 1):
        reference = references[run.transfer.versions[number]]
        for what in seen.values():
            assert what["checksums"] == reference["checksums"]
            assert what["tokens"] == reference["tokens"]


def test_samples_are_tagged_with_the_version_that_made_them(run):
    """Compares with vLLM's answers at the proxy, which TRL does not influence."""
    made = {}
    for host in run.hosts:
        for tokens, logprobs, spans in host.gate.answers:
            key = tuple(tokens), np.float32(logprobs).tobytes()
            made.setdefault(key, set()).add(min(int(version) for version, *_ in spans))
    samples = run.tap.samples
    assert len(samples) >= 8 * N_STEPS
    for sample in samples:
        is_made = sample.completion_mask == 1
        key = tuple(sample.input_ids[is_made].tolist()), sample.old_log_probs[is_made].tobytes()
        assert made[key] == {run.transfer.versions[sample.model_version]}
    assert len({sample.model_version for sample in samples}) >= N_STEPS // 2
    assert all(host.gate.answers for host in run.hosts)


def test_samples_fit_the_weights_they_are_tagged_with(run):
    """Only by the numbers: the samples of a version have the probabilities of its weights, and
    not those of its neighbours."""
    from transformers import AutoModelForCausalLM

    def distance(samples, version):
        if version not in models:
            models[version] = AutoModelForCausalLM.from_pretrained(
                run.checkpoint(version), dtype=torch.bfloat16)
        return sum(_distance(models[version], sample) for sample in samples)

    models = {}
    mixed = {tuple(tokens) for host in run.hosts for tokens, _, spans in host.gate.answers
             if len(spans) > 1}  # generated while the engine switched: of two versions
    by_version = {}
    for sample in run.tap.samples:
        if tuple(sample.input_ids[sample.completion_mask == 1].tolist()) not in mixed:
            version = run.transfer.versions[sample.model_version]
            by_version.setdefault(version, []).append(sample)
    by_version = {v: samples[:6] for v, samples in by_version.items() if len(samples) >= 4}
    assert len(by_version) >= N_STEPS // 3
    for version, samples in by_version.items():
        near = [v for v in (version - 1, version, version + 1) if 0 <= v <= N_STEPS]
        assert min(near, key=lambda v: distance(samples, v)) == version


@torch.no_grad()
def _distance(model, sample):
    ids = torch.from_numpy(sample.input_ids)[None]
    logits = model(ids).logits[0, :-1].float()
    sampled = torch.from_numpy(sample.old_log_probs)[1:]
    is_made = torch.from_numpy(sample.completion_mask)[1:] == 1
    own = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return float((own - sampled)[is_made].abs().sum())


def test_versions_carry_the_files_of_model_and_tokenizer(run):
    from transformers import AutoTokenizer

    import deltawire

    with deltawire.Stream(run.url) as stream:
        last = stream.head
        files = stream.files(last)
        assert {"config.json", "generation_config.json", "tokenizer.json",
                "tokenizer_config.json"} <= set(files)
        assert {file.version for file in files.values()} == {0}  # stored once
    config = json.loads((run.checkpoint(last) / "config.json").read_text())
    base = json.loads((run.base / "config.json").read_text())
    assert config["architectures"] == base["architectures"]
    assert config["dtype"] == "bfloat16"  # that of the stream: TRL trains in float32
    text = "a word, and Ümlaute"
    assert (AutoTokenizer.from_pretrained(run.checkpoint(last))(text)["input_ids"]
            == AutoTokenizer.from_pretrained(run.base)(text)["input_ids"])


def test_the_last_version_is_the_trained_model(run):
    import deltawire

    last = max(run.transfer.versions.values())
    with deltawire.Checkpoint(run.checkpoint(last)) as checkpoint:
        assert set(checkpoint) == set(run.model)  # tied weights once
        for name, weight in run.model.items():
            stored = torch.from_dlpack(checkpoint[name])
            assert torch.equal(stored.view(torch.int16), weight.view(torch.int16))


# ---- numbers ----------------------------------------------------------------------------

def test_numbers_of_versions(tmp_path):
    import deltawire.trl

    transfer = deltawire.trl.WeightTransfer(f"file://{tmp_path}/run")
    assert transfer._number_of(5) == 1  # during the first sync
    # a stream that others wrote to between the syncs 2 and 3, and a run that began at 2
    transfer.versions |= {2: 10, 3: 15, 4: 16}
    transfer.model_version = 4
    numbers = {version: transfer._number_of(version) for version in (7, 10, 12, 15, 16, 17)}
    # older than all: as far back as it is; newer than all: the current sync
    assert numbers == {7: -1, 10: 2, 12: 2, 15: 3, 16: 4, 17: 5}


# ---- the transfer by itself, over a server of that run ----------------------------------

def _steps_of(model, n):
    """Weights as TRL passes them, in float32, and N small steps of them."""
    torch.manual_seed(5)
    weights = {name: weight.float() for name, weight in model.items()}
    for _ in range(n):
        yield weights
        weights = {name: w + 0.01 * torch.randn_like(w) for name, w in weights.items()}


def test_a_server_that_stays_behind_is_named(run):
    import deltawire.trl

    engine = run.hosts[0].server.url
    transfer = deltawire.trl.WeightTransfer(
        f"{run.url}-nobody-follows", engines=[engine], timeout=0.5)
    [weights] = _steps_of(run.model, 1)
    transfer.send_weights(iter(weights.items()))
    message = f"{engine}: serves version {N_STEPS} of the stream .*, not version 0 of"
    with pytest.raises(TimeoutError, match=message):
        transfer.resume()
    assert transfer.versions == {} and transfer.model_version == 0
    transfer.destroy()


def test_followers_are_waited_for_by_their_reports(run):
    import deltawire.trl

    [weights] = _steps_of(run.model, 1)
    for i, followers, message in ((0, 1, "0 of 1 followers"),
                               (1, ["x"], r"x \(no report\) not at version")):
        transfer = deltawire.trl.WeightTransfer(
            f"{run.url}-reports-{i}", followers=followers, timeout=0.1)
        transfer.send_weights(iter(weights.items()))
        with pytest.raises(TimeoutError, match=message):
            transfer.resume()
        with deltawire.Follower(transfer.url, into=run.where / f"reports-{i}", id="x") as x:
            x.sync()
            x.report("staged", "0")  # staged, but not served
            with pytest.raises(TimeoutError, match="0 of 1|x .staged at 0"):
                transfer.resume()
            x.report("following")
            transfer.resume()
        assert transfer.versions == {1: 0}
        transfer.destroy()


def test_workers_that_follow_by_themselves_are_driven(run):
    import deltawire.trl
    from train import prove

    host = run.hosts[0]
    host.stop_following()
    transfer = deltawire.trl.WeightTransfer(
        f"{run.url}-driven", engines=[host.server.url], drive=True, timeout=120)
    for number, weights in enumerate(_steps_of(run.model, 3)):
        transfer.pause()
        transfer.send_weights(iter(weights.items()))
        transfer.resume()
        assert host.server.label() == str(number)
        assert not host.server.is_paused()
        sent = {name: w.to(torch.bfloat16) for name, w in weights.items()}
        assert prove(sent, [host.server.url]) == 1
    transfer.destroy()
