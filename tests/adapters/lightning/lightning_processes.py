"""Jobs of the processes in the distributed tests: a module, so that it can be spawned."""

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.libraries import need

need("lightning")

from lightning.pytorch.strategies import DDPStrategy  # noqa: E402
from tiny_module import Module, fit, loader, trainer, weights  # noqa: E402

import gradproj as gp  # noqa: E402
from gradproj.adapters.lightning import PreserveCallback, ProjectCallback  # noqa: E402
from gradproj.adapters.torch import EpisodicMemory, Preserver  # noqa: E402

WORLD = 2


def options(world, views):
    if world == 1:
        return {}
    strategy = DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=views)
    return {"devices": world, "strategy": strategy, "use_distributed_sampler": False}


def train_both(folder, callback, module, world, views):
    """Give each process every second sample, so that a step sees the same samples as in one."""
    for task in range(2):
        data = loader(task).dataset
        rank = int(os.environ.get("RANK", 0))
        sampler = DistributedSampler(data, world, rank, shuffle=False)
        data = DataLoader(data, batch_size=8 // world, sampler=sampler)
        fit(trainer(folder, callback, **options(world, views)), module, data)


def project(folder, world, views=False):
    callback = ProjectCallback(EpisodicMemory(32), method=gp.GEM(), old_batch_size=8)
    module = Module()
    train_both(folder, callback, module, world, views)
    assert callback.projector.last.corrected.any()
    return weights(module)


def preserve(folder, world, views=False):
    module = Module()
    callback = PreserveCallback(Preserver(module, strength=30.0))
    train_both(folder, callback, module, world, views)
    assert callback.preserver.tasks == 2
    return weights(module)


JOBS = {"project": project, "preserve": preserve}


def work(rank, folder, port):
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",  # as if torchrun had started the processes
    }
    torch.set_num_threads(1)
    answers = {
        f"{name} {views}": job(folder, WORLD, views)
        for name, job in JOBS.items()
        for views in (False, True)
    }
    torch.save(answers, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()
