"""Imports users' modules: from the current folder, the folder of the experiment's file, or sys.path, in this order.

A folder of results may come from somebody else, and name any code. Its code is only run if this user has run the same
experiment here (fredsim.plugins.own_runs), and then as it was found that time; or if the user allows it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

from fredsim.errors import ConfigError, nearest, needs, option, warn
from fredsim.plugins.exits import note_own_code
from fredsim.plugins.failures import failing, line_of, message_of
from fredsim.plugins.from_source import from_source
from fredsim.plugins.own_runs import folders_of, note_own_run
from fredsim.plugins.references import parts_of
from fredsim.plugins.state.fingerprints import users_modules

__all__ = [
    "allow_code",
    "check_allowed",
    "check_torch",
    "closed_but",
    "code_allowed",
    "folder_kept",
    "has_file",
    "import_callable",
    "import_named",
    "imported_anew",
    "imported_before",
    "look_as_recorded",
    "look_in",
    "module_file",
    "note_import",
    "note_run",
    "parameters_of",
    "places",
    "put_places",
    "search_folders",
]

#: Whose classes and functions an experiment may name, of fredsim's own; others, such as fredsim.run, run what they are
#: told.
PARTS = ("fredsim.compressors", "fredsim.dispatchers", "fredsim.optimizers", "fredsim.servers", "fredsim.zoo")
SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)  # of modules, in the order of Python's import

#: The users' modules that were imported here first, each by what Python made when it loaded it, which another import,
#: also importlib.reload, makes anew; None: it is not known.
_imported: dict[str, Any] = {}
_contents: dict[str, str] = {}  # the digest of each one's file as it was then


@dataclass(frozen=True)
class _Places:
    """Where modules are looked up: in these folders, and before them in the current one if `here`.

    `recorded` is the folder of results that they are of, if any; if it is `closed`, importing is an error, except for
    the modules of `but`.
    """

    folders: tuple[Path, ...] = ()
    here: bool = True
    recorded: Path | None = None
    closed: bool = False
    but: frozenset[str] = frozenset()


_places = [_Places()]  # of the experiment that was opened last
_allowed: list[bool] = []  # whether the user has allowed the code of folders of results


def _real(path: str | os.PathLike[str]) -> Path:
    """Return a path from the root on and without links, as `Path.resolve`, which raises for links in a circle."""
    return Path(os.path.realpath(path))


def search_folders() -> list[Path]:
    """Return the folders in which modules are looked up before sys.path."""
    (places,) = _places
    return list(dict.fromkeys([*([Path.cwd()] if places.here else []), *places.folders]))


def look_in(*found: Path) -> None:
    """From now on look up modules in the current folder and in these, instead of those given before."""
    _places[0] = _Places(tuple(map(_real, found)))


def look_as_recorded(folder: Path, config: str) -> None:
    """From now on look up the modules of a folder of results, whose configuration has this digest, where that is safe.

    If the user has allowed it, that is the current folder and the folder itself; else, if this user has run the
    experiment here, where they were looked up then. Otherwise, importing a module is an error.
    """
    folder, before = _real(folder), folders_of(config)
    if before is not None and not _allowed:
        _places[0] = _Places(tuple(before), here=False, recorded=folder)
    else:
        _places[0] = _Places((folder, *(before or ())), recorded=folder, closed=not _allowed)


@contextmanager
def closed_but(folder: Path, names: Iterable[str]) -> Iterator[None]:
    """Within the `with` block, importing is an error, whatever is allowed, except for these modules.

    `folder` is the folder of results that is looked at.
    """
    before = _places[0]
    _places[0] = replace(before, recorded=folder, closed=True, but=frozenset(names))
    try:
        yield
    finally:
        _places[0] = before


def allow_code(allowed: bool = True) -> None:
    """Allow, or no longer allow, to run code that folders of results name."""
    _allowed[:] = [True] if allowed else []


@contextmanager
def code_allowed(allowed: bool) -> Iterator[None]:
    """Within the `with` block, allow to run code that folders of results name, or do not allow it.

    After it, modules are looked up where they were before: a run may be within another one, which calls `on_row`.
    """
    before = places()
    allow_code(allowed)
    try:
        yield
    finally:
        put_places(before)


def places() -> object:
    """Return where modules are looked up, and whether code is allowed, for another process: see `put_places`."""
    return _places[0], bool(_allowed)


def put_places(found: Any) -> None:
    """Look up modules where another process does, which has sent its `places`."""
    _places[0], allowed = found
    allow_code(allowed)


def note_run(config: str) -> None:
    """Note that the user runs an experiment with own code; not if a folder of results is only run again."""
    if _places[0].recorded is None:
        note_own_run(config, search_folders())


def check_allowed(module: str, what: str) -> None:
    """Raise ConfigError if a module must not be imported; `what` names it in the experiment."""
    (places,) = _places
    is_part = f"{module}.".startswith(tuple(f"{part}." for part in PARTS))
    if not places.closed or module in places.but or is_part:
        return
    files = _files_of(module, search_folders())
    where = ", ".join(f"{file} (SHA-256 {hashlib.sha256(file.read_bytes()).hexdigest()})" for file in files)
    if module.partition(".")[0] == "fredsim":
        where = "which is no part of an experiment, but does what it is told"
    raise ConfigError(
        f"{places.recorded} names code, {what}: {where or 'which would be looked up where Python looks'}. You have not "
        "run this experiment on this machine, and code could do anything, so it is not run; if you trust it, give "
        f"{option('allow-code', 'True')}"
    )


def _import_module(name: str) -> ModuleType:
    """Import a module, and leave the current folder and the module's own at the beginning of sys.path.

    Raises ImportError if another module of this name was imported before, and whatever the module itself raises.
    """
    top, searched = name.partition(".")[0], search_folders()
    folders = [str(folder) for folder in searched[:1]]  # a console script's path does not include the current folder
    file = _file_of(top, searched)
    if file is not None:
        folders.append(str(file.parent.parent if _is_package(file) else file.parent))
        _check_imported(name, file)
        _warn_of_another(name, searched)
    sys.path[:] = dict.fromkeys([*folders, *sys.path])
    if file is None:
        _check_elsewhere(top)
    _forget_edited(name)
    note_import(name)
    note_own_code(name if file is None else f"{name} ({file})")
    with folder_kept(), from_source():
        found = importlib.import_module(name)
    if name in _imported and _imported[name] is None:
        _imported[name] = getattr(found, "__spec__", None)
    if (content := _content_of(found)) is not None:
        _contents.setdefault(name, content)
    return found


def _forget_edited(name: str) -> None:
    """Let a module be imported anew that was imported here, and whose file was edited since, as beside a notebook.

    A module that the user has imported stays: runs with it are in processes of their own, which import the file.
    """
    before, content = _contents.get(name), _content_of(sys.modules.get(name))
    if name in sys.modules and not imported_before(name) and None not in (before, content) and before != content:
        del sys.modules[name], _contents[name]
        importlib.invalidate_caches()


def _content_of(module: ModuleType | None) -> str | None:
    """Return the SHA-256 of a module's file as it is now; None if it has none, or none any more."""
    with suppress(OSError):
        if (file := getattr(module, "__file__", None)) is not None:
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return None


def _check_elsewhere(top: str) -> None:
    """Raise ImportError if code that this user has run elsewhere would be imported from where a folder was received.

    sys.path has the current folder in a notebook, and with `python -m fredsim`.
    """
    (places,) = _places
    if places.here or top in sys.modules or (spec := importlib.util.find_spec(top)) is None:
        return
    received = [folder for folder in (Path.cwd(), places.recorded) if folder is not None]
    for file in filter(None, (spec.origin, *(spec.submodule_search_locations or ()))):
        if _real(file).parent in map(_real, received):  # not below: it may be one's own
            raise ModuleNotFoundError(f"No module named {top!r} but for {file}", name=top)


@contextmanager
def folder_kept() -> Iterator[None]:
    """Leave the current folder as it was when a `with` block ends, in which a user's code may change it."""
    before = ""
    with suppress(OSError):  # it may have been deleted
        before = os.getcwd()
    try:
        yield
    finally:
        if before:
            with suppress(OSError):  # somebody has removed it meanwhile
                os.chdir(before)


def note_import(name: str) -> None:
    """Note that a user's module is about to be imported, unless something else has imported it before."""
    if name not in sys.modules:
        _imported[name] = None
        _contents.pop(name, None)  # of one that somebody has deleted there


def has_file(name: str) -> bool:
    """Return whether a module, imported or not, can be imported in another process."""
    module = sys.modules.get(name)
    return name != "__main__" and (module is None or getattr(module, "__file__", None) is not None)


def imported_before(name: str) -> bool:
    """Return whether something else, such as the user's script, has imported a module, and may have changed it."""
    if name not in sys.modules or name not in _imported:
        return name in sys.modules
    return _imported[name] is not None and getattr(sys.modules[name], "__spec__", None) is not _imported[name]


@contextmanager
def imported_anew(names: Iterable[str]) -> Iterator[None]:
    """Within the `with` block, import these modules of a user's, and those that they use, as if for the first time.

    After it, the modules are those that they were. One without a file, such as a notebook's, stays as it is.
    """
    used = {module.__name__ for module in users_modules(map(sys.modules.get, names)) if hasattr(module, "__file__")}
    used |= {name.rpartition(".")[0] for name in used}  # the packages that they are in
    before = {name: sys.modules.pop(name) for name in used if name in sys.modules and name != "__main__"}
    noted = _imported.copy()
    try:
        yield
    finally:
        sys.modules.update(before)
        for name in before:
            if name in noted:
                _imported[name] = noted[name]
            else:
                _imported.pop(name, None)


def import_named(name: str, form: str) -> Any:
    """Return what a name such as package.module:Class refers to. Raises ConfigError, which names the `form`."""
    module_name, attribute = parts_of(name, form)
    check_allowed(module_name, name)
    with failing(lambda error: ConfigError(_why_not_imported(module_name, error))):
        module = _import_module(module_name)
    if not hasattr(module, attribute):
        callables = [n for n, v in vars(module).items() if callable(v)]
        raise ConfigError(f"module '{module_name}' has no '{attribute}'{nearest(attribute, callables)}")
    found = getattr(module, attribute)
    if module_name.partition(".")[0] == "fredsim":  # it may be another's, which this module only uses
        check_allowed(str(getattr(found, "__module__", "")), name)
    return found


def import_callable(name: str, form: str, key: str, kind: str, *, prefix: str = "") -> Callable[..., Any]:
    """Return the function or class that a name such as package.module:Class, after a `prefix`, refers to.

    Raises ConfigError, which begins with the `key` that has the name, if there is none; `kind` says what it must be.
    """
    try:
        found = import_named(name.removeprefix(prefix), form)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{key}: {name} is a {type(found).__name__}; it must be {kind}")
    function: Callable[..., Any] = found
    return function


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return a callable's parameters by name; None if Python cannot tell: of built-in ones, of C++, or Cython's."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def check_torch(key: str, name: str) -> None:
    """Raise ConfigError, which begins with the `key` that has a name, if PyTorch cannot be imported."""
    with needs(f"{key}: {name}", "PyTorch", "torch"):
        importlib.import_module("torch")


def _why_not_imported(name: str, error: BaseException) -> str:
    """Return why a module cannot be imported: where it was looked up, or the line at which it fails."""
    what = error.msg if isinstance(error, SyntaxError) else message_of(error)
    said = f"cannot import '{name}' ({type(error).__name__}: {what}"
    absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
    if absent:  # the module itself is missing, not one that it imports in turn
        where = f"{said}); it is looked up from {', '.join(map(str, search_folders()))}, and where Python looks"
        allow = option("allow-code", "True")
        return where if _places[0].here else f"{where}; if you have moved it, give {allow} to look here, too"
    return f"{said}{line_of(error).replace(' (', ', ').removesuffix(')')})"


def _file_of(part: str, where: Sequence[Path]) -> Path | None:
    """Return the file of a module or package, named without dots, in the first of the folders that has it, or None."""
    stems = (folder / stem for folder in where for stem in (Path(part, "__init__"), Path(part)))
    files = (stem.with_name(f"{stem.name}{suffix}") for stem in stems for suffix in SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def module_file(name: str) -> Path | None:
    """Return the file of the module or package that is imported under a name without dots; None: Python looks."""
    return _file_of(name, search_folders())


def _is_package(file: Path) -> bool:
    return file.name.partition(".")[0] == "__init__"


def _files_of(module: str, where: Sequence[Path]) -> list[Path]:
    """Return the files in some folders that are run if a module is imported: those of its packages, and its own."""
    found = []
    for part in module.split("."):
        file = _file_of(part, where)
        if file is not None:
            found.append(file)
        if file is None or _is_package(file):
            where = [folder / part for folder in where] if file is None else [file.parent]
        else:
            where = []
    return found


def _warn_of_another(name: str, searched: Sequence[Path]) -> None:
    """Warn if a later one of the folders has a module of this name, too, with other content, as one that is edited."""
    first, *others = [files for folder in searched if (files := _files_of(name, [folder]))]
    for files in others:
        with suppress(OSError):  # what is not used need not be readable
            if [file.read_bytes() for file in files] != [file.read_bytes() for file in first]:
                warn(
                    f"the module {name} is {first[-1]}, and not {files[-1]}, which differs: {first[-1].parent} is "
                    "looked through first; give one of them another name, if that is not what you want"
                )


def _check_imported(name: str, file: Path) -> None:
    """Raise ImportError if a module or package with the same top-level name was imported before, from other files.

    `file` is the one of the top-level name; files in other folders will do if their content is the same.
    """
    top, *inner = name.split(".")
    before = getattr(sys.modules.get(top), "__file__", None)
    if before is None or top == "fredsim" or _real(before) == _real(file) or not Path(before).is_file():
        return
    _check_same(file, Path(before), inner)


def _check_same(ours: Path | None, theirs: Path | None, inner: Sequence[str]) -> None:
    """Raise ImportError if two files differ, or the files of the modules and packages `inner`, each in the one before.

    `theirs` is the file that was, or would be, imported in place of `ours`.
    """
    if ours is None:
        return
    if theirs is None or theirs.read_bytes() != ours.read_bytes():
        other = theirs or "a package that lacks it"
        raise ImportError(f"{other} was imported before under this name; {ours} is another: give it another name")
    if inner:
        _check_same(_file_of(inner[0], [ours.parent]), _file_of(inner[0], [theirs.parent]), inner[1:])
