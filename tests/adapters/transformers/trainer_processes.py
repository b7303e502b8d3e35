"""Jobs of the processes in the distributed tests: a module, so that it can be spawned."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.libraries import need

need("transformers")

from tiny_texts import arguments, make_model, make_task, weights  # noqa: E402
from transformers import Trainer  # noqa: E402

import gradproj as gp  # noqa: E402
from gradproj.adapters.torch import Preserver  # noqa: E402
from gradproj.adapters.transformers import (  # noqa: E402
    DictMemory,
    PreserveCallback,
    ProjectedTrainer,
)

WORLD = 2


def options(folder, world):
    return arguments(
        folder,
        per_device_train_batch_size=8 // world,
        max_steps=2,
        average_tokens_across_devices=False,
        ddp_backend="gloo" if world > 1 else None,
    )


def project(folder, world):
    trainer = ProjectedTrainer(
        make_model(),
        options(folder, world),
        train_dataset=make_task(1),
        memory=DictMemory(per_task=16),
        method=gp.GEM(),
        old_batch_size=8,
    )
    trainer.remember("first", make_task(0))
    trainer.train()
    assert trainer.projector.last.corrected.any()
    return weights(trainer.model)


def preserve(folder, world):
    model = make_model()
    callback = PreserveCallback(Preserver(model, strength=10.0))
    trainer = Trainer(model, options(folder, world), train_dataset=make_task(0))
    trainer.add_callback(callback)
    trainer.train()
    trainer.train_dataset = make_task(1)
    trainer.train()
    assert callback.preserver.tasks == 2
    return weights(model)


JOBS = {"project": project, "preserve": preserve}


def work(rank, folder, port):
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    answers = {name: job(folder, WORLD) for name, job in JOBS.items()}
    torch.save(answers, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()
