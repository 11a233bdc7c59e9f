"""Beyond `memory` what clients hold lies in mapped files: how many there are, and what of them is let go of."""

import ctypes
import mmap
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.compute.storage import Limits, Pool
from fredsim.errors import DeviceMemoryError, NoMemoryError, SimulationError
from fredsim.runs.folder.results import Result
from fredsim.system.heap import fill_holes, freed_memory_kept, release_free_memory
from fredsim.system.memory import memory_errors

Simulate = Callable[..., Result]

if not hasattr(mmap, "MADV_DONTNEED"):
    pytest.skip("this system has no way to let go of mapped memory", allow_module_level=True)


class Noted(mmap.mmap):
    """A mapped file, and the places of which it was let go."""

    made: list["Noted"]
    rests: list[int]

    def madvise(self, option: int, *place: int) -> None:
        """Note it."""
        assert option == mmap.MADV_DONTNEED
        self.rests.append(place[0] if place else 0)
        super().madvise(option, *place)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    """The files that are mapped from now on."""
    made: list[Noted] = []

    def noting(*arguments: Any) -> Noted:
        made.append(Noted(*arguments))
        made[-1].rests = []
        return made[-1]

    monkeypatch.setattr(mmap, "mmap", noting)
    return made


@pytest.mark.parametrize("path", ["fused", "snapshots"])
def test_what_a_client_keeps_leaves_the_memory_again(path: str, simulate: Simulate, files: list[Noted]) -> None:
    """What is read of it would stay resident if nobody let go."""
    changes = {"memory": 1, "path": path, "clients": {"count": 8, "batch_size": 2}, "iterations": 100}
    run = simulate({**changes, "dispatcher": {"fetch": {"every": 4}}})
    assert run.summary["fetches"] < 30
    assert [len(file.rests) for file in files] == [1 + 100]  # the initial parameters, then a copy or what is kept


@pytest.mark.parametrize(
    ("path", "wait", "most"), [("snapshots", True, 9), ("snapshots", False, 17), ("fused", True, 9)]
)
def test_what_nobody_holds_is_used_again(
    path: str, wait: bool, most: int, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies in use: one a client, two where clients do not wait, and one that is being made."""
    there, used, take, give_back = 0, [0], Pool.take, Pool.give_back

    def taken(pool: Pool) -> Any:
        nonlocal there
        there += 1
        used.append(there)
        return take(pool)

    def given_back(pool: Pool, array: Any) -> None:
        nonlocal there
        there -= 1
        give_back(pool, array)

    monkeypatch.setattr(Pool, "take", taken)
    monkeypatch.setattr(Pool, "give_back", given_back)
    gate = {"fetch": {"bandwidth_aware": {"c": 1e-3}}} if path == "fused" else {}
    simulate(
        {
            "path": path,
            "iterations": 200,
            "dispatcher": {"wait": wait, **gate},
            "server": {"name": "fasgd", "lr": 0.01},
            "window": 1,
        }
    )
    assert 5 < max(used) <= most


def test_work_in_hand_leaves_the_memory_after_every_stretch(simulate: Simulate, files: list[Noted]) -> None:
    run = simulate({"memory": 1, "path": "hand", "iterations": 100, "evaluation": {"every": 10}})
    assert run.summary["path"] == "hand"
    assert len(files) == 1
    assert len(files[0].rests) >= 1 + 10
    assert set(files[0].rests) == {0}  # all of it


def test_work_in_hand_of_whole_gradients_leaves_the_memory_too(
    simulate: Simulate, files: list[Noted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fredsim.kernels.mlp.pending.PAGE_OUT_EVERY", 10)
    server = {"name": "asgd", "lr": 0.1, "weight_decay": 0.1}
    simulate({"memory": 1, "path": "hand", "iterations": 100, "server": server})
    (file,) = files
    assert len(file.rests) >= 100
    assert set(file.rests) == {0}


@pytest.mark.parametrize(("arrays", "mapped"), [(0.0, 2), (8.8, 1), (12.0, 0)])
def test_works_share_the_memory_with_what_a_server_keeps(
    arrays: float, mapped: int, simulate: Simulate, files: list[Noted]
) -> None:
    """It has 8 arrays for 8 clients, of whole pages each; their tasks take about as much as one more."""
    changes = {"server": {"name": "dcasgd", "lr": 0.01}, "clients": {"count": 8, "batch_size": 2}, "path": "hand"}
    changes |= {"iterations": 100, "model": {"hidden": [100]}}
    memory = (4 * 64 + 8) * 1797 + int(arrays * 4 * (65 * 100 + 101 * 10))  # the data's, and the rest
    assert simulate({**changes, "memory": memory}).summary["path"] == "hand"
    assert len(files) == mapped


@pytest.mark.parametrize(("of_targets", "mapped"), [(1.0, 0), (0.5, 1)])
def test_targets_take_memory_too(
    of_targets: float, mapped: int, simulate: Simulate, files: list[Noted], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((150, 2), np.float32), rng.random((150, 1000), np.float32)
    np.savez(tmp_path / "far.npz", x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
    held = 9 * 4 * (3 * 4 + 5 * 1000)  # the server's and eight clients' parameters
    experiment: dict[str, Any] = {
        "data": {"name": f"npz:{tmp_path / 'far.npz'}"},
        "loss": "mse",
        "model": {"hidden": [4]},
    }
    experiment |= {"memory": int(1.2 * held + x.nbytes + of_targets * y.nbytes), "iterations": 20}
    simulate({**experiment, "clients": {"count": 8, "batch_size": 2}})
    assert len(files) == mapped


def test_refused_fetches_take_no_room(simulate: Simulate, files: list[Noted]) -> None:
    """A file has 64 MiB, room for 110 versions of these parameters; a dozen are held at once."""
    changes = {"memory": 1, "model": {"hidden": [2000]}, "server": {"name": "fasgd", "lr": 0.005}}
    run = simulate({**changes, "iterations": 250, "dispatcher": {"fetch": {"bandwidth_aware": {"c": 0.1}}}})
    assert run.summary["path"] == "fused"
    assert run.summary["fetches"] < 100
    assert [len(file.rests) for file in files] == [1 + 250]


@pytest.mark.parametrize(
    ("server", "kept", "versions", "read"),
    [
        ({"name": "dcasgd", "lr": 0.01}, 8, 8, 0),
        ({"name": "gap_aware", "lr": 0.01}, 8, 8, 0),
        ({"name": "dcasgd", "lr": 0.01, "mean_square": "client"}, 16, 8, 0),
        ({"name": "ia2sgd", "lr": 0.01}, 8, 8, 0),
        ({"name": "malenia", "lr": 0.01}, 8, 1, 8),
    ],
)
def test_what_a_server_keeps_for_each_client_lies_in_the_file_and_leaves_the_memory(
    server: dict[str, Any], kept: int, versions: int, read: int, simulate: Simulate, files: list[Noted]
) -> None:
    """What it keeps for the client that pushes is let go of at each push, what is `read` for an update after that."""
    changes = {"server": server, "clients": {"count": 8, "batch_size": 2}, "iterations": 100, "path": "snapshots"}
    run = simulate({**changes, "memory": 1})
    assert run.summary["digest"] == simulate(changes).summary["digest"]
    (file,) = files
    assert kept + versions <= len(set(file.rests) - {0}) <= kept + versions + 1  # one more while it is made
    assert len(file.rests) >= 100 * kept // 8 + run.summary["updates"] * (1 + read)


def test_too_little_memory_is_one_error() -> None:
    """Of this machine, and, once PyTorch is imported, of a device; any other error is passed on."""
    less = r"\); lower model\.hidden, .* take less data, or "
    with pytest.raises(SimulationError, match=rf"^out of memory \(12 GB{less}end other programs$"), memory_errors():
        raise MemoryError("12 GB")
    with pytest.raises(SimulationError, match=rf"^out of memory \(nothing is left{less}end other"), memory_errors():
        raise MemoryError
    says = rf"^out of memory on the device \(12 GB{less}choose backend numba, or end other"
    with pytest.raises(NoMemoryError, match=says), memory_errors():
        raise DeviceMemoryError("12 GB")
    torch = pytest.importorskip("torch")
    found = "CUDA out of memory. Tried to allocate 44.00 MiB. GPU 0 has 139.80 GiB of which 45.00 MiB is free"
    says = rf"^out of memory on the device \({re.escape(found)}{less}choose backend numba, or end other"
    with pytest.raises(SimulationError, match=says), memory_errors():
        raise torch.OutOfMemoryError(f"{found}. Process 8300 has 3.89 GiB in use. And so on.\nMore lines")
    with pytest.raises(RuntimeError, match=r"^another$"), memory_errors():
        raise RuntimeError("another")


def test_memory_is_used_before_a_file() -> None:
    """What lies in the file stays there when it is given back, and is taken last."""
    pool = Pool(1000, 16, Limits(memory=1 << 20))
    room = (1 << 20) // mmap.ALLOCATIONGRANULARITY
    taken = [pool.take() for _ in range(room + 1)]
    first, last = taken[0].ctypes.data, taken[-1].ctypes.data
    for _ in range(3):
        pool.give_back(taken[0])
        pool.give_back(taken[-1])
        taken[0], taken[-1] = pool.take(), pool.take()
        assert (taken[0].ctypes.data, taken[-1].ctypes.data) == (first, last)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc returns memory on request")
def test_gaps_in_the_heap_are_returned_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE

    blocks = [bytearray(100_000) for _ in range(4000)]
    kept, before = blocks[::20], resident()
    del blocks
    release_free_memory()
    assert resident() < before - 200_000_000
    assert len(kept) == 200


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_is_allocated_lies_together() -> None:
    """Every other one of many arrays leaves a hole; without filling these, new arrays are there."""
    for fills in (False, True):
        arrays = [np.empty(2**13) for _ in range(400)]
        last = max(array.ctypes.data for array in arrays)
        del arrays[::2]
        with freed_memory_kept():
            if fills:
                fill_holes()
            new = [np.empty(2**13) for _ in range(100)]
            assert all(array.ctypes.data > last for array in new) is fills
            del new
        again = [np.empty(2**13) for _ in range(100)]  # in holes, which are empty again
        assert any(array.ctypes.data < last for array in again)
