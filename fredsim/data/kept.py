"""What is kept of data: the runs of one command share it, and the next command reads data by a user's class anew.

Of a file, a digest says whether it has changed; what a class reads by itself, nobody knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

__all__ = ["forget_own_data", "kept_with_data", "own_data_read_anew"]

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

_within: ContextVar[bool] = ContextVar("_within", default=False)  # whether this thread does a command

_caches: list[tuple[functools._lru_cache_wrapper[Any], bool]] = []  # each with whether it is of what reads own data


def kept_with_data(
    size: int, *, reads_own: bool = False
) -> Callable[[Callable[..., Returned]], functools._lru_cache_wrapper[Returned]]:
    """Keep the last `size` results of a function of a data set; where that is a user's, until the command ends.

    `reads_own`: the function itself reads data by a user's class.
    """

    def keeping(function: Callable[..., Returned]) -> functools._lru_cache_wrapper[Returned]:
        cache = functools.lru_cache(size)(function)
        _caches.append((cache, reads_own))
        return cache

    return keeping


def own_data_read_anew(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Let a command read data by a user's class anew, for all of its runs, and keep nothing of it when it has ended."""

    @functools.wraps(function)
    def called(*arguments: Given.args, **options: Given.kwargs) -> Returned:
        if _within.get():  # a part of a command
            return function(*arguments, **options)
        token = _within.set(True)
        forget_own_data()
        try:
            return function(*arguments, **options)
        finally:
            _within.reset(token)
            forget_own_data()

    return called


def forget_own_data() -> None:
    """Forget what was read by users' classes, and what was made of it."""
    if any(cache.cache_info().currsize for cache, reads_own in _caches if reads_own):
        for cache, _ in _caches:
            cache.cache_clear()
