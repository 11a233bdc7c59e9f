"""Try bad inputs (tests/bad_inputs.py) on the command, in this process.

    python -m tests.try_bad_inputs FOLDER --count 500 --seed 0 --kind npz,trace

makes that many cases of each kind in FOLDER, and prints those that fail, one JSON object a line. A case passes if the
command succeeds, or exits with code 2 and one message that names the place, within 120 seconds and 3 GB of memory; if
it writes nothing outside `--out`, starts no program, opens no socket and imports no module of the folder; and if the
case's own check passes. `--only i` tries only case i, and keeps its files.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import typer
from ruamel.yaml import YAML

from fredsim import cli
from fredsim.data import datasets, idx
from fredsim.errors import FredsimWarning
from tests.bad_cases import Case, Outcome
from tests.bad_files import SMALL_MNIST
from tests.bad_inputs import KINDS, make
from tests.watch import Watch

SECONDS = 120  # much longer than a case takes, since the machine may be busy
MEMORY = 3 * 10**9  # bytes
#: Phrases of helpful messages: they say what would be right, what exists, or what is missing.
REMEDY = re.compile(
    r"; |must|should|known|is required|not valid YAML|give |keep one|expected|such as|axes:|more$|\bneeds? "
)


class TooSlow(BaseException):
    """The command took longer than SECONDS."""


def call(arguments: list[str]) -> tuple[int | str, str, str]:
    """Call the command; return its exit code, or a traceback, its output and its messages."""

    def on_alarm(number: int, frame: object) -> None:
        del number, frame
        raise TooSlow

    before, sys.argv = sys.argv, ["fredsim", *arguments]
    buffers = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(buffer, "utf-8", "backslashreplace", write_through=True) for buffer in buffers)
    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(SECONDS)
    code: int | str = "no exit"
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as outcome:
        code = outcome.code if isinstance(outcome.code, int) else 0
    except TooSlow:
        code = "hang: " + "".join(traceback.format_exc().splitlines(keepends=True)[-9:])
    except BaseException as error:
        code = f"{type(error).__name__} {error}: " + "".join(traceback.format_tb(error.__traceback__)[-5:])
    finally:
        signal.alarm(0)
        sys.argv = before
    return code, buffers[0].getvalue().decode(), buffers[1].getvalue().decode()


def verdict(case: Case, folder: Path, watch: Watch) -> str:
    """Try a case in a folder that has its files; return what is wrong with the outcome, "" if nothing is."""
    before = listing(folder)
    with watch:
        code, output, messages = call(case.arguments)
    if watch.seen:
        return f"it did what it must not: {sorted(watch.seen)}"
    if isinstance(code, str):
        return code
    if code not in (0, 1, 2) or (code == 1 and case.arguments[0] not in ("verify", "compare")):
        return f"exit code {code}: {messages}"
    found = wrong_with_refusal(case, output, messages) if code == 2 else ""
    if case.judge is not None:
        found = found or case.judge(Outcome(code, output, messages, folder))
    elif code != 2 and case.arguments[0] == "show":
        found = wrong_with_shown(case, output, folder)
    return found or stray_files(before, folder)


def wrong_with_refusal(case: Case, output: str, messages: str) -> str:
    """Return what is wrong with the message of a refusal, "" if nothing is."""
    if messages.lstrip().startswith("Usage:"):
        return ""
    lines = messages.rstrip("\n").split("\n")
    if (
        case.arguments[0] in {"reproduce", "verify"} or "--resume" in case.arguments
    ):  # which say first what they will do
        output, lines = "", [line for line in lines if line.startswith("error: ")]
    if output or not all(line.startswith("error: ") and len(line) > 20 for line in lines):
        return f"not one message: {output!r} {messages!r}"
    if len(messages) > 6000 or "Traceback" in messages or "error: :" in messages or "<class" in messages:
        return f"a message that nobody can read: {messages[:2000]!r}"
    named = (
        "x.yaml",
        "override",
        "order.csv",
        "data.npz",
        "mnist",
        *case.arguments[1:],
        *case.files,
        *map(str, case.key),
        "jobs",
        "list: there is no",
        "the sweep holds the run",
        "dask",
        "error: .:",
        "the trace, row",
        "no paper",
        "the experiment's name is empty",
        *(["iteration"] if case.kind == "checkpoint" else []),
    )
    if not any(name and name in messages for name in named):
        return f"it does not say where: {messages!r}"
    vague = [line for line in lines if not REMEDY.search(line)]
    if case.kind == "checkpoint" and "iteration" in messages:
        vague = []  # a forged state can break any part of the run: the message only has its name and the iteration
    if vague:
        return f"it does not say what to do: {vague}"
    with contextlib.suppress(ValueError, RecursionError):
        given = json.loads(case.value)
        texts = {str(given), str(given).lower()}  # of the value itself, and in YAML
        if isinstance(given, int | float) and "value" in case.kind and not any(is_named(x, messages) for x in texts):
            return f"it does not name the value: {messages}"
    if case.kind == "value in file" and not any(is_near(case, line) for line in lines):
        return f"another place: {messages!r}"
    return ""


def is_named(value: str, messages: str) -> bool:
    """Return whether messages name a value, or are about several keys."""
    others = (
        "give one of", "have no gap", "cannot read x", "the clock ends after", "is given; it goes with",
        "give one per client", "unknown key", "beside problem", "is of test rows", "no gradient will ever arrive",
    )  # fmt: skip
    return value in messages or any(phrase in messages for phrase in others)


def is_near(case: Case, line: str) -> bool:
    """Return whether a message names the line of the case's key, or of a key around it."""
    number = int((re.match(r"error: x.yaml:(\d+)", line) or ["", "0"])[1])
    text = case.files["x.yaml"].decode("utf-8", "surrogatepass").split("\n")
    names = [part for part in case.key if isinstance(part, str)]
    near = "\n".join(text[max(0, number - 4) : number])  # the line of a list's item has no key
    has_phrase = any(
        phrase in line for phrase in ("not valid YAML", "levels deep", "cannot read", "beside problem", names[-1])
    )
    return has_phrase or any(f'"{name}":' in near for name in names)


def wrong_with_shown(case: Case, output: str, folder: Path) -> str:
    """Return what is wrong with the output of `show`, or with running the same experiment."""
    if output.startswith(("---", "#")):
        return ""  # a sweep
    found = YAML(typ="safe", pure=True).load(output)
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        given, value = json.loads(case.value), found
        for part in case.key:
            value = value[part]
        if not isinstance(given, dict | list | str | None) and value not in (given, float(given)):
            return f"{case.key} was given {given!r}, and is {value!r}"
    (folder / "again.yaml").write_text(output, encoding="utf-8")
    code, again, messages = call(["show", "again.yaml"])
    if (code, again) != (0, output):
        return f"what is shown is not the same again: {code} {messages} {output} {again}"
    lengths = [found.get(key) or 0 for key in ("iterations", "updates", "epochs")]
    steps = found["clients"]["local_steps"] * found["server"].get("period", 1) * found["server"].get("batch", 1)
    work = max(lengths) * steps * (10 + sum(found["model"].get("hidden", []))) * found["clients"]["count"]
    (folder / "again.yaml").unlink()
    if work * found["server"].get("buffer", 1) > 100_000 or found["data"]["name"] != "digits":
        return ""
    code, _, messages = call(["run", "x.yaml", *case.arguments[2:], "--quiet", "--out", "out"])
    if code == 0:
        return ""
    return wrong_with_refusal(case, "", messages) if code == 2 else f"run: {code} {messages}"


def listing(folder: Path) -> set[str]:
    """Return the paths in a folder and beside it, except those within `out`."""
    found = {str(path) for path in folder.parent.iterdir()} | {str(path) for path in folder.rglob("*")}
    return {path for path in found if not path.startswith(str(folder / "out"))}


def stray_files(before: set[str], folder: Path) -> str:
    """Return a message about files that were written outside `out`."""
    new = listing(folder) - before
    return f"wrote {sorted(new)}" if new else ""


def main() -> None:
    """Try cases, and print those that fail."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--kind", default="", help=f"some of {', '.join(KINDS)}")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FredsimWarning)  # the runs that cases are made of are short
    folder: Path = options.folder.resolve() / "here"
    cli.app = typer.main.get_command(cli.app)  # type: ignore[assignment]  # or each call would build it anew
    idx.FILES, idx.MIRRORS = SMALL_MNIST, ()  # type: ignore[assignment]
    kinds = options.kind.split(",") if options.kind else [*KINDS]
    watch = Watch(folder.parent)
    limit_memory()
    for kind in kinds:
        for number in [options.only] if options.only is not None else range(options.count):
            try_one(folder, watch, options, kind, number)
    print(json.dumps({"tried": dict.fromkeys(kinds, options.count)}))


def limit_memory() -> None:
    """Limit this process's memory, so that a case that needs too much fails."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def try_one(folder: Path, watch: Watch, options: argparse.Namespace, kind: str, number: int) -> None:
    """Try a case, and print what is wrong with its outcome."""
    print(f"# {kind} {number}", file=sys.stderr, flush=True)
    case = make(options.seed, kind, number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    os.mkfifo("pipe")
    for cached in (datasets._load, datasets._read):
        cached.cache_clear()
    if number % 20 == 0:
        gc.collect()  # runs have reference cycles
    for name, content in case.files.items():
        Path(name).parent.mkdir(exist_ok=True, parents=True)
        Path(name).write_bytes(content)
    begin = time.perf_counter()
    found = verdict(case, folder, watch)
    if found or options.only is not None:
        seconds = round(time.perf_counter() - begin, 2)
        shown = {"kind": kind, "number": number, "arguments": case.arguments, "key": case.key, "value": case.value[:99]}
        print(json.dumps({**shown, "seconds": seconds, "found": found[:3000]}), flush=True)


if __name__ == "__main__":
    main()
