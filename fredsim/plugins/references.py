"""What refers to a user's code in an experiment: `package.module:Class`, in some keys after `torch:` or `python:`.

What is imported, and what is told apart, recorded and asked for, is found by this one definition.
"""

from __future__ import annotations

from fredsim.errors import ConfigError, shown

__all__ = ["identifier", "module_named", "parts_of"]

PREFIXES = ("torch:", "python:")


def parts_of(name: str, form: str) -> tuple[str, str]:
    """Return the module and the attribute of package.module:Class. Raises ConfigError, which names the `form`."""
    module, _, attribute = name.partition(":")
    if not attribute or ":" in attribute or not all(module.split(".")):
        raise ConfigError(f"'{name}' must have the form {form}")
    for part, what in (*((part, "the file") for part in module.split(".")), (attribute, "it")):
        if not part.isidentifier():
            why = f"{shown(part)} is no identifier, so Python's import statement could not name it, either"
            raise ConfigError(f"{shown(name)}: {why}; rename {what}, for example to {identifier(part)}")
    return module, attribute


def module_named(text: str) -> str | None:
    """Return the module that a text in an experiment refers to, or None if it is no reference."""
    if ":" not in text:  # most are none, and each run asks of each of its texts several times
        return None
    for name in (text, *(text.removeprefix(prefix) for prefix in PREFIXES)):
        try:
            return parts_of(name, "")[0]
        except ConfigError:
            continue
    return None


def identifier(part: str) -> str:
    """Return an identifier that is like a text."""
    found = "".join(letter if f"a{letter}".isidentifier() else "_" for letter in part)
    return found if found.isidentifier() else f"_{found}"
