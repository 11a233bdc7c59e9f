"""Change servers, dispatchers and the loop, one small thing at a time, and list the changes that no test notices.

    coverage run -m pytest -n 2 --durations=0 > tests.log; coverage combine
    python -m tests.mutations tests.log [MODULE …] [--share 0.1] [--seed 0] [--jobs 2] [--out FILE]

The first run of the tests says which of them execute each line, and how long they take. Of each module's mutants
(tests/mutants.py) a random share is tried: a mutant is written into a copy of this checkout, where the tests that
execute its line run, fastest first, in forks of a process that has imported the libraries. Linux and macOS only.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
MODULES = ("servers", "dispatchers", "dispatchers/gates", "fredsim/simulation", "fredsim/compressors")
LIBRARIES = ("hypothesis", "matplotlib", "numba", "pandas", "pyarrow.parquet", "pydantic", "pytest", "rich",
             "ruamel.yaml", "safetensors.numpy", "typer")  # fmt: skip
FIRST = 20  # seconds of tests that run first …
FILES = 4  # … from so many files at most
MOST = 240  # seconds of tests that a mutant is tried with
SLACK = 90  # seconds that a fork may take besides, to collect tests and to compile a changed rule
WRITTEN = itertools.count(1)  # a number for each source that is written
MEMORY = 12 * 2**30  # the limit of a fork's memory: a mutant might allocate all that there is


class Covering:
    """Which tests execute a line of a module, and how long they take."""

    def __init__(self, data: str, log: str, module: str) -> None:
        """Read coverage's data file, and what pytest printed."""
        from coverage import CoverageData

        self._seconds: dict[str, float] = defaultdict(float)
        for seconds, test in re.findall(r"^([\d.]+)s (?:call|setup) +(\S+?::\w+)", log, re.M):
            self._seconds[test] += float(seconds)
        found = CoverageData(data)
        found.read()
        if str(ROOT / module) not in found.measured_files():
            raise SystemExit(f"{data}: does not measure {ROOT / module}; run the tests with coverage in this checkout")
        measured = found.contexts_by_lineno(str(ROOT / module))
        self._tests = {line: set(filter(None, contexts)) for line, contexts in measured.items()}
        tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
        self._functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]

    def of(self, line: int) -> list[str]:
        """Return the tests that execute a line, fastest first.

        If none does, those of the line before it in its function, or of the whole function; for a line outside a
        function, which is executed when the module is imported, all tests of the module.
        """
        around = [f for f in self._functions if f.lineno <= line <= (f.end_lineno or 0)]
        tests = set[str]()
        if around:
            function = max(around, key=lambda f: f.lineno)
            begin, end = function.body[0].lineno, function.end_lineno or 0
            before = [at for at in range(begin, line + 1) if self._tests.get(at)]
            tests = self._tests[before[-1]] if before else set().union(*map(self._of, range(begin, end + 1)))
        tests = tests or set().union(*self._tests.values())
        return sorted(tests, key=lambda test: (self._seconds[test], test))

    def _of(self, line: int) -> set[str]:
        return self._tests.get(line, set())

    def stages(self, line: int) -> tuple[list[str], list[str]]:
        """Return the tests to run first, and those to run if these notice nothing."""
        first, then, spent, files = [], [], 0.0, set[str]()
        for test in self.of(line):
            spent += self._seconds[test]
            file = test.partition("::")[0]
            if spent <= FIRST and (len(files) < FILES or file in files):
                files.add(file)
                first.append(test)
            elif spent <= MOST:
                then.append(test)
        return first, then

    def limit(self, tests: Sequence[str]) -> float:
        """Return how many seconds tests may take."""
        return 3 * sum(self._seconds[test] for test in tests) + SLACK


def noticed(arguments: Sequence[str], seconds: float, module: str, source: str) -> bool:
    """Run tests in a fork, with this source of a module; return whether one fails, or they do not end in time."""
    Path(module).write_text(source, encoding="utf-8")
    os.utime(module, ns=(0, next(WRITTEN) * 10**9))  # bytecode is kept by the second of the change, and by the size
    began, child = time.monotonic(), os.fork()
    if child == 0:
        import resource

        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        import pytest

        quiet = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]  # so that those of the copy are imported
        os._exit(min(int(pytest.main([*arguments, *quiet])), 1))
    while time.monotonic() - began < seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def copied() -> Path:
    """Copy the files of this checkout that git knows to a folder of their own."""
    folder = Path(tempfile.mkdtemp(prefix="mutations-"))
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def unnoticed(module: str, share: float, seed: int, data: str, log: str) -> tuple[int, list[Mutant]]:
    """Try a share of a module's mutants in a copy of this checkout; return how many, and those that no test noticed."""
    source, random_ = (ROOT / module).read_text(encoding="utf-8"), random.Random(f"{seed} {module}")
    chosen = [mutant for mutant in mutants(source) if random_.random() < share]
    if not chosen:
        return 0, []
    covering, folder, right = Covering(data, log, module), copied(), set[str]()
    try:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        for library in LIBRARIES:
            importlib.import_module(library)

        def fails(tests: list[str], mutant: Mutant) -> bool:
            """Return whether a test fails that passes with the unchanged module."""
            if not tests or not noticed(tests, covering.limit(tests), module, mutant.source):
                return False
            new = [test for test in tests if test not in right]
            if new and noticed(new, covering.limit(new), module, source):
                raise SystemExit(f"{module}: tests fail before anything is changed: pytest {' '.join(new)}")
            right.update(new)
            return True

        left = [mutant for mutant in chosen if not any(fails(tests, mutant) for tests in covering.stages(mutant.line))]
        return len(chosen), left
    finally:
        shutil.rmtree(folder)


def tried(modules: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, int, list[Mutant]]]:
    """Yield each module, how many of its mutants were tried, and those that no test noticed."""
    log = options.log.read_text(encoding="utf-8")
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        more = (options.share, options.seed, str(options.coverage.absolute()), log)
        futures = {module: pool.submit(unnoticed, module, *more) for module in modules}
        for module, future in futures.items():
            yield module, *future.result()


def main() -> int:
    """Try the modules, and print each result when it is known; return 1 if a mutant is not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("log", type=Path, help="what pytest --durations=0 printed")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="files or folders (default: MODULES)")
    parser.add_argument("--coverage", type=Path, default=Path(".coverage"), help="coverage's data (default .coverage)")
    parser.add_argument("--share", type=float, default=0.1, help="of the mutants of each module (default 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="modules side by side (default 2)")
    parser.add_argument("--out", type=Path, help="a Markdown file for the list")
    options = parser.parse_args()
    places = [ROOT / place for place in options.modules or MODULES]
    modules = [
        str(path.relative_to(ROOT))
        for place in places
        for path in ([place] if place.suffix else sorted(place.rglob("*.py")))
    ]
    lines, total = [], 0
    for module, count, left in tried(modules, options):
        total += count
        print(f"{module}: {count - len(left)} of {count} noticed", flush=True)  # noqa: T201
        source = (ROOT / module).read_text(encoding="utf-8").splitlines()
        for mutant in left:
            lines.append(f"- `{module}:{mutant.line}` `{source[mutant.line - 1].strip()}`: {mutant.change}")
            print(lines[-1], flush=True)  # noqa: T201
    print(f"{total - len(lines)} of {total} noticed")  # noqa: T201
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
