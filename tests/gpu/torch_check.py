"""Publishing and following tensors on a GPU with PyTorch: scripts/test-gpu.sh runs it, with the
package on PYTHONPATH. Exit status 77: there is no GPU or no PyTorch."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import torch
except ImportError:
    print("torch_check: skipped, because there is no PyTorch")
    sys.exit(77)
if not torch.cuda.is_available():
    print("torch_check: skipped, because PyTorch sees no GPU")
    sys.exit(77)

import deltawire as dw
import deltawire.torch

HERE = pathlib.Path(__file__).parent
SLOW_CYCLES = 2_000_000_000  # about a second
BASELINES = ("device", "host")


def program(name, *args, **options):
    return subprocess.Popen([sys.executable, "-u", HERE / name, *map(str, args)], text=True,
                            stdout=subprocess.PIPE, **options)


def finish(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out


def lines_until(process, n):
    """Reads N lines; fewer if it ended."""
    for _ in range(n):
        if not process.stdout.readline():
            break


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = self.enterContext(tempfile.TemporaryDirectory(prefix="torch-check-"))
        self.url = f"file://{self.dir}/stream"

    def same(self, one, other):
        self.assertEqual(one.keys(), other.keys())
        for name in one:
            self.assertTrue(torch.equal(one[name].detach().cpu().reshape(-1).view(torch.uint8),
                                        other[name].detach().cpu().reshape(-1).view(torch.uint8)),
                            name)


def tensors_of_all_kinds():
    torch.manual_seed(1)
    return {
        "masters": torch.randn(700, 300, device="cuda"),
        "weights": torch.randn(513, 1025, device="cuda", dtype=torch.bfloat16),
        "half": torch.randn(1000, device="cuda", dtype=torch.float16),
        "bytes": torch.randint(0, 255, (77, 3), device="cuda", dtype=torch.uint8),
        "wide": torch.randint(-9, 9, (33,), device="cuda"),
        "scalar": torch.tensor(3, device="cuda"),
        "empty": torch.empty(0, 5, device="cuda", dtype=torch.bfloat16),
        "turned": torch.randn(64, 96, device="cuda", dtype=torch.bfloat16).T,
        "host": torch.randn(100, dtype=torch.bfloat16),
    }


def change(tensors, seed):
    """Changes some elements of each, on the current CUDA stream, without waiting."""
    torch.manual_seed(seed)
    for tensor in tensors.values():
        if not tensor.numel():
            continue
        where = torch.rand(tensor.shape, device=tensor.device) < 0.05
        value = torch.randint(1, 9, tensor.shape, device=tensor.device).to(tensor.dtype)
        tensor.copy_(torch.where(where, value, tensor))


def as_published(tensors):
    return {name: (tensor.to(torch.bfloat16, copy=True) if tensor.dtype == torch.float32
                   else tensor.clone()).contiguous() for name, tensor in tensors.items()}


class InOneProcess(Case):
    def publish_and_follow(self, **options):
        live = tensors_of_all_kinds()
        expected = [as_published(live)]
        with deltawire.torch.Publisher(live, url=self.url, **options) as publisher:
            for step in range(8):
                publisher.captured()  # for those on the host; a CUDA stream waits by itself
                change(live, step)
                publisher.publish(step=step)
                expected.append(as_published(live))
            self.assertEqual(publisher.wait().version, 8)
        followed = as_published(tensors_of_all_kinds())
        places = {name: tensor.data_ptr() for name, tensor in followed.items()}
        with deltawire.torch.Follower(followed, self.url) as follower:
            self.assertEqual(follower.version, 0)
            for version in range(1, 9):
                follower.sync(version)
                self.same(followed, expected[version])
        self.assertEqual(places, {name: t.data_ptr() for name, t in followed.items()})
        with dw.Stream(self.url) as stream:
            return [(v.state, v.n_bytes) for v in stream.versions()]

    def test_all_kinds(self):
        self.publish_and_follow(baseline="device")

    def test_both_baselines_make_the_same_stream(self):
        states = self.publish_and_follow(baseline="device")
        self.url += "-host"
        self.assertEqual(states, self.publish_and_follow(baseline="host"))

    def test_a_stream_of_its_own(self):
        url = self.url
        for baseline in BASELINES:
            self.url = f"{url}-{baseline}"
            with torch.cuda.stream(torch.cuda.Stream()):
                self.publish_and_follow(baseline=baseline)

    def test_writes_after_publish_wait(self):
        self.writes_after_publish_wait("device")

    def test_writes_after_publish_wait_for_a_baseline_on_the_host(self):
        self.writes_after_publish_wait("host")

    def writes_after_publish_wait(self, baseline):
        """What follows publish() on the stream does not show in the version."""
        live = {"x": torch.zeros(64 << 20, dtype=torch.bfloat16, device="cuda")}
        followed = {"x": live["x"].clone()}
        with deltawire.torch.Publisher(live, url=self.url, baseline=baseline) as publisher, \
                deltawire.torch.Follower(followed, self.url) as follower:
            for step in range(1, 20):
                live["x"][::97].fill_(step)
                expected = live["x"].clone()
                publisher.publish()
                live["x"].fill_(-1)  # too early, if nothing held it
                live["x"].copy_(expected)
                self.assertEqual(publisher.wait().version, step)
                follower.sync(step)
                self.assertTrue(torch.equal(followed["x"], expected), step)

    def test_publish_waits_for_nothing(self):
        self.publish_waits_for_nothing("device")

    def test_publish_waits_for_nothing_with_a_baseline_on_the_host(self):
        self.publish_waits_for_nothing("host")

    def publish_waits_for_nothing(self, baseline):
        live = {"x": torch.zeros(1 << 20, dtype=torch.bfloat16, device="cuda")}
        done = torch.cuda.Event()
        with deltawire.torch.Publisher(live, url=self.url, baseline=baseline) as publisher:
            publisher.publish()  # the first one may wait
            publisher.wait()
            torch.cuda._sleep(SLOW_CYCLES)
            live["x"][5:6].fill_(7)
            done.record()
            publisher.publish()
            self.assertFalse(done.query())  # the work before it has not ended
            self.assertFalse(publisher.captured(0))
            publisher.wait()
            self.assertTrue(done.query())
        followed = {"x": torch.zeros_like(live["x"])}
        with deltawire.torch.Follower(followed, self.url) as follower:
            follower.sync()
        self.same(followed, live)

    def test_copies_to_the_host_after_publish(self):
        self.copies_to_the_host_after_publish("device")

    def test_copies_to_the_host_after_publish_with_a_baseline_on_the_host(self):
        self.copies_to_the_host_after_publish("host")

    def copies_to_the_host_after_publish(self, baseline):
        """A thread that waits for the GPU may not keep the publisher from reading the weights,
        however many changed."""
        live = {"x": torch.zeros(1 << 22, dtype=torch.bfloat16, device="cuda"),
                "y": torch.randn(1 << 20, device="cuda")}
        followed = as_published(live)
        with deltawire.torch.Publisher(live, url=self.url, baseline=baseline) as publisher, \
                deltawire.torch.Follower(followed, self.url) as follower:
            for share in (0.001, 0.9, 0.001, 0.01, 0.2, 1):
                for tensor in live.values():
                    where = torch.rand(tensor.shape, device="cuda") < share
                    tensor.copy_(torch.where(where, tensor * 1.5 + 1, tensor))
                publisher.publish()
                expected = {name: tensor.cpu() for name, tensor in as_published(live).items()}
                try:
                    publisher.wait()
                except dw.Error:  # so many that there was no room: the next one covers it
                    publisher.publish()
                    publisher.wait()
                follower.sync()
                self.same(followed, expected)

    def test_pytorch_stays_as_it_was(self):
        live = tensors_of_all_kinds()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            before = (torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream)
            with deltawire.torch.Publisher(live, url=self.url) as publisher:
                change(live, 1)
                publisher.publish()
                publisher.wait()
            followed = as_published(tensors_of_all_kinds())
            allocated = torch.cuda.memory_allocated()
            with deltawire.torch.Follower(followed, self.url) as follower:
                follower.sync()
            self.assertEqual(before, (torch.cuda.current_device(),
                                      torch.cuda.current_stream().cuda_stream))
            self.assertEqual(allocated, torch.cuda.memory_allocated())
        torch.ones(3, device="cuda").sum().item()  # raises an error that was left behind

    def test_weights_that_somebody_changed(self):
        live = {"x": torch.zeros(1 << 20, dtype=torch.bfloat16, device="cuda")}
        followed = {"x": live["x"].clone()}
        with deltawire.torch.Publisher(live, url=self.url, anchor_every=1) as publisher:
            live["x"][::50] = 3
            publisher.publish()
            publisher.wait()
            publisher.drain()
        with deltawire.torch.Follower(followed, self.url) as follower:
            follower.native.stage(1)
            followed["x"][100] = 9  # a weight that version 1 changes
            before = followed["x"].clone()
            torch.cuda.synchronize()
            with self.assertRaises(dw.Corrupt):
                follower.native.apply()
            self.same(followed, {"x": before})
            follower.sync(1)
            self.same(followed, live)

    def test_an_empty_model(self):
        live = tensors_of_all_kinds()
        with deltawire.torch.Publisher(live, url=self.url) as publisher:
            change(live, 3)
            publisher.publish()
            publisher.wait()
        followed = {name: torch.full_like(tensor, 1)
                    for name, tensor in as_published(live).items()}
        with deltawire.torch.Follower(followed, self.url, empty=True) as follower:
            follower.sync()
        self.same(followed, as_published(live))

    def test_a_restart(self):
        live = {"x": torch.randn(1 << 20, device="cuda")}
        with deltawire.torch.Publisher(live, url=self.url):
            pass
        for step, baseline in enumerate(BASELINES):
            live["x"][7] = 5 + step
            with deltawire.torch.Publisher(live, url=self.url, baseline=baseline) as publisher:
                self.assertEqual(publisher.native.opening.n_changed, 1)

    def test_a_baseline_on_the_host_takes_no_memory_of_the_gpu(self):
        live = {"x": torch.zeros(512 << 20, dtype=torch.bfloat16, device="cuda")}
        taken = {}
        for baseline in BASELINES:
            free, _ = torch.cuda.mem_get_info()
            with deltawire.torch.Publisher(live, url=f"{self.url}-{baseline}", base_name="zeros",
                                           fold_every=0, baseline=baseline):
                taken[baseline] = free - torch.cuda.mem_get_info()[0]
        # the baseline has 1 GiB; two windows have 1/64 of it
        self.assertLess(taken["host"] + (900 << 20), taken["device"])

    def test_options_that_need_the_host(self):
        live = {"x": torch.zeros(64, device="cuda", dtype=torch.bfloat16)}
        with self.assertRaisesRegex(ValueError, "baseline_dir"):
            deltawire.torch.Publisher(live, url=self.url, baseline="device",
                                      baseline_dir=f"{self.dir}/baseline")
        with self.assertRaisesRegex(ValueError, "'device' or 'host'"):
            deltawire.torch.Publisher(live, url=self.url, baseline="gpu")
        with self.assertLogs("deltawire", "WARNING") as logged:
            with deltawire.torch.Publisher(live, url=self.url,
                                           baseline_dir=f"{self.dir}/baseline"):
                pass
        self.assertIn("copied to the host", "\n".join(logged.output))


class InManyProcesses(Case):
    def test_fifty_steps_of_a_transformer(self):
        self.fifty_steps_of_a_transformer("device")

    def test_fifty_steps_with_a_baseline_on_the_host(self):
        self.fifty_steps_of_a_transformer("host")

    def fifty_steps_of_a_transformer(self, baseline):
        trainer = program("torch_trainer.py", "qwen3", self.url, 50, self.dir, "hooks", baseline)
        follower = program("torch_follower.py", "qwen3", self.url, 50,
                           f"{self.dir}/found.json", 0)
        finish(trainer)
        finish(follower)
        expected = json.loads(pathlib.Path(self.dir, "expected.json").read_text())
        found = json.loads(pathlib.Path(self.dir, "found.json").read_text())
        self.assertEqual({str(i): digest for i, digest in enumerate(expected)}, found)

    def test_killed_trainers_and_followers(self):
        found = []

        def start_follower(last, seed):
            found.append(pathlib.Path(self.dir, f"found-{len(found)}.json"))
            return program("torch_follower.py", "plain", self.url, last, found[-1], seed)

        follower = start_follower(10**9, 0)
        for round_ in range(3):
            trainer = program("torch_trainer.py", "plain", self.url, 10**6, self.dir, "notes",
                              BASELINES[round_ % 2])
            lines_until(trainer, 3 + round_)
            time.sleep(0.003 * round_)  # anywhere in a step
            kill(trainer)
            kill(follower)
            follower = start_follower(10**9, round_)
        steps = torch.load(f"{self.dir}/state.pt")["step"] + 5
        finish(program("torch_trainer.py", "plain", self.url, steps, self.dir, "notes", "host"))
        kill(follower)
        with dw.Stream(self.url) as stream:
            notes = {str(v.version): v.notes for v in stream.versions()}
            head = stream.head
        finish(start_follower(head, 7))
        seen = {}
        for path in found:
            if path.exists():
                for version, digest in json.loads(path.read_text()).items():
                    self.assertEqual(digest, notes[version], f"{path.name}: {version}")
                    seen[version] = digest
        self.assertIn(str(head), seen)

    def test_two_ranks(self):
        ranks = [program("torch_rank.py", rank, self.url, self.dir,
                         env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"})
                 for rank in range(2)]
        for rank in ranks:
            finish(rank)
        followed = {name: torch.empty_like(tensor).cuda() for name, tensor
                    in torch.load(f"{self.dir}/0.pt").items()}
        with deltawire.torch.Follower(followed, self.url, empty=True) as follower:
            for version in range(4):
                follower.sync(version)
                self.same(followed, torch.load(f"{self.dir}/{version}.pt"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
