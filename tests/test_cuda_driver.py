"""A run through NVIDIA's packages, with a library in the place of the driver that launches emulated kernels.

So what fredsim asks of the driver, and how, is tried where there is no device.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import HAS_CUDA

pytest.importorskip("cuda.bindings.driver", reason="NVIDIA's cuda-bindings are not installed")

STUB = Path(__file__).with_name("stub_driver.cpp")
#: A module of the stub is the path of a library.
PROGRAM = """
import ctypes, json, sys, threading
import numpy as np

from fredsim.cuda.emulation import Emulation
from fredsim.cuda.driver import Driver
from fredsim.cuda.array import empty, upload
from fredsim.cuda.machines import machine
from fredsim.simulation.paths.backends import resolve_backend
import fredsim

emulation = Emulation()


def compiled(driver, unit):
    emulation.load(unit)
    return str(emulation._kept.file(unit.text, ".so", lambda: b"")).encode()


Driver._compile = compiled
found = {"name": machine().name, "auto": resolve_backend("auto")}
x = upload(np.arange(6, dtype=np.float32).reshape(2, 3))
found["sums"] = np.asarray(x + x[:, 1:2]).tolist()
try:
    empty(2**31)
except MemoryError as error:
    found["no room"] = str(error)
for backend in ("cuda", "numba"):
    result = fredsim.run(json.loads(sys.argv[1]) | {"backend": backend}, out=f"{sys.argv[2]}/{backend}")
    found[backend] = result.summary["digest"], result.summary["path"], result.summary["device"]
changes = {"backend": "cuda", "cases": [{"clients.batch_size": int(sys.argv[3])}, {"clients.batch_size": 1}]}
for jobs in (1, "device"):
    results = fredsim.sweep(json.loads(sys.argv[1]) | changes, out=f"{sys.argv[2]}/{jobs}", jobs=jobs)
    found[f"jobs {jobs}"] = [result.summary["digest"] for result in results]
sizes, allocate = [], Driver.allocate_on_host
Driver.allocate_on_host = lambda self, size: (sizes.append(size), allocate(self, size))[1]
for backend in ("cuda", "numba"):  # of the stub's room, 4.5 MiB are for what clients hold
    large = json.loads(sys.argv[1]) | {"backend": backend, "model": {"hidden": [2000]}}
    result = fredsim.run(large, out=f"{sys.argv[2]}/large-{backend}")
    found[f"large {backend}"] = result.summary["digest"]
found["on the host"] = [*sizes]
found["streams"], found["taken"] = machine().streams(2), machine().taken()
held = empty(2, on_host=True)
held[...] = 2.0
found["in order"] = [np.asarray(held).tolist()]
sums = held + 1.0
del held  # which the sum has yet to read
found["in order"].append(np.asarray(sums).tolist())
del sums
live, arrays = ctypes.CDLL("libcuda.so.1").stub_live, [empty(9), empty(9, on_host=True)]
before, thread = live(), threading.Thread(target=arrays.clear)
thread.start()
thread.join()
found["freed by another thread"] = before - live()
print(json.dumps(found))
"""


needs_stub = pytest.mark.skipif(
    sys.platform != "linux" or not HAS_CUDA, reason="the stub is compiled for Linux, by a C++ compiler"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a process whose driver is the stub."""
    from fredsim.cuda.emulation import compiler

    folder = tmp_path_factory.mktemp("driver")
    words = [str(compiler()), "-shared", "-fPIC", str(STUB), "-o", str(folder / "libcuda.so.1"), "-ldl"]
    subprocess.run(words, check=True)
    paths = str(folder), os.environ.get("LD_LIBRARY_PATH", "")
    return {**os.environ, "FREDSIM_EMULATE": "0", "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}


@needs_stub
@pytest.mark.parametrize(("trouble", "says"), [
    ({"STUB_BUSY": "1"}, "Stub cannot be used (the CUDA driver fails: CUDA_ERROR_DEVICE_UNAVAILABLE)"),
    ({"STUB_CAPABILITY": "3"}, "compiles nothing for compute capability 3.0"),
])  # fmt: skip
def test_a_device_that_cannot_be_used(trouble: dict[str, str], says: str, environment: dict[str, str]) -> None:
    """`auto` leaves it alone, and `cuda` says why."""
    program = """
from fredsim.cuda.machines import machine
from fredsim.errors import ConfigError
from fredsim.simulation.paths.backends import resolve_backend
print(resolve_backend("auto"))
try:
    machine()
except ConfigError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment | trouble, capture_output=True, text=True, check=False)
    backend, _, error = done.stdout.partition("\n")
    assert backend == "numba", done.stderr
    assert error.startswith("backend is cuda, and Stub cannot be used (")
    assert says in error
    assert error.endswith("): leave backend out\n")


@needs_stub
@pytest.mark.parametrize("mu", [3, 40])
def test_a_run(mu: int, tmp_path: Path, environment: dict[str, str], digits_experiment: dict[str, Any]) -> None:
    experiment = digits_experiment | {"clients": {"count": 8, "batch_size": mu}}
    command = [sys.executable, "-c", PROGRAM, json.dumps(experiment), str(tmp_path), str(mu)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["name"], found["auto"]) == ("Stub", "cuda")
    assert found["sums"] == [[1, 2, 3], [7, 8, 9]]
    assert found["no room"] == f"the device has no room for {2**33:,} bytes more"
    assert found["streams"] == [256, 512]
    assert found["taken"] == 2**-10
    assert found["in order"] == [[2.0, 2.0], [3.0, 3.0]]
    assert found["freed by another thread"] == 2
    assert found["large cuda"] == found["large numba"]
    stride = -(-(65 * 2000 + 2001 * 10) // 32) * 32
    live, on_device = 9, 4_718_592 // (4 * stride)
    assert found["on the host"] == [4 * stride * (live - on_device)]
    assert found["jobs 1"] == found["jobs device"]
    assert found["jobs 1"][0] == found["cuda"][0]
    assert found["cuda"] == [found["numba"][0], "queued", "Stub"]


def test_memory_of_which_the_host_has_less() -> None:
    """A device's memory has addresses on the host, and takes none of its memory."""
    from cuda.bindings import driver

    from fredsim.cuda.array import DeviceArray
    from fredsim.cuda.driver import Allocated

    memory = Allocated(2**45, (driver.CUresult.CUDA_SUCCESS, 4096), MemoryError(), lambda: None, lambda _: None)
    array = DeviceArray(memory, memory.shadow.view(np.float32).reshape(-1, 2**20))
    assert array[3:5, 7:].address == 4096 + 4 * (3 * 2**20 + 7)
    assert array[-1, -1].address == 4096 + 2**45 - 4
