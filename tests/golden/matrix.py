"""The matrix of digests: golden experiments with every instruction set, number of threads, backend and Python at hand.

    python tests/golden/matrix.py [--every N] [--python PROGRAM …] [--emulated N] [--device N]
                                  [--networks] [--jobs N] [--output FILE]

Each kind of code is compiled in a process of its own, which runs every N-th experiment with each number of threads and
compares its digest with the recorded one. The exit code is 1 if one differs. Without --python, they run with the Python
that runs this. `--every 0 --device 1` runs all experiments on a CUDA device alone.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: The instruction sets that code is compiled to, with the NUMBA_CPU_NAME that selects each.
CODES = {"x86_64": {"SSE2": "generic", "AVX2": "haswell", "AVX-512": "skylake-avx512"}, "aarch64": {"NEON": "generic"}}
FLAGS = {"AVX2": "avx2", "AVX-512": "avx512f"}  # the flags in /proc/cpuinfo that these require
#: The kernels for a device, compiled for the processor.
EMULATED = "a device, emulated"
VERSIONS = ("numpy", "numba", "llvmlite")
ONE, THREADS = (1,), (1, 2, 3)


def digest(experiment: dict[str, Any], backend: str) -> str:
    """Run an experiment and return its digest."""
    with tempfile.TemporaryDirectory() as folder:
        return str(importlib.import_module("make").digest(experiment, backend, Path(folder) / "run"))


def run_cell(backend: str, threads: Sequence[int], every: int, jobs: int, *, networks: bool) -> None:
    """Run the experiments, in this process if jobs is 1, and print a line of JSON for each number of threads."""
    sys.path[:0] = [str(ROOT), str(HERE)]  # also of the processes that the pool starts
    make = importlib.import_module("make")
    recorded: dict[str, str] = json.loads(make.FILE.read_text(encoding="utf-8"))
    chosen = [
        one for one in make.experiments().items()
        if make.has_kernels(one[1], backend) and (make.is_network(one[1]) or not networks)
    ][::every]  # fmt: skip
    code = {"code": importlib.import_module("fredsim.cuda.machines").machine().name} if backend == "cuda" else {}
    versions = {}
    for name in VERSIONS[:1] if backend == "numpy" else VERSIONS:
        versions[name] = importlib.metadata.version(name)
    for count in threads:
        todo = [experiment | {"threads": count} for _, experiment in chosen], [backend] * len(chosen)
        if jobs == 1:
            found = list(map(digest, *todo))
        else:
            with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
                found = list(pool.map(digest, *todo))
        differ = [name for (name, _), digest in zip(chosen, found, strict=True) if digest != recorded[name]]
        print(json.dumps({
            "machine": platform.machine(), "python": platform.python_version(), "count": len(chosen), "differ": differ,
            "threads": count, "versions": versions, **code,
        }))  # fmt: skip


def cells(every: int, device: int) -> list[tuple[str, str, Sequence[int], int]]:
    """Return (code, backend, the numbers of threads, every) for each process on this machine."""
    machine = platform.machine()
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split() if os.path.exists("/proc/cpuinfo") else []
    codes = [code for code in CODES.get(machine, {}) if code not in FLAGS or FLAGS[code] in flags]
    found: list[tuple[str, str, Sequence[int], int]] = [
        *((code, "numba", THREADS, every) for code in [*codes, "the very processor"]),
        ("NumPy's own", "numpy", ONE, every),
        (EMULATED, "cuda", ONE, every),
        ("a CUDA device", "cuda", ONE, device),
    ]
    return [cell for cell in found if cell[-1]]


def outcomes(
    command: list[str], code: str, backend: str, threads: Sequence[int], every: int, options: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Run a process by this command, and return its results."""
    name = {name: value for codes in CODES.values() for name, value in codes.items()}.get(code)
    chosen = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""} if name else {}
    emulated = code == EMULATED
    environment = os.environ | chosen | ({"FREDSIM_EMULATE": "1"} if emulated else {})
    program = [*command, str(Path(__file__).relative_to(ROOT)), "--cell", backend, ",".join(map(str, threads))]
    ran = subprocess.run(
        [*program, "--every", str(every), *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    results = [json.loads(line) for line in ran.stdout.splitlines()[-len(threads) :]]
    return [{"code": code} | one | {"backend": "cuda, emulated" if emulated else backend} for one in results]


def row(result: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's result as a row of the table."""
    differ = f"; not {', '.join(result['differ'])}" if result["differ"] else ""
    return {
        "machine": result["machine"], "code": result["code"], "Python": result["python"], "backend": result["backend"],
        "threads": result["threads"], "experiments": result["count"],
        "same digest": f"{result['count'] - len(result['differ'])}{differ}",
        "versions": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }  # fmt: skip


def main() -> None:
    """Read the command line, run the cells, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th experiment; 0: none")
    parser.add_argument("--python", action="append", default=[], metavar="PROGRAM", help="one with fredsim's needs")
    parser.add_argument("--emulated", type=int, default=0, metavar="N", help="arm64, by scripts/arm64.sh, every N-th")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="a CUDA device, every N-th")
    parser.add_argument("--networks", action="store_true", help="only experiments of networks other than dense ones")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="experiments done in parallel")
    parser.add_argument("--output", type=Path, metavar="FILE", help="a Markdown file for the table")
    parser.add_argument("--cell", nargs=2, metavar=("BACKEND", "THREADS"), help="run these here, and print JSON")
    options = parser.parse_args()
    if options.cell:
        threads = [*map(int, options.cell[1].split(","))]
        run_cell(options.cell[0], threads, options.every, options.jobs, networks=options.networks)
        return
    planned = [
        ([python], cell)
        for number, python in enumerate(options.python or [sys.executable])
        for cell in cells(options.every, options.device)
        if number == 0 or cell[0] in {"the very processor", "NumPy's own"}
    ]
    if options.emulated:
        arm = ["bash", "scripts/arm64.sh", "."]
        planned += [(arm, ("NEON", "numba", THREADS, options.emulated))]
        planned += [(arm, ("NumPy's own", "numpy", ONE, options.emulated))]
    rows, wrong = [], 0
    for number, (command, cell) in enumerate(planned, start=1):
        more = ["--jobs", str(options.jobs), *["--networks"] * options.networks]
        for result in outcomes(command, *cell, more):
            wrong += len(result["differ"])
            rows.append(row(result))
            print(f"{number}/{len(planned)}", *rows[-1].values(), flush=True)
    if options.output:
        from fredsim.show.tables import Table  # the programs of cells need not have it installed
        from fredsim.system.machine import processor_name

        today = datetime.datetime.now(datetime.UTC).date()
        counts = {name: getattr(options, name) for name in ("every", "emulated", "device")}
        pythons = dict.fromkeys(
            row["Python"].rpartition(".")[0] for row in rows if row["machine"] == platform.machine()
        )
        result = {
            "today": today, "version": importlib.metadata.version("fredsim"), "processor": processor_name(),
            "table": Table(rows).markdown(),
            "options": " ".join([
                *(f"--{name} {count}" for name, count in counts.items() if count or name == "every"),
                *["--networks"] * options.networks,
                *(f"--python python{version}" for version in pythons if len(pythons) > 1),
            ]),
            "left": "Windows, macOS" if options.device else "a CUDA device, Windows, macOS",
        }  # fmt: skip
        text = TEXT + ARM64 * bool(options.emulated) + COMMAND
        options.output.write_text(text.format(**result), encoding="utf-8")
    sys.exit(bool(wrong))


TEXT = """# The matrix of digests

Golden experiments (tests/golden) whose digest is the recorded one, on each kind of code that the kernels were compiled
to, {today}, fredsim {version}, {processor}. Not run: {left}.
"""
ARM64 = """aarch64 is emulated by QEMU, which shows bits, not the order of memory accesses on a real processor.
"""
COMMAND = """
```console
$ python tests/golden/matrix.py {options}
```

{table}"""


if __name__ == "__main__":
    main()
