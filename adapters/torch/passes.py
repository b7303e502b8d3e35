"""Forward and backward passes of one step, and the rows of the buffer that they write to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import Tensor

from gradproj.adapters.torch import checks, engines, statistics
from gradproj.adapters.torch.recorder import Recorder
from gradproj.adapters.torch.reductions import SumRow

Loss = Tensor | Callable[[], Tensor]


def run(
    recorder: Recorder, loss: Loss, number: int, *, row: int | None = None, add: bool = False
) -> None:
    """Run a loss backward: the new task's (0) or an old one's (from 1 on), into its row."""
    row = number if row is None else row
    value = _value(loss, number)
    recorder.aim(row, add=add)
    value.backward()  # type: ignore[no-untyped-call]
    recorder.take(row, add=add)


def one_by_one(
    recorder: Recorder,
    new_loss: Loss,
    old_losses: Iterable[Loss],
    reduction: SumRow | None,
    *,
    running_statistics: bool,
) -> None:
    """Run all losses backward; the new one first if it is a tensor, last if it is called."""
    if isinstance(new_loss, Tensor):
        run(recorder, new_loss, 0)
    with nullcontext() if running_statistics else statistics.kept(recorder.model):
        if not running_statistics:
            statistics.refuse_tensors(old_losses)
        for task, loss in enumerate(old_losses):
            if reduction is None:
                run(recorder, loss, task + 1)
            elif task in reduction.tasks:
                run(recorder, loss, task + 1, row=1, add=task != reduction.tasks[0])
                reduction.look_at(recorder.gradients)
            else:  # for what the pass itself does, such as moving the statistics of batch norm
                _value(loss, task + 1)
    if not isinstance(new_loss, Tensor):
        run(recorder, new_loss, 0)


def old_at_once(
    recorder: Recorder,
    loss: Callable[..., Tensor],
    old: Sequence[Sequence[Any]],
    reduction: SumRow | None,
) -> None:
    """Compute the old tasks' gradients by vmap; of a sum, all but the first."""
    model = recorder.model
    if reduction is None:
        recorder.write(engines.vectorised(model, loss, old), len(old))
        return
    first, *others = reduction.tasks
    if others:  # before the first, so that nothing has been done yet if torch cannot
        rest = partial(engines.total, model, loss, [old[task] for task in others])
        run(recorder, rest, others[0] + 1, row=1)
        reduction.look_at(recorder.gradients)
    run(recorder, partial(loss, model, *old[first]), first + 1, row=1, add=bool(others))


def _value(loss: Loss, row: int) -> Tensor:
    """Return the value of a loss, computed now if it is a function."""
    value = loss() if callable(loss) else loss
    checks.loss(value, "new_loss" if row == 0 else f"old_losses[{row - 1}]")
    return value
