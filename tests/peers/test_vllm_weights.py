"""Versions go into the weights of a vLLM in this process, through the back end `deltawire`. It
must then have the same weights and output as a vLLM that is started on that version, without
layouts."""
import json
import os
import shutil
import subprocess
import sys

import pytest

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1",
    VLLM_CACHE_ROOT=os.path.join(sys.prefix, "vllm-cache"))
torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
from safetensors.torch import load_file, save_file  # noqa: E402

import deltawire  # noqa: E402
import quantiser  # noqa: E402
import vllm_server  # noqa: E402
from vllm_server import MAX_TOKENS, wait_until  # noqa: E402

VOCABULARY = 500  # not a multiple of vLLM's padding
PROMPTS = [[3, 4, 5]]
N_TOKENS = 16
IGNORED = ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]
KINDS = ["Qwen3", "Llama", "Qwen3Moe", "Qwen2-int8"]


def make_model(kind):
    import transformers

    config = dict(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, head_dim=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, initializer_range=0.3, bos_token_id=None,
        eos_token_id=None, pad_token_id=None, tie_word_embeddings=kind == "Llama")
    if kind.startswith("Qwen3Moe"):
        config |= dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    if kind == "Qwen2-int8":  # with a bias; down_proj has a shape that only oneDNN takes
        config |= dict(hidden_size=128, intermediate_size=112)
    if kind.endswith(("-fp8", "-wide")):  # whole blocks
        config |= dict(hidden_size=128, num_attention_heads=8, num_key_value_heads=4)
    if kind.startswith("Qwen3Moe-"):
        config |= dict(moe_intermediate_size=128, num_experts=32)
    kind = kind.split("-")[0]
    config = getattr(transformers, kind + "Config")(**config)
    model = getattr(transformers, kind + "ForCausalLM")(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():  # else norms would be all ones
            parameter.copy_(0.3 * torch.randn(parameter.shape))
    return model


class Run:
    """Version 0, version 1 with every element changed, version 2 with a few changes, including
    zeros that become negative, and NaNs. A directory follows them."""

    def __init__(self, where, kind):
        self.where, self.url = where, f"file://{where}/run"
        self.references = {}
        self.which = 0
        torch.manual_seed(7)
        self.paths = [where / f"v{i}" for i in range(3)]
        scheme = kind.partition("-")[2].replace("wide", "")
        make_model(kind).save_pretrained(self.paths[0])
        if scheme:
            quantiser.add_config(self.paths[0], scheme, IGNORED)
        weights = load_file(self.paths[0] / "model.safetensors")
        versions = [weights]
        other = {}
        for name, w in weights.items():
            new = (0.3 * torch.randn(w.shape)).to(w.dtype)
            same = new.view(torch.int16) == w.view(torch.int16)
            new.view(torch.int16)[same] ^= 1
            other[name] = new
        moved = {name: w.clone() for name, w in other.items()}
        for name, w in moved.items():
            at = torch.rand(w.shape) < 0.03
            w[at] += (0.1 * torch.randn(w.shape)).to(w.dtype)[at]
        if not scheme:
            self.add_odd_values(other, moved)
        versions += [other, moved]
        if scheme:
            versions = [quantiser.quantise(tensors, scheme) for tensors in versions]
            save_file(versions[0], self.paths[0] / "model.safetensors",
                      metadata={"format": "pt"})
        for path, tensors in zip(self.paths[1:], versions[1:]):
            shutil.copytree(self.paths[0], path)
            save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        self.versions = versions
        self.live = {name: w.clone() for name, w in versions[0].items()}
        self.publisher = deltawire.Publisher(self.url, self.live,
                                             baseline_dir=where / "baseline")
        self.follower = deltawire.Follower(self.url, into=where / "dir", report=False)
        self.follower.sync()

    def add_odd_values(self, other, moved):
        odd = moved["model.layers.1.self_attn.k_proj.weight"].view(torch.int16).view(-1)
        other["model.layers.1.self_attn.k_proj.weight"].view(-1)[:4] = 0
        odd[:4] = torch.tensor([-0x8000, 0x7FC1, -1, 0], dtype=torch.int16)  # -0, NaNs, 0

    def publish(self, which):
        """The weights of version WHICH, as the next one."""
        self.which = which
        for name, w in self.versions[which].items():
            self.live[name].copy_(w)
        self.publisher.wait(self.publisher.publish())

    def stage(self):
        """The update that `deltawire follow` sends for the next version; call it before
        finish()."""
        start = self.follower.version
        self.follower.stage()
        self.follower.prepare()
        update = {"format": "deltawire/1", "kind": "patch", "stream": None,
                  "from_version": start, "version": self.follower.staged, "state": None,
                  "dir": str(self.where / "dir"), "patch": self.follower.staged_path}
        self.follower.apply()
        return update

    def snapshot(self):
        return {"format": "deltawire/1", "kind": "snapshot", "version": self.follower.version,
                "state": self.follower.state, "dir": str(self.where / "dir")}

    def close(self):
        self.follower.close()
        self.publisher.close()


class Engine:
    """Ends with the process, because the first engine that ends destroys what engines in a
    process share."""

    def __init__(self, path, **options):
        from vllm import LLM

        self.llm = LLM(model=str(path), dtype="bfloat16", enforce_eager=True,
                       max_model_len=MAX_TOKENS, skip_tokenizer_init=True,
                       num_gpu_blocks_override=64,
                       weight_transfer_config={"backend": "deltawire"}, **options)

    def call(self, method, *args):
        return self.llm.llm_engine.collective_rpc(method, args=args)

    def update(self, update):
        self.call("start_weight_update")
        self.call("update_weights", update)
        self.call("finish_weight_update")
        self.llm.llm_engine.reset_prefix_cache()

    def serves(self):
        """In the form of vllm_reference.py."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=N_TOKENS, ignore_eos=True,
                                  detokenize=False)
        tokens = []
        for prompt in PROMPTS:
            done = self.llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
            tokens.append(list(done[0].outputs[0].token_ids))
        [checksums] = self.call("compute_weight_checksums")
        return {"checksums": checksums, "tokens": tokens}

    @property
    def worker(self):
        """Of an engine in this process."""
        [worker] = self.call(lambda worker: worker)
        return worker

    @property
    def backend(self):
        return self.worker.weight_transfer_engine


def test_a_vllm_that_is_too_old_is_refused_by_its_version(monkeypatch):
    import deltawire.vllm
    import vllm
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    monkeypatch.setattr(vllm, "__version__", "0.27.1")
    monkeypatch.setattr(WeightTransferEngineFactory, "_registry", {})
    deltawire.vllm.register()
    config = WeightTransferConfig(backend="deltawire")
    with pytest.raises(RuntimeError, match="needs vLLM 0.28 or later; this is vLLM 0.27.1"):
        WeightTransferEngineFactory.create_engine(config, None, None, None)


def test_a_plugin_that_fails_does_not_stop_vllm(monkeypatch, caplog):
    import logging

    import deltawire.vllm
    from deltawire.vllm import plain
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    def fails(name):
        raise AttributeError("this vLLM is another one")

    monkeypatch.setattr(plain, "install", fails)
    monkeypatch.setattr(WeightTransferEngineFactory, "_registry", {})
    log = logging.getLogger("vllm")
    monkeypatch.setattr(log, "propagate", True)
    # other libraries in this process may have switched it off
    monkeypatch.setattr(log, "disabled", False)
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    caplog.set_level(logging.WARNING, logger="vllm")
    deltawire.vllm.register()
    assert "this vLLM is another one" in caplog.text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind, and what a vLLM that is started on their versions serves; version 2
    only for two kinds, because it takes long."""
    runs = {kind: Run(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}
    wanted = [(kind, i) for kind in KINDS for i in (1, 2) if i == 1 or kind in KINDS[2:]]
    with open(tmp_path_factory.mktemp("reference") / "log", "wb") as log:
        made = subprocess.run(
            [sys.executable, vllm_server.HERE / "vllm_reference.py", json.dumps(PROMPTS),
             str(N_TOKENS), *(runs[kind].paths[i] for kind, i in wanted)],
            env=vllm_server.environment(vllm_server.HERE), stdout=subprocess.PIPE,
            stderr=log, text=True, check=True)
    for (kind, i), line in zip(wanted, made.stdout.splitlines(), strict=True):
        runs[kind].references[i] = json.loads(line)
    yield runs
    for run in runs.values():
        run.close()


@pytest.fixture(params=KINDS)
def run(request, runs):
    return runs[request.param]


def test_every_element_goes_to_its_place(run):
    """Through a patch, through the whole directory, and through the stream itself."""
    engine = Engine(run.paths[0])
    weights = engine.backend._weights
    assert weights.reasons == {}
    # each element of the checkpoint, once
    assert weights.layout.held == {name: w.numel() for name, w in run.versions[0].items()}
    before = engine.serves()
    engine.update(run.snapshot())
    assert engine.serves() == before

    run.publish(1)
    update = run.stage()
    engine.update(update)
    run.follower.finish()
    assert engine.serves() == run.references[1]
    assert run.references[1]["tokens"] != before["tokens"]
    with pytest.raises(Exception, match="starts from version 0"):
        engine.update(update)
    assert engine.serves() == run.references[1]

    run.publish(2)
    engine.update(run.stage())
    run.follower.finish()
    assert weights.compare(deltawire.Checkpoint(run.paths[2])) == {}  # -0 and NaNs too
    served = engine.serves()
    assert served == run.references.get(2, served)

    engine.call("init_weight_transfer_engine",
                {"url": run.url, "id": "worker", "interval": 0.05})
    source = engine.backend._source
    engine.update({"version": 1})  # whole, into its own directory
    assert engine.serves() == run.references[1]
    n_patches = engine.backend._n_patches
    engine.update({"version": 2})
    assert engine.backend._n_patches == n_patches + 1
    assert engine.serves() == served

    def reports():
        return [(f.id, f.version, f.status) for f in deltawire.Stream(run.url).followers()]

    wait_until(lambda: reports() == [("worker", 2, "serving")], "the worker reports")
    engine.call("shutdown_weight_transfer_engine")
    assert not os.path.exists(source.dir)


# ---- what goes wrong -------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("faults"), "Qwen3")
    yield run, Engine(run.paths[0])
    run.close()


@pytest.fixture
def patched(world):
    """An engine at some version, and a patch to one in which every element differs."""
    run, engine = world
    engine.update(run.snapshot())
    run.publish(1 - run.which)
    update = run.stage()
    yield run, engine, update
    run.follower.finish()
    engine.backend.sweep_every = 64
    engine.update(run.snapshot())  # repairs it
    wanted = deltawire.Checkpoint(run.paths[run.which])
    assert engine.backend._weights.compare(wanted) == {}
    assert engine.backend._holds.version == run.follower.version


def parameters(engine):
    return dict(engine.worker.get_model().named_parameters())


def bits(engine):
    return {name: p.detach().clone().view(torch.int16)
            for name, p in parameters(engine).items()}


def same_bits(a, b):
    return all(torch.equal(a[name], b[name]) for name in b)


def test_a_patch_that_was_altered_is_not_stored(patched):
    run, engine, update = patched
    before = bits(engine)
    altered = bytearray(open(update["patch"], "rb").read())
    altered[len(altered) // 2] ^= 4
    (run.where / "altered").write_bytes(altered)
    with pytest.raises(Exception, match="nothing was stored: .*altered"):
        engine.update(update | {"patch": str(run.where / "altered")})
    assert same_bits(bits(engine), before)
    engine.update(update)  # the right one still fits
    assert engine.backend._weights.compare(deltawire.Checkpoint(run.paths[run.which])) == {}


def test_weights_that_are_not_what_they_were_take_no_patch(patched):
    run, engine, update = patched
    parameters(engine)["model.layers.0.mlp.gate_up_proj.weight"].data[130, 5] += 1
    before = bits(engine)
    with pytest.raises(Exception, match="up_proj.*not what the patch replaces"):
        engine.update(update)
    assert same_bits(bits(engine), before)


def test_another_digest_than_the_versions_is_refused(patched):
    run, engine, update = patched
    engine.backend._holds = engine.backend._holds._replace(state="0123456789abcdef")
    with pytest.raises(Exception, match="digest"):
        engine.update(update)
    assert engine.backend._holds.version is None


def test_a_sweep_finds_what_no_patch_touches(patched):
    run, engine, update = patched
    engine.update(update)
    run.follower.finish()
    engine.backend.sweep_every = 1
    run.live["model.norm.weight"][3] += 1
    run.publisher.wait(run.publisher.publish())
    parameters(engine)["model.norm.weight"].data[4] += 1
    update = run.stage()
    with pytest.raises(Exception, match="1 elements of model.norm.weight"):
        engine.update(update)
    run.follower.finish()
    run.publish(run.which)
    run.stage()


def test_another_stream_with_the_same_numbers_is_loaded_whole(patched):
    run, engine, _ = patched
    another = f"file://{run.where}/another"
    with deltawire.Publisher(another, run.versions[2]):
        pass
    engine.call("init_weight_transfer_engine", {"url": run.url})
    engine.update({"version": 0})
    engine.call("init_weight_transfer_engine", {"url": another, "id": "x", "interval": 0.05})
    wait_until(lambda: [f.version for f in deltawire.Stream(another).followers()] == [0],
               "the other stream's directory is at that number")
    engine.update({"version": 0})
    wanted = deltawire.Checkpoint(run.paths[2])
    assert engine.backend._weights.compare(wanted) == {}
    engine.call("shutdown_weight_transfer_engine")


def test_an_engine_takes_no_patch_before_it_was_compared(patched):
    run, engine, update = patched
    backend, path = engine.backend, engine.backend.model_config.model
    learnt = backend._weights
    backend.model_config.model = str(run.paths[1 - run.which])  # as before the patch
    try:
        for other in (0, 1):
            parameters(engine)["model.norm.weight"].data[5] += other
            backend._holds = type(backend._holds)()
            backend._learn_at_start()
            assert backend._is_fresh == (other == 0)
            with pytest.raises(Exception, match="not known"):
                engine.update(update)
    finally:
        backend._weights, backend.model_config.model = learnt, path


def test_through_pytorch_as_on_a_device(patched):
    run, engine, update = patched
    weights = engine.backend._weights
    weights._on_cpu = weights._is_direct = False
    try:
        engine.update(update)  # lists of stores
        checkpoint = deltawire.Checkpoint(run.where / "dir")
        assert weights.compare(checkpoint) == {}
        parameters(engine)["model.layers.1.self_attn.qkv_proj.weight"].data[7, 7] += 1
        engine.update(run.snapshot() | {"version": update["version"], "state": None})
        assert weights.compare(checkpoint) == {}
        with pytest.raises(RuntimeError, match="not what .* replaces"):
            weights.apply(update["patch"], None)
    finally:
        weights._on_cpu = weights._is_direct = True


def test_what_cannot_be_learnt_is_loaded_anew(patched):
    """A model that computes with a weight while loading it."""
    run, engine, update = patched
    model, backend = engine.worker.get_model(), engine.backend
    load = model.load_weights

    def plus_one(weights):
        return load((name, w + 1 if name == "model.norm.weight" else w)
                    for name, w in weights)

    learnt = backend._weights
    model.load_weights = plus_one
    try:
        backend._weights = None
        engine.update(run.snapshot() | {"version": update["from_version"], "state": None,
                                        "dir": str(run.paths[1 - run.which])})
        assert set(backend._weights.reasons) == {"model.norm.weight"}
        engine.update(update)
        norm = parameters(engine)["model.norm.weight"]
        assert torch.equal(norm, run.live["model.norm.weight"] + 1)
    finally:
        model.load_weights = load
        backend._weights = learnt


def test_a_failure_while_learning_leaves_the_weights_alone(patched):
    run, engine, _ = patched
    model, backend = engine.worker.get_model(), engine.backend
    before, load, calls = bits(engine), model.load_weights, []

    def fails(weights):
        calls.append(load(weights))
        if len(calls) == 2:
            raise ValueError("as the test wants")
        return calls[-1]

    learnt = backend._weights
    model.load_weights = fails
    try:
        backend._learn(learnt.table)
        assert len(calls) == 2
        assert set(backend._weights.reasons) == set(learnt.table)
        assert same_bits(bits(engine), before)
    finally:
        model.load_weights = load
        backend._weights = learnt


# ---- ranks -----------------------------------------------------------------------------


def on_two_ranks(run, options, updates):
    """What vllm_two_ranks.py says; `loaded` has the checksums of all versions."""
    with open(run.where / "log", "wb") as log:
        made = subprocess.run(
            [sys.executable, vllm_server.HERE / "vllm_two_ranks.py", json.dumps(options),
             run.paths[0], json.dumps(updates), *run.paths],
            env=vllm_server.environment(vllm_server.HERE), stdout=subprocess.PIPE, stderr=log,
            text=True)
    assert made.returncode == 0, (run.where / "log").read_text()[-6000:]
    answer = json.loads(made.stdout)
    for loaded in answer["loaded"]:
        assert len(loaded) == 2 and loaded[0] != loaded[1]
    return answer


def without(run, name):
    """An update to a version that lacks a tensor."""
    path = run.where / "lacking"
    shutil.copytree(run.paths[2], path)
    tensors = {n: w for n, w in run.versions[2].items() if n != name}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return {"format": "deltawire/1", "kind": "snapshot", "version": 7, "dir": str(path)}


def test_tensors_that_are_cut_among_ranks(tmp_path):
    """If one rank cannot take a version, none does. They go on with the next."""
    run = Run(tmp_path, "Qwen3")
    first = run.snapshot() | {"dir": str(run.paths[0])}
    run.publish(1)
    update = run.stage()  # not finished: the patch exists
    altered = bytearray(open(update["patch"], "rb").read())
    altered[len(altered) // 2] ^= 4
    (run.where / "altered").write_bytes(altered)
    damaged = update | {"patch": str(run.where / "altered")}
    lacking = without(run, "model.norm.weight")
    last = first | {"dir": str(run.paths[2]), "version": 2, "state": None}
    answer = on_two_ranks(run, {"tensor_parallel_size": 2}, [
        first, [update, damaged], [damaged, update], update, [last, lacking], [lacking, last],
        last])
    errors = [step["error"] for step in answer["steps"]]
    for error, rank, word in zip(errors[1:3] + errors[4:6], (1, 0) * 2,
                                 ("altered",) * 2 + ("model.norm.weight",) * 2):
        assert f"nothing was stored: rank {rank}: " in error and word in error
    assert errors[0] is errors[3] is errors[6] is None
    v0, v1, v2 = answer["loaded"]
    assert [step["has"] for step in answer["steps"]] == [v0, v0, v0, v1, v1, v1, v2]
    whole = sum(w.numel() for w in run.versions[0].values())
    assert sum(answer["held"]) >= whole and max(answer["held"]) < 0.6 * whole
    run.close()


def test_layers_that_are_split_among_ranks(tmp_path):
    """Only the last stage misses the tensor."""
    run = Run(tmp_path, "Qwen3")
    first = run.snapshot() | {"dir": str(run.paths[0])}
    run.publish(1)
    update = run.stage()
    answer = on_two_ranks(run, {"pipeline_parallel_size": 2}, [
        first, without(run, "model.norm.weight"), update])
    errors = [step["error"] for step in answer["steps"]]
    assert errors[0] is errors[2] is None
    assert "nothing was stored: rank 1: the version has no model.norm.weight" in errors[1]
    v0, v1, _ = answer["loaded"]
    assert [step["has"] for step in answer["steps"]] == [v0, v0, v1]
    run.close()
