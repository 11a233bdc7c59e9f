"""Finds classes by name: servers, dispatchers, gates, compressors, averages and clients' optimizers.

A name is that of a class that comes with fredsim, one that an installed package registers in an entry-point group such
as `fredsim.servers`, or `package.module:Class` for a user's own class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, cast

import numpy as np
from pydantic import ValidationError

from fredsim.compressors import COMPRESSORS
from fredsim.config.document import Problems
from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.base import Dispatcher, Timeline
from fredsim.dispatchers.gates import GATES
from fredsim.errors import ConfigError, closest, hint, nearest, nearest_class
from fredsim.hyper import Configurable, explain, without_space
from fredsim.optimizers import OPTIMIZERS
from fredsim.plugins.failures import described, failing, line_of, message_of
from fredsim.plugins.modules import check_allowed, import_named, note_import, parameters_of
from fredsim.plugins.user_code import digests_without_files, named_modules, user_code_digests
from fredsim.servers import SERVERS
from fredsim.servers.window_average import WindowAverage

__all__ = [
    "KNOWN",
    "REQUIRED",
    "Kind",
    "argument_problems",
    "build",
    "code_digests",
    "find_class",
    "has_clock",
    "is_user_clock",
    "names_of_classes",
    "own_modules",
    "registered",
    "required_keys",
    "resolve_hyper",
]

Kind = Literal["server", "dispatcher", "gate", "compressor", "average", "optimizer"]

KNOWN: dict[Kind, Mapping[str, Any]] = {
    "server": SERVERS,
    "dispatcher": DISPATCHERS,
    "gate": GATES,
    "compressor": COMPRESSORS,
    "average": {"window": WindowAverage},
    "optimizer": OPTIMIZERS,
}
#: The methods that a class of the user must have, by kind of plugin.
REQUIRED: dict[Kind, tuple[str, ...]] = {
    "server": ("init", "apply_update"),
    "dispatcher": ("init", "choose", "hold", "release"),
    "gate": ("init", "passes"),
    "compressor": ("init", "compress"),
    "optimizer": ("begin", "step"),
}


def find_class(kind: Kind, name: str) -> type:
    """Return the class with this name. Raises ConfigError if there is none, or if it is none of this kind."""
    known = KNOWN[kind]
    if name in known:
        return cast(type, known[name])
    if kind not in REQUIRED:
        raise ConfigError(f"unknown {kind} '{name}'{nearest(name, known)} (known: {', '.join(known)})")
    if ":" in name:
        cls = import_named(name, "package.module:Class")
    else:
        points = registered(kind)
        if name not in points:
            choices = [*known, *points]
            raise ConfigError(
                f"unknown {kind} '{name}'{nearest_class(name, choices)} (known: {', '.join(choices)}, "
                "or your own as package.module:Class)"
            )
        check_allowed(points[name].module, f"{name} of an installed package")
        note_import(points[name].module)

        def failed(error: BaseException) -> ConfigError:
            return ConfigError(f"cannot load '{name}' ({type(error).__name__}: {message_of(error)}){line_of(error)}")

        with failing(failed):
            cls = points[name].load()
    if not isinstance(cls, type):
        raise ConfigError(f"'{name}' is a {type(cls).__name__}; it must be a class")
    if kind == "dispatcher" and is_user_clock(cls):
        if getattr(cls, "choose", Dispatcher.choose) is not Dispatcher.choose and not issubclass(cls, Timeline):
            what = "has a method seconds, as a clock, and a method choose, as a dispatcher without time"
            raise ConfigError(f"class '{name}' {what}; rename one of them")
        return cls
    missing = [method for method in REQUIRED[kind] if not callable(getattr(cls, method, None))]
    if missing:
        one = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        raise ConfigError(f"class '{name}' has no method '{missing[0]}'; {one} needs {', '.join(REQUIRED[kind])}")
    return cls


def names_of_classes(experiment: Mapping[str, Any]) -> dict[Kind, set[str]]:
    """Return the names of the classes that a resolved experiment uses, by kind."""
    dispatcher, compress = experiment["dispatcher"], experiment.get("compress")
    optimizer = experiment["clients"].get("optimizer")
    gates = [dispatcher.get(key) or "always" for key in ("push", "fetch")]
    return {
        "server": {experiment["server"]["name"]},
        "dispatcher": {dispatcher["name"]},
        "gate": {name for gate in gates for name in ([gate] if isinstance(gate, str) else gate)},
        "compressor": set() if compress is None else {compress["name"]},
        "optimizer": set() if optimizer is None else {optimizer["name"]},
    }


def registered(kind: Kind) -> dict[str, EntryPoint]:
    """Return the entry points of this kind that installed packages register, by name."""
    return {point.name: point for point in entry_points(group=f"fredsim.{kind}s")}


def own_modules(experiment: Mapping[str, Any]) -> set[str]:
    """Return the names of the modules of the user's, or of installed packages, that a resolved experiment names.

    It names them itself, as in `package.module:Class`, or by short names, which are those of entry points.
    """
    found = named_modules(experiment)
    for kind, names in names_of_classes(experiment).items():
        if short := {name for name in names if ":" not in name} - KNOWN[kind].keys():  # given by installed packages
            found |= {point.module for name, point in registered(kind).items() if name in short}
    return found


def code_digests(experiment: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the code that a resolved experiment names, by module: of its file, or as it is in memory.

    Of modules without a file it is what it is now: a run in this process may have begun with other code.
    """
    return user_code_digests(own_modules(experiment)) | digests_without_files(experiment)


def is_user_clock(cls: type) -> bool:
    """Return whether a user's dispatcher is a clock: it has the method `seconds`, and then needs no other."""
    return callable(getattr(cls, "seconds", None))


def has_clock(dispatcher: str) -> bool:
    """Return whether a dispatcher of this name has a clock, or may have one. Raises as `find_class` does."""
    cls = find_class("dispatcher", dispatcher)
    return issubclass(cls, Timeline) or is_user_clock(cls)


def resolve_hyper(kind: Kind, name: str, hyper: Mapping[str, Any]) -> tuple[dict[str, Any], Problems]:
    """Return the hyper-parameters with defaults filled in, and the problems found. Raises as `find_class` does."""
    cls = find_class(kind, name)
    if issubclass(cls, Configurable):
        try:
            return cls.Hyper.model_validate(dict(hyper)).model_dump(), []
        except ValidationError as error:
            return {}, explain(error, cls.Hyper)
    return dict(hyper), argument_problems(cls, hyper)


def required_keys(kind: Kind, name: str) -> list[str]:
    """Return the hyper-parameters that have no default."""
    cls = find_class(kind, name)
    if issubclass(cls, Configurable):
        return [key for key, field in cls.Hyper.model_fields.items() if field.is_required()]
    return [str(key) for (key,), _ in argument_problems(cls, {})]


def argument_problems(
    function: Callable[..., Any], hyper: Mapping[str, Any], supplied: Collection[str] = (), remedy: str = ""
) -> Problems:
    """Return what is wrong with a callable's keyword arguments: unknown ones, and required ones that are missing.

    It also gets those in `supplied`. One that is missing is not named if an unknown one probably means it. `remedy`
    follows the message of one that is missing. Of a callable that does not say what it takes, nothing is wrong before
    it is called.
    """
    parameters = parameters_of(function)
    if parameters is None:
        return []
    nearest_keys: dict[str, str | None] = {}  # by unknown key, the known one that is near
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        nearest_keys = {key: closest(key.partition(":")[0], parameters) for key in hyper if key not in parameters}
    known = ", ".join(parameters) or "none"
    problems: Problems = [
        ((key,), f"unknown key{without_space({key: hyper[key]}) or f'{hint(near)} (known: {known})'}")
        for key, near in nearest_keys.items()
    ]
    named = {key for key, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    required = {key for key in named if parameters[key].default is inspect.Parameter.empty} - {*hyper, *supplied}
    missing = [key for key in parameters if key in required - {*nearest_keys.values()}]
    return problems + [((key,), f"is required{remedy}") for key in missing]


def build(kind: Kind, name: str, hyper: Mapping[str, Any]) -> Any:
    """Return a new instance. Raises ConfigError as `find_class` does, and if the constructor fails."""
    cls = find_class(kind, name)

    def failed(error: BaseException) -> ConfigError:
        return ConfigError(f"{kind}: {name}({', '.join(hyper)}) failed: {described(error)}")

    with failing(failed, ConfigError), np.errstate(all="ignore"):  # an overflow here will show in the run
        return cls(**hyper)
