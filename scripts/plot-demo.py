#!/usr/bin/env python3
r"""Plots of recorded runs of the demo, as SVG, and the numbers behind docs/FIGURES.md.

    scripts/plot-demo.py OUT-DIR NAME=RECORD...

For docs/img:

    mkdir runs
    for s in 1 2 3; do build/examples/wordle/wordle-demo --seed $s --dir runs/seed-$s; done
    build/examples/wordle/wordle-demo --no-sync --dir runs/no-sync
    scripts/plot-demo.py docs/img seed-1=runs/seed-1 seed-2=runs/seed-2 seed-3=runs/seed-3 \
        no-sync=runs/no-sync

RECORD is what `wordle-demo --dir DIR` left. Names that begin with `seed` are drawn
together with one that begins with `no-sync`. Prints a table in Markdown; writes
demo-reward.svg and demo-bytes.svg.
"""
import json
import math
import pathlib
import re
import statistics
import sys

WIDTH, HEIGHT, LEFT, TOP = 760, 300, 60, 40
STYLE = """  <style>
    text    { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
    .head   { font-weight: 600 }
    .quiet  { fill: #59636e }
    .axis   { stroke: #9aa4af; stroke-width: 1; fill: none }
    .line   { stroke: #0969da; stroke-width: 1.8; fill: none; stroke-linejoin: round }
    .other  { stroke: #9aa4af; stroke-width: 1.8; fill: none; stroke-dasharray: 5 4 }
    @media (prefers-color-scheme: dark) {
      text   { fill: #e6edf3 }
      .quiet { fill: #9198a1 }
      .line  { stroke: #4493f8 }
      .axis, .other { stroke: #6e7681 }
    }
  </style>
"""


def load(record):
    record = pathlib.Path(record)
    lines = [json.loads(line) for line in open(record / "train.jsonl")]
    steps = {}  # a restarted trainer repeats some steps: the last line counts
    for line in lines:
        if line["event"] == "step":
            steps[line["step"]] = line
    pauses = []
    for path in sorted(record.glob("rollout-*.log")):
        pauses += re.findall(r"paused ([\d.]+) ms", path.read_text())[1:]  # the first fills
    return {
        "steps": [steps[n] for n in sorted(steps)],
        "sent": [line for line in lines
                 if line["event"] == "version" and line["of"].startswith("step ")],
        "params": next(line["params"] for line in lines if line["event"] == "start"),
        "pauses": [float(pause) for pause in pauses],
        "seconds": lines[-1]["t"],
        "end": next((line for line in reversed(lines) if line["event"] == "evaluation"), None),
    }


def tenth(steps, key, which):
    n = len(steps)
    values = [s.get(key) or 0 for s in (steps[:n // 10] if which == 0 else steps[n - n // 10:])]
    return statistics.fmean(values), statistics.pstdev(values)


def smooth(values, n=9):
    out = []
    for i in range(len(values)):
        window = values[max(0, i - n // 2):i + n // 2 + 1]
        out.append(sum(window) / len(window))
    return out


def nice(span):
    """A distance between grid lines: 1, 2 or 5 times a power of ten."""
    rough = span / 5
    power = 10 ** math.floor(math.log10(rough))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= rough)


def plot(title, label, curves, low=None):
    """CURVES are (class, name, values)."""
    values = [v for _, _, curve in curves for v in curve]
    low = min(values) if low is None else low
    high = max(values)
    grid = nice(high - low)
    low, high = math.floor(low / grid) * grid, math.ceil(high / grid) * grid
    n = max(len(curve) for _, _, curve in curves)
    inner_w, inner_h = WIDTH - LEFT - 150, HEIGHT - TOP - 50

    def x(i):
        return LEFT + inner_w * i / max(1, n - 1)

    def y(v):
        return TOP + inner_h * (1 - (v - low) / (high - low))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'width="{WIDTH}" height="{HEIGHT}" role="img">\n  <title>{title}</title>\n{STYLE}',
           f'  <text class="head" x="10" y="22">{title}</text>\n']
    v = low
    while v <= high + grid / 2:
        out.append(f'  <path class="axis" opacity=".4" d="M{LEFT} {y(v):.1f}h{inner_w}"/>'
                   f'<text class="quiet" x="{LEFT - 8}" y="{y(v) + 4:.1f}" '
                   f'text-anchor="end">{v:.4g}</text>\n')
        v += grid
    for style, name, curve in curves:
        d = "M" + "L".join(f"{x(i):.1f} {y(v):.1f}" for i, v in enumerate(curve))
        out.append(f'  <path class="{style}" d="{d}"/>\n')
    taken = []
    for _, name, curve in sorted(curves, key=lambda c: -c[2][-1]):
        at = y(curve[-1]) + 4
        while any(abs(at - t) < 15 for t in taken):
            at += 1
        taken.append(at)
        out.append(f'  <text x="{x(len(curve) - 1) + 8:.1f}" y="{at:.1f}">{name}</text>\n')
    out.append(f'  <text class="quiet" x="{LEFT}" y="{HEIGHT - 12}">{label}; step 1 to {n}'
               f'</text>\n</svg>\n')
    return "".join(out)


def table(runs):
    heads = ["run", "reward, first tenth", "last tenth", "won, first tenth", "last tenth",
             "fitting, first tenth", "last tenth", "last weights: reward", "won", "fitting", "age, mean",
             "most", "bytes a step", "bits a change", "changed",
             "whole / delta", "pause, median", "most", "seconds"]
    print("| " + " | ".join(heads) + " |")
    print("|-----" + "|-----:" * (len(heads) - 1) + "|")
    for name, run in runs.items():
        steps = run["steps"]
        first, last = tenth(steps, "reward", 0), tenth(steps, "reward", 9)
        won = [100 * tenth(steps, "win_rate", k)[0] for k in (0, 9)]
        fit = [100 * tenth(steps, "consistent_rate", k)[0] for k in (0, 9)]
        row = [name, f"{first[0]:.2f} ± {first[1]:.2f}", f"{last[0]:.2f} ± {last[1]:.2f}",
               f"{won[0]:.1f} %", f"{won[1]:.1f} %", f"{fit[0]:.1f} %", f"{fit[1]:.1f} %"]
        end = run["end"]
        row += [f"{end['reward']:.2f}", f"{100 * end['win_rate']:.1f} %",
                f"{100 * end.get('consistent_rate', 0):.1f} %"] if end else ["-"] * 3
        row += [f"{statistics.fmean(s['lag'] for s in steps):.1f}",
                f"{max(s['max_lag'] for s in steps):.0f}"]
        sent = run["sent"]
        if sent:
            n_bytes = sum(s["bytes"] for s in sent)
            changed = sum(s["changed"] for s in sent)
            row += [f"{n_bytes / len(sent):,.0f}", f"{8 * n_bytes / changed:.2f}",
                    f"{100 * changed / len(sent) / run['params']:.1f} %",
                    f"{2 * run['params'] * len(sent) / n_bytes:.1f}"]
        else:
            row += ["-"] * 4
        pauses = run["pauses"] or [0]
        row += [f"{statistics.median(pauses):.2f} ms", f"{max(pauses):.1f} ms",
                f"{run['seconds']:.0f}"]
        print("| " + " | ".join(row) + " |")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    runs = {name: load(path) for name, path in (a.split("=", 1) for a in sys.argv[2:])}
    out.mkdir(parents=True, exist_ok=True)
    curves = [("other" if name.startswith("no-sync") else "line", name.replace("-", " "),
               smooth([s["reward"] for s in run["steps"]])) for name, run in runs.items()]
    (out / "demo-reward.svg").write_text(
        plot("Mean reward of a game", "means over nine steps of 64 games", curves))
    name, run = next((n, r) for n, r in runs.items() if not n.startswith("no-sync"))
    sent = [s["bytes"] / 1e3 for s in run["sent"]]
    (out / "demo-bytes.svg").write_text(
        plot("Kilobytes of a version", f"{name.replace('-', ' ')}",
             [("line", "delta", sent),
              ("other", "whole model", [2 * run["params"] / 1e3] * len(sent))], low=0))
    table(runs)


if __name__ == "__main__":
    main()
