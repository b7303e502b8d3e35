"""`PreserveCallback` with the real Trainer of Lightning."""

import math

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

from gradproj.adapters.lightning import PreserveCallback  # noqa: E402
from gradproj.adapters.torch import Preserver  # noqa: E402


def make(module, strength=30.0, when="gradient", **options):
    return PreserveCallback(Preserver(module, strength=strength, when=when), **options)


def plain_loop(when, accumulate=1, clip=None):
    """The same two tasks without Lightning."""
    module = Module(momentum=0.9)
    preserver = Preserver(module, strength=30.0, when=when)
    for x, y in TASKS:
        optimizer = module.configure_optimizers()
        with preserver.attach(optimizer):
            for number, batch in enumerate(torch.arange(32).split(8), 1):
                (cross_entropy(module(x[batch]), y[batch]) / accumulate).backward()
                if number % accumulate:
                    continue
                if clip:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        for batch in torch.arange(32).split(8):
            with torch.no_grad(), preserver.observe():
                module(x[batch])
        preserver.consolidate()
    return module


@pytest.mark.parametrize("when", ["gradient", "step"])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, None), (2, 0.1)])
def test_it_equals_a_plain_loop_bit_for_bit(tmp_path, when, accumulate, clip):
    module = Module(momentum=0.9)
    callback = make(module, when=when)
    options = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    train_both(tmp_path, callback, module, **options)
    assert torch.equal(weights(module), weights(plain_loop(when, accumulate, clip)))
    assert callback.preserver.tasks == 2


def test_the_old_task_is_kept(tmp_path):
    changes = []
    for strength in (0.0, 1000.0):
        module = Module()
        callback = make(module, strength)
        fit(trainer(tmp_path, callback, max_epochs=10), module, loader(0))
        learned = loss_on(module, 0)
        fit(trainer(tmp_path, callback, max_epochs=10), module, loader(1))
        changes.append(loss_on(module, 0) - learned)
    assert changes[0] > 1
    assert changes[1] < 0.2 * changes[0]


def test_mixed_precision(tmp_path):
    """bfloat16, and float16 with a scaler, which unscales before the projection."""

    def half():
        return [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]

    found = []
    for options in ({}, {"precision": "bf16-mixed"}, {"plugins": half()}):
        module, callback = Module(), None
        callback = make(module)
        for task in range(2):
            if "plugins" in options:
                options = {"plugins": half()}
            fit(trainer(tmp_path, callback, **options), module, loader(task))
        found.append(weights(module) - weights(Module()))
    for rounded in found[1:]:
        assert 0 < (rounded - found[0]).norm() < 0.05 * found[0].norm()


def test_observing_has_no_side_effects(tmp_path):
    module = Module()
    frozen = module.body[1].eval()
    seen = []
    module.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    training = trainer(tmp_path, make(module, batches=3))
    fit(training, module, loader(0))
    assert seen == [True] * 4 + [False] * 3
    assert module.training
    assert not frozen.training
    assert "loss" in training.callback_metrics
    assert not {"log", "log_dict"} & set(vars(module))


def test_padding_does_not_count(tmp_path):
    class Masked(Module):
        def training_step(self, batch, _):
            loss = self(batch["x"]).square().mean(-1)
            return (loss * batch["attention_mask"]).mean()

    x, mask = torch.randn(8, 3, 6), torch.tensor([[1, 1, 0]] * 8)
    data = DataLoader([{"x": x[i], "attention_mask": mask[i]} for i in range(8)], batch_size=4)
    module = Masked()
    callback = make(module)
    fit(trainer(tmp_path, callback), module, data)
    expected = Preserver(module, strength=30.0)
    with torch.no_grad(), expected.observe():
        module(x[:, :2])
    expected.consolidate()
    found, wanted = (p.state_dict()["layers"] for p in (callback.preserver, expected))
    assert found
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


def test_manual_optimization_with_two_optimizers(tmp_path):
    class Manual(Module):
        automatic_optimization = False

        def training_step(self, batch, _):
            loss = cross_entropy(self(batch[0]), batch[1])
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self):
            halves = self.body[0].parameters(), self.body[2].parameters()
            return [torch.optim.SGD(half, lr=self.lr) for half in halves], []

    manual, automatic = Manual(), Module()
    forward = {"forward": lambda module, batch: module(batch[0])}
    train_both(tmp_path, make(manual, **forward), manual)
    train_both(tmp_path, make(automatic, **forward), automatic)
    assert torch.equal(weights(manual), weights(automatic))
    with pytest.raises(ValueError, match=r"pass PreserveCallback\(forward=…\)"):
        fit(trainer(tmp_path, make(manual)), manual, loader(0))


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    module = Module(momentum=0.9)
    callback = make(module)
    fit(trainer(tmp_path, callback, max_epochs=4), module, loader(0))
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    options = {"max_epochs": 4, "enable_checkpointing": True}
    second = trainer(tmp_path, callback, saving, **options)
    fit(second, module, loader(1))

    resumed = Module(momentum=0.9)
    other = make(resumed)
    checkpoint = tmp_path / "epoch=1.ckpt"
    fit(trainer(tmp_path, other, max_epochs=4), resumed, loader(1), ckpt_path=checkpoint)
    assert torch.equal(weights(module), weights(resumed))
    assert other.preserver.tasks == 2

    second.save_checkpoint(tmp_path / "end.ckpt")
    states = torch.load(tmp_path / "end.ckpt", weights_only=True)["callbacks"]
    third = make(Module())
    third.load_state_dict(states["PreserveCallback"])
    assert third.preserver.tasks == 2


def test_a_checkpoint_for_a_test_does_not_take_the_task_back(tmp_path):
    module = Module()
    callback = make(module)
    saving = ModelCheckpoint(tmp_path, filename="first")
    training = trainer(tmp_path, callback, saving, enable_checkpointing=True)
    fit(training, module, loader(0))
    evaluate(training, module, tmp_path / "first.ckpt")
    assert callback.preserver.tasks == 1


def test_an_endless_loader_is_observed_as_long_as_it_was_trained_on(tmp_path):
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield from zip(*TASKS[0], strict=True)

    module = Module()
    callback = make(module)
    data = DataLoader(Endless(), batch_size=8)
    fit(trainer(tmp_path, callback, max_steps=3, max_epochs=-1), module, data)
    assert callback.preserver.tasks == 1


def test_a_failed_run_leaves_nothing_attached(tmp_path):
    module = Module()
    callback = make(module)
    with pytest.raises(ValueError, match="not enough values to unpack"):
        fit(trainer(tmp_path, callback), module, DataLoader(TASKS[0][0]))
    fit(trainer(tmp_path, callback), module, loader(0))
    assert callback.preserver.tasks == 1
    callback.preserver.apply()  # raises while an optimizer is attached


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"preserver is a Module; pass a"):
        PreserveCallback(Module())
    with pytest.raises(ValueError, match="batches=0 is invalid: expected an integer >= 1 or None"):
        make(Module(), batches=0)
    with pytest.raises(ValueError, match="have different modules"):
        fit(trainer(tmp_path, make(Module())), Module(), loader(0))
    module = Module()
    with pytest.raises(TypeError, match=r"fit\(\) has 2 training data loaders"):
        fit(trainer(tmp_path, make(module)), module, [loader(0), loader(1)])
    module = Module()
    preserver = Preserver(module, layers=["body.0"], strength=math.inf)
    module.configure_optimizers = lambda: torch.optim.SGD(module.body[2].parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no optimizer of the module trains a protected"):
        fit(trainer(tmp_path, PreserveCallback(preserver)), module, loader(0))
