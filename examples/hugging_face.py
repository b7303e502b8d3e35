"""Train a text classifier on two tasks in sequence with the Trainer of Hugging Face transformers.

    pip install gradproj[transformers]
    python examples/hugging_face.py

The texts are generated: all words of a text come from one of four groups, and the label is the
group. The first task has groups 0 and 1, and the second has groups 2 and 3. The table has the
accuracy on both tasks at the end.
"""

import tempfile

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from gradproj.adapters.torch import Preserver
from gradproj.adapters.transformers import DictMemory, PreserveCallback, ProjectedTrainer

WORDS = 20  # per group


def make_task(task, count=256, seed=0):
    draws = torch.Generator().manual_seed(10 * seed + task)
    samples = []
    for i in range(count):
        group = 2 * task + i % 2
        words = torch.randint(WORDS, (8,), generator=draws) + WORDS * group
        samples.append({"input_ids": words, "labels": group})
    return samples


class Classifier(nn.Module):
    """Any model works that a Trainer takes: it returns a dict with the loss."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(4 * WORDS, 32)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, input_ids, labels=None):
        logits = self.body(self.words(input_ids).mean(1))
        loss = None if labels is None else cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def make_model():
    torch.manual_seed(0)
    return Classifier()


def accuracy(model, samples):
    model.eval()
    ids = torch.stack([sample["input_ids"] for sample in samples])
    labels = torch.tensor([sample["labels"] for sample in samples])
    with torch.no_grad():
        return float((model(ids)["logits"].argmax(1) == labels).double().mean())


def make_trainers(folder, epochs):
    args = TrainingArguments(folder, num_train_epochs=epochs, learning_rate=1e-2, report_to=[],
                             per_device_train_batch_size=16, save_strategy="no", disable_tqdm=True,
                             logging_strategy="no", dataloader_pin_memory=False)  # fmt: skip
    yield "Trainer", Trainer(make_model(), args)
    memory = DictMemory(per_task=32)
    yield "ProjectedTrainer, 32 texts", ProjectedTrainer(make_model(), args, memory=memory)
    model = make_model()
    callback = PreserveCallback(Preserver(model, strength=10.0, when="step"))
    yield "PreserveCallback, no texts", Trainer(model, args, callbacks=[callback])


def main(epochs=5):
    tasks, tests = ([make_task(t, seed=seed) for t in range(2)] for seed in (0, 1))
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, trainer in make_trainers(folder, epochs):
            for task, samples in enumerate(tasks):
                trainer.train_dataset = samples
                trainer.train()
                if isinstance(trainer, ProjectedTrainer):
                    trainer.remember(task)
            shares = [f"{accuracy(trainer.model, test):7.1%}" for test in tests]
            lines.append(f"{name:28}" + "".join(shares))
    print(f"{'':28} task 1 task 2", *lines, sep="\n")


if __name__ == "__main__":
    main()
