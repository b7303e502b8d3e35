"""Preservation on libraries that are not tested throughout: each in the way that it differs."""

import math

import numpy as np
import pytest

import gradproj as gp
from gradproj._arrays import is_plain

# Each test has arrays of its own.
pytestmark = pytest.mark.numpy_only

rng = np.random.default_rng(0)
A = rng.standard_normal((40, 6)).astype(np.float32) + 1
G = rng.standard_normal((3, 6)).astype(np.float32)


KINDS = ({}, {"rank": 6}, {"rank": 2}, {"diagonal": True})


def results(array, kinds):
    """Return the results of all functions for arrays that `array` makes."""
    for options in kinds:
        moments = gp.InputMoments(**options)
        for start in range(0, 40, 20):
            moments.update(array(A[start : start + 20]))
        again = gp.InputMoments(**options)
        again.load_state_dict((moments + moments).state_dict())
        S = again.matrix(scaled=True)
        yield gp.preserve(array(G), S, strength=2.0)
        if options.get("rank") == 2:
            yield (S + 2 * S).dense()
            yield S.trace
        elif not options.get("diagonal"):
            yield gp.preserve(array(G), S, strength=math.inf)
            basis = gp.input_basis(S, share=0.8, scale=1.0)
            basis = gp.input_basis(S, share=0.95, scale=1.0, basis=basis)
            yield basis.importance
            yield gp.preserve(array(G), basis=basis)


def check(array, read, kinds=KINDS):
    like = array(G)
    for found, known in zip(results(array, kinds), results(np.asarray, kinds), strict=True):
        assert type(found) is type(like)
        assert found.dtype == like.dtype
        np.testing.assert_allclose(read(found), known, rtol=0, atol=1e-5)


# JAX compiles for every shape, so two kinds stand for all.
@pytest.mark.parametrize(
    "x64", [pytest.param(True, marks=pytest.mark.slow), False], ids=["x64", "no-x64"]
)
@pytest.mark.filterwarnings("error")
def test_jax(x64):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", x64)
    try:
        check(jax.numpy.asarray, np.asarray, ({}, {"rank": 2}))
        moments = gp.InputMoments()
        moments.update(jax.numpy.asarray(A, dtype=jax.numpy.bfloat16))
        assert moments.matrix().dtype == jax.numpy.float32
        negative = jax.numpy.asarray(np.diag([-0.1, 1.0]).astype(np.float32))
        with pytest.raises(ValueError, match=r"S has the eigenvalue -0\.1"):
            gp.preserve(jax.numpy.ones((1, 2), dtype="float32"), negative, strength=1.0)
    finally:
        jax.config.update("jax_enable_x64", before)


def test_dask():
    dask = pytest.importorskip("dask.array", reason="dask is not installed")
    check(lambda x: dask.from_array(x, chunks=2), np.asarray)


def test_a_device_without_float64(monkeypatch):
    """As torch's MPS: sums and decompositions are then on the host."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for module in ("_arrays.conversion", "_preserve.matrices"):
        monkeypatch.setattr(f"gradproj.{module}.has_float64", lambda xp, _like: xp is np)
    check(torch.tensor, np.asarray)


def test_inference_mode():
    """Its tensors cannot be changed in place outside of it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    moments = gp.InputMoments()
    for inside in (True, False, True, False):
        with torch.inference_mode(inside):
            moments.update(torch.tensor(A).repeat(10, 1))
    factor = gp.Preservation.soft(moments.matrix(), 1.0)
    with torch.inference_mode():
        g = torch.tensor(G)
        factor.apply(g, out=g)
    assert torch.allclose(g, factor.apply(torch.tensor(G)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_shortcut_of_torch():
    """Checks and contexts are left out only where they would do nothing."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    like = torch.ones(2, 2)
    assert is_plain(torch.ones(3), like)
    assert not is_plain(torch.ones(3, dtype=torch.float64), like)
    assert not is_plain(torch.ones(3, requires_grad=True), like)
    assert not is_plain(torch.nn.Parameter(torch.ones(3)), like)
    assert not is_plain(torch.ones(3, device="meta"), like)
    assert not is_plain(torch.ones(3).to_sparse(), like)
    assert not is_plain(torch.nested.nested_tensor([torch.ones(3)]), like)
    assert not is_plain(np.ones(3, np.float32), like)
    with torch.autocast("cpu"):
        assert not is_plain(torch.ones(3), like)
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        before = matmul.fp32_precision
        matmul.fp32_precision = "tf32"
        try:
            assert not is_plain(torch.ones(3), like)
        finally:
            matmul.fp32_precision = before


def test_errors_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    factor = gp.Preservation.soft(torch.eye(2), 1.0)
    with pytest.raises(ValueError, match=r"g requires grad: pass g\.detach\(\)"):
        factor.apply(torch.ones(1, 2, requires_grad=True))
    with pytest.raises(ValueError, match=r"out requires grad: pass out\.detach\(\)"):
        factor.apply(torch.ones(1, 2), out=torch.ones(1, 2, requires_grad=True))
    with pytest.raises(ValueError, match=r"g has shape \(1, 3\): expected"):
        factor.apply(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"out has shape \(2, 2\) and dtype"):
        factor.apply(torch.ones(1, 2), out=torch.ones(2, 2))
