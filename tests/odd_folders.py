"""Folders of results in which one file is something that it should not be, and commands that are given them.

    python -m tests.odd_folders FOLDER --count 1000 --seed 0

tries so many cases in FOLDER and prints those that fail, then how many there were of each kind. Each case has a folder
`out` of results, whole results beside it, and a folder `outside` with a text, the canary, in each of its files. A case
passes if the command ends in time, with exit code 0 (or 1, if it compares), or with 2 and an error that names the file;
if `outside` stays as it is, byte for byte; and if the canary comes into nothing that the command prints or writes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
import socket
import stat
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.errors import FredsimError
from fredsim.runs.checkpoint.format import json_with_digest
from fredsim.runs.folder.results import Results
from tests.bad_results import CLOCKED, RESULTS, SWEEP, results
from tests.sealing import seal
from tests.try_bad_inputs import call

__all__ = ["OddCase", "a_case", "fault"]

CANARY = "canary-5b1c07"
DATA = {"one": RESULTS, "clock": CLOCKED, "kept": CLOCKED, "sweep": SWEEP}
OUTSIDE_NAMES = ("../outside/run", "/outside", "..", ".", "", "a/../../outside", "C:\\x", "x\0y", "..\\outside", "a\nb")
NUMBERS = ("1_000", "٣", "9" * 400, "1" + "0" * 25, "nan", "-inf", "1e999", "0x10", " 1", "1e", "+1", "True", "")
TENSOR_TYPES = ("BF16", "F8_E4M3", "F8_E5M2", "F64", "I64", "BOOL", "F4", "C64", 7, None)
DEEP = {"json": b"[" * 200_000, "yaml": b"a: " + b"[" * 100_000}
#: Files that a run does not write before it ends, or that fredsim writes beside one.
MORE = ("error.pdf", "error-table.csv", "error-table.md", "config.yaml.part", "params_raw.safetensors.part")


@dataclass(frozen=True)
class OddCase:
    """What is in the place of which file, of which results, and the command that is given them."""

    base: str
    file: str
    kind: str
    choice: str
    sealed: bool
    arguments: tuple[str, ...]


def a_case(rng: random.Random) -> OddCase:
    """Return a random case."""
    base = rng.choice(("one", "clock", "kept", "sweep", "sweep"))
    files = [*results()[base], *MORE]
    if base == "sweep":
        files += [*{str(Path(file).parent) for file in files if "/" in file}, "runs.csv", "best.csv", "sweep.yaml"]
    if base == "kept":
        files += ["checkpoint"] * 4
    file = rng.choice(files)
    kind = rng.choice([*KINDS, *(FOR_SUFFIX.get(Path(file).suffix, ())) * 2])
    choices = {"name": OUTSIDE_NAMES, "number": NUMBERS, "type": TENSOR_TYPES}
    choice = rng.choice(choices.get(kind, ("",)))
    return OddCase(base, file, kind, str(choice), rng.random() < 0.5, rng.choice(COMMANDS + OF_BASE[base]))


def set_up(case: OddCase, rng: random.Random) -> None:
    """Make the folders of a case in the current folder."""
    for name in ("out", "whole", "outside"):
        for file, content in results()[case.base].items():
            path = Path(name, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if name == "outside" and path.suffix in (".yaml", ".csv", ".md", ".json"):
                with path.open("ab") as stream:  # YAML is as good with it
                    stream.write(f"# {CANARY}\n".encode())
    Path("outside/canary").write_text(f"{CANARY}\n", encoding="utf-8")
    Path("x.yaml").write_text(dump_yaml(DATA[case.base]), encoding="utf-8")
    path = Path("out", case.file)
    if case.kind in {**KINDS, "large": None}:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        {**KINDS, "large": large}[case.kind](path, Path("outside", case.file))
    else:
        with contextlib.suppress(OSError, ValueError, LookupError):
            path.write_bytes(CONTENTS[case.kind](rng, path, case.choice))
    if case.sealed:
        for summary in [Path("out/summary.json"), *Path("out").glob("*/summary.json")]:
            if summary.is_file() and summary != path:
                with contextlib.suppress(FredsimError, OSError, ValueError):
                    seal(summary.parent)


# What is in a file's place


def link(path: Path, target: Path) -> None:
    path.symlink_to(target.absolute())


def link_to_canary(path: Path, target: Path) -> None:
    del target
    path.symlink_to(Path("outside/canary").absolute())


def dangling(path: Path, target: Path) -> None:
    path.symlink_to(target.absolute().with_name("none"))


def loop(path: Path, target: Path) -> None:
    del target
    path.symlink_to(path.name)


def a_socket(path: Path, target: Path) -> None:
    del target
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
        bound.bind(path.name[:100])


def device(path: Path, target: Path) -> None:
    """Make a device that never ends; who may not make one gets a link to it."""
    del target
    try:
        os.mknod(path, stat.S_IFCHR | 0o644, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def large(path: Path, target: Path) -> None:
    """Make a file of 2^40 bytes, of which the disk holds only those with which a whole one begins."""
    with path.open("wb") as stream:
        stream.write(target.read_bytes()[:1000] if target.is_file() else b"")
        stream.truncate(2**40)


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda path, target: os.mkfifo(path),
    "link": link,
    "link to canary": link_to_canary,
    "dangling link": dangling,
    "loop": loop,
    "folder": lambda path, target: path.mkdir(),
    "socket": a_socket,
    "device": device,
}

# What is in a file


def not_utf8(rng: random.Random, path: Path, choice: str) -> bytes:
    del choice
    content = path.read_bytes()
    at = rng.randrange(len(content) + 1)
    return content[:at] + b"\xff\xfe" + content[at:]


def deep(rng: random.Random, path: Path, choice: str) -> bytes:
    del rng, choice
    return DEEP[path.suffix[1:]]


def twice(rng: random.Random, path: Path, choice: str) -> bytes:
    """Return a JSON or YAML text that has one of its keys twice, or a table that has a column twice."""
    del choice
    lines = path.read_bytes().splitlines(keepends=True)
    if path.suffix == ".csv":
        return b"".join(re.sub(rb"^([^,]*),", rb"\1,\1,", line) for line in lines)
    keys = [n for n, line in enumerate(lines) if re.match(rb' *"?\w+"?: .*\S', line) and line.endswith((b",\n", b"\n"))]
    n = rng.choice(keys[:-1])
    return b"".join([*lines[: n + 1], *lines[n:]])


def bomb(rng: random.Random, path: Path, choice: str) -> bytes:
    del rng, choice
    nested = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 30))
    return path.read_bytes() + f"x0: &x0 [lol]\n{nested}".encode()


def number(rng: random.Random, path: Path, choice: str) -> bytes:
    """Return the file's text with another number in the place of one of its numbers."""
    text = path.read_text(encoding="utf-8")
    places = [*re.finditer(r"(?<![\w.\"-])-?\d+(\.\d+)?(e[+-]?\d+)?(?![\w.\"])", text)]
    at = rng.choice(places)
    return f"{text[: at.start()]}{choice}{text[at.end() :]}".encode()


def name(rng: random.Random, path: Path, choice: str) -> bytes:
    """Return the file's text with a name of a run, or of a file, that leads elsewhere."""
    if path.suffix == ".json":
        data = json.loads(path.read_bytes())
        data["files"] = {**data["files"], choice: rng.choice([*data["files"].values(), "0" * 64])}
        if path.name == "summary.json":
            path.write_text(json.dumps(data), encoding="utf-8")
            seal(path.parent, data, files=False)
            return path.read_bytes()
        return json_with_digest(data)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    n = rng.randrange(1, len(lines))
    quoted = '"' + choice.replace('"', '""') + '"'
    lines[n] = re.sub(r"^(\"[^\"]*\"|[^,]*)", lambda _: quoted, lines[n])
    return "".join(lines).encode()


def tensor_type(rng: random.Random, path: Path, choice: str) -> bytes:
    """Return a safetensors file in which a tensor has another type, with a shape that fits, if there is one."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    entry = header[rng.choice([key for key in header if key != "__metadata__"])]
    begin, end = entry["data_offsets"]
    entry["dtype"] = {"7": 7, "None": None}.get(choice, choice)
    width = {"BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F64": 8, "I64": 8, "BOOL": 1, "C64": 8}.get(choice, 4)
    entry["shape"] = [(end - begin) // width]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def header(rng: random.Random, path: Path, choice: str) -> bytes:
    """Return a safetensors file whose header claims something else."""
    del choice
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    what = rng.choice(("long", "short", "list", "text", "nothing"))
    if what in ("long", "short"):
        return {"long": 2**63, "short": 3}[what].to_bytes(8, "little") + content[8:]
    text = {"list": b"[]", "text": b"x" * size, "nothing": b"{}"}[what]
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def parquet(rng: random.Random, path: Path, choice: str) -> bytes:
    """Return a Parquet file in which a column is gone, has another type or other values, or nulls."""
    del choice
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    n = rng.randrange(len(table.column_names))
    column, rows = table.column_names[n], len(table)
    what = rng.choice(("gone", "text", "float", "null", "huge", "negative", "no rows", "fewer rows"))
    if what == "gone":
        table = table.drop_columns([column])
    elif what in ("no rows", "fewer rows"):
        table = table.slice(0, 0 if what == "no rows" else rows // 2)
    else:
        values = {"text": ["x"] * rows, "float": [float("nan")] * rows, "null": pa.nulls(rows)}
        values |= {"huge": [2**62] * rows, "negative": [-1] * rows}
        table = table.set_column(n, column, pa.array(values[what]))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


CONTENTS: dict[str, Callable[[random.Random, Path, str], bytes]] = {
    "not UTF-8": not_utf8, "deep": deep, "twice": twice, "bomb": bomb, "number": number, "name": name,
    "type": tensor_type, "header": header, "columns": parquet,
}  # fmt: skip
FOR_SUFFIX = {
    ".yaml": ("not UTF-8", "deep", "twice", "bomb", "number", "large"),
    ".json": ("not UTF-8", "deep", "twice", "number", "name", "large"),
    ".csv": ("not UTF-8", "twice", "number", "number", "name", "large"),
    ".safetensors": ("not UTF-8", "type", "header", "large"),
    ".parquet": ("not UTF-8", "columns", "columns", "large"),
}

# Commands


def load_all() -> str:
    """Read everything of the folder `out` in Python; return the error, if there is one."""
    try:
        loaded = fredsim.load("out")
        for result in loaded if isinstance(loaded, Results) else [loaded]:
            config = result.config
            _ = result.summary, result.metrics, result.staleness, result.params, result.has_diverged, result.outcome
            for key, property_ in (("probe", "probe"), ("events", "events")):
                if key in config:
                    getattr(result, property_)
            if config["evaluation"].get("per_client"):
                _ = result.clients
        if isinstance(loaded, Results):
            _ = loaded.runs, loaded.chosen, loaded.failures
    except FredsimError as error:
        return str(error)
    return ""


EXPORTS = [("export", "out", "--to", "tensorboard", "-o", "board")] if importlib.util.find_spec("tensorboard") else []
REPORTS = [("report", "out", "-o", "out.html")] if importlib.util.find_spec("plotly") else []
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("load",), ("plot", "out"), ("plot", "out", "-o", "new.svg"), ("plot", "out", "-o", "out/error.png"),
    ("plot", "out", "--kind", "shards", "-o", "new.png"), ("plot", "out", "--kind", "probe", "-o", "new.png"),
    *REPORTS, *REPORTS, *EXPORTS, ("verify", "out"), ("verify", "out"),
    ("compare", "out", "whole"), ("compare", "whole", "out"), ("run", "x.yaml", "--quiet", "--out", "out"),
    ("run", "x.yaml", "--quiet", "--out", "out", "--resume"), ("run", "out", "--quiet", "--out", "out", "--resume"),
    ("run", "out", "--quiet", "--out", "new"), ("show", "out"), ("plan", "out"), ("cite", "out"),
)  # fmt: skip
TIMED: tuple[tuple[str, ...], ...] = (
    ("plot", "out", "--kind", "timeline", "-o", "new.json"), ("plot", "out", "--kind", "waits", "-o", "new.pdf"),
)  # fmt: skip
BEST = (("plot", "out", "--best", "-o", "new.png"),)
OF_BASE: dict[str, tuple[tuple[str, ...], ...]] = {"one": (), "clock": TIMED, "kept": TIMED, "sweep": BEST}


def contents(folder: Path) -> dict[str, object]:
    """Return what a folder has: the bytes of files, where links lead, and the kinds of everything else."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        what = path.read_bytes() if stat.S_ISREG(mode) and path.stat().st_size < 2**30 else stat.S_IFMT(mode)
        found[str(path.relative_to(folder))] = os.readlink(path) if stat.S_ISLNK(mode) else what
    return found


def fault(case: OddCase, rng: random.Random) -> str:
    """Try a case in the current folder, which is empty; return what is wrong, "" if nothing is."""
    set_up(case, rng)
    before = contents(Path("outside"))
    code: int | str
    if case.arguments == ("load",):
        try:
            output, messages = "", load_all()
            code = 2 if messages else 0
            messages = f"error: {messages}\n" if messages else ""
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    else:
        code, output, messages = call([*case.arguments])
    if isinstance(code, str):
        return code
    if code not in (0, 2) and (code != 1 or case.arguments[0] not in ("verify", "compare")):
        return f"exit code {code}: {messages}"
    if contents(Path("outside")) != before:
        return "outside was changed"
    after = {name: content for name, content in contents(Path()).items() if not name.startswith("outside")}
    leaks = [name for name, content in after.items() if isinstance(content, bytes) and CANARY.encode() in content]
    if leaks or CANARY in output + messages:
        return f"the canary came into {leaks}: {output} {messages}"
    errors = [line for line in messages.splitlines() if line.startswith("error: ")]
    known = {case.file, Path(case.file).name, Path(case.file).parts[0], *(["out"] if case.kind in CONTENTS else [])}
    if code == 2 and not any(name and name in line for line in errors for name in known):
        return f"no error names the file: {messages}"
    if code == 2 and len(errors) > 1 and case.base != "sweep":
        return f"not one error: {messages}"
    return ""


def main() -> int:
    """Try cases in a folder, and print what is wrong; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    tried, failed = Counter[str](), 0
    results()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    for n in range(options.count) if options.only is None else [options.only]:
        rng = random.Random(f"{options.seed} {n}")
        case, folder = a_case(rng), Path(f"case-{n}")
        folder.mkdir()
        with contextlib.chdir(folder):
            found = fault(case, rng)
        tried[case.kind] += 1
        failed += bool(found)
        if found:
            typer.echo(json.dumps({"number": n, **vars(case), "fault": found[:3000]}))
        if options.only is None:
            shutil.rmtree(folder)
    typer.echo(json.dumps({"tried": tried.total(), "failed": failed, "kinds": dict(sorted(tried.items()))}))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
