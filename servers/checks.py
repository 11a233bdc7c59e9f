"""The conditions under which a server's rule may be applied without calling the server, and how each is ensured.

The fastest paths apply only the rule, with coefficients that are computed ahead. This gives the same bits if

- a push does what `ElementwiseServer` does with it, and no more (`why_whole_gradients`; any other server gets whole
  gradients);
- the coefficients depend on timestamp and staleness alone (`make_shadow`: those of a user's class are computed by its
  shadow, a second object of the class that no push ever reaches and that has neither parameters nor state);
- a gradient of +0 leaves the parameters unchanged if the rule says so, by `zero_keeps` (of users' classes only those
  with ASGD's rule θ − α·g are trusted, which does so for every finite α: `trusted_rule`).

For the servers that come with fredsim, the tests ensure these conditions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fredsim.errors import SimulationError
from fredsim.numerics.rules import Rule
from fredsim.plugins.discovery import is_built_in
from fredsim.plugins.failures import calling_line, said
from fredsim.plugins.guarded import Guarded
from fredsim.plugins.state.states import note_start

__all__ = [
    "check_initial_state",
    "form_coefficients",
    "is_shadow",
    "make_shadow",
    "no_attribute",
    "trusted_rule",
    "why_whole_gradients",
]

#: Attributes that a class may define although it does no more with a push than apply its rule.
HARMLESS = {
    "__init__", "__module__", "__doc__", "__qualname__", "__annotations__", "__annotate_func__", "__dict__",
    "__weakref__", "__static_attributes__", "__firstlineno__", "__repr__", "__slots__", "__annotations_cache__",
    "_built_in", "Hyper", "idea", "citation", "rule", "per_client", "pushes", "deviation", "v",
    "expect", "init", "initial_state", "state_names", "coefficients", "rate", "take_state", "put_state",
}  # fmt: skip
#: Attributes of instances that a class must not define: a property would hide the arrays from the loop.
INSTANCE_DATA = {"params", "timestamp", "finite", "arrays", "own", "update"}
#: The attribute in which a shadow keeps the names of the attributes that are hidden from its `coefficients`.
HIDDEN = "_hidden_from_coefficients"
#: These are always hidden; so is any other attribute that shares memory with the arrays.
ALWAYS_HIDDEN = ("params", "arrays", "own")


def why_more_than_a_rule(server: Any, base: type) -> str:
    """Return what else a started server's class does with a push than apply a rule; '' if it does nothing else.

    `base` is the class whose handling of a push is known, ElementwiseServer.
    """
    name = type(server).__name__
    known = (set(dir(base)) | INSTANCE_DATA) - HARMLESS
    defined = {key for cls in type(server).__mro__[: type(server).__mro__.index(base)] for key in vars(cls)}
    defined |= {key for key in vars(server) if key not in INSTANCE_DATA and callable(getattr(base, key, None))}
    if (defined - {"fetch"}) & known or (server.rule, server.update) != server.compiled:
        return f"{name} does more with a push than apply a rule to it"
    return f"{name} gives clients other parameters than its own" if "fetch" in defined else ""


def why_whole_gradients(server: Any, base: type) -> str:
    """Return why a started server must see whole gradients; '' if only its rule and its coefficients matter."""
    if more := why_more_than_a_rule(server, base):
        return more
    if server.per_client:
        return f"{type(server).__name__} keeps arrays for each client"
    if getattr(server.hyper, "weight_decay", 0.0):
        return "weights decay before each step"
    return "" if server.pushes == "gradient" else f"clients push {server.pushes}"


def trusted_rule(server: Any) -> Rule:
    """Return a server's rule; for a user's class with `zero_keeps` false, unless it is ASGD's."""
    rule: Rule = server.rule
    trusted = is_built_in(type(server)) or rule.function.__module__ == "fredsim.servers.asgd"
    return rule if trusted else replace(rule, zero_keeps=False)


def make_shadow(server: Any, base: type, start: Any, clients: int) -> Any:
    """Return the object that computes a server's coefficients: its shadow, or the server itself.

    It is the server itself if its class comes with fredsim, or does more with a push than apply its rule. `start` (P,)
    are the initial parameters. The shadow is made and started as the server was.
    """
    if is_built_in(type(server)) or why_more_than_a_rule(server, base):
        return server
    arguments, keywords = server.made_with
    shadow = type(server)(*arguments, **keywords)
    server.share_runtime(shadow)
    shadow.at_work = server.at_work
    shadow.init(start, clients, server.layout)
    attributes = vars(shadow)
    arrays = [shadow.params, *shadow.arrays.values()]
    hidden = [name for name, value in attributes.items() if name in ALWAYS_HIDDEN or _shares_memory(value, arrays)]
    for name in hidden:
        del attributes[name]
    attributes[HIDDEN] = hidden
    note_start(shadow)
    return shadow


def is_shadow(server: Any) -> bool:
    """Return whether a server is a shadow that `make_shadow` made."""
    return HIDDEN in vars(server)


class _GuardedShadow(Guarded):
    """A shadow whose `coefficients` may fail; its errors name the update, not the iteration."""

    signatures = {"coefficients": ("t", "staleness")}  # noqa: RUF012

    def _in_words(self, client: int | None, iteration: int) -> str:
        return f"update {iteration + 1} (timestamp {iteration})"


def form_coefficients(server: Any, t: int, staleness: int) -> list[np.float32]:
    """Return the coefficients of the push that makes update t + 1, each rounded once to float32.

    Raises SimulationError if their number is not the one that the rule takes, if one is not a number, or, for a user's
    class, if one is not finite. (With a class of fredsim's such a run diverges.)
    """
    names, stage = server.rule.coefficients, "coefficients"
    shadow, built_in = server.shadow, is_built_in(type(server))
    guarded = _GuardedShadow(shadow)
    guarded.set_event(None, t)
    if not built_in:
        shadow.timestamp = t
    found = guarded.guard(stage, lambda: shadow.coefficients(t, staleness))
    if not isinstance(found, tuple | list) or len(found) != len(names):
        what = f"returned {said(found)}; the rule takes a tuple of {len(names)} ({', '.join(names)})"
        raise guarded.error(stage, what)
    result = []
    for name, given in zip(names, found, strict=True):
        value = given if type(given) is np.float32 else _to_float32(given)
        if value is None or not (built_in or math.isfinite(value)):
            what = f"{name} is {said(given)[:40]}; it must be a number, finite in float32"
            raise guarded.error(stage, what)
        result.append(value)
    return result


def check_initial_state(server: Any, given: Any) -> None:
    """Raise SimulationError unless what `initial_state` returned are real numbers, or arrays (P,), of known names.

    A method of fredsim's that a user's class inherits may name more than that class's rule has.
    """
    known, size = server.all_state(), len(server.params)
    owner = next(cls for cls in type(server).__mro__ if "initial_state" in vars(cls))

    def refused(what: str) -> SimulationError:
        return SimulationError(f"{type(server).__name__}, initial_state: {what}")

    if not isinstance(given, Mapping):
        raise refused(f"returned {said(given)}; it must return a dict of names to numbers or arrays")
    for name, value in given.items():
        if name not in known and not is_built_in(owner):
            raise refused(f"names {said(name)}; the rule's state is {', '.join(known) or 'empty'}")
        array = np.asarray(value)
        if isinstance(value, np.ma.MaskedArray) or array.dtype.kind not in "iuf" or array.shape not in {(), (size,)}:
            found = f"{type(value).__name__} of {array.dtype} {array.shape}"
            raise refused(f"gave {said(name)} as a {found}; it must be a number, or real numbers ({size},)")


def _to_float32(given: Any) -> np.float32 | None:
    """Return a number as float32, None if the value is not a number."""
    if isinstance(given, np.ma.MaskedArray):
        return None
    number = np.asarray(given)
    with np.errstate(all="ignore"):
        return np.float32(number) if number.ndim == 0 and number.dtype.kind in "iuf" else None


def _shares_memory(value: Any, arrays: list[Any]) -> bool:
    """Return whether a value is one of the arrays, or a view of one, or a container that holds one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(_shares_memory(item, arrays) for item in value)
    return any(
        value is array or (isinstance(value, np.ndarray) and np.may_share_memory(value, array)) for array in arrays
    )


def no_attribute(server: object, name: str) -> Exception:
    """Return the error for an attribute that a server does not have, or that its `coefficients` must not read."""
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
