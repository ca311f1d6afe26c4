"""TRL's delta layouts: the library's files equal those of an independent writer with the stock
safetensors package, and the library applies that writer's files."""
import json
import struct

import numpy
import pytest
import safetensors

import decoder
import dwlib
from decoder import BITS, Tensor
from make_models import change, tensor, weights
from peer_writers import LAYOUTS, stock_save, trl_delta

OURS = {"base_version", "base_digest", "new_digest", "elements", "tensors", "changed", "seal"}


@pytest.fixture(params=["few", "one", "many", "none"])
def model(request):
    random = numpy.random.default_rng(list(request.param.encode()))
    density = {"few": 0.0125, "one": 0, "many": 0.7, "none": 0}[request.param]
    base, new = {}, {}
    for name, n, dtype in (("model.embed.weight", 200_000, "BF16"), ("lm_head", 3000, "BF16"),
                           ("norm", 128, "F32"), ("scale", 40, "F8_E4M3")):
        old = weights(random, dtype, n)
        next_ = change(random, dtype, old, density, "step")
        if request.param in ("one", "few") and n > 100_000:  # a gap beyond 16 bits
            next_[5:150_000] = old[5:150_000]
            next_[150_000] ^= 1
        base[name], new[name] = tensor(dtype, old), tensor(dtype, next_)
    return base, new


def parts_of(content):
    """The file as the stock package reads it: metadata, {name: (dtype, shape, bytes)}"""
    (n,) = struct.unpack_from("<Q", content)
    metadata = json.loads(content[8:8 + n])["__metadata__"]
    return metadata, {name: (t["dtype"], t["shape"], bytes(t["data"]))
                      for name, t in safetensors.deserialize(content)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_we_write_what_trl_writes(model, layout):
    base, new = model
    ours, our_parts = parts_of(dwlib.diff(base, new, layout, base_version=6, new_version=7))
    theirs, their_parts = parts_of(trl_delta(base, new, layout, 7))
    assert our_parts == their_parts
    assert {key: ours[key] for key in ours.keys() - OURS} == theirs
    assert OURS <= ours.keys()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_we_add(model, layout):
    """The keys of FORMAT.md section 11, with digests by the independent decoder."""
    base, new = model
    metadata, _ = parts_of(dwlib.diff(base, new, layout, base_version=6, new_version=7))
    digests = [{name: decoder.digest(t.data) for name, t in m.items()} for m in (base, new)]
    assert metadata["base_version"] == "6"
    assert metadata["tensors"] == str(len(base))
    assert metadata["elements"] == str(sum(len(t.data) * 8 // BITS[t.dtype]
                                           for t in base.values()))
    for key, tensors, values in zip(("base_digest", "new_digest"), model, digests):
        assert metadata[key] == f"{decoder.state_digest(tensors, values):016x}"
    assert json.loads(metadata["changed"]) == {
        name: {"dtype": t.dtype, "shape": list(t.shape), "base": f"{digests[0][name]:016x}",
               "new": f"{digests[1][name]:016x}"}
        for name, t in base.items() if t != new[name]}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by_trl", [True, False])
def test_the_library_applies_and_recodes(model, layout, by_trl):
    base, new = model
    content = (trl_delta(base, new, layout, 7) if by_trl else
               dwlib.diff(base, new, layout, base_version=6, new_version=7))
    info = dwlib.Delta(content).info()
    assert (info.has_digests, info.base_version, info.new_version) == (not by_trl, 6, 7)
    assert dwlib.apply(base, content) == new
    for codec in dwlib.CODECS:
        again = dwlib.recode(base, content, codec)
        assert again == dwlib.diff(base, new, codec, base_version=6, new_version=7)
        assert dwlib.apply(base, again) == new


@pytest.mark.parametrize("layout", LAYOUTS)
def test_altered_values_are_refused_in_our_files(layout):
    random = numpy.random.default_rng(1)
    old = weights(random, "BF16", 500)
    base = {"w": tensor("BF16", old)}
    new = {"w": tensor("BF16", change(random, "BF16", old, 0.1, "step"))}
    content = dwlib.diff(base, new, layout)
    (n,) = struct.unpack_from("<Q", content)
    for bit in range(8 * (8 + n), 8 * len(content)):
        altered = bytearray(content)
        altered[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(dwlib.Failed):
            dwlib.apply(base, bytes(altered))
    with pytest.raises(dwlib.Failed) as caught:
        dwlib.apply(new, content)
    assert caught.value.code == "stale"


def trl_file(layout, indices, index_dtype="I32", values_dtype="BF16", n_values=None, **metadata):
    index_suffix, values_suffix, encoding = LAYOUTS[layout]
    code = {"I32": "i", "U16": "H", "U32": "I"}[index_dtype]
    n, n_values = len(indices), len(indices) if n_values is None else n_values
    parts = {"w" + index_suffix: Tensor(index_dtype, (n,), struct.pack(f"<{n}{code}", *indices)),
             "w" + values_suffix: Tensor(values_dtype, (n_values,),
                                         bytes(BITS[values_dtype] // 8 * n_values))}
    return stock_save(parts, {"format": "sparse_weight_patch", "version": "1", "sparse": "True",
                              "model_version": "3", **({"encoding": encoding} if encoding else {}),
                              **metadata})


BAD = {
    "descending": trl_file("raw", [4, 3]),
    "twice": trl_file("raw-v1", [4, 4]),
    "negative": trl_file("raw", [-1, 3]),
    "past the end": trl_file("raw", [0, 10]),
    "gap past the end": trl_file("gap", [4, 5], "U16"),
    "wide gap past the end": trl_file("gap", [4, 0xFFFFFFFF], "U32"),
    "gaps as I32": trl_file("gap", [4, 4]),
    "raw as U32": trl_file("raw", [4, 5], "U32"),
    "another type": trl_file("raw", [4], values_dtype="F16"),
    "fewer values": trl_file("raw", [4, 5], n_values=1),
    "an anchor": trl_file("raw", [4], sparse="False"),
    "nvcomp": trl_file("raw", [4], encoding="nvcomp_cascaded"),
    "names of v1, encoding of v3": trl_file("raw-v1", [4], encoding="raw"),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_bad_files(content):
    base = {"w": Tensor("BF16", (10,), bytes(range(20)))}
    good = trl_file("raw", [4, 9])
    assert dwlib.apply(base, good)["w"].data[8:10] == b"\0\0"
    with pytest.raises(dwlib.Failed):
        dwlib.apply(base, content)
