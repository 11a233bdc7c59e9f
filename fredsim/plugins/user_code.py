"""Which version of a user's code a run used: the SHA-256 of the files of the modules that its experiment names.

For `package.module:Class` that is the file of the module, not those of modules that it imports in turn. Of a notebook,
which has none, it is the code that the experiment uses (fredsim.plugins.code_in_memory).
fredsim.config.registry.own_modules says which they are.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fredsim.errors import SimulationError
from fredsim.plugins.code_in_memory import digest_of_code
from fredsim.plugins.modules import has_file, imported_before
from fredsim.plugins.references import module_named
from fredsim.plugins.state.fingerprints import is_users

__all__ = [
    "code_changes", "digest_changes", "digests_without_files", "named_modules", "named_objects", "user_code_digests",
    "version_mismatch_error",
]  # fmt: skip

PARTS = ("server", "dispatcher", "compress", "average", "model", "loss", "problem", "evaluation")

#: By module name: the spec of its import, which tells one import from another, and the digest of its file.
_digests: dict[str, tuple[object, str | None]] = {}


def user_code_digests(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the files of modules by their names, as this process imported them.

    Those that are not imported are left out, and those without a file, such as a notebook.
    """
    digests = {}
    for name in sorted(names):
        module = sys.modules.get(name)
        if module is not None and (digest := _digest(module)) is not None:
            digests[module.__name__] = digest
    return digests


def digests_without_files(experiment: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of what a resolved experiment uses of each module that is in no file, such as a notebook."""
    names: dict[str, set[str]] = {}
    for text in _texts_of(experiment):
        module = sys.modules.get(module_named(text) or "")
        if module is not None and is_users(module) and getattr(module, "__file__", None) is None:
            names.setdefault(module.__name__, set()).add(text.rpartition(":")[2])
    return {name: digest_of_code(sys.modules[name], found) for name, found in sorted(names.items())}


def named_modules(experiment: Mapping[str, Any]) -> set[str]:
    """Return the names of the modules that a resolved experiment names, as in `package.module:Class`; not fredsim's."""
    names = map(module_named, _texts_of(experiment))
    return {name for name in names if name and name.partition(".")[0] != "fredsim"}


def _texts_of(experiment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a resolved experiment that may name code."""
    data = experiment.get("data") or {}
    own = data if str(data.get("name")).startswith(("python:", "torch:")) else data.get("augment")
    optimizer = (experiment.get("clients") or {}).get("optimizer")
    return _strings([*(experiment.get(part) for part in PARTS), own, optimizer])


def named_objects(parts: Iterable[Any]) -> list[Any]:
    """Return the user's functions and classes that parts of an experiment name, of modules that are imported."""
    found = []
    for text in _strings([*parts]):
        module = sys.modules.get(module_named(text) or "")
        if module is not None and is_users(module):
            found.append(getattr(module, text.rpartition(":")[2], None))
    return [one for one in found if one is not None]


def code_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a text for each module that differs between a recorded and a present result of `user_code_digests`."""
    new, gone = "the record has no digest of {}", "the module {} has no file here"
    return digest_changes(before, now, new, gone, "the module {} has changed")


def digest_changes(before: Mapping[str, str], now: Mapping[str, str], new: str, gone: str, changed: str) -> list[str]:
    """Return a text for each name whose digest differs; of the three texts, {} stands for the name."""
    found = []
    for name in sorted({*before, *now}):
        then, here = before.get(name), now.get(name)
        if then is None:
            found.append(new.format(name))
        elif here is None:
            found.append(gone.format(name))
        elif then != here:
            found.append(f"{changed.format(name)} (SHA-256 {then[:8]}… then, {here[:8]}… now)")
    return found


def version_mismatch_error(wanted: Mapping[str, str], found: Mapping[str, str]) -> SimulationError:
    """Return the error for a process with other versions of modules than the process that started the sweep has."""
    names = ", ".join(module for module in sorted({*wanted, *found}) if wanted.get(module) != found.get(module))
    return SimulationError(
        f"the process that does this run has another version of {names} than the one that started the sweep; "
        "restart all of them with the same files"
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in plain data, including keys, since a gate's name is one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _digest(module: ModuleType) -> str | None:
    """Return the digest of a module's file as it was at the first call, soon after the import.

    Of one that the user has imported it is that of the file now: runs are in processes of their own, which import that.
    """
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    known = _digests.get(module.__name__)
    if known is None or known[0] is not spec or (has_file(module.__name__) and imported_before(module.__name__)):
        try:
            digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
        except OSError:
            digest = None
        known = _digests[module.__name__] = spec, digest
    return known[1]
