"""Says how a process ended that was doing a run: what ended it, and which code of the user's it ran."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable

from fredsim.errors import SimulationError

__all__ = ["ended_early"]

#: What is behind the signals that end a process which nobody meant to end.
CRASHES = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"}


def ended_early(code: int, own: Iterable[str] = ()) -> SimulationError:
    """Return the error of a run whose process ended with an exit code, −n by the signal n; `own`: the user's modules.

    A process that is sent no task any more ends with the code 1.
    """
    what = f"the process of the run ended with exit code {code}"
    if code < 0:
        name = _name_of(-code)
        why = "compiled code has crashed" if name in CRASHES else "somebody has killed it"
        why = "killed, as the system does where memory runs out" if name == "SIGKILL" else why
        what += f" ({name}: {why})"
    files = [f"{name} ({file})" if (file := _file_of(name)) else name for name in sorted(own)]
    return SimulationError(f"{what}; it was running code of yours: {', '.join(files)}" if files else what)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _file_of(name: str) -> str:
    return str(getattr(sys.modules.get(name), "__file__", None) or "")
