"""InputMoments: sums over batches, tasks and processes, on every library."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import backends

import gradproj as gp

rng = np.random.default_rng(5)
A = rng.standard_normal((5000, 4)) + 1


@backends.every_backend
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("diagonal", [False, True])
def test_batches_add_up(library, dtype, diagonal):
    backend = backends.get(library)
    inputs = A.astype(dtype)
    known = (inputs.astype(np.float64).T @ inputs) / len(inputs)
    known = np.diag(known) if diagonal else known
    whole, first, second = (gp.InputMoments(diagonal=diagonal) for _ in range(3))
    whole.update(backend.array(inputs))
    for start in range(0, 3000, 1000):
        first.update(backend.array(inputs[start : start + 1000]))
    second.update(backend.array(inputs[3000:]))
    second.update(backend.array(inputs[:0]))
    for moments in (whole, first + second, first + second + gp.InputMoments(diagonal=diagonal)):
        assert moments.count == 5000
        S = moments.matrix()
        assert type(S) is type(backend.array(inputs))
        assert backend.numpy(S).dtype == dtype
        assert np.allclose(backend.numpy(S), known, rtol=2e-6 if dtype == np.float32 else 1e-13)
        total = backend.numpy(moments.total)
        assert total.dtype == np.float64
        assert np.allclose(total, 5000 * known, rtol=2e-6 if dtype == np.float32 else 1e-13)
        scaled = backend.numpy(moments.matrix(scaled=True))
        assert np.isclose((scaled if diagonal else np.diag(scaled)).mean(), 1)
    assert first.count == 3000


@backends.every_backend
def test_state(library):
    backend = backends.get(library)
    moments = gp.InputMoments()
    moments.update(backend.array(A.astype(np.float32)))
    state = moments.state_dict()
    assert isinstance(state["count"], int)
    again = gp.InputMoments()
    again.load_state_dict(state)
    again.update(backend.array(A[:0].astype(np.float32)))
    assert again.count == moments.count
    assert again.matrix().dtype == moments.matrix().dtype
    assert np.array_equal(backend.numpy(again.total), backend.numpy(moments.total))
    again.load_state_dict(gp.InputMoments().state_dict())
    assert again.count == 0
    with pytest.raises(ValueError, match="have no inputs: call update first"):
        again.matrix()


@backends.every_backend
def test_counts_of_tokens(library):
    backend = backends.get(library)
    moments = gp.InputMoments.from_total(backend.array(np.asarray([3, 0, 1])), 4)
    assert moments.diagonal
    assert np.array_equal(backend.numpy(moments.matrix()), [0.75, 0, 0.25])


@backends.every_backend
@given(
    cuts=st.lists(st.integers(0, 700), max_size=5),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_the_cut_into_batches_and_processes_does_not_matter(library, cuts, seed, dtype):
    backend = backends.get(library)
    inputs = A[:700].astype(dtype)
    order = np.random.default_rng(seed).permutation(700)
    whole, total = gp.InputMoments(), gp.InputMoments()
    whole.update(backend.array(inputs))
    for rows in np.split(order, sorted(cuts)):
        process = gp.InputMoments()
        for start in range(0, len(rows), 90):
            process.update(backend.array(inputs[rows[start : start + 90]]))
        total = process + total
    assert total.count == whole.count == 700
    tolerance = 1e-6 if dtype == np.float32 else 1e-13
    found, known = (backend.numpy(x.matrix()) for x in (total, whole))
    assert np.allclose(found, known, rtol=tolerance, atol=0)


@pytest.mark.parametrize("library", ["numpy", "torch", "cupy-standin-device1"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("batch", [8, 400])
def test_inputs_of_16_bits_give_positive_semidefinite_moments(library, dtype, batch):
    """Products that are rounded to 16 bits have negative eigenvalues of 1e-3 times the largest."""
    backend = backends.get(library)
    inputs = np.random.default_rng(0).standard_normal((400, 30)).astype(np.float32) / 9 + 1
    if library == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        inputs = torch.tensor(inputs, dtype=getattr(torch, dtype))
        exact = inputs.double().numpy()
    elif dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    else:
        exact = inputs.astype(np.float16).astype(np.float64)
        inputs = backend.array(inputs.astype(np.float16))
    moments = gp.InputMoments()
    for start in range(0, 400, batch):
        moments.update(inputs[start : start + batch])
    S = backend.numpy(moments.matrix())
    assert S.dtype == np.float32
    assert np.allclose(S, exact.T @ exact / 400, rtol=2e-6)
    assert np.linalg.eigvalsh(S.astype(np.float64)).min() > 0


@pytest.mark.numpy_only
@pytest.mark.parametrize("rows", [2, 300])
@pytest.mark.parametrize(
    "options", [{}, {"rank": 2}, {"rank": 4}, {"rank": 200}, {"diagonal": True}], ids=repr
)
def test_the_callers_array_may_change_later(rows, options):
    """The memory of activations is used again for the next batch."""
    inputs = np.ones((rows, 4))
    moments = gp.InputMoments(**options)
    moments.update(inputs)
    inputs[:] = 7.0
    S = moments.matrix()
    assert np.allclose(S if options.keys() <= {"diagonal"} else S.dense(), 1)
    total = np.ones(3)
    counts = gp.InputMoments.from_total(total, 1)
    total[:] = 7.0
    assert np.allclose(counts.matrix(), 1)


@pytest.mark.numpy_only
def test_small_batches_are_not_kept_for_long():
    moments = gp.InputMoments()
    sizes = []
    for _ in range(100):
        moments.update(np.ones((10, 4)))
        sizes.append(len(pickle.dumps(moments)))
    assert max(sizes) < 20_000
    assert moments.count == 1000
    assert set(moments.state_dict()) == {"count", "like", "total"}
    assert len(pickle.dumps(moments)) < 1000
    assert repr(moments) == "InputMoments(inputs=(4,), count=1000)"


@pytest.mark.numpy_only
@pytest.mark.parametrize("rows", [1, 300])
def test_float32_sums_do_not_lose_later_batches(rows):
    """In float32, adding 1 to 2²⁴ changes nothing. Batches of 300 rows are added one by one."""
    moments = gp.InputMoments()
    batch = np.zeros((rows, 1), np.float32)
    batch[0] = 2.0**12
    moments.update(batch)
    batch[0] = 1.0
    for _ in range(64):
        moments.update(batch)
    assert moments.total == 2**24 + 64


@pytest.mark.numpy_only
def test_zero_inputs_stay_zero_when_scaled():
    moments = gp.InputMoments()
    moments.update(np.zeros((2, 3, 4)))
    assert np.array_equal(moments.matrix(scaled=True), np.zeros((2, 4, 4)))


@pytest.mark.numpy_only
def test_wrong_inputs():
    moments = gp.InputMoments()
    moments.update(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"a has inputs of shape \(2, 4\) and the first"):
        moments.update(np.ones((2, 4)))
    with pytest.raises(gp.NotFiniteError, match="a contains NaN or infinity"):
        moments.update(np.asarray([[1.0, np.nan, 0.0]]))
    with pytest.raises(gp.NotFiniteError, match="its squares overflow"):
        moments.update(np.full((1, 3), 1e200))
    with pytest.raises(gp.NotFiniteError, match="total contains NaN"):
        gp.InputMoments.from_total(np.full(3, np.nan), 1)
    with pytest.raises(ValueError, match=r"total has shape \(2, 3\): expected \(\.\.\., in, in\)"):
        gp.InputMoments.from_total(np.ones((2, 3)), 1)
    with pytest.raises(TypeError, match="total is a list"):
        gp.InputMoments.from_total([1.0], 1)
    other = gp.InputMoments()
    other.update(np.ones((2, 4)))
    with pytest.raises(ValueError, match="the second summand has inputs of shape"):
        moments + other
    with pytest.raises(ValueError, match=r"diagonal moments take \(rows, in\)"):
        gp.InputMoments(diagonal=True).update(np.ones((2, 2, 3)))
    with pytest.raises(ValueError, match="another kind of moments"):
        gp.InputMoments(diagonal=True).load_state_dict(moments.state_dict())
    with pytest.raises(TypeError, match="a is a list: pass an array"):
        moments.update([[1.0]])
    with pytest.raises(ValueError, match=r"a has shape \(3,\): expected inputs"):
        moments.update(np.ones(3))
    with pytest.raises(ValueError, match="cannot be added: use one kind"):
        moments + gp.InputMoments(diagonal=True)
    assert moments.count == 2
    empty = gp.InputMoments()
    empty.update(np.ones((0, 3)))
    with pytest.raises(ValueError, match="at least one row"):
        empty.matrix()
