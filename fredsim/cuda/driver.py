"""A CUDA device, through NVIDIA's driver and cuda-bindings: memory, compiled kernels, launches."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda
from numpy.typing import NDArray

from fredsim.cuda import nvrtc
from fredsim.cuda.cache import Kept
from fredsim.cuda.interface import Loaded, Memory
from fredsim.cuda.kernels import Unit
from fredsim.errors import ConfigError, DeviceMemoryError, SimulationError
from fredsim.system import notices

__all__ = ["Driver"]

NO_DEVICE = (
    "backend is cuda; the driver finds no CUDA device here ({}): leave backend out, or set FREDSIM_EMULATE=1 to run "
    "its kernels on the processor"
)
UNUSABLE = "backend is cuda, and {} cannot be used ({}): leave backend out"
#: Launches, copies and allocations are all in order on the default stream.
STREAM = cuda.CUstream(0)
#: The shadow of all memory: the addresses of more bytes than any device has, with no memory behind them, as nobody
#: reads a shadow. So much of the host's memory would be refused where the device has more.
ADDRESSES = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), (2**46,), (1,), writeable=False)


class Allocated:
    """Memory that the driver has allocated, until nobody has it any longer."""

    def __init__(
        self, size: int, found: tuple[Any, Any], lack: MemoryError, use: Callable[[], None], free: Callable[[int], None]
    ) -> None:
        """Take the code and the pointer that the driver has `found`; `lack` is raised if there is no room.

        `use` makes the device's context a thread's: the last one that has the memory may be any, as where garbage is
        collected. `free` frees what is at an address.
        """
        code, pointer = found
        if code == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise lack
        _check(code)
        self.address, self._use, self._free = int(pointer), use, free
        self.shadow = ADDRESSES[:size]

    def __del__(self) -> None:
        if hasattr(self, "address"):
            with suppress(Exception):  # at the end of the process the driver may be gone
                self._use()
                self._free(self.address)


def _free_on_device(address: int) -> None:
    cuda.cuMemFreeAsync(address, STREAM)  # in order with the kernels that were queued before


def _free_on_host(address: int) -> None:
    _check(*cuda.cuStreamSynchronize(STREAM))  # kernels that were queued may still use it
    cuda.cuMemFreeHost(address)


class Driver:
    """The first CUDA device that the driver shows; see Machine."""

    def __init__(self) -> None:
        """Begin to use the device. Raises ConfigError if there is none, or if it cannot be used."""
        try:
            _check(*cuda.cuInit(0))
            self._device = _value(cuda.cuDeviceGet(0))
        except Exception as error:  # without a driver's library, cuda-bindings may raise anything
            raise ConfigError(NO_DEVICE.format(str(error).partition("\n")[0].rstrip("."))) from None
        self.name = "the CUDA device"
        try:
            self._begin()
        except Exception as error:  # so may a library of NVIDIA's that is missing or too old
            raise ConfigError(UNUSABLE.format(self.name, str(error).partition("\n")[0].rstrip("."))) from None

    def _begin(self) -> None:
        """Take the device's context, and look at what it can do."""
        self.name = _value(cuda.cuDeviceGetName(256, self._device)).split(b"\0")[0].decode()
        self._context = _value(cuda.cuDevicePrimaryCtxRetain(self._device))
        self._thread = threading.local()
        self.use()
        kinds = cuda.CUdevice_attribute
        major, minor = (
            int(_value(cuda.cuDeviceGetAttribute(kind, self._device)))
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self._capability = 10 * major + minor
        self._architectures = [one for one in nvrtc.architectures() if one <= self._capability]
        if not self._architectures:
            raise SimulationError(f"NVRTC {nvrtc.version()} compiles nothing for compute capability {major}.{minor}")
        self._keep_freed_memory()
        # By the version of CUDA that cuLaunchKernel came with.
        code, launcher, _ = cuda.cuGetProcAddress(b"cuLaunchKernel", 4000, 0)
        _check(code)
        self._launcher = int(launcher)
        self._kept = Kept("nvrtc", [nvrtc.version(), *nvrtc.OPTIONS, str(self._capability)])
        self._loaded: dict[Unit, dict[str, Loaded]] = {}
        self._streams: list[int] = []

    def _keep_freed_memory(self) -> None:
        """Let freed memory stay with this process, so that allocating it again takes no time."""
        self._pool = _value(cuda.cuDeviceGetDefaultMemPool(self._device))
        kind = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        _check(*cuda.cuMemPoolSetAttribute(self._pool, kind, cuda.cuuint64_t(2**64 - 1)))

    def use(self) -> None:
        """Make the device's context this thread's."""
        if not getattr(self._thread, "uses", False):
            _check(*cuda.cuCtxSetCurrent(self._context))
            self._thread.uses = True

    def load(self, unit: Unit) -> dict[str, Loaded]:
        """Compile a unit, or take it from the cache, and load it."""
        if unit not in self._loaded:
            self.use()
            path = self._kept.file(unit.text, ".cubin", functools.partial(self._compile, unit))
            module = _value(cuda.cuModuleLoadData(path.read_bytes() + b"\0"))
            self._loaded[unit] = {name: self._kernel(module, unit, name) for name in unit.kernels}
        return self._loaded[unit]

    def _compile(self, unit: Unit) -> bytes:
        """Return a unit as machine code; for a device that NVRTC does not know, as a text that the driver compiles."""
        notices.compiling()
        newest = self._architectures[-1]
        compiled = nvrtc.compile_unit(unit, newest)
        code: bytes = compiled.cubin if newest == self._capability else compiled.ptx
        return code

    def _kernel(self, module: Any, unit: Unit, name: str) -> Loaded:
        kernel = unit.kernels[name]
        function = _value(cuda.cuModuleGetFunction(module, name.encode()))
        if kernel.shared > 48 * 1024:  # more must be asked for
            kind = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(*cuda.cuFuncSetAttribute(function, kind, kernel.shared))
        return Loaded(name, kernel.arguments, kernel.threads, kernel.shared, self._launcher, int(function))

    def streams(self, count: int) -> list[int]:
        """Return so many streams; see Machine. The default stream waits for what is queued on them, and they for it."""
        self.use()
        while len(self._streams) < count:
            self._streams.append(int(_value(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_DEFAULT))))
        return self._streams[:count]

    def allocate(self, size: int) -> Memory:
        """Return memory of the device."""
        self.use()
        size = max(1, size)
        lack = DeviceMemoryError(f"the device has no room for {size:,} bytes more")
        return Allocated(size, cuda.cuMemAllocAsync(size, STREAM), lack, self.use, _free_on_device)

    def room(self) -> int:
        """Return how many bytes can be allocated now: what nobody has, and what this process has freed and kept."""
        free, _, kept, used = self._bytes()
        return free + kept - used

    def taken(self) -> float:
        """Return which share of all memory is allocated now, by this process."""
        _, total, _, used = self._bytes()
        return used / total

    def _bytes(self) -> tuple[int, int, int, int]:
        """Return how many bytes nobody has, and there are, and how many this process keeps, and of these has in use."""
        self.use()
        code, free, total = cuda.cuMemGetInfo()
        _check(code)
        kinds = cuda.CUmemPool_attribute
        kept, used = (
            int(_value(cuda.cuMemPoolGetAttribute(self._pool, kind)))
            for kind in (kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        )
        return int(free), int(total), kept, used

    def allocate_on_host(self, size: int) -> Memory:
        """Return memory of the host, locked in place, at whose address kernels find it, too."""
        self.use()
        size, flags = max(1, size), cuda.CU_MEMHOSTALLOC_PORTABLE | cuda.CU_MEMHOSTALLOC_DEVICEMAP
        lack = MemoryError(f"the host has no room for {size:,} bytes more that the device can use")
        return Allocated(size, cuda.cuMemHostAlloc(size, flags), lack, self.use, _free_on_host)

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy between two addresses, of the device or of memory of the host that it uses."""
        self.use()
        _check(*cuda.cuMemcpyAsync(target, source, size, STREAM))

    def upload(self, values: NDArray[Any], address: int) -> None:
        """Copy an array to the device."""
        self.use()
        if values.nbytes:
            _check(*cuda.cuMemcpyHtoD(address, values.__array_interface__["data"][0], values.nbytes))

    def download(self, address: int, values: NDArray[Any]) -> None:
        """Copy from the device to an array, once all that was queued is done."""
        self.use()
        if values.nbytes:
            _check(*cuda.cuStreamSynchronize(STREAM))  # memory of the host at an address of the device's is not awaited
            _check(*cuda.cuMemcpyDtoH(values.__array_interface__["data"][0], address, values.nbytes))


def _check(code: Any) -> None:
    """Raise SimulationError if a function of the driver failed."""
    if code != cuda.CUresult.CUDA_SUCCESS:
        raise SimulationError(f"the CUDA driver fails: {code.name}")


def _value(found: tuple[Any, ...]) -> Any:
    """Return what a function of the driver returns behind its code."""
    code, value = found
    _check(code)
    return value
