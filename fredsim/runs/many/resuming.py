"""Decides which runs `--resume` and `reproduce` skip, and says why others are done again."""

from __future__ import annotations

import os
from pathlib import Path

from fredsim.config.experiment import Experiment
from fredsim.config.registry import code_digests
from fredsim.errors import FredsimError
from fredsim.plugins.user_code import code_changes
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import requested_files
from fredsim.runs.folder.summaries import file_changes, is_record_of
from fredsim.runs.single.prepared import model_files

__all__ = ["reason_to_run"]


def reason_to_run(folder: Path, experiment: Experiment, root: str | os.PathLike[str] | None = None) -> str | None:
    """Return why a run has to be done again; "" if the folder has no ended run of this experiment.

    Return None if it has one, finished or diverged, by the same code and with all files as the run wrote them.
    """
    result = Result(folder)
    if not result.has_ended:
        return ""
    try:
        summary = result.summary
        if summary["status"] not in {"finished", "diverged"} or not is_record_of(result, experiment):
            return ""
        if files := result.changed_files:
            return "; ".join(files)
        if code := code_changes(summary.get("code", {}), code_digests(experiment.plain())):
            return "; ".join(code)
        if read := file_changes(summary.get("model_files", {}), model_files(experiment, root)):
            return "; ".join(read)
        for name in ("config.yaml", *requested_files(experiment.plain())):
            if not (folder / name).is_file():
                return f"{folder / name} is gone"
        _ = result.metrics, result.staleness, result.params
        recorded, wanted = result.config.get("probe"), experiment.plain().get("probe")
        if wanted is not None:
            if recorded != wanted:
                return f"{folder / 'probe.csv'} is of probe: {recorded}, not of {wanted}"
            _ = result.probe
        if experiment.evaluation.per_client:
            _ = result.clients
    except FredsimError as error:
        return str(error).partition("; run the experiment again")[0]
    return None
