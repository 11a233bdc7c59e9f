"""Each kernel alone gives the known answers of answers.txt, on every backend."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import HAS_CUDA
from tests.vectors import make

TYPES = {"f32": np.float32, "f64": np.float64, "u32": np.uint32, "u8": np.uint8}
#: What a backend need not show: what passes from layer to layer.
INSIDE = ("logits", "errors", "activations")


def records(file: Path = make.FILE) -> Iterator[tuple[str, str, str]]:
    """Give each record's kernel, name and lines."""
    for text in file.read_text(encoding="utf-8").split("\n\n")[1:]:
        title, lines = text.split("\n", 1)
        kernel, name = title.split()
        yield kernel, name, lines


def arrays(lines: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a kernel is given, and what it must answer."""
    found: tuple[dict[str, tuple[str, list[str]]], ...] = {}, {}
    for line in lines.splitlines():
        key, kind, *words = line.removeprefix("= ").split()
        found[line.startswith("= ")].setdefault(key, (kind, []))[1].extend(words)
    given, answers = ({key: array(*value) for key, value in part.items()} for part in found)
    return given, answers


def array(kind: str, words: list[str]) -> Any:
    if kind == "word":
        return words[0]
    if kind == "int":
        return int(words[0])
    if kind == "ints":
        return np.array(words, np.int64)
    bits = np.array([int(word, 16) for word in words], f"u{np.dtype(TYPES[kind]).itemsize}")
    return bits.view(TYPES[kind])


def differing(found: Any, answer: Any) -> NDArray[np.intp]:
    """Return where two arrays differ; a NaN is like any other."""
    found, answer = np.atleast_1d(found).reshape(-1), np.atleast_1d(answer)
    assert (found.shape, found.dtype) == (answer.shape, answer.dtype)
    one, two = (np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in (found, answer))
    return np.flatnonzero((one != two) & ~((found != found) & (answer != answer)))


@cache
def driver(backend: str) -> Any:
    if backend == "numpy":
        from tests.vectors.drive_numpy import NumpyDriver

        return NumpyDriver()
    if backend == "numba":
        from tests.vectors.drive_numba import NumbaDriver

        return NumbaDriver()
    from tests.vectors.drive_cuda import CudaDriver

    return CudaDriver()


@pytest.mark.parametrize("backend", ["numpy", "numba", "cuda"])
@pytest.mark.parametrize(("kernel", "name", "lines"), [pytest.param(*r, id=f"{r[0]}-{r[1]}") for r in records()])
def test_the_known_answer(kernel: str, name: str, lines: str, backend: str) -> None:
    del name
    if backend == "cuda" and not HAS_CUDA:
        pytest.skip("there is neither a CUDA device nor a C++ compiler to emulate one")
    given, answers = arrays(lines)
    with np.errstate(all="ignore"):
        found = getattr(driver(backend), kernel)(**given)
    assert found.keys() <= answers.keys()
    assert all(key.startswith(INSIDE) for key in answers.keys() - found.keys())
    for key, value in found.items():
        assert differing(value, answers[key]).tolist() == [], key


def a_third(of: Callable[..., str], file: Path) -> Callable[..., str]:
    """Return a function that makes the first and every third record of a kind, as `of` does; a file has the others.

    `of` is given a kind, if there are several, and the record's name, before all else.
    """
    kept = {name: f"{kernel} {name}\n{lines.rstrip()}\n" for kernel, name, lines in records(file)}
    counts: Counter[str] = Counter()

    def made(*given: Any, **options: Any) -> str:
        *kind, name = [one for one in given if isinstance(one, str)]
        counts["".join(kind)] += 1
        return of(*given, **options) if counts["".join(kind)] % 3 == 1 else kept["-".join([*kind, name])]

    return made


def check_file(by: ModuleType, slow: bool, patch: pytest.MonkeyPatch, *names: str) -> None:
    """Check that a module writes its file; these functions of its make a third of their records, unless `slow`.

    The header shows that the others are what these very programs have made.
    """
    for name in () if slow else names:
        patch.setattr(by, name, a_third(getattr(by, name), by.FILE))
    is_this = by.answers() == by.FILE.read_text(encoding="utf-8")
    assert is_this, f"python -m {by.__name__} writes another file now"


def test_the_file_is_what_make_writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    check_file(make, request.config.getoption("--slow"), monkeypatch, "update", "network")
