"""Arrays on a device give what NumPy's give, whichever function is applied, and say where the result is."""

import gc
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from fredsim.compute.storage import Limits
from fredsim.config.resolution import resolve
from fredsim.numerics.streams import Streams
from fredsim.runs.single.prepared import prepare
from fredsim.simulation.paths.backends import make_engine
from tests.conftest import HAS_CUDA, DeviceBytes

if not HAS_CUDA:
    pytest.skip("there is neither a CUDA device nor a C++ compiler to emulate one", allow_module_level=True)

from fredsim.cuda.array import DeviceArray, upload

X = np.array([[-1.5, 0.0, np.inf], [3e-39, 1e38, -0.0]], np.float32)
Y = np.array([[0.3, -2.0, 5.0], [7.0, 1e38, 0.1]], np.float32)
LESS = X < Y
WIDE = np.array([0.1, 0.2, 0.3])

#: Computed on the device: float32 and bool, and Python's numbers.
HERE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "+": lambda x, y, less: x + y,
    "-": lambda x, y, less: x - y,
    "×": lambda x, y, less: x * y,
    "÷": lambda x, y, less: x / y,
    "÷ a number": lambda x, y, less: x / 3,
    "a number ÷": lambda x, y, less: 0.1 / y,
    "an array of the host": lambda x, y, less: x + Y,
    "−": lambda x, y, less: -x,
    "|x|": lambda x, y, less: abs(x),
    "√": lambda x, y, less: np.sqrt(abs(y)),
    "<": lambda x, y, less: x < y,
    "≤": lambda x, y, less: x <= y,
    ">": lambda x, y, less: x > y,
    "≥": lambda x, y, less: x >= y,
    "=": lambda x, y, less: x == y,
    "≠": lambda x, y, less: x != y,
    "where": lambda x, y, less: np.where(less, x, y),
    "where, a number": lambda x, y, less: np.where(x < 0, 0.5, y),
    "a row": lambda x, y, less: x[1],
    "some": lambda x, y, less: x[less],
    "some of a host's choice": lambda x, y, less: x[LESS],
    "reshaped": lambda x, y, less: x.reshape(3, 2),
    "a copy": lambda x, y, less: x.copy(),
}
#: Computed on the host, by NumPy itself.
ON_THE_HOST: dict[str, Callable[[Any, Any, Any], Any]] = {
    "another function": lambda x, y, less: np.maximum(x, y),
    "a sum": lambda x, y, less: np.add.reduce(y),
    "sums so far": lambda x, y, less: np.add.accumulate(y),
    "every pair": lambda x, y, less: np.subtract.outer(x[1], y[0]),
    "an option": lambda x, y, less: np.multiply(x, y, dtype=np.float64),
    "float64": lambda x, y, less: x * WIDE,
    "integers": lambda x, y, less: y + np.array([1, 2**25, 3]),
    "where, float64": lambda x, y, less: np.where(less, x, WIDE),
    "where, of one argument": lambda x, y, less: np.array(np.where(less)),
    "mean": lambda x, y, less: np.mean(y, axis=1, dtype=np.float64),
    "concatenate": lambda x, y, less: np.concatenate([x, y]),
    "astype": lambda x, y, less: y.astype(np.float64),
}


def on_device(array: Any) -> DeviceArray:
    return upload(array)


def same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    numbers = found == found
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))  # −0 is not +0


@pytest.mark.parametrize("name", [*HERE, *ON_THE_HOST])
def test_a_function(name: str) -> None:
    function = (HERE | ON_THE_HOST)[name]
    with np.errstate(all="ignore"):
        found, expected = function(*map(on_device, (X, Y, LESS))), function(X, Y, LESS)
    assert type(found) is (DeviceArray if name in HERE else np.ndarray)
    same(found, expected)


@pytest.mark.parametrize("function", [np.add, np.maximum, np.equal])
def test_what_is_written_into_an_array(function: np.ufunc) -> None:
    """On the device, also if the result comes from the host; and on the host."""
    expected = function(X, Y, out=np.zeros((2, 3), np.float32))
    for out in (on_device(np.zeros((2, 3), np.float32)), np.zeros((2, 3), np.float32)):
        assert function(on_device(X), on_device(Y), out=out) is out
        same(out, expected)


def test_what_is_written_where_a_mask_says() -> None:
    """And nowhere else; the mask may be on the device, too."""
    for less in (LESS, on_device(LESS)):
        outs: list[Any] = [on_device(Y), Y.copy()]
        for out in outs:
            assert np.add(on_device(X), on_device(Y), out=out, where=less) is out
            same(out, np.add(X, Y, out=Y.copy(), where=LESS))
        same(np.sum(on_device(X), where=less, initial=1.0), np.sum(X, where=LESS, initial=1.0))
        same(np.add.reduce(on_device(X), axis=0, where=less), np.add.reduce(X, axis=0, where=LESS))


def test_what_has_two_results() -> None:
    wholes: Any = on_device(np.zeros_like(X))
    rests = np.zeros_like(X)
    found = np.modf(on_device(Y), out=(rests, wholes))
    assert found[0] is rests
    assert found[1] is wholes
    some: Any = (None, wholes)
    also = np.modf(on_device(Y), out=some)
    for one, other in zip((*found, *also), (*np.modf(Y), *np.modf(Y)), strict=True):
        same(one, other)


def test_an_array_of_the_host_is_added_to_in_place() -> None:
    sums = np.zeros(3, np.float32)
    added: Any = on_device(np.array([1, 2, 4], np.float32))
    np.add.at(sums, [0, 0, 2], added)
    same(sums, np.array([3, 0, 4], np.float32))
    np.negative.at(sums, np.array([2]))
    same(sums, np.array([3, 0, -4], np.float32))
    assert np.add(added, sums, out=sums) is sums
    same(sums, np.array([4, 2, 0], np.float32))


def test_parts_are_written() -> None:
    x, expected = on_device(X), X.copy()
    for array, less, y in ((x, on_device(LESS), on_device(Y)), (expected, LESS, Y)):
        array[less] = 2.5
        array[1] = y[0]
        array[0, 1:] = Y[1, 1:]
        array += y
    same(x, expected)


def test_what_it_says_of_itself() -> None:
    for array in (X, LESS):
        found = on_device(array)
        assert (found.shape, found.size, found.nbytes, found.dtype, len(found)) == (
            array.shape, array.size, array.nbytes, array.dtype, len(array),
        )  # fmt: skip
    x = on_device(X)
    with pytest.raises(ValueError, match="cannot be read without a copy"):
        np.array(x, copy=False)
    for copy in (np.asarray(x), x.copy()):
        copy[0] = 1.0
    same(x, X)


def test_what_is_written_on_the_host_is_not_lost_silently() -> None:
    """A function that writes into its arguments gets copies, which it cannot write into; `out` is written."""
    x: Any = upload(X)
    writes: list[Callable[[], Any]] = [
        lambda: np.copyto(x, Y), lambda: np.putmask(x, LESS, 0), lambda: np.add.at(x, (0, 0), 1.0),
        lambda: np.fill_diagonal(x, 0),
    ]  # fmt: skip
    for write in writes:
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert np.asarray(x).tobytes() == X.tobytes()
    np.add(x, Y, out=x)
    with np.errstate(over="ignore"):
        assert np.asarray(x).tobytes() == (X + Y).tobytes()


#: Experiments of which each has another engine.
ENGINES: dict[str, dict[str, Any]] = {
    "a perceptron": {},
    "least squares": {"data": {"name": "least_squares", "columns": 5, "train": 60}, "model": {"name": "linear"}},
    "a quadratic": {"data": {"name": "quadratic", "size": 5, "noise": 0.1}, "model": {"name": "linear"},
                    "clients": {"count": 2, "batch_size": 1}},
    "a graph": {"model": {"name": "vgg", "widths": [2]}},
    "partly trained": {"model": {"name": "vgg", "widths": [2], "trainable": ["*weight"]}},
    "staged": {"data": {"name": "digits", "augment": {"flip": True}}},
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_memory_is_freed_with_the_engine_that_has_it(
    name: str, digits_experiment: dict[str, Any], device_bytes: DeviceBytes
) -> None:
    """At once, without a search for garbage."""
    prepared = prepare(resolve({**digits_experiment, **ENGINES[name]}), None)
    size = prepared.experiment.clients.batch_size
    gc.collect()
    gc.disable()
    try:
        assert device_bytes.live == 0
        engine = make_engine("cuda", prepared.model, prepared.dataset, size, 1)
        params = cast(Any, engine).array_of(prepared.model.initial(Streams(0)))
        engine.gradients([params] * 3, np.zeros((3, size), np.int64))
        engine.evaluate(params, "validation")
        engine.operations.ternary.scaler(params)
        engine.operations.pool(9, Limits()).take()
        assert device_bytes.live > 0
        engine.close()
        del engine, params
        assert device_bytes.live == 0
    finally:
        gc.enable()
