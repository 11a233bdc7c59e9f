"""Arrays on a device give what NumPy's give, whichever function is applied, and say where the result is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conftest import HAS_CUDA

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
