"""`ProjectCallback` with the real Trainer of Lightning."""

import copy
import warnings

import pytest
import torch
from support.libraries import need
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

need("lightning")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from tiny_module import (  # noqa: E402
    TASKS,
    Module,
    evaluate,
    fit,
    loader,
    loss_on,
    train_both,
    trainer,
    weights,
)

import gradproj as gp  # noqa: E402
from gradproj.adapters.lightning import PreserveCallback, ProjectCallback  # noqa: E402
from gradproj.adapters.torch import EpisodicMemory, Preserver, Projector  # noqa: E402


def make(per_task=32, method=None, **options):
    return ProjectCallback(EpisodicMemory(per_task), method=method or gp.GEM(), **options)


def plain_loop(accumulate=1, clip=None, size=8):
    """The same two tasks without Lightning."""
    module = Module()
    optimizer = module.configure_optimizers()
    projector, memory = Projector(module, gp.GEM()), EpisodicMemory(32)

    def old(task):
        x, y = memory.sample(task, size)
        cross_entropy(module(x), y).backward()

    for task, (x, y) in enumerate(TASKS):
        for number, batch in enumerate(torch.arange(32).split(size), 1):
            (cross_entropy(module(x[batch]), y[batch]) / accumulate).backward()
            if number % accumulate:
                continue
            if memory.tasks:
                projector.project([lambda t=t: old(t) for t in memory.tasks])
            if clip:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        draws = torch.Generator().manual_seed(task)
        chosen = torch.randperm(32, generator=draws)
        memory.add(task, x[chosen], y[chosen])
    return module


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, None), (2, 0.1)])
def test_it_equals_a_plain_loop_bit_for_bit(tmp_path, accumulate, clip):
    callback = make()
    options = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    module = train_both(tmp_path, callback, **options)
    assert torch.equal(weights(module), weights(plain_loop(accumulate, clip)))
    assert callback.projector.last.corrected.any()
    assert callback.memory.tasks == (0, 1)


def test_the_old_task_is_kept(tmp_path):
    plain, projected = Module(), Module()
    for module, callbacks in ((plain, ()), (projected, (make(method=gp.GEM(strength=0.5)),))):
        fit(trainer(tmp_path, *callbacks, max_epochs=10), module, loader(0))
        learned = loss_on(module, 0)
        fit(trainer(tmp_path, *callbacks, max_epochs=10), module, loader(1))
    changes = [loss_on(module, 0) - learned for module in (plain, projected)]
    assert changes[0] > 1
    assert changes[1] < 0.5 * changes[0]


def test_batches_may_be_dicts_or_a_tensor(tmp_path):
    first = train_both(tmp_path, make())
    assert torch.equal(weights(train_both(tmp_path, make(), named=True)), weights(first))

    class Alone(Module):
        def training_step(self, batch):  # Lightning allows a step without an index
            return {"loss": self(batch).square().mean()}

    module, callback = Alone(), make()
    for task in range(2):
        data = DataLoader(TASKS[task][0], batch_size=8)
        fit(trainer(tmp_path, callback), module, data)
    assert callback.projector.last is not None


def test_bfloat16_is_close_to_float32(tmp_path):
    exact, rounded = (
        weights(train_both(tmp_path, make(), precision=precision)) - weights(Module())
        for precision in ("32-true", "bf16-mixed")
    )
    assert 0 < (rounded - exact).norm() < 0.05 * exact.norm()
    double = train_both(tmp_path, make(loss=double_loss), module=Double(), precision="64-true")
    assert double.body[0].weight.dtype == torch.float64


class Double(Module):
    def training_step(self, batch, _):
        return double_loss(self, batch)


def double_loss(module, batch):
    return cross_entropy(module(batch[0].double()), batch[1])


@pytest.mark.parametrize("kind", ["project", "preserve"])
def test_a_compiled_body_changes_nothing(tmp_path, kind):
    found = []
    for compiled in (False, True):
        module = Module()
        callback = (
            make() if kind == "project" else PreserveCallback(Preserver(module, strength=30.0))
        )
        if compiled:
            module.body.compile(backend="eager")
        train_both(tmp_path, callback, module)
        found.append(weights(module))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_only_training_steps_are_logged(tmp_path):
    """The loss of stored samples would be averaged into that of the training set."""
    seen = []

    class Watched(Module):
        def log(self, name, value, **options):
            seen.append(name)
            super().log(name, value, **options)

    callback, module = make(), Watched()
    fit(trainer(tmp_path, callback), module, loader(0))
    assert (seen, module.steps) == (["loss"] * 4, 4)
    second = trainer(tmp_path, callback)
    fit(second, module, loader(1))
    assert (seen.count("loss"), module.steps) == (8, 12)
    assert 0 <= float(second.callback_metrics["corrected"]) <= 1


def test_a_loss_of_its_own_replaces_the_training_step(tmp_path):
    module = Module()
    train_both(tmp_path, make(loss=lambda m, b: cross_entropy(m(b[0]), b[1])), module)
    assert module.steps == 8
    assert torch.equal(weights(module), weights(plain_loop()))


@pytest.mark.parametrize("method", [gp.GEM(), gp.SGEM(seed=3)])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, method):
    def options(saving=()):
        return {"max_epochs": 4, "enable_checkpointing": bool(saving)}

    callback, module = make(per_task=16, method=copy.deepcopy(method)), Module(momentum=0.9)
    for task in range(2):
        fit(trainer(tmp_path, callback, **options()), module, loader(task))
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(trainer(tmp_path, callback, saving, **options(saving)), module, loader(0))

    resumed, other = Module(momentum=0.9), make(per_task=16, method=copy.deepcopy(method))
    checkpoint = tmp_path / "epoch=1.ckpt"
    fit(trainer(tmp_path, other, **options()), resumed, loader(0), ckpt_path=checkpoint)
    assert torch.equal(weights(module), weights(resumed))
    assert other.memory.tasks == (0, 1, 2)


def test_a_checkpoint_for_a_test_does_not_take_the_task_back(tmp_path):
    callback, module = make(), Module()
    saving = ModelCheckpoint(tmp_path, filename="first")
    training = trainer(tmp_path, callback, saving, enable_checkpointing=True)
    fit(training, module, loader(0))
    evaluate(training, module, tmp_path / "first.ckpt")
    assert callback.memory.tasks == (0,)


def test_a_checkpoint_without_the_samples_is_refused(tmp_path):
    training = trainer(tmp_path)
    fit(training, Module(), loader(0))
    training.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(ValueError, match="written without ProjectCallback"):
        fit(
            trainer(tmp_path, make(), max_epochs=2),
            Module(),
            loader(0),
            ckpt_path=tmp_path / "plain.ckpt",
        )


def test_a_trainer_that_does_not_train_again_is_noticed(tmp_path):
    callback = make()
    training, module = trainer(tmp_path, callback), Module()
    fit(training, module, loader(0))
    with (
        pytest.warns(UserWarning, match="make a new Trainer for each task"),
        warnings.catch_warnings(action="ignore", category=FutureWarning),  # of Lightning
    ):
        training.fit(module, loader(1))
    assert callback.memory.tasks == (0,)


def test_a_step_without_a_loss_is_skipped(tmp_path):
    class Skipping(Module):
        def training_step(self, batch, _):
            return None if self.trainer.current_epoch == 0 else super().training_step(batch, 0)

    callback, module = make(), Skipping()
    fit(trainer(tmp_path, callback), Module(), loader(0))
    before = weights(module)
    fit(trainer(tmp_path, callback), module, loader(1))
    assert torch.equal(weights(module), before)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match=r"memory is a int; pass a .*EpisodicMemory"):
        ProjectCallback(32)
    with pytest.raises(TypeError, match=r"method is a ABCMeta; pass an instance"):
        ProjectCallback(method=gp.GEM)
    with pytest.raises(ValueError, match="old_batch_size=0 is invalid: expected an integer >= 1"):
        ProjectCallback(old_batch_size=0)


def test_settings_that_cannot_work_are_refused(tmp_path):
    class Manual(Module):
        automatic_optimization = False

    class Endless(IterableDataset):
        def __iter__(self):
            return iter(zip(*TASKS[0], strict=True))

    def error(kind, match, module=None, data=None, callback=None, **options):
        with pytest.raises(kind, match=match):
            fit(
                trainer(tmp_path, callback or make(), **options),
                module or Module(),
                loader(0) if data is None else data,
            )

    error(ValueError, "Manual uses manual optimization, for which", module=Manual())
    scaler = torch.amp.GradScaler("cpu")
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    error(ValueError, 'use precision="bf16-mixed"', plugins=[plugin])
    forking = trainer(tmp_path, strategy="ddp_fork", devices=2)
    with pytest.raises(ValueError, match="the state of ProjectCallback would be lost"):
        make().setup(forking, Module(), "fit")
    error(TypeError, "of a Endless without a length", data=DataLoader(Endless(), batch_size=8))
    error(TypeError, r"fit\(\) has 2 training data loaders", data=[loader(0), loader(1)])
    batches = DataLoader(loader(0).dataset, batch_sampler=[[0, 1], [2, 3]])
    error(ValueError, r"pass ProjectCallback\(old_batch_size=…\)", data=batches)
    words = DataLoader([("text", torch.ones(6))] * 8, batch_size=4)
    error(TypeError, r"batch\[0\] of the training data loader is a", Words(), words)


def test_the_older_package_is_named_in_the_error(tmp_path):
    older = pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    training = older.Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path)
    with pytest.raises(TypeError, match="the Trainer is from pytorch_lightning, and"):
        make().setup(training, Module(), "fit")


class Words(Module):
    def training_step(self, batch, _):
        return self(batch[1].float()).mean()
