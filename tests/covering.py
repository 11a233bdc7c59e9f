"""Which tests execute a line of a module, and which of them to try it with."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from difflib import SequenceMatcher
from pathlib import Path

MOST = 25.0  # seconds of tests that a mutant is tried with
LONGEST = 15.0  # seconds of a test: a longer one is left out


class Covering:
    """Which tests execute a line of a module, and how long they take."""

    def __init__(self, data: Path, log: str, module: Path, measured: Path) -> None:
        """Read coverage's data file, and what pytest printed; `measured` is this module in the measured checkout."""
        from coverage import CoverageData

        self.seconds: dict[str, float] = defaultdict(float)
        for seconds, test in re.findall(r"^([\d.]+)s (?:call|setup) +(\S+?::\w+)", log, re.M):
            self.seconds[test] += float(seconds)
        found = CoverageData(str(data))
        found.read()
        contexts = found.contexts_by_lineno(str(measured))
        source = module.read_text(encoding="utf-8")
        same = _same(source, measured.read_text("utf-8"))
        self._contexts = {new: {test for test in contexts.get(old, ()) if test} for new, old in same}
        self._functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        #: Of each test, how much of the module is executed by few others.
        self._own: dict[str, float] = defaultdict(float)
        for tests in self._contexts.values():
            for test in tests:
                self._own[test] += 1 / len(tests)

    def of(self, line: int) -> list[str]:
        """Return the tests to try a line with: those that execute little but this module first, up to MOST seconds.

        If none executes the line, those of the line before it in its function, or of the whole function; for a line
        outside a function, which is executed when the module is imported, all tests of the module.
        """
        around = [f for f in self._functions if f.lineno <= line <= (f.end_lineno or 0)]
        tests = set[str]()
        if around:
            function = max(around, key=lambda f: f.lineno)
            begin, end = function.body[0].lineno, function.end_lineno or 0
            before = [at for at in range(begin, line + 1) if self._tests(at)]
            tests = self._tests(before[-1]) if before else set().union(*map(self._tests, range(begin, end + 1)))
        tests = tests or set(self._own)
        chosen, spent = list[str](), 0.0
        for test in sorted(tests, key=lambda test: (-self._own[test] / (self.seconds[test] + 0.3), test)):
            if self.seconds[test] <= LONGEST and spent + self.seconds[test] <= MOST:
                chosen.append(test)
                spent += self.seconds[test]
        return chosen

    def _tests(self, line: int) -> set[str]:
        return self._contexts.get(line, set())


def _same(new: str, old: str) -> list[tuple[int, int]]:
    """Return the lines that two versions share: the number in the new one, and that in the old one."""
    if new == old:
        return [(line, line) for line in range(1, new.count("\n") + 2)]
    blocks = SequenceMatcher(None, new.splitlines(), old.splitlines(), autojunk=False).get_matching_blocks()
    return [(block.a + i + 1, block.b + i + 1) for block in blocks for i in range(block.size)]
