"""Nothing is copied, and nothing of size N is allocated from the second step on."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_reference import mlp

import gradproj as gp
from gradproj.adapters.torch import Projector
from gradproj.adapters.torch._backends import as_array, choose_backend
from gradproj.adapters.torch._layout import dense_strides


def test_each_gradient_lands_in_its_row():
    model = mlp(4, 3, 2)
    projector = Projector(model, engine="loop")
    projector.zero_grad(task=2)  # room for all rows, so that the buffer stays where it is
    seen = []

    def pointers():
        return [p.grad.data_ptr() for p in model.parameters()]

    def loss(x):
        def call():
            value = model(x).square().sum()
            value.register_hook(lambda _: seen.append(pointers()))
            return value

        return call

    xs = torch.randn(4, 5, 4)
    projector.backward(loss(xs[0]), [loss(x) for x in xs[1:]])
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    memory = model[0].weight.grad.untyped_storage()
    assert memory.nbytes() == 4 * sum(sizes)
    # The new task comes last and has the first row, which holds w afterwards.
    for row, found in zip((1, 2, 3, 0), seen, strict=True):
        assert found == [memory.data_ptr() + row * sum(sizes) + start for start in starts]
    assert pointers() == seen[-1]


def test_numpy_reads_the_memory_that_autograd_writes(monkeypatch):
    seen = []

    class Looking(gp.Method):
        def solve_layers(self, products):
            return gp.Solution(np.zeros_like(products.h))

    def measure(g, G, **options):
        seen.extend(zip(g, G, strict=True))
        return measured(g, G, **options)

    measured = gp.measure_layers
    monkeypatch.setattr(gp, "measure_layers", measure)
    model = mlp(4, 3, 2)
    projector = Projector(model, Looking())
    assert projector.backend == "numpy"
    xs = torch.randn(3, 5, 4)
    projector.backward(lambda: model(xs[0]).sum(), [lambda x=x: model(x).sum() for x in xs[1:]])
    assert len(seen) == 2
    for (g, G), weight in zip(seen, (model[0].weight, model[2].weight), strict=True):
        assert g.ctypes.data == weight.grad.data_ptr()
        assert np.shares_memory(g, weight.grad.numpy())
        assert G.ctypes.data == weight.grad.data_ptr() + 23 * 4  # the next row
        assert G.shape[0] == 2
        assert g.flags.writeable


def test_layers_are_ranges_of_columns_in_order():
    model = mlp(4, 3, 2)
    projector = Projector(model, layers=lambda name: name.endswith("bias"))
    projector.zero_grad()
    starts = [p.grad.storage_offset() for p in model.parameters()]
    assert starts == [0, 18, 12, 21]


class LargeAllocations(TorchDispatchMode):
    """Counts the tensors of at least `size` numbers that operators return in new memory."""

    def __init__(self, size, known):
        super().__init__()
        self.size, self.known, self.count = size, known, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        answer = func(*args, **(kwargs or {}))
        for t in answer if isinstance(answer, (tuple, list)) else (answer,):
            if isinstance(t, torch.Tensor) and t.numel() >= self.size:
                inside = any(
                    k.data_ptr() <= t.data_ptr() < k.data_ptr() + k.nbytes for k in self.known()
                )
                self.count += not inside
        return answer


@pytest.mark.parametrize("layers", ["module", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_allocation_of_size_n_after_the_first_step(layers, dtype):
    model = mlp(40, 30, 20, 5).to(dtype)
    xs = torch.randn(5, 2, 40, dtype=dtype)
    projector = Projector(model, layers=layers)
    N = sum(p.numel() for p in model.parameters())

    def known():  # the rows of 16-bit gradients have no public name
        (block,) = projector._steps.rows().blocks
        return [block.rows, *([block.landing] if block.landing is not None else [])]

    def step():
        model.zero_grad()
        projector.backward(
            lambda: model(xs[0]).square().sum(), (model(x).square().sum() for x in xs[1:])
        )

    step()
    pointer = model[0].weight.grad.data_ptr()
    # Autograd itself makes temporaries of one parameter's size; N is larger than any of them.
    with LargeAllocations(N, known) as counted:
        step()
        step()
    assert counted.count == 0
    assert model[0].weight.grad.data_ptr() == pointer


def test_the_counter_counts():
    with LargeAllocations(10, list) as counted:
        torch.zeros(10) + 1
    assert counted.count == 2


def test_capacity_doubles():
    model = nn.Linear(2, 1, bias=False)
    projector = Projector(model)
    sizes = []
    for task in range(16):
        projector.zero_grad(task)
        sizes.append(model.weight.grad.untyped_storage().nbytes() // 8)
    assert sorted(set(sizes)) == [2, 4, 8, 16, 32]


def test_growing_in_the_middle_of_a_step_loses_nothing():
    model = mlp(3, 2)
    xs = torch.randn(10, 4, 3)
    answers = []
    for warm in (False, True):
        model.zero_grad()
        projector = Projector(model)
        if warm:
            projector.zero_grad(task=20)
        projector.backward(model(xs[0]).sum(), (model(x).square().sum() for x in xs[1:]))
        answers.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.equal(*answers)


def test_a_gradient_that_someone_replaced_is_copied_and_counted():
    model = mlp(3, 2)
    xs = torch.randn(3, 4, 3)
    projector = Projector(model, engine="loop")
    losses = [lambda x=x: model(x).square().sum() for x in xs]
    projector.backward(losses[0], losses[1:])
    expected = [p.grad.clone() for p in model.parameters()]
    weight = model[0].weight

    def replace(p):
        p.grad = p.grad.clone()

    handle = weight.register_post_accumulate_grad_hook(replace)
    model.zero_grad()
    projector.backward(losses[0], losses[1:])
    handle.remove()
    assert projector.copied == 3
    for p, e in zip(model.parameters(), expected, strict=True):
        assert torch.equal(p.grad, e)


def test_what_is_kept_of_a_step_must_be_cloned():
    model = mlp(3, 2)
    xs = torch.randn(2, 4, 3)
    projector = Projector(model)
    projector.backward(model(xs[0]).sum())
    view = model[0].weight.grad
    kept = view.clone()
    model.zero_grad()
    projector.backward(model(xs[1]).sum())
    assert model[0].weight.grad is view
    assert not torch.equal(view, kept)


def test_strides_follow_the_parameter_if_it_is_one_dense_block():
    t = torch.zeros(2, 3, 4, 5)
    assert dense_strides(t) == (60, 20, 5, 1)
    last = t.to(memory_format=torch.channels_last)
    assert dense_strides(last) == last.stride()
    assert dense_strides(torch.zeros(4, 6)[:, ::2]) == (3, 1)
    assert dense_strides(torch.zeros(1).expand(3)) == (1,)
    assert dense_strides(torch.zeros(())) == ()


def test_backends():
    assert choose_backend("auto", torch.device("cpu")) == "numpy"
    assert choose_backend("torch", torch.device("cpu")) == "torch"
    with pytest.raises(ValueError, match="backend='cupy' cannot read gradients on cpu; use 'auto'"):
        Projector(mlp(2, 2), backend="cupy")
    with pytest.raises(ValueError, match="backend='tensorflow' is not known; use 'auto', 'numpy'"):
        Projector(mlp(2, 2), backend="tensorflow")
    rows = torch.zeros(2, 3)
    assert as_array(rows, "torch") is rows


def test_torch_and_numpy_backends_agree():
    model = mlp(5, 4, 3)
    xs = torch.randn(4, 6, 5)
    answers = []
    for backend in ("numpy", "torch"):
        model.zero_grad()
        projector = Projector(model, backend=backend)
        assert projector.backend == backend
        projector.backward(model(xs[0]).sum(), (model(x).square().sum() for x in xs[1:]))
        answers.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*answers)


def test_the_buffer_is_let_go_with_its_projector():
    import gc
    import weakref

    model = mlp(3, 2)
    projector = Projector(model)
    projector.backward(model(torch.randn(2, 3)).sum())
    reference = weakref.ref(model[0].weight.grad)
    model.zero_grad()
    assert reference() is not None
    del projector
    gc.collect()
    assert reference() is None
