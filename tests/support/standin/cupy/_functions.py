"""The functions: NumPy's, each with parameters that CuPy's has too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._array import launch, matmul, ndarray, wrap
from cupy._core._routines_linalg import product


def kernel(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function of NumPy arrays on the current device; its signature is what CuPy allows."""
    return functools.wraps(compute)(functools.partial(launch, compute))


def view(look: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the same memory in another form, on whichever device it is."""

    @functools.wraps(look)
    def run(a: ndarray, *arguments: Any, **options: Any) -> Any:
        return wrap(look(a._host, *arguments, **options), a._device_id)

    return run


def like(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make an array of another's form on the current device, without reading the other."""

    @functools.wraps(make)
    def run(a: ndarray, *arguments: Any, **options: Any) -> Any:
        return wrap(make(a._host, *arguments, **options))

    return run


def elementwise(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Take the arrays by position, as CuPy's ufuncs do."""

    def run(*args: Any, out: Any = None, dtype: Any = None) -> Any:
        return launch(compute, *args, out=out, dtype=dtype)

    return run


# array-api-compat's wrapper reads some of these names when it is imported.
_ELEMENTWISE = (
    *("abs", "add", "ceil", "conj", "divide", "exp", "floor", "log", "maximum", "minimum"),
    *("multiply", "negative", "power", "sign", "sqrt", "square", "subtract", "true_divide"),
    *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "trunc"),
    *("equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal"),
    *("not_equal", "invert", "left_shift", "right_shift", "logical_and", "logical_not"),
)

# The content of memory that nothing has been written to; it fits into every dtype.
_GARBAGE = 99

_KERNELS = {
    "all": lambda a, axis=None, *, keepdims=False: np.all(a, axis, keepdims=keepdims),
    "any": lambda a, axis=None, *, keepdims=False: np.any(a, axis, keepdims=keepdims),
    "arange": lambda start, stop=None, step=1, dtype=None: np.arange(start, stop, step, dtype),
    "argmax": lambda a, axis=None: np.argmax(a, axis),
    "argsort": lambda a, axis=-1: np.argsort(a, axis),
    "ascontiguousarray": lambda a, dtype=None: np.ascontiguousarray(a, dtype),
    "concatenate": lambda tup, axis=0: np.concatenate(tup, axis),
    "cumsum": lambda a, axis=None, dtype=None: np.cumsum(a, axis, dtype),
    "dot": lambda a, b: product(np.dot, a, b),
    "empty": lambda shape, dtype=float: np.full(shape, _GARBAGE, dtype or float),
    "eye": lambda N, M=None, k=0, dtype=float: np.eye(N, M, k, dtype or float),
    "full": lambda shape, fill_value, dtype=None: np.full(shape, fill_value, dtype),
    "max": lambda a, axis=None, *, keepdims=False: np.max(a, axis, keepdims=keepdims),
    "mean": lambda a, axis=None, *, keepdims=False: np.mean(a, axis, keepdims=keepdims),
    "min": lambda a, axis=None, *, keepdims=False: np.min(a, axis, keepdims=keepdims),
    "ones": lambda shape, dtype=float: np.ones(shape, dtype),
    "round": lambda a, decimals=0: np.round(a, decimals),
    "sort": lambda a, axis=-1: np.sort(a, axis),
    "stack": lambda tup, axis=0: np.stack(tup, axis),
    "sum": lambda a, axis=None, dtype=None, *, keepdims=False: np.sum(
        a, axis, dtype, keepdims=keepdims
    ),
    "take": lambda a, indices, axis=None: np.take(a, indices, axis),
    "tensordot": lambda a, b, axes=2: product(np.tensordot, a, b, axes=axes),
    "where": lambda condition, x, y: np.where(condition, x, y),
    "zeros": lambda shape, dtype=float: np.zeros(shape, dtype),
}

_LIKE = {
    "empty_like": lambda prototype, dtype=None: np.full_like(prototype, _GARBAGE, dtype),
    "full_like": lambda a, fill_value, dtype=None: np.full_like(a, fill_value, dtype),
    "ones_like": lambda a, dtype=None: np.ones_like(a, dtype),
    "zeros_like": lambda a, dtype=None: np.zeros_like(a, dtype),
}

_VIEWS = {
    "broadcast_to": lambda array, shape: np.broadcast_to(array, shape),
    "diagonal": lambda a, offset=0, axis1=0, axis2=1: np.diagonal(a, offset, axis1, axis2),
    "expand_dims": lambda a, axis: np.expand_dims(a, axis),
    "moveaxis": lambda a, source, destination: np.moveaxis(a, source, destination),
    "reshape": lambda a, newshape: np.reshape(a, newshape),
    "flip": lambda a, axis=None: np.flip(a, axis),
    "squeeze": lambda a, axis=None: np.squeeze(a, axis),
    "swapaxes": lambda a, axis1, axis2: np.swapaxes(a, axis1, axis2),
    "transpose": lambda a, axes=None: np.transpose(a, axes),
}


def broadcast_arrays(*args: ndarray) -> list[ndarray]:
    shape = np.broadcast_shapes(*(x.shape for x in args))
    return [FUNCTIONS["broadcast_to"](x, shape) for x in args]


def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    return np.result_type(*(getattr(x, "dtype", x) for x in arrays_and_dtypes))


FUNCTIONS = {
    **{name: elementwise(getattr(np, name)) for name in _ELEMENTWISE},
    **{name: kernel(compute) for name, compute in _KERNELS.items()},
    **{name: like(make) for name, make in _LIKE.items()},
    **{name: view(look) for name, look in _VIEWS.items()},
    "broadcast_arrays": broadcast_arrays,
    "matmul": matmul,
    "result_type": result_type,
}
