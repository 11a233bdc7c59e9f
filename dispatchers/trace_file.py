"""Reads and checks traces, tables of which client arrived when, in CSV or Parquet files, a block of rows at a time.

Rows are counted from 0; the header of a CSV file does not count.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.dispatchers.base import DONE, STAGES
from fredsim.dispatchers.durations import LAST
from fredsim.errors import ConfigError, OutputError, one_line, shown, visible, warn
from fredsim.numerics.arrays import Integers
from fredsim.system.files import content_digest, irregular_kind
from fredsim.system.given import separator_remedy, why_unread
from fredsim.system.parquet_files import MAGIC, open_parquet

__all__ = ["COLUMNS", "ROWS", "Survey", "has_stages", "read", "recorded_staleness", "survey"]

Columns = dict[str, Any]

#: How many rows are read at once.
ROWS = 2**16
#: Columns of whole numbers, and the smallest value that each may have.
LEAST = {"client": 0, "number": 0, "begun": -1, "sent": 0, "given_up": 0, **dict.fromkeys(STAGES, 0)}
#: All columns that a trace may have.
COLUMNS = ("client", "time", *(name for name in LEAST if name != "client"), *DONE)
#: Matches names of columns of times, in lower case.
WITH_UNIT = re.compile(r"time ?[_(\[ ]?(s|sec|secs|seconds|ms|us|µs|ns)[)\]]?|timestamp|seconds").fullmatch
REMEDY = "correct it, or leave the column out"


@dataclass(frozen=True)
class Survey:
    """What is known of a whole trace: how many events it has, whether they have times, its columns, and its SHA-256.

    `impossible` says which column says what is so in no run, if one does. `first` and `last` are its first and its last
    time, in nanoseconds.
    """

    rows: int
    timed: bool
    names: frozenset[str]
    sha256: str | None
    impossible: str = ""
    first: int = 0
    last: int = 0

    @property
    def early(self) -> bool:
        """Whether the trace says which gradients were done between one event and the next."""
        return self.names.issuperset(DONE)


def survey(path: str, clients: int) -> Survey:
    """Check a whole trace of so many clients. Raises ConfigError: file, row, what is wrong, and the remedy."""
    return _survey(path, clients, content_digest(path))


@functools.lru_cache(maxsize=8)
def _survey(path: str, clients: int, digest: str | None) -> Survey:
    names, cut = _names(path)
    if "client" not in names:
        found, remedy = shown(", ".join(sorted(names)))[1:-1] or "none", separator_remedy([*names])
        remedy = remedy or "; give it one, of clients' ids"
        raise ConfigError(f"{path} has no column 'client' (columns: {found}){remedy}")
    sent: list[Integers] = []
    rows, first, last, counted = 0, 0, 0, {"iteration", "time"} <= names and "time_ns" not in names
    for raw in _raw(path, names, 0):
        part = _checked(path, raw, rows, clients)
        n = len(part["client"])
        if "time" in part:
            times = np.concatenate([[last], part["time"]])
            back = np.flatnonzero(times[1:] < times[:-1])
            if len(back):
                key = "time_ns" if "time_ns" in names else "time"
                at, now = rows + int(back[0]), raw[key][int(back[0])]
                raise ConfigError(
                    f"{path}, row {at}: {key} is {now}, less than in the row before; time never goes back"
                )
            first, last = first if rows else int(part["time"][0]), int(times[-1])
            counted = counted and bool((part["time"] == 10**9 * np.arange(rows, rows + n)).all())
        sent += [part["sent"]] if "sent" in part else []
        rows += n
    if not rows:
        raise ConfigError(f"{path} has no rows; give a row for each event")
    timed = not counted and bool(names & {"time", "time_ns"})
    _warn_of_unused(path, names)
    wrong = _wrong_sent(np.concatenate(sent), timed and has_stages(names), names) if sent else ""
    if names.issuperset(DONE) and not _is_parquet(path):
        wrong = f"column {DONE[0]}: a CSV file has no lists: give the Parquet file"
    if cut:  # only now: of what cannot be read at all there is one message
        warn(visible(cut))
    return Survey(rows, timed, names, digest, wrong, first, last)


def _warn_of_unused(path: str, names: frozenset[str]) -> None:
    """Warn of columns that are not used, and differ from one that would be by capitals or by a unit alone."""
    for name in sorted(names):
        plain = name.lower()
        if plain != name and plain in COLUMNS and plain not in names:
            warn(f"{visible(path)}: its column {shown(name)} is not used; name it {plain}")
        elif not names & {"time", "time_ns"} and WITH_UNIT(plain):
            remedy = "so that the trace is no clock; give `time` in seconds, or `time_ns`"
            warn(f"{visible(path)}: its column {shown(name)} is not used, {remedy}")


def has_stages(names: frozenset[str]) -> bool:
    """Return whether a trace of these columns says when its tasks began, were done and were received."""
    return names.issuperset(STAGES[:3]) and bool(names & {"time", "time_ns"})


def _wrong_sent(sent: Integers, staged: bool, names: frozenset[str]) -> str:
    """Return what is wrong with the numbers of gradients that were done before each row's; nothing if all is right."""
    if not staged and not names.issuperset(DONE):
        wrong = np.flatnonzero(sent != np.arange(len(sent)))
        if len(wrong):
            what = f"without {', '.join(STAGES[:3])} pushes take no time, so that it is the number of the row"
            return f"row {wrong[0]}: sent is {sent[wrong[0]]}; {what}"
        return ""
    order = np.argsort(sent, kind="stable")
    again = order[1:][np.diff(sent[order]) == 0]
    return (
        f"row {again.min()}: sent is {sent[again.min()]}, as in a row before; it counts gradients" if len(again) else ""
    )


def read(path: str, found: Survey, clients: int, start: int) -> Iterator[Columns]:
    """Yield a trace from row `start` on, in blocks of n rows.

    A block has those of these that the trace has: `client`, `number`, `begun`, `sent`, `given_up` and `time`, in
    nanoseconds, int64 (n,) each; `stages` (n, 3); and `done`, for each row a list of (client, number) of the gradients
    that were done since the event before. The last block has no rows.
    """
    row, nothing = start, {name: () for name in ("time", *LEAST) if name in found.names}
    nothing |= dict.fromkeys(DONE, ()) if found.early else {}
    for raw in chain(_raw(path, found.names, start), [nothing]):
        part = _checked(path, raw, row, clients)
        if not found.timed:
            part = {name: values for name, values in part.items() if name not in {"time", "stages"}}
        row += len(part["client"])
        yield part


def recorded_staleness(path: str, found: Survey, rows: int) -> Integers | None:
    """Return the column `staleness` of a trace's first rows; None if it is not there, or not of whole numbers."""
    name, values = "staleness", list[Any]()
    if name not in found.names:
        return None
    for raw in (_parquet if _is_parquet(path) else _csv)(path, [name], 0):
        values += list(raw[name])
        if len(values) >= rows:
            break
    numbers, wrong = _whole(values[:rows])
    return None if wrong.any() else numbers


def _names(path: str) -> tuple[frozenset[str], str]:
    """Return a trace's columns, and a warning if its end is damaged. Raises ConfigError if it is no table."""
    if kind := irregular_kind(path):
        raise ConfigError(f"cannot read {path}: it is {kind}; name a CSV or Parquet file")
    try:
        if _is_parquet(path):
            file, cut = open_parquet(path, follow=True)
            return _once(path, file.schema_arrow.names), cut
        with open(path, "rb") as content:
            if any(b"\0" in piece for piece in iter(lambda: content.read(2**20), b"")):  # NumPy may drop NUL bytes
                what = "is no Parquet file, and no CSV file, as it holds NUL bytes"
                raise ConfigError(f"{path} {what}; give a whole file")
        with open(path, newline="", encoding="utf-8-sig") as stream:  # spreadsheets write a byte order mark
            header = next(csv.reader(stream), None)
    except OutputError as error:
        raise ConfigError(f"{error}; name a CSV or Parquet file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {why_unread(path, error)}; name a CSV or Parquet file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no Parquet file, and no CSV file in UTF-8 ({error}); save it as one") from None
    if not header:
        raise ConfigError(f"{path} is empty; give a header, and a row for each event")
    return _once(path, _stripped(header)), ""


def _stripped(header: Sequence[str]) -> list[str]:
    """Return the names of a CSV file's columns; some programs write a blank behind each comma."""
    return [name.strip() for name in header]


def _once(path: str, names: Sequence[str]) -> frozenset[str]:
    """Return the names of columns. Raises ConfigError if several columns have the name of one that is used."""
    twice = [name for name in ("time", *LEAST, *DONE) if names.count(name) > 1]
    if twice:
        raise ConfigError(f"{path} has {names.count(twice[0])} columns '{twice[0]}'; keep one of them")
    return frozenset(names)


def _is_parquet(path: str) -> bool:
    with open(path, "rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def _raw(path: str, names: frozenset[str], start: int) -> Iterator[Columns]:
    """Yield the values of the columns that are used, as they are in the file, from row `start` on."""
    wanted = [name for name in ("time", *LEAST) if name in names]
    if _is_parquet(path):
        yield from _parquet(path, wanted + [name for name in DONE if names.issuperset(DONE)], start)
    else:
        yield from _csv(path, wanted, start)


def _csv(path: str, wanted: Sequence[str], start: int) -> Iterator[Columns]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            header = _stripped(next(reader))
            places, count, lines = {name: header.index(name) for name in wanted}, 0, list[list[str]]()
            for line in filter(None, reader):
                if len(line) != len(header):
                    what = f"has {len(line)} values, the header {len(header)}"
                    raise ConfigError(f"{path}, row {count}: {what}; give one of each column")
                count += 1
                if count > start:
                    lines.append(line)
                if len(lines) == ROWS:
                    yield {name: [line[place] for line in lines] for name, place in places.items()}
                    lines = []
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}, row {count}: is not of a CSV file in UTF-8 ({error}); save it as one") from None
    if lines:
        yield {name: [line[place] for line in lines] for name, place in places.items()}


def _parquet(path: str, wanted: Sequence[str], start: int) -> Iterator[Columns]:
    import pyarrow as pa

    file, _ = open_parquet(path, follow=True)
    begin, groups = 0, list[int]()
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if begin + rows > start or groups:
            groups.append(group)
        else:
            begin += rows
    try:
        for batch in file.iter_batches(ROWS, row_groups=groups, columns=wanted):
            skipped, begin = max(0, start - begin), begin + len(batch)
            if skipped < len(batch):
                yield {name: _values(batch[name].slice(skipped)) for name in wanted}
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: is damaged ({one_line(error)}); give a whole file") from None


def _values(array: Any) -> Any:
    """Return an Arrow array as a NumPy array if it has only numbers, else as a list."""
    import pyarrow as pa

    numbers = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    return array.to_numpy(zero_copy_only=False) if numbers and not array.null_count else array.to_pylist()


def _checked(path: str, raw: Mapping[str, Any], row: int, clients: int) -> Columns:
    """Convert the columns of a block of rows, the first of which is `row`. Raises ConfigError for impossible values."""

    def refuse(wrong: NDArray[np.bool_], name: str, text: str) -> None:
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise ConfigError(f"{path}, row {row + at}: {name} is {_plain(raw[name][at])}; {text}")

    part: Columns = {}
    for name, least in LEAST.items():
        if name in raw:
            numbers, wrong = _whole(_bits(raw[name]) if name == "given_up" else raw[name])
            ids = f"ids lie in 0 … {clients - 1} (clients.count)"
            refuse(wrong, name, ids if name == "client" else f"it must be a whole number; {REMEDY}")
            refuse(numbers < least, name, ids if name == "client" else f"it must be {least} or more; {REMEDY}")
            limit = {"client": clients, "number": 2**32, "sent": 2**32, "given_up": 2}.get(name, LAST)
            refuse(numbers >= limit, name, ids if name == "client" else f"it must be below {limit}; {REMEDY}")
            part[name] = numbers
    if "begun" in part:
        late = part["begun"] >= np.arange(row, row + len(part["begun"]))
        refuse(late, "begun", f"it must be an earlier event, or -1 for the initial parameters; {REMEDY}")
    stages = [part.pop(name, None) for name in STAGES]
    if stages[-1] is None and "time" in raw:
        seconds = _floats(raw["time"])
        refuse(~(np.isfinite(seconds) & (seconds >= 0)), "time", "it must be a number of seconds, 0 or more")
        refuse(seconds >= LAST / 1e9, "time", f"the clock ends after {LAST / 1e9:.0f} seconds")
        stages[-1] = np.rint(seconds * 1e9).astype(np.int64)
    if stages[-1] is not None:
        part["time"] = stages[-1]
    if all(values is not None for values in stages):
        names = (*STAGES[:3], "time_ns" if "time_ns" in raw else "time")
        for name, earlier, before, after in zip(names[1:], names, stages, stages[1:], strict=False):
            refuse(after < before, name, f"it is before {earlier}; {REMEDY}")
        part["stages"] = np.stack(stages[:3], axis=1)
    if DONE[0] in raw:
        for name, limit in zip(DONE, (clients, 2**32), strict=True):
            wrong = np.array([not _are_whole(values, limit) for values in raw[name]])
            refuse(wrong, name, f"it must be a list of whole numbers below {limit}; {REMEDY}")
        pairs = [*zip(*(raw[name] for name in DONE), strict=True)]
        unequal = np.array([len(ids or ()) != len(numbers or ()) for ids, numbers in pairs])
        refuse(unequal, DONE[1], f"it must be as long as {DONE[0]}; {REMEDY}")
        part["done"] = [[*zip(ids or (), numbers or (), strict=False)] for ids, numbers in pairs]
    return part


def _are_whole(values: Any, limit: int) -> bool:
    """Return whether this is None, or a list of whole numbers from 0 to limit − 1."""
    if values is None:
        return True
    return isinstance(values, list) and all(isinstance(value, int) and 0 <= value < limit for value in values)


def _plain(value: Any) -> str:
    """Return a value as messages show it: one of a CSV file as it is written there."""
    if isinstance(value, str) and re.fullmatch(r"[-+.\w]{1,40}", value):
        return value
    return shown(value.item() if isinstance(value, np.generic) else value)


def _plainly(values: Any) -> Any:
    """Return values with None in place of texts that only Python takes for numbers, such as 1_000."""
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    if not texts or ((joined := "".join(values)).isascii() and "_" not in joined):
        return values
    return [value if value.isascii() and "_" not in value else None for value in values]


def _floats(values: Any) -> NDArray[np.float64]:
    """Return values as numbers, NaN for those that are not numbers."""
    values = _plainly(values)
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        found = np.empty((0, 0))
    return found if found.ndim == 1 else np.array([_float(value) for value in values])  # lists are no numbers


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _bits(values: Any) -> list[Any]:
    """Return values with 1 and 0 in place of the texts true and false."""
    bits = {"true": 1, "false": 0}
    return [bits.get(value.lower(), value) if isinstance(value, str) else value for value in values]


def _whole(values: Any) -> tuple[Integers, NDArray[np.bool_]]:
    """Return values as integers, those beyond ±2⁶² as ±2⁶², which no column may have; and which are not integers."""
    values = _plainly(values)
    try:
        found = np.array(values)
        if found.dtype.kind in "iuU" and found.ndim == 1:  # texts directly, as integers over 53 bits exceed float64
            found = np.minimum(found, 2**62) if found.dtype.kind == "u" else found  # 2⁶⁴ − 1 would become −1
            return found.astype(np.int64), np.zeros(len(found), bool)
    except (TypeError, ValueError, OverflowError):
        pass
    numbers = _floats(values)
    wrong = ~np.isfinite(numbers) | (np.rint(numbers) != numbers)
    return np.clip(np.where(wrong, 0.0, numbers), -(2.0**62), 2.0**62).astype(np.int64), wrong
