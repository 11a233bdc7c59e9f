"""What is kept of data: the runs of one command share it, and the next command reads data by a user's class anew.

Of a file, a digest says whether it has changed; what a class reads by itself, nobody knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

__all__ = ["forget_own_data", "kept_of_own", "kept_with_data", "own_data_read_anew"]

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

_within: ContextVar[bool] = ContextVar("_within", default=False)  # whether this thread does a command

_of_own: list[functools._lru_cache_wrapper[Any]] = []
_of_any: list[functools._lru_cache_wrapper[Any]] = []


def kept_of_own(size: int) -> Callable[[Callable[..., Returned]], functools._lru_cache_wrapper[Returned]]:
    """Keep the last `size` results of a function that reads data by a user's class, until the command ends."""
    return _keeping(_of_own, size)


def kept_with_data(size: int) -> Callable[[Callable[..., Returned]], functools._lru_cache_wrapper[Returned]]:
    """Keep the last `size` results of a function of a data set; where that is a user's, until the command ends."""
    return _keeping(_of_any, size)


def _keeping(
    caches: list[functools._lru_cache_wrapper[Any]], size: int
) -> Callable[[Callable[..., Returned]], functools._lru_cache_wrapper[Returned]]:
    def keeping(function: Callable[..., Returned]) -> functools._lru_cache_wrapper[Returned]:
        cache = functools.lru_cache(size)(function)
        caches.append(cache)
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
    if any(cache.cache_info().currsize for cache in _of_own):
        for cache in (*_of_own, *_of_any):
            cache.cache_clear()
