"""A Dask cluster of real processes, for tests."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["Cluster"]


class Cluster:
    """A scheduler and its workers, processes in the current folder."""

    def __init__(self) -> None:
        self.processes = [self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", "at.json")]
        self.address = str(json.loads(self._awaited(Path("at.json")))["address"])

    def work(self, *arguments: str, folder: str = ".", **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker, in this folder."""
        words = ("worker", self.address, "--nthreads", "1", *arguments)
        self.processes.append(self._start(*words, folder=folder, **environment))
        return self.processes[-1]

    def of_version(self, version: str) -> subprocess.Popen[bytes]:
        """Start a worker that takes its fredsim for this version."""
        other = Path("other").absolute()
        other.mkdir()
        text = f"import fredsim.system.version as it\nit.fredsim_version = lambda: {version!r}\n"
        (other / "sitecustomize.py").write_text(text, encoding="utf-8")
        return self.work(PYTHONPATH=os.pathsep.join([str(other), *filter(None, sys.path)]))

    def wait_for_workers(self, count: int) -> None:
        """Wait until there are `count` workers."""
        import distributed

        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(count)

    def _start(self, *arguments: str, folder: str = ".", **environment: str) -> subprocess.Popen[bytes]:
        with open("dask.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments, "--no-dashboard"],
                stderr=log,
                stdout=log,
                env=os.environ | environment,
                start_new_session=True,
                cwd=folder,
            )

    def _awaited(self, path: Path) -> str:
        limit = time.monotonic() + 300
        while not path.exists() or not path.read_text(encoding="utf-8").endswith("}"):
            assert time.monotonic() < limit, Path("dask.log").read_text(encoding="utf-8")
            time.sleep(0.02)
        return path.read_text(encoding="utf-8")

    def close(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
            process.wait()
