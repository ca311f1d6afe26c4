"""Computes the results of `deltawire stats` with numpy, slowly, from its documentation.

docs/deltawire.1 defines what is measured; cli/stats/stats_learn.h how
predictors learn, cli/stats/stats_item.c the classes of history.
"""
import collections
import math
import re

import numpy as np

ONE = 1 << 30  # rates are fixed point
PREDICTORS = ["tensor", "exponent", "row", "column", "history", "exponent, history", "all"]

# name: bytes of a unit, mantissa bits, exponent bits; no exponent: one class, no ulps
FLOATS = {"BF16": (2, 7, 8), "F16": (2, 10, 5), "F32": (4, 23, 8), "C64": (4, 23, 8),
          "F8_E4M3": (1, 3, 4), "F8_E5M2": (1, 2, 5), "F8_E4M3FNUZ": (1, 3, 4),
          "F8_E5M2FNUZ": (1, 2, 5)}
WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8,
          "I64": 8, "F64": 8, "F8_E8M0": 1, "F6_E2M3": 1, "F6_E3M2": 1, "F4": 1}
PACKED = ("F6_E2M3", "F6_E3M2", "F4")

# steps since the last change, from and to, and the fewest changes within 15 steps
HISTORIES = [None, (1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 1, 5), (2, 2, 1), (2, 2, 2), (2, 2, 3),
             (3, 3, 1), (3, 3, 2), (3, 3, 3), (4, 7, 1), (4, 7, 2), (4, 7, 3), (8, 15, 1),
             (8, 15, 2)]


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


def history_classes(past, n_steps):
    """past: bits, bit 0 the step before"""
    out, changes = np.zeros(len(past), np.int64), np.zeros(len(past), np.int64)
    since = np.zeros(len(past), np.int64)
    for step in range(15, 0, -1):
        hit = (past >> step - 1) & 1 == 1
        changes += hit
        since[hit] = step
    for number, row in enumerate(HISTORIES):
        if row:
            out[(since >= row[0]) & (since <= row[1]) & (changes >= row[2])] = number
    return out, since


# ---- predictors ----

def fixed(rate):
    return np.maximum(np.floor(np.asarray(rate) * ONE + 0.5), 1).astype(np.int64)


def away(x):  # C's lround
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def bin_of(rate):
    return np.clip(away(-8 * np.log2(rate)), 0, 255).astype(np.int64)


class Predictor:
    """The learnt state of one tensor."""

    def __init__(self, n, rows, columns):
        self.n, self.rows, self.columns = n, rows, columns
        self.steps, self.density = 0, None
        self.row = np.zeros((2, rows)) if columns >= 64 and rows > 1 else None
        self.column = np.zeros((2, columns)) if rows >= 64 and columns > 1 else None

    def shift(self, line, n):
        if line is None or self.steps < 2:
            return np.zeros(n, np.int64)
        return np.clip(-away(8 * np.log2((line[0] + 128) / (line[1] + 128))), -64, 64).astype(int)

    def predict(self, e, h):
        """{predictor: bin of each element}"""
        cell, full = self.cells[e, h] / ONE, np.full
        lines = {}
        for name, line, n, every in (("row", self.row, self.rows, self.columns),
                                     ("column", self.column, self.columns, self.rows)):
            rate = full(n, self.density)
            if line is not None:
                rate = (line[0] + 128) / (every * (self.steps - 1) + 128 / self.density)
            bins = bin_of(rate)
            lines[name] = np.repeat(bins, self.columns) if name == "row" else \
                np.tile(bins, self.rows)
        both = bin_of(cell) + np.repeat(self.shift(self.row, self.rows), self.columns) + \
            np.tile(self.shift(self.column, self.columns), self.rows)
        return {"tensor": full(self.n, bin_of(self.density)),
                "exponent": bin_of(self.by_exponent[e] / ONE),
                "history": bin_of(self.by_history[h] / ONE), **lines,
                "exponent, history": bin_of(cell), "all": np.clip(both, 0, 255)}

    def learn(self, e, h, changed):
        if self.steps > 0:
            expected = self.cells[e, h].reshape(self.rows, self.columns)
            now = changed.reshape(self.rows, self.columns)
            for line, axis in ((self.row, 1), (self.column, 0)):
                if line is not None:
                    line += [now.sum(axis), expected.sum(axis) / ONE]
        cell = 16 * e + h
        n, k = (np.bincount(c, minlength=4096).reshape(256, 16) for c in (cell, cell[changed]))
        d = self.density = (changed.sum() + 0.5) / (self.n + 1)
        seen = np.flatnonzero(n.sum(1))
        inside = np.zeros(256, bool)
        inside[seen[0]:seen[-1] + 1] = True
        p_e = (k.sum(1) + 1) / (n.sum(1) + 1 / d)
        self.by_exponent = np.where(inside, fixed(p_e), d * ONE)
        self.by_history = fixed((k.sum(0) + 1) / (n.sum(0) + 1 / d))
        p_eh = (k + 1) / (n + 1 / p_e[:, None])
        self.cells = np.where(inside[:, None], fixed(p_eh), fixed(d))
        self.steps += 1


# ---- one tensor in one step ----

class History:
    def __init__(self, n):
        self.past, self.up = np.zeros(n, np.int64), np.zeros(n, bool)


def lines(t, n):
    last = t.shape[-1] * (2 if t.dtype == "C64" else 1) if len(t.shape) > 1 else 0
    if last < 2 or last > 1 << 20 or n % last or n == last or t.dtype in PACKED:
        return 1, n
    return n // last, last


def count(t, old, new, history, out):
    changed = old != new
    e = exponents(t.dtype, old)
    h, since = history_classes(history.past, 15)
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
    out["directions"].update(zip(h[changed].tolist(), history.up[changed].tolist(), up.tolist()))
    for number in np.flatnonzero(n_e):
        out["exponents"]["F32" if t.dtype == "C64" else t.dtype, int(number)] += \
            np.array([n_e[number], k_e[number]])
    history.past = (history.past << 1 | changed) & 0x7fff
    history.up[changed] = up
    return changed, e, h


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
    """-> counts of each step, {(layer, kind): counts}, bins of each judged step"""
    names = sorted(versions[0])
    arrays = {n: [units(v[n]) for v in versions] for n in names}
    histories = {n: History(len(arrays[n][0])) for n in names}
    shape = {n: lines(versions[0][n], len(arrays[n][0])) for n in names}
    learners = {n: Predictor(len(arrays[n][0]), *shape[n]) for n in names}
    steps, groups, judged = [], collections.defaultdict(list), []
    for i in range(len(versions) - 1):
        step, bins = new_counts(), np.zeros((7, 2, 256), np.int64)
        for name in names:
            t, learner = versions[0][name], learners[name]
            if len(arrays[name][0]) == 0:
                continue
            one = new_counts()
            changed, e, h = count(t, *arrays[name][i:i + 2], histories[name], one)
            if i >= 2:
                for p, b in learner.predict(e, h).items():
                    at = PREDICTORS.index(p)
                    bins[at, 0] += np.bincount(b, minlength=256)
                    bins[at, 1] += np.bincount(b[changed], minlength=256)
            learner.learn(e, h, changed)
            merge(step, one)
            groups[layer_of(name), kind_of(name)].append((i, one))
        steps.append(step)
        if i >= 2:
            judged.append((step, bins))
    return steps, groups, judged


def merge(to, more):
    for key, value in more.items():
        if isinstance(value, collections.Counter):
            to[key].update(value)
        elif isinstance(value, dict):
            for k, v in value.items():
                to[key][k] = to[key][k] + v
        else:
            to[key] += value


def recall(bins, precision):
    n, k = np.cumsum(bins[0]), np.cumsum(bins[1])
    good = k[(k > 0) & (k >= precision * n)]
    return good[-1] / k[-1] if len(good) else None


def best_precision(bins):
    n, k = np.cumsum(bins[0]), np.cumsum(bins[1])
    return float(np.max(k[n > 0] / n[n > 0]))
