"""The back end of vLLM with a model that stands in for vLLM's: a patch must leave the weights of a
fresh load. `vllm_check.py cuda` on a GPU (scripts/test-gpu.sh), `vllm_check.py cpu` in make test;
with the package on PYTHONPATH. Exit status 77: there is no GPU or no PyTorch."""
import pathlib
import sys
import tempfile
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

import stand_in

stand_in.install()

import deltawire as dw
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

    def __init__(self, where):
        self.where, self.url = where, f"file://{where}/run"
        torch.manual_seed(3)
        self.live = {name: (torch.randn(shape) * 0.3).to(torch.bfloat16)
                     for name, shape in stand_in.shapes().items()}
        self.publisher = dw.Publisher(self.url, self.live, baseline_dir=where / "baseline")
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
        start, state = self.follower.version, self.follower.state
        self.follower.prepare()
        update = backend.UpdateInfo(
            kind="patch", from_version=start, version=self.follower.staged,
            dir=str(self.dir), patch=self.follower.staged_path)
        self.follower.apply()
        return update

    def snapshot(self):
        return backend.UpdateInfo(kind="snapshot", version=self.follower.version,
                                  state=self.follower.state, dir=str(self.dir))

    def close(self):
        self.follower.close()
        self.publisher.close()


class Engine:
    def __init__(self, run, rank, **options):
        self.model = self.load(run, rank, **options)
        self.rank, self.options = rank, options
        config = stand_in.config(run.dir, rank)
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
