"""Scripts of the tests that answer questions: a process, a line of JSON for each question, and one for its answer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Script"]

ROOT = Path(__file__).parents[1]


class Script:
    """A script that runs in a process of its own."""

    def __init__(self, file: str, *words: str, path: str = "") -> None:
        """Begin it, with words on its command line, and with `path` in PYTHONPATH behind this checkout."""
        self._process = subprocess.Popen(
            [sys.executable, file, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), path]))},
        )

    def ask(self, *question: Any) -> Any:
        """Ask, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
