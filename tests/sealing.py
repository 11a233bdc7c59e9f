"""Makes the seal of a run's record again, as a careful forger would: the digests in summary.json, and its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fredsim.config.document import read_document
from fredsim.config.experiment import config_digest
from fredsim.runs.folder.run_files import file_digests, summary_text

__all__ = ["seal"]


def seal(folder: Path, summary: Mapping[str, Any] | None = None, *, files: bool = True) -> None:
    """Write a run's summary.json with correct digests: `summary`, by default what is there.

    Without `files`, its entries `config` and `files` are left as they are.
    """
    path = folder / "summary.json"
    content = dict(json.loads(path.read_bytes()) if summary is None else summary)
    if files:
        content |= {
            "config": config_digest(read_document(folder / "config.yaml").data),
            "files": file_digests(folder),
        }
    path.write_text(summary_text(content), encoding="utf-8")
