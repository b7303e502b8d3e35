"""LowRankMoments: the same answers as the matrix where it has low rank, and never a square one."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import backends

import gradproj as gp

EPS = {np.float32: 1.2e-7, np.float64: 2.3e-16}
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def inputs(rank, n=9, rows=40, seed=0, leading=()):
    """Return inputs that span `rank` directions."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((*leading, rows, rank)) @ rng.standard_normal((*leading, rank, n))


def observed(a, *, rank=None, batch=7, backend=None):
    moments = gp.InputMoments(rank=rank)
    for start in range(0, a.shape[-2], batch):
        part = a[..., start : start + batch, :]
        moments.update(part if backend is None else backend.array(part))
    return moments


@backends.every_backend
@dtypes
@pytest.mark.parametrize(("rank", "kept"), [(2, 2), (2, 4), (0, 1), (9, 9), (3, 20)])
def test_equal_to_the_matrix_if_the_rank_suffices(library, dtype, rank, kept):
    backend = backends.get(library)
    a = inputs(rank).astype(dtype)
    S = observed(a, rank=kept, backend=backend).matrix()
    known = a.astype(np.float64).T @ a / len(a)
    size = max(np.linalg.norm(known), 1.0)
    V = backend.numpy(S.vectors)
    assert type(S.vectors) is type(backend.array(a))
    assert V.dtype == backend.numpy(S.values).dtype == backend.numpy(S.rest).dtype == dtype
    assert V.shape == (min(kept, 9), 9)
    assert np.allclose(V @ V.T, np.eye(len(V)), atol=20 * EPS[dtype])
    assert np.allclose(backend.numpy(S.dense()), known, rtol=0, atol=50 * EPS[dtype] * size)
    g = np.random.default_rng(1).standard_normal((3, 9)).astype(dtype)
    for strength in (0.0, 1.0, 30.0, math.inf):
        w = gp.preserve(backend.array(g), S, strength=strength)
        assert type(w) is type(backend.array(g))
        assert w.dtype == backend.array(g).dtype
        expected = gp.preserve(g.astype(np.float64), known, strength=strength)
        tolerance = 1e3 * EPS[dtype] * np.linalg.norm(g)
        assert np.allclose(backend.numpy(w), expected, rtol=0, atol=tolerance)


@given(
    seed=st.integers(0, 200), kept=st.integers(1, 6), n=st.integers(1, 9), batch=st.integers(1, 30)
)
@pytest.mark.numpy_only
def test_approximation(seed, kept, n, batch):
    """The trace is exact, the rest is never negative, and the values are not below the rest."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((30, n)) * np.geomspace(1, 0.01, n)
    S = observed(a, rank=kept, batch=batch).matrix()
    known = a.T @ a / 30
    assert np.isclose(S.trace, np.trace(known), rtol=1e-12)
    assert np.isclose(S.mean_eigenvalue, np.trace(known) / n, rtol=1e-12)
    assert S.rest >= 0
    assert (np.diff(S.values) <= 1e-12).all()
    assert S.values.min() >= S.rest - 1e-12
    # Frequent directions: too large by at most the sum that was taken from each direction.
    true = np.linalg.eigvalsh(known)[::-1]
    above = true[kept:].sum() / max(kept, 1)
    assert (
        np.linalg.norm(S.dense() - known, 2) <= max(above, true[kept:].max(initial=0)) * 2 + 1e-12
    )
    g = rng.standard_normal((2, n))
    w = gp.preserve(g, S, strength=3.0)
    assert np.allclose(w @ (np.eye(n) + 3.0 * S.dense()), g, atol=1e-10)
    assert np.sum(w * g) > 0


@pytest.mark.numpy_only
def test_rounding_does_not_make_the_rest_negative():
    """Here nothing is left outside of the directions, up to rounding of either sign."""
    for seed in range(20):
        assert observed(inputs(2, seed=seed), rank=4).matrix().rest >= 0


@pytest.mark.numpy_only
def test_late_directions_count():
    """Plain truncation after each batch would never see the second half."""
    a = np.zeros((400, 8))
    a[np.arange(200), np.arange(200) % 2] = 1.0
    a[np.arange(200, 400), 4 + np.arange(200) % 2] = 2.0
    S = observed(a, rank=2, batch=1).matrix()
    late = np.linalg.norm(S.vectors[:, 4:6]) ** 2
    assert late > 1.9


@backends.every_backend
@dtypes
def test_tasks_add_up(library, dtype):
    backend = backends.get(library)
    first = inputs(2, seed=1).astype(dtype)
    second = inputs(3, seed=2).astype(dtype)
    S, T = (observed(a, rank=k, backend=backend).matrix() for a, k in ((first, 2), (second, 5)))
    total = S + T
    known = sum(a.astype(np.float64).T @ a / 40 for a in (first, second))
    assert total.vectors.shape == (5, 9)
    assert total.vectors.dtype == S.vectors.dtype
    size = np.linalg.norm(known)
    assert np.allclose(backend.numpy(total.dense()), known, rtol=0, atol=50 * EPS[dtype] * size)
    twice = backend.numpy((2.0 * S + S * 0.5).dense())
    assert np.allclose(twice, 2.5 * backend.numpy(S.dense()), rtol=0, atol=50 * EPS[dtype] * size)


@given(seed=st.integers(0, 200), ranks=st.tuples(st.integers(1, 4), st.integers(1, 4)))
@pytest.mark.numpy_only
def test_the_sum_is_the_best_with_that_many_directions(seed, ranks):
    S, T = (observed(inputs(6, n=6, seed=seed + i), rank=k).matrix() for i, k in enumerate(ranks))
    total, known = S + T, S.dense() + T.dense()
    assert np.isclose(total.trace, S.trace + T.trace, rtol=1e-12)
    values = np.linalg.eigvalsh(known)[::-1]
    assert np.allclose(total.values, values[: max(ranks)])
    assert np.isclose(total.rest, values[max(ranks) :].mean())
    assert np.allclose((total.vectors @ known @ total.vectors.T).diagonal(), total.values)


@backends.every_backend
def test_groups_are_independent_problems(library):
    backend = backends.get(library)
    a = inputs(5, leading=(3,))
    a[1] = inputs(1)
    S = observed(a, rank=2, backend=backend).matrix(scaled=True)
    assert S.vectors.shape == (3, 2, 9)
    assert np.allclose(backend.numpy(S.mean_eigenvalue), 1)
    g = np.random.default_rng(0).standard_normal((3, 4, 9))
    w = backend.numpy(gp.preserve(backend.array(g), S, strength=2.0))
    total = backend.numpy((S + S).dense())
    for k in range(3):
        alone = observed(a[k], rank=2).matrix(scaled=True)
        assert np.allclose(w[k], gp.preserve(g[k], alone, strength=2.0), atol=1e-10)
        assert np.allclose(total[k], 2 * alone.dense(), atol=1e-10)


@backends.every_backend
def test_processes_and_state(library):
    backend = backends.get(library)
    a = inputs(3)
    first, second = (observed(part, rank=4, backend=backend) for part in (a[:13], a[13:]))
    again = gp.InputMoments(rank=4)
    again.load_state_dict(first.state_dict())
    total = again + second + gp.InputMoments(rank=4)
    assert total.count == 40
    assert np.allclose(backend.numpy(total.matrix().dense()), a.T @ a / 40)
    assert np.allclose(backend.numpy(total.total.dense()), a.T @ a)
    assert np.isclose(float(total.matrix(scaled=True).mean_eigenvalue), 1)
    with pytest.raises(ValueError, match="another kind of moments"):
        gp.InputMoments().load_state_dict(first.state_dict())
    full = gp.InputMoments()
    full.update(backend.array(a))
    with pytest.raises(ValueError, match="another kind of moments"):
        again.load_state_dict(full.state_dict())


@pytest.mark.numpy_only
def test_merged_sketches_are_as_good_as_one():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((600, 50)) * np.geomspace(1, 0.01, 50)
    known = a.T @ a / 600
    one = observed(a, rank=8).matrix()
    merged = (observed(a[:300], rank=8) + observed(a[300:], rank=8)).matrix()
    best = np.linalg.eigvalsh(known)[-9]
    for S in (one, merged):
        assert np.isclose(S.trace, np.trace(known))
        assert np.linalg.norm(S.dense() - known, 2) < 2 * best


@pytest.mark.numpy_only
def test_a_merged_sketch_brings_its_compensation():
    """The first process has seen too few rows to shorten any; the second has shortened many."""
    rng = np.random.default_rng(0)
    a = np.concatenate([np.tile([[3.0, 0, 0, 0, 0]], (40, 1)), rng.standard_normal((40, 5))])
    rng.shuffle(a)
    merged = observed(a[:3], rank=2, batch=1) + observed(a[3:], rank=2, batch=1)
    largest = np.linalg.eigvalsh(a.T @ a / 80)[-1]
    assert np.isclose(merged.matrix().values[0], largest, rtol=0.01)


@pytest.mark.numpy_only
def test_no_square_matrix_is_formed():
    """With 200,000 inputs it would take 320 GB."""
    n, k = 200_000, 4
    rng = np.random.default_rng(0)
    a = rng.standard_normal((24, n), dtype=np.float32)
    tracemalloc.start()
    moments = gp.InputMoments(rank=k)
    for start in range(0, 24, 3):
        moments.update(a[start : start + 3])
    S = moments.matrix()
    total = S + S
    factor = gp.Preservation.soft(total, 1.0)
    w = factor.apply(a[:2])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert factor.matrix is None
    assert peak < 60 * 8 * n
    assert np.isclose(S.trace, (a.astype(np.float64) ** 2).sum() / 24, rtol=1e-5)
    assert np.isfinite(w).all()


@backends.every_backend
@dtypes
def test_leading_directions_of_a_matrix(library, dtype):
    backend = backends.get(library)
    S = inputs(3).astype(dtype)
    S = (S.T @ S / 40).astype(dtype)
    g = np.ones((2, 9), dtype)
    for strength in (2.0, math.inf):
        factor = gp.Preservation.soft(backend.array(S), strength, rank=3)
        assert factor.matrix is None
        found = backend.numpy(factor.apply(backend.array(g)))
        expected = gp.preserve(g.astype(np.float64), S.astype(np.float64), strength=strength)
        if strength == 2.0:
            assert np.allclose(found, expected, rtol=0, atol=2e3 * EPS[dtype])
        assert np.linalg.norm(found @ S) <= np.linalg.norm(g @ S) * 1.01
    one = backend.numpy(gp.Preservation.soft(backend.array(S), 1.0, rank=1).apply(backend.array(g)))
    values, vectors = np.linalg.eigh(S.astype(np.float64))
    approximate = np.full(9, values[:-1].mean())
    approximate[-1] = values[-1]
    by_hand = g @ ((vectors / (1 + approximate)) @ vectors.T)
    assert np.allclose(one, by_hand, rtol=0, atol=1e3 * EPS[dtype])


@backends.every_backend
def test_basis_of_low_rank_moments_is_that_of_the_matrix(library):
    backend = backends.get(library)
    first, second = inputs(3, seed=3), inputs(3, seed=4)
    basis = known = None
    for a in (first, second):
        S = observed(a, rank=4, backend=backend).matrix()
        basis = gp.input_basis(S, share=0.95, basis=basis, scale=2.0)
        known = gp.input_basis(a.T @ a / 40, share=0.95, basis=known, scale=2.0)
        B, C = backend.numpy(basis.vectors), known.vectors
        assert B.shape == C.shape
        assert np.allclose(B @ B.T, np.eye(len(B)), atol=1e-10)
        assert np.allclose(B.T @ B, C.T @ C, atol=1e-8)
        assert np.allclose(backend.numpy(basis.importance), known.importance, atol=1e-8)
    again = gp.input_basis(S, share=0.95, basis=basis)
    assert again.vectors.shape == basis.vectors.shape


@pytest.mark.numpy_only
def test_old_directions_hold_their_part_of_the_rest():
    """The old row has 0.5 of the trace 4, and one new direction has 2."""
    S = low_rank(np.eye(4)[:2], [2.0, 1.0], 0.5)
    basis = gp.input_basis(S, share=0.6, basis=np.eye(4)[2:3])
    assert basis.vectors.shape == (2, 4)


def low_rank(vectors, values, rest):
    return gp.LowRankMoments(*map(np.asarray, (vectors, values, rest)))


g, V = np.ones((2, 3)), np.eye(3)[:2]


@pytest.mark.numpy_only
def test_wrong_arguments():
    fine = low_rank(V, [2.0, 1.0], 0.5)
    assert repr(fine) == "LowRankMoments(vectors=(2, 3), dtype=float64)"
    for wrong, error, message in [
        (low_rank(2 * V, [2.0, 1.0], 0.5), ValueError, r"S\.vectors has rows that are not orth"),
        (low_rank(V, [2.0], 0.5), ValueError, r"S\.values has shape \(1,\) and S\.vectors has"),
        (low_rank(V, [2.0, 1.0], [0.5]), ValueError, r"S\.rest has shape \(1,\) and S\.vec"),
        (low_rank(V, [2.0, np.nan], 0.5), gp.NotFiniteError, r"S\.values contains NaN"),
        (low_rank(V, [2.0, -1.0], 0.5), ValueError, "S has the eigenvalue -1 and the largest"),
        (low_rank(V, [2.0, 1.0], -0.5), ValueError, r"S has the eigenvalue -0\.5 and the"),
        (gp.LowRankMoments(V, np.ones(2), 0.5), TypeError, r"S\.rest is a float: pass an array"),
    ]:
        with pytest.raises(error, match=message):
            gp.preserve(g, wrong, strength=1.0)
    assert np.allclose(np.float64(2) * fine.dense(), (np.float64(2) * fine).dense())
    with pytest.raises(ValueError, match="factor -1 is invalid: expected a finite number >= 0"):
        fine * -1
    with pytest.raises(TypeError):
        fine + 1
    with pytest.raises(TypeError):
        fine * "2"
    with pytest.raises(
        ValueError, match=r"the summands have vectors of shapes \(2, 3\) and \(2, 4\)"
    ):
        fine + low_rank(np.eye(4)[:2], [2.0, 1.0], 0.5)
    with pytest.raises(ValueError, match=r"share=0\.99 needs more directions than S keeps"):
        gp.input_basis(fine, share=0.99)
    assert gp.input_basis(fine, share=0.5).vectors.shape == (1, 3)
    grouped = low_rank(V[None], [[2.0, 1.0]], [0.5])
    with pytest.raises(ValueError, match=r"S\.vectors has shape \(1, 2, 3\): expected \(k, in\)"):
        gp.input_basis(grouped)
    for S in (fine, np.ones(3)):
        with pytest.raises(ValueError, match="rank chooses directions of a matrix S"):
            gp.Preservation.soft(S, 1.0, rank=1)
    for rank in (0, 1.5, True):
        with pytest.raises(ValueError, match="is invalid: expected an integer >= 1 or None"):
            gp.Preservation.soft(np.eye(3), 1.0, rank=rank)
        with pytest.raises(ValueError, match="is invalid: expected an integer >= 1 or None"):
            gp.InputMoments(rank=rank)
    with pytest.raises(ValueError, match="pass rank or diagonal"):
        gp.InputMoments(rank=1, diagonal=True)
    with pytest.raises(ValueError, match="cannot be added: use one kind"):
        gp.InputMoments(rank=1) + gp.InputMoments(rank=2)


@pytest.mark.parametrize("form", ["soft", "hard"])
def test_factors_are_those_of_the_update(form):
    S = observed(inputs(6), rank=3).matrix()
    factor = gp.Preservation.soft(S, 2.0) if form == "soft" else gp.Preservation.hard(S.vectors)
    V, weights, rest = factor.factors
    g = np.random.default_rng(0).standard_normal((4, 9))
    expected = (1.0 if rest is None else rest) * g + (g @ V.T * weights) @ V
    assert np.allclose(factor.apply(g), expected, rtol=1e-12)
    assert gp.Preservation.soft(S.dense(), 2.0).factors is None
