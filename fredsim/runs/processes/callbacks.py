"""The callbacks of a run on another machine (fredsim.runs.processes.observer) as text: data, not code."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from fredsim.runs.processes.observer import Observer
from fredsim.simulation.record.recorder import Row

__all__ = ["as_text", "call", "from_text"]

_ROW = TypeAdapter(Row)
_NUMBER = TypeAdapter[int | float | None](int | float | None, config=ConfigDict(strict=True))
#: The callbacks that may come, each with its arguments' types; None stands for a number, or null.
ARGUMENTS: dict[str, tuple[type | None, ...]] = {
    "compiling": (),
    "begin": (str, None, None, None),
    "advance": (None, None, None),
    "row": (Row,),
    "note": (str,),
}


def as_text(number: int, name: str, arguments: tuple[Any, ...]) -> str:
    """Return a callback of the run with this number as text."""
    return json.dumps([number, name, [asdict(one) if isinstance(one, Row) else one for one in arguments]])


def from_text(text: Any) -> tuple[int, str, list[Any]]:
    """Return the number of a run, and the name and the arguments of its callback. Raises ValueError for other texts."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    number, name, arguments = found if isinstance(found, list) and len(found) == 3 else (None, None, None)
    if type(number) is not int or not isinstance(name, str) or not isinstance(arguments, list):
        raise ValueError(f"{text!r} is no callback")
    return number, name, arguments


def call(observer: Observer, name: str, arguments: list[Any]) -> None:
    """Call an observer. Raises ValueError unless the name is a callback's, and the arguments are of its types."""
    wanted = ARGUMENTS.get(name)
    if wanted is None or len(wanted) != len(arguments):
        raise ValueError(f"{name!r} is no callback with {len(arguments)} arguments")
    made: list[Any] = []
    for kind, value in zip(wanted, arguments, strict=True):
        if kind is str:
            if not isinstance(value, str):
                raise ValueError(f"{value!r} is no text")
            made.append(value)
        else:
            made.append((_NUMBER if kind is None else _ROW).validate_python(value))
    if name == "begin" and made[1:] == [None, None, None]:
        raise ValueError("a run begins without a length")
    getattr(observer, name)(*made)
