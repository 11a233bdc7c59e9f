"""How many processors a run takes, on machines that are not this one."""

import os
import subprocess
import sys
from typing import Any

import pytest

from fredsim.system.processors import default_threads


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
    assert default_threads() == 3


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
