"""The choice of the layers that are kept factored."""

import torch
from factored_reference import check, classify, mlp, recorded
from torch import nn

from gradproj.adapters.torch._engines.factored import Factored
from gradproj.adapters.torch._engines.pair_cost import worthwhile


class TestChoice:
    def test_formulas(self):
        weight = torch.empty(2000, 2000)
        assert worthwhile(weight, 420, 20)
        assert not worthwhile(weight, 2100, 20)
        assert not worthwhile(weight, 420, 0)
        assert not worthwhile(torch.empty(10, 2000), 420, 20)
        assert not worthwhile(torch.empty(256, 256), 128 * 21, 20)
        assert not worthwhile(torch.empty(32, 32), 2, 1)
        assert worthwhile(torch.empty(30522, 256), 128 * 21, 20, embedding=True)
        assert not worthwhile(torch.empty(100, 32), 5000, 2, embedding=True)

    def test_wide_layers_only(self):
        model = nn.Sequential(nn.Linear(12, 900), nn.Tanh(), nn.Linear(900, 800), nn.Linear(800, 4))
        check(model, classify(model, [8] * 6), ["2.weight"])

    def test_by_step(self):
        model = nn.Sequential(nn.Linear(12, 900), nn.Tanh(), nn.Linear(900, 800), nn.Linear(800, 4))
        factored = Factored(model)
        for rows, chosen in ((8, ["2.weight"]), (100, []), (9, ["2.weight"])):
            check(model, classify(model, [rows] * 6), chosen, factored=factored)

    def test_pause_after_a_step_without_wide_layers(self):
        factored = Factored(model := mlp())
        assert factored.promising(2)
        recorded(model, classify(model, [5, 4, 3]), factored)
        assert [factored.promising(2) for _ in range(17)] == [False] * 15 + [True] * 2
        recorded(model, classify(model, [5, 4, 3]), factored)
        assert factored.promising(3)
        assert not factored.promising(2)
        assert not factored.promising(0)

    def test_calls_and_tied_weights_count_together(self):
        net = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
        net[1].weight = net[0].weight
        sizes = [9] * 6
        factored, _ = recorded(net, classify(net, sizes, 600, classes=600))
        assert not factored.choose()
        net[1].weight = nn.Parameter(net[1].weight.detach().clone())
        factored, _ = recorded(net, classify(net, sizes, 600, classes=600))
        assert len(factored.choose()) == 2

    def test_no_old_tasks(self):
        model = nn.Linear(900, 800)
        factored, _ = recorded(model, classify(model, [4], 900))
        assert not factored.choose()
