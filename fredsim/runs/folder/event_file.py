"""events.parquet while it grows: after every write it is a complete Parquet file of the groups written so far.

Each group is followed by a footer for all groups up to it, at the end of the file, where readers look for one. The next
group is appended after that footer, and old footers stay in the file, unused. So however the process ends, everything
before the last complete footer can be read (fredsim.system.parquet_files); and cutting the file to the size that it
had after some group gives back the file of that time.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from fredsim.runs.folder.growing_files import GrowingFile
from fredsim.simulation.schedule.event_log import MOST
from fredsim.system.files import write_errors
from fredsim.system.parquet_files import MAGIC

__all__ = ["EventFile"]

#: The first GROUPS_PER_SIZE groups have FIRST_GROUP_ROWS rows each, so that a slow run that is killed loses few; the
#: next ones have twice as many, and so on.
FIRST_GROUP_ROWS, GROUPS_PER_SIZE = 2**12, 4
#: Bytes reserved for everything in a group except its values: headers and the footer.
GROUP_OVERHEAD = 2**20
#: Types stored as differences: integers mostly ascend or repeat. Other encodings would gain little.
DELTA_ENCODED = {"int32", "int64"}


class EventFile(GrowingFile):
    """The file events.parquet, which can be truncated to the end of any group."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        #: The columns' names and types (`list of …` for lists); to be set before the file is opened.
        self.columns: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        import pyarrow.parquet as pq

        self._scratch, self._scratch_path = _open_scratch()
        super().__enter__()
        self._schema = _schema(self.columns)
        if self.size:
            self._footer = pq.read_metadata(self._path)
        else:
            with write_errors(self._path):
                _, self._footer = self._group(0, None)
            self.append(self._with_footer(MAGIC))
        return self

    def __exit__(self, *exception: object) -> None:
        self._scratch.close()
        super().__exit__(*exception)

    @property
    def wanted(self) -> int:
        """How many rows the next group is to have."""
        return min(MOST, FIRST_GROUP_ROWS << int(self._footer.num_row_groups) // GROUPS_PER_SIZE)

    def write(self, columns: Mapping[str, Any], offsets: NDArray[np.int64]) -> None:
        """Append a group, given arrays (n,) by column; of a list column all values, row i from offsets[i] on."""
        import pyarrow as pa

        arrays = [_array(columns[field.name], field.type, offsets) for field in self._schema]
        with write_errors(self._path):
            content, footer = self._group(self.size, pa.Table.from_arrays(arrays, schema=self._schema))
        self._footer.append_row_groups(footer)
        self.append(self._with_footer(content))

    def _group(self, offset: int, table: Any) -> tuple[bytes, Any]:
        """Return the bytes of a group that will begin at byte `offset` of the file, and its footer. Raises OSError."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        footers: list[Any] = []
        plain = {field.name: "DELTA_BINARY_PACKED" for field in self._schema if str(field.type) in DELTA_ENCODED}
        self._scratch.truncate(0)
        self._scratch.truncate(offset + GROUP_OVERHEAD + 2 * (table.nbytes if table else 0))
        with pa.memory_map(self._scratch_path, "r+") as sink:
            writer = pq.ParquetWriter(
                sink,
                self._schema,
                use_dictionary=False,
                compression="none",
                column_encoding=plain,
                write_statistics=False,
                store_schema=False,
                metadata_collector=footers,
            )  # which writes MAGIC at the start
            sink.seek(max(offset, len(MAGIC)))
            if table is not None:
                writer.write_table(table, row_group_size=MOST)
            end = sink.tell()
            writer.close()
            sink.seek(offset)
            return sink.read(end - offset), footers[0]

    def _with_footer(self, content: bytes) -> bytes:
        """Return the content and the footer of all groups, to be written at once: a kill hardly ever separates them."""
        footer = io.BytesIO()
        self._footer.write_metadata_file(footer)
        return content + footer.getvalue()[len(MAGIC) :]


def _open_scratch() -> tuple[IO[bytes], str]:
    """Return a temporary file, deleted when it is closed, and its path: in memory if the system has such files."""
    if sys.platform != "linux":
        file = tempfile.NamedTemporaryFile(buffering=0)  # noqa: SIM115  EventFile closes it
        return file, file.name
    descriptor = os.memfd_create("events")
    return open(descriptor, "r+b", buffering=0), f"/proc/self/fd/{descriptor}"


def _schema(columns: Mapping[str, str]) -> Any:
    import pyarrow as pa

    types = {"bool": pa.bool_(), "float64": pa.float64(), "int32": pa.int32(), "int64": pa.int64()}
    types |= {f"list of {name}": pa.list_(pa.field("element", of, nullable=False)) for name, of in types.items()}
    return pa.schema([pa.field(name, types[kind], nullable=False) for name, kind in columns.items()])


def _array(values: Any, kind: Any, offsets: NDArray[np.int64]) -> Any:
    import pyarrow as pa

    if pa.types.is_list(kind):
        flat = pa.array(values.astype(kind.value_type.to_pandas_dtype()))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat, type=kind)
    return pa.array(values.astype(kind.to_pandas_dtype(), copy=False))
