"""Array types that are refused with a remedy, and libraries that need a word: JAX, dask, …"""

import array_api_strict
import numpy as np
import pytest
from support import backends

import gradproj as gp
from gradproj._arrays import library as library_of

rng = np.random.default_rng(0)
G = rng.standard_normal((4, 30))
g = rng.standard_normal(30) - G.mean(0)

# The public functions, as functions of g and G.
FUNCTIONS = {
    "project": gp.project,
    "project_layers": lambda g, G: gp.project_layers([g], [G]),
    "measure": gp.measure,
    "measure_layers": lambda g, G: gp.measure_layers([g], [G]),
    "combine": lambda g, G: gp.combine(g, G, np.ones(4)),
    "decompose": lambda _, G: gp.decompose(G),
    "gram_schmidt": lambda _, G: gp.gram_schmidt(G),
    "principal_components": lambda _, G: gp.principal_components(G),
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
pytestmark = pytest.mark.numpy_only


def refused(function, new, old, error, message):
    with pytest.raises(error, match=message):
        function(new, old)


# Python and NumPy -------------------------------------------------------------------------------


@every_function
@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (lambda x: x.tolist(), r"(g|G|H)(\[0\])? is a list: pass an array of an array-API library"),
        (tuple, r"is a tuple: pass an array"),
        (lambda _: None, r"is a NoneType: pass an array"),
        (lambda _: 1.0, r"is a float: pass an array"),
        (lambda x: np.asmatrix(x), r"is a numpy\.matrix: pass .* for example numpy\.asarray\("),
    ],
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_no_arrays(function, convert, message):
    refused(function, convert(g), convert(G), TypeError, message)


@every_function
@pytest.mark.parametrize("scalar", [np.float64(1), np.float32(1), np.asarray(1.0)], ids=repr)
def test_arrays_without_axes(function, scalar):
    refused(function, scalar, scalar, ValueError, r"has shape \(\): expected (one vector|a matrix)")


def test_subclasses_of_arrays_belong_to_their_library():
    class Own(np.ndarray):
        pass

    np.testing.assert_array_equal(gp.project(g.view(Own), G.view(Own)), gp.project(g, G))
    message = "g is a numpy array and G is an array_api_strict array: pass arrays of one library"
    refused(gp.project, g.view(Own), array_api_strict.asarray(G), TypeError, message)


def test_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    message = r"g is a pandas\.\S*Series: pass an array .* for example numpy\.asarray\(g\)"
    refused(gp.project, pandas.Series(g), G, TypeError, message)
    message = r"G is a pandas\.\S*DataFrame: pass an array .* for example numpy\.asarray\(G\)"
    refused(gp.project, g, pandas.DataFrame(G), TypeError, message)


@backends.every_backend
def test_names_of_libraries(library):
    x = backends.get(library).array(g)
    name = {"strict": "array_api_strict"}.get(library.partition("-")[0], library.partition("-")[0])
    assert library_of(x) == name


# Sparse arrays ----------------------------------------------------------------------------------


@every_function
@pytest.mark.parametrize("kind", ["csr_array", "csc_array", "coo_array", "csr_matrix"])
def test_sparse_arrays_of_scipy(function, kind):
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    old = getattr(sparse, kind)(G)
    refused(function, g, old, TypeError, r"(G|H)(\[0\])? is a sparse array: pass \S+\.toarray\(\)")
    np.testing.assert_allclose(gp.project(g, old.toarray()), gp.project(g, G), atol=1e-12)


@every_function
@pytest.mark.parametrize("kind", ["COO", "GCXS", "DOK"])
def test_sparse_arrays_of_pydata(function, kind):
    sparse = pytest.importorskip("sparse", reason="pydata sparse is not installed")
    old = getattr(sparse, kind).from_numpy(G)
    refused(function, g, old, TypeError, r"(G|H)(\[0\])? is a sparse array: pass \S+\.todense\(\)")
    np.testing.assert_allclose(gp.project(g, old.todense()), gp.project(g, G), atol=1e-12)


# Libraries that do not work ---------------------------------------------------------------------


@every_function
def test_mlx(function):
    # On Linux, the package mlx alone fails to import: it needs mlx[cpu].
    mlx = pytest.importorskip("mlx.core", reason="MLX is not installed", exc_type=ImportError)
    new, old = (mlx.array(x.astype(np.float32)) for x in (g, G))
    message = r"(g|G|H)(\[0\])? is from mlx, whose arrays do not follow .*: pass numpy\.asarray\("
    refused(function, new, old, TypeError, message)
    w = gp.project(np.asarray(new), np.asarray(old))
    np.testing.assert_allclose(w, gp.project(g, G), atol=1e-5)


@every_function
@pytest.mark.filterwarnings("ignore:onnxruntime is not installed")
def test_ndonnx(function):
    ndonnx = pytest.importorskip("ndonnx", reason="ndonnx is not installed")
    new, old = map(ndonnx.asarray, (g, G))
    message = r"is an ndonnx array, which may have no values yet: pass \S+\.unwrap_numpy\(\)"
    refused(function, new, old, TypeError, message)
    w = gp.project(new.unwrap_numpy(), old.unwrap_numpy())
    np.testing.assert_array_equal(w, gp.project(g, G))
    refused(function, new, ndonnx.argument(shape=(4, 30), dtype=ndonnx.float64), TypeError, message)


# torch ------------------------------------------------------------------------------------------


@every_function
def test_torch_under_vmap(function):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    new, old = (torch.from_numpy(np.stack([x, x])) for x in (g, G))
    message = r"has no memory of its own that can be read .* call gradproj outside of torch\.vmap"
    refused(torch.vmap(function), new, old, TypeError, message)


def test_torch_tensors_without_values():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        new, old = torch.ones(3), torch.ones(2, 3)
    refused(gp.project, new, old, TypeError, r"g has no memory of its own .* pass plain tensors")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    new = torch.from_numpy(g)
    refused(gp.project, new, torch.nested.nested_tensor([new, new]), TypeError, "G is a nested ten")


# JAX --------------------------------------------------------------------------------------------


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="JAX is not installed")


@every_function
@pytest.mark.parametrize("transformation", ["jit", "vmap", "grad"])
def test_jax_under_transformations(jax, function, transformation):
    new, old = map(jax.numpy.asarray, (g, G))
    run = {
        "jit": lambda: jax.jit(function)(new, old),
        "vmap": lambda: jax.vmap(function)(new[None], old[None]),
        "grad": lambda: jax.grad(function, argnums=(0, 1))(new, old),
    }[transformation]
    message = r"is traced by JAX \(jit, vmap or grad\) .* or through jax\.pure_callback"
    with pytest.raises(TypeError, match=message):
        run()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_calls_back(jax, dtype):
    """The remedy that the message names, under jit and under vmap."""
    new, old = (jax.numpy.asarray(x, dtype=dtype) for x in (g, G))

    def project(new, old):
        like = jax.ShapeDtypeStruct(new.shape, new.dtype)
        return jax.pure_callback(gp.project, like, new, old, vmap_method="sequential")

    expected = np.asarray(gp.project(new, old), dtype=np.float32)
    w = jax.jit(project)(new, old)
    assert w.dtype == new.dtype
    np.testing.assert_allclose(np.asarray(w, np.float32), expected, rtol=1e-2, atol=1e-5)
    both = jax.vmap(project)(jax.numpy.stack([new, 2 * new]), jax.numpy.stack([old, old]))
    np.testing.assert_allclose(np.asarray(both[0], np.float32), expected, rtol=1e-2, atol=1e-5)
    np.testing.assert_allclose(np.asarray(both[1], np.float32), 2 * expected, rtol=2e-2, atol=1e-5)


def test_jax_is_named_in_messages(jax):
    new, old = map(jax.numpy.asarray, (g, G))
    message = "g is a jax array and G is a numpy array: pass arrays of one library"
    refused(gp.project, new, G.astype(np.float32), TypeError, message)
    message = "g is a numpy array and G is a jax array: pass arrays of one library"
    refused(gp.project, g.astype(np.float32), old, TypeError, message)
    message = "g has dtype int32: .* bits that jax can compute with; convert it first"
    refused(gp.project, new.astype("int32"), old, TypeError, message)


def test_jax_arrays_that_were_donated(jax):
    new, old = map(jax.numpy.array, (g, G))
    new.delete()
    message = r"g has been deleted: it was probably donated to a jitted function \(donate_argnums\)"
    refused(gp.project, new, old, ValueError, message)


# dask -------------------------------------------------------------------------------------------

CHUNKS = {"one": -1, "rows": (1, 30), "columns": (4, 7), "both": (3, 7)}


@pytest.fixture(params=CHUNKS.values(), ids=CHUNKS)
def dask(request):
    """A function that turns (g, G) into dask arrays with chunks along some axes."""
    dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
    chunks = request.param

    def convert(x):
        return dask_array.from_array(x, chunks=chunks if chunks == -1 or x.ndim == 2 else chunks[1])

    return convert


@pytest.mark.parametrize(
    "method", [gp.Decomposed(), gp.Decomposed(rank=0), gp.GEM(0.5), gp.AGEM()], ids=repr
)
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dask(dask, method, precise, dtype):
    new, old = g.astype(dtype), G.astype(dtype)
    w = gp.project(dask(new), dask(old), method, precise=precise)
    assert type(w) is type(dask(new))
    assert w.dtype == dtype
    expected = gp.project(new, old, method, precise=precise)
    tolerance = 10 * np.finfo(dtype).eps * np.abs(g).max()
    np.testing.assert_allclose(w.compute(), expected, atol=tolerance)


def test_dask_has_the_three_steps(dask):
    products = gp.measure(dask(g), dask(G))
    assert type(products.C) is np.ndarray
    np.testing.assert_allclose(products.C, G @ G.T, atol=1e-12)
    np.testing.assert_allclose(products.h, G @ g, atol=1e-12)
    assert products.square == pytest.approx(g @ g)
    w = gp.combine(dask(g), dask(G), gp.GEM().solve(products).coefficients)
    assert type(w) is type(dask(g))
    np.testing.assert_allclose(w.compute(), gp.project(g, G, gp.GEM()), atol=1e-12)


def test_dask_has_the_steps_of_the_paper():
    dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
    new = dask_array.from_array(g, chunks=17)
    shared, specific = gp.decompose(dask_array.from_array(G, chunks=(3, 17)))
    for basis in (gp.gram_schmidt, gp.principal_components):
        B = basis(specific)
        assert type(B) is type(shared)
        assert B.shape == (3, 30)
        np.testing.assert_allclose((B @ B.T).compute(), np.eye(3), atol=1e-12)
        w = gp.solve(new, shared, B)
        np.testing.assert_allclose(w.compute(), gp.project(g, G), atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 30), (12, 5), (5, 5)])
@pytest.mark.parametrize("chunks", [(3, 2), (2, 30), (12, 2)])
def test_principal_components_of_dask(shape, chunks):
    dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
    H = np.random.default_rng(1).standard_normal(shape)
    B = gp.principal_components(dask_array.from_array(H, chunks=chunks), 2)
    expected = gp.principal_components(H, 2)
    assert isinstance(B, dask_array.Array)
    np.testing.assert_allclose(np.abs(B.compute()), np.abs(expected), atol=1e-12)


def test_dask_makes_wide_bases():
    """Its `zeros` fails for an empty array of many columns."""
    dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
    H = np.random.default_rng(1).standard_normal((2, 40_000))
    wide = dask_array.from_array(H, chunks=(1, 15_000))
    B = gp.gram_schmidt(wide)
    np.testing.assert_allclose((B @ B.T).compute(), np.eye(2), atol=1e-12)
    np.testing.assert_allclose(
        gp.project(wide[0], wide, gp.AGEM()).compute(), gp.project(H[0], H, gp.AGEM())
    )


def test_dask_finds_nan(dask):
    bad = G.copy()
    bad[1, 2] = np.nan
    with pytest.raises(gp.NotFiniteError, match=r"^G \(row 1\) contains NaN or infinity"):
        gp.project(dask(g), dask(bad))


def test_dask_arrays_that_are_refused():
    dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
    new, old = map(dask_array.from_array, (g, G))
    refused(gp.project, g, old, TypeError, "g is a numpy array and G is a dask array: pass arrays")
    unknown = old[:, old[0] > 0]
    message = r"G has chunks of unknown size: call G\.compute_chunk_sizes\(\) first"
    refused(gp.project, new, unknown, ValueError, message)
    masked = dask_array.ma.masked_array(new)
    message = r"g is a dask array of numpy\.ma\.MaskedArray chunks: its chunks must be dense"
    refused(gp.project, masked, old, TypeError, message)


# 16 bits ----------------------------------------------------------------------------------------


def halves():
    """Yield one pair of functions (to 16 bits, to float32) per library and dtype."""
    yield "numpy-float16", None, lambda x: x.astype(np.float16), lambda x: x.astype(np.float32)
    yield "numpy-bfloat16", "ml_dtypes", lambda x: x.astype("bfloat16"), lambda x: x.astype("f4")
    for name in ("float16", "bfloat16"):

        def to_torch(x, name=name):
            import torch

            return torch.from_numpy(x).to(getattr(torch, name))

        def to_jax(x, name=name):
            import jax

            return jax.numpy.asarray(x, dtype=name)

        yield f"torch-{name}", "torch", to_torch, lambda x: x.float().numpy()
        yield f"jax-{name}", "jax", to_jax, lambda x: np.asarray(x, np.float32)


@pytest.mark.parametrize(
    ("package", "to", "read"), [pytest.param(*rest, id=name) for name, *rest in halves()]
)
@pytest.mark.parametrize("method", [gp.Decomposed(), gp.GEM(), gp.AGEM()], ids=repr)
def test_16_bits_are_computed_in_float32_and_rounded_once(package, to, read, method):
    if package:
        pytest.importorskip(package, reason=f"{package} is not installed")
    new, old = to(g), to(G)
    w = gp.project(new, old, method)
    assert type(w) is type(new)
    assert w.dtype == new.dtype
    expected = to(gp.project(read(new), read(old), method).astype(np.float64))
    unit = 2.0**-7 if "bfloat16" in str(w.dtype) else 2.0**-10
    np.testing.assert_allclose(read(w), read(expected), rtol=unit, atol=1e-6)
    np.testing.assert_allclose(
        gp.measure(new, old).C, read(old).astype(float) @ read(old).astype(float).T, rtol=1e-6
    )
    shared, specific = gp.decompose(old)
    assert shared.dtype == gp.gram_schmidt(specific).dtype == new.dtype


@pytest.mark.parametrize(
    ("package", "to", "read"),
    [pytest.param(*rest, id=name) for name, *rest in halves() if "bfloat16" not in name],
)
def test_float16_that_overflows(package, to, read):
    del read
    if package:
        pytest.importorskip(package, reason=f"{package} is not installed")
    new, old = to(np.asarray([6e4, 0.0])), to(np.asarray([[6e4, 0.0]]))
    message = r"the result does not fit into \S*float16: skip this step, or lower the loss scale"
    with pytest.raises(gp.NotFiniteError, match=message):
        gp.combine(new, old, [1.0])
