"""What lets a run leave the path `snapshots`, and how each of it is made sure of.

The faster paths apply a server's rule without calling `apply_update`, with coefficients that are formed ahead. That
gives the same bits where

- a push does what `ElementwiseServer` does, and no more (`more_than_a_rule`: any other class takes `snapshots`);
- the coefficients follow from timestamp and staleness alone (`alone`: while they are formed, a server of a user's own
  has neither parameters nor state, and each push has them formed once, in order);
- a gradient of +0 keeps the parameters where the rule says so (`check_zero_keeps`: tried out on the states that extreme
  gradients lead to).

The servers that come with fredsim are held to these by the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fredsim.errors import SimulationError
from fredsim.guarded import REAL, Adapted
from fredsim.own_lines import calling_line

if TYPE_CHECKING:
    from fredsim.servers.base import ElementwiseServer

__all__ = [
    "HIDDEN",
    "alone",
    "check_zero_keeps",
    "comes_with_fredsim",
    "form_coefficients",
    "formed_alone",
    "more_than_a_rule",
    "no_attribute",
]

#: What a class may define without doing more with a push than to apply its rule.
FREE = {
    "__init__", "__module__", "__doc__", "__qualname__", "__annotations__", "__annotate_func__", "__dict__",
    "__weakref__", "__static_attributes__", "__firstlineno__", "__repr__", "__slots__", "__annotations_cache__",
    "Hyper", "idea", "citation", "rule", "per_client", "pushes", "deviation", "v",
    "init", "initial_state", "coefficients", "rate", "take_state", "put_state",
}  # fmt: skip
#: What an instance has, and a class must not define: a property would stand between the loop and the arrays.
DATA = {"params", "timestamp", "finite", "arrays", "own", "update"}
#: Where what is hidden from a user's `coefficients` stands meanwhile.
HIDDEN = "_hidden_from_coefficients"
#: What they must not see.
UNSEEN = ("params", "arrays", "own")


def comes_with_fredsim(server: object) -> bool:
    """Return whether a server's very class is one of ours."""
    return type(server).__module__.startswith("fredsim.servers.")


def more_than_a_rule(server: ElementwiseServer, base: type) -> str:
    """Return what a started server does with a push beside applying its rule, empty where it does no more.

    `base` is the class whose push is known.
    """
    name = type(server).__name__
    known = (set(dir(base)) | DATA) - FREE
    defined = {key for cls in type(server).__mro__[: type(server).__mro__.index(base)] for key in vars(cls)}
    defined |= {key for key in vars(server) if key not in DATA and callable(getattr(base, key, None))}
    if (defined - {"fetch"}) & known or (server.rule, server.update) != server.compiled:
        return f"{name} does more with a push than apply a rule to it"
    if "fetch" in defined:
        return f"{name} hands out more than its parameters"
    if server.per_client:
        return f"{name} keeps arrays for each client"
    if getattr(server.hyper, "weight_decay", 0.0):
        return "weights decay before each step"
    return "" if server.pushes == "gradient" else f"clients push {server.pushes}"


@contextmanager
def alone(server: ElementwiseServer) -> Iterator[None]:
    """Leave a user's server without parameters and state, and without any array that is a view of these.

    Reading one of them all the same is an error (`ElementwiseServer.__getattr__`).
    """
    if comes_with_fredsim(server):
        yield
        return
    attributes = vars(server)
    arrays = [server.params, *server.arrays.values()]
    hidden = {name: value for name, value in attributes.items() if name in UNSEEN or _views(value, arrays)}
    for name in hidden:
        del attributes[name]
    attributes[HIDDEN] = hidden
    try:
        yield
    finally:
        del attributes[HIDDEN]
        attributes.update(hidden)


def formed_alone(server: ElementwiseServer, t: int, staleness: int) -> Any:
    """Return the coefficients of one push, which have seen nothing else."""
    with alone(server):
        return form_coefficients(server, t, staleness)


def form_coefficients(server: ElementwiseServer, t: int, staleness: int) -> list[np.float32]:
    """Return the coefficients of the push that makes update t + 1, as a rule takes them.

    Raises SimulationError where there are not so many as the rule takes, or one is no number; where one of a server of
    a user's own is not finite, too: of ours it ends the run as any divergence does.
    """
    names, adapted, stage = server.rule.coefficients, Adapted(server), "coefficients"
    where = f"update {t + 1} (timestamp {t})"
    found = adapted.call(stage, where, t=t, staleness=staleness)
    if not isinstance(found, tuple | list) or len(found) != len(names):
        raise adapted.broken(
            where, stage, f"returned {found!r}; the rule takes a tuple of {len(names)} ({', '.join(names)})"
        )
    with np.errstate(all="ignore"):
        result = [np.float32(x) if isinstance(x, (*REAL, np.ndarray)) and np.ndim(x) == 0 else x for x in found]
    ours = comes_with_fredsim(server)
    for name, value, given in zip(names, result, found, strict=True):
        if not isinstance(value, np.float32) or not (ours or np.isfinite(value)):
            what = f"coefficient {name} is {value} at {where}"
            rounded = f" (float32 of {given})" if value is not given and str(value) != str(given) else ""
            raise adapted.broken("", stage, f"{what}{rounded}; it must be a finite number")
    return result


def _views(value: Any, arrays: list[Any]) -> bool:
    """Return whether a value is one of the arrays or a view of one, or holds one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(_views(item, arrays) for item in value)
    return any(
        value is array or (isinstance(value, np.ndarray) and np.may_share_memory(value, array)) for array in arrays
    )


def no_attribute(server: object, name: str) -> Exception:
    """Return the error of an attribute that a server does not have, or that its coefficients must not see."""
    kind, kept = type(server), vars(server)
    state = getattr(kept.get("rule", getattr(kind, "rule", None)), "state", ())
    if HIDDEN in kept and name in {"state", *state, *kept[HIDDEN]}:
        return SimulationError(
            f"{kind.__name__}, coefficients: reads self.{name}; coefficients follow from timestamp and staleness "
            "alone, so that they can be formed ahead; use the state in the rule itself, or give the class an "
            f"apply_update{calling_line()}"
        )
    remedy = f"; the rule's state stands in self.arrays[{name!r}]" if name in state else ""
    return AttributeError(f"{kind.__name__} has no attribute {name!r}{remedy}", name=name, obj=server)


#: Gradients that lead to every kind of state: squares that overflow, vanish or are subnormal, and ordinary ones.
EXTREMES = np.array(
    [0.0, 1e-45, 1e-38, 1e-30, 1e-20, 1e-9, 1e-3, 0.3, 1.0, 40.0, 1e9, 1e18, 1.8e19, 2e19, 1e20, 1e25, 3e38], np.float32
)
SIZE = 4096


def check_zero_keeps(server: ElementwiseServer) -> None:
    """Try out what a user's rule says of gradients of +0, on copies of some parameters. Raises SimulationError."""
    if comes_with_fredsim(server) or not server.rule.zero_keeps:
        return
    rng, rule = np.random.default_rng(0), server.rule
    chosen = rng.integers(0, server.params.size, SIZE)
    theta, *state = (np.array(array)[chosen] for array in (server.params, *server.state_of(0)))
    live = np.ones(SIZE, bool)
    for t in range(12):
        for quiet in (True, False):
            g = EXTREMES[rng.integers(0, len(EXTREMES), SIZE)] * rng.choice(np.array([-1, 1], np.float32), SIZE)
            g = np.where(quiet, np.float32(0), g)
            coefficients = formed_alone(server, t, t % 3)
            with np.errstate(all="ignore"):
                results = rule.function(theta, *state, g, *coefficients)
            new, *following = (np.asarray(x, np.float32) for x in (results if rule.state else (results,)))
            moved = live & (new.view(np.uint32) != theta.view(np.uint32))
            if quiet and moved.any():
                one = int(np.argmax(moved))
                kept = ", ".join(f"{name} = {array[one]:g}" for name, array in zip(rule.state, state, strict=True))
                raise SimulationError(
                    f"{type(server).__name__}: the rule {rule.function.__name__} says zero_keeps, but a gradient of 0 "
                    f"takes a parameter from {theta[one]:g} to {new[one]:g}{f' where {kept}' if kept else ''}; "
                    "leave zero_keeps out"
                )
            live &= np.isfinite(new)
            theta, state = np.where(live, new, theta), following
