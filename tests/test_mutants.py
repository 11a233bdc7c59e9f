"""What a mutation run changes: tests/mutants.py."""

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
