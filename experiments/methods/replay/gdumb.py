"""GDumb (Prabhu et al., 2020): a balanced memory, and a network trained on nothing else."""

# ruff: noqa: ARG002 - hooks have the arguments that some method needs

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradproj.experiments.common.schema import ranged
from gradproj.experiments.methods.augmentation import crop_and_flip, cutmix
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Phase, Setup, Step
from gradproj.experiments.streams import Task

__all__ = ["GDumb"]


@dataclass(frozen=True)
class Options:
    """How the network is trained on the memory.

    Attributes
    ----------
    passes, batch : int
        Passes over the memory, and samples per step.
    least_rate : float
        Learning rate at the end of each cosine, which starts at `lr`.
    clip : float
        Largest norm of a gradient. 0 does not clip.
    augment : bool
        Crops, mirrored images and CutMix in half of the steps.
    every_task : bool
        Train after each task. Otherwise train after the last task and measure only its row.
    masked : bool
        Where the task is known, let only the outputs of a sample's task compete in training, as all
        systems of the paper's tables do. GDumb's released code masks at test time only (False).
    """

    passes: int = ranged(128, low=1)
    batch: int = ranged(16, low=1)
    least_rate: float = ranged(0.0005, low=0.0)
    clip: float = ranged(10.0, low=0.0)
    augment: bool = False
    every_task: bool = True
    masked: bool = True


class GDumb(Learner):
    """Store a class-balanced subset, and train a new network on it before each test.

    As published: the sampler, and in the presets the optimizer, its schedule, clipping, CutMix and
    the number of passes. Not as published: the networks are those of the other systems; where tasks
    share their labels, a class is a pair of task and label; the released code fills the memory with
    the first samples of each class and reports its best test accuracy over all passes, here it is
    the last one. By default the outputs of other tasks are masked in training; see `masked`.

    The memory decides its accuracy. The paper does not state it, and here it is `memory.per_task`
    or `memory.total` like everywhere; each result counts the stored samples. The presets
    `gdumb-100` and `gdumb-150` of MNIST permutations have smaller ones.
    """

    name = "gdumb"
    scenarios = ("task", "domain", "class")
    averages = False
    Options = Options
    saved = (*Learner.saved, "images", "labels", "numbers", "counts")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.size = self.config.memory.budget(len(self.stream.tasks))
        self.images: list[Tensor] = []
        self.labels: list[int] = []
        self.numbers: list[int] = []
        self.counts: dict[tuple[int, int], int] = {}

    def stored_samples(self) -> int:
        """Count the samples in the memory."""
        return len(self.images)

    def ready(self) -> bool:
        """Whether the network has been trained on the memory of the current task."""
        return self._learns(self.current)

    def effort(self, task: Task) -> float:
        """Passes over as many samples: one to collect them, and those over the memory."""
        return 1.0 + (self.options.passes if self._learns(task.index) else 0)

    def phases(self, task: Task) -> Sequence[Phase]:
        """Collect in one pass, then learn."""
        collect = Phase("collect", 1, self.config.batch)
        learn = Phase("learn", self.options.passes, self.options.batch)
        return [collect, learn] if self._learns(task.index) else [collect]

    def data(self, task: Task, phase: Phase) -> tuple[Tensor, ...]:
        """Return the new samples, or the memory."""
        if phase.name == "collect":
            return task.train()
        return torch.stack(self.images), torch.tensor(self.labels), torch.tensor(self.numbers)

    def begin_phase(self, task: Task, phase: Phase) -> None:
        """Start from the initial weights again before learning."""
        if phase.name == "learn":
            self.model.load_state_dict(self.build_model().state_dict())
            self.optimizer = self.build_optimizer()

    def begin_epoch(self, task: Task, phase: Phase, epoch: int) -> None:
        """Warm up at a tenth of the rate, then cosines of 1, 2, 4, … passes."""
        high, low = self.config.lr, self.options.least_rate
        if epoch == 0:
            self.set_rate(high / 10)
            return
        # A cosine of 2ⁿ passes starts at pass 2ⁿ.
        cycle = int(math.log2(epoch))
        done = (epoch - 2**cycle) / 2**cycle
        self.set_rate(low + (high - low) * (1 + math.cos(math.pi * done)) / 2)

    def observe(self, task: Task, *batch: Tensor) -> Step:
        """Offer the samples to the memory, or learn from it."""
        if len(batch) == 2:
            for image, label in zip(batch[0], batch[1].tolist(), strict=True):
                self.offer(image, label, task.index)
            return Step(torch.zeros(()))
        x, y, numbers = batch
        masks = self.mask_rows(numbers) if self.options.masked else self._seen_outputs()
        return self.descend(self._augmented_loss(x, y, masks))

    def adjust_gradients(self) -> None:
        """Clip the gradient."""
        if self.options.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip)

    def offer(self, image: Tensor, label: int, number: int) -> None:
        """Store a sample if its class has less than its share; a full memory makes room for it.

        A class is a pair of task and label: where tasks share their labels, label alone would
        leave nothing to the later tasks.
        """
        mine = self.counts.get((number, label), 0)
        classes = len(self.counts) + (mine == 0)
        if mine and mine >= self.size / classes:
            return
        if len(self.labels) >= self.size:
            self._make_room()
        self.images.append(image.clone())  # or the whole batch would be kept with it, and saved
        self.labels.append(label)
        self.numbers.append(number)
        self.counts[number, label] = mine + 1

    def _seen_outputs(self) -> Tensor:
        """Return the mask of all outputs of the tasks so far."""
        return self.masks[: self.current + 1].amax(0)

    def _learns(self, number: int) -> bool:
        return bool(self.options.every_task) or number == len(self.stream.tasks) - 1

    def _make_room(self) -> None:
        largest = max(self.counts, key=lambda key: self.counts[key])
        self.counts[largest] -= 1
        keys = list(zip(self.numbers, self.labels, strict=True))
        rows = [i for i, key in enumerate(keys) if key == largest]
        row = rows[int(torch.randint(len(rows), (), generator=self.generator))]
        for stored in (self.images, self.labels, self.numbers):
            del stored[row]

    def _augmented_loss(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        if not self.options.augment:
            return self.loss(self.model, x, y, mask)
        x = crop_and_flip(x, self.generator)
        if float(torch.rand((), generator=self.generator)) < 0.5:
            return self.loss(self.model, x, y, mask)
        x, partner, kept = cutmix(x, self.generator)
        mask = mask.expand(len(y), -1)
        # The pasted part may belong to another task: both tasks' outputs compete.
        both = torch.maximum(mask, mask[partner])
        logits = self.model(x) + both
        entropy = nn.functional.cross_entropy
        return kept * entropy(logits, y) + (1 - kept) * entropy(logits, y[partner])
