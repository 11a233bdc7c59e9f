"""What a command was given, and how one would type it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

__all__ = ["given_words", "typed"]


def given_words(context: typer.Context) -> dict[str, Any]:
    """Return what the command was given, by parameter, without what has its default."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name: context.params[name] for name, found in sources.items() if found and found.name == "COMMANDLINE"}


def typed(context: typer.Context, given: dict[str, Any]) -> str:
    """Return a command with these parameters, as one would type it: folders are written one way."""
    words = ["fredsim", str(context.info_name)]
    for parameter in context.command.params:
        value = given.get(str(parameter.name))
        if isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        elif value is not None:
            option = [] if parameter.param_type_name == "argument" else parameter.opts[:1]
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [*option, str(one)]
    return shlex.join(words)
