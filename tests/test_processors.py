"""How many processors a run takes, on machines that are not this one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fredsim.errors import ConfigError
from fredsim.system import limits
from fredsim.system.limits import default_threads
from fredsim.system.memory import machine_memory, peak_memory, refuse_beyond_memory


@pytest.mark.parametrize(
    ("platform", "says", "expected"),
    [
        ("darwin", "4\n", 4),  # of 8, the others made to save energy
        ("darwin", "12\n", 8),
        ("darwin", "", 8),
        ("darwin", OSError("no such file"), 8),
        ("darwin", subprocess.CalledProcessError(1, "sysctl"), 8),  # all are of one kind
        ("win32", "4\n", 8),
    ],
)
def test_processors_elsewhere(platform: str, says: Any, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], **_: Any) -> Any:
        assert words[-1] == "hw.perflevel0.logicalcpu"
        if isinstance(says, Exception):
            raise says
        return subprocess.CompletedProcess(words, 0, says, "")

    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(subprocess, "run", run)
    assert default_threads() == expected


def test_processors_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 6}, raising=False)
    monkeypatch.setattr(limits, "GROUPS", Path("nowhere"))
    assert default_threads() == 3


VERSION_1 = "5:memory:/job/7\n2:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "threads", "memory"),
    [
        ("0::/\n", {}, 8, 10**12),
        ("0::/\n", {"cpu.max": "250000 100000\n", "memory.max": "5000000\n"}, 3, 5_000_000),  # in a container
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, 8, 10**12),
        ("0::/job/7\n", {"job/cpu.max": "50000 100000\n", "job/7/memory.max": "7000\n"}, 1, 7000),  # in a batch job
        ("0::/job/7\n", {"job/cpu.max": "600000 100000", "job/7/cpu.max": "150000 100000"}, 2, 10**12),
        ("0::/a:b\n", {"a:b/cpu.max": "600000 100000", "a:b/memory.max": "7000\n"}, 6, 7000),  # such a name is allowed
        (
            VERSION_1,
            {
                "memory/job/7/memory.limit_in_bytes": "9000", "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu,cpuacct/job/cpu.cfs_quota_us": "150000", "cpu,cpuacct/job/cpu.cfs_period_us": "50000",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            3,
            9000,
        ),
        ("0::/job\n", {"job/cpu.max": "much\n", "job/memory.max": ""}, 8, 10**12),
    ],
)  # fmt: skip
def test_limits_of_containers_and_jobs(
    groups: str, files: dict[str, str], threads: int, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "groups").write_text(groups, encoding="utf-8")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(limits, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(limits, "MOUNTED", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    sizes = {"SC_PHYS_PAGES": 10**12 // 4096 + 1, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", lambda name: sizes[name])
    assert default_threads() == threads
    assert machine_memory() == pytest.approx(memory, rel=1e-6)


def test_the_limit_of_a_process_on_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda what: (3000, resource.RLIM_INFINITY))
    assert machine_memory() == 3000


def test_the_most_memory_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, also where the system has no /proc: with NumPy imported it is dozens of megabytes."""
    pytest.importorskip("resource")
    monkeypatch.setattr("builtins.open", Mock(side_effect=FileNotFoundError))
    found = peak_memory()
    monkeypatch.undo()
    assert 20e6 < found < machine_memory()


@pytest.mark.parametrize(
    ("found", "given", "expected"), [("oryon-1", "", "generic"), ("oryon-1", "apple-m1", "apple-m1")]
)
def test_kernels_for_a_processor_that_llvm_cannot_compile_for(found: str, given: str, expected: str) -> None:
    program = (
        f"from llvmlite import binding; binding.get_host_cpu_name = lambda: {found!r}\n"
        "import fredsim.jit\n"
        "from numba.core.registry import cpu_target\n"
        "print(cpu_target.target_context.codegen()._get_host_cpu_name())"
    )
    environment = os.environ | ({"NUMBA_CPU_NAME": given} if given else {})
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.strip() == expected


def test_the_clock_of_kernels_elsewhere() -> None:
    program = (
        "import platform, time; platform.machine = lambda: 'riscv64'\n"
        "from numba import njit\n"
        "from fredsim.jit.processor import yield_processor, pause, ticks\n"
        "@njit\n"
        "def now():\n"
        "    pause()\n"
        "    yield_processor()\n"
        "    return ticks()\n"
        "now()\n"
        "print(time.monotonic_ns() <= now() <= time.monotonic_ns())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"


def test_few_bytes_are_not_compared_with_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limits are read from files, which takes longer than what is asked of a small run."""
    memory = Mock(return_value=2**20)
    monkeypatch.setattr("fredsim.system.memory.machine_memory", memory)
    refuse_beyond_memory(2**20 - 1, "it takes", "lower it")
    memory.assert_not_called()
    with pytest.raises(ConfigError, match=r"it takes 1\.05 MB, and this machine has 1\.05 MB of memory; lower it"):
        refuse_beyond_memory(2**20 + 1, "it takes", "lower it")
