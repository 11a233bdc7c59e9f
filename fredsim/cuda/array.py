"""Arrays on a device with NumPy's interface, so that servers written for NumPy work on them unchanged.

+ − × ÷ √ |x|, comparisons and `where` on float32 run on the device, each rounded as NumPy rounds it. Any other NumPy
function runs on the host, on copies; this is slow, but gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

__all__ = ["DeviceArray"]

OPERATIONS: dict[Any, Callable[..., torch.Tensor]] = {
    np.add: torch.add,
    np.subtract: torch.sub,
    np.multiply: torch.mul,
    np.divide: torch.div,
    np.negative: torch.neg,
    np.absolute: torch.abs,
    np.sqrt: lambda x: torch.sqrt(x.double()).float(),  # in float32 it is not correctly rounded on every device
    np.less: torch.lt,
    np.less_equal: torch.le,
    np.greater: torch.gt,
    np.greater_equal: torch.ge,
    np.equal: torch.eq,
    np.not_equal: torch.ne,
}
TYPES = {torch.float32: np.float32, torch.bool: np.bool_}


class DeviceArray(NDArrayOperatorsMixin):
    """A tensor of float32 or bool as an array."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return tuple(self.tensor.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self.tensor.numel())

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements' type."""
        return np.dtype(TYPES[self.tensor.dtype])

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self.tensor[_index(key, self.tensor)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tensor[_index(key, self.tensor)] = _tensor(value, self.tensor)

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of another shape."""
        return DeviceArray(self.tensor.reshape(*shape))

    def copy(self) -> DeviceArray:
        """Return a copy on the device."""
        return DeviceArray(self.tensor.clone())

    def astype(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return a copy of another type, on the host."""
        return np.asarray(self).astype(dtype)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return a copy on the host."""
        if copy is False:
            raise ValueError("an array on a device cannot be read without a copy")
        return np.asarray(self.tensor.detach().cpu().numpy().copy(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Apply an elementwise NumPy function, on the device if it is one of OPERATIONS."""
        known = method == "__call__" and ufunc in OPERATIONS and not options and all(map(_fits, inputs))
        if known and (out is None or isinstance(out[0], DeviceArray)):
            result = OPERATIONS[ufunc](*(_tensor(x, self.tensor) for x in inputs))
            if out is None:
                return DeviceArray(result)
            out[0].tensor.copy_(result)
            return out[0]
        result = getattr(ufunc, method)(*map(_host, inputs), **options)
        if out is None:
            return result
        out[0][...] = result
        return out[0]

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        """Apply any other NumPy function: `where` on the device, the others on the host."""
        del types
        if function is np.where and len(arguments) == 3 and all(map(_fits, arguments)):
            return DeviceArray(torch.where(*(_tensor(x, self.tensor) for x in arguments)))
        return function(*_hosts(arguments), **{key: _hosts(value) for key, value in options.items()})


def _fits(x: Any) -> bool:
    """Return whether an operand is float32 or bool, or a Python number, which NumPy would convert to float32."""
    return type(x) in (int, float) or getattr(x, "dtype", None) in (np.float32, np.bool_)


def _tensor(x: Any, like: torch.Tensor) -> torch.Tensor:
    """Return an operand as a tensor on the device.

    This includes numbers: PyTorch would divide by a Python number x by multiplying by 1/x.
    """
    if isinstance(x, DeviceArray):
        return x.tensor
    array = np.asarray(x)
    return torch.from_numpy(array.astype(array.dtype if array.dtype == np.bool_ else np.float32)).to(like.device)


def _index(key: Any, like: torch.Tensor) -> Any:
    """Return an index in a form that tensors on the device accept."""
    if isinstance(key, DeviceArray):
        return key.tensor
    return torch.from_numpy(key).to(like.device) if isinstance(key, np.ndarray) else key


def _host(x: Any) -> Any:
    """Return an argument, copied to the host if it is a DeviceArray."""
    return np.asarray(x) if isinstance(x, DeviceArray) else x


def _hosts(x: Any) -> Any:
    """Return an argument with all DeviceArrays in it, also those in tuples and lists, copied to the host."""
    if isinstance(x, tuple | list):
        return type(x)(map(_hosts, x))
    return _host(x)
