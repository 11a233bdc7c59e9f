"""Whole runs on a CUDA device, or emulated where there is none: the same bits as on the CPU."""

import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.dispatchers.base import Order
from fredsim.runs.folder.results import Result
from fredsim.simulation.schedule.schedule import assign_places, next_arrivals, split_windows, whole_schedule
from tests.conftest import needs_cuda

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
OwnServer = Callable[..., str]

SHARDS = {"name": "shards", "per_client": 1}
#: To evaluate many rows on an emulated device takes longer than the training.
FEW_ROWS = {"name": "digits", "validation": 40}
FILES = ("metrics.csv", "staleness.csv", "params.safetensors")


def same(one: Result, other: Result) -> None:
    for name in FILES:
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes(), name


@needs_cuda
@pytest.mark.parametrize("changes", [
    {},
    {"window": 2, "dispatcher": {"name": "uniform", "wait": False}, "clients": {"count": 6, "batch_size": 3}},
    {"clients": {"count": 3, "batch_size": 150, "sampling": "iid"}, "model": {"hidden": [9, 5]}, "iterations": 3},
    {"clients": {"count": 30, "batch_size": 1, "partition": SHARDS}, "model": {"hidden": []}},
    {"data": {"name": "digits", "validation": 0}},
], ids=["plain", "no waiting", "large minibatches", "softmax regression", "nothing to validate on"])  # fmt: skip
def test_digits(changes: dict[str, Any], simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.cuda.queue.AT_ONCE", 3)  # so that some windows are launched after others
    server = {"name": "fasgd", "lr": 0.005}
    base = {"iterations": 200, "data": FEW_ROWS, "clients": {"count": 8, "batch_size": 8}, "server": server, **changes}
    base["evaluation"] = {"every": 7, "per_client": True}
    numpy, numba, cuda = (simulate({**base, "backend": name}) for name in ("numpy", "numba", "cuda"))
    assert cuda.summary["path"] == "queued"
    for other in (numpy, cuda, simulate({**base, "backend": "cuda", "path": "snapshots"})):
        same(numba, other)
        assert (numba.folder / "clients.csv").read_bytes() == (other.folder / "clients.csv").read_bytes()


@needs_cuda
@pytest.mark.parametrize("server", ["asgd", "fasgd", "adam"])  # which change one array to four
@pytest.mark.parametrize(("mu", "hidden"), [(1, [33]), (3, []), (4, [12, 130]), (8, [16])])
def test_rules_of_large_networks(
    server: str, mu: int, hidden: list[int], simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of networks of any size here: their widths are multiples of four, or not, and a tile may be larger than they."""
    monkeypatch.setattr("fredsim.cuda.queue.WIDE", 1)
    base = {"iterations": 30, "data": FEW_ROWS, "clients": {"count": 5, "batch_size": mu}, "model": {"hidden": hidden}}
    base["server"] = {"name": server, "lr": 0.01}
    same(simulate(base), simulate({**base, "backend": "cuda"}))


@needs_cuda
@pytest.mark.parametrize(("mu", "wide"), [(3, 512), (3, 1), (12, 512)])
def test_where_a_run_diverges(mu: int, wide: int, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some windows after the first, of those that are launched together, too."""
    monkeypatch.setattr("fredsim.cuda.queue.WIDE", wide)
    monkeypatch.setattr("fredsim.cuda.queue.AT_ONCE", 2)
    rate = {"name": "step", "base": 0.1, "every": 20, "factor": 1e5}
    clients = {"count": 3, "batch_size": mu}
    base: dict[str, Any] = {"iterations": 200, "clients": clients, "server": {"name": "asgd", "lr": rate}}
    base["model"] = {"hidden": [16, 16, 16], "init": "he"}
    numba, cuda = (simulate({**base, "backend": backend}) for backend in ("numba", "cuda"))
    assert (cuda.summary["status"], cuda.summary["path"]) == ("diverged", "queued")
    assert cuda.summary["iterations"] == numba.summary["iterations"] > 10
    same(numba, cuda)


@needs_cuda
@pytest.mark.parametrize("together", [1, 7, 50])
def test_evaluation_in_parts(together: int, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more samples than one launch can have; a part may be as long as all of them."""
    changes = {"iterations": 3, "data": {"name": "digits", "train": 60, "validation": 50}, "model": {"hidden": [5]}}
    evaluation = {"every": 1, "gradient_norm": True, "metrics": ["top5", "perplexity"]}
    changes |= {"clients": {"count": 3, "batch_size": 2}, "evaluation": evaluation}
    numba = simulate({**changes, "backend": "numba"})
    monkeypatch.setattr("fredsim.cuda.engine.EVALUATED", together)
    same(numba, simulate({**changes, "backend": "cuda"}))


@needs_cuda
@pytest.mark.parametrize(("inputs", "hidden", "samples"), [(1030, 7, 5), (9, 1040, 5), (3, 2, 1100)])
def test_more_than_a_block_can_hold(inputs: int, hidden: int, samples: int, simulate: Simulate, tmp_path: Path) -> None:
    """Of inputs, of hidden units or of samples: each more than one program takes."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((samples + 500, inputs)).astype(np.float32), rng.integers(0, 2, samples + 500)
    np.savez(tmp_path / "wide.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    base = {
        "iterations": 1,
        "data": {"name": f"npz:{tmp_path / 'wide.npz'}", "train": 4, "validation": samples},
        "model": {"hidden": [hidden]},
        "clients": {"count": 2, "batch_size": 2},
    }
    same(simulate(base), simulate({**base, "backend": "cuda"}))


@needs_cuda
@pytest.mark.parametrize("server", ["asgd", "fasgd"])
def test_mnist(server: str, simulate: Simulate, mnist_root: Path) -> None:
    del mnist_root
    base = {
        "iterations": 50,
        "data": {"name": "mnist", "train": 2000, "validation": 200},
        "clients": {"count": 4, "batch_size": 8},
        "model": {"hidden": [100]},
        "server": {"name": server, "lr": 0.01},
    }
    same(simulate(base), simulate({**base, "backend": "cuda"}))


EXCHANGES: dict[str, dict[str, Any]] = {
    "gates": {"server": {"name": "bfasgd", "lr": 0.01, "c_push": 0.3, "c_fetch": 0.3}},
    "per tensor": {
        "server": {"name": "fasgd", "lr": 0.01},
        "dispatcher": {"fetch": {"bandwidth_aware": {"c": 0.3, "per": "tensor"}}, "push": {"budget": 900.0}},
    },
    "accumulated": {"dispatcher": {"push": {"every": 3}, "dropped_push": "average"}},
    "ternary rounds": {"server": {"name": "ternary_sync", "lr": 0.05, "clip_sigma": 2.5}},
    "ternary pushes": {"compress": {"name": "ternary", "clip_sigma": 2.5}},
    "top k": {"compress": {"name": "top_k", "k": 0.1}},
    "levels": {"compress": {"name": "qsgd"}},
    "signs and what they leave": {"compress": {"name": "error_feedback_sign"}},
    "differences": {"compress": {"name": "ef21", "inner": {"name": "sign"}}},
    "local steps": {"clients": {"count": 4, "batch_size": 2, "local_steps": 2}},
    "an average": {"average": {"name": "window", "min_window": 3, "max_window": 8}},
    "a replica": {"server": {"name": "downpour", "lr": 0.1, "n_push": 2, "n_fetch": 2}},
    "diverging": {"server": {"name": "asgd", "lr": 1e20}},
}


@needs_cuda
@pytest.mark.parametrize("name", EXCHANGES)
def test_what_clients_and_servers_exchange(name: str, simulate: Simulate) -> None:
    base = {"iterations": 80, "clients": {"count": 4, "batch_size": 2}, **EXCHANGES[name]}
    one, other = simulate(base), simulate({**base, "backend": "cuda"})
    same(one, other)
    assert one.summary["digest"] == other.summary["digest"]
    assert one.summary["status"] == other.summary["status"]


@needs_cuda
def test_an_average_kept_on_the_host(simulate: Simulate) -> None:
    average = {"name": "window", "min_window": 3, "max_window": 8}
    base = {"iterations": 12, "backend": "cuda", "clients": {"count": 4, "batch_size": 2}}
    one = simulate({**base, "average": average})
    other = simulate({**base, "average": {**average, "device": "cpu"}})
    same(one, other)
    assert one.summary["experiment"] == other.summary["experiment"]


@needs_cuda
def test_a_server_of_ones_own(
    simulate: Simulate, own_server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = own_server("assert type(grad) is np.ndarray and grad.flags.c_contiguous\n")
    (tmp_path / "own_on_cuda.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    base = {"iterations": 10, "server": {"name": "own_on_cuda:Plain", "lr": 0.1}}
    same(simulate(base), simulate({**base, "backend": "cuda"}))
    same(simulate(base), simulate({**base, "backend": "cuda", "server": {"name": "asgd", "lr": 0.1}}))


WITHOUT_RATE = """
from fredsim.numerics.rules import Rule
from fredsim.servers import ElementwiseServer

def plain(theta, g):
    return theta - 0.125 * g

class Plain(ElementwiseServer):
    rule = Rule(plain)

    def coefficients(self, t, staleness):
        return ()
"""
OF_OTHER_LETTERS = WITHOUT_RATE.replace("(theta, g):", "(θ, g):\n    Δ = 0.125 * g").replace(
    "theta - 0.125 * g", "θ - Δ"
)


@needs_cuda
@pytest.mark.parametrize("text", [WITHOUT_RATE, OF_OTHER_LETTERS], ids=["ASCII", "others"])
def test_a_rule_without_coefficients(
    text: str, simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_without_rate.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    base = {"iterations": 10, "server": {"name": "own_without_rate:Plain"}}
    one, other = simulate(base), simulate({**base, "backend": "cuda"})
    assert (one.summary["path"], other.summary["path"]) == ("hand", "queued")
    same(one, other)


@needs_cuda
def test_a_recorded_run_is_verified_on_the_device(small_yaml: Path, command: Command) -> None:
    where = ("path=hand", "memory=1GB", "iterations=10", "--quiet", "--out", "out")
    assert command("run", small_yaml, *where) == (0, "", "")
    assert command("verify", "out", "--backend", "cuda")[:2] == (0, "out: same bits\n")


@needs_cuda
def test_what_a_device_cannot_do(small_yaml: Path, refused: Refused) -> None:
    for more in ("server.weight_decay=0", "server.weight_decay=0.1"):  # queued, and not
        refused("run", small_yaml, "backend=cuda", "memory=1GB", more, says=("memory is a limit of the host's",))
    refused("run", small_yaml, "backend=cuda", "path=hand", says=("path is hand; the backend cuda has no such path",))
    assert not Path("results").exists()


@pytest.fixture
def forget_modules() -> Iterator[Callable[[], None]]:
    """Let the modules of the backend be imported anew; after the test there are those again that were before it.

    Other tests change what they have imported, also what no other test has used before.
    """
    packages = ("fredsim.cuda", "cuda.bindings")

    def there() -> dict[str, Any]:
        return {name: module for name, module in sys.modules.items() if name.startswith(packages)}

    def forget() -> None:
        for name in there():
            del sys.modules[name]

    before = there()
    yield forget
    forget()
    sys.modules.update(before)
    for name in before.keys() & {*packages}:  # where modules are looked up by their names, they are attributes
        package, _, last = name.partition(".")
        setattr(sys.modules[package], last, before[name])


def test_without_what_it_needs(
    small_yaml: Path,
    refused: Refused,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    forget_modules: Callable[[], None],
) -> None:
    forget_modules()
    sys.modules["cuda.bindings"] = None  # type: ignore[assignment]
    monkeypatch.setenv("FREDSIM_EMULATE", "0")
    says = ("backend is cuda; it needs NVIDIA's cuda-bindings and NVRTC", 'pip install -c constraints.txt -e ".[cuda]"')
    refused("run", small_yaml, "backend=cuda", says=says)
    assert not Path("results").exists()
    code, out, _ = command("run", small_yaml, "backend=auto", "iterations=5")
    assert code == 0
    assert "backend: numba\n" in out


def test_without_a_compiler_nothing_is_emulated(
    small_yaml: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, forget_modules: Callable[[], None]
) -> None:
    forget_modules()
    monkeypatch.setenv("FREDSIM_EMULATE", "1")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    refused(
        "run", small_yaml, "backend=cuda", says=("FREDSIM_EMULATE is 1, but there is no C++ compiler: install g++",)
    )
    assert not Path("results").exists()


@needs_cuda
def test_what_is_damaged_in_the_cache_is_compiled_again(
    small_yaml: Path,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forget_modules: Callable[[], None],
) -> None:
    """Each compiled unit has a checksum beside it; one that is whole is not compiled again."""
    forget_modules()
    from fredsim.cuda.cache import Kept

    used, file = list[Path](), Kept.file

    def noted(self: Kept, *given: Any) -> Path:
        used.append(file(self, *given))
        return used[-1]

    monkeypatch.setattr(Kept, "file", noted)
    given = ("run", small_yaml, "backend=cuda", "iterations=1", "--quiet", "--out")
    assert command(*given, "one")[0] == 0
    assert len(used) > 3
    folder = tmp_path / "cache" / used[0].parent.name
    folder.mkdir(parents=True, mode=0o700)
    units = [(path.name, f"{path.name}.sha256") for path in used]
    for name in chain(*units):
        shutil.copy(used[0].with_name(name), folder)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in (units[0][0], units[1][1], *units[2]):
        (folder / name).write_bytes(b"damaged")
    before = {name: (folder / name).stat().st_mtime_ns for name in kept}
    monkeypatch.setattr("fredsim.jit.cache.cache_folder", lambda: tmp_path / "cache")
    forget_modules()
    assert command(*given, "other")[0] == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    written = {name for name, time in before.items() if (folder / name).stat().st_mtime_ns != time}
    assert written == {*chain(*units[:3])}


def test_places_for_what_clients_hold() -> None:
    """No place is given out again before its client has arrived, and there are no more than are live at once."""
    rng = np.random.default_rng(0)
    for wait in (True, False):
        schedule = whole_schedule(Order(rng.integers(0, 7, 300)), wait=wait)
        held, kept, places = assign_places(schedule)
        inside: dict[int, int] = {}  # what is in each place: after which event
        live = most = 0
        for event, (source, target) in enumerate(zip(schedule.begun, next_arrivals(schedule), strict=True)):
            if source >= 0:
                assert inside.pop(held[event]) == source
                live -= 1
            else:
                assert held[event] == 0
            assert (kept[event] >= 0) == (target >= 0)
            if target >= 0:
                assert kept[event] not in inside
                assert kept[event] != 0
                inside[kept[event]] = event
                live += 1
            most = max(most, live)
        assert places == most + 1
        for room in (1, 3, 100):
            windows = list(split_windows(schedule.begun, room))
            assert [begin for begin, _ in windows] == [0, *(end for _, end in windows[:-1])]
            assert windows[-1][1] == 300
            for begin, end in windows:
                assert 0 < end - begin <= room
                assert (schedule.begun[begin:end] < begin).all()
                assert end == 300 or end - begin == room or schedule.begun[end] >= begin
