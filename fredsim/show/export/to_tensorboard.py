"""Exports runs to TensorBoard: a folder with an event file each, written by its own library, without TensorFlow.

A run's file always has the same name and bytes, so that exporting a run again replaces it by the same file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.text import metadata as text
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

from fredsim.errors import OutputError
from fredsim.numerics.arrays import LARGEST
from fredsim.show.export.recorded import ExportedRun, as_text
from fredsim.show.tables import Table
from fredsim.system.files import read_bytes, write_atomic, write_errors

__all__ = ["FILE", "write"]

# The name and the first record that TensorBoard's own writer uses, but without the time, the machine and the process.
FILE = "events.out.tfevents.0000000000.fredsim"
VERSION = "brain.Event:2"
ENDS = {"finished": api_pb2.STATUS_SUCCESS, "diverged": api_pb2.STATUS_FAILURE}


def write(runs: Sequence[ExportedRun], output: Path) -> Iterator[tuple[str, str]]:
    """Write each run's event file into its folder below `output`; yield its name and what was done (see `export`).

    Raises OutputError if a run's folder has event files of another program, or if it cannot be written.
    """
    for run in runs:
        others = sorted(path.name for path in (output / run.name).glob("*tfevents*") if path.name != FILE)
        if others:
            what = f"holds event files that fredsim export did not write ({others[0]})"
            raise OutputError(
                f"{output / run.name}: {what}; TensorBoard would show both as one run: name another folder"
            )
    for run in runs:
        path, content = output / run.name / FILE, _content(run)
        with write_errors(path):
            before = read_bytes(path) if path.is_file() and not path.is_symlink() else None
            if before != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, content)
        yield run.name, "new" if before is None else "unchanged" if before == content else "replaced"


def _content(run: ExportedRun) -> bytes:
    """Return the content of a run's event file."""
    buffer = BytesIO()
    writer = RecordWriter(buffer)
    kept, lost = run.without(lambda value: math.isfinite(value) and abs(value) > LARGEST, "it exceeds float32")
    events = [event_pb2.Event(file_version=VERSION), _hyper_parameters(run), _facts({**run.facts, **lost})]
    for name, points in kept.items():
        for step, seconds, value in points:  # as float32, since TensorBoard's server does not show doubles
            events.append(_event(summary_pb2.Summary.Value(tag=name, simple_value=value), step=step, seconds=seconds))
    ended = plugin_data_pb2.SessionEndInfo(
        status=ENDS.get(run.status, api_pb2.STATUS_UNKNOWN), end_time_secs=run.seconds
    )
    events.append(_event(_session(hparams.SESSION_END_INFO_TAG, session_end_info=ended), seconds=run.seconds))
    for event in events:
        writer.write(event.SerializeToString(deterministic=True))
    return buffer.getvalue()


def _event(value: Any, step: int = 0, seconds: float = 0.0) -> Any:
    return event_pb2.Event(wall_time=seconds, step=step, summary=summary_pb2.Summary(value=[value]))


def _session(tag: str, **data: Any) -> Any:
    """Return a value for the HParams dashboard; its own function would write mappings in a random order."""
    held = plugin_data_pb2.HParamsPluginData(version=hparams.PLUGIN_DATA_VERSION, **data)
    metadata = summary_pb2.SummaryMetadata()
    metadata.plugin_data.plugin_name = hparams.PLUGIN_NAME
    metadata.plugin_data.content = held.SerializeToString(deterministic=True)
    return summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=hparams.NULL_TENSOR)


def _hyper_parameters(run: ExportedRun) -> Any:
    """Return the event that begins a session of the HParams dashboard."""
    started = plugin_data_pb2.SessionStartInfo(group_name=run.name, start_time_secs=0.0)
    for key, value in run.params.items():
        if isinstance(value, bool):
            started.hparams[key].bool_value = value
        elif isinstance(value, int | float) and math.isfinite(value):
            started.hparams[key].number_value = value
        else:
            started.hparams[key].string_value = as_text(value)
    return _event(_session(hparams.SESSION_START_INFO_TAG, session_start_info=started))


def _facts(facts: Mapping[str, str]) -> Any:
    """Return the event with the text `summary`, a Markdown table of a run's facts."""
    table = Table([{"key": key, "value": value} for key, value in facts.items()]).markdown().removesuffix("\n")
    tensor = tensor_util.make_tensor_proto(np.array(table.encode(), dtype=object))
    metadata = text.create_summary_metadata(display_name="", description="")
    return _event(summary_pb2.Summary.Value(tag="summary", tensor=tensor, metadata=metadata))
