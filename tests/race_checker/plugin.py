"""`python -m pytest -n 0 -p tests.race_checker.plugin FILES` fails if a kernel that these tests launch has a fault."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.race_checker.checked import CheckedEmulation

os.environ["FREDSIM_EMULATE"] = "1"  # before anything of fredsim is imported


class Checks:
    """Lets the tests of a session compute on a checked device."""

    def __init__(self) -> None:
        from tests.race_checker.checked import as_the_machine

        self._done = ExitStack()
        self._machine: CheckedEmulation = self._done.enter_context(as_the_machine())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let the session fail."""
        if self._machine.found():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was found."""
        found = self._machine.found()
        terminalreporter.section(f"{len(self._machine.ran())} kernels checked, {len(found)} faults")
        for kernel, fault, example in found:
            terminalreporter.line(f"{kernel}: {fault} ({example})")

    def pytest_unconfigure(self) -> None:
        """Let tests be over."""
        self._done.close()


def pytest_configure(config: pytest.Config) -> None:
    """Check this session."""
    config.pluginmanager.register(Checks())
