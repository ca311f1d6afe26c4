"""The ranks of test_fsdp2.py: rank.py DIRECTORY JOB,JOB...:RANKS ... Jobs that share a stream are
in one argument. A job has one process for each rank, forked from this one, which has imported
everything. The last line in DIRECTORY/FIRST-JOB/said has their exit statuses."""
import collections
import copy
import os
import resource
import signal
import sys

import peft
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from transformers import Qwen3Config, Qwen3ForCausalLM

import deltawire as dw
import deltawire.torch
from deltawire._dtensor import is_sharded


def whole(tensor):
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor


def keep(publisher, tensors, version=None):
    """Writes the expected version: the whole tensors, gathered by PyTorch."""
    version = publisher.wait().version if version is None else version
    full = {name: whole(tensor).clone() for name, tensor in tensors.items()}
    if rank == 0:
        torch.save(full, f"{truth}/{version}.tmp")
        os.rename(f"{truth}/{version}.tmp", f"{truth}/{version}.pt")


def train():
    """A Qwen3, sharded by FSDP2; each step is a version."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=67, hidden_size=24, intermediate_size=35, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True))
    model.model.layers[0].self_attn.requires_grad_(False)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    frozen = model.model.layers[0].self_attn.q_proj.weight
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with deltawire.torch.Publisher(model, optimizer, url=url, publish_every=2,
                                   rank_timeout=300) as publisher:
        tensors = deltawire.torch.named_tensors(model)
        assert "lm_head.weight" not in tensors and len(tensors) == 24, tensors.keys()
        keep(publisher, tensors, 0)
        for step in range(6):
            torch.manual_seed(step * ranks + rank)
            tokens = torch.randint(0, 67, (2, 8))
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 2:
                keep(publisher, tensors)
                with torch.no_grad():
                    frozen.to_local().add_(1)  # does not change the tensor's version
        assert publisher.steps == 6 and publisher.version == 3


def merged():
    """Adapters of PEFT over a Qwen3, sharded by FSDP2. The truth is PEFT's, without ranks."""
    def make(targets, **changes):
        torch.manual_seed(0)
        return peft.get_peft_model(Qwen3ForCausalLM(small), peft.LoraConfig(
            r=4, init_lora_weights=False, target_modules=targets, **changes))

    small = Qwen3Config(
        vocab_size=67, hidden_size=24, intermediate_size=35, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True)
    for number, changes in enumerate([
            {"targets": ["q_proj", "down_proj", "embed_tokens"]},
            {"targets": ["v_proj"], "use_dora": True, "modules_to_save": ["norm"]}]):
        model, plain = make(**changes), make(**changes)
        for layer in model.base_model.model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        with deltawire.torch.Publisher(model, optimizer, url=url, start_step=2 * number,
                                       rank_timeout=300) as publisher:
            for step in range(3):
                if step:
                    torch.manual_seed(step * ranks + rank)
                    tokens = torch.randint(0, 67, (2, 8))
                    model(input_ids=tokens, labels=tokens).loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                plain.load_state_dict({name: tensor.full_tensor() if is_sharded(tensor) else tensor
                                       for name, tensor in model.state_dict().items()})
                keep(publisher, deltawire.torch.named_tensors(
                    copy.deepcopy(plain).merge_and_unload()),
                    None if step else publisher.version)


def layouts():
    """Meshes of two dimensions, splits along every dimension, and replicated tensors."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    torch.manual_seed(0)
    flat = torch.randn(11, 6)
    linear = torch.nn.Linear(6, 10, bias=False)  # tensor parallel, then FSDP: strided rows
    parallelize_module(linear, mesh["inner"], ColwiseParallel())
    fully_shard(linear, mesh=mesh["outer"])
    model = {
        "hsdp": distribute_tensor(flat.clone(), mesh, [Replicate(), Shard(0)]),
        "rows_twice": distribute_tensor(flat.clone(), mesh, [Shard(0), Shard(0)]),
        "columns": distribute_tensor(flat.clone(), mesh, [Shard(1), Replicate()]),
        "both": distribute_tensor(flat.clone(), mesh, [Shard(0), Shard(1)]),
        "last": distribute_tensor(torch.randn(3, 4, 5).bfloat16(), mesh, [Replicate(), Shard(2)]),
        "everywhere": distribute_tensor(flat.clone(), mesh, [Replicate(), Replicate()]),
        "few_rows": distribute_tensor(torch.randn(1, 3), mesh, [Shard(0), Shard(0)]),
        "as_few": distribute_tensor(torch.randn(1, 3), mesh, [Shard(0), Shard(0)]),
        "strided": linear.weight,
        "plain": torch.randn(5),
        "scalar": torch.tensor(1.5),
    }
    if rank == 3:
        model["of_the_last_rank"] = torch.full((4,), 2.0)
    with deltawire.torch.Publisher(model, url=url, rank_timeout=300) as publisher:
        named = {name: tensor for name, tensor in model.items() if name != "of_the_last_rank"}
        keep(publisher, named, 0)
        for step in range(1, 4):
            with torch.no_grad():
                for tensor in model.values():
                    tensor.mul_(1.25)
            publisher.publish(step=step)
            keep(publisher, named)
    for wrong, text in [
        (lambda: deltawire.torch.Follower({"x": model["hsdp"]}, url), "is a DTensor"),
        (lambda: deltawire.torch.Publisher({"x": DTensor.from_local(
            flat, mesh, [Partial(), Replicate()])}, url=url), "Partial"),
        (lambda: deltawire.torch.Publisher(  # fails on one rank, and all of them raise
            {"x": flat.to(torch.complex128) if rank == 2 else flat}, url=url,
            group=dist.group.WORLD), "'x' is torch.complex128 on rank 2"),
        (lambda: deltawire.torch.Publisher({"x": model["hsdp"]}, url=url, start_step=rank // 2),
         "start_step is 0 on rank 0 and 1 on rank 2"),
        (publisher.publish, "give `step`"),
    ]:
        try:
            wrong()
            raise AssertionError(text)
        except ValueError as error:
            assert text in str(error), error


def simple(publish, rank_timeout=300, **options):
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    model = {name: distribute_tensor(torch.randn(rows, 64), mesh, [Shard(0)])
             for name, rows in [("a", 501), ("b", 3), ("c", 2048)]}
    publisher = deltawire.torch.Publisher(model, url=url, rank_timeout=rank_timeout, **options)
    publish(publisher, model)
    publisher.close()


def change(model):
    with torch.no_grad():
        for tensor in model.values():
            tensor.mul_(1.01)


def die(amid):
    """Rank 1 is killed before or during its part."""
    def publish(publisher, model):
        keep(publisher, model, 0)
        change(model)
        publisher.publish(step=1)
        keep(publisher, model)
        change(model)
        keep(publisher, model, 2)  # the next version, if it is committed
        dist.barrier()
        if rank == 1 and not amid:
            os.kill(os.getpid(), signal.SIGKILL)
        publisher.publish(step=2)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            print("committed", publisher.wait().version, file=said)
        except dw.Unavailable as error:
            print("failed:", error, file=said)
        os._exit(0)  # gloo cannot shut down with a dead rank
    simple(publish, rank_timeout=30)  # rank 0 waits for the dead one so long


def resume():
    """A restart from the weights of version 0, wherever the last run stopped: opening publishes
    them."""
    def publish(publisher, model):
        keep(publisher, model, publisher.version)
        for _ in range(4):
            change(model)
        publisher.publish(step=1)
        keep(publisher, model)
    simple(publish)


def not_finite(publisher, weights):
    """Rank 1 has NaN in a block of both ranks, and both fail at once."""
    before = weights.clone()
    with torch.no_grad():
        weights.fill_(float("nan") if rank == 1 else 5.0)
    publisher.publish(step=4)
    try:
        publisher.wait()
        raise AssertionError("not finite")
    except dw.Error as error:
        assert "up.weight" in str(error), error
    with torch.no_grad():
        weights.copy_(before)


def quantised(scheme):
    """FSDP2 splits rows anywhere, so that ranks share blocks; a tensor parallel one is split by
    columns and redistributed."""
    def run():
        mesh = init_device_mesh("cpu", (ranks,))
        torch.manual_seed(0)
        model = torch.nn.Sequential(collections.OrderedDict(
            embed_tokens=torch.nn.Embedding(50, 200), up=torch.nn.Linear(200, 301),
            down=torch.nn.Linear(301, 200), few=torch.nn.Linear(200, 1)))
        fully_shard(model)
        columns = distribute_tensor(torch.randn(140, 260), mesh, [Shard(1)])
        tensors = deltawire.torch.named_tensors(model) | {"columns.weight": columns}
        options = dict(url=url, rank_timeout=60, quantize=scheme)
        with deltawire.torch.Publisher(tensors, **options) as publisher:
            keep(publisher, tensors, 0)
            for version in range(3):
                with torch.no_grad():
                    for tensor in tensors.values():
                        tensor.mul_(1 + 0.003 * version)
                    if rank == 1:  # a larger maximum in blocks that rank 0 shares
                        tensors["up.weight"].to_local()[0, 7] *= 9
                publisher.publish(step=version + 1)
                keep(publisher, tensors)
            if scheme == "fp8-block":
                not_finite(publisher, tensors["up.weight"].to_local()[:1, :1])
        with deltawire.torch.Publisher(tensors, **options) as publisher:  # nothing is new
            assert publisher.version == 3, publisher.version
        change(tensors)
        with deltawire.torch.Publisher(tensors, **options) as publisher:
            keep(publisher, tensors, 4)
            assert publisher.version == 4, publisher.version
    return run


def quantised_die():
    """Rank 1 is killed while rank 0 waits in the collective call."""
    def publish(publisher, model):
        keep(publisher, model, 0)
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        change(model)
        publisher.publish(step=1)
        try:
            print("committed", publisher.wait().version, file=said)
        except dw.Unavailable as error:
            print("failed:", error, file=said)
        os._exit(0)
    simple(publish, rank_timeout=5, quantize="fp8-block", quantize_also=["*"])


def quantised_resume():
    def publish(publisher, model):
        change(model)
        publisher.publish(step=1)
        keep(publisher, model)
    simple(publish, quantize="fp8-block", quantize_also=["*"])


def refuse():
    """One rank raises, and the other does not. Nobody waits for the limit, which is long."""
    model = {"columns": distribute_tensor(
        torch.arange(1.0, 256 * 512 + 1).reshape(256, 512), init_device_mesh("cpu", (ranks,)),
        [Shard(1)])}
    objects, failures = f"{truth}/stream/objects", []

    def on_error(error):
        failures.append(error)
        if rank == 1:
            raise error

    def say(what, call):
        try:
            print("rank", rank, what, call(), file=said)
        except dw.Error as error:
            print("rank", rank, what, type(error).__name__, error, file=said)

    def names(name):
        if rank == 1:
            raise dw.Invalid(f"no name for {name}")
        return name

    say("names", lambda: deltawire.torch.Publisher(model, url=url, names=names))
    dist.barrier()  # and both live on
    publisher = deltawire.torch.Publisher(model, url=url, rank_timeout=1200, on_error=on_error)
    keep(publisher, model, 0)
    dist.barrier()
    if rank == 0:  # a file replaces the directory
        os.rename(objects, objects + "-away")
        open(objects, "w").close()
    dist.barrier()
    change(model)
    publisher.publish(step=1)
    publisher.native.idle(None)
    dist.barrier()
    if rank == 0:
        os.unlink(objects)
        os.rename(objects + "-away", objects)
    dist.barrier()
    change(model)
    say("publish", lambda: (publisher.publish(step=2), publisher.wait()))
    assert len(failures) == 1, failures
    say("close", publisher.close)
    change(model)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
    say("open", lambda: deltawire.torch.Publisher(model, url=url, rank_timeout=1200))


def lose():
    """Ranks that skip and repeat steps; the tensors are full of the step."""
    mesh = init_device_mesh("cpu", (ranks,))
    model = {name: distribute_tensor(torch.zeros(8, 6), mesh, [Shard(dim)])
             for dim, name in enumerate(("rows", "columns"))}
    publisher = deltawire.torch.Publisher(model, url=url, rank_timeout=1200)
    for step in [(1, 2, 3, 4, 5, 5, 6, 9), (2, 4, 4, 5, 6, 7, 8, 9)][rank]:
        for tensor in model.values():
            tensor._local_tensor.fill_(step)
        ticket = publisher.publish(step=step)
        try:
            print(f"rank {rank} step {step}", ticket and publisher.wait(ticket).version, file=said)
        except dw.Unavailable as error:
            print(f"rank {rank} step {step}", error, file=said)
    publisher.close()


WORK = {"lose": lose, "fp8-block": quantised("fp8-block"), "int8-row": quantised("int8-row"),
        "quantised_die": quantised_die, "quantised_resume": quantised_resume, "train": train, "layouts": layouts, "die": lambda: die(False),
        "die_amid": lambda: die(True), "resume": resume, "refuse": refuse, "merged": merged}


def run_rank(job):
    dist.init_process_group("gloo", init_method=f"file://{truth}/meeting-{job}", rank=rank,
                            world_size=ranks)
    WORK[job]()
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # PyTorch's threads can abort an interpreter that ends (pytorch#179291)


def run_group(group):
    global rank, ranks, truth, url, said
    jobs, ranks = group.split(":")
    jobs, ranks = jobs.split(","), int(ranks)
    truth = f"{sys.argv[1]}/{jobs[0]}"
    url = f"file://{truth}/stream"
    os.makedirs(truth)
    said = open(f"{truth}/said", "w", buffering=1)
    for job in jobs:
        children = []
        for rank in range(ranks):
            children.append(fork(run_rank, job))
        print("statuses", *map(status_of, children), file=said)


def fork(work, argument):
    child = os.fork()
    if child == 0:
        work(argument)
        sys.exit()
    return child


def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# all groups at once: those with dead ranks mostly wait
sys.exit(max([status_of(child) for child in [fork(run_group, g) for g in sys.argv[2:]]]))
