"""The decrease of the old losses along whole-network and layerwise updates."""

import numpy as np
import torch
from torch import nn

from gradproj.experiments.inspection.decrease import UPDATES, measure_decrease


def squared(model, x, y):
    return ((model(x) - y) ** 2).mean()


def batch(generator):
    return torch.randn(5, 3, generator=generator), torch.randn(5, 2, generator=generator)


def test_short_steps_follow_the_first_order_and_long_ones_do_not():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    old = [tuple(t.double() for t in batch(generator)) for _ in range(3)]
    new = old[0]  # It agrees with an old task, so both updates decrease the old losses.
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = measure_decrease(model, squared, [(new, old)], [1e-5, 10.0])
    assert found.measured.shape == found.predicted.shape == (len(UPDATES), 1, 2)
    assert (found.predicted > 0).all()
    np.testing.assert_allclose(found.measured[..., 0], found.predicted[..., 0], rtol=1e-3)
    assert (found.measured[..., 1] < 0).all()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_network_as_one_layer_has_equal_updates():
    generator = torch.Generator().manual_seed(2)
    model = nn.Linear(3, 2)
    moment = (batch(generator), [batch(generator) for _ in range(2)])
    found = measure_decrease(model, squared, [moment], [0.1], layers="all")
    np.testing.assert_allclose(found.measured[0], found.measured[1], atol=1e-6)


def test_the_prediction_is_that_of_the_equations():
    """Eq. 12: η max(0, ḡ'Pg) for the whole network; Eq. 13: the sum of the same over its layers."""
    signs = set()
    for seed in range(8):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        old = [tuple(t.double() for t in batch(generator)) for _ in range(3)]
        new = tuple(t.double() for t in batch(generator))
        found = measure_decrease(model, squared, [(new, old)], [0.5])
        rows = [
            torch.autograd.grad(squared(model, *each), list(model.parameters()))
            for each in (*old, new)
        ]
        layers = [
            np.stack([torch.cat([p.flatten() for p in row[part]]).numpy() for row in rows])
            for part in (slice(0, 2), slice(2, 4))
        ]
        slopes = [shared_slope(G) for G in (np.concatenate(layers, axis=1), *layers)]
        signs |= {slope > 0 for slope in slopes}
        wanted = [0.5 * max(0.0, slopes[0]), 0.5 * sum(max(0.0, each) for each in slopes[1:])]
        np.testing.assert_allclose(found.predicted[:, 0, 0], wanted, atol=1e-10)
    assert signs == {True, False}


def shared_slope(G):
    """ḡ'Pg, where the last row is g and P removes the old rows' differences from their mean."""
    mean = G[:-1].mean(0)
    B = np.linalg.svd(G[:-1] - mean, full_matrices=False)[2][: len(G) - 2]
    return float(mean @ (G[-1] - B.T @ (B @ G[-1])))
