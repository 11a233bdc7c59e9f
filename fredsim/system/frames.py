"""Python's stack of frames, which is in pieces of 16 kB.

A call at the end of one takes another from the system, and gives it back when it returns. Where that happens in a loop
it takes a fifth of the time: of compiling kernels, for one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

__all__ = ["in_one_piece"]

Given = ParamSpec("Given")
Returns = TypeVar("Returns")


def _call(function: Callable[..., Any], given: Any, options: Any) -> Any:
    return function(*given, **options)


#: A frame of a megabyte, of which it uses nothing: pieces are powers of two, so that there is another one behind it.
_call_with_room = FunctionType(_call.__code__.replace(co_stacksize=2**17), globals())


def in_one_piece(function: Callable[Given, Returns]) -> Callable[Given, Returns]:
    """Return a function whose frames, and those of what it calls, are in one piece, as many as a megabyte holds."""

    @wraps(function)
    def called(*given: Given.args, **options: Given.kwargs) -> Returns:
        result: Returns = _call_with_room(function, given, options)
        return result

    return called
