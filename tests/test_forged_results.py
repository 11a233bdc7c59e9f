"""Records that were forged with care: every digest is made again, so that only running again can tell."""

import csv
import hashlib
import importlib.util
import itertools
import json
import random
import re
import shutil
import string
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fredsim
from fredsim.config.document import dump_yaml, read_document
from fredsim.runs.checkpoint.checkpoints import EVERY_MINUTE
from fredsim.runs.folder.results import Result, Results, load
from fredsim.runs.folder.run_files import version_numbers
from fredsim.runs.folder.summaries import ADDED, CIRCUMSTANCES, record_difference
from fredsim.runs.folder.sweep_tables import SweepTables, failed, outcome_values
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import open_expansion
from fredsim.runs.verify.verify import threads_of
from tests.bad_results import CLOCKED, results
from tests.sealing import seal
from tests.test_bad_checkpoints import forge

Command = Callable[..., tuple[int, str, str]]
#: Other values that another machine, or another day, could have recorded; nothing can tell that they are forged.
PLAUSIBLE: dict[str, tuple[Any, ...]] = {
    "seconds_evaluation": (12.5, 0.5), "seconds_probe": (0.25, 0.5), "seconds_kernels": (1.5, None, 0.5),
    "shares_kernels": ({"evaluation": 0.5}, None, {}), "threads": (1, 7), "contract": (1,),
    "machine": ("riscv64", "x", "finished"), "processor": ("Another processor", "x", "finished"),
    "git": (f"{'0123456789' * 4}-dirty", None),
}  # fmt: skip
#: What may differ in other records alone: live ones, those of native modules, and of `backend: auto`.
OF_OTHER_RUNS = {"live", "vmap", "backend", "device"}
#: Values of a wrong type or form, of which each entry differs from some.
NONSENSE: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    7,
    0.5,
    1e400,
    "",
    "x",
    "finished",
    [],
    ["x"],
    {},
    {"x": 1},
    "\x1b[31m",
)


#: Sizes that no run reaches, in values of a right type and in others.
SIZES: tuple[Any, ...] = (
    1e300, -1e300, 1e-300, 2**63, -(2**63), 10**18, -0.0, "9" * 5000, "x" * 5000, [[[]]], {"x": {"x": []}}, {"": ""},
    {"fredsim": "9" * 5000}, {"metrics.csv": "x"}, {"workers": 1e300}, {"workers": "x"}, ["validation_error"],
)  # fmt: skip


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run and, beside it, a sweep; `verify` copies the whole ones instead of running them again."""
    monkeypatch.chdir(tmp_path)
    for name, kind in {"run": "clock", "sweep": "sweep"}.items():
        for file, content in results()[kind].items():
            path = Path("whole", name, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        shutil.copytree(Path("whole", name), name)

    def execute(experiment: object, folder: Path, *, label: str, **how: object) -> None:
        del experiment, how
        (found,) = (path for path in Path("whole").rglob(label) if path.is_dir())
        shutil.copytree(found, folder, dirs_exist_ok=True)

    monkeypatch.setattr("fredsim.runs.verify.verify.execute", execute)
    return tmp_path


def forgeries(summary: dict[str, Any], values: Sequence[Any] = NONSENSE) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield forged summaries, and what was forged: every entry, also within mappings, lost, renamed, and retyped."""
    places: list[tuple[str, ...]] = [(key,) for key in summary]
    places += [(key, name) for key, value in summary.items() if isinstance(value, dict) for name in value]
    for *above, key in places:
        for what, value in (("lost", None), ("renamed", None), *(("changed", one) for one in values)):
            forged = json.loads(json.dumps(summary))
            at = forged[above[0]] if above else forged
            before = at.pop(key)
            if what == "renamed":
                at[f"{key}2"] = before
            elif what == "changed":
                at[key] = value
            if json.dumps(forged, sort_keys=True) != json.dumps(summary, sort_keys=True) and not is_plausible(
                ".".join([*above, key]), what, value
            ):
                yield f"{'.'.join([*above, key])} {what} {value!r}", forged
    for key, value in (("extra", 1), ("vmap", "4 clients at once"), ("gap", 0.0), ("live", {"workers": 2}), ("", None)):
        yield f"added {key}", summary | {key: value}
    yield from (
        (f"versions {text!r}", summary | {"versions": summary["versions"] | {"numpy": text}})
        for text in ("", "two", "2..1", "2.0 ", "<b>")
    )


def is_plausible(key: str, what: str, value: object) -> bool:
    """Return whether another machine could have recorded this."""
    known = PLAUSIBLE.get(key, ()) if what == "changed" else ()
    return any(type(one) is type(value) and one == value for one in known)


def test_every_entry_of_a_summary(recorded: Path, command: Command, request: pytest.FixtureRequest) -> None:
    del recorded
    summary = json.loads(Path("run/summary.json").read_bytes())
    del summary["sha256"]
    found = list(forgeries(summary))
    if not request.config.getoption("--slow"):
        found = random.Random(0).sample(found, 40)
    for what, forged in found:
        seal(Path("run"), forged, files=False)
        code, output, messages = command("verify", "run")
        assert (code in (1, 2), "Traceback" in messages, "run" in output + messages) == (True, False, True), what


#: What reads a summary; `run` is that of a run, `x.yaml` its experiment.
READERS: tuple[tuple[str, ...], ...] = (
    ("verify", "run"), ("verify", "run", "--jobs", "2"), ("compare", "run", "whole/run"), ("compare", "run", "run"),
    ("plot", "run", "-o", "out.svg"), ("plot", "run", "whole/run", "-o", "out.svg"),
    *(("plot", "run", "--kind", kind, "-o", "out.svg") for kind in ("staleness", "timeline", "waits", "clients")),
    ("calibrate", "run"), ("calibrate", "whole/run", "--predict", "run"), ("ls", "."), ("show", "run"), ("plan", "run"),
    ("cite", "run"), ("run", "x.yaml", "--resume", "--quiet", "--out", "run"), ("verify", "sweep"),
    ("plot", "sweep", "-o", "out.svg"),
    ("run", "sweep", "--resume", "--quiet", "--out", "sweep"),
    *((("report", "run", "sweep", "-o", "out.html"),) if importlib.util.find_spec("plotly") else ()),
    *((("export", "run", "--to", "tensorboard", "-o", "board"),) if importlib.util.find_spec("tensorboard") else ()),
)  # fmt: skip


VERIFY, RESUME = ("verify", "run"), ("run", "x.yaml", "--resume", "--quiet", "--out", "run")
#: What once ended in a traceback.
KNOWN: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    *(("model_files", value, words) for value in (5, "x", ["x"], None) for words in (VERIFY, RESUME)),
    *(("test_error", value, ("report", "run", "-o", "out.html")) for value in ("x", ["x"])),
    ("time", 1e300, ("plot", "run", "--kind", "timeline", "-o", "out.svg")), ("live", 5, ("calibrate", "run")),
    ("time", 0.0, ("calibrate", "whole/run", "--predict", "run")), ("versions", 5, VERIFY),
    ("versions", {"fredsim": "9" * 5000}, VERIFY), ("live", {"workers": "x"}, ("calibrate", "run")),
)  # fmt: skip


def try_readers(
    command: Command, what: str, forge: Callable[[Path], object], readers: Sequence[tuple[str, ...]]
) -> None:
    """Let commands read a folder in which something was forged: each ends as if it had been damaged, or whole."""
    for words in readers:
        for name in ("run", "sweep"):
            shutil.rmtree(name, ignore_errors=True)
            shutil.copytree(Path("whole", name), name)
        shutil.rmtree("board", ignore_errors=True)
        forge(Path("run") if "sweep" not in words else min(path for path in Path("sweep").iterdir() if path.is_dir()))
        try:
            code, _, messages = command(*words)
        except Exception as error:
            raise AssertionError(f"{what}: {' '.join(words)}") from error
        assert (code in (0, 1, 2), "Traceback" in messages) == (True, False), (what, words, messages)


def test_every_reader_of_a_summary(recorded: Path, command: Command, request: pytest.FixtureRequest) -> None:
    """Whatever stands there, sealed anew: one error in a line, or a difference."""
    del recorded
    Path("x.yaml").write_text(dump_yaml(CLOCKED), encoding="utf-8")
    summary = json.loads(Path("run/summary.json").read_bytes())
    del summary["sha256"]
    for key, value, words in KNOWN:
        forge = partial(seal, summary=summary | {key: value}, files=False)
        try_readers(command, f"{key}: {value}", forge, [words])
    live = summary | {"path": "live", "live": {"workers": 2, "works_redone": 0, "delay": 0.0}}
    native = summary | {"numerics": "native", "model_files": {"x": "0" * 64}, "vmap": "x", "code": {"x": "0" * 64}}
    of = {
        **summary,
        "gap": 0.5,
        "gradient_norm": 0.5,
        "metrics": {"x": 0.5},
        "measured_by": "x",
        "larger_is_better": ["x"],
    }
    rng = random.Random(7)
    found = [one for base in (of, live, native) for one in forgeries(base, (*NONSENSE, *SIZES))]
    slow = request.config.getoption("--slow")
    for what, forged in found if slow else rng.sample(found, 30):
        readers = READERS if slow else rng.sample(READERS, 3)
        try_readers(command, what, partial(seal, summary=forged, files=False), readers)


def configurations(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield forged configurations, and what was forged: every key, also within mappings, lost, renamed, and retyped."""
    for what, content in (("nothing", {}), ("another", {"a": 1}), ("name alone", {"name": "x"})):
        yield what, content
    places = [(key,) for key in data] + [(key, inner) for key, of in data.items() if type(of) is dict for inner in of]
    for *above, key in places:
        values = [one for one in NONSENSE if not isinstance(one, str) or one.isprintable()]  # which no YAML has
        for what, value in (("lost", None), ("renamed", None), *(("changed", one) for one in values)):
            forged = json.loads(json.dumps(data))
            at = forged[above[0]] if above else forged
            before = at.pop(key)
            if what != "lost":
                at[f"{key}2" if what == "renamed" else key] = before if what == "renamed" else value
            yield f"{'.'.join([*above, key])} {what} {value!r}", forged


def write_config(folder: Path, data: dict[str, Any]) -> None:
    (folder / "config.yaml").write_text(dump_yaml(data), encoding="utf-8")
    seal(folder)


def test_every_reader_of_a_configuration(recorded: Path, command: Command, request: pytest.FixtureRequest) -> None:
    """Sealed anew, so that nothing but its content tells that no run wrote it."""
    del recorded
    Path("x.yaml").write_text(dump_yaml(CLOCKED), encoding="utf-8")
    plain = read_document(Path("run/config.yaml")).data
    readers = [words for words in READERS if "run" in words]
    for words in readers:
        try_readers(command, "{a: 1}", partial(write_config, data={"a": 1}), [words])
    for words in (("verify", "run"), ("plot", "run"), ("plot", "run", "--kind", "timeline", "-o", "out.svg")):
        for key in plain.keys() & {"backend", "threads", "server", "clients", "data"}:
            write_config(Path("run"), {name: value for name, value in plain.items() if name != key})
            code, _, messages = command(*words)
            assert (code, "run/config.yaml: " in messages, messages.count("error: ")) == (2, True, 1), (words, key)
    for named in ({"later": 1}, {"server": {"name": "later"}}):  # as by another version: what has ended is shown
        write_config(Path("run"), plain | named)
        assert Result(Path("run")).config == plain | named
    no_text = partial(write_config, data=plain | {"model": plain["model"] | {"name": []}})
    try_readers(
        command, "model.name: []", no_text, [("cite", "run"), ("show", "run"), ("plot", "run", "-o", "out.svg")]
    )
    found, rng = list(configurations(plain)), random.Random(5)
    slow = request.config.getoption("--slow")
    for what, forged in found if slow else rng.sample(found, 24):
        try_readers(command, what, partial(write_config, data=forged), readers if slow else rng.sample(readers, 3))


def test_what_depends_on_machine_and_time(recorded: Path, command: Command) -> None:
    """The entries that may differ are few, and have a page."""
    del recorded
    summary = json.loads(Path("run/summary.json").read_bytes())
    assert summary["iterations"] == 30
    newer = {name: f"{version}1" for name, version in summary["versions"].items()}
    changes: list[dict[str, Any]] = [
        {"seconds": 2.0, "iterations_per_second": 15.0},
        {"versions": newer, "path": "snapshots", "path_why": "another version has chosen it"},
        *({key: one} for key, some in PLAUSIBLE.items() for one in some),
    ]
    for change in changes:
        seal(Path("run"), summary | change)
        assert command("verify", "run")[:2] == (0, "run: same bits\n"), change
    for change in ({"seconds": 2.0, "iterations_per_second": 1e9}, {"machine": ""}, {"machine": "\x1b[31mred"}):
        seal(Path("run"), summary | change)
        assert command("verify", "run")[0] == 1, change
    assert {key for change in changes for key in change} | OF_OTHER_RUNS == CIRCUMSTANCES.keys()
    page = (Path(__file__).parents[1] / "docs" / "verify.md").read_text(encoding="utf-8")
    section = page.partition("### What is not compared\n")[2].partition("\nThese changes")[0]
    assert set(re.findall(r"`(\w+)`", section)) - {"iterations", "auto"} == CIRCUMSTANCES.keys()


@pytest.mark.parametrize(
    ("numerics", "backend", "asked", "named", "nameless"),
    [
        ("portable", "cuda", None, True, False), ("portable", "numba", None, False, True),
        ("native", "numba", None, False, True), ("native", "numba", "cuda", True, False),
        ("native", "cuda", "cuda", True, False),
        ("native", "cuda", None, True, True),  # PyTorch may be unable to compute the module there
    ],
)  # fmt: skip
def test_which_records_name_a_device(
    numerics: str, backend: str, asked: str | None, named: bool, nameless: bool
) -> None:
    """Those of which gradients, or the server, were computed there."""
    record, config = {"numerics": numerics, "backend": backend}, {"model": {} if asked is None else {"device": asked}}
    of = CIRCUMSTANCES["device"]
    assert (of("NVIDIA H200", record, config), of(None, record, config)) == (named, nameless)


#: Changes of an experiment of 30 iterations, the status with which it ends, and after how many iterations.
ENDINGS: dict[str, tuple[dict[str, Any], str, int]] = {
    "at full length": ({}, "finished", 30),
    "at a divergence": ({"server": {"name": "asgd", "lr": 1e30}}, "diverged", 2),
    "at its goal": ({"until": {"validation_error": 0.99}}, "finished", 0),
    "after its updates": (
        {"iterations": None, "updates": 7, "server": {"name": "sync", "lr": 0.1}}, "finished", 7 * 4,
    ),
    "by the clock": ({"iterations": None, "seconds": 2.0, "dispatcher": {"name": "clock"}}, "finished", 2 * 4),
}  # fmt: skip


@pytest.mark.parametrize("path", ["auto", "snapshots"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_that_has_ended_was_not_interrupted(
    ending: str, path: str, small_yaml: Path, digits_experiment: dict[str, Any], command: Command
) -> None:
    changes, status, iterations = ENDINGS[ending]
    small = {"model": {"hidden": [8]}, "clients": {"count": 4, "batch_size": 4}, "evaluation": {"every": 10}}
    data = digits_experiment | small | {"iterations": 30, "path": path} | changes
    small_yaml.write_text(dump_yaml(data), encoding="utf-8")
    fredsim.run(data, out="run")
    summary = json.loads(Path("run/summary.json").read_bytes())
    assert (summary["status"], summary["iterations"]) == (status, iterations)
    seal(Path("run"), summary | {"status": "interrupted"})
    for words in ((), ("--jobs", "2")):
        code, output, _ = command("verify", "run", *words)
        assert (code, f"status is interrupted (recorded) and {status} (now)" in output) == (1, True), output
    seal(Path("run"), summary)
    assert command("verify", "run")[0] == 0
    # Runs that were really interrupted, with the checkpoints that they wrote: earlier, or where the end showed next.
    shows_next = ending in ("at a divergence", "by the clock")
    for stop in {iterations - 1, iterations if shows_next else 1} - {-1, 0}:
        (run,) = open_expansion(data).runs
        execute(run.experiment, Path(f"stopped{stop}"), stop_at=stop, policy=EVERY_MINUTE)
        for words in ((), ("--jobs", "2")):
            assert command("verify", f"stopped{stop}", *words)[:2] == (0, f"stopped{stop}: same bits\n")


@pytest.mark.usefixtures("small_yaml")
def test_the_checkpoint_of_an_interrupted_run(digits_experiment: dict[str, Any], command: Command) -> None:
    """Each of its arrays and numbers is that of the repetition, on the recorded backend and path."""
    small = {"model": {"hidden": [8]}, "clients": {"count": 4, "batch_size": 4}, "evaluation": {"every": 10}}
    data = digits_experiment | small | {"iterations": 30, "server": {"name": "ia2sgd", "lr": 0.1}}
    (run,) = open_expansion(data).runs
    execute(run.experiment, Path("honest"), stop_at=17, policy=EVERY_MINUTE)
    assert command("verify", "honest")[:2] == (0, "honest: same bits\n")
    assert command("verify", "honest", "--backend", "numpy")[0] == 0
    # What no event has changed yet, as in a run that was interrupted before the first one.
    still = data | {"server": {"name": "soft_sync", "n": 4, "lr": 0.1}, "evaluation": {"every": 100}}
    (run,) = open_expansion(still).runs
    execute(run.experiment, Path("first"), stop_at=0, policy=EVERY_MINUTE)
    execute(run.experiment, Path("later"), stop_at=3, policy=EVERY_MINUTE)
    assert command("verify", "first")[0] == command("verify", "later")[0] == 0
    shutil.rmtree("first/checkpoint")
    shutil.copytree("later/checkpoint", "first/checkpoint")
    code, output, _ = command("verify", "first")
    assert (code, "a checkpoint at iteration 3, and the record ends at 0" in output) == (1, True), output
    (path,) = Path("honest/checkpoint").glob("*.safetensors")
    names = [name for name, array in load_file(path).items() if array.size and array.dtype == np.float32]
    assert len(names) > 1
    for name in names:

        def change(arrays: dict[str, Any], _: dict[str, Any], name: str = name) -> None:
            arrays[name].reshape(-1)[-1:].view(np.uint32)[0] ^= 1

        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree("honest", "run")
        forge(Path("run"), change)
        seal(Path("run"))
        for words in ((), ("--jobs", "2")):
            code, output, _ = command("verify", "run", *words)
            assert (code, "run: different: the checkpoint: the state's " in output) == (1, True), (name, output)


@pytest.mark.parametrize("server", [{"name": "averaged", "lr": 0.1}, {"name": "asgd", "lr": 0.1}])
def test_raw_parameters(
    server: dict[str, Any],
    digits_experiment: dict[str, Any],
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a server whose average counts, by itself or by the key `average`: another's, none, or some too many."""
    monkeypatch.chdir(tmp_path)
    data = digits_experiment | {"model": {"hidden": [8]}, "iterations": 30, "server": server}
    data |= {"average": {"name": "window"}} if server["name"] == "asgd" else {}
    for name, seed in (("honest", 1), ("other", 2)):
        fredsim.run(data | {"seed": seed}, out=name)
    fredsim.run(data | {"server": {"name": "asgd", "lr": 0.1}, "average": None}, out="none")
    assert [Path(name, "params_raw.safetensors").exists() for name in ("honest", "none")] == [True, False]
    for changed, source in (("honest", "other"), ("honest", None), ("none", "other")):
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree(changed, "run")
        assert command("verify", "run")[0] == 0
        if source is None:
            Path("run/params_raw.safetensors").unlink()
        else:
            shutil.copy(f"{source}/params_raw.safetensors", "run")
        seal(Path("run"))
        for words in (("verify", "run"), ("verify", "run", "--jobs", "2")):
            code, output, errors = command(*words)
            assert (code in (1, 2), "params_raw.safetensors" in output + errors) == (True, True), (
                changed,
                source,
                output,
            )


def test_a_record_names_no_other_files(recorded: Path, refused: Callable[..., None]) -> None:
    """Not even with the right digest: the answer would tell what they hold."""
    del recorded
    Path("secret").write_bytes(b"x")
    summary = json.loads(Path("run/summary.json").read_bytes())
    for name in ("../secret", "notes.txt", ""):
        files = summary["files"] | {name: hashlib.sha256(b"x").hexdigest()}
        seal(Path("run"), summary | {"files": files}, files=False)
        refused("verify", "run", says=(f"run/summary.json: is damaged (files has '{name}', which no run writes)",))


def test_compare_looks_at_what_runs_of_the_same_bits_share(recorded: Path, command: Command) -> None:
    del recorded
    summary, forged = json.loads(Path("run/summary.json").read_bytes()), dict[str, Any]()
    forged |= {"gap": 1e-9, "gradient_norm": 0.0, "time": 1.0, "data": "0" * 64, "experiment": "0" * 64}
    forged |= dict.fromkeys(("updates", "pushes", "fetches", "bytes_pushed", "bytes_fetched"), 7)
    forged |= dict.fromkeys(("validation_loss", "validation_error", "test_error"), 0.5) | {"status": "diverged"}
    forged |= {"numerics": "native", "measured_by": "x", "metrics": {"x": 0.5}, "larger_is_better": ["x"]}
    for key, value in forged.items():
        seal(Path("run"), summary | {key: value})
        code, output, messages = command("compare", "whole/run", "run", "--no-replay")
        assert (code, f"summary.json: {key} is " in output, messages) == (1, True, ""), key
    page = (Path(__file__).parents[1] / "docs" / "trust.md").read_text(encoding="utf-8")
    for key, value in {"name": "other", "backend": "numpy", "path": "snapshots", "contract": 1}.items():
        seal(Path("run"), summary | {key: value})
        assert (command("compare", "whole/run", "run")[0], f"`{key}`" in page) == (0, True), key


def test_a_network_of_fredsims_is_not_native(recorded: Path, command: Command) -> None:
    del recorded
    summary = json.loads(Path("run/summary.json").read_bytes())
    seal(Path("run"), summary | {"numerics": "native"})
    code, output, messages = command("verify", "run")
    what = "run: different: summary.json: numerics is native (recorded) and portable (now)\n"
    assert (code, output, "Traceback" in messages) == (1, what, False)


def test_an_entry_that_a_later_version_added(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of an earlier version may lack it, one of a later version may not: nor one that is made now."""
    del recorded
    assert all(version_numbers(fredsim.__version__) >= since for since in ADDED.values())
    now = Result(Path("whole/run"))
    monkeypatch.setattr("fredsim.runs.folder.summaries.ADDED", {"pushes": (1, 2)})
    summary = {key: value for key, value in now.summary.items() if key != "pushes"}
    for version, lacks in (("1.0.0", False), ("1.1.7rc1", False), ("1.2.0.dev0", True), ("1.2.0", True), ("2.0", True)):
        seal(Path("run"), summary | {"versions": summary["versions"] | {"fredsim": version}})
        found = record_difference(Result(Path("run")), now)
        assert (found is not None and "pushes is missing (recorded)" in found) == lacks, version


def test_versions_that_packages_have(recorded: Path) -> None:
    """Also those of builds between releases, and a linear time for what is none."""
    del recorded
    now = Result(Path("whole/run"))
    for version in ("3.12.3+", "3.15.0a1+", "0.61.0+0.gabc.dirty", "2.1+1", "1!2.0.post1.dev3", "2.13.0+cu130"):
        seal(Path("run"), now.summary | {"versions": now.summary["versions"] | {"python": version, "numba": version}})
        assert record_difference(Result(Path("run")), now) is None, version
    for version in ("1" * 400 + "!", "1.a" * 100 + " ", "+", "3.12 +"):
        seal(Path("run"), now.summary | {"versions": now.summary["versions"] | {"numba": version}})
        assert "versions is" in (record_difference(Result(Path("run")), now) or ""), version


def test_what_a_live_run_says_of_its_workers(recorded: Path) -> None:
    del recorded
    now, whole = Result(Path("whole/run")), {"workers": 2, "works_redone": 0, "delay": 0.5}
    for live, possible in ((whole, True), (whole | {"delay": "x"}, False), (whole | {"delay": -1.0}, False)):
        versions = now.summary["versions"] | {"fredsim": "99.0.0"}  # so that another path may have been taken
        seal(Path("run"), now.summary | {"path": "live", "live": live, "versions": versions})
        assert (" live is " in (record_difference(Result(Path("run")), now) or "")) != possible, live


def test_threads_and_shares_that_no_run_of_its_experiment_has(recorded: Path) -> None:
    del recorded
    now = Result(Path("whole/run"))
    cases: tuple[tuple[int | None, str, Any, bool], ...] = (
        (None, "threads", 7, True), (None, "threads", 2**16, True), (None, "threads", 2**16 + 1, False),
        (2, "threads", 1, True), (2, "threads", 2, True), (2, "threads", 7, False),
        (2, "shares_kernels", {"evaluation": 1.0}, True), (2, "shares_kernels", {"evaluation": 1.5}, False),
    )  # fmt: skip
    for wanted, key, value, possible in cases:
        write_config(Path("run"), read_document(Path("run/config.yaml")).data | {"threads": wanted})
        seal(Path("run"), now.summary | {"threads": 2, key: value})
        found = record_difference(Result(Path("run")), now)
        assert (found is None) == possible, (wanted, key, value)
        assert found is None or f"{key} is {value!r}, which no run records" in found


@pytest.mark.parametrize(
    ("numerics", "threads", "found"), [("native", 10**9, 1024), ("native", 3, 3), ("portable", 10**9, None)]
)
def test_a_forged_number_of_threads_is_not_started(numerics: str, threads: int, found: int | None) -> None:
    result: Any = SimpleNamespace(summary={"numerics": numerics, "threads": threads})
    assert threads_of(result) == found


def test_forged_files(recorded: Path, command: Command) -> None:
    """Files of the run that are forged, lost or added, with their digests made again."""
    del recorded
    for number, path in itertools.product(range(3), sorted(Path("whole/run").iterdir())):
        if path.suffix == ".png" or path.name in ("summary.json", "config.yaml") or "-table" in path.name:
            continue
        shutil.rmtree("run")
        shutil.copytree("whole/run", "run")
        content = path.read_bytes()
        forged = Path("run", path.name)
        if number == 0:
            forged.unlink()
        else:
            forged.write_bytes(content[: len(content) // 2] if number == 1 else content + content[-40:])
        seal(Path("run"))
        code, output, messages = command("verify", "run")
        assert (code in (1, 2), path.name in output + messages) == (True, True), (number, path.name)
    shutil.rmtree("run")
    shutil.copytree("whole/run", "run")
    params = load_file("run/params.safetensors")
    for forged_params, metadata in (
        ({name: array for name, array in params.items() if name != "b1"}, None),
        (params | {"b9": params["b1"]}, None),
        (params | {"b1": params["b1"].astype(np.float64)}, None),
        (params, {"note": "x"}),
    ):
        save_file(forged_params, "run/params.safetensors", metadata)
        seal(Path("run"))
        code, output, _ = command("verify", "run")
        assert (code, "different: params.safetensors: " in output) == (1, True)
    shutil.copy("whole/run/params.safetensors", "run")
    seal(Path("run"))
    shutil.copy("run/params.safetensors", "run/params_raw.safetensors.part")
    assert command("verify", "run")[0] == 0  # a name that no run writes is none of its files
    shutil.copy("run/staleness.csv", "run/live.csv")  # which no simulated run writes
    seal(Path("run"))
    code, output, _ = command("verify", "run")
    assert (code, "different: summary.json: files has " in output, "live.csv" in output) == (1, True, True), output
    Path("run/live.csv").unlink()
    seal(Path("run"))
    config = read_document(Path("run/config.yaml")).data
    for key, value in (("seed", 1), ("name", "y"), ("threads", 3), ("iterations", 31)):
        Path("run/config.yaml").write_text(dump_yaml(config | {key: value}), encoding="utf-8")
        code, output, _ = command("verify", "run")
        assert (code, "run" in output) == (1, True), key


def test_a_configuration_without_its_defaults(recorded: Path, command: Command) -> None:
    """It is the same experiment, but no file that a run writes; another version may have had fewer keys."""
    del recorded
    whole = read_document(Path("run/config.yaml")).data
    for part, key in (("server", "weight_decay"), ("clients", "local_steps"), ("evaluation", "unit")):
        write_config(Path("run"), whole | {part: {name: kept for name, kept in whole[part].items() if name != key}})
        value = f"{whole[part][key]!r}"
        code, output, _ = command("verify", "run")
        assert code == 1
        assert f"run: different: config.yaml: {part}.{key} is missing (recorded) and {value} (now)" in output
    now = Result(Path("run")).summary
    seal(Path("run"), now | {"versions": now["versions"] | {"fredsim": "99.0.0"}})
    assert command("verify", "run")[0] == 0


def edited(text: str, rng: random.Random) -> tuple[str, str]:
    """Return what was done to a table, and the table: a cell, a row, or a column is another one."""
    header, *rows = list(csv.reader(StringIO(text)))
    row, column = rng.randrange(len(rows)), rng.randrange(len(header))
    what = rng.choice(("cell", "digit", "lose row", "lose column", "add column", "swap rows", "twice", "swap cells"))
    if what == "cell":
        rows[row][column] = rng.choice(("", "0", "1", "0.01", "failed", "finished", "diverged", "x", "../x", "nan"))
    elif what == "digit":
        cell = rows[row][column]
        place = rng.choice([i for i, letter in enumerate(cell) if letter in string.digits] or [len(cell)])
        rows[row][column] = cell[:place] + str((int(cell[place : place + 1] or 0) + 1) % 10) + cell[place + 1 :]
    elif what == "lose row":
        del rows[row]
    elif what == "twice":
        rows.insert(row, rows[row])
    elif what == "swap rows":
        rows[0], rows[-1] = rows[-1], rows[0]
    elif what == "swap cells":
        rows[0][column], rows[-1][column] = rows[-1][column], rows[0][column]
    else:
        for line in (header, *rows):
            line[column : column + 1] = [] if what == "lose column" else [line[column], "1"]
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return f"{what} {row} {column}", out.getvalue()


@pytest.mark.parametrize("table", ["runs.csv", "best.csv"])
def test_every_cell_of_a_sweeps_tables(
    table: str, recorded: Path, command: Command, request: pytest.FixtureRequest
) -> None:
    del recorded
    path, rng = Path("sweep", table), random.Random(3)
    text = path.read_text(encoding="utf-8")
    for _ in range(200 if request.config.getoption("--slow") else 10):
        what, forged = edited(text, rng)
        if forged == text:
            continue
        path.write_text(forged, encoding="utf-8", newline="")
        code, output, messages = command("verify", "sweep")
        assert (code in (1, 2), table in output + messages) == (True, True), what
        for words in (("plot", "sweep", "-o", "out.svg"), ("plot", "sweep", "--best", "-o", "out.svg")):
            code, _, messages = command(*words)
            assert (code, "sweep" in messages) == (2, True), what
        with pytest.raises(fredsim.FredsimError, match="sweep"):
            list(fredsim.load("sweep"))  # type: ignore[arg-type]


def swapped(one: Path, other: Path) -> None:
    one.rename("kept")
    other.rename(one)
    Path("kept").rename(other)


def test_the_folders_of_a_sweep(recorded: Path, command: Command) -> None:
    """Runs that are swapped, added, lost or of another configuration; a sweep.yaml that is lost or edited."""
    del recorded
    runs = sorted(path for path in Path("sweep").iterdir() if path.is_dir())
    text = Path("sweep/sweep.yaml").read_text(encoding="utf-8")

    def write(old: str, new: str) -> None:
        assert old in text
        Path("sweep/sweep.yaml").write_text(text.replace(old, new), encoding="utf-8")

    changes: dict[str, Callable[[], object]] = {
        "swapped": partial(swapped, runs[0], runs[1]),
        "added": lambda: shutil.copytree(runs[0], "sweep/seed=7-01234567"),
        "lost": lambda: shutil.rmtree(runs[0]),
        "no sweep.yaml": Path("sweep/sweep.yaml").unlink,
        "no best.csv": Path("sweep/best.csv").unlink,
        "no runs.csv": Path("sweep/runs.csv").unlink,
        "a config.yaml": lambda: shutil.copy(runs[0] / "config.yaml", "sweep"),
        "another axis": lambda: write("0.01", "0.02"),
        "another seed": lambda: write("[0, 1]", "[0, 2]"),
        "one seed less": lambda: write("[0, 1]", "[0]"),
        "another name": lambda: write("name: x", "name: y"),
        "another selection": lambda: write("over: seed", "over: server.lr"),
        "no selection": lambda: write("select:", "# select:"),
        "files swapped": lambda: swapped(runs[0] / "metrics.csv", runs[1] / "metrics.csv"),
        "summaries swapped": lambda: swapped(runs[0] / "summary.json", runs[1] / "summary.json"),
    }
    for what, change in changes.items():
        change()
        code, output, messages = command("verify", "sweep")
        assert (code in (1, 2), "sweep" in output + messages, "Traceback" in messages) == (True, True, False), what
        told = "sweep/config.yaml: is not written by a sweep; remove it" in messages
        assert told == (what == "a config.yaml"), what
        shutil.rmtree("sweep")
        shutil.copytree("whole/sweep", "sweep")
    assert command("verify", "sweep")[0] == 0


@pytest.mark.parametrize("kept", ["metrics.csv", "summary.json", "params.safetensors", "staleness.csv"])
def test_folders_of_runs_that_lost_files(kept: str, recorded: Path, command: Command) -> None:
    """They are damaged, whichever file is left: nothing that is there is taken for a table alone."""
    del recorded
    for run in [path for path in Path("sweep").iterdir() if path.is_dir()]:
        Path(run, kept).write_text("forged", encoding="utf-8")
        for path in run.iterdir():
            if path.name != kept:
                path.unlink()
    code, output, messages = command("verify", "sweep")
    assert (code, "same bits" in output, messages.count("error: sweep/"), messages.count("\n")) == (2, False, 1, 1)


def test_a_run_that_is_said_to_have_failed(recorded: Path, command: Command) -> None:
    """Whether it fails may depend on the machine, so that it failed is not verified; a note says so."""
    del recorded
    rows = list(csv.DictReader(Path("sweep/runs.csv").read_text(encoding="utf-8").splitlines()))
    best = Path("sweep/best.csv").read_text(encoding="utf-8")
    chosen = [(cells["server.lr"], cells["seed"]) for cells in csv.DictReader(best.splitlines())]
    for cells in rows:
        if (cells["server.lr"], cells["seed"]) in chosen:
            outcome = list(cells)[list(cells).index("status") :]
            cells.update(dict.fromkeys(outcome, "") | {"status": "failed", "error": "no memory"})
            Path("sweep", cells["run"], "summary.json").unlink()
    names = [cells["run"] for cells in rows if cells["status"] == "failed"]
    expansion = open_expansion("whole/sweep")
    tables, whole, ended = SweepTables.of(expansion), load("whole/sweep"), {}
    assert isinstance(whole, Results)
    for number, (cells, result) in enumerate(zip(rows, whole, strict=True)):
        ended[number] = failed("no memory") if cells["status"] == "failed" else outcome_values(result, tables.selection)
    for name, text in (("runs.csv", tables.runs(ended)), ("best.csv", tables.best(ended))):
        Path("sweep", name).write_text(str(text), encoding="utf-8")
    forged = csv.DictReader(Path("sweep/best.csv").read_text(encoding="utf-8").splitlines())
    assert {(cells["server.lr"], cells["seed"]) for cells in forged}.isdisjoint(chosen)
    for alone in (False, True):
        for path in Path("sweep").iterdir() if alone else ():
            if path.is_dir():
                shutil.rmtree(path)
        code, output, messages = command("verify", "sweep")
        assert (code, output.count("same bits"), len(names)) == (0, len(rows) - len(names), 2)
        says = f"note: sweep: runs that failed by runs.csv (2, such as {names[0]}) are not verified"
        assert says in messages


def test_a_sweep_that_has_not_ended_is_verified_as_far_as_it_is(recorded: Path, command: Command) -> None:
    del recorded
    lines = Path("sweep/runs.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    *_, last = csv.DictReader(StringIO("".join(lines)))
    shutil.rmtree(Path("sweep", last["run"]))
    Path("sweep/runs.csv").write_text("".join(lines[:-1]), encoding="utf-8")
    assert command("verify", "sweep")[0] == 1  # best.csv is written when all have ended
    Path("sweep/best.csv").unlink()
    code, output, messages = command("verify", "sweep")
    assert (code, output.count("same bits"), messages.count("note:")) == (0, len(lines) - 2, 1)
    assert command("plot", "sweep", "-o", "out.svg")[0] == 0
