"""Quantised publish against a quantiser in plain PyTorch, bit for bit."""
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")

import deltawire as dw  # noqa: E402
import deltawire.torch  # noqa: E402

SCHEMES = ["fp8-block", "fp8-row", "int8-row"]


def scale_of(most, limit):
    scale = (most / torch.tensor(float(limit))).clamp(min=2.0**-126)
    return torch.where(most == 0, torch.ones_like(scale), scale)


def quantise(matrix, scheme):
    """One matrix of float32: its elements and scales."""
    rows, columns = matrix.shape
    limit = 127 if scheme == "int8-row" else 448
    if scheme == "fp8-block":
        scales = torch.empty((rows + 127) // 128, (columns + 127) // 128)
        spread = torch.empty_like(matrix)
        for i in range(scales.shape[0]):
            for k in range(scales.shape[1]):
                block = (slice(128 * i, 128 * i + 128), slice(128 * k, 128 * k + 128))
                scales[i, k] = scale_of(matrix[block].abs().max(), limit)
                spread[block] = scales[i, k]
    else:
        scales = scale_of(matrix.abs().amax(1, keepdim=True), limit)
        spread = scales.expand_as(matrix)
    if scheme == "int8-row":
        return torch.round(matrix / spread).clamp(-127, 127).to(torch.int8), scales
    return (matrix / spread).clamp(-448, 448).to(torch.float8_e4m3fn), scales


def expected(tensors, scheme, chosen, from_f32=False):
    """The quantised model."""
    out = {}
    suffix = "_scale_inv" if scheme == "fp8-block" else "_scale"
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        if name not in chosen:
            out[name] = tensor.bfloat16()
            continue
        wide = tensor.float() if from_f32 else tensor.bfloat16().float()
        matrices = wide.reshape(-1, *wide.shape[-2:])
        stack = [quantise(matrix, scheme) for matrix in matrices]
        weights, scales = (torch.stack([pair[i] for pair in stack]) for i in (0, 1))
        out[name] = weights.reshape(wide.shape)
        out[name + suffix] = scales.reshape(*wide.shape[:-2], *scales.shape[-2:])
    return out


def raw(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy()


def check(url, tmp_path, wanted):
    into = tmp_path / f"pulled-{len(list(tmp_path.iterdir()))}"
    with dw.Follower(url, into=into) as follower:
        follower.sync()
    with dw.Checkpoint(into / "model.safetensors") as found:
        assert set(found) == set(wanted)
        for name, tensor in wanted.items():
            view = torch.from_dlpack(found[name])
            assert view.dtype == tensor.dtype and view.shape == tensor.shape, name
            assert np.array_equal(raw(view), raw(tensor)), name


class Experts(torch.nn.Module):
    """Experts as one tensor, as transformers keeps them."""

    def __init__(self):
        super().__init__()
        self.down_proj = torch.nn.Parameter(torch.randn(3, 70, 150) * 0.02)


class Model(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(50, 200)
        self.q_proj = torch.nn.Linear(200, 300)
        self.experts = Experts()
        self.gate = torch.nn.Linear(200, 3, bias=False)
        self.norm = torch.nn.LayerNorm(200)
        self.lm_head = torch.nn.Linear(200, 50, bias=False)
        self.lm_head.weight = self.embed_tokens.weight  # tied
        self.to(dtype)


CHOSEN = {"q_proj.weight", "experts.down_proj"}


def step(model, size=1e-3):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * size


@pytest.mark.parametrize("from_f32", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_equals_pytorch(url, tmp_path, scheme, dtype, from_f32):
    if dtype == torch.float16 and from_f32:
        pytest.skip("nothing is float32")
    model = Model(dtype)
    options = dict(quantize=scheme, quantize_from_f32=from_f32)

    def wanted():
        names = {n: t for n, t in deltawire.torch.named_tensors(model).items()}
        out = expected(names, scheme, CHOSEN, from_f32 or dtype == torch.float16)
        return out if dtype != torch.float16 else {
            name: names[name].detach() if name in names and name not in CHOSEN else tensor
            for name, tensor in out.items()}

    with deltawire.torch.Publisher(model, url=url, **options) as publisher:
        check(url, tmp_path, wanted())
        for size in (0, 1e-5, 1e-3, 1):
            step(model, size)
            publisher.publish()
            publisher.wait()
            check(url, tmp_path, wanted())
    with dw.Stream(url) as stream:
        assert stream.quantized == (scheme, "none" if from_f32 else "bf16")
    step(model)
    with deltawire.torch.Publisher(model, url=url, **options):  # goes on after a restart
        check(url, tmp_path, wanted())
    with pytest.raises(dw.Mismatch, match=f"quantised as {scheme}"):
        deltawire.torch.Publisher(model, url=url)


def test_copies_of_float32_stay_float32(url, tmp_path):
    """A tensor that is not contiguous is copied, and quantised as the others are."""
    wide = torch.randn(150, 200).t()
    assert not wide.is_contiguous()
    for from_f32 in (False, True):
        where = f"{url}-{from_f32}"
        with deltawire.torch.Publisher({"x.weight": wide}, url=where, quantize="fp8-block",
                                       quantize_from_f32=from_f32):
            check(where, tmp_path,
                  expected({"x.weight": wide}, "fp8-block", {"x.weight"}, from_f32))


def test_all_bf16_numbers(url, tmp_path):
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    bits = bits[bits.isfinite()]
    for scheme in SCHEMES:
        for width in (1, 3, 128, 255):
            name = f"{width}.weight"
            model = {name: bits[:bits.numel() // width * width].reshape(-1, width).clone()}
            where = f"{url}-{scheme}-{width}"
            with deltawire.torch.Publisher(model, url=where, quantize=scheme):
                check(where, tmp_path, expected(model, scheme, {name}))


def test_not_finite(url, tmp_path):
    model = {"a.weight": torch.randn(130, 40).bfloat16()}
    good = model["a.weight"].clone()
    with deltawire.torch.Publisher(model, url=url, quantize="fp8-block") as publisher:
        for bad in (float("nan"), float("inf"), -float("inf")):
            model["a.weight"][129, 7] = bad
            publisher.publish()
            with pytest.raises(dw.Invalid, match="a.weight") as raised:
                publisher.wait()
            assert raised.value.code == "not finite"
            assert publisher.version == 0
        model["a.weight"][:] = good * 2
        publisher.publish()
        publisher.wait()
        assert publisher.version == 1
        check(url, tmp_path, expected(model, "fp8-block", {"a.weight"}))


def test_follower_with_the_trainers_model(url):
    model = {"a.weight": torch.randn(40, 30).bfloat16()}
    with deltawire.torch.Publisher(model, url=url, quantize="fp8-row"):
        with pytest.raises(dw.Mismatch, match="the stream is quantised as fp8-row"):
            deltawire.torch.Follower(model, url)


def test_patterns(url, tmp_path):
    model = {name: torch.randn(40, 30).bfloat16()
             for name in ("a.weight", "b.weight", "lm_head.weight")}
    with deltawire.torch.Publisher(model, url=url, quantize="int8-row",
                                   quantize_keep=["b.*"], quantize_also=["lm_head.weight"]):
        check(url, tmp_path, expected(model, "int8-row", {"a.weight", "lm_head.weight"}))


@pytest.mark.parametrize("options, error", [
    (dict(quantize="fp8"), ValueError),
    (dict(quantize="none"), ValueError),
    (dict(quantize=8), TypeError),
    (dict(quantize_keep=["a"]), ValueError),
    (dict(quantize_from_f32=True), ValueError),
    (dict(quantize="fp8-row", quantize_keep="a.*"), TypeError),
    (dict(quantize="fp8-row", quantize_keep=[1]), TypeError),
    (dict(quantize="fp8-row", quantize_keep=["none.such"]), dw.Error),
    (dict(quantize="fp8-row", quantize_keep=["*"]), dw.Error),  # nothing is left
    (dict(quantize="fp8-row", base_name="base"), dw.Error),
])
def test_refused(url, options, error):
    with pytest.raises(error):
        dw.Publisher(url, {"a.weight": torch.randn(8, 8).bfloat16()}, **options)


@pytest.mark.parametrize("given, text", [
    ([3], "quantize_also: 3 is not a string"),
    (3, "quantize_also: a list of patterns, not 3"),
])
def test_names_the_argument(url, given, text):
    with pytest.raises(TypeError, match=text):
        dw.Publisher(url, {"a.weight": torch.randn(8, 8).bfloat16()}, quantize="fp8-row",
                     quantize_also=given)


def test_quantised_already(url):
    model = {"a.weight": torch.randn(8, 8).to(torch.float8_e4m3fn)}
    with pytest.raises(dw.Error, match="quantised already"):
        dw.Publisher(url, model, quantize="fp8-row")
    model = {"a.weight": torch.randn(8, 8).bfloat16(), "a.weight_scale": torch.randn(8, 1)}
    with pytest.raises(dw.Error, match="a.weight_scale"):
        dw.Publisher(url, model, quantize="fp8-row")
