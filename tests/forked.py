"""Calls `fredsim` in processes that are forked from one that has imported it; started as a script by `Forked`.

Such a process has done nothing but import fredsim's own modules, so it knows no user's module and no folder, as a new
one. Beginning it takes a hundredth of the second that importing them anew would take. What depends on how Python is
started, such as variables that are read while modules are imported, needs a process of its own.
"""

import atexit
import contextlib
import gc
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.scripts import Script

__all__ = ["Forked"]

#: What commands import when they need it.
MODULES = (
    "fredsim.cli", "fredsim.api", "fredsim.compute.graph_engine", "fredsim.runs.many.runner", "fredsim.runs.verify",
    "fredsim.runs.verify.verify", "fredsim.runs.single.opening", "fredsim.show.printing", "fredsim.show.progress",
    "pandas",
)  # fmt: skip


class Forked(Script):
    """The script, in a process."""

    def __init__(self, *modules: str) -> None:
        """Begin the process; it also imports these modules, if they are installed."""
        super().__init__(__file__, *MODULES, *modules)

    def __call__(self, folder: Path, *words: str, **variables: str) -> tuple[int, str]:
        """Call the command in a new process, in a folder, with environment variables; return its exit code and text."""
        code, said = self.ask(str(folder), words, variables)
        return code, said


def _serve(modules: list[str]) -> None:
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):
            import_module(name)
    gc.freeze()  # so that no collection of garbage in a process copies what was imported
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        folder, words, variables = json.loads(line)
        with tempfile.TemporaryFile() as said:
            if (process := os.fork()) == 0:
                for stream in (1, 2):
                    os.dup2(said.fileno(), stream)
                _call(folder, words, variables)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            said.seek(0)
            answers.write(json.dumps([code, said.read().decode()]) + "\n")
            answers.flush()


def _call(folder: str, words: list[str], variables: Mapping[str, str]) -> None:
    """Be `python -m fredsim` with these words, and end."""
    from fredsim import cli

    os.chdir(folder)
    os.environ.update(variables)
    sys.path[0] = folder  # where Python puts the current folder
    sys.argv[:] = ["fredsim", *words]
    code: Any = 1
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1:])
