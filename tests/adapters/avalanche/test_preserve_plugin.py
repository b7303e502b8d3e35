"""`PreservePlugin` with the real strategies of Avalanche."""

import pickle

import pytest
import torch
from support.libraries import need
from torch.nn.functional import cross_entropy

need("avalanche")

from avalanche.benchmarks.scenarios.online import split_online_stream  # noqa: E402
from tiny_benchmark import (  # noqa: E402
    TASKS,
    loss_on,
    make_benchmark,
    make_growing_model,
    make_model,
    make_strategy,
    train_all,
    weights,
)

from gradproj.adapters.avalanche import PreservePlugin  # noqa: E402
from gradproj.adapters.torch import Preserver  # noqa: E402

# The strategies of these tests log no metrics.
pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


def make(model, strength=30.0, when="gradient", **options):
    return PreservePlugin(Preserver(model, strength=strength, when=when), **options)


@pytest.mark.parametrize("when", ["gradient", "step"])
def test_it_equals_a_plain_loop_bit_for_bit(when):
    found = make_model()
    plugin = make(found, when=when)
    train_all(make_strategy(found, plugin, momentum=0.9))
    model = make_model()
    preserver = Preserver(model, strength=30.0, when=when)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    preserver.attach(optimizer)
    for x, y in TASKS:
        for batch in torch.arange(32).split(8):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        for batch in torch.arange(32).split(8):
            with torch.no_grad(), preserver.observe():
                model(x[batch])
        preserver.consolidate()
    assert torch.equal(weights(found), weights(model))
    assert plugin.preserver.tasks == 2


def test_the_old_experience_is_kept():
    changes = []
    for strength in (0.0, 1000.0):
        model = make_model()
        strategy = make_strategy(model, make(model, strength), epochs=10)
        first, second = make_benchmark().train_stream
        strategy.train(first)
        learned = loss_on(model, 0)
        strategy.train(second)
        changes.append(loss_on(model, 0) - learned)
    assert changes[0] > 1
    assert changes[1] < 0.2 * changes[0]


def test_some_batches_are_enough_and_the_mode_is_kept():
    model = make_model()
    frozen = model[1]
    seen = []
    model.register_forward_pre_hook(lambda model, _: seen.append(model.training))
    plugin = make(model, batches=3)
    make_strategy(model, plugin).train(make_benchmark().train_stream[0])
    assert seen.count(False) == 3
    assert frozen.training
    plugin.preserver.apply()  # raises while an optimizer is attached


def test_an_online_stream_is_one_task_per_experience():
    model = make_model()
    plugin = make(model)
    strategy = make_strategy(model, plugin)
    for part in split_online_stream(make_benchmark().train_stream, 8, access_task_boundaries=True):
        strategy.train(part)
    assert plugin.preserver.tasks == 2


def test_a_copy_continues_as_the_original_does():
    """Avalanche's checkpoints are pickles of the strategy with its plugins."""
    model = make_model()
    plugin = make(model)
    first, second = make_benchmark().train_stream
    make_strategy(model, plugin).train(first, shuffle=False)
    copied, other = pickle.loads(pickle.dumps((model, plugin)))
    for one, its in ((model, plugin), (copied, other)):
        make_strategy(one, its).train(second, shuffle=False)
    assert copied is not model
    assert torch.equal(weights(copied), weights(model))
    assert other.preserver.tasks == 2


def test_mistakes_are_refused():
    with pytest.raises(TypeError, match="preserver is a Sequential; pass a"):
        PreservePlugin(make_model())
    with pytest.raises(ValueError, match="batches=0 is invalid: expected an integer >= 1 or None"):
        make(make_model(), batches=0)
    with pytest.raises(ValueError, match="have different models"):
        train_all(make_strategy(make_model(), make(make_model())))
    later = TASKS[1][0], TASKS[1][1] + 2
    benchmark = make_benchmark([TASKS[0], later])
    model = make_growing_model()
    with pytest.raises(ValueError, match=r"the model has replaced '1.classifier.weight'"):
        train_all(make_strategy(model, make(model)), benchmark)
    plugin = PreservePlugin(Preserver(model, exclude=["1"]))
    train_all(make_strategy(model, plugin), benchmark)
    assert plugin.preserver.tasks == 2
