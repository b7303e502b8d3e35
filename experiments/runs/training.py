"""`Run`: train a learner on a stream, evaluate after each task, survive being killed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gradproj as gp
from gradproj.experiments import methods
from gradproj.experiments.common.errors import ConfigError, RunError
from gradproj.experiments.methods.config import RunConfig
from gradproj.experiments.methods.learner import Learner
from gradproj.experiments.methods.setup import Phase, Setup, Step
from gradproj.experiments.runs.checkpoint import check_readable
from gradproj.experiments.runs.environment import describe_environment
from gradproj.experiments.runs.events import Event, ignore
from gradproj.experiments.runs.folder import RunFolder
from gradproj.experiments.runs.log import StepLog
from gradproj.experiments.runs.record import guessed_classes
from gradproj.experiments.runs.resolve import differences
from gradproj.experiments.runs.signals import deferred_signals, never
from gradproj.experiments.runs.state import Position, TrainingState
from gradproj.experiments.streams import Stream, Task

__all__ = ["Interrupted", "Run"]


class Interrupted(KeyboardInterrupt):
    """The run was stopped; its folder holds a checkpoint from which it can continue."""


class Run:
    """A learner on a stream with its position, its record and its folder."""

    def __init__(
        self,
        config: RunConfig,
        stream: Stream,
        store: RunFolder,
        *,
        device: str = "cpu",
        data_dir: Path | None = None,
        report: Callable[[Event], None] = ignore,
    ) -> None:
        kind = methods.find(config.method)
        _check_suitable(kind, config, stream.scenario)
        self.config, self.stream, self.store = config, stream, store
        self.device = torch.device(device)
        self.listeners = [report]
        self.checkpoint_seconds = 60.0
        self.should_stop: Callable[[], bool] = never
        learner: Learner = kind(Setup(config, stream, self.device, data_dir))
        self.state = TrainingState.fresh(learner, config)
        self._stop = False
        self._readable = False

    @property
    def learner(self) -> Learner:
        """The method that is trained."""
        return self.state.learner

    def execute(self) -> dict[str, Any]:
        """Train to the end, from the checkpoint if there is one, and return the result."""
        self.store.describe(describe_environment(str(self.device)))
        self.log = StepLog(self.store.steps, self._resume())
        self._saved_at = time.monotonic()
        with deferred_signals(self._request_stop):
            try:
                self._train()
                self.log.sync()
            except gp.NotFiniteError as error:
                # Its advice is for callers; in a run, a smaller learning rate helps.
                raise self._diverged("its gradients hold NaN or infinity") from error
            finally:
                self.log.close()
        result = self._result()
        self.store.finish(self.config, result)
        self._tell(Event(kind="finished", message=f"ACC {result['metrics']['acc']:.4f}"))
        return result

    def _train(self) -> None:
        if not self.state.record.baseline:
            self._tell(Event(kind="evaluation", tasks=len(self.stream.tasks)))
            self.state.record.measure_baseline(self.learner, self.stream, self.device)
        for task in self.stream.tasks[self.state.position.task :]:
            self._train_task(task)
            # None: the method takes no steps on this task.
            loss = self.state.losses.last
            if loss is not None and not math.isfinite(loss):
                raise self._diverged(f"its loss is {float(loss)}")
            self._evaluate(task)
            self._warn_at_chance(task)
            total = self.state.position.total
            self.state.position = Position(task=task.index + 1, total=total)
            self._maybe_checkpoint()

    def _warn_at_chance(self, task: Task) -> None:
        """Record a task that was trained without learning anything, and say so."""
        loss, record = self.state.losses.end_task(), self.state.record
        if loss is None or not self.learner.ready():
            return
        classes = guessed_classes(task, self.stream.scenario)
        if record.note_if_at_chance(task, loss, classes):
            accuracy = record.matrix[-1][task.index]
            message = (
                f"task {task.index + 1} was not learned: its mean loss {loss:.4g} and "
                f"its accuracy {accuracy:.4g} are not better than guessing one of {classes} "
                f"classes; try another lr (now {self.config.lr:g}) or more epochs"
            )
            self._tell(Event(kind="notice", message=message))

    def _diverged(self, sign: str) -> RunError:
        at, rate = self.state.position, self.config.lr
        return RunError(
            f"the training diverged in task {at.task + 1}, after step {at.total}: {sign}; "
            f"lower lr, which is {rate:g}"
        )

    def _train_task(self, task: Task) -> None:
        at, learner = self.state.position, self.learner
        if at.order is None:
            learner.current = task.index
            learner.begin_task(task)
        phases = learner.phases(task)
        passes = sum(phase.epochs for phase in phases)
        for number in range(at.phase, len(phases)):
            at.phase, phase = number, phases[number]
            if at.order is None:
                at.epoch = 0
                learner.begin_phase(task, phase)
            tensors = tuple(t.to(self.device) for t in learner.data(task, phase))
            for epoch in range(at.epoch, phase.epochs):
                at.epoch = epoch
                if at.order is None:
                    at.step = 0
                    at.order = torch.randperm(len(tensors[0]), generator=self.state.order)
                    learner.begin_epoch(task, phase, epoch)
                before = sum(each.epochs for each in phases[:number]) + epoch
                self._train_epoch(task, phase, tensors, at.order, (before, passes))
                at.order = None
        learner.end_task(task)

    def _train_epoch(
        self,
        task: Task,
        phase: Phase,
        tensors: tuple[Tensor, ...],
        order: Tensor,
        place: tuple[int, int],
    ) -> None:
        """Take the steps of one pass; `place`: those of this task before it, and all of them."""
        at = self.state.position
        batches = _batches(order, phase.batch)
        while at.step < len(batches):
            start = time.perf_counter()
            rows = batches[at.step].to(self.device)
            self.learner.model.train()
            step = self.learner.observe(task, *(t[rows] for t in tensors))
            if self.state.average is not None:
                self.state.average.update_parameters(self.learner.model)
            seconds = time.perf_counter() - start
            at.step, at.total = at.step + 1, at.total + 1
            self.state.record.train_seconds += seconds
            done = (place[0] + at.step / len(batches)) / place[1]
            self._log(task, phase, step, seconds, done)
            self._maybe_checkpoint()

    def _log(self, task: Task, phase: Phase, step: Step, seconds: float, done: float) -> None:
        at = self.state.position
        self.state.losses.add(step.loss)
        row: dict[str, Any] = {"step": at.total, "task": task.index, "phase": phase.name}
        row |= {"epoch": at.epoch, "loss": step.loss}
        if step.corrected is not None:
            row |= {"corrected": round(step.corrected, 4), "ranks": step.ranks}
        self.log.add(row | {"seconds": round(seconds, 6)})
        self._tell_progress("step", task, done, loss=step.loss, message=phase.name)

    def _evaluate(self, task: Task) -> None:
        self._tell_progress("evaluation", task, 1.0)
        state = self.state
        average = None if state.average is None else state.average.module
        state.record.measure(self.learner, self.stream, self.device, average)
        loss = math.nan if state.losses.last is None else state.losses.last
        accuracy = state.record.accuracy(task.index)
        self._tell_progress("task", task, 1.0, loss=loss, accuracy=accuracy)

    def _tell_progress(self, kind: str, task: Task, done: float, **values: Any) -> None:
        """Tell the listeners that `done`, a share, of the task is finished."""
        tasks, step = len(self.stream.tasks), self.state.position.total
        fraction = self._fraction(task, done)
        self._tell(
            Event(kind, task=task.index, tasks=tasks, step=step, fraction=fraction, **values)
        )

    def _fraction(self, task: Task, done: float) -> float:
        """Return the share of the whole run's work when `done` of this task is finished."""
        efforts = [self.learner.effort(each) for each in self.stream.tasks]
        return (sum(efforts[: task.index]) + done * efforts[task.index]) / sum(efforts)

    def _result(self) -> dict[str, Any]:
        return {
            "benchmark": self.config.benchmark,
            "method": self.config.method,
            "preset": self.config.preset,
            "scenario": self.stream.scenario,
            "seed": self.config.seed,
            "steps": self.state.position.total,
            "stored_per_task": self._stored_per_task(),
            **self.state.record.result(self.stream),
        }

    def _stored_per_task(self) -> float:
        """Return the training samples that are kept at the end, as a mean over the tasks."""
        return self.learner.stored_samples() / len(self.stream.tasks)

    # Stopping and continuing --------------------------------------------------------------------

    def _maybe_checkpoint(self) -> None:
        due = time.monotonic() - self._saved_at >= self.checkpoint_seconds
        # Not `self._stop = self._stop or …`: a Ctrl-C in the middle of it would be overwritten.
        if self.should_stop():
            self._stop = True
        if due or self._stop:
            self._checkpoint()
        if self._stop:
            self._tell(Event(kind="interrupted", message="continue with --resume"))
            raise Interrupted(f"stopped; {self.store.path} can be continued with --resume")

    def _checkpoint(self) -> None:
        log, state = self.log.sync(), self.state.to_dict()
        if not self._readable:
            check_readable(state["learner"], self.config.method)
            self._readable = True
        self.store.checkpoints.save({"config": self.config.to_json(), "log": log, **state})
        self._saved_at = time.monotonic()

    def _resume(self) -> int:
        """Go back to the newest checkpoint that can be used; return the length of its log."""
        state, problems = self.store.load_checkpoint()
        offset = 0 if state is None else self._restored(state)
        if problems:
            start = "the beginning" if state is None else f"step {self.state.position.total}"
            self._tell(Event(kind="notice", message=f"{'; '.join(problems)}; resumes from {start}"))
        return offset

    def _restored(self, state: dict[str, Any]) -> int:
        """Go back to a checkpoint; raise if it is not one of this run."""
        try:
            if not differences(self.config, json.loads(state["config"])):
                self.state.restore(state)
                return int(state["log"]["bytes"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f" ({type(error).__name__}: {error})"
        else:
            reason = ", but of another configuration"
        raise RunError(
            f"{self.store.path} holds a checkpoint that is not of this run{reason}; --force starts "
            "the run over"
        )

    def _request_stop(self) -> None:
        self._stop = True

    def _tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)


def _batches(order: Tensor, size: int) -> list[Tensor]:
    """Cut an order of samples into batches; one sample left over joins the batch before.

    Batch normalisation cannot be trained on a single vector.
    """
    batches = list(torch.split(order, size))
    if size > 1 and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _check_suitable(kind: type[Learner], config: RunConfig, scenario: str) -> None:
    """Raise if the method cannot be used with the benchmark or with a setting of the run."""
    if scenario not in kind.scenarios:
        raise ConfigError(
            f"method '{config.method}' is for the scenarios {', '.join(kind.scenarios)}; "
            f"benchmark '{config.benchmark}' is '{scenario}'"
        )
    if config.augment != "none" and not kind.augments:
        raise ConfigError(
            f"augment='{config.augment}': method '{config.method}' does not augment its "
            "images; leave it at 'none'"
        )
    if config.ema and not kind.averages:
        raise ConfigError(
            f"ema={config.ema:g}: method '{config.method}' cannot be evaluated with averaged "
            "weights; leave it at 0"
        )
