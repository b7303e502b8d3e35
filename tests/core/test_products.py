"""Inner products: their accuracy, their sums over shards, and the tolerance they report."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import backends

import gradproj as gp

N = 140_000
KINDS = {
    "normal": lambda rng, T: rng.standard_normal((T, N)),
    "positive": lambda rng, T: np.abs(rng.standard_normal((T, N))),
    "heavy tails": lambda rng, T: np.exp(2 * rng.standard_normal((T, N))),
    "constant": lambda rng, T: np.full((T, N), 0.1 + rng.random()),
    "few values": lambda rng, T: rng.random() * rng.integers(1, 4, (T, N)),
    "from float16": lambda rng, T: rng.standard_normal((T, N)).astype(np.float16),
    "from subnormal float16": lambda rng, T: (2e-5 * rng.standard_normal((T, N))).astype("f2"),
}


def exact(g, G):
    """Return the products by pairwise sums, which round less than a float64 matrix product."""
    g, G = g.astype(float), G.astype(float)
    C = np.stack([(row * G).sum(1) for row in G])
    return C, (G * g).sum(1), (g * g).sum()


@pytest.mark.parametrize("T", [1, 2, 5, 12, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tolerance_bounds_the_error(kind, T):
    rng = np.random.default_rng(T)
    rows = KINDS[kind](rng, T + 1).astype(np.float32)
    C, h, square = exact(rows[0], rows[1:])
    lengths = np.sqrt(np.diagonal(C))
    for precise in (False, True):
        found = gp.measure(rows[0], rows[1:], precise=precise)
        assert found.tolerance == (1e-13 if precise else 2e-5)
        allowed = float(found.tolerance)
        assert (np.abs(found.C - C) <= allowed * np.outer(lengths, lengths)).all()
        assert (np.abs(found.h - h) <= allowed * lengths * np.sqrt(square)).all()
        assert abs(found.square - square) <= allowed * square


CONSTANT = """
import array_api_strict
import numpy as np
import gradproj as gp
for asarray in np.asarray, array_api_strict.asarray:
    for T in 1, 2, 5, 12:
        for value in np.linspace(0.5, 1, 7, dtype=np.float32):
            rows = np.full((T + 1, 140_000), value)
            found = gp.measure(asarray(rows[0]), asarray(rows[1:]), precise=False)
            exact = rows.shape[1] * float(value) ** 2
            for part in found.C, found.h, found.square:
                assert (abs(part / exact - 1) < found.tolerance).all(), (T, value, part / exact)
"""


def run_with_kernels(processor, code):
    """Run a program with OpenBLAS's kernels for a processor and return what it prints."""
    path = str(Path(gp.__file__).parent.parent)
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OPENBLAS_CORETYPE": processor, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.mark.numpy_only
@pytest.mark.parametrize("processor", ["Nehalem", "Haswell"])
def test_the_tolerance_holds_with_the_kernels_of_older_processors(processor):
    # OpenBLAS adds up a dot product in 4 or 8 partial sums there, and in 16 or more elsewhere.
    run_with_kernels(processor, CONSTANT)


@pytest.mark.numpy_only
def test_rows_are_grouped_as_the_kernels_of_the_processor_need():
    code = "from gradproj import _blocks as b; print(b.blas_kernels(), b._GROUP)"
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    if blas != "scipy-openblas" or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip(f"this NumPy has {blas}, which may not have these kernels")
    assert run_with_kernels("Haswell", code) == "Haswell 24"
    # The second without AVX-512.
    assert run_with_kernels("SkylakeX", code) in ("SkylakeX 8", "Haswell 24")


def test_products_are_symmetric_to_the_last_bit():
    for T in (3, 11, 12, 20, 41, 60):
        C = gp.measure(np.ones(9000, "f4"), np.random.default_rng(0).random((T, 9000), "f4")).C
        assert np.array_equal(C, C.T)


def test_shards_add_up_with_the_larger_tolerance():
    rng = np.random.default_rng(0)
    G, g = rng.standard_normal((3, 5000)).astype("f4"), rng.standard_normal(5000).astype("f4")
    small, large = (gp.measure_layers([g[c]], [G[:, c]]) for c in (slice(0, 900), slice(900, 5000)))
    assert small.tolerance.tolist() == [1e-13]
    assert large.tolerance.tolist() == [2e-5]
    for both in (small + large, large + small):
        assert both.tolerance.tolist() == [2e-5]
        C, h, square = exact(g, G)
        assert np.allclose(both.C[0], C, rtol=0, atol=1e-6 * C.max())
        assert np.allclose(both.h[0], h, rtol=0, atol=1e-6 * C.max())
        assert np.allclose(both.square[0], square)


def test_layers_are_measured_like_single_problems():
    rng = np.random.default_rng(1)
    sizes = [3, 2000, 0, 70_000]
    G = [rng.standard_normal((4, n)).astype("f4") for n in sizes]
    g = [rng.standard_normal(n).astype("f4") for n in sizes]
    for precise in (False, True):
        layers = gp.measure_layers(g, G, precise=precise)
        assert layers.C.shape == (4, 4, 4)
        assert layers.tolerance.tolist() == [1e-13 if precise or n <= 1024 else 2e-5 for n in sizes]
        for layer, (g_l, G_l) in enumerate(zip(g, G, strict=True)):
            alone = gp.measure(g_l, G_l, precise=precise)
            for name in ("C", "h", "square", "tolerance"):
                assert np.array_equal(getattr(layers[layer], name), getattr(alone, name))
    assert gp.measure_layers([], []).h.shape == (0, 0)


def test_layers_that_are_not_finite_are_reported_or_refused():
    g, G = np.ones(3), np.ones((2, 3))
    bad = np.asarray([[1.0, np.nan, 1.0], [1.0, 1.0, 1.0]])
    found = gp.measure_layers([g, g, g * np.inf], [G, bad, G], check=False)
    assert (found.finite & np.isfinite(found.square)).tolist() == [True, False, False]
    with pytest.raises(gp.NotFiniteError, match=r"^G\[1\] \(row 0\) contains NaN"):
        gp.measure_layers([g, g], [G, bad])
    with pytest.raises(gp.NotFiniteError, match=r"^g\[1\] contains NaN"):
        gp.measure_layers([g, g * np.nan], [G, G])


def test_one_tolerance_per_layer_reaches_the_method():
    seen = []

    class Watch(gp.Method):
        def solve_layers(self, products):
            seen.append(products)
            return gp.Solution(np.zeros_like(products.h))

    rng = np.random.default_rng(2)
    sizes = [10, 3000]
    G, g = [rng.random((2, n), "f4") for n in sizes], [rng.random(n, "f4") for n in sizes]
    gp.project_layers(g, G, Watch())
    assert len(seen) == 1
    assert seen[0].tolerance.tolist() == [1e-13, 2e-5]
    assert np.allclose(seen[0].square, [(x * x).sum() for x in g])


def test_the_scale_of_the_new_gradient_is_the_methods():
    class Halve(gp.Method):
        def solve_layers(self, products):
            return gp.Solution(np.ones_like(products.h), scale=0.5)

    rng = np.random.default_rng(3)
    for dtype, n in ((np.float64, 20), (np.float32, 20), (np.float32, 3000)):
        G, g = rng.standard_normal((3, n)).astype(dtype), rng.standard_normal(n).astype(dtype)
        found = gp.project(g, G, Halve(), full_output=True)
        assert np.allclose(found.update, 0.5 * g + G.sum(0), atol=1e-5)
        assert found.scale == 0.5
        assert np.allclose(gp.project(g, G[:0], Halve()), 0.5 * g)
        layers = gp.project_layers([g, g], [G, -G], Halve(), full_output=True)
        assert layers.scale.tolist() == [0.5, 0.5]
        assert np.allclose(layers.update[1], 0.5 * g - G.sum(0), atol=1e-5)


def test_an_unknown_square_is_not_a_number():
    assert np.isnan(gp.Products(np.eye(2), np.ones(2)).square)
    assert np.isnan((gp.Products([[1.0]], [1.0]) + gp.Products([[1.0]], [1.0], 4.0)).square)
    assert gp.GEM().solve(gp.Products(np.eye(2), [-1.0, 1.0])).coefficients.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("library", ["numpy", "strict"])
@pytest.mark.parametrize("T", [1, 3, 20])
def test_blocks_are_added_in_float64(library, T):
    # Integers up to 15: every block's product is exact in float32, below 2²⁴, and the total is not.
    backend = backends.get(library)
    rng = np.random.default_rng(0)
    new, old = rng.integers(1, 16, 600_001), rng.integers(1, 16, (T, 600_001))
    g, G = (backend.array(x.astype(np.float32)) for x in (new, old))
    found = gp.measure_layers([g], [G])
    assert found.tolerance[0] > 1e-13
    assert np.array_equal(found.h[0], old @ new)
    assert np.array_equal(found.C[0], (old.astype(float) @ old.T).astype(int))
    assert found.square[0] == new @ new


@pytest.mark.numpy_only  # other libraries multiply whole blocks
def test_pieces_of_a_block_are_added_in_float64():
    # Integers up to 63: the product of a piece, of at most 4,096 columns, is exact in float32.
    rng = np.random.default_rng(0)
    new, old = rng.integers(1, 64, 60_000), rng.integers(1, 64, (20, 60_000))
    exact = (old.astype(float) @ old.T).astype(int)
    found = gp.measure_layers([new.astype(np.float32)], [old.astype(np.float32)])
    assert np.array_equal(found.C[0, :16], exact[:16])
    assert found.square[0] == new @ new
    one = gp.measure_layers([new.astype(np.float32)], [old[:1].astype(np.float32)])
    assert (one.C[0, 0, 0], one.h[0, 0]) == (exact[0, 0], old[0] @ new)
