"""The core on CuPy, or on its stand-in: devices, products of full precision, half precision."""

import array_api_compat
import numpy as np
import pytest
from support import devices

import gradproj as gp

METHODS = [gp.Decomposed(), gp.Decomposed(rank=0), gp.GEM(), gp.AGEM(), gp.SGEM()]
every_method = pytest.mark.parametrize("method", METHODS, ids=repr)
pytestmark = pytest.mark.numpy_only


@pytest.fixture(params=[0, 1], ids=["device0", "device1"])
def place(request):
    """A device; device 0 is current."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if request.param >= cupy.cuda.runtime.getDeviceCount():
        pytest.skip("this machine has one CUDA device")
    return cupy.cuda.Device(request.param)


def problem(place, N=3000, dtype=np.float32, T=4):
    import cupy

    rng = np.random.default_rng(0)
    G = rng.standard_normal((T, N)) + rng.standard_normal(N)
    g = rng.standard_normal(N) - G.mean(0)
    with place:
        return [cupy.asarray(x.astype(dtype)) for x in (g, G)]


@pytest.fixture
def tf32():
    """Have CuPy form products of float32 in TF32, as `CUPY_TF32=1` does."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    core = cupy._core
    before = core.get_compute_type(np.float32)
    core.set_compute_type(np.float32, core._routines_linalg.COMPUTE_TYPE_TF32)
    yield lambda: core.get_compute_type(np.float32)
    core.set_compute_type(np.float32, before)


def every_result(g, G, method):
    """Call every public function; return the arrays that come out."""
    yield gp.project(g, G, method)
    yield gp.project(g, G, method, precise=True)
    yield from gp.project_layers([g, g[:5]], [G, G[:, :5]], method)
    yield gp.project(g, G[:0], method)
    yield gp.combine(g, G, method.solve(gp.measure(g, G)).coefficients)
    solution = method.solve(gp.measure_layers([g, g[:5]], [G, G[:, :5]]))
    yield from gp.combine_layers([g, g[:5]], [G, G[:, :5]], solution)
    yield gp.combine(g, G, np.zeros(G.shape[0]))
    shared, specific = gp.decompose(G)
    yield from (shared, specific)
    for basis in (gp.gram_schmidt(specific), gp.principal_components(specific, 2)):
        yield basis
        w = gp.solve(g, shared, basis)
        yield w
        assert gp.kkt_residuals(w, g, shared, basis).worst < 1e-3


@every_method
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("N", [30, 3000])
def test_results_are_on_the_device_of_the_gradients(place, method, dtype, N):
    import cupy

    g, G = problem(place, N, dtype)
    before = cupy.cuda.Device()
    for x in every_result(g, G, method):
        assert type(x) is cupy.ndarray
        assert x.device == place
        assert x.dtype == dtype
    assert cupy.cuda.Device() == before


@pytest.mark.parametrize("call", [gp.project, gp.measure])
def test_the_current_device_is_the_same_after_an_error(place, call):
    import cupy

    g, G = problem(place)
    before = cupy.cuda.Device()
    with place:
        G[1, 2] = np.nan
    with pytest.raises(gp.NotFiniteError):
        call(g, G)
    assert cupy.cuda.Device() == before


@pytest.mark.parametrize("place", [1], ids=["device1"], indirect=True)
def test_gradients_on_two_devices(place):
    import cupy

    (g, _), (_, G) = problem(cupy.cuda.Device(0)), problem(place)
    message = r"g is on device <CUDA Device 0> and G is on <CUDA Device 1>: move both"
    with pytest.raises(ValueError, match=message):
        gp.project(g, G)
    with pytest.raises(ValueError, match=r"CUDA Device [01].*move both"):
        gp.project_layers([g, problem(place)[0]], [problem(cupy.cuda.Device(0))[1], G])


@pytest.mark.parametrize("method", METHODS[:-1], ids=repr)
def test_products_have_full_precision_where_tf32_is_set(place, method, tf32):
    g, G = problem(place)
    set_to = tf32()
    expected = gp.project(*(x.get().astype(np.float64) for x in (g, G)), method)
    for precise in (False, True):
        w = gp.project(g, G, method, precise=precise).get()
        assert np.abs(w - expected).max() < 2e-5  # TF32 gives 1e-3
    C = gp.measure(g, G, precise=False).C
    wide = G.get().astype(np.float64)
    assert np.abs(C - wide @ wide.T).max() < 1e-6 * C.max()
    shared, specific = gp.decompose(G)
    for basis in (gp.gram_schmidt(specific), gp.principal_components(specific)):
        rows = basis.get().astype(np.float64)
        assert np.abs(rows @ rows.T - np.eye(len(rows))).max() < 1e-5
        update = gp.solve(g, shared, basis)
        assert gp.kkt_residuals(update, g, shared, basis).worst < 1e-5
    assert tf32() == set_to


def test_the_setting_is_restored_after_an_error(place, tf32):
    g, G = problem(place)
    set_to = tf32()
    with place:
        g[0] = np.inf
    with pytest.raises(gp.NotFiniteError):
        gp.project(g, G)
    assert tf32() == set_to


def test_bfloat16_is_computed_in_float32(place):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    g, G = problem(place, 50, ml_dtypes.bfloat16)
    w = gp.project(g, G)
    assert w.dtype == ml_dtypes.bfloat16
    assert w.device == place
    wide = gp.project(*(x.get().astype(np.float32) for x in (g, G)))
    assert np.array_equal(w.get(), wide.astype(ml_dtypes.bfloat16))


def test_numpy_and_cupy_do_not_mix(place):
    g, G = problem(place)
    with pytest.raises(TypeError, match="g is a numpy array and G is a cupy array: pass arrays"):
        gp.project(g.get(), G)


@pytest.mark.skipif(not devices.uses_standin(), reason="CuPy itself runs here")
def test_the_stand_in_is_what_is_tested():
    import cupy

    assert str(devices.STANDIN) in cupy.__file__
    assert array_api_compat.is_cupy_array(cupy.zeros(1))
