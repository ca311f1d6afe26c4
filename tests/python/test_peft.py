"""Models with adapters of PEFT are published merged: a follower has the bits of merge_and_unload() of
a copy, and a plain checkpoint. The model that trains keeps its own bits."""
import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

import deltawire as dw  # noqa: E402
import deltawire.torch  # noqa: E402
import qwen3  # noqa: E402
from deltawire._companions import saved_files  # noqa: E402

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS = {
    "lora": {"target_modules": ["q_proj", "v_proj"]},
    "rslora": {"target_modules": ALL, "use_rslora": True},
    "dora": {"target_modules": ALL, "use_dora": True},
    "bias": {"target_modules": ["q_proj"], "bias": "all"},
    "modules_to_save": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "norms": {"target_modules": ["up_proj"], "modules_to_save": ["norm"]},
    "embedding": {"target_modules": ["embed_tokens", "o_proj"]},
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "both_ends": {"target_modules": ["lm_head", "embed_tokens"]},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 5]},
}


def adapted(kind, dtype=torch.float32, **changes):
    model = qwen3.make(**changes).to(dtype)
    torch.manual_seed(1)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=4, lora_alpha=8, init_lora_weights=False, **KINDS[kind]))
    with torch.no_grad():  # PEFT begins with the original tokens
        for name, tensor in model.named_parameters():
            if "trainable_tokens_delta" in name:
                tensor.add_(torch.randn_like(tensor) / 10)
    return model


def merged(model):
    """What a stream should have: by PEFT itself, on a copy."""
    plain = copy.deepcopy(model).merge_and_unload()
    return {name: (tensor.detach().to(torch.bfloat16) if tensor.dtype == torch.float32
                   else tensor.detach())
            for name, tensor in deltawire.torch.named_tensors(plain).items()}


def bits(tensors):
    return {name: tensor.detach().contiguous().view(torch.uint8).clone()
            for name, tensor in tensors.items()}


def same(a, b):
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def pulled(url, into, version=None):
    with dw.Follower(url, into=into, report=False) as follower:
        follower.sync(version)
    with dw.Checkpoint(into) as checkpoint:
        return bits({name: torch.from_dlpack(t) for name, t in checkpoint.items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_bits_are_those_of_merge_and_unload(url, tmp_path, kind, dtype):
    model = adapted(kind, dtype)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    with deltawire.torch.Publisher(model, optimizer, url=url) as publisher:
        expected = {0: bits(merged(model))}
        for step in range(3):
            before = bits(model.state_dict())
            publisher.publish()
            publisher.wait()
            same(bits(model.state_dict()), before)  # publishing changes nothing
            qwen3.train(model, optimizer, step)
            expected[publisher.wait().version] = bits(merged(model))
    assert len({version.state for version in dw.Stream(url).versions()}) == len(expected) == 4
    for version, tensors in expected.items():
        same(pulled(url, tmp_path / f"{version}", version), tensors)


@pytest.mark.parametrize("kind", ["dora", "modules_to_save", "embedding"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_transformers_loads_it_with_nothing_missing(url, tmp_path, kind):
    model = adapted(kind).eval()
    with saved_files(model, None, torch.bfloat16) as files:
        deltawire.torch.Publisher(model, url=url, files=files).close()
    with dw.Follower(url, into=tmp_path / "into", report=False) as follower:
        follower.sync()
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "into", dtype=torch.bfloat16, output_loading_info=True)
    assert not any(report.values()), report
    plain = copy.deepcopy(model).merge_and_unload().to(torch.bfloat16)
    assert type(loaded) is type(plain)
    same(bits(loaded.state_dict()), bits(plain.state_dict()))


def test_only_what_changed_is_merged(url, monkeypatch):
    model = adapted("rslora")
    n_merged = []
    unit = deltawire._peft.Unit
    plain = unit.merged
    monkeypatch.setattr(unit, "merged", lambda self, rows: (n_merged.append(self),
                                                            plain(self, rows))[1])
    for name, tensor in model.named_parameters():
        tensor.requires_grad_("layers.1.mlp.up_proj.lora" in name)
    with deltawire.torch.Publisher(model, url=url) as publisher:
        publisher.publish()  # notes what is frozen
        publisher.wait()
        n_merged.clear()
        with torch.no_grad():
            model.get_parameter("base_model.model.model.layers.1.mlp.up_proj.lora_A.default.weight"
                                ).add_(1)
        publisher.publish()
        assert len(n_merged) == 1
        assert publisher.wait().n_changed > 0
        n_merged.clear()
        for module in model.modules():
            if hasattr(module, "set_scale"):
                module.set_scale("default", 3)  # leaves no trace in a tensor
        publisher.publish()
        assert len(n_merged) == 14
        publisher.wait()
    into = {name: torch.zeros_like(t) for name, t in merged(model).items()}
    with dw.Follower(url, tensors=into) as follower:
        follower.sync()
    same(bits(into), bits(merged(model)))


def test_the_active_adapter_is_published(url):
    model = adapted("lora")
    model.add_adapter("other", peft.LoraConfig(r=2, init_lora_weights=False,
                                               target_modules=["q_proj", "v_proj"]))
    with deltawire.torch.Publisher(model, url=url) as publisher:
        model.set_adapter("other")
        publisher.publish()
        publisher.wait()
        into = {name: torch.zeros_like(t) for name, t in merged(model).items()}
        with dw.Follower(url, tensors=into) as follower:
            follower.sync()
        same(bits(into), bits(merged(model)))
        model.add_adapter("third", peft.LoraConfig(target_modules=["o_proj"]))
        with pytest.raises(RuntimeError, match="o_proj.weight' .*make a new publisher"):
            publisher.publish()


def test_what_cannot_be_merged_is_refused(url, tmp_path):
    model = adapted("lora")
    with pytest.raises(ValueError, match="adapter=: an adapter is no stream of its own yet"):
        deltawire.torch.Publisher(model, url=url, adapter="default")
    prompts = peft.get_peft_model(qwen3.make(), peft.PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ValueError, match="PromptTuningConfig of PEFT adds prompts"):
        deltawire.torch.Publisher(prompts, url=url)
    deltawire.torch.Publisher(qwen3.make(), url=url).close()
    with pytest.raises(ValueError, match="has adapters of PEFT, and a stream has merged weights"):
        deltawire.torch.Follower(model, url)
