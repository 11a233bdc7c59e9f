"""What a mutation run changes, and which tests it tries: tests/mutants.py, covering.py, mutations.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import covering
from tests.mutants import mutants

SOURCE = """def f(a: int = 1) -> int:
    \"\"\"Return 1 < a.\"\"\"
    if a < 2 and a:
        raise ValueError(a + 1)
    return a - 1
"""


def test_each_mutant_has_one_change() -> None:
    found = {mutant.source: mutant for mutant in mutants(SOURCE)}
    lines = {tuple(source.splitlines()[i] for i in (0, 2, 4)) for source in found}
    same = ("def f(a: int=1) -> int:", "    if a < 2 and a:", "    return a - 1")
    assert lines == {
        *((head, *same[1:]) for head in ("def f(a: int=2) -> int:",)),
        *(
            (same[0], f"    if {test}:", same[2])
            for test in (
                "a <= 2 and a",
                "a >= 2 and a",
                "a < 3 and a",
                "a < 2 or a",
                "a and a",
                "a < 2 and a < 2",
                "True",
                "False",
            )
        ),
        *((*same[:2], f"    {last}") for last in ("return a + 1", "return a - 2", "pass")),
    }
    assert [mutant.line for mutant in found.values() if mutant.change == "Sub → Add"] == [5]
    assert [mutant.line for mutant in found.values() if mutant.change == "without return a - 1"] == [5]


LOG = """
2.00s call     tests/test_one.py::test_slow[1]
19.00s setup    tests/test_one.py::test_slow[2]
0.50s call     tests/test_one.py::test_body
0.10s call     tests/sub/test_two.py::test_branch
"""


def test_what_executes_a_line_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What executes little else first; of lines that nothing executes, the tests of all around; lines that moved."""
    coverage = pytest.importorskip("coverage")
    old, new = (tmp_path / name / "module.py" for name in ("old", "new"))
    for file, text in {old: f"A = 1\n{SOURCE}", new: f"A = 1\n\n{SOURCE}B = 2\n"}.items():
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
    body, slow, branch = (
        "tests/test_one.py::test_body",
        "tests/test_one.py::test_slow",
        "tests/sub/test_two.py::test_branch",
    )
    data = coverage.CoverageData(str(tmp_path / "data"))
    for test, lines in {"": [1, 2], body: [4, 6], slow: [4], branch: [4, 5]}.items():
        data.set_context(test)
        data.add_lines({str(old): lines})
    data.write()
    monkeypatch.setattr(covering, "LONGEST", 21)
    for module, further in ((old, 0), (new, 1)):
        found = covering.Covering(tmp_path / "data", LOG, module, old)
        assert found.of(6 + further) == [body]
        assert found.of(5 + further) == [branch]
        assert found.of(4 + further) == found.of(1) == found.of(2) == [branch, body, slow]
    monkeypatch.setattr(covering, "MOST", 21)
    assert found.of(5) == [branch, body]
    monkeypatch.setattr(covering, "MOST", 25)
    monkeypatch.setattr(covering, "LONGEST", 20)
    assert found.of(5) == [branch, body]


MODULE = """from functools import cache

class A:
    limit = 1 + 1

    @property
    def size(self):
        # a comment, which is not in what a mutant is written from
        return self.limit * 2

    def names(self, more=1):
        def name(i):
            return i + 3
        return [name(i) for i in range(more)]


@cache
def double(x):
    return (lambda y: y + y)(x)


class B(A):
    def __init__(self):
        super().__init__()
        self.more = 2

    @property
    def size(self):
        return super().size
"""


def test_a_mutant_of_a_function_is_put_into_its_place() -> None:
    """Also of a property, of what is defined within a function, or cached; what is done at import is not.

    Nor is a method that no longer asks for `super`: its cells are others.
    """
    pytest.importorskip("coverage")
    from tests.mutations import replaced

    changed = [replaced(MODULE, mutant.source, "a.py") for mutant in mutants(MODULE)]
    lines = [mutant.line for mutant in mutants(MODULE)]
    left_out = {at for at, change in zip(lines, changed, strict=True) if change is None}
    assert left_out == {4, 11, 24, 29}  # 11: a default's value
    assert {change.place[1:] for change in changed if change} == {
        ("A.size", 6), ("A.names", 11), ("double", 17), ("B.__init__", 23)
    }  # fmt: skip
    before: dict[str, Any] = {}
    exec(compile(MODULE, "a.py", "exec"), before)
    for mutant, change in zip(mutants(MODULE), changed, strict=True):
        if change is None:
            continue
        after: dict[str, Any] = {}
        exec(mutant.source, after)
        places = (
            (before["A"].size.fget, lambda module: module["A"]().size),
            (before["A"].names, lambda module: module["A"]().names(3)),
            (before["double"].__wrapped__, lambda module: module["double"](5)),
            (before["B"].__init__, lambda module: module["B"]().more),
        )
        for function, value in places:
            if (function.__code__.co_qualname, function.__code__.co_firstlineno) == change.place[1:]:
                right, function.__code__ = function.__code__, change.code
                before["double"].cache_clear()
                assert outcome(value, before) == outcome(value, after)
                function.__code__ = right


def outcome(function: Callable[[Any], Any], value: object) -> object:
    """Return a function's value, or what it raised."""
    try:
        return function(value)
    except Exception as error:
        return repr(error)
