"""Does lists of runs, each list in a process that has done nothing else; started as a script by `Alone`.

The script has done one run of fredsim's own classes, so that what every run imports and reads is there, imports no
user's module, and forks a process for each list. How fredsim itself keeps runs apart is compared with that.
"""

import gc
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.scripts import Script

__all__ = ["Alone"]

WARM = {
    "name": "warm", "iterations": 1, "data": {"name": "digits"}, "clients": {"count": 1, "batch_size": 1},
    "server": {"name": "asgd", "lr": 0.1}, "backend": "numpy",
}  # fmt: skip


class Alone(Script):
    """The script, in a process."""

    def __init__(self) -> None:
        super().__init__(__file__, path=os.environ.get("PYTHONPATH", ""))

    def __call__(self, folder: Path, runs: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Do runs, one after another, in one new process whose current folder is `folder`; return their digests.

        A run has an `experiment`, the folder `out`, perhaps `resume`, and perhaps an iteration `stop_at` at which it
        stops, after which its digest is None. The digests of a sweep are a list; of a run that fails, the message.
        """
        found: list[Any] = self.ask(str(folder), list(runs))
        return found


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's class prints is no answer
    with tempfile.TemporaryDirectory() as folder:
        assert len(_digest(WARM, str(Path(folder, "run")))) == 64
    gc.freeze()  # so that no collection of garbage in a process copies what was imported
    for line in sys.stdin:
        folder, runs = json.loads(line)
        if os.fork() == 0:
            os.chdir(folder)
            answers.write(json.dumps([_digest(**run) for run in runs]) + "\n")
            answers.flush()
            os._exit(0)
        os.wait()


def _digest(experiment: Any, out: str, stop_at: int | None = None, resume: bool = False) -> Any:
    import fredsim
    from fredsim.config.sweep.expansion import expand, open_source
    from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
    from fredsim.runs.single.execution import execute

    try:
        if stop_at is not None:
            (run,) = expand(open_source(experiment), []).runs
            execute(run.experiment, Path(out), stop_at=stop_at, policy=CheckpointPolicy(1e6))
            return None
        result: fredsim.Result | fredsim.Results = fredsim.run(experiment, out=out, resume=resume)
    except fredsim.FredsimError as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(result, fredsim.Result):
        return result.summary["digest"]
    return [run.summary["digest"] for run in result]


if __name__ == "__main__":
    _serve()
