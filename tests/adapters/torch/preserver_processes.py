"""The work of each process in the distributed tests of `Preserver`, in a module to be spawned."""

import pytest
import torch
from preserver_reference import fill
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradproj.adapters.torch import Preserver

WORLD = 2


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
    )


def tokens():
    return torch.randint(9, (6, 5), generator=torch.Generator().manual_seed(1))


def update(preserver):
    """Return what two tasks make of random gradients."""
    fill(preserver.model)
    preserver.apply()
    return [p.grad.clone() for p in preserver.model.parameters()]


def alone(**options):
    preserver = Preserver(network(), **options)
    for x in (tokens(), tokens() // 2):
        with preserver.observe():
            preserver.model(x)
        preserver.consolidate()
    return update(preserver)


def shared(rank, model, group, **options):
    preserver = Preserver(model, process_group=group, **options)
    for x in (tokens(), tokens() // 2):
        # Uneven parts: the moments are sums over samples, not means over processes.
        part = x[:2] if rank == 0 else x[2:]
        with torch.no_grad(), preserver.observe():
            preserver.model(part)
        preserver.consolidate()
    return update(preserver)


def replicated(rank):
    return shared(rank, nn.parallel.DistributedDataParallel(network()), None)


def plain(rank):
    return shared(rank, network(), dist.group.WORLD)


def hard(rank):
    model = nn.Sequential(*list(network())[1:])
    preserver = Preserver(model, share=0.9, process_group=dist.group.WORLD)
    x = network()[0](tokens()).detach()
    with preserver.observe():
        model(x[:2] if rank == 0 else x[2:])
    preserver.consolidate()
    return update(preserver)


def one_has_seen_nothing(rank):
    """A layer that one process did not use, and then one that observed nothing at all."""
    model = network()
    preserver = Preserver(model, process_group=dist.group.WORLD)
    x = network()[0](tokens()).detach()
    with torch.no_grad(), preserver.observe():
        model[0](tokens())
        if rank == 0:
            model[4](x)
    preserver.consolidate()
    if rank == 1:
        with torch.no_grad(), preserver.observe():
            model(tokens())
    preserver.consolidate()
    return update(preserver)


def sharded(rank):
    """FSDP2, before and after the preserver is built: a clear error, and a part that is whole."""
    del rank
    mesh = init_device_mesh("cpu", (WORLD,))
    with pytest.raises(ValueError, match=r"0\.weight: it is sharded over processes"):
        Preserver(fully_shard(nn.Sequential(nn.Linear(4, 4)), mesh=mesh))

    model = network()
    preserver = Preserver(model)
    fully_shard(model[2], mesh=mesh)
    with (
        pytest.raises(
            RuntimeError, match=r"layer '2' was sharded .* after the Preserver was built"
        ),
        preserver.observe(),
    ):
        pass

    preserver = Preserver(model)
    assert preserver.unprotected["2.weight"] == "it is sharded over processes (DTensor)"
    return []


JOBS = (replicated, plain, hard, one_has_seen_nothing, sharded)


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD
    )
    torch.save({job.__name__: job(rank) for job in JOBS}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
