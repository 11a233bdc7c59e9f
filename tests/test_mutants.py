"""What a mutation run changes, and which tests it tries: tests/mutants.py, tests/mutations.py."""

from pathlib import Path

import pytest

from tests import mutations
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
    """Quick tests first; of a module's own lines, and of those that nothing executes, the tests of all around."""
    coverage = pytest.importorskip("coverage")
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(f"A = 1\n{SOURCE}", encoding="utf-8")
    body, slow, branch = (
        "tests/test_one.py::test_body",
        "tests/test_one.py::test_slow",
        "tests/sub/test_two.py::test_branch",
    )
    data, file = coverage.CoverageData(str(tmp_path / "data")), str(tmp_path / "module.py")
    for test, lines in {"": [1, 2], body: [4, 6], slow: [4], branch: [4, 5]}.items():
        data.set_context(test)
        data.add_lines({file: lines})
    data.write()
    found = mutations.Covering(str(tmp_path / "data"), LOG, "module.py")
    assert found.of(6) == [body]
    assert found.of(5) == [branch]
    assert found.stages(4) == found.stages(1) == found.stages(2) == ([branch, body], [slow])
    assert found.limit([body, slow]) == 3 * 21.5 + mutations.SLACK
    monkeypatch.setattr(mutations, "MOST", 21)
    assert found.stages(4) == ([branch, body], [])
