"""A checker of emulated kernels finds every kind of fault, and none in the kernels of fredsim."""

import functools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

import fredsim
from fredsim.networks.mlp import Mlp
from fredsim.numerics.ops.draws import Keys
from fredsim.servers.fasgd import RULES
from tests.conftest import EMULATED, HAS_CUDA
from tests.random_graphs import initial

if not (EMULATED and HAS_CUDA):
    pytest.skip("what is checked is emulated, which needs Linux and a C++ compiler", allow_module_level=True)

from fredsim.cuda import layers
from fredsim.cuda.array import upload
from fredsim.cuda.engine import CudaEngine
from fredsim.cuda.kernels import FAMILIES, Unit, make_unit, unit_of
from fredsim.cuda.launches import Launches, launch, run_all
from fredsim.cuda.networks.engine import CudaGraphEngine
from fredsim.cuda.operations import CudaOperations
from fredsim.cuda.rules import unit_of_rule
from tests.race_checker.checked import CheckedEmulation, as_the_machine, unavailable
from tests.test_cuda_kernels import CASES, ROWS, TILES, data, parameters
from tests.test_cuda_networks import LARGE_NORMS, NETWORKS, normed, tiles
from tests.test_cuda_networks import data as data_of

if reason := unavailable():
    pytest.skip(reason, allow_module_level=True)


class Fault(NamedTuple):
    """What is found in a kernel, its text with … at one place, and what stands there: with the fault, and mended."""

    found: str
    text: str
    wrong: str
    mended: str


THREADS, BLOCKS, STREAMS = "race of threads", "race of blocks", "race of streams"
COPY, FIXED = "a copy that is not waited for", "read() of what the launch writes"
FAULTS = {
    "no_barrier": Fault(THREADS, "shared[t] = p.x[i]; … p.out[i] = shared[(t + 1) % 64];", "", "barrier();"),
    "no_barrier_behind": Fault(
        THREADS, "shared[t] = 1.0f; barrier(); const float x = shared[63 - t]; … shared[t] = x; p.out[i] = shared[t];",
        "", "barrier();",
    ),
    "array_without_barrier": Fault(THREADS, "p.out[i] = 1.0f; … if (t < 63) p.out[i + 1] = 2.0f;", "", "barrier();"),
    "one_byte": Fault(THREADS, "p.bytes[…] = 1;", "i / 2", "i"),
    "one_element": Fault(BLOCKS, "p.out[…] = 1.0f;", "t", "i"),
    "of_another_block": Fault(BLOCKS, "p.out[i] = 1.0f; p.y[i] = p.out[…];", "127 - i", "i"),
    "not_atomic": Fault(BLOCKS, "if (t == 0) …", "*p.found = *p.found > i ? *p.found : i;", "raise(p.found, i);"),
    "beyond": Fault("beyond an array", "p.out[i …] = 1.0f;", "+ 1", ""),
    "before": Fault("outside of all arrays", "p.out[i] = p.x[i …];", "- 1", ""),
    "beyond_shared": Fault("beyond its shared memory", "shared[t …] = 1.0f;", "+ 1", ""),
    "misaligned": Fault("misaligned", "if (t == 2) *(double*)(p.out + …) = 1.0;", "i + 1", "i"),
    "some_threads": Fault(
        "a barrier to which not all threads come", "… p.out[i] = 1.0f;", "if (t < 32) barrier();", "barrier();"
    ),
    "no_wait": Fault(
        COPY, "copy4(shared + t, p.x + i, true); end_group(); … p.out[i] = shared[t];", "", "wait_for<0>();"
    ),
    "too_short_a_wait": Fault(
        COPY, "copy4(shared + t, p.x + i, t < 9); end_group(); wait_for<…>(); p.out[i] = shared[t];", "1", "0"
    ),
    "wait_without_barrier": Fault(
        THREADS, "copy4(shared + t, p.x + i, true); end_group(); wait_for<0>(); … p.out[i] = shared[63 - t];",
        "", "barrier();",
    ),
    "copy_without_barrier": Fault(
        THREADS, "shared[t] = 1.0f; barrier(); p.out[i] = shared[t + (t < 63)]; … copy4(shared + t, p.x + i, true);",
        "", "barrier();",
    ),
    "read_of_what_was_written": Fault(FIXED, "p.out[i] = 1.0f; p.y[i] = …;", "read(p.out + i)", "p.out[i]"),
    "read_of_what_is_written_later": Fault(FIXED, "p.out[i] = 1.0f + …;", "read(p.out + i)", "p.out[i]"),
}  # fmt: skip
SOURCE = """
#include "common.h"
struct Given {
  float* out;      // (128,) each
  float* y;
  const float* x;
  u8* bytes;
  int* found;      // (1,)
};
"""
KERNEL = """
KERNEL({name}, Given, 64, 4 * 64) {{
  SHARED(float, shared);
  const int t = threadIdx.x, i = blockIdx.x * 64 + t;
  {text}
}}
"""
SIZES = {"out": 512, "y": 512, "x": 512, "bytes": 128, "found": 4}


@pytest.fixture(scope="module")
def device() -> CheckedEmulation:
    return CheckedEmulation()


@functools.cache
def unit(mended: bool) -> Unit:
    texts = {
        name: fault.text.replace("…", fault.mended if mended else fault.wrong) for name, fault in FAULTS.items()
    }  # fmt: skip
    return make_unit("faults", SOURCE + "".join(KERNEL.format(name=name, text=text) for name, text in texts.items()))


def allocated(device: CheckedEmulation) -> dict[str, Any]:
    """Return memory for the fields of a kernel, full of zeros."""
    found = {name: device.allocate(size) for name, size in SIZES.items()}
    for memory in found.values():
        memory.shadow[...] = 0
    device.forget()
    return found


def addresses(memory: dict[str, Any]) -> dict[str, int]:
    return {name: one.address for name, one in memory.items()}


def faults(device: CheckedEmulation) -> list[tuple[str, str]]:
    return [(found.kernel, found.fault) for found in device.found()]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_and_nothing_once_it_is_mended(name: str, device: CheckedEmulation) -> None:
    for mended in (False, True):
        memory = allocated(device)
        launch(device, device.load(unit(mended))[name], (2, 1, 1), **addresses(memory))
        assert device.ran() == {name}
        assert faults(device) == ([] if mended else [(name, FAULTS[name].found)])


@pytest.mark.parametrize(("writer", "reader"), [("one_element", "one_element"), ("one_element", "of_another_block"),
                                                ("no_barrier", "no_barrier")])  # fmt: skip
def test_streams_are_in_order_only_if_something_orders_them(writer: str, reader: str, device: CheckedEmulation) -> None:
    memory, kernels = allocated(device), device.load(unit(True))
    fields = addresses(memory)

    def launches(name: str, count: int, **changed: int) -> Launches:
        made = Launches(device)
        for _ in range(count):
            made.add(kernels[name], (2, 1, 1), **(fields | changed))
        return made

    def wait() -> None:
        device.download(memory["out"].address, np.zeros(128, np.float32))

    def found_on(streams: Sequence[int], **changed: int) -> list[tuple[str, str]]:
        wait()
        device.forget()
        run_all(device, [launches(writer, 2), launches(reader, 3, **changed)], streams)
        return faults(device)

    streams = device.streams(2)
    for order in (streams, streams[::-1]):
        assert {fault for _, fault in found_on(order)} == {STREAMS}
    assert found_on([streams[1]] * 2) == found_on([0, 0]) == found_on([streams[0], 0]) == []
    other = device.allocate(512)  # x, which both read, is still the same
    assert found_on(streams, out=other.address) == []
    for stream in streams:
        wait()
        run_all(device, [launches(writer, 1)], [stream])
    assert faults(device) == []
    wait()
    for stream in streams:
        run_all(device, [launches(writer, 1)], [stream])
    assert faults(device) == [(writer, STREAMS)]


def test_memory_that_was_freed(device: CheckedEmulation) -> None:
    memory, kernel = allocated(device), device.load(unit(True))["one_element"]
    fields = addresses(memory)
    launch(device, kernel, (2, 1, 1), **fields)
    assert faults(device) == []
    del memory["out"]
    launch(device, kernel, (2, 1, 1), **fields)
    assert faults(device) == [("one_element", "outside of all arrays")]


def test_each_finding_says_which_threads_showed_it(device: CheckedEmulation) -> None:
    memory = allocated(device)
    for name in ("one_element", "beyond"):
        launch(device, device.load(unit(False))[name], (2, 1, 1), **addresses(memory))
    assert [found.example for found in device.found()] == [
        "thread 63 of block 1 writes 4 bytes at byte 512 of 512",
        "thread 0 of block 1 writes what is written by thread 0 of block 0",
    ]


# ---- the kernels of fredsim


@pytest.fixture
def machine() -> Iterator[CheckedEmulation]:
    """What fredsim computes on in this test."""
    with as_the_machine() as machine:
        machine.forget()
        yield machine


def perceptrons() -> None:
    """Let all kernels of dense layers run, as tests/test_cuda_kernels.py does."""
    for sizes, mu, _ in CASES:
        model, rows = Mlp(sizes), np.random.default_rng(2).integers(0, ROWS, (2, mu))
        held = [upload(params) for params in parameters(model, 2)]
        for one in TILES:
            with patch.multiple(layers, **one):
                CudaEngine(model, data(sizes[0], sizes[-1]), mu).gradients(held, rows)


def networks() -> None:
    """Let all kernels of networks run, as tests/test_cuda_networks.py does."""
    keys = Keys(7, np.array([3, 0]), np.array([5, 2]))
    for make, mu in NETWORKS:
        graph, rng = make(), np.random.default_rng(mu)
        held, rows = [initial(graph, rng) for _ in range(2)], rng.integers(0, 30, (2, mu))
        for large in (True, False):
            with tiles(large=large):
                engine = CudaGraphEngine(graph, data_of(graph), mu)
                engine.gradients(held, rows, keys)
                engine.outcomes(held[0], "test")
    for shape, norm, mu in LARGE_NORMS:
        graph, rows = normed(shape, norm), np.zeros((1, mu), np.int64)
        CudaGraphEngine(graph, data_of(graph), mu).gradients([initial(graph, np.random.default_rng(0))], rows)


def whole_runs(folder: Path) -> None:
    """Let rules run, alone and side by side on two streams, compressors, and problems without networks."""
    base: dict[str, Any] = {
        "name": "small", "iterations": 20, "data": {"name": "digits", "train": 40, "validation": 9}, "backend": "cuda",
        "server": {"name": "fasgd", "lr": 0.01}, "evaluation": {"every": 20},
    }  # fmt: skip
    for mu, wide in ((2, 512), (2, 1), (12, 512)):
        with patch("fredsim.cuda.queue.WIDE", wide):
            swept = {"sweep": {"seed": [0, 1], "model.hidden": [[7], [20]]}}
            swept["clients"] = {"count": 200, "batch_size": mu}  # so that windows have many events
            for jobs in (1, "device"):
                fredsim.sweep(base | swept, out=folder / f"{mu}-{wide}-{jobs}", jobs=jobs)
    base |= {"clients": {"count": 3, "batch_size": 1}, "server": {"name": "asgd", "lr": 0.01, "weight_decay": 0.1}}
    fredsim.run(base | {"compress": {"name": "ternary"}, "model": {"hidden": [7]}}, out=folder / "ternary")
    base["model"] = {"name": "linear"}
    fredsim.run(base | {"data": {"name": "least_squares", "train": 40, "columns": 5}}, out=folder / "rows")
    fredsim.run(base | {"data": {"name": "quadratic", "size": 50}}, out=folder / "quadratic")


def sums() -> None:
    """Let sums of several blocks run."""
    operations = CudaOperations()
    values: Any = upload(np.random.default_rng(0).standard_normal(3000).astype(np.float32))
    assert operations.finite(values)
    operations.ternary.clip(values, 2.5)


def test_no_kernel_has_a_fault(machine: CheckedEmulation, tmp_path: Path) -> None:
    """Each is run; one that is not stands here by its name."""
    perceptrons()
    networks()
    whole_runs(tmp_path)
    sums()
    units = [*map(unit_of, FAMILIES), *(unit_of_rule(RULES["std"], *thin) for thin in ((), (2,), (2, 4)))]
    assert {name for each in units for name in each.kernels} - machine.ran() == set()
    assert machine.found() == []


@pytest.mark.slow
@pytest.mark.parametrize("names", [
    ("test_cuda_kernels.py", "test_cuda_networks.py", "test_squares.py"), ("servers/test_cuda.py", "test_cuda.py"),
    ("test_cuda_places.py", "test_side_by_side.py"),
], ids=" ".join)  # fmt: skip
def test_no_kernel_has_a_fault_in_other_tests(names: Sequence[str]) -> None:
    """Which have networks of many kinds, the rules of all servers, and whole runs."""
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.race_checker.plugin"]
    # But for kernels with faults, and for what asks how far a run comes in a second.
    options += ["-k", "not a_missing_barrier and not the_same_number_of_events_at_once"]
    files = [f"tests/{name}" for name in names]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files], cwd=Path(__file__).parents[1],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-5000:]
    assert " kernels checked, 0 faults" in found.stdout
