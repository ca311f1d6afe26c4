"""src/quant gives the bits of a quantiser that is written in PyTorch.

DW_QUANTIZE_DRIVER names the program made of quantize_driver.c; build/tests/quantize_driver
by default.
"""
import json
import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
import safetensors.torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = os.environ.get("DW_QUANTIZE_DRIVER",
                        str(ROOT / "build" / "tests" / "quantize_driver"))
SHARED = pathlib.Path(os.environ.get("DW_SHARED", ROOT.parent / "shared"))
SCHEMES = ["fp8-block", "fp8-row", "int8-row"]
TINY = torch.finfo(torch.float32).tiny


def scales_of(largest, limit):
    scales = (largest / torch.tensor(limit)).clamp(min=TINY)
    return torch.where(largest == 0, torch.ones_like(scales), scales)


def rounded(quotient, scheme):
    if scheme == "int8-row":
        return torch.round(quotient).clamp(-127, 127).to(torch.int8)
    return quotient.clamp(-448, 448).to(torch.float8_e4m3fn)


def quantised_rows(x, scheme):
    scales = scales_of(x.abs().amax(dim=-1, keepdim=True),
                       127.0 if scheme == "int8-row" else 448.0)
    return rounded(x / scales, scheme), scales


def quantised_blocks(x):
    """A matrix, padded to whole blocks with zeros."""
    rows, columns = x.shape
    down, across = -(-rows // 128), -(-columns // 128)
    padded = torch.zeros(down * 128, across * 128)
    padded[:rows, :columns] = x
    blocks = padded.view(down, 128, across, 128)
    scales = scales_of(blocks.abs().amax(dim=(1, 3)), 448.0)
    values = rounded(blocks / scales[:, None, :, None], "fp8-block")
    return values.view(down * 128, across * 128)[:rows, :columns].contiguous(), scales


def quantised(tensor, scheme, from_f32=False):
    if tensor.dtype == torch.float32 and not from_f32:
        tensor = tensor.bfloat16()
    x = tensor.float()
    if scheme != "fp8-block":
        return quantised_rows(x, scheme)
    if x.dim() == 2:
        return quantised_blocks(x)
    parts = [quantised_blocks(matrix) for matrix in x]
    return torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts])


def run(tmp_path, tensors, scheme, *more):
    safetensors.torch.save_file(tensors, tmp_path / "in.safetensors")
    done = subprocess.run([DRIVER, scheme, tmp_path / "in.safetensors",
                           tmp_path / "out.safetensors", *more], capture_output=True,
                          text=True)
    if done.returncode != 0:
        return done.stderr
    return safetensors.torch.load_file(tmp_path / "out.safetensors")


def same_bits(a, b):
    return (a.dtype == b.dtype and a.shape == b.shape and
            torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def check(tmp_path, tensors, scheme, chosen, *more):
    out = run(tmp_path, tensors, scheme, *more)
    assert isinstance(out, dict), out
    suffix = "_scale_inv" if scheme == "fp8-block" else "_scale"
    assert sorted(out) == sorted(list(tensors) + [name + suffix for name in chosen])
    for name, tensor in tensors.items():
        if name in chosen:
            values, scales = quantised(tensor, scheme, "f32" in more)
            assert same_bits(out[name], values), name
            assert same_bits(out[name + suffix], scales), name
        else:
            assert same_bits(out[name], tensor), name


def weights(*shape, dtype=torch.bfloat16, seed=0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.03).to(dtype)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_shapes(tmp_path, scheme, dtype):
    shapes = [(1, 1), (128, 128), (127, 129), (200, 384), (257, 100), (3, 1000)]
    tensors = {f"layers.{i}.weight": weights(*shape, dtype=dtype, seed=i)
               for i, shape in enumerate(shapes)}
    tensors["layers.0.mlp.experts.gate_up_proj"] = weights(3, 150, 130, dtype=dtype, seed=9)
    chosen = list(tensors)
    tensors |= {"embed_tokens.weight": weights(50, 8, dtype=dtype),
                "layers.0.mlp.gate.weight": weights(4, 8, dtype=dtype),
                "norm.weight": weights(8, dtype=dtype), "steps": torch.tensor([3])}
    check(tmp_path, tensors, scheme, chosen)
    if dtype == torch.float32:
        check(tmp_path, tensors, scheme, chosen, "f32")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_bf16(tmp_path, scheme):
    """All finite numbers, with maxima of every size beside them."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    finite = patterns[torch.isfinite(patterns.float())]
    by_size = finite[finite.float().abs().argsort(stable=True)]
    n = by_size.numel() // 128 * 128
    tensors = {"every.weight": by_size[:n].reshape(-1, 128).clone(),
               "mixed.weight": by_size[:n].reshape(128, -1).clone(),
               "last.weight": by_size[-256:].reshape(2, 128).clone()}
    check(tmp_path, tensors, scheme, list(tensors))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_halfway(tmp_path, scheme):
    """Quotients that lie halfway between two values, and next to that."""
    exact = torch.arange(-448, 449, dtype=torch.float32)
    halves = torch.cat([exact, exact / 2, exact / 4, exact / 1024,
                        torch.nextafter(exact / 2, torch.tensor(9999.0)),
                        torch.nextafter(exact / 4, torch.tensor(-9999.0))])
    halves = torch.cat([halves, torch.tensor([448.0, 127.0])])
    tensors = {"fp8.weight": halves[None], "int8.weight": halves[None].clamp(-127, 127)}
    check(tmp_path, tensors, scheme, list(tensors), "f32")
    check(tmp_path, tensors, scheme, list(tensors))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zeros_and_tiny(tmp_path, scheme):
    x = torch.zeros(256, 256, dtype=torch.bfloat16)
    x[128:, :128] = 1e-40  # whose scale would be subnormal
    x[130, 3] = -1e-39
    x[0, 128] = -0.0
    x[128, 128:] = 2.0 ** -126
    check(tmp_path, {"x.weight": x}, scheme, ["x.weight"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_trace(tmp_path, scheme):
    base = SHARED / "data" / "rl-trace" / "base"
    if not base.is_dir():
        pytest.skip(f"no trace at {base}")
    tensors = {}
    for file in sorted(base.glob("*.safetensors")):
        tensors |= safetensors.torch.load_file(file)
    check(tmp_path, tensors, scheme,
          [n for n, t in tensors.items() if t.dim() == 2 and "embed" not in n])


def test_patterns(tmp_path):
    tensors = {"a.weight": weights(4, 4), "b.weight": weights(4, 4, seed=1),
               "embed.weight": weights(4, 4, seed=2)}
    check(tmp_path, tensors, "fp8-row", ["b.weight", "embed.weight"], "keep=a.*",
          "convert=embed.*", "convert=a.weight")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_not_finite(tmp_path, scheme, value):
    x = weights(200, 200)
    x[150, 199] = value
    error = run(tmp_path, {"x.weight": x}, scheme)
    assert "not finite: tensor 'x.weight': element 30199 is " in error


def test_refused(tmp_path):
    x = weights(4, 4)
    assert "'x.weight_scale_inv': it has the name of the scales" in run(
        tmp_path, {"x.weight": x, "x.weight_scale_inv": x.clone()}, "fp8-block")
    assert "quantised already" in run(
        tmp_path, {"x.weight": x, "y.weight": x.to(torch.float8_e4m3fn)}, "fp8-block")
    assert "'q*' of tensors to keep matches no matrix" in run(
        tmp_path, {"x.weight": x}, "fp8-block", "keep=q*")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_config(tmp_path, scheme):
    safetensors.torch.save_file(
        {"model.layers.0.q_proj.weight": weights(4, 4), "model.embed_tokens.weight": weights(4, 4),
         "model.layers.0.mlp.gate.weight": weights(4, 4), "model.norm.weight": weights(4)},
        tmp_path / "in.safetensors")
    config = {"model_type": "qwen3", "rms_norm_eps": 1e-06, "rope": {"theta": 1000000.5}}
    (tmp_path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    done = subprocess.run([DRIVER, scheme, tmp_path / "in.safetensors", "-",
                           f"config={tmp_path}/config.json"], capture_output=True, text=True,
                          check=True)
    new = json.loads(done.stdout)
    added = new.pop("quantization_config")
    assert new == config
    kept = added["modules_to_not_convert" if scheme == "fp8-block" else "ignore"]
    assert kept == ["lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"]
