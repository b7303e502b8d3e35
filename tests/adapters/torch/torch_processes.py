"""What each process does in the distributed tests: a module, so that it can be spawned."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Projector

WORLD = 2
METHOD = gp.Decomposed(strength=0.3)


def data():
    return torch.randn(4, 8, 5, generator=torch.Generator().manual_seed(4))


def loss(model, x):
    return model(x).square().mean()


def alone(layers="module"):
    model = mlp(5, 6, 3)
    new, *old = data()
    Projector(model, METHOD, layers).backward(loss(model, new), (loss(model, x) for x in old))
    return [p.grad.clone() for p in model.parameters()]


def averaged(rank):
    """Every rank sees its half of each batch."""
    model = mlp(5, 6, 3)
    new, *old = data()[:, rank * 4 : rank * 4 + 4]
    projector = Projector(model, METHOD, distributed="average")
    projector.backward(loss(model, new), (loss(model, x) for x in old))
    return [p.grad.clone() for p in model.parameters()]


def replicated(rank, **options):
    """torch's own DistributedDataParallel averages in its backward; nothing is left to do."""
    inner = mlp(5, 6, 3)
    model = nn.parallel.DistributedDataParallel(inner, **options)
    new, *old = data()[:, rank * 4 : rank * 4 + 4]
    projector = Projector(model, METHOD)
    assert list(projector.layers) == ["0", "2"]
    projector.backward(lambda: loss(model, new), (loss(model, x) for x in old))
    return [p.grad.clone() for p in inner.parameters()]


def bucket_views(rank):
    return replicated(rank, gradient_as_bucket_view=True)


def plain_shards(rank):
    """Every rank holds some rows of each parameter as tensors of its own."""
    full = mlp(5, 6, 3)
    local = nn.ParameterList(p.detach().tensor_split(WORLD)[rank] for p in full.parameters())
    projector = Projector(local, METHOD, [["0", "1"], ["2", "3"]], distributed="sharded")

    def take(x):
        full.zero_grad()
        loss(full, x).backward()
        for shard, p in zip(local, full.parameters(), strict=True):
            shard.grad = p.grad.tensor_split(WORLD)[rank].clone()

    new, *old = data()
    for task, x in enumerate(old):
        take(x)
        projector.store(task)
    take(new)
    projector.project()
    parts = [None] * WORLD
    dist.all_gather_object(parts, [p.grad for p in local])
    return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]


def fully_sharded(rank):
    """FSDP2: parameters and gradients are DTensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = mlp(5, 6, 3)
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    for mode in (None, "average"):
        with pytest.raises(ValueError, match="is a DTensor, of which each process sees its own"):
            Projector(model, METHOD, distributed=mode)
    new, *old = data()[:, rank * 4 : rank * 4 + 4]
    projector = Projector(model, METHOD, distributed="sharded")
    projector.backward(lambda: loss(model, new), (loss(model, x) for x in old))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.step()
    return [p.grad.full_tensor().clone() for p in model.parameters()]


def overflowed(rank):
    """One rank's shard is not finite: all ranks skip the step, none waits for ever."""
    model = nn.Linear(3, 1, bias=False)
    projector = Projector(model, distributed="sharded", overflow="skip")
    model(torch.ones(1, 3)).sum().backward()
    projector.store(0)
    model.weight.grad = torch.full((1, 3), torch.nan if rank else 1.0)
    projector.project()
    assert projector.last is None
    return [model.weight.grad.clone()]


JOBS = [averaged, replicated, bucket_views, plain_shards, fully_sharded, overflowed]


def work(rank, folder):
    """Run all jobs, so that two processes start once; leave the answers in the folder."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
    )
    try:
        answers = {job.__name__: job(rank) for job in JOBS}
        torch.save(answers, f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
