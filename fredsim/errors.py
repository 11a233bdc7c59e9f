"""The errors that fredsim raises on purpose, as one tree.

FredsimError            base: the command line prints the message alone and exits with code 2
├── ConfigError         an experiment, an override or a hyper-parameter is not valid
├── DataError           a data set is missing, damaged or does not fit the experiment
├── OutputError         a results folder cannot be written or read, or holds something else
├── SimulationError     a server or dispatcher broke its contract during a run; names client, iteration and stage
│   └── NoMemoryError   a run has too little memory
└── ClusterError        a Dask cluster cannot be reached, does not fit, was lost, or cannot do a task

FredsimWarning is no error: the command line prints it as a note. DeviceMemoryError is a MemoryError, of which a
run makes a NoMemoryError.
"""

from __future__ import annotations

import difflib
import functools
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fredsim.other_names import last_part, letters_of, other_name

__all__ = [
    "ClusterError",
    "ConfigError",
    "DataError",
    "DeviceMemoryError",
    "FredsimError",
    "FredsimWarning",
    "NoMemoryError",
    "OutputError",
    "SimulationError",
    "brief",
    "flow",
    "how_to_install",
    "inside",
    "nearest",
    "nearest_class",
    "needs",
    "on_command_line",
    "one_line",
    "option",
    "options_are",
    "shown",
    "visible",
    "warn",
]

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class FredsimError(Exception):
    """Base of every error that fredsim raises on purpose; its arguments are the lines of the message."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class ConfigError(FredsimError, ValueError):
    """An experiment, an override or a hyper-parameter is not valid.

    `problems` are the keys within what was refused, and what is wrong with each, if that is known.
    """

    def __init__(self, *lines: str, problems: Sequence[tuple[tuple[int | str, ...], str]] = ()) -> None:
        super().__init__(*lines)
        self.problems = problems


class DataError(FredsimError):
    """A data set is missing, damaged or does not fit the experiment."""


class OutputError(FredsimError):
    """A results folder cannot be written or read, or holds something else."""


class SimulationError(FredsimError):
    """A server or a dispatcher broke its contract during a run."""


class NoMemoryError(SimulationError):
    """A run has too little memory, of this machine or of a device."""


class ClusterError(FredsimError):
    """A Dask cluster cannot be reached, does not fit, was lost, or cannot do a task of a live run."""


class DeviceMemoryError(MemoryError):
    """A device has too little memory."""


class FredsimWarning(UserWarning):
    """Something about an experiment, its data or its results that is allowed, but probably a mistake."""


def warn(text: str) -> None:
    """Warn the user, at the line of their own code that called fredsim."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fredsim":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, FredsimWarning, stacklevel=level)


_on_command_line = False


@contextmanager
def options_are(*, on_command_line: bool) -> Iterator[None]:
    """Within a `with` block, let messages name options as the command line has them, or as Python has them.

    Otherwise it is as Python has them. It holds for all threads of the process.
    """
    global _on_command_line
    before, _on_command_line = _on_command_line, on_command_line
    try:
        yield
    finally:
        _on_command_line = before


def on_command_line() -> bool:
    """Return whether messages name options as the command line has them."""
    return _on_command_line


def option(name: str, value: str = "…") -> str:
    """Return an option as the user gives it: `--out` on the command line, in Python `out=…`, or with this value."""
    own = name.replace("-", "_") + "_" * iskeyword(name)  # from_
    return f"--{name}" if _on_command_line else f"{own}={value}"


def brief(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Let the traceback of a FredsimError end at this function: what lies within fredsim says nothing to a user."""

    @functools.wraps(function)
    def called(*arguments: Given.args, **options: Given.kwargs) -> Returned:
        try:
            return function(*arguments, **options)
        except FredsimError as error:
            error.__suppress_context__ = True  # of what another library raised; a cause of a user's own is shown
            found = error.with_traceback(None)
        raise found

    return called


def shown(value: Any) -> str:
    """Return a value as YAML writes it; of over 160 characters, only the first 100 and the last 20."""
    text = repr(value)
    text = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    return text if len(text) <= 160 else f"{text[:100]}…{text[-20:]}"


def flow(value: Any) -> str:
    """Return a value of a document as YAML writes it on one line, such as {name: asgd, lr: 0.1}."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {flow(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value) else shown(value)


def visible(text: str, keep: str = "") -> str:
    r"""Return a text in which every character that is not printable, but those in `keep`, is an escape such as \x1b.

    So no text of a folder, a file or a user's code moves the cursor of a terminal, begins a line of its own, or turns
    the direction of what follows. Characters that no encoding has, which stand in odd names of files, become escapes,
    too.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii") for one in text
    )


def how_to_install(extra: str) -> str:
    """Return the remedy for a missing package: the command that installs an extra of fredsim, where it itself is.

    A checkout that is imported as it is stays so (-e): pip would put a copy in its place, which no edit reaches.
    """
    python = shlex.quote(sys.executable or "python3")
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"  # uv's have no pip
    own = "-e " if (Path(__file__).parents[1] / "constraints.txt").is_file() else ""
    return f'in the checkout, run {pip} -c constraints.txt {own}".[{extra}]"'


@contextmanager
def needs(what: str, package: str, extra: str) -> Iterator[None]:
    """Let imports of an extra's package within a `with` block end in a ConfigError that says `what` needs it.

    An installation that is damaged, or beside versions that do not fit it, may raise anything.
    """
    try:
        yield
    except (FredsimError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if not isinstance(error, ImportError):
            reason = f"{type(error).__name__}: {reason}"
        remedy = how_to_install(extra)
        raise ConfigError(f"{what} needs {package}, which cannot be imported ({reason}); {remedy}") from None


@contextmanager
def inside(section: str, why: str = "") -> Iterator[None]:
    """Let a ConfigError name a key of `section`, such as server.n, as what it is: one of `section.inner`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"{section}.", f"{section}.inner.", 1) + why) from None


def one_line(error: BaseException) -> str:
    """Return the message of another library's error on one line."""
    return " ".join(str(error).split())


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice nearest to `word`, or None if none is near."""
    known = {choice.lower(): choice for choice in choices}
    by_letters = {letters_of(choice): choice for choice in known.values()}
    letters = letters_of(word[:100])
    if letters and letters in by_letters:
        return by_letters[letters]
    if meant := other_name(word[:100], known.values()):
        return None if " " in meant else meant
    within = [choice for choice in known.values() if choice.rpartition(".")[2] == word]
    if len(within) == 1:  # lr, of server.lr alone
        return within[0]
    short = letters.removesuffix("loss")
    if short and short in by_letters:
        return by_letters[short]
    alike = 0.5 if len(word) < 4 else 0.6  # one letter of two may be wrong
    lower = word[:100].lower()
    for found in difflib.get_close_matches(lower, known, n=3, cutoff=alike):
        # A slip of the pen leaves a word about as long: `pie` is no `copies`, though `batch` may be `batch_size`.
        shorter, longer = sorted((found, lower), key=len)
        if (
            longer.startswith(shorter)
            or longer.endswith(shorter)
            or len(longer) - len(shorter) <= max(1, len(lower) // 2)
        ):
            return known[found]
    return None


def hint(choice: str | None) -> str:
    """Return the hint `; did you mean 'x'?`, or an empty text for None."""
    return "" if choice is None else f"; did you mean '{choice}'?"


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the hint at the choice nearest to `word`, at what else does as well, or an empty text."""
    known, name = [*choices], last_part(word)
    near = closest(name, known)
    instead = "" if near else other_name(name[:100], known)
    return f"; {instead}" if instead else hint(near)


def nearest_class(name: str, choices: Iterable[str]) -> str:
    """Return the hint at the nearest choice or, for a name such as `module.Class`, at its form with a colon.

    Classes and functions of libraries such as PyTorch are none of a user's: for these it is as of their last part.
    """
    module, dot, attribute = name.rpartition(".")
    if dot and last_part(name) == name and all(part.isidentifier() for part in name.split(".")):
        return hint(f"{module}:{attribute}")
    return nearest(name, choices)
