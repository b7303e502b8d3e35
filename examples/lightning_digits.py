"""Train on three permutations of handwritten digits in sequence, with PyTorch Lightning.

    pip install gradproj[lightning] scikit-learn
    python examples/lightning_digits.py 0  # the seed

Each task shows the digits with the pixels in another order. The table has the accuracy on held-out
digits of each task after the last one, for a plain Trainer and for the two callbacks.
"""

import logging
import sys
import tempfile
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gradproj.adapters.lightning import PreserveCallback, ProjectCallback
from gradproj.adapters.torch import EpisodicMemory, Preserver

TASKS = 3


def make_tasks(seed):
    """Return a training and a test set for each task."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    draws = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=draws)
    train, test = order[:1400], order[1400:]
    tasks = []
    for _ in range(TASKS):
        pixels = torch.randperm(64, generator=draws)
        tasks.append([TensorDataset(x[part][:, pixels], y[part]) for part in (train, test)])
    return tasks


class Classifier(LightningModule):
    """Any module with automatic optimization works; nothing here is about continual learning."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, batch_idx):  # noqa: ARG002 (Lightning's signature)
        x, y = batch
        loss = cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def make_callbacks(module):
    yield "plain Trainer", []
    yield "ProjectCallback, 50 per task", [ProjectCallback(EpisodicMemory(50, policy="random"))]
    yield "PreserveCallback", [PreserveCallback(Preserver(module, strength=1.0, when="step"))]


@torch.no_grad()
def accuracy(module, data):
    x, y = data.tensors
    return float((module(x).argmax(1) == y).double().mean())


def main(seed=0, epochs=5):
    options = {"max_epochs": epochs, "accelerator": "cpu", "logger": False}
    quiet = ("checkpointing", "progress_bar", "model_summary")
    options |= {f"enable_{part}": False for part in quiet}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")  # advice of Lightning
    torch.manual_seed(seed)
    tasks, module = make_tasks(seed), Classifier()
    start = {name: value.clone() for name, value in module.state_dict().items()}
    print(f"{'':30}" + "".join(f" task {task + 1}" for task in range(TASKS)) + "   mean")
    for name, callbacks in make_callbacks(module):
        module.load_state_dict(start)
        torch.manual_seed(seed)
        for data, _ in tasks:
            with tempfile.TemporaryDirectory() as folder:
                trainer = Trainer(default_root_dir=folder, callbacks=callbacks, **options)
                trainer.fit(module, DataLoader(data, batch_size=32, shuffle=True))
        shares = [accuracy(module, test) for _, test in tasks]
        print(f"{name:30}" + "".join(f"{s:7.1%}" for s in [*shares, sum(shares) / TASKS]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
