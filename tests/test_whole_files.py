"""A run's files at any moment: a full disk, a kill, a second process; nothing half written passes for a result."""

import csv
import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fredsim
from fredsim import cli
from fredsim.show.progress import LineObserver
from fredsim.simulation.record.recorder import Row
from fredsim.system.files import whole_name

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
OwnServer = Callable[..., str]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk, a write beyond these bytes of a file fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_costs_the_run_at_hand(jobs: int, small_yaml: Path, command: Command) -> None:
    """A row an iteration is too much for the file, eleven of them are not."""
    words = ("run", small_yaml, "sweep={evaluation.every: [5, 1, 25]}", "--jobs", jobs, "--quiet", "--out", "out")
    with largest_file(8192):
        code, output, messages = command(*words)
    (failed,) = (row for row in rows(Path("out/runs.csv")) if row["status"] == "failed")
    says = f"out/{failed['run']}/metrics.csv: cannot be written (File too large); make room there and run it again"
    assert (code, output, messages) == (2, "", f"error: {failed['run']} failed: {says}\n")
    assert [row["status"] for row in rows(Path("out/runs.csv"))] == ["finished", "failed", "finished"]
    assert command(*words, "--resume") == (0, "", "")
    assert [row["status"] for row in rows(Path("out/runs.csv"))] == ["finished"] * 3


def test_a_full_disk_at_the_end_of_a_run(small_yaml: Path, refused: Refused) -> None:
    """The parameters, 4840 bytes, do not fit: neither they nor a summary are there, and nothing half written is."""
    with largest_file(4096):
        refused("run", small_yaml, "--out", "out", says=("out: cannot be written (File too large); make room there",))
    assert names(Path("out")) == {"config.yaml", "metrics.csv"}


def test_a_full_disk_where_the_tables_of_a_sweep_go(small_yaml: Path, command: Command) -> None:
    words = ("run", small_yaml, "sweep={seed: [0, 1]}", "--quiet", "--out", "out")
    assert command(*words) == (0, "", "")
    before = Path("out/runs.csv").read_bytes()
    assert len(before) > Path("out/sweep.yaml").stat().st_size
    with largest_file(len(before) - 1):
        code, output, messages = command(*words, "--resume")
    assert (code, output) == (2, "")
    assert messages == "error: out/runs.csv: cannot be written (File too large); make room there and run it again\n"
    assert Path("out/runs.csv").read_bytes() == before


def test_no_room_for_what_clients_hold(small_yaml: Path, refused: Refused) -> None:
    with largest_file(2**20):
        refused("run", small_yaml, "memory=1", "path=snapshots", "--out", "out", says=(
            "has no room for 67,", "bytes of what clients hold (File too large); make room there, or raise `memory`",
        ))  # fmt: skip


class KilledError(BaseException):
    """Stands for a process that ends here."""


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a sweep of one run, and end it when a file of this name is put in place."""

    def call(source: Path, name: str) -> None:
        replace = Path.replace

        def ending(self: Path, target: Path) -> Path:
            if target.name == name:
                raise KilledError
            return replace(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", ending)
            with pytest.raises(KilledError):
                fredsim.run(source, ["sweep={seed: [0]}"], out="out")

    return call


@pytest.mark.parametrize("name", ["sweep.yaml", "runs.csv", "config.yaml"])
def test_a_kill_leaves_what_was_there(name: str, small_yaml: Path, killed: Callable[..., None]) -> None:
    fredsim.run(small_yaml, ["sweep={seed: [0]}"], out="out")
    (path,) = Path("out").rglob(name)
    before = path.read_bytes()
    killed(small_yaml, name)
    assert path.read_bytes() == before


def test_a_summary_is_written_last_and_goes_first(small_yaml: Path, killed: Callable[..., None]) -> None:
    killed(small_yaml, "summary.json")
    (config,) = Path("out").rglob("config.yaml")
    files = {"config.yaml", "metrics.csv", "params.safetensors", "staleness.csv"}
    assert {whole_name(name) for name in names(config.parent)} - {"summary.json"} == files
    (config.parent / "metrics.csv.part").touch()  # as fredsim 1.0 left it
    fredsim.run(small_yaml, ["sweep={seed: [0]}"], out="out")
    assert (config.parent / "summary.json").exists()
    assert {name for name in names(Path("out")) if whole_name(name) != name} == set()
    killed(small_yaml, "params.safetensors")
    assert not (config.parent / "summary.json").exists()


def test_rows_can_be_read_while_a_run_goes_on(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def row(self: LineObserver, given: Row) -> None:
        del self
        read = fredsim.load("out").metrics  # type: ignore[union-attr]
        seen.append((given.iteration, len(read), read["digest"].iloc[-1] == given.digest))

    monkeypatch.setattr(LineObserver, "row", row)
    monkeypatch.setattr(sys, "argv", ["fredsim", "run", str(small_yaml), "evaluation.every=20", "--out", "out"])
    with pytest.raises(SystemExit):
        cli.main()
    assert seen == [(0, 1, True), (20, 2, True), (40, 3, True), (50, 4, True)]


HELD = "while 'HELD' in os.environ:\n    __import__('time').sleep(0.01)\n"


@pytest.mark.parametrize("sweep", [(), ("sweep={seed: [0, 1, 2]}", "--jobs", "2")], ids=["a run", "a sweep"])
def test_a_second_process_is_kept_out(
    sweep: tuple[str, ...],
    small_yaml: Path,
    own_server: OwnServer,
    refused: Refused,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the first goes on, and no longer, though it was killed and its own processes take a moment to go."""
    Path("own_held.py").write_text(own_server(HELD), encoding="utf-8")
    words = ["run", str(small_yaml), "server.name=own_held:Plain", *sweep, "--quiet", "--out", "out"]
    with subprocess.Popen([sys.executable, "-m", "fredsim", *words], env=os.environ | {"HELD": "1"}) as process:
        try:
            limit = time.monotonic() + 300
            while not (found := list(Path("out").rglob("metrics.csv"))):
                assert process.poll() is None
                assert time.monotonic() < limit
                time.sleep(0.02)
            with monkeypatch.context() as patched:
                patched.setattr("fredsim.runs.folder.folders.LOCK_TIMEOUT_SECONDS", 0.0)
                says = ("out: another process writes into it", "let it end, or choose another folder by --out")
                refused(*words, says=says)
                refused("run", found[0].parent, "--out", found[0].parent, says=(f"{found[0].parent}: another process",))
        finally:
            process.kill()
    assert names(Path("out")) <= {"config.yaml", "metrics.csv", "sweep.yaml", "runs.csv"}
    assert command(*words, "--resume") == (0, "", "")


def test_a_file_system_without_locks(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once, and keeps nobody out."""
    asked: list[int] = []

    def refuse(*how: int) -> None:
        asked.extend(how[1:])
        assert len(asked) == 1
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    fredsim.run(small_yaml, ["iterations=1"], out="out")
    assert len(asked) == 1
