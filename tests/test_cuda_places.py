"""What clients hold beyond a device's memory: it is in the host's, with the same bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.cuda.array import empty, upload
from fredsim.cuda.machines import MOST_GARBAGE, free_garbage, machine
from fredsim.cuda.places import PIECE, NoRoomError, Places, place
from fredsim.errors import ConfigError
from fredsim.runs.folder.results import Result
from tests.conftest import DeviceBytes, needs_cuda

pytestmark = needs_cuda
Simulate = Callable[..., Result]
Room = Callable[[int], None]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """Let the device have room for so many bytes, of which places may take three quarters."""
    return lambda number: monkeypatch.setattr(type(machine()), "room", lambda _: number)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is allocated on the host, in bytes."""
    sizes: list[int] = []
    allocate = type(machine()).allocate_on_host

    def noted(self: Any, size: int) -> Any:
        sizes.append(size)
        return allocate(self, size)

    monkeypatch.setattr(type(machine()), "allocate_on_host", noted)
    return sizes


@pytest.mark.parametrize("bytes_", [0, 4 * 128 * 4, 2**20])  # room for none, three and all of seven places
def test_places(bytes_: int, room: Room, on_host: list[int]) -> None:
    room(bytes_)
    places = Places(7, 100, 128)
    spilled = {0: 7, 4 * 128 * 4: 4, 2**20: 0}[bytes_]
    assert on_host == [spilled * 128 * 4] * bool(spilled)
    addresses = places.addresses(np.arange(-1, 7))
    assert addresses[0] == 0
    assert len(set(addresses.tolist())) == 8
    params = np.arange(100, dtype=np.float32)
    places.begin(upload(params))
    assert places.take()[0].tolist() == params.tolist()
    values = np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32)
    places.put(values)
    assert places.take().tobytes() == values.tobytes()
    for address, row in zip(addresses[1:].tolist(), values, strict=True):
        found = np.empty(100, np.float32)
        machine().download(address, found)
        assert found.tobytes() == row.tobytes()


def test_places_that_were_never_written_have_no_bits_of_their_own(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in checkpoints, which `verify` compares byte for byte; a device's memory is arbitrary at first."""
    room(4 * 128 * 4)
    found = []
    for value in (1, 2):
        for name in ("allocate", "allocate_on_host"):
            allocate = getattr(type(machine()), name)

            def dirty(self: Any, size: int, allocate: Any = allocate, value: int = value) -> Any:
                memory = allocate(self, size)
                machine().upload(np.full(size, value, np.uint8), memory.address)
                return memory

            monkeypatch.setattr(type(machine()), name, dirty)
        places = Places(7, 100, 128)
        places.begin(upload(np.ones(100, np.float32)))
        found.append(places.take())
    assert found[0].tobytes() == found[1].tobytes()
    assert np.isnan(found[0][1:]).all()  # so that a kernel that reads one would show it


def test_pieces(room: Room) -> None:
    room(4 * (PIECE // 8))
    places = Places(9, PIECE // 16, PIECE // 16)
    values = np.zeros((9, PIECE // 16), np.float32) + np.arange(9, dtype=np.float32)[:, None]
    places.put(values)
    assert [part.shape[0] for _, part in places._pieces()] == [1, 4, 4]
    assert np.array_equal(places.take(), values)


def test_room_in_pieces(on_host: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = type(machine()).allocate

    def limited(self: Any, size: int) -> Any:
        if size > 2 * 128 * 4:
            raise MemoryError
        return allocate(self, size)

    monkeypatch.setattr(type(machine()), "allocate", limited)
    Places(7, 100, 128)
    assert on_host == [6 * 128 * 4]  # half of seven, and half of that, is one
    place(1000)
    assert on_host[1:] == [4000]


def test_no_room(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room(4000)
    with pytest.raises(NoRoomError, match="7 versions of 400 B are live at once, more than the device has room for"):
        Places(7, 100, 128, spill=False)
    monkeypatch.setattr("fredsim.system.memory.FEW", 1000)
    monkeypatch.setattr("fredsim.system.memory.machine_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=r"those that are left take 1\.02 kB, and this machine has 1 kB"):
        Places(7, 100, 128)
    monkeypatch.undo()
    room(4000)

    def none(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(type(machine()), "allocate_on_host", none)
    with pytest.raises(ConfigError, match="more than the device and the host have room for: choose fewer clients"):
        Places(7, 100, 128)


@pytest.mark.parametrize(("path", "bytes_"), [("queued", 30_000), ("queued", 0), ("snapshots", 5000)])
def test_runs(path: str, bytes_: int, simulate: Simulate, room: Room, on_host: list[int]) -> None:
    base = {"iterations": 90, "clients": {"count": 12, "batch_size": 2}, "evaluation": {"every": 30}}
    usual = simulate(base)
    room(bytes_)
    spilled = simulate({**base, "backend": "cuda", "path": path})
    assert on_host
    for name in ("metrics.csv", "staleness.csv", "params.safetensors"):
        assert (usual.folder / name).read_bytes() == (spilled.folder / name).read_bytes()


def test_stopped_and_resumed(
    small_yaml: Path, command: Callable[..., tuple[int, str, str]], room: Room, on_host: list[int]
) -> None:
    """A run on whose checkpoint another goes on that has other room."""
    from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
    from fredsim.runs.single.execution import execute
    from fredsim.runs.single.opening import open_expansion

    expansion = open_expansion(str(small_yaml), ["backend=cuda", "evaluation.every=10"])
    experiment = expansion.runs[0].experiment
    execute(experiment, Path("whole"))
    room(12_000)
    execute(experiment, Path("parts"), stop_at=30, policy=CheckpointPolicy(60.0))
    assert Result(Path("parts")).summary["status"] == "interrupted"
    assert on_host
    room(20_000)
    execute(experiment, Path("parts"))
    assert command("compare", "whole", "parts")[0] == 0


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_what_earlier_runs_have_left_is_freed_if_it_may_be_much(
    share: float, device_bytes: DeviceBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array that refers to itself stands for it."""
    monkeypatch.setattr(type(machine()), "taken", lambda _: share)
    around: list[Any] = [empty(4)]
    around.append(around)
    del around
    assert device_bytes.live == 16
    free_garbage()
    assert device_bytes.live == (0 if share > MOST_GARBAGE else 16)


def test_places_that_fit_once_garbage_is_collected(on_host: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = [4 * 128 * 4, 2**20]
    monkeypatch.setattr(type(machine()), "room", lambda _: rooms.pop(0))
    Places(7, 100, 128)
    assert (rooms, on_host) == ([], [])
