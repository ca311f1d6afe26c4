"""Computes the results of `deltawire stats` with numpy, slowly, from its documentation.

docs/deltawire.1 defines what is measured.
"""
import collections
import math
import re

import numpy as np

# name: bytes of a unit, mantissa bits, exponent bits; no exponent: one class, no ulps
FLOATS = {"BF16": (2, 7, 8), "F16": (2, 10, 5), "F32": (4, 23, 8), "C64": (4, 23, 8),
          "F8_E4M3": (1, 3, 4), "F8_E5M2": (1, 2, 5), "F8_E4M3FNUZ": (1, 3, 4),
          "F8_E5M2FNUZ": (1, 2, 5)}
WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8,
          "I64": 8, "F64": 8, "F8_E8M0": 1, "F6_E2M3": 1, "F6_E3M2": 1, "F4": 1}


def width_of(dtype):
    return FLOATS[dtype][0] if dtype in FLOATS else WIDTHS[dtype]


def units(t):
    return np.frombuffer(t.data, f"<u{width_of(t.dtype)}").astype(np.uint64)


def xlogx(k, n):
    """k log2(n / k), 0 if k is 0"""
    k, n = np.asarray(k, float), np.asarray(n, float)
    return np.where(k > 0, k * np.log2(np.maximum(n, 1) / np.maximum(k, 1)), 0)


def mask_bits(n, k):
    return float(np.sum(xlogx(k, n) + xlogx(np.asarray(n) - k, n)))


# ---- elements ----

def exponents(dtype, x):
    if dtype not in FLOATS:
        return np.zeros(len(x), np.int64)
    _, mantissa, n = FLOATS[dtype]
    return (x >> np.uint64(mantissa)).astype(np.int64) & ((1 << n) - 1)


def moves(dtype, old, new):
    """Signed distance on the line of all bit patterns, modulo its length."""
    bits = 8 * width_of(dtype)
    half = 1 << bits - 1
    kind = np.int64 if bits < 64 else object  # Python's numbers are large enough

    def rank(x):
        x = x.astype(kind)
        is_float = dtype in FLOATS or dtype == "F64"
        return np.where((x >= half) & is_float, half - 1 - x, x)
    distance = (rank(new) - rank(old) + half) % (2 * half) - half
    return distance.astype(kind)


def is_special(dtype, x):
    bits = 8 * width_of(dtype)
    magnitude = x & np.uint64((1 << bits - 1) - 1)
    if dtype.endswith("FNUZ"):
        return x == 0x80
    if dtype == "F8_E4M3":
        return magnitude == 0x7f
    _, mantissa, n = FLOATS[dtype]
    return magnitude >= np.uint64((1 << n) - 1 << mantissa)


def move_bits(exponent, move):
    """Direction and size given the exponent; sizes above 2^15 in 64 buckets an octave."""
    total, symbols = 0.0, collections.defaultdict(collections.Counter)
    found, counts = np.unique(move, return_inverse=True)
    names, plains = [], []
    for m in found:
        size, plain = abs(int(m)), 0
        if size > 1 << 15:
            plain = (size - 1).bit_length() - 7
            size = (1 << 70) + ((size - 1) >> plain << plain)
        names.append((m > 0, size))
        plains.append(plain)
    for (e, i), k in collections.Counter(zip(exponent.tolist(), counts.tolist())).items():
        symbols[e][names[i]] += k
        total += k * plains[i]
    for k in symbols.values():
        n = sum(k.values())
        total += sum(v * math.log2(n / v) for v in k.values())
    return total


def last_changes(past):
    """Steps since each element's last change, 0 if there was none in 15. past: bits, bit 0
    the step before."""
    since = np.zeros(len(past), np.int64)
    for step in range(15, 0, -1):
        since[(past >> step - 1) & 1 == 1] = step
    return since


# ---- one tensor in one step ----

class History:
    def __init__(self, n):
        self.past, self.up = np.zeros(n, np.int64), np.zeros(n, bool)


def count(t, old, new, history, out):
    changed = old != new
    e = exponents(t.dtype, old)
    since = last_changes(history.past)
    o, x = old[changed], new[changed]
    m = moves(t.dtype, o, x)
    up = (m > 0).astype(bool)
    n_e, k_e = np.bincount(e, minlength=256), np.bincount(e[changed], minlength=256)
    out["elements"] += len(old)
    out["changed"] += int(changed.sum())
    out["mask_bits"] += mask_bits(n_e, k_e)
    out["move_bits"] += move_bits(e[changed], m)
    out["trl_raw_bytes"] += int(changed.sum()) * (4 + width_of(t.dtype))
    out["up"] += int(up.sum())
    if t.dtype in FLOATS:
        top = np.uint64(1 << 8 * width_of(t.dtype) - 1)
        special = is_special(t.dtype, o) | is_special(t.dtype, x)
        across = ~special & ((o ^ x) & top != 0)
        plain = ~special & ~across
        out["nan_or_infinity"] += int(special.sum())
        out["across_zero"] += int(across.sum())
        out["away_from_zero"] += int(((x & ~top) > (o & ~top))[plain].sum())
        most = 2 ** np.ceil(np.log2(np.abs(m[plain]).astype(float))).astype(np.int64)
        out["ulps"].update(zip(most.tolist(), up[plain].tolist()))
    else:
        out["without_ulps"] += int(changed.sum())
    ages = since[changed]
    out["again"] += int((ages == 1).sum())
    out["ever"] += int((ages > 0).sum())
    out["same_sign"] += int(((ages == 1) & (up == history.up[changed])).sum())
    for name, had in (("again_chance", since == 1), ("ever_chance", since > 0)):
        had_e = np.bincount(e[had], minlength=256)
        out[name] += float(np.sum(k_e * had_e / np.maximum(n_e, 1)))
    out["had_1"] += int((since == 1).sum())
    out["had_15"] += int((since > 0).sum())
    for k in (1, 2, 4, 8, 16):
        out["union", k] += int((changed | ((since > 0) & (since < k))).sum())
    out["directions"].update(zip(np.frexp(since[changed])[1].tolist(), history.up[changed].tolist(), up.tolist()))
    for number in np.flatnonzero(n_e):
        out["exponents"]["F32" if t.dtype == "C64" else t.dtype, int(number)] += \
            np.array([n_e[number], k_e[number]])
    history.past = (history.past << 1 | changed) & 0x7fff
    history.up[changed] = up


def new_counts():
    out = collections.defaultdict(int)
    out["ulps"], out["directions"] = collections.Counter(), collections.Counter()
    out["exponents"] = collections.defaultdict(lambda: np.zeros(2, np.int64))
    return out


def kind_of(name):
    if ".experts." in name:
        return "experts"
    if "norm" in name:
        return "norm"
    for kind, pattern in (("embed", "embed"), ("lm_head", "lm_head"), ("qkv_proj", "qkv"),
                          ("q_proj", "q_proj"), ("k_proj", "k_proj"), ("v_proj", "v_proj"),
                          ("o_proj", "o_proj"), ("gate_up_proj", "gate_up_proj"),
                          ("gate_proj", "gate_proj"), ("up_proj", "up_proj"),
                          ("down_proj", "down_proj"), ("router", "router")):
        if pattern in name:
            return kind
    return "router" if ".gate." in name else "other"


def layer_of(name):
    found = [part for part in name.split(".") if re.fullmatch("[0-9]{1,9}", part)]
    return int(found[0]) if found else None


def analyse(versions):
    """-> counts of each step, {(layer, kind): counts}"""
    names = sorted(versions[0])
    arrays = {n: [units(v[n]) for v in versions] for n in names}
    histories = {n: History(len(arrays[n][0])) for n in names}
    steps, groups = [], collections.defaultdict(list)
    for i in range(len(versions) - 1):
        step = new_counts()
        for name in names:
            if len(arrays[name][0]) == 0:
                continue
            one = new_counts()
            count(versions[0][name], *arrays[name][i:i + 2], histories[name], one)
            merge(step, one)
            groups[layer_of(name), kind_of(name)].append((i, one))
        steps.append(step)
    return steps, groups


def merge(to, more):
    for key, value in more.items():
        if isinstance(value, collections.Counter):
            to[key].update(value)
        elif isinstance(value, dict):
            for k, v in value.items():
                to[key][k] = to[key][k] + v
        else:
            to[key] += value
