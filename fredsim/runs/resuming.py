"""Has a run been done? What `--resume` and `reproduce` leave out, and why they do the rest again."""

from __future__ import annotations

from pathlib import Path

from fredsim.config.experiment import Experiment
from fredsim.errors import FredsimError
from fredsim.plugins.digests import changed, own_code
from fredsim.runs.results import Result, asked_files

__all__ = ["to_do"]


def to_do(folder: Path, experiment: Experiment) -> str | None:
    """Return None where the folder holds this experiment's run, finished or diverged, with all its files.

    Else return why a run that is recorded there has to be done again, or nothing where none is.
    """
    result = Result(folder)
    if not result.has_ended:
        return ""
    try:
        summary = result.summary
        if summary.get("experiment") != experiment.digest or summary["status"] not in {"finished", "diverged"}:
            return ""
        if files := result.changed_files:
            return "; ".join(files)
        if code := changed(summary.get("code", {}), own_code(experiment.plain())):
            return "; ".join(code)
        _ = result.metrics, result.staleness, result.params
        for name in ("config.yaml", *asked_files(experiment.plain())):
            if not (folder / name).is_file():
                return f"{folder / name} is gone"
        if experiment.probe is not None:
            _ = result.probe
        if experiment.evaluation.per_client:
            _ = result.clients
    except FredsimError as error:
        return str(error).partition("; run the experiment again")[0]
    return None
