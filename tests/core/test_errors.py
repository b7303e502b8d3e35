"""Bad input: the error names the argument, the value that was found, and how to fix it."""

import sys
import types

import numpy as np
import pytest
from support import backends, zoo

import gradproj as gp

g, G = np.ones(3), np.ones((2, 3))


@pytest.mark.parametrize(
    ("new", "old", "error", "message"),
    [
        ([1.0, 2.0], G, TypeError, r"g is a list: pass an array .* numpy\.asarray\(g\)"),
        (g, [[1.0]], TypeError, r"G is a list: pass an array"),
        (g.astype(int), G, TypeError, r"g has dtype int64: expected real floating-point"),
        (g, G.astype(complex), TypeError, r"G has dtype complex128: .* convert it first"),
        (G, G, ValueError, r"g has shape \(2, 3\): expected one vector \(N,\)"),
        (g, g, ValueError, r"G has shape \(3,\): expected a matrix \(rows, N\)"),
        (g, np.ones((2, 4)), ValueError, r"G has 4 columns and g has 3: all arrays must belong"),
        (
            g,
            G.astype(np.float32),
            TypeError,
            r"g has dtype float64 and G has dtype float32: cast both",
        ),
        (
            np.ma.masked_array(g),
            G,
            TypeError,
            r"g is a masked array: fill it first",
        ),
        (
            g,
            G.astype(">f8"),
            TypeError,
            r"G has dtype >f8 in a byte order that is not native: pass G\.astype",
        ),
    ],
)
def test_wrong_arrays(new, old, error, message):
    for function in (gp.project, gp.measure):
        with pytest.raises(error, match=message):
            function(new, old)


@pytest.mark.numpy_only
def test_mixed_libraries():
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="g is a numpy array and G is an array_api_strict array: "):
        gp.project(g, strict.asarray(G))


@pytest.mark.numpy_only
def test_torch_and_numpy_do_not_mix():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="g is a torch array and G is a numpy array: pass arrays"):
        gp.project(torch.ones(3), np.ones((2, 3)))
    with pytest.raises(TypeError, match="g is a numpy array and G is a torch array: pass arrays"):
        gp.project(np.ones(3), torch.ones(2, 3))


def test_mixed_devices():
    strict = pytest.importorskip("array_api_strict")
    elsewhere = strict.asarray(G, device=strict.Device("device1"))
    with pytest.raises(ValueError, match=r"g is on device .* and G is on .*device1.*: move both"):
        gp.project(strict.asarray(g), elsewhere)


def test_recorded_tensors():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"g requires grad: pass g\.detach\(\)"):
        gp.project(torch.ones(3, requires_grad=True), torch.ones(2, 3))


def test_tensors_without_dense_numbers():
    torch = pytest.importorskip("torch")
    new = torch.ones(3)
    with pytest.raises(TypeError, match=r"G has layout torch\.sparse_coo: pass G\.to_dense\(\)"):
        gp.project(new, torch.ones(2, 3).to_sparse())
    with pytest.raises(ValueError, match="g is on the meta device and has no values: load it"):
        gp.project(new.to("meta"), torch.ones(2, 3))


def test_a_dtype_that_numpy_has_from_elsewhere():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    with pytest.raises(TypeError, match=r"g has dtype float8_e4m3fn: .* for example to float32"):
        gp.project(g.astype(ml_dtypes.float8_e4m3fn), G)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.filterwarnings("error")
def test_infinities_that_meet_are_an_error_and_no_warning(dtype):
    new, old = np.ones(2000, dtype), np.ones((3, 2000), dtype)
    new[:2] = np.inf, -np.inf
    with pytest.raises(gp.NotFiniteError, match=r"^g contains NaN"):
        gp.project(new, old)


@pytest.mark.filterwarnings("error")
def test_an_update_that_does_not_fit_is_an_error():
    new, old = np.asarray([60000, -60000], np.float16), np.asarray([[60000, 10]], np.float16)
    with pytest.raises(gp.NotFiniteError, match="the result does not fit into float16: skip"):
        gp.project(new, old, gp.Decomposed(strength=1.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", [gp.Decomposed(), gp.GEM(), gp.AGEM()], ids=repr)
@pytest.mark.parametrize("stretch", [np.asarray, zoo.lengthened])
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_not_finite(bad, dtype, method, stretch):
    new, old = (stretch(x.astype(dtype, copy=True)) for x in (g, G))
    old[1, 2] = bad
    with pytest.raises(gp.NotFiniteError, match=r"^G \(row 1\) contains NaN or infinity"):
        gp.project(new, old, method)
    new, old = (stretch(x.astype(dtype, copy=True)) for x in (g, G))
    new[0] = bad
    with pytest.raises(gp.NotFiniteError, match=r"^g contains NaN or infinity"):
        gp.project(new, old, method)
    with pytest.raises(gp.NotFiniteError, match=r"^g contains NaN or infinity"):
        gp.project(new, old[:0], method)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_not_finite_names_the_row_and_the_layer():
    old = [G, G.copy(), G]
    old[1][1, 0] = np.nan
    with pytest.raises(gp.NotFiniteError, match=r"^G\[1\] \(row 1\) contains NaN"):
        gp.project_layers([g, g, g], old)
    with pytest.raises(gp.NotFiniteError, match=r"^g\[2\] contains NaN"):
        gp.project_layers([g, g, np.nan * g], [G, G, G])


def test_layers_that_do_not_go_together():
    with pytest.raises(ValueError, match="g has 1 layers and G has 2: expected one G per g"):
        gp.project_layers([g], [G, G])
    with pytest.raises(ValueError, match=r"G\[1\] has 1 rows and G\[0\] has 2: every layer must"):
        gp.project_layers([g, g], [G, G[:1]])
    with pytest.raises(ValueError, match=r"G\[1\] has 3 columns and g\[1\] has 2: all arrays"):
        gp.project_layers([g, g[:2]], [G, G])
    with pytest.raises(TypeError, match=r"g\[0\] has dtype float64 and g\[1\] has dtype float32"):
        gp.project_layers([g, g.astype(np.float32)], [G, G.astype(np.float32)])
    with pytest.raises(TypeError, match=r"g\[0\] has dtype float16 and g\[1\] has dtype float64"):
        gp.project_layers([g.astype(np.float16), g], [G.astype(np.float16), G])
    assert gp.project_layers([], []) == []


def test_layers_may_come_from_generators():
    both = gp.project_layers((x for x in (g, g)), (x for x in (-G, G)))
    assert [w.tolist() for w in both] == [w.tolist() for w in gp.project_layers([g, g], [-G, G])]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gp.Decomposed(rank=-1), "rank=-1 is invalid: expected an integer >= 0"),
        (lambda: gp.Decomposed(rank=1.5), r"rank=1\.5 is invalid: .* a float in \(0, 1\)"),
        (lambda: gp.Decomposed(rank=True), "rank=True is invalid: expected an integer >= 0"),
        (lambda: gp.Decomposed(rank="5"), "rank='5' is invalid: expected an integer >= 0"),
        (
            lambda: gp.Decomposed(strength=None),
            "strength=None is invalid: expected a finite number",
        ),
        (
            lambda: gp.Decomposed(relaxation="pcs"),
            "relaxation='pcs' is invalid: expected 'pca', 'first'",
        ),
        (lambda: gp.Decomposed(rank=0.5, relaxation="last"), r"rank=0\.5 is a share of the var"),
        (
            lambda: gp.Decomposed(replay="all"),
            "replay='all' is invalid: expected 'mean' or 'sum'",
        ),
        (
            lambda: gp.Decomposed(rule="part margin"),
            "rule='part margin' is invalid: expected 'always', 'violated' or 'part-margin'",
        ),
        (lambda: gp.GEM(replay="all"), "replay='all' is invalid: expected 'mean' or 'sum'"),
        (lambda: gp.AGEM(replay="all"), "replay='all' is invalid: expected 'mean' or 'sum'"),
        (lambda: gp.GEM(ridge=-1e-3), r"ridge=-0\.001 is invalid: expected a finite number >= 0"),
        (lambda: gp.AGEM(ridge=None), "ridge=None is invalid: expected a finite number >= 0"),
        (lambda: gp.SGEM(ridge=-1), "ridge=-1 is invalid: expected a finite number >= 0"),
        (
            lambda: gp.Decomposed(strength=-1),
            "strength=-1 is invalid: expected a finite number >= 0",
        ),
        (
            lambda: gp.GEM(strength=float("nan")),
            "strength=nan is invalid: expected a finite number",
        ),
        (
            lambda: gp.AGEM(strength=float("inf")),
            "strength=inf is invalid: expected a finite number",
        ),
        (lambda: gp.SGEM(strength=-0.5), r"strength=-0\.5 is invalid: expected"),
        (lambda: gp.SGEM(seed=None), "seed=None is invalid: expected an integer >= 0"),
        (lambda: gp.SGEM(seed=-1), "seed=-1 is invalid: expected an integer >= 0"),
        (lambda: gp.SGEM(seed=0.5), r"seed=0\.5 is invalid: expected an integer >= 0"),
        (lambda: gp.Decomposed(shared="no"), "shared='no' is invalid: expected True or False"),
        (lambda: gp.Decomposed(specific=None), "specific=None is invalid: expected True or False"),
        (
            lambda: gp.GEM(strength=np.complex128(1)),
            r"strength=np\.complex128.* is invalid: expected",
        ),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_method():
    with pytest.raises(
        TypeError, match=r"method is <class .*GEM.>: pass a method object, for example gp\.GEM\(\)"
    ):
        gp.project(g, G, gp.GEM)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda h: h, TypeError, r"Own\.solve_layers returned a ndarray: return gp\.Solution"),
        (lambda h: gp.Solution(h[:, :1]), ValueError, r"of shape \(1, 1\) for h of shape \(1, 2\)"),
        (lambda h: gp.Solution(h[0]), ValueError, r"of shape \(2,\) for h of shape \(1, 2\)"),
        (
            lambda h: gp.Solution(h * np.nan),
            ValueError,
            "coefficients or a scale with NaN or infinity",
        ),
    ],
)
def test_a_method_of_ones_own_that_answers_wrongly(answer, error, message):
    class Own(gp.Method):
        def solve_layers(self, products):
            return answer(products.h)

    with pytest.raises(error, match=message):
        gp.project(g, G, Own())
    with pytest.raises(error, match=message):
        gp.project_layers([g], [G], Own())
    with pytest.raises(error, match=message):
        Own().solve(gp.Products(np.eye(2), np.ones(2)))


@pytest.mark.parametrize("library", ["numpy", "strict", "torch", "cupy-standin-device1"])
@pytest.mark.parametrize(
    "form", [lambda c: c.astype(int), lambda c: c.astype("f4")[:, ::-1], lambda c: c.tolist()]
)
def test_a_method_of_ones_own_may_answer_in_any_form(library, form):
    class Own(gp.Method):
        def solve_layers(self, products):
            return gp.Solution(form(np.ones(products.h.shape)), rank=3)

    backend = backends.get(library)
    new, old = (backend.array(x.astype(np.float32)) for x in (g, G))
    found = gp.project(new, old, Own(), full_output=True)
    assert backend.numpy(found.update).tolist() == [3.0, 3.0, 3.0]
    assert found.rank == 3


@pytest.mark.parametrize("method", [gp.Decomposed(), gp.Decomposed(rank=0), gp.AGEM()], ids=repr)
def test_the_row_that_is_not_finite_is_named(method):
    old = np.ones((4, 3))
    old[2, 1] = np.nan
    with pytest.raises(gp.NotFiniteError, match=r"^G \(row 2\) contains NaN"):
        gp.project(g, old, method)


def test_wrong_steps():
    with pytest.raises(ValueError, match=r"C has shape \(2, 2\) and h has shape \(3,\): expected"):
        gp.Products(np.eye(2), np.ones(3))
    for name in ("square", "tolerance"):
        with pytest.raises(ValueError, match=rf"{name} has shape \(3,\) and h .* one number per"):
            gp.Products(np.ones((2, 1, 1)), np.ones((2, 1)), **{name: np.zeros(3)})
    for tolerance in (-1.0, np.nan, 1.0):
        with pytest.raises(ValueError, match=f"tolerance={tolerance} is invalid: expected numbers"):
            gp.Products(np.eye(2), np.ones(2), tolerance=tolerance)
    with pytest.raises(ValueError, match=r"cannot add products with h of shape \(2,\) and \(1,\)"):
        gp.Products(np.eye(2), np.ones(2)) + gp.Products(np.eye(1), np.ones(1))
    with pytest.raises(TypeError, match="unsupported operand"):
        gp.Products(np.eye(2), np.ones(2)) + 1
    with pytest.raises(TypeError, match=r"products is a ndarray: pass gp\.measure\(g, G\)"):
        gp.GEM().solve(np.eye(2))
    with pytest.raises(gp.NotFiniteError, match="C or h contains NaN or infinity: check the grad"):
        gp.GEM().solve(gp.Products(np.eye(2), [1.0, np.nan]))
    with pytest.raises(ValueError, match=r"c has shape \(3,\): expected one coefficient per row"):
        gp.combine(g, G, np.ones(3))
    with pytest.raises(gp.NotFiniteError, match="c or scale contains NaN or infinity: check the"):
        gp.combine(g, G, [1.0, np.nan])
    with pytest.raises(gp.NotFiniteError, match="c or scale contains NaN or infinity: check the"):
        gp.combine(g, G, [1.0, 1.0], scale=np.inf)
    with pytest.raises(ValueError, match=r"solution has coefficients of shape \(1, 3\): expected"):
        gp.combine_layers([g], [G], gp.Solution(np.ones((1, 3))))
    with pytest.raises(ValueError, match="out has 2 layers and g has 1: expected as many"):
        gp.combine_layers([g], [G], gp.Solution(np.ones((1, 2))), out=[g, g])
    with pytest.raises(gp.NotFiniteError, match=r"^G\[0\] \(row 1\) contains NaN or infinity"):
        gp.measure_layers([g], [np.asarray([[1.0, 1.0, 1.0], [1.0, np.inf, 1.0]])])
    with pytest.raises(ValueError, match=r"weights=.* is invalid: expected one finite number per"):
        gp.Reduction([0.0, 0.0], gp.AGEM())


@pytest.mark.numpy_only
def test_an_out_of_the_wrong_length():
    with pytest.raises(ValueError, match=r"out has 2 columns and g has 3: all arrays must"):
        gp.combine(g, G, [1.0, 1.0], out=np.ones(2))


def test_a_reduction_with_the_wrong_number_of_weights():
    class Own(gp.AGEM):
        def reduce(self, T):
            return gp.Reduction(np.ones(T + 1), self)

    with pytest.raises(
        ValueError, match=r"reduce\(2\) returned 3 weights: return one per old task"
    ):
        gp.project(g, G, Own())


@pytest.mark.parametrize("method", [gp.AGEM(), gp.SGEM()], ids=repr)
def test_a_state_of_another_method(method):
    other = {"else": 1}
    with pytest.raises(ValueError, match=r"state has \['else'\]"):
        method.load_state_dict(other)
    assert gp.AGEM().state_dict() == {}
    gp.AGEM().load_state_dict({})


def test_explicit_road():
    with pytest.raises(ValueError, match="G has no rows: there is nothing to decompose"):
        gp.decompose(G[:0])
    with pytest.raises(ValueError, match="H contains NaN or infinity"):
        gp.gram_schmidt(G * np.nan)
    for k in (-1, "3", 1.5, True):
        with pytest.raises(ValueError, match=f"k={k!r} is invalid: expected an integer >= 0"):
            gp.principal_components(G, k)
    for name in ("tolerance", "scale"):
        for value in (-1.0, np.nan, np.inf):
            with pytest.raises(
                ValueError, match=f"{name}={value} is invalid: expected a finite number >= 0"
            ):
                gp.gram_schmidt(G, **{name: value})
    for value in (-1.0, np.nan, np.inf):
        with pytest.raises(
            ValueError, match=f"tolerance={value} is invalid: expected a finite number >= 0"
        ):
            gp.principal_components(G, tolerance=value)
    with pytest.raises(
        gp.NotFiniteError, match=r"G has numbers too large to be added up|does not fit into float16"
    ):
        gp.decompose(np.full((2, 2), 1.5e308))
    for dtype, large in ((np.float16, 6e4), (np.float32, 3e38), (np.float64, 1.7e308)):
        with pytest.raises(
            gp.NotFiniteError,
            match=r"G has numbers too large to be added up|does not fit into float16",
        ):
            gp.decompose(np.asarray([[large], [-large], [-large]], dtype))
        turned = np.asarray([[-np.sin(np.pi / 8), np.cos(np.pi / 8)]], dtype)
        with pytest.raises(gp.NotFiniteError, match="the result does not fit into float"):
            gp.solve(np.full(2, large, dtype), np.zeros(2, dtype), turned)
    with pytest.raises(
        ValueError, match=r"B has rows that are not orthonormal \(B Bᵀ differs .* by 3\)"
    ):
        gp.solve(g, g, G)
    with pytest.raises(
        ValueError, match=r"B has 2 columns and g has 3: all arrays must belong to the same N"
    ):
        gp.solve(g, g, G[:, :2])
    with pytest.raises(ValueError, match=r"B has shape \(3,\): expected a matrix"):
        gp.kkt_residuals(g, g, g, g)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_share_is_strictly_between_none_and_all(value):
    with pytest.raises(ValueError, match=r"a float in \(0, 1\)"):
        gp.Decomposed(rank=value)
    with pytest.raises(ValueError, match=r"a float in \(0, 1\)"):
        gp.principal_components(np.eye(2), value)


@pytest.mark.parametrize("method", [gp.Decomposed, gp.GEM, gp.AGEM, gp.SGEM])
def test_true_is_not_a_strength(method):
    with pytest.raises(ValueError, match="strength=True is invalid: expected a finite number >= 0"):
        method(strength=True)


def test_a_batch_with_one_bad_layer_is_not_solved():
    C, h = np.ones((2, 1, 1)), np.asarray([[1.0], [np.nan]])
    with pytest.raises(gp.NotFiniteError, match="C or h contains NaN or infinity"):
        gp.GEM().solve(gp.Products(C, h))
    for bad in (
        gp.Products(C, h),
        gp.Products(np.asarray([[[1.0]], [[np.inf]]]), h[:1].repeat(2, 0)),
    ):
        assert bad.finite.tolist() == [True, False]
    part = gp.Products(np.asarray([[1.0, np.nan], [np.nan, 1.0]]), np.ones(2))
    assert not part.finite


def test_unchecked_products_tell_which_layers_are_finite():
    new, old = [np.ones(2), np.asarray([1.0, np.nan])], [np.ones((1, 2)), np.ones((1, 2))]
    with pytest.raises(gp.NotFiniteError, match=r"^g\[1\] contains NaN"):
        gp.measure_layers(new, old)
    assert gp.measure_layers(new, old, check=False).finite.tolist() == [True, False]


def test_the_first_bad_row_is_named():
    G = np.ones((4, 3))
    G[1:3, 0] = np.inf
    with pytest.raises(gp.NotFiniteError, match=r"^G \(row 1\) contains NaN"):
        gp.measure(np.ones(3), G)


def test_one_number_that_is_not_finite_is_enough():
    for call in (gp.decompose, gp.gram_schmidt, gp.principal_components):
        with pytest.raises(gp.NotFiniteError, match="contains NaN or infinity"):
            getattr(gp, call.__name__)(np.asarray([[1.0, np.nan], [1.0, 1.0]]))


def test_a_name_that_does_not_exist():
    assert not hasattr(gp, "no_such_name")
    assert isinstance(gp.__version__, str)


@pytest.mark.parametrize(
    ("library", "name", "message"),
    [
        ("sparse", "SparseArray", r"g is a sparse array: pass g\.todense\(\)"),
        ("ndonnx", "Array", r"g is an ndonnx array, .* pass g\.unwrap_numpy\(\)"),
    ],
)
def test_arrays_that_are_not_dense_or_have_no_values(monkeypatch, library, name, message):
    # Stand-ins: neither library is installed, and only the type of the array is looked at.
    module = types.ModuleType(library)
    setattr(module, name, type(name, (), {"__array_namespace__": None}))
    monkeypatch.setitem(sys.modules, library, module)
    with pytest.raises(TypeError, match=message):
        gp.project(getattr(module, name)(), np.ones((1, 2)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gp.combine(g, G, "ab"), "c is a str: expected numbers"),
        (lambda: gp.combine(g, G, [1, 1], scale="x"), "scale is a str: expected numbers"),
        (lambda: gp.combine_layers([g], [G], [1, 1]), r"solution is a list: pass a gp\.Solution"),
        (lambda: gp.Products(C=[["a"]], h=[1.0]), "C is a list: expected numbers"),
        (lambda: gp.Products(C=[[1.0]], h=[1.0], square="a"), "square is a str: expected numbers"),
    ],
)
def test_values_that_are_not_numbers(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gp.preserve(G, np.eye(3), strength="a"), "strength='a' is invalid: expected a"),
        (lambda: gp.input_basis(np.eye(3), share=None), "share=None is invalid: expected a"),
        (lambda: gp.input_basis(np.eye(3), share=0.5, scale="a"), "scale='a' is invalid: expected"),
    ],
)
def test_settings_of_the_wrong_type(call, message):
    with pytest.raises(ValueError, match=message):
        call()
