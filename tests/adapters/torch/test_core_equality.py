"""Projector equals `gp.project_layers` on the same gradients, for every method and way to call."""

import numpy as np
import pytest
import torch
from support.zoo import NAMED, lengthened, new_gradient
from torch import nn

import gradproj as gp
from gradproj.adapters.torch import Projector


class Scaled(gp.Method):
    """A user-defined method that also scales the new gradient."""

    def solve_layers(self, products):
        return gp.Solution(np.full_like(products.h, 0.25), scale=np.full(len(products.h), 0.5))


METHODS = {
    "exact": gp.Decomposed,
    "rank 1": lambda: gp.Decomposed(rank=1),
    "half the variance": lambda: gp.Decomposed(rank=0.5),
    "first": lambda: gp.Decomposed(rank=2, relaxation="first"),
    "last": lambda: gp.Decomposed(rank=2, relaxation="last", strength=0.5),
    "shared only": lambda: gp.Decomposed(rank=0),
    "shared only, strength": lambda: gp.Decomposed(rank=0, strength=0.5),
    "specific only": lambda: gp.Decomposed(shared=False),
    "replay": lambda: gp.Decomposed(shared=False, specific=False, strength=0.5),
    "GEM": gp.GEM,
    "GEM, strength": lambda: gp.GEM(0.5),
    "A-GEM": gp.AGEM,
    "A-GEM, strength": lambda: gp.AGEM(0.5),
    "S-GEM": lambda: gp.SGEM(seed=3),
    "user-defined": Scaled,
}


def _nearly_cancelling():
    """Four tasks whose sum is 1e-5 of their lengths."""
    rng = np.random.default_rng(5)
    G = rng.standard_normal((4, 40))
    G[3] = -G[:3].sum(0) + 1e-5 * rng.standard_normal(40)
    return G


MATRICES = {
    **NAMED,
    "nearly cancelling": _nearly_cancelling(),
    "cancelling in tenths": np.outer([0.1, 0.2, -0.3], np.random.default_rng(6).random(50)),
}


class Given(nn.Module):
    """A model whose gradient is whatever it is given: the loss is the inner product with it."""

    def __init__(self, sizes, dtype):
        super().__init__()
        self.layers = nn.ParameterList(torch.zeros(size, dtype=dtype) for size in sizes)

    def forward(self, *gradients):
        pairs = zip(self.layers, gradients, strict=True)
        return sum((p * gradient).sum() for p, gradient in pairs)


def loss(model, *gradients):
    return model(*gradients)


def by_list(projector, new, old):
    model = projector.model
    projector.backward(model(*new), [lambda batch=batch: model(*batch) for batch in old])


def by_generator(projector, new, old):
    model = projector.model
    projector.backward(lambda: model(*new), (model(*batch) for batch in old))


def by_batches(projector, new, old):
    projector.backward_batches(loss, new, old)


def by_pieces(projector, new, old):
    for task, batch in enumerate(old):
        projector.zero_grad(task)
        projector.model(*batch).backward()
        projector.store(task)
    projector.zero_grad()
    projector.model(*new).backward()
    projector.project()


WAYS = {
    "list": (by_list, "loop"),
    "generator": (by_generator, "loop"),
    "vmap": (by_batches, "vmap"),
    "pieces": (by_pieces, "loop"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
def test_projector_equals_the_core(method, dtype, way):
    run, engine = WAYS[way]
    for name, G in MATRICES.items():
        g = new_gradient(G)
        # A small layer, which is measured in float64, and a long one, which is not.
        new = [torch.tensor(x, dtype=dtype) for x in (g, lengthened(g))]
        old = [torch.tensor(x, dtype=dtype) for x in (G, lengthened(G))]
        expected = gp.project_layers(new, old, METHODS[method](), full_output=True)
        projector = Projector(
            Given([len(x) for x in new], dtype), METHODS[method](), "tensor", engine=engine
        )
        run(projector, tuple(new), list(zip(*old, strict=True)))
        last = projector.last
        assert last.rank.tolist() == expected.rank.tolist(), name
        assert last.corrected.tolist() == expected.corrected.tolist(), name
        for p, w, g_l in zip(projector.model.layers, expected.update, new, strict=True):
            scale = max(float(w.double().norm()), float(g_l.double().norm()))
            assert float((p.grad.double() - w.double()).norm()) <= 1e-6 * scale, name
