"""Users' functions and classes that treat what they are lent oddly, or raise odd things, at every place that calls one.

A name says what is done, and where: `flat__server` gives the gradient that a server is lent another shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.made_names import made_names

__all__ = ["BENT", "PLACES", "RAISED", "changes"]

Do = Callable[[Any], Any]


class Mute(BaseException):
    """An exception whose message fails."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def _raise(error: BaseException) -> Any:
    raise error


#: What may be done to an array itself, so that its memory is read in another way, or not written any more.
BENT: dict[str, Do] = {
    "retyped": lambda a: setattr(a, "dtype", np.int32),
    "flat": lambda a: setattr(a, "shape", (a.size, 1)),
    "still": lambda a: setattr(a, "strides", (0,) * a.ndim),
    "fixed": lambda a: setattr(a.flags, "writeable", not a.flags.writeable),
}
#: What may be raised, with what an error says of it.
RAISED: dict[str, tuple[BaseException, str]] = {
    "interrupt": (KeyboardInterrupt("own"), "KeyboardInterrupt: own"),
    "exit": (SystemExit(0), "SystemExit: 0"),
    "mute": (Mute(), "Mute: (its message fails)"),
    "closed": (GeneratorExit("own"), "GeneratorExit: own"),
}
#: Ways in which nothing odd is done.
USUAL = ("usual", "unsigned")
DO: dict[str, Do] = (
    {how: lambda _: None for how in USUAL}
    | BENT
    | {name: lambda _, error=error: _raise(error) for name, (error, _) in RAISED.items()}
)


def _server(do: Do) -> type:
    class Server:
        def __init__(self, lr: float) -> None:
            self.lr = np.float32(lr)

        def init(self, params: Any, clients: int) -> None:
            self.params = params.copy()

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> None:
            self.params -= self.lr * grad
            do(grad)

    return Server


def _begun(do: Do) -> type:
    class Begun:
        def __init__(self, lr: float) -> None:
            self.lr = np.float32(lr)

        def init(self, params: Any, clients: int) -> None:
            self.params = params.copy()

        def begins(self, client_id: int, params: Any, timestamp: int) -> None:
            do(params)

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> None:
            self.params -= self.lr * grad

    return Begun


def _compressor(do: Do) -> type:
    class Compressor:
        def init(self, layout: Any, streams: Any) -> None:
            self.size = 4 * layout.size

        def compress(self, push: Any, client: int, step: int) -> tuple[Any, int]:
            sent = push.copy()
            do(push)
            return sent, self.size

    return Compressor


def _optimizer(do: Do) -> type:
    class Optimizer:
        def __init__(self, lr: float) -> None:
            self.lr = np.float32(lr)

        def begin(self, client: int, params: Any) -> None:
            pass

        def step(self, client: int, params: Any, grad: Any, k: int) -> Any:
            params -= self.lr * grad
            do(params)

    return Optimizer


def _beginner(do: Do) -> type:
    class Beginner(_optimizer(lambda _: None)):  # type: ignore[misc]
        def begin(self, client: int, params: Any) -> None:
            do(params)

    return Beginner


def _augment(do: Do) -> Callable[..., Any]:
    def augment(x: Any, _: Any) -> Any:
        do(x)
        return x

    return augment


def _metric(do: Do) -> Callable[..., Any]:
    def metric(output: Any, _: Any) -> float:
        do(output)
        return 0.5

    return metric


def _schedule(do: Do) -> Callable[..., Any]:
    def schedule(t: int) -> float:
        if t > 5:
            do(np.zeros(3, np.float32))
        return 0.1

    return schedule


MADE: dict[str, Callable[[Do], Any]] = {
    "server": _server, "begun": _begun, "compressor": _compressor, "optimizer": _optimizer, "beginner": _beginner,
    "augment": _augment, "metric": _metric, "schedule": _schedule,
}  # fmt: skip
PLACES = (*MADE,)


def _made(how: str, place: str) -> Any:
    made = MADE[place](DO[how])
    if how == "unsigned":
        made.__signature__ = 0  # so that Python cannot tell what it takes, as of a class of C++ or Cython
    return made


#: A class or function of a name is made when it is asked for.
__getattr__ = made_names(__name__, _made)


def changes(how: str, place: str) -> dict[str, Any]:
    """Return what an experiment must have for something to be done at a place."""
    name = f"{__name__}:{how}__{place}"
    own: dict[str, Any] = {"name": name, "lr": 0.05}
    local = {"local_steps": 2, "sampling": "iid", "optimizer": own}
    found: dict[str, dict[str, Any]] = {
        "server": {"server": own}, "begun": {"server": own}, "compressor": {"compress": {"name": name}},
        "optimizer": {"clients": local}, "beginner": {"clients": local}, "augment": {"data": {"augment": name}},
        "metric": {"evaluation": {"metrics": [name]}}, "schedule": {"server": {"name": "asgd", "lr": {"name": name}}},
    }  # fmt: skip
    return found[place]
