"""The work of each process in the distributed tests, in a module so that it can be spawned."""

import warnings

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Projector

WORLD = 2
METHOD = gp.Decomposed(strength=0.3)
AGEM = gp.AGEM(strength=0.5)


def data():
    return torch.randn(4, 8, 5, generator=torch.Generator().manual_seed(4))


def loss(model, x):
    return model(x).square().mean()


def grads(model):
    return [p.grad.clone() for p in model.parameters()]


def alone(method=METHOD):
    model = mlp(5, 6, 3)
    new, *old = data()
    Projector(model, method).backward(loss(model, new), (loss(model, x) for x in old))
    return grads(model)


def half(rank):
    """Return this rank's half of each batch."""
    return data()[:, rank * 4 : rank * 4 + 4]


def tensors(model, projector, new, old):
    projector.backward(loss(model, new), [loss(model, x) for x in old])


def callables(model, projector, new, old):
    projector.backward(lambda: loss(model, new), [lambda x=x: loss(model, x) for x in old])


def as_batches(model, projector, new, old):
    del model
    projector.backward_batches(loss, (new,), [(x,) for x in old])


def averaged(rank, run=callables, method=METHOD):
    """Every rank sees its half of each batch."""
    model = mlp(5, 6, 3)
    new, *old = half(rank)
    run(model, Projector(model, method, distributed="average"), new, old)
    return grads(model)


def averaged_tensors(rank):
    return averaged(rank, tensors)


def averaged_batches(rank):
    return averaged(rank, as_batches)


def averaged_agem(rank):
    return averaged(rank, method=AGEM)


def accumulated(rank):
    """Two steps without zero_grad() add up."""
    model = mlp(5, 6, 3)
    new, *old = half(rank)
    projector = Projector(model, METHOD, distributed="average")
    for _ in range(2):
        callables(model, projector, new, old)
    return [grad / 2 for grad in grads(model)]


def drifting(rank):
    """A plain module without an option that averages: one warning, and local updates."""
    model = mlp(5, 6, 3)
    new, *old = half(rank)
    projector = Projector(model, METHOD)
    with pytest.warns(UserWarning, match='2 processes and distributed=None.*distributed="average"'):
        callables(model, projector, new, old)
    with warnings.catch_warnings(action="error"):
        callables(model, projector, new, old)
    return []


def replicated(rank, **options):
    """torch's own DistributedDataParallel averages in its backward; nothing is left to do."""
    inner = mlp(5, 6, 3)
    model = nn.parallel.DistributedDataParallel(inner, **options)
    new, *old = data()[:, rank * 4 : rank * 4 + 4]
    projector = Projector(model, METHOD)
    assert list(projector.layers) == ["0", "2"]
    projector.backward(lambda: loss(model, new), (loss(model, x) for x in old))
    return [p.grad.clone() for p in inner.parameters()]


def replicated_tensors(rank):
    """Losses whose forward passes were made before: refused, or averaged by the projector."""
    inner = mlp(5, 6, 3)
    model = nn.parallel.DistributedDataParallel(inner)
    new, *old = half(rank)
    projector = Projector(model, METHOD)
    with pytest.raises(
        ValueError, match=r"old_losses\[0\] was computed before an earlier backward"
    ):
        tensors(model, projector, new, old)
    with pytest.raises(ValueError, match=r"old_losses\[1\] was computed .* distributed=.average"):
        projector.backward(lambda: loss(model, new), iter([loss(model, x) for x in old]))
    tensors(model, Projector(model, METHOD, distributed="average"), new, old)
    return grads(inner)


def replicated_batches(rank):
    inner = mlp(5, 6, 3)
    model = nn.parallel.DistributedDataParallel(inner)
    new, *old = half(rank)
    as_batches(model, Projector(model, METHOD), new, old)
    return grads(inner)


def bucket_views(rank):
    return replicated(rank, gradient_as_bucket_view=True)


def bucket_views_accumulated(rank):
    """The update is added to a plain gradient that lies in a bucket of the wrapper."""
    inner = mlp(5, 6, 3)
    model = nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=True)
    new, *old = half(rank)
    for _ in range(2):  # the buckets are rebuilt after the first step
        model.zero_grad()
        loss(model, old[0]).backward()
    plain = grads(inner)
    as_batches(model, Projector(model, METHOD), new, old)
    return [total - g for total, g in zip(grads(inner), plain, strict=True)]


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


def fully_sharded(rank, run=callables):
    """FSDP2: parameters and gradients are DTensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = mlp(5, 6, 3)
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    model(data()[0])  # which leaves whole parameters until the next backward call
    for mode in (None, "average"):
        with pytest.raises(ValueError, match="is a DTensor, of which each process sees its own"):
            Projector(model, METHOD, distributed=mode)
    new, *old = half(rank)
    run(model, Projector(model, METHOD, distributed="sharded"), new, old)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.step()
    return [p.grad.full_tensor().clone() for p in model.parameters()]


def fully_sharded_tensors(rank):
    return fully_sharded(rank, tensors)


def fully_sharded_batches(rank):
    return fully_sharded(rank, as_batches)


def blocks_only(rank):
    """FSDP2 applied to a block and not to the whole model is refused."""
    del rank
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = mlp(5, 6, 3)
    fully_shard(model[0], mesh=init_device_mesh("cpu", (WORLD,)))
    with pytest.raises(ValueError, match=r"parameter '2.weight' is not sharded but '0.weight' is"):
        Projector(model, METHOD, distributed="sharded")
    return []


def hybrid(rank):
    """Each shard is held by both processes (HSDP); its inner products are counted once."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = mlp(5, 6, 3)
    mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicas", "shards"))
    fully_shard(model, mesh=mesh)
    new, *old = half(rank)
    callables(model, Projector(model, METHOD, distributed="sharded"), new, old)
    return [p.grad.full_tensor().clone() for p in model.parameters()]


def replicated_dtensors(rank):
    del rank
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor

    mesh = init_device_mesh("cpu", (WORLD,))

    def replicate(_, module, mesh):
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(distribute_tensor(p, mesh, [Replicate()])))

    model = distribute_module(mlp(5, 6, 3), mesh, replicate)
    with pytest.raises(ValueError, match=r"'0.weight' is a DTensor placed as .*not a shard"):
        Projector(model, METHOD, distributed="sharded")
    return []


def half_overflow(rank):
    """The update of one rank's shard does not fit into float16: all ranks skip the step."""
    model = nn.Linear(3, 1, bias=False).half()
    projector = Projector(
        model, gp.Decomposed(strength=1.0, shared=False), distributed="sharded", overflow="skip"
    )
    model.weight.grad = torch.full((1, 3), 60000.0 if rank else 1.0).half()
    projector.store(0)
    model.weight.grad = torch.full((1, 3), 60000.0 if rank else 1.0).half()
    projector.project()
    assert projector.last is None
    return [model.weight.grad.clone()]


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


EQUAL = [
    averaged,
    averaged_tensors,
    averaged_batches,
    accumulated,
    replicated,
    replicated_tensors,
    replicated_batches,
    bucket_views,
    bucket_views_accumulated,
    plain_shards,
    fully_sharded,
    fully_sharded_tensors,
    fully_sharded_batches,
    hybrid,
]
FSDP2 = (fully_sharded, fully_sharded_tensors, fully_sharded_batches, hybrid)
OTHERS = [averaged_agem, drifting, blocks_only, replicated_dtensors, half_overflow, overflowed]


def runs_fsdp2_on_the_cpu():
    """Whether FSDP2 works with gloo: torch 2.6 lacks both parts, torch 2.13 has them.

    FSDP2 records events on the CPU's stand-in for a stream, which torch 2.7 added. And it asks for
    the mean in reduce-scatter, for which older versions of gloo silently return the sum
    (https://github.com/pytorch/pytorch/issues/162338).
    """
    if not hasattr(torch.cpu.Stream, "record_event"):
        return False
    mean = torch.zeros(1)
    with warnings.catch_warnings(action="ignore"):  # newer versions of torch rename the function
        dist.reduce_scatter_tensor(mean, torch.ones(WORLD), op=dist.ReduceOp.AVG)
    return mean.item() == 1.0


def work(rank, folder):
    """Run all jobs, so that two processes start once; leave the answers in the folder."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD
    )
    try:
        left_out = () if runs_fsdp2_on_the_cpu() else FSDP2
        jobs = [job for job in EQUAL + OTHERS if job not in left_out]
        answers = {job.__name__: job(rank) for job in jobs}
        torch.save(answers, f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
