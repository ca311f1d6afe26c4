"""The table of `make bench-pause`: see scripts/bench-pause.sh.

Runs pause_bench with a real HTTP engine, the methods of other systems, and an idle agent. Prints
the figures and writes them as JSON.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

PAUSE_MEDIAN_MS, PAUSE_P99_MS = 40, 80  # the limits
IDLE_CORE, IDLE_MIB = 0.5, 20


def percentile(values, share):
    """The value that this SHARE of them does not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]


def start_engine(args, snapshot, log, kind="mapped"):
    engine = subprocess.Popen([args.engine, str(args.port), snapshot, kind],
                              stdout=log, stderr=log)
    for _ in range(1800):
        try:
            urlopen(f"http://127.0.0.1:{args.port}/version", timeout=5)
            return engine
        except (URLError, OSError):
            if engine.poll() is not None:
                break
            time.sleep(0.1)
    engine.kill()
    sys.exit("bench-pause: the engine does not start")


def measure_syncs(args, snapshot, log, kind):
    command = [args.bench, f"file://{args.work}/store", snapshot,
               f"vllm=http://127.0.0.1:{args.port}", str(args.versions), str(args.size)]
    if args.trace:
        command.append(args.trace)
    bench = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)
    engine, syncs, equal = None, [], False
    try:
        for line in bench.stdout:
            event = json.loads(line)
            if "ready" in event:
                engine = start_engine(args, snapshot, log, kind)
                bench.stdin.write("\n")
                bench.stdin.flush()
            elif "equal" in event:
                equal = event["equal"]
            else:
                syncs.append(event)
        if bench.wait() != 0:
            sys.exit("bench-pause: pause_bench failed")
    finally:
        bench.kill()
        if engine:
            engine.kill()
            engine.wait()
    return syncs, equal


def measure_peers(args, snapshot):
    """Versions N-1 and N as checkpoints, and TRL's delta between them."""
    store, old = f"file://{args.work}/store", f"{args.work}/old"
    raw = f"{args.work}/raw.safetensors"
    subprocess.run([args.deltawire, "pull", store, "--into", old, "--at",
                    str(args.versions - 1), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([args.deltawire, "diff", old, snapshot, "-o", raw, "--trl", "v3", "--codec", "raw",
                    "--quiet"], check=True, stdout=subprocess.DEVNULL)
    out = subprocess.run([args.python, Path(__file__).with_name("pause_peers.py"), old, raw,
                          snapshot, str(args.rounds)], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in out.stdout.splitlines()]


def memory_beside(pid, snapshot):
    """Resident bytes of a process, without those of the mapped weights."""
    total, counted = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            counted = not (len(head) > 5 and head[5].startswith(os.path.realpath(snapshot)))
        elif head[0] == "Rss:" and counted:
            total += int(head[1]) * 1024
    return total


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_idle(args, snapshot, log):
    """An agent with its engine and its HTTP server, while nothing is new."""
    engine = start_engine(args, snapshot, log)
    agent = subprocess.Popen(
        [args.deltawire, "follow", f"file://{args.work}/store", "--into", snapshot, "--engine",
         f"vllm=http://127.0.0.1:{args.port}", "--listen", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        for line in agent.stdout:
            event = json.loads(line)
            if event.get("event") == "engine" and event["state"] == "serving":
                break
        time.sleep(5)
        before, start = cpu_seconds(agent.pid), time.monotonic()
        time.sleep(args.idle)
        used, passed = cpu_seconds(agent.pid) - before, time.monotonic() - start
        return {"core_percent": 100 * used / passed, "seconds": passed,
                "bytes": memory_beside(agent.pid, snapshot)}
    finally:
        agent.terminate()
        agent.wait()
        engine.kill()
        engine.wait()


def row(name, *cells):
    print(f"  {name:<34}" + "".join(f"{cell:>16}" for cell in cells))


def report_syncs(syncs, equal, where, kind):
    stopped = [sync["stopped_us"] / 1000 for sync in syncs]
    last = syncs[-1]
    figures = {"median_ms": statistics.median(stopped), "p99_ms": percentile(stopped, 0.99),
               "least_ms": min(stopped), "most_ms": max(stopped), "syncs": len(syncs),
               "elements": last["elements"], "changed": last["changed"],
               "bytes": last["bytes"], "equal": equal}
    density = 100 * last["changed"] / last["elements"]
    print(f"{last['elements'] / 1e6:.0f} M bf16 weights, {density:.2f} % changed, "
          f"{last['bytes'] / 1e6:.1f} MB a version, {len(syncs)} versions; snapshot in {where}, "
          + ("which the engine maps" if kind == "mapped" else "the engine has a copy of its own"))
    row("", "median ms", "p99 ms", "most ms")
    row("pause acknowledged to resume sent", f"{figures['median_ms']:.1f}",
        f"{figures['p99_ms']:.1f}", f"{figures['most_ms']:.1f}")
    for phase in ("scatter", "update", "pause", "resume", "fetch", "decode", "finish"):
        values = [sync[f"{phase}_us"] / 1000 for sync in syncs]
        figures[f"{phase}_ms"] = statistics.median(values)
        row(f"  of it {phase}" if phase in ("scatter", "update") else f"  outside: {phase}",
            f"{statistics.median(values):.1f}", f"{percentile(values, 0.99):.1f}",
            f"{max(values):.1f}")
    row("wanted, at most", PAUSE_MEDIAN_MS, PAUSE_P99_MS, "")
    print(f"  the weights are the trainer's, bit for bit: {'yes' if equal else 'NO'}")
    return figures


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "engine", "deltawire", "work", "json"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--python", help="with torch and safetensors; else the others are left out")
    parser.add_argument("--trace")
    parser.add_argument("--snapshots", nargs="+", required=True, help="directories to try")
    parser.add_argument("--size", type=int, default=1_200_000_000)
    parser.add_argument("--versions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=60)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    results = {}
    with open(f"{args.work}/log", "w") as log:
        runs = [(snapshot, "mapped") for snapshot in args.snapshots]
        runs.append((args.snapshots[0], "own"))
        for i, (snapshot, kind) in enumerate(runs):
            subprocess.run(["rm", "-rf", f"{args.work}/store", snapshot], check=True)
            syncs, equal = measure_syncs(args, snapshot, log, kind)
            results[f"{snapshot} {kind}"] = report_syncs(syncs, equal, snapshot, kind)
            if i > 0:
                continue
            if args.python:
                for peer in measure_peers(args, snapshot):
                    ms = [1000 * s for s in peer["seconds"]]
                    row(peer["way"], f"{statistics.median(ms):.0f}", f"{percentile(ms, 0.99):.0f}",
                        f"{max(ms):.0f}" if peer["equal"] else "NOT EQUAL")
                    results[peer["way"]] = peer
            idle = measure_idle(args, snapshot, log)
            results["idle"] = idle
            row("the agent, idle", f"{idle['core_percent']:.2f} % core",
                f"{idle['bytes'] / 2**20:.1f} MiB")
            row("wanted, at most", f"{IDLE_CORE} % core", f"{IDLE_MIB} MiB")
    Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
