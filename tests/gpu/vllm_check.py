"""The back end of vLLM with a model that stands in for vLLM's: a patch must leave the weights of a
fresh load. `vllm_check.py cuda` on a GPU (scripts/test-gpu.sh), `vllm_check.py cpu` in make test;
with the package on PYTHONPATH. Exit status 77: there is no GPU or no PyTorch."""
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

DEVICE = sys.argv.pop(1) if len(sys.argv) > 1 else "cuda"
try:
    import torch
except ImportError:
    print("vllm_check: skipped, because there is no PyTorch")
    sys.exit(77)
if DEVICE == "cuda" and not torch.cuda.is_available():
    print("vllm_check: skipped, because PyTorch sees no GPU")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
import stand_in
from at_each_line import at_each_line

stand_in.install()

import deltawire as dw
import vllm_rank
from deltawire.vllm import backend

ON_GPU = DEVICE == "cuda"


def bits(tensor):
    return tensor.detach().cpu().contiguous().view(torch.int16)


def wait_until(check):
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


class Run:
    """A stream, and the directory of an agent."""

    def __init__(self, where, lacks=(), tied=False, seed=3):
        self.where, self.url = where, f"file://{where}/run"
        torch.manual_seed(seed)
        self.live = {name: (torch.randn(shape) * 0.3).to(torch.bfloat16)
                     for name, shape in stand_in.shapes().items() if name not in lacks}
        if tied:
            self.live["lm_head.weight"] = self.live["model.embed_tokens.weight"].clone()
        self.publisher = dw.Publisher(self.url, self.live, baseline_dir=where / "baseline")
        self.id = self.publisher.stream_id
        self.dir = where / "dir"
        self.follower = dw.Follower(self.url, into=self.dir, report=False)
        self.follower.sync()

    def publish(self, share=0.02):
        for weight in self.live.values():
            at = torch.rand(weight.shape) < share
            weight[at] += (0.1 * torch.randn(weight.shape)).to(weight.dtype)[at]
        embedding = self.live["model.embed_tokens.weight"].view(torch.int16)
        embedding[7, :3] = torch.tensor([-0x8000, 0x7FC1, -1])  # -0, NaNs
        self.publisher.wait(self.publisher.publish())

    def update(self):
        start = self.follower.version
        self.follower.prepare()
        update = backend.UpdateInfo(
            kind="patch", stream=self.id, from_version=start, version=self.follower.staged,
            dir=str(self.dir), patch=self.follower.staged_path)
        self.follower.apply()
        return update

    def snapshot(self):
        return backend.UpdateInfo(kind="snapshot", stream=self.id, dir=str(self.dir),
                                  version=self.follower.version, state=self.follower.state)

    def close(self):
        self.follower.close()
        self.publisher.close()


class Engine:
    def __init__(self, run, rank, load_format="auto", **options):
        self.model = self.load(run, rank, **options)
        self.rank, self.options = rank, options
        config = stand_in.config(run.dir, rank)
        config.load_config.load_format = load_format
        self.backend = backend.DeltawireEngine(None, config, torch.device(DEVICE), self.model)
        self.addresses = self.pointers()
        self.tokens = torch.tensor([1, 2, 3, 100], device=DEVICE)
        if ON_GPU:
            self.capture()

    @staticmethod
    def load(run, rank, **options):
        model = stand_in.Model(rank, DEVICE, **options)
        model.load_weights(run.live.items())
        return model

    def pointers(self):
        return [p.data_ptr() for p in self.model.parameters()]

    @torch.no_grad()
    def capture(self):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self.model(self.tokens)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = self.model(self.tokens)

    def update(self, info):
        self.backend.start_weight_update()
        self.backend.receive_weights(info)
        self.backend.finish_weight_update()

    @torch.no_grad()
    def check(self, run):
        fresh = self.load(run, self.rank, **self.options)
        for (name, is_), wanted in zip(self.model.named_parameters(), fresh.parameters()):
            assert torch.equal(bits(is_), bits(wanted)), name
        assert self.pointers() == self.addresses, "a weight has moved"
        if ON_GPU:
            self.graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(bits(self.output), bits(fresh(self.tokens)))


class Ranks:
    """An engine of two processes."""

    def __init__(self, run, tied=False):
        self.tied = tied
        self.processes = [subprocess.Popen(
            [sys.executable, vllm_rank.__file__, DEVICE, str(rank), run.dir, run.where / "meeting",
             "tied" if tied else "apart"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True) for rank in range(2)]
        self.is_late = threading.Timer(300, self.kill)  # ranks that wait for each other for ever
        self.is_late.start()

    def kill(self):
        for process in self.processes:
            process.kill()

    def close(self):
        self.is_late.cancel()
        self.kill()
        for process in self.processes:
            process.communicate()

    def call(self, call, *values):
        """VALUES are those of each rank. Returns the errors."""
        for process, one in zip(self.processes, values, strict=True):
            if dataclasses.is_dataclass(one):
                one = dataclasses.asdict(one)
            process.stdin.write(json.dumps([call, one]) + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes]
        self.hashes = [answer["hashes"] for answer in answers]
        return [answer["error"] for answer in answers]

    def check(self, live):
        for rank in range(2):
            fresh = stand_in.Model(rank, DEVICE, tied=self.tied)
            fresh.load_weights(live.items())
            assert self.hashes[rank] == vllm_rank.hashes(fresh), f"rank {rank}"


class Check(unittest.TestCase):
    def setUp(self):
        self.run_ = Run(pathlib.Path(self.enterContext(
            tempfile.TemporaryDirectory(prefix="vllm-check-"))))
        self.addCleanup(self.run_.close)
        stand_in.log.lines.clear()
        stand_in.reloads.clear()

    def engine(self, rank, **options):
        engine = Engine(self.run_, rank, **options)
        self.addCleanup(engine.backend.shutdown)
        return engine

    def test_patches_of_an_agent(self):
        run = self.run_
        engines = [self.engine(rank) for rank in range(2)]
        for engine in engines:
            engine.check(run)  # learning has changed nothing
            self.assertEqual(engine.backend._weights.reasons, {})
            engine.update(run.snapshot())
        for share in (0.02, 0.5):
            run.publish(share)
            run.follower.stage()
            if ON_GPU:  # before the pause
                for engine in engines:
                    wait_until(lambda: engine.backend._weights._ready)
            update = run.update()
            for engine in engines:
                engine.update(update)
                engine.check(run)
            run.follower.finish()
        self.assertEqual(stand_in.reloads, [])

    def test_other_weights_take_no_patch(self):
        run = self.run_
        engine = self.engine(1)
        engine.update(run.snapshot())
        run.publish(0.5)
        run.follower.stage()
        weight = engine.model.model.layers.get_submodule("1").moe.experts.w13_weight
        with torch.no_grad():
            weight.view(torch.int16)[-1] ^= 1
        before = [bits(p) for p in engine.model.parameters()]
        update = run.update()
        with self.assertRaises(dw.Stale) as raised:
            engine.update(update)
        self.assertIn("experts", str(raised.exception))
        for is_, was in zip(engine.model.parameters(), before):
            self.assertTrue(torch.equal(bits(is_), was))
        run.follower.finish()
        engine.update(run.snapshot())
        engine.check(run)
        self.assertEqual(stand_in.reloads, [])

    def test_a_stream(self):
        run = self.run_
        engine = self.engine(0)
        engine.backend.init_transfer_engine(backend.InitInfo(
            url=run.url, dir=str(run.where / "own"), interval=0.05))
        engine.update(backend.UpdateInfo(version=0))
        engine.check(run)
        for version in (1, 2):
            run.publish()
            if ON_GPU:
                wait_until(lambda: engine.backend._weights._ready)
            engine.update(backend.UpdateInfo(version=version))
            engine.check(run)

    def test_a_layer_that_computes(self):
        run = self.run_
        engine = self.engine(0, doubled=True)
        self.assertEqual(list(engine.backend._weights.reasons), ["model.norm.weight"])
        self.assertTrue(any("model.norm.weight is loaded anew" in line
                            for line in stand_in.log.lines))
        # what vLLM holds differs from the directory, so only a whole load makes it known
        engine.update(run.snapshot())
        run.publish()
        run.follower.stage()
        engine.update(run.update())
        engine.check(run)

    def other_run(self, **options):
        where = pathlib.Path(tempfile.mkdtemp(dir=self.run_.where))
        run = Run(where, **options)
        self.addCleanup(run.close)
        return run

    def loads(self, engine):
        """Counts the whole loads from now on."""
        loads, load = [], engine.backend._weights.load
        engine.backend._weights.load = lambda *args: (loads.append(args), load(*args))
        return loads

    def test_a_first_contact_compares(self):
        run = self.run_
        engine = self.engine(0)
        loads = self.loads(engine)
        engine.update(run.snapshot())  # it was started from the directory
        engine.update(run.snapshot())  # another agent
        self.assertEqual(loads, [])
        with torch.no_grad():
            engine.model.model.norm.weight.view(torch.int16)[3] ^= 1
        engine.update(run.snapshot())
        self.assertEqual(len(loads), 1)
        engine.check(run)

    def test_nothing_is_patched_before_it_is_proven(self):
        run = self.run_
        engine = self.engine(0)
        run.publish()
        run.follower.stage()
        with self.assertRaisesRegex(RuntimeError, "the weights are not known"):
            engine.update(run.update())
        run.follower.finish()
        engine.update(run.snapshot())
        engine.check(run)

    def test_a_patch_of_another_stream(self):
        run, other = self.run_, self.other_run(seed=4)
        engine = self.engine(0)
        engine.update(run.snapshot())
        other.publish()
        other.follower.stage()
        with self.assertRaisesRegex(RuntimeError, "version 0 of another stream"):
            engine.update(other.update())
        engine.check(run)
        other.follower.finish()
        engine.update(other.snapshot())
        engine.check(other)

    def test_a_version_that_lacks_tensors(self):
        run = self.run_
        lacks = ["model.norm.weight", "lm_head.weight", "model.layers.1.mlp.down_proj.weight",
                 "model.layers.0.mlp.gate_proj.weight",
                 "model.layers.0.moe.experts.3.up_proj.weight"]
        for name in lacks:
            engine = self.engine(0)
            engine.backend.parallel_config.world_size = 1
            engine.update(run.snapshot())
            other = self.other_run(lacks=[name], seed=4)
            with self.assertRaisesRegex(
                    RuntimeError, f"nothing was stored: the version has no {name}, "):
                engine.update(other.snapshot())
            engine.check(run)
        run.publish()  # it goes on where it was
        run.follower.stage()
        engine.update(run.update())
        engine.check(run)

    def test_tensors_that_are_named_to_stay(self):
        run = self.run_
        engine = self.engine(0)
        engine.backend.vllm_config.additional_config = {"deltawire": {"keep": ["lm_*"]}}
        lacking, other = self.other_run(lacks=["lm_head.weight"]), self.other_run(seed=4)
        engine.update(run.snapshot())
        before = bits(engine.model.lm_head.weight)
        engine.update(lacking.snapshot())
        self.assertTrue(torch.equal(bits(engine.model.lm_head.weight), before))
        lacking.publish()
        lacking.follower.stage()
        engine.update(lacking.update())
        self.assertTrue(torch.equal(bits(engine.model.lm_head.weight), before))
        engine.update(other.snapshot())  # sets it
        with self.assertRaisesRegex(RuntimeError, "the version has no lm_head.weight, "):
            engine.update(lacking.snapshot())
        engine.check(other)

    def test_a_first_version_that_lacks_tensors(self):
        """An engine that was started without weights."""
        for name in ("model.norm.weight", "model.layers.0.self_attn.k_proj.weight"):
            other = self.other_run(lacks=[name])
            config = stand_in.config(self.run_.dir, 0)
            config.load_config.load_format = "dummy"
            made = backend.DeltawireEngine(None, config, torch.device(DEVICE),
                                           stand_in.Model(0, DEVICE))
            self.addCleanup(made.shutdown)
            with self.assertRaisesRegex(RuntimeError, f"the version has no {name}, "):
                made.receive_weights(other.snapshot())
            made.receive_weights(self.run_.snapshot())

    def test_one_memory_for_two_tensors(self):
        run = self.run_ = self.other_run(tied=True)
        engine = self.engine(0, tied=True)
        engine.update(run.snapshot())
        embedding, head = run.live["model.embed_tokens.weight"], run.live["lm_head.weight"]
        for is_equal in (True, False):
            embedding[5] += 1
            head[5] += 1
            head[6, 7] += 0 if is_equal else 1
            run.publisher.wait(run.publisher.publish())
            run.follower.stage()
            update = run.update()
            if is_equal:
                engine.update(update)
                engine.check(run)
            else:
                before = [bits(p) for p in engine.model.parameters()]
                for _ in range(2):  # the patch, then all
                    with self.assertRaisesRegex(
                            RuntimeError, "lm_head.weight and model.embed_tokens.weight are "
                            "one memory in this engine, and differ"):
                        engine.update(update)
                    update = run.snapshot()
                for is_, was in zip(engine.model.parameters(), before):
                    self.assertTrue(torch.equal(bits(is_), was))
            run.follower.finish()

    def test_interrupts_of_a_stream(self):
        """After each the next update brings the engine to the newest version."""
        run = self.run_
        engine = self.engine(0)
        info = backend.InitInfo(url=run.url, dir=str(run.where / "own"), interval=0.01)

        def follow():
            engine.backend.init_transfer_engine(info)

        def update():
            engine.update(backend.UpdateInfo(version=run.publisher.version))

        def check():
            try:
                update()
            except RuntimeError as error:  # what was interrupted is not done
                self.assertIn("needs the stream's url", str(error))
                follow()
                update()
            engine.check(run)

        def check_init():
            with self.assertRaisesRegex(RuntimeError, "needs the stream's url"):
                engine.backend.shutdown()
                update()
            follow()
            check()

        at_each_line(follow, check, 10)
        at_each_line(follow, check_init, 10)
        at_each_line(update, check, 20, run.publish)

    def test_interrupts_of_patches(self):
        """After each the engine takes the patch, or asks for the whole directory."""
        run = self.run_
        engine = self.engine(0)
        engine.update(run.snapshot())
        info, whole = None, 0

        def stage():
            nonlocal info
            if not ON_GPU:  # which has it in a graph
                weight = engine.model.model.norm.weight
                weight.data = weight.data.clone()
                engine.addresses = engine.pointers()
            run.publish()
            run.follower.stage()
            info = run.update()

        def check():
            nonlocal whole
            try:
                engine.update(info)
            except RuntimeError as error:
                self.assertIn("send the whole directory", str(error))
                whole += 1
            run.follower.finish()
            engine.update(run.snapshot())
            engine.check(run)

        at_each_line(lambda: engine.update(info), check, 20, stage)
        self.assertGreater(whole, 10)

    def test_real_signals(self):
        """At any instruction, and inside the library: also while a lock is taken or given back."""
        run, n_interrupts = self.run_, 0
        engine = self.engine(0)
        engine.backend.init_transfer_engine(backend.InitInfo(
            url=run.url, dir=str(run.where / "own"), interval=0.01))
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        for i in range(60):
            run.publish()
            info = backend.UpdateInfo(version=run.publisher.version)
            try:
                signal.setitimer(signal.ITIMER_REAL, (1 + i % 30) * 3e-4)
                engine.update(info)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                n_interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            engine.update(info)
            engine.check(run)
        self.assertGreater(n_interrupts, 0)

    def test_interrupts_of_learning(self):
        """The model has other memory then."""
        run, engine = self.run_, None

        def make():
            nonlocal engine
            if engine:
                engine.backend.shutdown()  # its thread looks for patches all the time
            engine = self.engine(0, load_format="dummy")

        def check():
            engine.update(run.snapshot())
            engine.check(run)

        at_each_line(lambda: engine.update(run.snapshot()), check, 100, make)

    def ranks(self, run, **options):
        ranks = Ranks(run, **options)
        self.addCleanup(ranks.close)
        return ranks

    def stores(self, ranks, *infos):
        self.assertEqual(ranks.call("update", *(infos * 2)[:2]), [None, None])
        ranks.check(self.run_.live)

    def refuses(self, ranks, was, why, *infos):
        """On both ranks, with the weights that they had."""
        for error in ranks.call("update", *infos):
            self.assertRegex(error or "", f"^nothing was stored: {why}")
        ranks.check(was)

    def copied(self):
        return {name: weight.clone() for name, weight in self.run_.live.items()}

    def damaged(self, update):
        """The patch, as if a rank read it wrong."""
        patch = bytearray(pathlib.Path(update.patch).read_bytes())
        patch[len(patch) // 2] ^= 4
        path = self.run_.where / "damaged"
        path.write_bytes(patch)
        return dataclasses.replace(update, patch=str(path))

    def test_all_ranks_store_or_none(self):
        run = self.run_
        ranks = self.ranks(run)
        self.stores(ranks, run.snapshot())
        lacking = self.other_run(lacks=["model.layers.0.moe.experts.3.up_proj.weight"], seed=4)
        for rank in range(2):
            was = self.copied()
            run.publish()
            run.follower.stage()
            update = run.update()
            infos = [update, update]
            infos[rank] = self.damaged(update)
            self.refuses(ranks, was, f"rank {rank}: .*damaged", *infos)
            infos[rank] = dataclasses.replace(update, from_version=7)
            self.refuses(ranks, was, f"rank {rank}: the patch starts from version 7", *infos)
            infos[rank] = dataclasses.replace(update, patch="/nowhere")
            self.refuses(ranks, was, f"rank {rank}: .*nowhere", *infos)
            self.stores(ranks, update)  # it was refused, and still fits
            run.follower.finish()
            infos = [run.snapshot()] * 2
            infos[rank] = lacking.snapshot()
            self.refuses(ranks, run.live, f"rank {rank}: the version has no model", *infos)
            infos[rank] = dataclasses.replace(run.snapshot(), dir="/nowhere")
            self.refuses(ranks, run.live, f"rank {rank}: .*nowhere", *infos)
        run.publish()
        run.follower.stage()
        self.stores(ranks, run.update())

    def test_ranks_of_which_one_has_tied_tensors_that_differ(self):
        run = self.run_ = self.other_run(tied=True)
        ranks = self.ranks(run, tied=True)
        self.stores(ranks, run.snapshot())
        other = self.other_run(tied=True)
        was = self.copied()
        for one in (run, other):
            one.live["model.embed_tokens.weight"][5] += 1
            one.live["lm_head.weight"][5] += 1
        other.live["lm_head.weight"][6, 7] += 1
        for one in (run, other):
            one.publisher.wait(one.publisher.publish())
            one.follower.stage()
        update = run.update()
        apart = dataclasses.replace(update, patch=other.update().patch)
        self.refuses(ranks, was, "rank 1: lm_head.weight and .* are one memory", update, apart)
        apart = dataclasses.replace(run.snapshot(), dir=str(other.dir))
        self.refuses(ranks, was, "rank 0: lm_head.weight and .* are one memory", apart,
                     run.snapshot())
        self.stores(ranks, update)

    def test_a_rank_that_fails_while_it_stores(self):
        """Then all say so, and nobody says that nothing was stored."""
        run = self.run_
        ranks = self.ranks(run)
        self.stores(ranks, run.snapshot())
        run.publish(0.5)
        run.follower.stage()
        update = run.update()
        ranks.call("flip", [], ["model.layers.1.moe.experts.w13_weight"])
        for error in ranks.call("update", update, update):
            self.assertIn("not what the patch replaces", error or "")
            self.assertNotIn("nothing was stored", error)
        run.follower.finish()
        self.stores(ranks, run.snapshot())

    def test_ranks_that_follow_a_stream(self):
        """Each by itself. One finds no store."""
        run = self.run_
        ranks = self.ranks(run)
        os.symlink(run.where / "run", run.where / "other")
        urls = [f"file://{run.where}/run", f"file://{run.where}/other"]
        self.assertEqual(ranks.call("init", *({"url": url, "interval": 600} for url in urls)),
                         [None, None])
        self.stores(ranks, backend.UpdateInfo(version=0))
        for version in (1, 2):
            was = self.copied()
            run.publish()
            os.rename(run.where / "other", run.where / "away")
            self.refuses(ranks, was, "rank 1: ", *[backend.UpdateInfo(version=version)] * 2)
            os.rename(run.where / "away", run.where / "other")
            self.stores(ranks, backend.UpdateInfo(version=version))

    @unittest.skipUnless(ON_GPU, "memory of a GPU")
    def test_learning_takes_no_memory_of_the_device(self):
        model = Engine.load(self.run_, 0)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        made = backend.DeltawireEngine(None, stand_in.config(self.run_.dir, 0),
                                       torch.device(DEVICE), model)
        self.addCleanup(made.shutdown)
        self.assertEqual(torch.cuda.max_memory_allocated(), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
