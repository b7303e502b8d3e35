"""Array libraries that are not tested throughout: each in the way that it differs."""

from contextlib import contextmanager

import array_api_strict
import numpy as np
import pytest

import gradproj as gp
from gradproj import _basis, _closed_form, _combine, _measure, _project
from gradproj._arrays.precision import _torch_in_full_precision, computing

METHODS = [gp.Decomposed(), gp.Decomposed(rank=2), gp.Decomposed(rank=0), gp.GEM(0.5), gp.AGEM()]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)


def problem(N, dtype, T=4, seed=0):
    rng = np.random.default_rng(seed)
    G = rng.standard_normal((T, N))
    g = rng.standard_normal(N) - G.mean(0)
    return g.astype(dtype), G.astype(dtype)


def nearly_equal(N):
    """Old gradients whose differences are lost where products are formed in float32."""
    rng = np.random.default_rng(1)
    G = rng.standard_normal(N) + 1e-4 * rng.standard_normal((4, N))
    return (rng.standard_normal(N) - G[0]).astype("f4"), G.astype("f4")


def check(array, read, method, g, G, precise):
    """Compare every function with NumPy's result, and its type and device with the arguments'."""
    ours = array(g), array(G)
    expected = gp.project(g, G, method, precise=precise)
    w = gp.project(*ours, method, precise=precise)
    assert type(w) is type(ours[0])
    assert w.dtype == ours[0].dtype
    assert getattr(w, "device", None) == getattr(ours[0], "device", None)
    scale = np.abs(g).max() * (1e-5 if g.dtype == np.float32 else 1e-12)
    np.testing.assert_allclose(read(w), expected, atol=scale, rtol=1e-5)
    products = gp.measure(*ours, precise=precise)
    known = gp.measure(g, G, precise=precise).C
    np.testing.assert_allclose(products.C, known, rtol=0, atol=1e-6 * known.max())
    again = gp.combine(*ours, method.solve(products).coefficients, precise=precise)
    assert again.dtype == ours[0].dtype
    layers = gp.project_layers([ours[0]] * 2, [ours[1]] * 2, method, precise=precise)
    np.testing.assert_array_equal(read(layers[1]), read(layers[0]))


# JAX: arrays that cannot be changed, and float64 only if it is switched on -----------------------


@pytest.fixture(params=[True, False], ids=["x64", "no-x64"])
def jax(request):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param)
    yield jax
    jax.config.update("jax_enable_x64", before)


# Two methods stand for all: JAX compiles for every shape, and the others see no array at all.
@pytest.mark.parametrize("method", [gp.Decomposed(), gp.AGEM()], ids=repr)
@pytest.mark.parametrize("N", [30, 3000])
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.filterwarnings("error")
def test_jax(jax, method, N, precise):
    check(jax.numpy.asarray, np.asarray, method, *problem(N, np.float32), precise)
    if jax.config.jax_enable_x64:
        check(jax.numpy.asarray, np.asarray, method, *problem(N, np.float64), precise)


@pytest.mark.parametrize("N", [30, 3000])
def test_jax_is_precise_without_float64_of_its_own(jax, N):
    g, G = nearly_equal(N)
    expected = gp.project(g, G, full_output=True, precise=True)
    found = gp.project(*map(jax.numpy.asarray, (g, G)), full_output=True, precise=True)
    assert found.rank == expected.rank == 3
    np.testing.assert_allclose(found.update, expected.update, atol=1e-5 * np.abs(g).max())


def test_jax_half_precision(jax):
    g, G = (jax.numpy.asarray(x, dtype=jax.numpy.bfloat16) for x in problem(50, np.float32))
    w = gp.project(g, G)
    assert w.dtype == jax.numpy.bfloat16
    expected = gp.project(np.asarray(g, np.float32), np.asarray(G, np.float32))
    np.testing.assert_allclose(np.asarray(w, np.float32), expected, rtol=1e-2, atol=1e-3)


def test_jax_has_the_explicit_road(jax):
    g, G = map(jax.numpy.asarray, problem(50, np.float32))
    shared, specific = gp.decompose(G)
    for basis in (gp.gram_schmidt, gp.principal_components):
        w = gp.solve(g, shared, basis(specific))
        assert gp.kkt_residuals(w, g, shared, basis(specific)).worst < 1e-5


def test_jax_under_a_transformation(jax):
    g, G = map(jax.numpy.asarray, problem(30, np.float32))
    message = r"g is traced by JAX .* outside of the transformation, or through jax\.pure_callback"
    with pytest.raises(TypeError, match=message):
        jax.jit(gp.project)(g, G)
    with pytest.raises(TypeError, match=message):
        jax.vmap(gp.project)(g[None], G[None])

    def outside(g, G):
        return gp.project(np.asarray(g), np.asarray(G))

    def inside(g, G):
        return jax.pure_callback(outside, jax.ShapeDtypeStruct(g.shape, g.dtype), g, G)

    np.testing.assert_allclose(jax.jit(inside)(g, G), gp.project(g, G), atol=1e-5)


@pytest.mark.numpy_only
def test_jax_is_called_by_its_name(jax):
    g, G = problem(30, np.float32)
    with pytest.raises(TypeError, match="g is a numpy array and G is a jax array: pass arrays"):
        gp.project(g, jax.numpy.asarray(G))


# A device without float64, such as torch's MPS ---------------------------------------------------

NO_FLOAT64 = array_api_strict.Device("no_float64")
HOST = array_api_strict.Device("CPU_DEVICE")


@every_method
@pytest.mark.parametrize("N", [30, 3000])
@pytest.mark.parametrize("precise", [False, True])
def test_a_device_without_float64(method, N, precise):
    check(
        lambda x: array_api_strict.asarray(x, device=NO_FLOAT64),
        lambda x: np.asarray(x.to_device(HOST)),
        method,
        *problem(N, np.float32),
        precise,
    )


@pytest.mark.parametrize("N", [30, 3000])
def test_a_device_without_float64_is_precise(N):
    g, G = nearly_equal(N)
    ours = (array_api_strict.asarray(x, device=NO_FLOAT64) for x in (g, G))
    expected = gp.project(g, G, full_output=True, precise=True)
    found = gp.project(*ours, full_output=True, precise=True)
    assert found.rank == expected.rank == 3
    w = np.asarray(found.update.to_device(HOST))
    np.testing.assert_allclose(w, expected.update, atol=1e-5 * np.abs(g).max())


def test_a_library_of_the_first_standard():
    with array_api_strict.ArrayAPIStrictFlags(api_version="2022.12"):
        check(array_api_strict.asarray, np.asarray, gp.GEM(), *problem(30, np.float64), False)


# Callers that have asked for products of fewer bits ----------------------------------------------


@pytest.mark.parametrize("bits", ["float32", "float64"])
def test_an_autocast_around_a_call_leaves_its_products_alone(bits):
    torch = pytest.importorskip("torch")
    g, G = map(torch.from_numpy, problem(2000, bits))
    shared, specific = gp.decompose(G)
    with torch.autocast("cpu", torch.bfloat16):
        B = gp.gram_schmidt(specific)
        w = gp.solve(g, shared, B)
        worst = gp.kkt_residuals(w, g, shared, B).worst
    assert worst < 1e-6
    torch.testing.assert_close(w, gp.project(g, G), rtol=1e-4, atol=1e-5)


def test_autocast_is_off_while_products_are_formed():
    torch = pytest.importorskip("torch")
    with torch.autocast("cpu", torch.bfloat16):
        with _torch_in_full_precision("cpu"):
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def test_tf32_is_off_while_products_are_formed():
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with computing(torch.zeros(1, device="meta")):
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_torch_without_that_switch_will_do(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.backends.cuda, "matmul", object())
    B = gp.gram_schmidt(torch.eye(3)[:2])
    torch.testing.assert_close(B @ B.T, torch.eye(2))


@pytest.mark.parametrize("method", [gp.Decomposed(), gp.AGEM()], ids=repr)
def test_no_product_of_float32_is_formed_outside(method, monkeypatch):
    inside, products = [], []

    @contextmanager
    def entered(_):
        inside.append(True)
        yield
        inside.pop()

    multiply = array_api_strict._array_object.Array.__matmul__

    def watched(a, b):
        products.append(bool(inside))
        return multiply(a, b)

    monkeypatch.setattr(array_api_strict._array_object.Array, "__matmul__", watched)
    for module in (_basis, _closed_form, _combine, _measure, _project):
        monkeypatch.setattr(module, "computing", entered)
    g, G = map(array_api_strict.asarray, problem(3000, np.float32))
    gp.project(g, G, method)
    shared, specific = gp.decompose(G)
    B = gp.gram_schmidt(specific)
    gp.kkt_residuals(gp.solve(g, shared, B), g, shared, B)
    solution = method.solve(gp.measure_layers([g], [G]))
    gp.combine_layers([g], [G], solution)
    gp.combine(g, G, method.solve(gp.measure(g, G)).coefficients)
    assert len(products) > 10
    assert all(products)


def test_jax_forms_products_with_all_bits(jax):
    with computing(jax.numpy.zeros(1)):
        assert jax.config.jax_default_matmul_precision == "highest"
    assert jax.config.jax_default_matmul_precision is None
