"""The figures of `make bench-sync`, as one table on stdout and lines of JSON in a file.

    sync_bench.py --programs DIR --json FILE [--figures LIST] ...

Called by scripts/bench-sync.sh, which starts the server and makes the links. Measurements that
are compared alternate, in another order each round, so that a disturbance of the machine affects
all.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
MIB = 1 << 20
PEERS = ["s5cmd", "crt", "obstore"]
LINK_RATE = 100e6 / 8
JOIN_FACTOR, JOIN_OBJECTS = 1.15, 12
MEMORY_MIB = 128
UPKEEP_RATIO = 1.5


def say(text):
    print(f"bench-sync: {text}", file=sys.stderr, flush=True)


class Bench:
    def __init__(self, options):
        self.options = options
        self.url = f"s3://{os.environ['DW_TEST_S3_BUCKET']}/bench-{os.getpid()}"
        self.prefix = f"bench-{os.getpid()}"
        self.rows = []
        self.json = open(options.json, "w")

    # ---- running ----

    def program(self, name, *args):
        return [str(self.options.programs / name), *map(str, args)]

    def output(self, command):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"bench-sync: failed: {' '.join(command)}")
        return json.loads(done.stdout)

    def ours(self, *args):
        return self.output(self.program("sync_bench", *args))

    def peer(self, client, verb, key, sizes, n):
        return self.output([sys.executable, str(HERE / "s3_peer.py"), client, verb, key, sizes,
                            str(n)])

    def clear(self, name):
        """Removes what a measurement wrote. The server keeps removed and replaced bytes for two
        hours and stops when its disk is full, so this makes it drop them now, outside of the
        measured time."""
        self.program_run("sync_bench", "clear", f"{self.url}/{name}")
        if self.options.ceph_conf:
            subprocess.run(["radosgw-admin", "--conf", self.options.ceph_conf, "gc", "process",
                            "--include-all"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, check=True)

    def program_run(self, name, *args):
        subprocess.run(self.program(name, *args), check=True)

    # ---- reporting ----

    def record(self, figure, **values):
        self.json.write(json.dumps({"figure": figure, **values}) + "\n")
        self.json.flush()

    def row(self, what, figure, limit, peers="", kept=None):
        verdict = "" if kept is None else "yes" if kept else "NO"
        self.rows.append((what, figure, limit, peers, verdict))

    def print_table(self):
        rows = [("what", "figure", "limit", "peers", "kept"), *self.rows]
        widths = [max(len(r[i]) for r in rows) for i in range(5)]
        for n, row in enumerate(rows):
            print("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |")
            if n == 0:
                print("|" + "|".join("-" * (w + 2) for w in widths) + "|")

    # ---- rounds ----

    def alternate(self, clients, measure, times=1):
        """measure(client, round) -> {verb: bytes a second}; all clients, round by round."""
        rates = {}
        for r in range(self.options.rounds * times):
            turn = r % len(clients)
            for client in clients[turn:] + clients[:turn]:
                for verb, rate in measure(client, r).items():
                    rates.setdefault(verb, {}).setdefault(client, []).append(rate)
        return rates

    def compare(self, figure, what, rates, words, limited=True):
        """A row for each verb: ours beside the fastest peer, by the best and the median."""
        for verb, by_client in rates.items():
            best = {c: max(v) / 1e6 for c, v in by_client.items()}
            middle = {c: statistics.median(v) / 1e6 for c, v in by_client.items()}
            fastest = max((c for c in best if c != "ours"), key=best.get)
            pair = "{:.0f} / {:.0f}" if best[fastest] >= 50 else "{:.1f} / {:.1f}"
            fastest_middle = max(m for c, m in middle.items() if c != "ours")
            self.row(what.format(verb=words[verb]),
                     pair.format(best["ours"], middle["ours"]) + " MB/s",
                     pair.format(best[fastest], fastest_middle) if limited else "",
                     ", ".join(f"{c} {pair.format(best[c], middle[c])}" for c in best if c != "ours"),
                     best["ours"] >= best[fastest] if limited else None)
            self.record(figure, what=what.format(verb=words[verb]), best=best, median=middle,
                        rounds=by_client, unit="MB/s")

    # ---- the figures ----

    def transfer(self):
        for name, n_bytes, n in [("1 MiB", MIB, 64), ("32 MiB", 32 * MIB, 8),
                                 ("1 GiB", 1024 * MIB, 1)]:
            if n_bytes > self.options.max_object:
                say(f"skipped: objects of {name}")
                continue

            def measure(client, r):
                rates = {}
                key = f"{self.prefix}/transfer/{client}/o"
                for verb in ("put", "get"):
                    if client == "ours":
                        url = f"s3://{os.environ['DW_TEST_S3_BUCKET']}"
                        done = self.output(self.program("store_transfer", url, verb, key, n_bytes, n))
                    else:
                        done = self.peer(client, verb, key, str(n_bytes), n)
                    rates[verb] = n * n_bytes / done["seconds"]
                self.clear("transfer")
                say(f"{name}, round {r + 1}, {client}: "
                    + ", ".join(f"{v} {x / 1e6:.0f} MB/s" for v, x in rates.items()))
                return rates

            # short measurements are noisier, so there are more of them
            rates = self.alternate(["ours", *PEERS], measure, 3 if n_bytes == MIB else 1)
            many = f"{n} x {name}" if n > 1 else name
            self.compare("transfer", "{verb} " + many, rates, {"put": "put", "get": "get"})

    def trace(self):
        trace = self.options.trace
        if not trace.is_dir():
            say(f"skipped: publish and pull of the trace: there is none at {trace} (DW_SHARED)")
            self.row("publish and pull rl-trace", "skipped", "", "no trace here")
            return
        sizes = self.ours("trace-publish", f"{self.url}/trace/first", trace)["sizes"]
        self.clear("trace")

        def measure(client, r):
            if client == "ours":
                url = f"{self.url}/trace/ours"
                done = {"put": self.ours("trace-publish", url, trace),
                        "get": self.ours("trace-pull", url, trace)}
                self.record("trace-round", **done)
            else:
                key = f"{self.prefix}/trace/{client}/o"
                text = ",".join(map(str, sizes))
                done = {v: self.peer(client, v, key, text, len(sizes)) for v in ("put", "get")}
            self.clear("trace")
            return {v: sum(sizes) / d["seconds"] for v, d in done.items()}

        rates = self.alternate(["ours", *PEERS], measure)
        mean = sum(sizes) / len(sizes) / 1e3
        self.compare("trace", "{verb} " + f"{len(sizes)} steps of rl-trace, {mean:.0f} kB each",
                     rates, {"put": "publish", "get": "pull"}, limited=False)

    def join(self):
        room = tempfile.mkdtemp(prefix="dw-bench-join.", dir=self.options.work)
        try:
            found = self.ours("late-join", room, self.options.model, self.options.steps)
        finally:
            shutil.rmtree(room)
        self.record("late-join", **found)
        at = f"late join at version {found['version']}"
        self.row(f"{at}: bytes beside the anchor's", f"{found['factor']:.3f}", f"{JOIN_FACTOR}", "",
                 found["factor"] <= JOIN_FACTOR)
        self.row(f"{at}: data objects (requests in all: {found['n_requests']})",
                 str(found["n_objects"]), str(JOIN_OBJECTS), "",
                 found["n_objects"] <= JOIN_OBJECTS)
        self.row(f"at any version up to {found['version']}, at worst",
                 f"{found['worst_factor']:.3f}, {found['worst_objects']} objects",
                 f"{JOIN_FACTOR}, {JOIN_OBJECTS}", "",
                 found["worst_factor"] <= JOIN_FACTOR and found["worst_objects"] <= JOIN_OBJECTS)

    def link(self):
        what = "publish to staged, 100 Mbit/s"
        if not self.options.link:
            say("skipped: the slow link: it takes root, ip and tc")
            self.row(what, "skipped", "", "not root, or no namespaces")
            return
        steps = self.options.link_steps

        def start(place, verb):
            command = ["ip", "netns", "exec", place,
                       *self.program("sync_bench", verb, f"{self.url}/link", self.options.model,
                                     steps)]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                    text=True, bufsize=1)

        def read(process):
            line = process.stdout.readline()
            if not line:
                sys.exit("bench-sync: a process at the link ended early")
            return json.loads(line)

        trainer = start(self.options.link[0], "link-trainer")
        follower = None
        times = []
        try:
            read(trainer)
            follower = start(self.options.link[1], "link-follower")
            read(follower)
            for _ in range(steps):
                trainer.stdin.write("\n")
                published, staged = read(trainer), read(follower)
                read(trainer)
                seconds = staged["staged_s"] - published["published_s"]
                limit = 1.1 * published["n_bytes"] / LINK_RATE + 0.5
                times.append((seconds, limit))
                self.record("link", seconds=round(seconds, 4), limit=round(limit, 4), **published,
                            seen_s=staged["seen_s"], staged_s=staged["staged_s"])
                say(f"link, version {published['version']}: {published['n_bytes']} bytes, "
                    f"{seconds:.3f} s, limit {limit:.3f} s")
        finally:
            for process in (trainer, follower):
                if process:
                    process.stdin.close()
                    process.wait(120)
        self.clear("link")
        seconds, limits = zip(*times)
        limit = statistics.median(limits)
        self.row(f"{what}, {self.options.model // MIB} MiB, 1 %, of {steps} steps",
                 f"{min(seconds):.2f} / {statistics.median(seconds):.2f} / {max(seconds):.2f} s",
                 f"{limit:.2f} s", "best / median / worst", statistics.median(seconds) <= limit)

    def memory(self):
        sizes = [self.options.model, self.options.large_model]
        for n_bytes in sizes:
            for density in ("sparse", "dense"):
                url = f"{self.url}/memory"
                pub = self.ours("memory-publish", url, n_bytes, density)
                fol = self.ours("memory-follow", url, n_bytes, density)
                self.clear("memory")
                self.record("memory", density=density, publisher=pub, follower=fol)
                share = 100 * pub["n_changed"] / (pub["model_bytes"] / 2)
                what = f"{pub['model_bytes'] // MIB} MiB, {share:.0f} %"
                most = max(pub["opening"], pub["publishing"], pub["after"]) / MIB
                self.row(f"memory beyond the baseline, publisher, {what}", f"{most:.0f} MiB",
                         f"{MEMORY_MIB} MiB", "", most <= MEMORY_MIB)
                beyond = (fol["following"] - fol["staged_bytes"]) / MIB
                self.row(f"memory beyond the staged list, follower, {what}", f"{beyond:.0f} MiB",
                         f"{MEMORY_MIB} MiB", f"list {fol['staged_bytes'] / MIB:.0f} MiB",
                         beyond <= MEMORY_MIB)
                say(f"memory, {what}, {density}: publisher {most:.0f} MiB "
                    f"(open {pub['opening'] / MIB:.0f}), follower {beyond:.0f} MiB")


    def upkeep(self):
        """A publish during a long upload of an anchor: the 99th percentile of the call, and of
        the time until the commit."""
        found = {}
        for mode in ("none", "anchor"):
            directory = pathlib.Path(self.options.work) / f"upkeep-{mode}"
            found[mode] = self.ours("upkeep", f"file://{directory}", self.options.model,
                                    self.options.upkeep_steps, mode)
            shutil.rmtree(directory)
        self.record("upkeep", **found)
        for what in ("call", "commit"):
            alone, beside = (found[mode][f"{what}_ms"][1] for mode in ("none", "anchor"))
            ratio = beside / alone
            size = self.options.model // MIB
            self.row(f"p99 of publish ({what}), {size} MiB, 1 %, during an anchor / without",
                     f"{ratio:.2f}", f"{UPKEEP_RATIO:.2f}", f"{beside:.3f} / {alone:.3f} ms",
                     ratio <= UPKEEP_RATIO)
            say(f"upkeep, {what}: p99 {alone:.3f} ms alone, {beside:.3f} ms during an anchor")


FIGURES = ["transfer", "trace", "join", "link", "memory", "upkeep"]


def parse_size(text):
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trace", type=pathlib.Path, default=pathlib.Path("/nonexistent"))
    parser.add_argument("--ceph-conf")
    parser.add_argument("--link", nargs=2, metavar="NETNS", help="of the trainer, of the follower")
    parser.add_argument("--work", default=tempfile.gettempdir())
    parser.add_argument("--model", type=parse_size, default=256 * MIB)
    parser.add_argument("--large-model", type=parse_size, default=1229 * MIB)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--upkeep-steps", type=int, default=600)
    parser.add_argument("--link-steps", type=int, default=8)
    parser.add_argument("--max-object", type=parse_size, default=1024 * MIB)
    options = parser.parse_args()
    bench = Bench(options)
    for figure in options.figures.split(","):
        getattr(bench, figure)()
    bench.print_table()


main()
