"""InputMoments: sums over batches, tasks and processes, on every library."""

import numpy as np
import pytest
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


@pytest.mark.numpy_only
def test_float32_sums_do_not_lose_later_batches():
    """In float32, adding 1 to 2²⁴ changes nothing."""
    moments = gp.InputMoments()
    moments.update(np.full((1, 1), 2.0**12, np.float32))
    for _ in range(64):
        moments.update(np.ones((1, 1), np.float32))
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
    with pytest.raises(ValueError, match=r"a gives moments of shape \(4, 4\) and earlier"):
        moments.update(np.ones((2, 4)))
    with pytest.raises(gp.NotFiniteError, match="a contains NaN or infinity"):
        moments.update(np.asarray([[1.0, np.nan, 0.0]]))
    with pytest.raises(TypeError, match="a is a list: pass an array"):
        moments.update([[1.0]])
    with pytest.raises(ValueError, match=r"a has shape \(3,\): expected inputs"):
        moments.update(np.ones(3))
    with pytest.raises(ValueError, match="diagonal moments cannot be added"):
        moments + gp.InputMoments(diagonal=True)
    assert moments.count == 2
    empty = gp.InputMoments()
    empty.update(np.ones((0, 3)))
    with pytest.raises(ValueError, match="at least one row"):
        empty.matrix()
