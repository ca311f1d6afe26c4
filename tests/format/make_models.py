"""Random models and changes for the tests, of every type."""
import math

import numpy

from decoder import DTYPES, Tensor

ROW = {row[0]: row for row in DTYPES}
KINDS = ("step", "few steps", "redraw", "any bits", "sign")


def unit_type(dtype):
    return numpy.dtype(f"<u{ROW[dtype][2]}")


def weights(random, dtype, n):
    """n units that look like weights, as bit patterns."""
    _, _, width, mantissa = ROW[dtype]
    values = random.normal(0, 0.02, n)
    if not mantissa:
        return random.integers(0, 256, n * width, dtype="u1").view(unit_type(dtype))
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    if width > 1:
        return values.astype(f"<f{width}").view(unit_type(dtype))
    return (random.integers(0, 2, n) << 7 | random.binomial(127, 0.5, n)).astype("u1")


def change(random, dtype, old, density, kind):
    """Changes about density * n units."""
    hit = random.random(old.size) < density
    if kind == "step":
        new = old + random.choice(numpy.array([1, -1]).astype(old.dtype), old.size)
    elif kind == "few steps":
        new = old + random.geometric(0.3, old.size).astype(old.dtype)
    elif kind == "redraw":
        new = weights(random, dtype, old.size)
    elif kind == "any bits":
        new = random.integers(0, 256, old.nbytes, dtype="u1").view(old.dtype)
    else:
        new = old ^ old.dtype.type(1 << 8 * old.dtype.itemsize - 1)
    return numpy.where(hit, new, old)


def tensor(dtype, units, shape=None):
    if shape is None:
        shape = (units.nbytes * 8 // ROW[dtype][1],)
    return Tensor(dtype, tuple(shape), units.tobytes())


def pair(random, dtype, shape, density, kind):
    """-> old and new Tensor"""
    n_units = math.prod(shape) * ROW[dtype][1] // 8 // ROW[dtype][2]
    old = weights(random, dtype, n_units)
    new = change(random, dtype, old, density, kind)
    return tensor(dtype, old, shape), tensor(dtype, new, shape)
