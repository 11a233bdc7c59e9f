"""Change servers, dispatchers and the loop, one small thing at a time, and list the changes that no test notices.

    python -m tests.mutations [MODULE …] [--share 0.1] [--seed 0] [--jobs 2] [--out FILE]

Of each module's mutants (tests/mutants.py) a random share is tried. A mutant is written into a copy of this checkout;
the tests of its module run there, and those that are slower where these notice nothing, in forks of a process that has
imported the libraries. Linux and macOS only.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
MODULES = ("servers", "dispatchers", "dispatchers/gates", "fredsim/simulation", "fredsim/compressors")
LIBRARIES = ("hypothesis", "matplotlib", "numba", "pandas", "pyarrow.parquet", "pydantic", "pytest", "rich",
             "ruamel.yaml", "safetensors.numpy", "typer")  # fmt: skip
#: The tests that run first, by where a module is; of a server, dispatcher, gate or compressor those that name it.
NAMED = ("tests/golden/test_golden.py", "tests/servers", "tests/dispatchers", "tests/test_compressors.py")
FIRST = {
    "servers": ("tests/servers/test_servers.py", "tests/servers/test_formulas_buffers.py"),
    "dispatchers": ("tests/dispatchers", "tests/test_trace.py"),
    "fredsim": ("tests/test_contract.py", "tests/test_schedule.py", "tests/test_record.py", "tests/test_seconds.py"),
}
THEN = (
    "tests/golden/test_golden.py", "tests/servers", "tests/dispatchers", "tests/test_bad_plugins.py",
    "tests/test_state.py", "tests/test_clock_runs.py", "tests/test_invariance.py", "tests/test_contract.py",
    "tests/test_equivalences.py", "tests/test_bad_config.py", "tests/test_properties.py", "tests/test_events.py",
    "tests/test_random_experiments.py",
)  # fmt: skip
MEMORY = 12 * 2**30  # a mutant may ask for all that there is
SECONDS = 900  # for tests of the module as it is


def stages(module: str) -> list[list[str]]:
    """Return the words for pytest, first of the module's own tests, then of many."""
    name = Path(module).stem
    own = [path for path in FIRST[module.split("/", 1)[0]] if Path(path).exists()]
    if module.startswith(("servers", "dispatchers", "fredsim/compressors")) and _named(name):
        own = [*NAMED, "-k", name]
    return [own, list(THEN)]


def _named(name: str) -> bool:
    """Return whether golden experiments have this name."""
    return f'"{name}' in Path("tests/golden/digests.json").read_text(encoding="utf-8")


def noticed(words: Sequence[str], seconds: float, module: str, source: str) -> bool:
    """Run tests in a fork, with this source of a module; return whether one fails, or they do not end in time."""
    Path(module).write_text(source, encoding="utf-8")
    began, child = time.monotonic(), os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        import pytest

        quiet = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]  # those of the copy are imported
        sys.dont_write_bytecode = True
        os._exit(min(int(pytest.main([*words, *quiet])), 1))
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


def unnoticed(module: str, share: float, seed: int) -> tuple[int, list[Mutant]]:
    """Try a share of the mutants of a module in a copy of this checkout; return how many, and what nothing noticed."""
    folder = copied()
    try:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        for library in LIBRARIES:
            importlib.import_module(library)
        source, random_ = Path(module).read_text(encoding="utf-8"), random.Random(f"{seed} {module}")
        left = chosen = [mutant for mutant in mutants(source) if random_.random() < share]
        for words in stages(module):
            began = time.monotonic()
            if left and noticed(words, SECONDS, module, source):
                raise SystemExit(f"{module}: tests fail before anything is changed: pytest {' '.join(words)}")
            limit = 3 * (time.monotonic() - began) + 20
            left = [mutant for mutant in left if not noticed(words, limit, module, mutant.source)]
        return len(chosen), left
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Try the modules, print what comes out as it comes; return 1 where a mutant is not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="files; those of MODULES where none is given")
    parser.add_argument("--share", type=float, default=0.1, help="of the mutants of each module (default 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="modules side by side (default 2)")
    parser.add_argument("--out", type=Path, help="a Markdown file for the list")
    asked = parser.parse_args()
    modules = asked.modules or [
        str(path.relative_to(ROOT)) for place in MODULES for path in sorted((ROOT / place).glob("*.py"))
    ]
    lines, count = [], 0
    with ProcessPoolExecutor(asked.jobs, max_tasks_per_child=1) as pool:
        futures = {module: pool.submit(unnoticed, module, asked.share, asked.seed) for module in modules}
        for module, future in futures.items():
            tried, left = future.result()
            count += tried
            print(f"{module}: {tried - len(left)} of {tried} noticed", flush=True)  # noqa: T201
            source = (ROOT / module).read_text(encoding="utf-8").splitlines()
            for mutant in left:
                lines.append(f"- `{module}:{mutant.line}` `{source[mutant.line - 1].strip()}`: {mutant.change}")
                print(lines[-1], flush=True)  # noqa: T201
    print(f"{count - len(lines)} of {count} noticed")  # noqa: T201
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
