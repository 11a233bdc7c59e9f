"""The page of the command line, made from the command itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.main import get_command

from docs.generate.markdown import NOTE, linked, one_line, table
from fredsim.cli import app

__all__ = ["commands_page"]

ENVIRONMENT = [
    ("`FREDSIM_DATA`", "Where data files are kept, unless `--data-root` does [the user's cache]."),
    ("`FREDSIM_CACHE`", "The folder of compiled kernels [the user's cache]."),
    ("`FREDSIM_EMULATE`", "1: `backend: cuda` is compiled for the processor ([devices](../devices.md)) [0]."),
    ("`FREDSIM_STATE`", "The folder of the list of your runs with own code [the user's state]."),
]


def commands_page() -> str:
    """Return the page of every command with its arguments and options."""
    group: Any = get_command(app)
    parts = [
        NOTE,
        "# The command line",
        "`fredsim COMMAND --help` says the same. A mistake is one message and exit code 2, an interrupt exit code 130. "
        "[editors.md](../editors.md) says how a shell completes the names of commands and options.",
        _parameters(group),
        table(("environment variable", "what it says"), ENVIRONMENT),
    ]
    callbacks = {one.name or one.callback.__name__: one.callback for one in app.registered_commands if one.callback}
    for name, command in group.commands.items():
        parts += [f"## `fredsim {name}`", f"```text\n{_usage(name, command)}\n```"]
        parts += [linked(one_line(part), "../") for part in re.split(r"\n\s*\n", command.help or "")]
        parts.append(_parameters(command, callbacks[name]))
    return "\n\n".join(filter(None, parts)) + "\n"


def _usage(name: str, command: Any) -> str:
    parts = ["fredsim", name]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = parameter.name.upper() + (" …" if parameter.nargs == -1 else "")
            parts.append(word if parameter.required else f"[{word}]")
    return " ".join([*parts, "[OPTIONS]"] if any(one.param_type_name == "option" for one in command.params) else parts)


def _parameters(command: Any, callback: Any = None) -> str:
    """Return the table of a command's parameters; `callback` is its function, whose annotations give their types."""
    hints = get_type_hints(callback) if callback is not None else {}
    rows = []
    for one in command.params:
        if one.param_type_name == "argument":
            rows.append((f"`{one.name.upper()}`", "required" if one.required else "", one_line(one.help or "")))
        else:
            names = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
            value = "" if one.is_flag else f" `{one.metavar or _kind(hints[one.name])}`"
            rows.append((names + value, _default(one), one_line(one.help or "")))
    return (
        table(("argument or option", "default", "meaning"), [(a, b, linked(c, "../")) for a, b, c in rows])
        if rows
        else ""
    )


def _kind(hint: Any) -> str:
    found = {hint, *get_args(hint), *(inner for one in get_args(hint) for inner in get_args(one))}
    return "PATH" if Path in found else "INTEGER" if int in found else "FLOAT" if float in found else "TEXT"


def _default(option: Any) -> str:
    if option.default is None or option.default == "":
        return ""
    if option.is_flag:
        return "yes" if option.default else ""
    default = option.default
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
