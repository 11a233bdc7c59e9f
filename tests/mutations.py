"""Change one small thing of a module at a time, and list the changes that no test notices.

    coverage run -m pytest -n 2 --durations=0 > tests.log; coverage combine
    python -m tests.mutations tests.log [MODULE …] [--share 0.1] [--seed 0] [--jobs 2] [--out FILE]

The first run of the tests says which of them execute each line, and how long they take (tests/covering.py). Of each
module's mutants (tests/mutants.py) a random share is tried in a copy of this checkout. All tests are collected once; a
mutant of a function is put into its place in a fork, which runs the tests of its line. Any other is written into
the copy, where a new process runs them. Linux and macOS only.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from coverage import Coverage, CoverageData

from tests.covering import Covering
from tests.mutants import Mutant, mutants, normal

ROOT = Path(__file__).parents[1]
MODULES = ("servers", "dispatchers", "dispatchers/gates", "fredsim/simulation", "fredsim/compressors")
SLACK = 30.0  # seconds that a test may take besides three times those that it took
STARTING = 60.0  # seconds that a new process may take to collect tests, besides
PASSED = 17  # how a fork ends if all tests pass: a mutant may end it with 0 before
MEMORY = 12 * 2**30  # the limit of a process's memory: a mutant might allocate all that there is


class Tried(NamedTuple):
    """A module, how many of its mutants were tried, and those that no test noticed."""

    module: str
    total: int
    left: list[tuple[int, str]]  # its line, and what was changed


def copy_to(folder: Path) -> None:
    """Copy the files of this checkout that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the functions of a module, or of its classes, not those within functions."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & 0x2:  # CO_NEWLOCALS: a function; a class body has not got it
                yield part
            else:
                yield from functions_of(part)


def meaning(code: CodeType, functions: bool = True) -> object:
    """Return what a code does, without where it is written; a module's code without its functions, if so asked."""
    parts = [
        meaning(part, functions) if isinstance(part, CodeType) else (type(part).__name__, repr(part))
        for part in code.co_consts
        if functions or not (isinstance(part, CodeType) and part.co_flags & 0x2)
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name, parts


class Replaced(NamedTuple):
    """The file, name and line of a function, and its other code."""

    place: tuple[str, str, int]
    code: CodeType


def replaced(source: str, mutant: str, path: str) -> Replaced | None:
    """Return which function a mutant changes, or None if it changes more, or what is done at import.

    The mutant's lines are numbered otherwise than the module's, so both are compared as `normal` writes them. At import
    a function of other cells is made otherwise.
    """
    codes = [compile(text, path, "exec", dont_inherit=True) for text in (source, normal(source), mutant)]
    before, plain, after = (list(functions_of(code)) for code in codes)
    if meaning(codes[1], functions=False) != meaning(codes[2], functions=False):
        return None
    changed = [i for i, (old, new) in enumerate(zip(plain, after, strict=True)) if meaning(old) != meaning(new)]
    if len(changed) != 1:
        return None
    old = before[changed[0]]
    return Replaced((path, old.co_qualname, old.co_firstlineno), after[changed[0]])


class Trying:
    """A plugin of pytest: when all tests are collected, try mutants instead of running the tests."""

    def __init__(self, temporary: Path, options: argparse.Namespace, modules: Any, results: Any) -> None:
        """Try mutants of the modules of a queue, in a copy of the checkout."""
        self.folder, self.scratch, self.printed = (temporary / name for name in ("checkout", "scratch", "printed"))
        self.options, self.modules, self.results = options, modules, results
        self.items: dict[str, list[Any]] = defaultdict(list)
        self.functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        self.fit: dict[tuple[str, str], bool] = {}  # whether a test passes without a change of the module
        self.log = options.log.read_text(encoding="utf-8")
        self.failed = False
        self.writes = 0
        self.importing = Coverage(None, config_file=False, source=[str(self.folder)])

    def pytest_runtestloop(self, session: Any) -> bool:
        """Try the mutants of one module after the other, until there is none left."""
        self.importing.stop()
        session.config._tmp_path_factory.getbasetemp()
        for item in session.items:
            self.items[item.nodeid.partition("[")[0]].append(item)
        gc.unfreeze()  # what libraries put aside
        gc.collect()
        for found in gc.get_objects():
            if type(found) is FunctionType:  # some objects do not like to be asked for their class
                code = found.__code__
                self.functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(found)
        gc.freeze()  # so that forks share the memory
        for module in iter(self.modules.get, None):
            try:
                self.results.put((*self.tried(module),))
            except Exception as error:  # the one who waits is to be told
                self.results.put((module, repr(error)))
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember that a test failed."""
        self.failed = self.failed or report.failed

    def tried(self, module: str) -> Tried:
        """Try a share of a module's mutants."""
        source, random_ = (ROOT / module).read_text(encoding="utf-8"), random.Random(f"{self.options.seed} {module}")
        chosen = [mutant for mutant in mutants(source) if random_.random() < self.options.share]
        if not chosen:
            return Tried(module, 0, [])
        covering = Covering(self.options.coverage, self.log, ROOT / module, self.options.measured.absolute() / module)
        left = [(one.line, one.change) for one in chosen if not self.noticed(covering, module, source, one)]
        self._write(module, source)
        return Tried(module, len(chosen), left)

    def noticed(self, covering: Covering, module: str, source: str, mutant: Mutant) -> bool:
        """Return whether a test fails that passes with the unchanged module."""
        path, change = str(self.folder / module), None
        if mutant.line not in (self.importing.get_data().lines(path) or ()):
            change = replaced(source, mutant.source, path)
        run = self._process if change is None or change.place not in self.functions else self._fork
        names = [name for name in covering.of(mutant.line) if name in self.items]
        while names := [name for name in names if self.fit.get((module, name), True)]:
            self._write(module, mutant.source)
            if (at_fault := run(names, covering.seconds, change)) is None:
                return False
            if (module, at_fault) not in self.fit:
                self._write(module, normal(source))
                self.fit[module, at_fault] = run([at_fault], covering.seconds, None) is None
            if self.fit[module, at_fault]:
                return True
        return False

    def _write(self, module: str, source: str) -> None:
        (self.folder / module).write_text(source, encoding="utf-8")
        self.writes += 1  # bytecode is kept by the second of the change, and by the size
        os.utime(self.folder / module, ns=(0, self.writes * 10**9))

    def _fork(self, names: Sequence[str], seconds: dict[str, float], change: Replaced | None) -> str | None:
        """Run tests in a fork in which a function has another code; return the first that fails, or None."""
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            self._in_fork(names, change, writing)
        os.close(writing)
        begun = _watched(child, reading, lambda at: 3 * seconds[names[at]] + SLACK if at >= 0 else SLACK, PASSED)
        os.close(reading)
        for left in self.scratch.iterdir():
            shutil.rmtree(left, ignore_errors=True)
        return None if begun is None else names[max(begun, 0)]

    def _in_fork(self, names: Sequence[str], change: Replaced | None, writing: int) -> None:
        """Run tests, and say of each that it begins; exit with 1 if one fails."""
        code = 1
        try:
            _bounded()
            for function in self.functions[change.place] if change else ():
                function.__code__ = change.code  # type: ignore[union-attr]
            items = [(at, item) for at, name in enumerate(names) for item in self.items[name]]
            for (at, item), (_, following) in zip(items, [*items[1:], (0, None)], strict=True):
                os.write(writing, at.to_bytes(2, "little"))
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    os._exit(1)
            code = PASSED
        finally:
            os._exit(code)

    def _process(self, names: Sequence[str], seconds: dict[str, float], change: Replaced | None) -> str | None:
        """Run tests in a new process; return the one that fails, or None."""
        del change  # it stands in the copy
        temporary = f"--basetemp={self.scratch}-process"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", temporary, *names]
        if (child := os.fork()) == 0:
            _bounded()
            _print_to(self.printed)
            os.execv(sys.executable, command)
        reading, writing = os.pipe()
        limit = STARTING + sum(3 * seconds[name] for name in names) + SLACK
        begun = _watched(child, reading, lambda _: limit, 0)
        os.close(reading)
        os.close(writing)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+?::\w+)", self.printed.read_text(errors="replace"), re.M)
        return None if begun is None else failed[1] if failed else names[0]


def _bounded() -> None:
    """Make this process the first of a group, with little memory."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _print_to(printed: Path) -> None:
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _watched(child: int, reading: int, limit: Callable[[int], float], passed: int) -> int | None:
    """Wait for a process and end its group; return the last number that it wrote if it failed or took too long.

    It ends with the exit code `passed` if it did not fail. Time is not taken by a clock: this process may be stopped
    for a while.
    """
    os.set_blocking(reading, False)
    at, waited, ended, status = -1, 0.0, 0, 0
    try:
        while not ended and waited <= limit(at):
            ended, status = os.waitpid(child, os.WNOHANG)
            with suppress(BlockingIOError):
                if written := os.read(reading, 65536):
                    at, waited = int.from_bytes(written[-2:], "little"), 0.0
            time.sleep(0.005)
            waited += 0.005
    finally:  # also after an interrupt
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
    return None if ended and os.waitstatus_to_exitcode(status) == passed else at


def _job(options: argparse.Namespace, modules: Any, results: Any) -> None:
    """Collect the tests of a copy, and try the mutants of modules there."""
    temporary = Path(tempfile.mkdtemp(prefix="mutations-"))
    trying = Trying(temporary, options, modules, results)
    copy_to(trying.folder)
    try:
        os.chdir(trying.folder)
        sys.path[:] = [str(trying.folder), *(place for place in sys.path if place not in ("", str(ROOT)))]
        os.environ["PYTHONPATH"] = str(trying.folder)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "fredsim")]:
            del sys.modules[name]  # so that those of the copy are imported
        _print_to(temporary / "collected")
        trying.importing.start()
        ended = pytest.main(["-q", "-p", "no:cacheprovider", f"--basetemp={trying.scratch}"], plugins=[trying])
        if ended not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            results.put(("the tests cannot be collected", (temporary / "collected").read_text(errors="replace")))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def tried(modules: Sequence[str], options: argparse.Namespace) -> Iterator[Tried]:
    """Yield what was found of each module, in the order in which they end."""
    queue: Any = multiprocessing.Queue()
    results: Any = multiprocessing.Queue()
    for module in [*modules, *[None] * options.jobs]:
        queue.put(module)
    jobs = [multiprocessing.Process(target=_job, args=(options, queue, results)) for _ in range(options.jobs)]
    for job in jobs:
        job.start()
    for _ in modules:
        result = results.get()
        if len(result) != len(Tried._fields):
            for job in jobs:
                job.terminate()
            raise SystemExit(": ".join(result))
        yield Tried(*result)
    for job in jobs:
        job.join()


def main() -> int:
    """Try the modules, and print each result when it is known; return 1 if a mutant is not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("log", type=Path, help="what pytest --durations=0 printed")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="files or folders (default: MODULES)")
    parser.add_argument("--coverage", type=Path, default=Path(".coverage"), help="coverage's data (default .coverage)")
    parser.add_argument("--measured", type=Path, default=ROOT, help="the checkout that was measured, if it was another")
    parser.add_argument("--share", type=float, default=0.1, help="of the mutants of each module (default 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="modules side by side (default 2)")
    parser.add_argument("--out", type=Path, help="a Markdown file for the list")
    options = parser.parse_args()
    options.coverage = options.coverage.absolute()
    places = [ROOT / place for place in options.modules or MODULES]
    modules = [
        str(path.relative_to(ROOT))
        for place in places
        for path in ([place] if place.suffix else sorted(place.rglob("*.py")))
    ]
    data = CoverageData(str(options.coverage))
    data.read()
    measured = data.measured_files()
    for module in [name for name in modules if str(options.measured.absolute() / name) not in measured]:
        print(f"{module}: left out, as {options.coverage} does not tell of it")  # noqa: T201
        modules.remove(module)
    lines, total = list[str](), 0
    for module, count, left in tried(modules, options):
        total += count
        print(f"{module}: {count - len(left)} of {count} noticed", flush=True)  # noqa: T201
        source = (ROOT / module).read_text(encoding="utf-8").splitlines()
        for line, change in left:
            lines.append(f"- `{module}:{line}` `{source[line - 1].strip()}`: {change}")
            print(lines[-1], flush=True)  # noqa: T201
    print(f"{total - len(lines)} of {total} noticed")  # noqa: T201
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
