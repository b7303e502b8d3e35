"""Every supported layer, against the ridge problem over its Jacobian."""

import pytest
import torch
from preserver_reference import preserved
from torch import nn

from gradproj.adapters.torch import Preserver

# torch warns of the asymmetric padding, which is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

LAYERS = {
    "linear": (lambda: nn.Linear(3, 4), (5, 3)),
    "linear without bias": (lambda: nn.Linear(3, 4, bias=False), (5, 3)),
    "linear on tokens": (lambda: nn.Linear(3, 4), (2, 5, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 2, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 2), (3, 2, 4, 3)),
    "conv2d without bias": (lambda: nn.Conv2d(2, 3, (1, 2), bias=False), (3, 2, 4, 3)),
    "conv2d stride": (lambda: nn.Conv2d(2, 3, 3, stride=(2, 1), padding=(1, 2)), (2, 2, 5, 4)),
    "conv2d dilation": (lambda: nn.Conv2d(1, 2, 2, dilation=(2, 1)), (2, 1, 5, 4)),
    "conv2d same": (lambda: nn.Conv2d(1, 2, (3, 2), padding="same"), (2, 1, 4, 4)),
    "conv2d valid": (lambda: nn.Conv2d(1, 2, (3, 2), padding="valid"), (2, 1, 4, 4)),
    "conv2d groups": (lambda: nn.Conv2d(4, 6, 2, groups=2), (3, 4, 3, 3)),
    "conv2d depthwise": (lambda: nn.Conv2d(3, 3, 2, groups=3, bias=False), (3, 3, 3, 3)),
    "conv2d unbatched": (lambda: nn.Conv2d(2, 2, 2), (2, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2, stride=2, padding=1), (2, 1, 3, 4, 2)),
    "embedding": (lambda: nn.Embedding(6, 3), (4, 3)),
    "embedding padding": (lambda: nn.Embedding(6, 3, padding_idx=2), (4, 3)),
    "layer norm": (lambda: nn.LayerNorm(4), (3, 2, 4)),
    "layer norm two dimensions": (lambda: nn.LayerNorm((2, 3)), (5, 2, 3)),
    "layer norm without bias": (lambda: nn.LayerNorm(4, bias=False), (3, 2, 4)),
    "rms norm": (lambda: nn.RMSNorm(4), (3, 2, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (4, 3, 2, 2)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(3), (6, 3)),
    "batch norm evaluated": (lambda: nn.BatchNorm2d(3).eval(), (4, 3, 2, 2)),
    "instance norm": (lambda: nn.InstanceNorm1d(3, affine=True), (4, 3, 5)),
} | {
    f"conv2d {mode}": (
        lambda mode=mode: nn.Conv2d(1, 2, 3, padding=(1, 2), padding_mode=mode),
        (2, 1, 4, 5),
    )
    for mode in ("zeros", "reflect", "replicate", "circular")
}


def draw(module, shape):
    if isinstance(module, nn.Embedding):
        return torch.randint(module.num_embeddings, shape)
    return torch.randn(shape, dtype=torch.float64) + 0.5


def rows(module, x):
    """Return the number of input rows, from the size of the output."""
    if isinstance(module, nn.Embedding):
        return int((x != module.padding_idx).sum()) if module.padding_idx is not None else x.numel()
    with torch.no_grad():
        size = module(x).numel()
    return size // module.weight.numel() if _is_norm(module) else size // len(module.weight)


def _is_norm(module):
    return "Norm" in type(module).__name__


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
def test_a_layer_solves_the_ridge_problem_over_its_answers(case, frozen):
    make, shape = LAYERS[case]
    module = make().double()
    if frozen is not None and module._parameters.get("bias") is None:
        pytest.skip("has no bias")
    for p in module.parameters():
        nn.init.normal_(p)
    tasks = [draw(module, shape) for _ in range(2)]
    preserver = Preserver(module, strength=3.0, scaled=False)
    for x in tasks:
        with preserver.observe():
            module(x)
        preserver.consolidate()
    for name, p in module.named_parameters():
        p.grad = None if name == frozen else torch.randn_like(p)
    gradient = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    preserver.apply()
    expected = preserved(module, gradient, tasks, 3.0, lambda x: rows(module, x))
    for name, p in module.named_parameters():
        if name != frozen:
            torch.testing.assert_close(p.grad, expected[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", LAYERS)
def test_float32_agrees_with_float64(case):
    make, shape = LAYERS[case]
    updates = []
    module = make()
    x, grads = None, None
    for dtype in (torch.float64, torch.float32):
        module = module.to(dtype)
        if x is None:
            x = draw(module, shape)
            grads = [torch.randn_like(p) for p in module.parameters()]
        preserver = Preserver(module, strength=2.0)
        with torch.no_grad(), preserver.observe():
            module(x.to(dtype) if x.is_floating_point() else x)
        preserver.consolidate()
        for p, g in zip(module.parameters(), grads, strict=True):
            p.grad = g.to(dtype, copy=True)
        preserver.apply()
        updates.append([p.grad.to(torch.float64, copy=True) for p in module.parameters()])
    for wide, narrow in zip(*updates, strict=True):
        torch.testing.assert_close(narrow, wide, rtol=1e-4, atol=1e-5)


def test_a_layer_called_twice_adds_up():
    module = nn.Linear(3, 2).double()
    x, y = torch.randn(2, 4, 3, dtype=torch.float64)
    updates = []
    for passes in ((x, y), (torch.cat([x, y]),)):
        preserver = Preserver(module, strength=2.0)
        with preserver.observe():
            for each in passes:
                module(each)
        preserver.consolidate()
        torch.manual_seed(0)
        for p in module.parameters():
            p.grad = torch.randn_like(p)
        preserver.apply()
        updates.append(module.weight.grad.clone())
    torch.testing.assert_close(*updates)


def test_patches_are_made_in_blocks(monkeypatch):
    """Many blocks give the same moments as one."""
    module, x = nn.Conv2d(2, 2, 3).double(), torch.randn(5, 2, 6, 6, dtype=torch.float64)
    found = []
    for numbers in (1 << 22, 100):
        monkeypatch.setattr("gradproj.adapters.torch._preserver.kinds._NUMBERS", numbers)
        preserver = Preserver(module)
        with preserver.observe():
            module(x)
        preserver.consolidate()
        found.append(preserver.state_dict()["layers"]["Conv2d"]["S"])
    torch.testing.assert_close(*found)
