"""What goes wrong with quantised weights in a vLLM, and layouts that this machine cannot run."""
import contextlib
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
from safetensors.torch import load_file, save_file  # noqa: E402

import deltawire  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
from at_each_line import at_each_line  # noqa: E402
from test_vllm_weights import Engine, Run, parameters  # noqa: E402

from deltawire.vllm import plain, quantised  # noqa: E402

QKV = "model.layers.1.self_attn.qkv_proj"
DOWN = "model.layers.0.mlp.down_proj"
HAS_AMX = torch.cpu._is_amx_tile_supported()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("int8"), "Qwen2-int8")
    yield run, Engine(run.paths[0])
    run.close()


@pytest.fixture
def patched(world):
    """An engine at some version, and a patch to another one."""
    run, engine = world
    engine.update(run.snapshot())
    run.publish(1 - run.which)
    update = run.stage()
    yield run, engine, update
    run.follower.finish()
    engine.update(run.snapshot())  # repairs it
    assert engine.backend._weights.compare(deltawire.Checkpoint(run.where / "dir")) == {}
    assert engine.backend._holds.version == run.follower.version


def layers(engine):
    return {layer.name: layer for layer in engine.backend._weights._layers}


def bits(engine):
    found = {name: p.detach().clone() for name, p in parameters(engine).items()}
    return found | {layer.name: layer.weight().detach().clone()
                    for layer in layers(engine).values()}


def same_bits(a, b):
    return all(torch.equal(a[name].contiguous().view(torch.uint8),
                           b[name].contiguous().view(torch.uint8)) for name in b)


def test_both_kernels_are_in_use(world):
    kinds = {name: type(layer) for name, layer in layers(world[1]).items()}
    assert kinds[DOWN] is quantised.Repacked
    if torch.cpu._is_vnni_supported():
        assert kinds[QKV] is quantised.PackedInt8


@pytest.mark.parametrize("name", [QKV, DOWN])
def test_weights_that_are_not_what_they_were_take_no_patch(patched, name):
    run, engine, update = patched
    layers(engine)[name].weight().view(-1)[5] ^= 1
    before = bits(engine)
    with pytest.raises(Exception, match="proj.*not what the patch replaces"):
        engine.update(update)
    assert same_bits(bits(engine), before)


def test_scales_that_are_not_what_they_were_take_no_patch(patched):
    run, engine, update = patched
    parameters(engine)[QKV + ".weight_scale"].data[3] *= 2
    before = bits(engine)
    with pytest.raises(Exception, match="weight_scale.*not what the patch replaces"):
        engine.update(update)
    assert same_bits(bits(engine), before)


def test_an_update_that_ends_before_the_sums_is_followed_by_a_whole_load(patched, monkeypatch):
    run, engine, update = patched

    def fails(*_):
        raise RuntimeError("as the test wants")

    with monkeypatch.context() as changed:
        changed.setattr(engine.backend._weights, "_finish", fails)
        with pytest.raises(Exception, match="as the test wants"):
            engine.update(update)
    with pytest.raises(Exception, match="not known"):
        engine.update(update)


def test_interrupts_while_it_learns(patched):
    """Layers have other parameters then. The next call puts them back."""
    engine, before = patched[1], bits(patched[1])
    backend, learnt = engine.backend, engine.backend._weights

    def check():
        backend.start_weight_update()
        backend._weights = learnt
        assert same_bits(bits(engine), before)

    at_each_line(lambda: backend._learn(learnt.table), check, 10,
                 file=("quantised.py", "shadows.py", "undo.py"))


def test_wrong_sums_are_found(patched):
    run, engine, _ = patched
    layer = layers(engine)[QKV]
    if type(layer) is not quantised.PackedInt8:
        pytest.skip("this processor has no AVX-512 VNNI: vLLM keeps no sums")
    layer._blocks(layer.module.weight)[1][2, 7] += 128
    wrong = engine.backend._weights.compare(deltawire.Checkpoint(run.paths[1 - run.which]))
    assert wrong == {QKV + ".weight": 1}


def test_scales_of_another_type_are_loaded_anew(patched, tmp_path):
    """vLLM keeps them as float32, checkpoints often as bfloat16."""
    run, engine, update = patched
    paths = [tmp_path / "0", tmp_path / "1"]
    for path, which in zip(paths, (1 - run.which, run.which)):
        path.mkdir()
        save_file({name: w.to(torch.bfloat16) if name.endswith("_scale") else w
                   for name, w in run.versions[which].items()}, path / "model.safetensors")
    live = load_file(paths[0] / "model.safetensors")
    new = load_file(paths[1] / "model.safetensors")
    url, learnt = f"file://{tmp_path}/run", engine.backend._weights
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(deltawire.Publisher(url, live))
        follower = stack.enter_context(
            deltawire.Follower(url, into=tmp_path / "dir", report=False))
        follower.sync()
        snapshot = {"format": "deltawire/1", "kind": "snapshot", "version": 0,
                    "state": follower.state, "dir": str(tmp_path / "dir")}
        engine.update(snapshot)
        assert set(engine.backend._weights.reasons) == {n for n in live if "_scale" in n}
        for name, w in new.items():
            live[name].copy_(w)
        publisher.wait(publisher.publish())
        follower.stage()
        follower.prepare()
        patch = update | {"from_version": 0, "version": 1, "dir": str(tmp_path / "dir"),
                          "patch": follower.staged_path}
        follower.apply()
        engine.update(patch)
        follower.finish()
        scale = parameters(engine)[DOWN + ".weight_scale"]
        assert torch.equal(scale, new[DOWN + ".weight_scale"].float())
        patched_tokens = engine.serves()
        engine.update(snapshot | {"version": 1, "state": follower.state})
        assert engine.serves() == patched_tokens
    engine.backend._weights = learnt
    engine.backend._holds = type(engine.backend._holds)()


def test_a_layout_that_is_not_known_is_refused_by_name(world, monkeypatch):
    _, engine = world
    model = engine.worker.get_model()
    plain.check(model)
    module = model.get_submodule(DOWN)
    kept = module.__dict__.pop("deltawire_kept")  # as vLLM packs it without this back end
    try:
        with pytest.raises(RuntimeError, match=f"{DOWN}.*CPUInt8ScaledMMLinearKernel"):
            engine.update({"format": "deltawire/1", "kind": "snapshot", "version": 0,
                           "dir": "/nowhere"})
    finally:
        module.deltawire_kept = kept

    class GroupedKernel:
        pass

    monkeypatch.setattr(model.get_submodule(QKV).scheme, "kernel", GroupedKernel())
    with pytest.raises(RuntimeError, match=f"{QKV}.*GroupedKernel.*layout"):
        plain.check(model)


# ---- fp8 blocks --------------------------------------------------------------------------


@pytest.fixture
def fp8(tmp_path, monkeypatch):
    """vLLM serves fp8 blocks only on processors with AMX. It loads and packs them elsewhere too,
    but must not generate."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    run = Run(tmp_path, "Qwen3-fp8")
    yield run
    run.close()


def test_fp8_blocks_are_patched_in_their_packed_form(fp8):
    engine = Engine(fp8.paths[0])
    weights = engine.backend._weights
    assert {type(layer) for layer in layers(engine).values()} == {quantised.PackedFp8}
    assert weights.reasons == {}
    assert weights.layout.held == {name: w.numel() for name, w in fp8.versions[0].items()}
    first = bits(engine)
    engine.update(fp8.snapshot())
    assert same_bits(bits(engine), first)
    for which in (1, 2):
        fp8.publish(which)
        engine.update(fp8.stage())
        fp8.follower.finish()
        fresh = bits(Engine(fp8.paths[which]))
        assert same_bits(bits(engine), fresh) and not same_bits(fresh, first)


def test_an_fp8_engine_generates_what_a_fresh_one_does(fp8):
    if not HAS_AMX:
        pytest.skip("this processor has no AMX, which vLLM's fp8 kernels need")
    engine = Engine(fp8.paths[0])
    engine.update(fp8.snapshot())
    fp8.publish(1)
    engine.update(fp8.stage())
    fp8.follower.finish()
    assert engine.serves() == Engine(fp8.paths[1]).serves()


# ---- fp8 rows ----------------------------------------------------------------------------


def test_fp8_rows_are_patched_as_they_are(tmp_path):
    """PyTorch's kernel keeps them transposed, as kernels for GPUs do."""
    run = Run(tmp_path, "Qwen3-fp8rows")
    engine = Engine(run.paths[0])
    weights = engine.backend._weights
    assert {type(layer) for layer in layers(engine).values()} == {quantised.Layer}
    assert parameters(engine)[QKV + ".weight"].stride(0) == 1
    assert weights.reasons == {}
    assert weights.held == {name: w.numel() for name, w in run.versions[0].items()}
    first = bits(engine)
    engine.update(run.snapshot())
    assert same_bits(bits(engine), first)
    for which in (1, 2):
        run.publish(which)
        engine.update(run.stage())
        run.follower.finish()
        assert weights.compare(deltawire.Checkpoint(run.paths[which])) == {}
    fresh = bits(Engine(run.paths[2]))
    assert same_bits(bits(engine), fresh) and not same_bits(fresh, first)
    run.close()
