"""What users do to models, in random order, around a publisher and a follower; beside them a plain
copy of the trainer's weights. After each sync the live parameters are compared with it. On the CPU:
test_users.py; on a GPU: tests/gpu/users_check.py."""
import concurrent.futures
import contextlib
import copy
import io
import pickle
import random
import signal

import torch

import deltawire.torch
from at_each_line import is_interrupted

N_ACTIONS = 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.b = torch.nn.Linear(6, 4, bias=False)


def make(shape, device, dtype=torch.bfloat16):
    model = torch.nn.Sequential(*(Block() for _ in range(shape))).to(device, dtype)
    with torch.no_grad():  # the same in float16
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randint(-8, 8, tensor.shape) / 8)
    return model


def bits(tensor):
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)


class World:
    """A trainer with its publisher, a served model with its follower, and a plain copy."""

    def __init__(self, url, dice, device="cpu"):
        self.url, self.dice, self.device = url, dice, device
        self.log = []
        self.model = make(2, device, dice.choice((torch.bfloat16, torch.float32)))
        self.served = make(2, device)
        self.wanted = None
        self.publisher = self.follower = self.optimizer = None
        self.baseline = dice.choice(("device", "host"))
        self.reads = []  # pairs that are equal
        self.graphs = []  # of CUDA: each with the parameter that it reads, and what it writes
        self.paused = False
        self.is_beside = False  # a thread syncs
        self.first = None  # ties tensors

    # ---- the handles ----

    def open_publisher(self):
        if self.publisher is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.125)
            self.publisher = deltawire.torch.Publisher(
                self.model, self.optimizer, url=self.url, fold_every=0, baseline=self.baseline)

    def open_follower(self):
        if self.follower is None:
            self.follower = deltawire.torch.Follower(
                self.served, self.url, report=False, pause=self.pause, resume=self.resume)

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused = False

    def drop_publisher(self):
        if self.publisher is not None:
            self.publisher.close()
        self.publisher = None

    def drop_follower(self):
        if self.follower is not None:
            self.follower.close()
        self.follower = None

    def interrupt(self, call):
        """Perhaps at a line, perhaps by a signal, perhaps not."""
        way = self.dice.randrange(6)
        if way == 0:
            self.log.append("interrupted at a line")
            is_interrupted(self.dice.randrange(1, 60), call)
        elif way == 1:
            self.log.append("a signal")
            before = signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                signal.setitimer(signal.ITIMER_REAL, self.dice.randrange(1, 40) * 1e-4)
                call()
            except KeyboardInterrupt:
                pass
            finally:
                while True:  # the one signal may come up to the end of these calls
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        signal.signal(signal.SIGALRM, before)
                        break
                    except KeyboardInterrupt:
                        pass

    def publish(self):
        """A handle may refuse a changed model, and says so; then a new one is made."""
        self.train()
        for _ in range(4):
            try:
                self.open_publisher()
                with self.stream():
                    self.publish_once()
                break
            except Exception as error:
                self.refused(error)
                self.drop_publisher()
                self.mend(self.model)
        else:
            raise AssertionError("a new publisher refuses, too")

    def refused(self, error):
        """It may ask for a new handle, or, on a GPU, for one more publish. Nothing else."""
        self.log.append(f"refused: {error}")
        if not (isinstance(error, deltawire.Mismatch)
                or any(text in str(error) for text in (
                    "make a new publisher", "ake a new follower", "made by a hook",
                    "C-contiguous", "there was room for"))):
            raise error
        assert self.is_beside or not self.paused, "a whole model stays paused"

    def publish_once(self):
        if self.dice.random() < 0.3:
            self.steps()
        self.interrupt(self.publisher.publish)
        ticket = self.publisher.publish()
        self.wanted = {name: tensor.bfloat16() if tensor.dtype == torch.float32 else tensor
                       for name, tensor in plain(self.model).items()}
        if self.dice.random() < 0.3 and not self.is_beside:
            self.graph()
        if self.dice.random() < 0.5:  # this is not in the version
            if not all(tensor.is_cuda for tensor in self.model.parameters()):
                self.publisher.captured()
            self.train()
        self.publisher.wait(ticket)

    def steps(self):
        """Of the optimizer: each is published while the next one runs."""
        self.log.append("steps")
        for _ in range(self.dice.randrange(1, 4)):
            for parameter in self.model.parameters():
                if parameter.requires_grad and parameter.is_leaf:
                    parameter.grad = (torch.rand_like(parameter) < 0.2).to(parameter.dtype)
            self.optimizer.step()

    @contextlib.contextmanager
    def stream(self):
        """Perhaps a CUDA stream of its own."""
        if self.device != "cuda" or self.dice.random() < 0.5:
            yield
            return
        self.log.append("on a side stream")
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        try:
            with torch.cuda.stream(side):
                yield
        finally:
            main.wait_stream(side)

    def graph(self):
        """A CUDA graph that reads a served weight where it is."""
        weight = self.block(self.served).a.weight
        if not weight.is_cuda:
            return
        self.log.append("a CUDA graph")
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            out = weight.clone()
            for _ in range(100):  # long enough for the publisher's thread to do something
                out.copy_(weight)
        self.graphs.append((graph, weight, (weight.data_ptr(), weight.stride()), out))

    def replay(self):
        """They read what the parameter has, if it is where it was, in the same order."""
        for graph, weight, place, out in self.graphs:
            if weight.is_cuda and (weight.data_ptr(), weight.stride()) == place:
                graph.replay()
                assert torch.equal(bits(out), bits(weight.detach())), "a graph has other weights"

    def sync(self):
        for _ in range(2):
            try:
                self.open_follower()
                if self.dice.randrange(8) == 0:
                    self.sync_in_thread()
                else:
                    with self.stream():
                        self.interrupt(self.follower.sync)
                        self.follower.sync()
                break
            except Exception as error:
                self.refused(error)
                self.drop_follower()
                self.mend(self.served)
        else:
            raise AssertionError("a new follower refuses, too")
        assert not self.paused
        found = plain(self.served)
        assert found.keys() == self.wanted.keys()
        for name, tensor in self.wanted.items():
            assert torch.equal(bits(found[name]), bits(tensor)), f"{name} is not the trainer's"
        self.replay()
        while self.reads:
            now, later = self.reads.pop()
            assert torch.equal(bits(now), bits(later)), "weights changed while they were read"

    def sync_in_thread(self):
        self.log.append("in a thread")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(self.follower.sync).result()

    def beside(self):
        """A thread syncs while this one publishes."""
        if self.publisher is None or self.follower is None:
            return
        self.is_beside = True
        faults = []
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            synced = pool.submit(self.follower.sync)
            for call in (self.publish_once, synced.result):
                try:
                    call()
                except Exception as error:
                    self.refused(error)
                    faults.append(call)
        self.is_beside = False
        assert not self.paused, "a whole model stays paused"
        if synced.exception() is not None:
            self.drop_follower()
            self.mend(self.served)
        if self.publish_once in faults:
            self.publish()

    def mend(self, model):
        """What a user does after a refusal: hooks that copy, another order of elements, tensors
        that are not tied any more."""
        for module in model.modules():
            module._state_dict_hooks.clear()
        self.turn_back()
        if self.first is not None:
            self.first(model)

    # ---- what users do ----

    def train(self):
        if self.dice.random() < 0.2:
            self.sleep()
        with torch.no_grad():
            for tensor in self.model.parameters():
                if self.dice.random() < 0.7:
                    tensor[self.dice.randrange(len(tensor))].add_(0.125)
            if self.dice.random() < 0.5:
                for name, buffer in self.model.named_buffers():
                    if "running" in name:
                        buffer.add_(0.125)

    def either(self):
        return self.dice.choice((self.model, self.served))

    def block(self, model):
        return self.dice.choice(list(model))

    def new_parameter(self):
        block = self.block(self.either())
        block.a.weight = torch.nn.Parameter(block.a.weight.detach().clone())

    def new_values(self):
        block = self.block(self.served)
        block.b.weight = torch.nn.Parameter(torch.rand_like(block.b.weight))

    def new_data(self):
        for parameter in self.block(self.either()).parameters():
            parameter.data = parameter.data.clone()

    def new_buffer(self):
        norm = self.block(self.either()).norm
        norm.running_mean = norm.running_mean + 0

    def assign(self):
        model = self.either()
        model.load_state_dict({name: tensor.detach().clone()
                               for name, tensor in model.state_dict().items()}, assign=True)

    def load(self):
        model = self.either()
        model.load_state_dict({name: tensor.detach().clone()
                               for name, tensor in model.state_dict().items()})

    def cast(self):
        model = self.either()
        model.to(torch.float16).to(torch.bfloat16 if model is self.served else
                                   self.dice.choice((torch.bfloat16, torch.float32)))

    def move(self):
        """To the host, and perhaps back."""
        part = self.dice.choice((self.either(), self.block(self.either())))
        part.to("cpu")
        if self.dice.random() < 0.7:
            part.to(self.device)

    def stray(self):
        """Writes into memory that was freed."""
        for tensor in [*self.model.state_dict().values(), *self.served.state_dict().values()]:
            [torch.full_like(tensor, 99) for _ in range(4)]

    def read(self):
        """What a device was given to do before a sync reads the weights of before."""
        weight = self.block(self.served).a.weight.detach()
        now = weight.clone()
        with self.stream():
            self.sleep()
            self.reads.append((now, weight.clone()))

    def sleep(self):
        if self.device == "cuda":
            torch.cuda._sleep(self.dice.randrange(1, 20) * 1_000_000)  # up to ten milliseconds

    def turn(self):
        weight = self.block(self.either()).a.weight
        weight.data = weight.data.t().contiguous().t()

    def turn_back(self):
        for model in (self.model, self.served):
            for parameter in model.parameters():
                if not parameter.is_contiguous():
                    parameter.data = parameter.data.contiguous()

    def share(self):
        self.either().share_memory()

    def share_one(self):
        self.block(self.either()).b.weight.detach().share_memory_()

    def hook(self):
        kind = self.dice.choice(("clone", "detach", "view"))
        model = self.dice.choice((self.served, self.block(self.served)))

        def change(module, state, prefix, _):
            for name, tensor in list(state.items()):
                if name.startswith(prefix):
                    state[name] = (tensor.clone() if kind == "clone" else
                                   tensor.detach() if kind == "detach" else
                                   tensor.view(tensor.shape))
        model.register_state_dict_post_hook(change)

    def hook_of_trainer(self):
        self.block(self.model).register_state_dict_post_hook(
            lambda module, state, prefix, _: state.update(
                {name: tensor.clone() for name, tensor in state.items()
                 if name.startswith(prefix)}))

    def unhook(self):
        for module in (*self.model.modules(), *self.served.modules()):
            module._state_dict_hooks.clear()

    def freeze(self):
        self.block(self.either()).requires_grad_(self.dice.random() < 0.5)

    def swap_block(self):
        model = self.either()
        model[0] = copy.deepcopy(model[0])

    def pickled(self):
        """The served model is replaced as a whole; its handle has the old one."""
        self.drop_follower()
        for module in self.served.modules():
            module._state_dict_hooks.clear()
        self.served = pickle.loads(pickle.dumps(self.served))

    def saved(self):
        file = io.BytesIO()
        torch.save(self.model.state_dict(), file)
        file.seek(0)
        self.model.load_state_dict(torch.load(file), assign=self.dice.random() < 0.5)

    def compiled(self):
        """Wraps it; nothing is compiled before it is called."""
        torch.compile(self.either())

    def reopen(self):
        self.dice.choice((self.drop_publisher, self.drop_follower))()


ACTIONS = [value for name, value in vars(World).items() if name in (
    "new_parameter new_values new_data new_buffer assign load cast turn turn_back share share_one hook "
    "hook_of_trainer unhook freeze swap_block pickled saved reopen move stray read beside").split()]


def tie(model):
    model[1].b.weight = model[0].b.weight


def share_bias(model):
    model[1].a.bias.data = model[0].a.bias.data


def plain(model):
    """The parameters and buffers by name, without a state_dict."""
    return {name: tensor.detach().clone() for name, tensor in
            [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]}


def run(world):
    dice = world.dice
    world.first = dice.choice((None, tie, share_bias))
    if world.first is not None:
        world.log.append(world.first.__name__)
        world.first(world.model)
        world.first(world.served)
    world.publish()
    for _ in range(N_ACTIONS):
        for _ in range(dice.randrange(1, 3)):
            action = dice.choice(ACTIONS)
            world.log.append(action.__name__)
            action(world)
        if dice.random() < 0.7:
            world.log.append("publish")
            world.publish()
        world.log.append("sync")
        world.sync()


def check(path, seed, device="cpu"):
    """One sequence. An error has all that was done."""
    torch.manual_seed(seed)
    world = World(f"file://{path}", random.Random(seed), device)
    try:
        run(world)
        world.drop_follower()
        world.drop_publisher()
    except BaseException as error:
        raise AssertionError(f"sequence {seed}: {error}\n  " + "\n  ".join(world.log)) from error
