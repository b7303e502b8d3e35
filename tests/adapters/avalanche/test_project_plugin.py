"""`ProjectPlugin` with the real strategies of Avalanche."""

import pickle

import pytest
import torch
from support.libraries import need
from torch import nn
from torch.nn.functional import cross_entropy

need("avalanche")

from avalanche.benchmarks.scenarios.online import split_online_stream  # noqa: E402
from avalanche.models import MultiHeadClassifier, MultiTaskModule  # noqa: E402
from avalanche.training.plugins import EWCPlugin, GEMPlugin  # noqa: E402
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

import gradproj as gp  # noqa: E402
from gradproj.adapters.avalanche import ProjectPlugin  # noqa: E402
from gradproj.adapters.torch import EpisodicMemory, Projector  # noqa: E402

# The strategies of these tests log no metrics.
pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


def make(per_task=32, method=None, **options):
    return ProjectPlugin(EpisodicMemory(per_task), method=method or gp.GEM(), **options)


def test_it_equals_a_plain_loop_bit_for_bit():
    plugin = make()
    found = train_all(make_strategy(make_model(), plugin, epochs=2))
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    projector, memory = Projector(model, gp.GEM()), EpisodicMemory(32)

    def old(task):
        x, y = memory.sample(task, 8)
        cross_entropy(model(x), y).backward()

    for task, (x, y) in enumerate(TASKS):
        for batch in [*torch.arange(32).split(8)] * 2:
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            if memory.tasks:
                projector.project([lambda t=t: old(t) for t in memory.tasks])
            optimizer.step()
        chosen = torch.randperm(32, generator=torch.Generator().manual_seed(task))
        memory.add(task, x[chosen], y[chosen])
    assert torch.equal(weights(found), weights(model))
    assert plugin.projector.last.corrected.any()


def test_it_equals_the_gem_of_avalanche():
    """With all stored samples in each step, one layer and the same strength."""
    ours = train_all(make_strategy(make_model(), make(layers="all", old_batch_size=32)))
    theirs = train_all(make_strategy(make_model(), GEMPlugin(32, 0.0)))
    plain = train_all(make_strategy(make_model()))
    # Avalanche adds 0.001 to the diagonal of its problem.
    effect = (weights(theirs) - weights(plain)).norm()
    assert (weights(ours) - weights(theirs)).norm() < 0.05 * effect


def test_the_old_experience_is_kept():
    plain = train_all(make_strategy(make_model(), epochs=10))
    kept = train_all(make_strategy(make_model(), make(method=gp.GEM(strength=0.5)), epochs=10))
    assert loss_on(kept, 0) < loss_on(plain, 0) - 0.5


class MultiHead(MultiTaskModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 8)
        self.head = MultiHeadClassifier(8, initial_out_features=2, masking=False)

    def forward(self, x, task_labels):
        return self.head(self.body(x), task_labels)


def test_models_that_grow():
    plugin = make()
    train_all(make_strategy(MultiHead(), plugin), make_benchmark(labelled=True))
    assert plugin.memory.all(1)[2].unique().tolist() == [1]  # the task labels are stored
    assert "head.classifiers.1.classifier" in plugin.projector.layers

    (x, y), later = TASKS[0], (TASKS[1][0], TASKS[1][1] + 2)
    model = make_growing_model()
    train_all(make_strategy(model, make()), make_benchmark([(x, y), later]))
    assert model[1].classifier.out_features == 4


def test_it_works_beside_other_plugins():
    strategy = make_strategy(make_model(), EWCPlugin(1.0), make())
    assert weights(train_all(strategy)).isfinite().all()


@pytest.mark.parametrize("size", [8, 12])
def test_an_online_stream_stores_whole_experiences(size):
    plugin = make()
    strategy = make_strategy(make_model(), plugin)
    stream = split_online_stream(make_benchmark().train_stream, size, access_task_boundaries=True)
    for experience in stream:
        strategy.train(experience)
    assert plugin.memory.tasks == (0, 1)
    assert len(plugin.memory) == 64
    hidden = split_online_stream(make_benchmark().train_stream, 8)
    with pytest.raises(ValueError, match="build it with access_task_boundaries=True"):
        make_strategy(make_model(), make()).train(next(iter(hidden)))


def test_a_copy_continues_as_the_original_does():
    """Avalanche's checkpoints are pickles of the strategy with its plugins."""
    model, plugin = make_model(), make(per_task=16)
    first, second = make_benchmark().train_stream
    make_strategy(model, plugin).train(first, shuffle=False)
    copied, other = pickle.loads(pickle.dumps((model, plugin)))
    for one, its in ((model, plugin), (copied, other)):
        make_strategy(one, its).train(second, shuffle=False)
    assert copied is not model
    assert torch.equal(weights(copied), weights(model))
    assert other.memory.tasks == (0, 1)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match=r"memory is a int; pass a .*EpisodicMemory"):
        ProjectPlugin(32)
    with pytest.raises(TypeError, match=r"method is a ABCMeta; pass an instance"):
        ProjectPlugin(method=gp.GEM)
    with pytest.raises(ValueError, match="old_batch_size=0 is invalid: expected an integer >= 1"):
        ProjectPlugin(old_batch_size=0)
    plugin = make()
    train_all(make_strategy(make_model(), plugin))
    with pytest.raises(ValueError, match="make a new ProjectPlugin for each model"):
        train_all(make_strategy(make_model(), plugin))
