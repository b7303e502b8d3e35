"""The stand-in for CuPy: its rules, and that it has no name and no parameter that CuPy lacks."""

import inspect
import json
import subprocess
import sys
import threading
from pathlib import Path

import array_api_compat
import numpy as np
import pytest
from support import devices

pytestmark = [
    pytest.mark.skipif(not devices.uses_standin(), reason="CuPy itself runs here"),
    pytest.mark.numpy_only,
]
MODULES = ("", "cuda", "linalg", "_core")
CLASSES = ("ndarray", "cuda.Device", "cuda.Stream", "cuda.ExternalStream")
OPERATORS = (
    *("add", "radd", "iadd", "sub", "rsub", "mul", "truediv", "pow", "and", "or", "matmul"),
    *("rmatmul", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "invert"),
)


@pytest.fixture(name="cupy")
def standin():
    import cupy

    assert str(devices.STANDIN) in cupy.__file__
    return cupy


def public_names(cupy):
    """All names that a caller can reach: functions, classes, and the members of classes."""
    for module in MODULES:
        place = find(cupy, module)
        yield from (f"{module}.{n}".lstrip(".") for n in vars(place) if not n.startswith("_"))
    for name in CLASSES:
        yield from (f"{name}.{n}" for n in vars(find(cupy, name)) if not n.startswith("_"))
    yield from (f"ndarray.__{name}__" for name in OPERATORS)
    yield from ("cuda.runtime." + n for n in ("getDevice", "setDevice", "getDeviceCount"))
    yield from ("cuda.runtime.CUDARuntimeError", "cuda.device.Device")
    yield from ("ndarray.__dlpack__", "ndarray.__array_ufunc__", "ndarray.__array_function__")
    yield from ("_core._routines_linalg.COMPUTE_TYPE_" + n for n in ("PEDANTIC", "TF32", "FP32"))


def find(place, name):
    for part in name.split(".") if name else ():
        place = getattr(place, part)
    return place


def parameters(thing):
    """The names of a function's parameters, or None where Python cannot see them."""
    try:
        return [p.name for p in inspect.signature(thing).parameters.values()]
    except (TypeError, ValueError):
        return None


REAL = """
import inspect, json, sys, warnings
import cupy

def find(name):
    place = cupy
    for part in name.split("."):
        place = getattr(place, part)
    return place

def signature(thing):
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p.name for p in found]

def error(call):
    try:
        call()
    except Exception as found:
        return type(found).__name__

answer = {"names": {}, "file": cupy.__file__}
for name in json.load(sys.stdin):
    try:
        thing = find(name)
    except AttributeError:
        continue
    value = thing if isinstance(thing, int) else None
    answer["names"][name] = {"parameters": signature(thing), "value": value}

Device, core = cupy.cuda.Device, cupy._core
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    cupy.cuda.ExternalStream(5)
core.set_compute_type("float32", core._routines_linalg.COMPUTE_TYPE_PEDANTIC)
answer["facts"] = {
    "hash of a device": error(lambda: hash(Device(0))),
    "hash of an array": cupy.ndarray.__hash__ is None,  # phrase: allow
    "equal devices": [Device(0) == Device(0), Device(0) == Device(1), Device(0) == 0],
    "repr": repr(Device(1)),
    "a device by name": error(lambda: Device("cpu")),
    "index": hasattr(cupy.ndarray, "__index__"),
    "namespace": hasattr(cupy.ndarray, "__array_namespace__"),
    "subclass": cupy.ndarray.__mro__[-1] is object and "numpy" not in str(cupy.ndarray.__mro__),
    "vecdot": hasattr(cupy, "vecdot"),
    "external stream": [w.category.__name__ for w in caught],
    "null stream": [cupy.cuda.Stream.null.ptr, cupy.cuda.Stream.null.device_id],
    "compute type": core.get_compute_type("float32"),
    "bfloat16": error(lambda: cupy.isdtype(cupy.dtype("V2"), "real floating")),
}
json.dump(answer, sys.stdout)
"""


def ask(names, path=()):
    """Run the same questions in a process that finds CuPy, or the stand-in if `path` says so."""
    code = f"import sys; sys.path[:0] = {list(map(str, path))}\n{REAL}"
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(names), capture_output=True, text=True
    )
    if "No module named 'cupy'" in done.stderr:
        pytest.skip("CuPy is not installed")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def real():
    import cupy

    answer = ask(sorted(set(public_names(cupy))))
    assert str(devices.STANDIN) not in answer["file"]
    return answer


def test_every_name_is_one_of_cupy(cupy, real):
    names = set(public_names(cupy))
    assert len(names) > 150
    assert sorted(names - set(real["names"])) == []


def test_every_parameter_is_one_of_cupy(cupy, real):
    compared = 0
    for name, found in real["names"].items():
        ours, theirs = parameters(find(cupy, name)), found["parameters"]
        if ours is None or theirs is None or "__" in name:
            continue
        compared += 1
        extra = set(ours) - set(theirs)
        assert not extra, name
        assert [p for p in theirs if p in ours] == ours, name  # in the same order
    assert compared > 60


def test_every_constant_has_the_value_of_cupy(cupy, real):
    for name, found in real["names"].items():
        if found["value"] is not None:
            assert find(cupy, name) == found["value"], name


def test_facts_that_need_no_device_are_those_of_cupy(real):
    ours = ask([], [Path(devices.STANDIN)])
    assert str(devices.STANDIN) in ours["file"]
    assert ours["facts"] == real["facts"]
    assert real["facts"]["hash of a device"] == "TypeError"


# Facts that need a device, and are known from CuPy's documentation and source --------------------


# CuPy's `__array__` has no `copy` either, which NumPy 2 warns about before the error.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_arrays_do_not_become_numpy_arrays_by_themselves(cupy):
    x = cupy.asarray(np.ones(3))
    assert not isinstance(x, np.ndarray)
    for convert in (np.asarray, np.array, lambda x: np.asarray(x, dtype=np.float64)):
        with pytest.raises(TypeError, match=r"^Implicit conversion to a NumPy array"):
            convert(x)
    assert type(x.get()) is type(cupy.asnumpy(x)) is np.ndarray


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, y: x + y,
        lambda x, y: y + x,
        lambda x, y: y @ x,
        lambda x, y: x @ y,
        lambda x, y: x.__iadd__(y),
        lambda x, y: x.__setitem__(slice(None), y),
        lambda x, y: x < y,
        lambda x, y: np.where(y > 0, x, x),
        lambda x, y: np.concatenate([x, y]),
        lambda x, y: np.maximum(x, y),
    ],
)
def test_numpy_arrays_do_not_mix_with_others(cupy, mix):
    with pytest.raises(TypeError, match=r"^Unsupported type <class 'numpy\.ndarray'>$"):
        mix(cupy.asarray(np.ones(3)), np.ones(3))


def test_results_are_arrays_on_the_device_and_never_scalars(cupy):
    x = cupy.asarray(np.asarray([[1.0, 2.0], [3.0, 4.0]], np.float32))
    for y in (x.sum(), cupy.max(x), x[0, 1], x[1][0], cupy.sqrt(x[0, 0]), x[0] @ x[0], 2 * x[0, 0]):
        assert type(y) is cupy.ndarray
        assert (y.shape, y.dtype) == ((), np.float32)
    assert [float(y) for y in x[1]] == [3.0, 4.0]
    assert (int(x[1, 1]), bool(cupy.all(x > 0)), f"{x[0, 1]:.1f}") == (4, True, "2.0")
    view = x[0, 1]
    view[...] = 7
    assert float(x[0, 1]) == 7.0
    with pytest.raises(TypeError):
        [1, 2][cupy.argmax(x)]
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


def test_functions_of_numpy_compute_on_the_device(cupy):
    x = cupy.asarray(np.ones((2, 3)))
    for y in (np.sum(x), np.isfinite(x), np.stack([x, x]), np.float32(2) * x, np.linalg.norm(x)):
        assert type(y) is cupy.ndarray


def test_work_is_done_on_the_current_device_alone(cupy):
    zero, one = cupy.cuda.Device(0), cupy.cuda.Device(1)
    assert cupy.cuda.runtime.getDeviceCount() == 2
    with one:
        assert cupy.cuda.Device() == one
        x = cupy.asarray(np.arange(3.0))
        assert (x + x).device == cupy.zeros(3).device == one
        with zero, one:
            assert cupy.cuda.Device() == one
    assert cupy.cuda.Device() == cupy.zeros(3).device == zero
    refused = (
        lambda: x + 1,
        lambda: 1 - x,
        lambda: x @ x,
        lambda: cupy.sum(x),
        lambda: x.max(),
        lambda: x.astype(np.float32),
        lambda: x[[0, 1]],
        lambda: x[x > 0],
        lambda: x.fill(0),
        lambda: cupy.concatenate([x, x]),
        lambda: cupy.linalg.norm(x),
        lambda: x.__iadd__(1),
    )
    for compute in refused:
        with pytest.raises(ValueError, match=r"array resides \(1\) is different from the current"):
            compute()
    # Views and copies need no kernel.
    assert x[1:].device == x[None].T.device == cupy.reshape(x, (3, 1)).device == one
    assert cupy.asarray(x).device == x.copy().device == zero
    assert x.get().tolist() == [0.0, 1.0, 2.0]
    assert (float(x[2]), bool(x[0])) == (2.0, False)
    with one, pytest.raises(ValueError, match="current device"):
        x + _on(cupy, zero, x)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        cupy.cuda.Device(2).use()


def _on(cupy, device, x):
    with device:
        return cupy.asarray(x)


def test_each_thread_has_its_own_current_device(cupy):
    found = []
    with cupy.cuda.Device(1):
        thread = threading.Thread(target=lambda: found.append(cupy.cuda.Device().id))
        thread.start()
        thread.join()
    assert found == [0]


def test_the_wrapper_of_array_api_compat_ignores_the_device_of_new_arrays(cupy):
    x = _on(cupy, cupy.cuda.Device(1), np.ones(3))
    assert array_api_compat.is_cupy_array(x)
    xp = array_api_compat.array_namespace(x)
    assert xp.__name__ == "array_api_compat.cupy"
    assert xp.zeros(3, device=x.device).device == cupy.cuda.Device(0)
    assert xp.eye(3, device=x.device).device == cupy.cuda.Device(0)
    assert xp.asarray(np.ones(3), device=x.device).device == x.device


def test_exchange_by_dlpack(cupy):
    x = _on(cupy, cupy.cuda.Device(1), np.arange(3.0))
    assert x.__dlpack_device__() == (2, 1)
    with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
        np.from_dlpack(x)
    y = cupy.from_dlpack(x)
    assert y.device == x.device
    with x.device:
        x[0] = 5
    assert y.get().tolist() == [5.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="CPU arrays cannot be directly imported"):
        cupy.from_dlpack(np.ones(3))
    host = x.__dlpack__(dl_device=(1, 0))
    assert "dltensor" in repr(host)


def test_streams(cupy):
    class Foreign:
        def __cuda_stream__(self):
            return 0, 77

    current = cupy.cuda.get_current_stream
    assert current() == cupy.cuda.Stream.null
    with cupy.cuda.Stream.from_external(Foreign()) as stream:
        assert current() == stream
        assert stream.ptr == 77
        assert current(1) == cupy.cuda.Stream.null
        with cupy.cuda.Device(1):
            assert current() == cupy.cuda.Stream.null
    assert current() == cupy.cuda.Stream.null
    with pytest.warns(DeprecationWarning, match="ExternalStream is deprecated"):
        cupy.cuda.ExternalStream(77)
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream()
    with pytest.raises(RuntimeError, match="does not match"), stream:
        pass


def test_products_are_rounded_where_tf32_is_set(cupy, monkeypatch):
    core, x = cupy._core, cupy.asarray(np.full((2, 2), 1 + 2**-12, np.float32))
    before = core.get_compute_type(np.float32)
    try:
        core.set_compute_type(np.float32, core._routines_linalg.COMPUTE_TYPE_TF32)
        assert (x @ x).get().tolist() == [[2.0, 2.0]] * 2
        assert float((x.astype(np.float64) @ x.astype(np.float64))[0, 0]) > 2.0009
        core.set_compute_type(np.float32, core._routines_linalg.COMPUTE_TYPE_PEDANTIC)
        assert float((x @ x)[0, 0]) > 2.0009
        monkeypatch.setenv("CUPY_TF32", "1")
        core.set_compute_type(np.float32, core._routines_linalg.COMPUTE_TYPE_TBD)
        assert core.get_compute_type(np.float32) == core._routines_linalg.COMPUTE_TYPE_TF32
    finally:
        core.set_compute_type(np.float32, before)


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf, 1e-40, 3e38, -1.5])
def test_rounding_to_tf32_keeps_numbers_of_few_bits(cupy, value):
    rounded = cupy._core._routines_linalg._rounded(np.float32(value))
    assert rounded == pytest.approx(value, rel=1e-3, abs=1e-42)


def test_bfloat16(cupy):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = cupy.asarray(np.ones(3, ml_dtypes.bfloat16))
    assert x.dtype == ml_dtypes.bfloat16
    assert float((x.astype(np.float32) + 1).sum()) == 6.0
    assert bool(cupy.all(cupy.isfinite(x)))
    # CuPy passes NumPy's own functions on, and these do not know the dtype.
    with pytest.raises(TypeError):
        cupy.isdtype(x.dtype, "real floating")
    with pytest.raises(ValueError, match="not inexact"):
        cupy.finfo(x.dtype)
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cupy.asarray(np.asarray(["a"]))
