"""Every public function, on every library: same library, dtype and device out as in."""

import array_api_compat
import numpy as np
import pytest
from support import backends, zoo

import gradproj as gp

METHODS = [gp.Decomposed(), gp.Decomposed(rank=2, relaxation="last"), gp.GEM(), gp.AGEM()]
rng = np.random.default_rng(3)
OLD = rng.standard_normal((4, 11)) + rng.standard_normal(11)
NEW = rng.standard_normal(11) - OLD.mean(0)


def assert_alike(result, like):
    assert type(result) is type(like)
    assert result.dtype == like.dtype
    assert array_api_compat.device(result) == array_api_compat.device(like)


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", [*METHODS, gp.SGEM()], ids=repr)
@pytest.mark.parametrize("precise", [False, True])
def test_fast_road(library, dtype, method, precise):
    backend = backends.get(library)
    g, G = backend.array(NEW.astype(dtype)), backend.array(OLD.astype(dtype))
    w = gp.project(g, G, method, precise=precise)
    assert_alike(w, g)
    cuts = slice(0, 4), slice(4, 11)
    layers = gp.project_layers([g[c] for c in cuts], [G[:, c] for c in cuts], method)
    for update in layers:
        assert_alike(update, g)
    if not isinstance(method, gp.SGEM):
        expected = gp.project(NEW, OLD, method)
        tolerance = 1e-12 if dtype == np.float64 else 1e-5
        assert np.allclose(backend.numpy(w), expected, rtol=0, atol=tolerance)
    assert np.array_equal(backend.numpy(g), NEW.astype(dtype))
    assert np.array_equal(backend.numpy(G), OLD.astype(dtype))


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_three_steps(library, dtype):
    backend = backends.get(library)
    g, G = backend.array(NEW.astype(dtype)), backend.array(OLD.astype(dtype))
    for precise in (False, True):
        products = gp.measure(g, G, precise=precise)
        for name, expected in {"C": OLD @ OLD.T, "h": OLD @ NEW, "square": NEW @ NEW}.items():
            found = getattr(products, name)
            assert type(found) is np.ndarray
            assert found.dtype == np.float64
            assert np.allclose(found, expected, rtol=1e-5)
        w = gp.combine(g, G, np.ones(4), scale=0.5, precise=precise)
        assert_alike(w, g)
        assert np.allclose(backend.numpy(w), 0.5 * NEW + OLD.sum(0), atol=1e-5)


@backends.every_backend
def test_combine_writes_to_out(library):
    backend = backends.get(library)
    for dtype in (np.float32, np.float64):
        g, G = backend.array(NEW.astype(dtype)), backend.array(OLD.astype(dtype))
        expected = backend.numpy(gp.combine(g, G, np.ones(4)))
        if library == "numpy-readonly":
            with pytest.raises((ValueError, TypeError), match=r"read-only|cannot be written"):
                gp.combine(g, G, np.ones(4), out=g)
            continue
        out = backend.array(np.zeros(11, dtype))
        assert gp.combine(g, G, np.ones(4), out=out) is out
        assert np.array_equal(backend.numpy(out), expected)
        assert np.array_equal(backend.numpy(g), NEW.astype(dtype))
        solution = gp.Solution(np.ones((2, 4)))
        found = gp.combine_layers([g, out], [G, G], solution, out=[g, out])
        assert found[0] is g
        assert found[1] is out
        assert np.array_equal(backend.numpy(g), expected)


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_explicit_road(library, dtype):
    backend = backends.get(library)
    g, G = backend.array(NEW.astype(dtype)), backend.array(OLD.astype(dtype))
    shared, specific = gp.decompose(G)
    bases = gp.gram_schmidt(specific), gp.principal_components(specific)
    for x in (shared, specific, *bases):
        assert_alike(x, g)
    for B in bases:
        assert B.shape == (3, 11)
        w = gp.solve(g, shared, B)
        assert_alike(w, g)
        tolerance = 1e-12 if dtype == np.float64 else 1e-5
        assert np.allclose(backend.numpy(w), gp.project(NEW, OLD), rtol=0, atol=tolerance)
        assert gp.kkt_residuals(w, g, shared, B).worst < tolerance
    assert gp.principal_components(specific, 2).shape == (2, 11)
    assert gp.principal_components(specific, 0).shape == (0, 11)
    assert gp.gram_schmidt(backend.array(np.zeros((4, 11), dtype))).shape == (0, 11)


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("library", ["numpy", "torch", "cupy-standin-device1"])
def test_half_precision_is_computed_in_float32_and_returned_as_it_came(library, method):
    backend = backends.get(library)
    g, G = backend.array(NEW.astype(np.float16)), backend.array(OLD.astype(np.float16))
    w = gp.project(g, G, method)
    assert_alike(w, g)
    wide = gp.project(
        backend.numpy(g).astype(np.float32), backend.numpy(G).astype(np.float32), method
    )
    assert np.array_equal(backend.numpy(w), wide.astype(np.float16))
    shared, specific = gp.decompose(G)
    assert_alike(shared, g)
    assert_alike(gp.solve(g, shared, gp.gram_schmidt(specific)), g)


def test_bfloat16():
    torch = pytest.importorskip("torch")
    g, G = torch.tensor(NEW).to(torch.bfloat16), torch.tensor(OLD).to(torch.bfloat16)
    w = gp.project(g, G)
    assert_alike(w, g)
    assert torch.equal(w, gp.project(g.float(), G.float()).to(torch.bfloat16))


def test_torch_tensors_on_the_cpu_are_read_in_place(monkeypatch):
    torch = pytest.importorskip("torch")
    import gradproj._sums as sums

    seen = []

    def spy(xp, g, G, *rest):
        seen.extend([g[0].ctypes.data, G[0].ctypes.data, G[0].strides])
        return original(xp, g, G, *rest)

    original = sums.measure_entered
    monkeypatch.setattr(sums, "measure_entered", spy)
    buffer = torch.tensor(np.vstack([NEW, OLD]), dtype=torch.float32)
    gp.project(buffer[0, 2:], buffer[1:, 2:])
    assert seen == [buffer[0, 2:].data_ptr(), buffer[1:, 2:].data_ptr(), (44, 4)]


@pytest.mark.numpy_only
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_no_copy_of_the_old_gradients_is_made(method):
    import tracemalloc

    T, N = 30, 200_000
    G = np.random.default_rng(0).standard_normal((T, N), dtype=np.float32)
    g = -G.mean(0)
    tracemalloc.start()
    gp.project(g, G, method)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * N * 3  # a few vectors of N, where G is thirty


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("library", ["numpy", "torch", "cupy-standin-device1"])
def test_strided_memory(library, order):
    backend = backends.get(library)
    wide = backend.array(np.asarray(np.repeat(OLD, 2, axis=1), order=order))
    G = wide[:, ::2]
    assert np.allclose(backend.numpy(gp.project(backend.array(NEW), G)), gp.project(NEW, OLD))


@pytest.mark.parametrize("exponent", [-35, -30, -22, 22, 30, 37])
@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("stretch", [np.asarray, zoo.lengthened])
def test_float32_gradients_of_any_scale(exponent, method, stretch):
    new, old = stretch(NEW), stretch(OLD)
    G = (old * 10.0**exponent).astype(np.float32)
    g = new.astype(np.float32)
    expected = gp.project(new, old, method)
    assert np.allclose(gp.project(g, G, method), expected, atol=1e-4)
    tiny = (new * 10.0**exponent).astype(np.float32)
    w = gp.project(tiny, old.astype(np.float32), method)
    assert np.allclose(
        w.astype(float) / 10.0**exponent, expected, atol=1e-2 if exponent < -34 else 1e-4
    )


# The forms of the product on the CPU: one row, row by row, groups of rows in pieces, all at once;
# and lengths that leave a remainder, or none, or are shorter than a piece.
@pytest.mark.parametrize("T", [1, 3, 11, 12, 19, 20, 40, 200])
@pytest.mark.parametrize("N", [200, 6_550, 19_656, 70_000])
def test_blocks_of_columns_add_up_to_the_whole(T, N):
    G = np.random.default_rng(1).standard_normal((T, N)).astype(np.float32)
    found = gp.measure(G[0], G, precise=False)
    # Not as a matrix product: its rounding in float64 is as large as the tested error.
    wide, some = G.astype(float), np.unique([*range(0, T, 1 + T // 20), T - 1])
    exact = np.stack([(wide[k] * wide).sum(1) for k in some])
    assert np.abs(found.C - found.C.T).max() < 1e-6 * N
    assert np.abs(found.C[some] - exact).max() < 1e-6 * N
    assert np.abs(found.h - exact[0]).max() < 1e-6 * N
    assert abs(found.square - exact[0, 0]) < 1e-6 * N
    precise = gp.measure(G[0], G)
    # dpnp adds up one number after the other: 2e-14 of N at N = 70,000.
    assert np.abs(precise.C[some] - exact).max() < 1e-13 * N
    assert np.abs(precise.h - exact[0]).max() < 1e-13 * N
    assert abs(precise.square - exact[0, 0]) < 1e-13 * N


# A property of OpenBLAS, whose order of summation depends on the memory layout.
# Number by number, a sum of 16,000 squares in float32 is good to some 4e-6 only.
@pytest.mark.numpy_only
@pytest.mark.parametrize("T", [1, 3, 20, 40])
def test_products_are_as_precise_however_the_numbers_lie_in_memory(T):
    rng = np.random.default_rng(2)
    G = np.abs(rng.standard_normal((T, 16_000))).astype(np.float32)
    g = np.abs(rng.standard_normal(16_000)).astype(np.float32)
    forms = {
        "transposed": np.asfortranarray(G),
        "with a step": np.repeat(G, 2, axis=1)[:, ::2],
        "columns backwards": G[:, ::-1].copy()[:, ::-1],
        "rows backwards": G[::-1].copy()[::-1],
        "one row for all": np.broadcast_to(G[0], G.shape),
        "overlapping": np.lib.stride_tricks.sliding_window_view(g, 16_000 - T + 1),
    }
    for name, old in forms.items():
        new = g[::-1].copy()[::-1][: old.shape[1]]
        found = gp.measure(new, old, precise=False)
        wide = old.astype(float)
        assert np.allclose(found.C, wide @ wide.T, rtol=5e-7, atol=0), name
        assert np.allclose(found.h, wide @ new.astype(float), rtol=5e-7, atol=0), name


def test_only_what_float32_cannot_hold_is_measured_in_float64():
    g, G = (zoo.lengthened(x).astype(np.float32) for x in (NEW, OLD))
    unused = G.copy()
    unused[1] = 0.0
    cases = {
        "usual": (g, G, False),
        "a task without this layer": (g, unused, False),
        "no task with this layer": (g, 0 * G, False),
        "the new task without this layer": (0 * g, G, False),
        "tiny": (g, G * np.float32(1e-25), True),
        "one tiny": (g, np.vstack([G, 1e-25 * G[:1]]).astype(np.float32), True),
        "tiny products": (g * np.float32(1e-30), G, True),
        "short": (g[:11], G[:, :11], True),
    }
    for name, (new, old, wide) in cases.items():
        found = gp.measure(new, old, precise=False)
        assert (found.tolerance < 1e-12) == wide, name
        assert np.allclose(found.C, old.astype(float) @ old.astype(float).T, rtol=1e-5, atol=1e-60)
        assert np.allclose(found.h, old.astype(float) @ new.astype(float), rtol=1e-4, atol=1e-60)


def test_tensors_come_back_to_where_they_were_whatever_torch_makes_new_ones_on():
    torch = pytest.importorskip("torch")
    g, G = torch.from_numpy(NEW), torch.from_numpy(OLD)
    with torch.device("meta"):
        assert_alike(gp.project(g, G), g)


def test_tensors_that_only_note_their_sign_are_taken_with_it():
    torch = pytest.importorskip("torch")
    g, G = torch.from_numpy(NEW), torch.from_numpy(OLD)
    assert torch.equal(gp.project(torch._neg_view(g), torch._neg_view(G)), gp.project(-g, -G))
