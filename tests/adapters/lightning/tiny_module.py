"""A tiny LightningModule, two tasks that contradict each other, and a quiet Trainer."""

import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Samples as tuples, or as dicts."""

    def __init__(self, x, y, named=False):
        self.x, self.y, self.named = x, y, named

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]} if self.named else (self.x[i], self.y[i])


def make_task(kind, count=32):
    """Inputs of both tasks overlap, and task 1 has the opposite labels."""
    draws = torch.Generator().manual_seed(kind)
    x = torch.randn(count, 6, generator=draws)
    return x, ((x[:, 0] > 0).long() + kind) % 2


TASKS = [make_task(0), make_task(1)]


def loader(task, batch_size=8, named=False):
    return DataLoader(Samples(*TASKS[task], named), batch_size=batch_size)


class Module(LightningModule):
    """Automatic optimization; logs its loss, and counts its training steps."""

    def __init__(self, lr=0.2, momentum=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
        self.lr, self.momentum, self.steps = lr, momentum, 0

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, _):
        self.steps += 1
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        loss = cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def test_step(self, batch):
        self.log("test_loss", cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum)


def trainer(folder, *callbacks, **options):
    chosen = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": list(callbacks),
        "default_root_dir": folder,
    }
    with warnings.catch_warnings(action="ignore"):
        return Trainer(**(chosen | options))


def fit(trainer, module, data, **options):
    """Fit without Lightning's advice on data loaders."""
    with warnings.catch_warnings(action="ignore"):
        trainer.fit(module, data, **options)


def evaluate(trainer, module, checkpoint):
    """Test with the weights of a checkpoint."""
    with warnings.catch_warnings(action="ignore"):
        trainer.test(module, loader(0), ckpt_path=checkpoint, verbose=False)


def train_both(folder, callback, module=None, batch_size=8, named=False, **options):
    """Train on both tasks with one callback and a Trainer for each, and return the module."""
    module = module or Module()
    for task in range(2):
        fit(trainer(folder, callback, **options), module, loader(task, batch_size, named))
    return module


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def loss_on(module, task):
    module.eval()
    with torch.no_grad():
        x, y = TASKS[task]
        return float(cross_entropy(module(x), y))
