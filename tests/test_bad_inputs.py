"""What a user can get wrong in YAML, overrides, data files and options: random cases, and those that once did harm."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.resolution import resolve
from fredsim.errors import ConfigError
from fredsim.runs.folder.results import Result
from fredsim.runs.single.prepared import prepare
from fredsim.system.limits import default_threads
from tests.bad_files import claiming
from tests.bad_inputs import KINDS

Refused = Callable[..., None]
Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("kinds", "count", "seed"),
    [
        (",".join(KINDS), 18, 0),
        *(
            pytest.param(kind, 10_000, 1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)], id=kind)
            for kind in KINDS
        ),
    ],
)
def test_random_ones(kinds: str, count: int, seed: int, tmp_path: Path) -> None:
    """In a process of their own: it has a limit of memory, and may crash."""
    words = ["-m", "tests.try_bad_inputs", tmp_path, "--count", count, "--seed", seed, "--kind", kinds]
    ended = subprocess.run(
        [sys.executable, "-W", "error", *map(str, words)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    *failed, last = ended.stdout.splitlines() or [""]
    assert failed == []
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(last)["tried"] == dict.fromkeys(kinds.split(","), count)


BASE = """\
iterations: 20
data: {name: digits}
clients: &clients
  count: 4
  batch_size: 2
server: {name: asgd, lr: 0.1}
"""


def test_merge_keys(small_yaml: Path, command: Command, refused: Refused) -> None:
    cases = """\
cases:
- clients: {<<: *clients, count: 3}
- clients:
    batch_size: 5
    <<: [{sampling: iid, count: 7}, *clients]
"""
    small_yaml.write_text(BASE + cases, encoding="utf-8")
    code, output, _ = command("show", small_yaml)
    assert code == 0
    assert "clients: {count: 3, batch_size: 2, sampling: sequential, local_steps: 1}" in output
    assert "clients: {count: 7, batch_size: 5, sampling: iid, local_steps: 1}" in output
    small_yaml.write_text(BASE.replace("batch_size: 2", "batch_size: -2") + cases, encoding="utf-8")
    refused("show", small_yaml, says=("small.yaml:5: clients.batch_size: is -2",))  # where it is written


DEEP = "seed:\n" + "".join(f"{' ' * depth}a:\n" for depth in range(1, 90))
LAUGHS = "x: &x0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" + "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGES = "x: &x0 {a: 1, b: 2}\n" + "".join(
    f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)
TEXTS = {
    "billions by aliases": (LAUGHS, ("bad.yaml:5: x4 repeats more than 100,000 values by aliases",)),
    "a long text by aliases": (
        f"x: &x {'a' * 5000}\ny: [{', '.join(['*x'] * 3000)}]\n",
        ("bad.yaml:2: y repeats more than 100,000 values by aliases; write fewer",),
    ),
    "billions by merge keys": (MERGES, ("merges more than 100,000 keys",)),
    "a list in itself": ("seed: &a [*a]\n", ("bad.yaml:1: seed.0 holds itself, by an alias",)),
    "a mapping merged into itself": ("seed: &a\n  <<: *a\n", ("bad.yaml:1: seed holds itself, by a merge key",)),
    "a merge key of a number": ("seed:\n  <<: 3\n", ("bad.yaml:2: seed.<< must name a mapping",)),
    "brackets": ("seed: " + "[" * 5000, ("bad.yaml:1:58: not valid YAML: lists and mappings are nested more than 50",)),
    "deep": (
        DEEP,
        ("bad.yaml:52: seed.a.a is nested more than 50 levels deep",),
    ),
    "a tag": ("data:\n  name: !mine digits\n", ("bad.yaml:2: data.name is tagged !mine; use numbers, strings",)),
    "a set": ("data:\n  name: !!set {a, b}\n", ("bad.yaml:2: data.name is a set; use numbers",)),
    "an ordered mapping": ("seed: !!omap [a: 1]\n", ("bad.yaml:1: seed is an ordered mapping; use numbers",)),
    "a text that is called a list": ("seed: !!seq x\n", ("bad.yaml:1: seed is tagged seq; use numbers",)),
    "bytes": ("seed: !!binary aGk=\n", ("bad.yaml:1: seed is binary; use numbers",)),
    "a tag that does not fit": ("\nseed: !!int fast\n", ("bad.yaml:2: seed is 'fast'; it is no int",)),
    "a list with the tag of a text": ("name: !!str [a]\n", ("bad.yaml:1: name is tagged str; use numbers, strings",)),
    "a key that is a list": ("data: {[1]: 2}\n", ("bad.yaml:1: data: key that is a list must be a string",)),
    "a key that is a number, below": ("data:\n  name: x\n  0: 2\n", ("bad.yaml:3: data: key 0 must be a string",)),
    "a key that is null": ("data: {~: 2}\n", ("bad.yaml:1: data: key ~ must be a string",)),
    "an empty key": ('data: {"": 2}\n', ("bad.yaml:1: data: key '' must be of 1 to 200 printable characters",)),
    "a key of two lines": ('"a\\nb": 2\n', ("bad.yaml:1: key 'a\\nb' must be of 1 to 200",)),
    "half a character": ('name: "\\ud800"\n', ("bad.yaml:1: name is '\\ud800'; it must not hold the character",)),
    "another end of a line": ('name: "a\\u2028b"\n', ("bad.yaml:1: name is 'a\\u2028b'; it must not hold",)),
    "a control character in quotes": ('name: "\\e[31m"\n', ("bad.yaml:1: name is '\\x1b[31m'; it must not hold",)),
    "5,000 digits": (f"seed: {'9' * 5000}\n", ("bad.yaml:1: seed is '9999", "it is no int that can be read")),
    "4,000 digits": (f"seed: {'9' * 4000}\n", ("bad.yaml:1: seed is an integer of more than 100 digits",)),
    "a capital": (BASE + "SEED: 1\n", ("bad.yaml:7: SEED: unknown key; did you mean 'seed'?",)),
    "a schedule without a name": (
        BASE.replace("0.1", "{name: [1]}"),
        ("bad.yaml:6: server.lr: is {'name': [1]}; it should be a number, one of the schedules",),
    ),
    "published points that a case takes away": (
        BASE + "published: 3\ncases: [{published: null}]\n",
        ("bad.yaml:7: published: is 3; it must be a mapping",),
    ),
    "a million runs": (
        BASE + f"sweep:\n  seed: {list(range(1000))}\n  server.lr: {list(range(1, 1001))}\n",
        ("bad.yaml:7: sweep: makes 1,000,000 runs (1000 of seed × 1000 of server.lr); take away values",),
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("text", "says"), TEXTS.values(), ids=TEXTS)
def test_yaml(text: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    small_yaml.with_name("bad.yaml").write_text(text, encoding="utf-8")
    refused("show", "bad.yaml", says=says)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "says"), {"pipe": "it is a pipe", "/dev/zero": "it is a device"}.items())
def test_no_regular_file(name: str, says: str, small_yaml: Path, refused: Refused) -> None:
    os.mkfifo("pipe")
    refused("show", name, says=(f"{name}: cannot be read ({says}); name a YAML file",))
    refused("run", small_yaml, f"data.name=npz:{name}", says=(f"{name}: cannot be read ({says}); it must be an NPZ",))
    order = f"dispatcher={{name: scripted, order: {{csv: {name}}}}}"
    refused("show", small_yaml, order, says=(f"dispatcher.order: cannot read {name}: {says}; name a CSV file",))
    Path("mnist").mkdir()
    Path("mnist/train-images-idx3-ubyte").symlink_to(Path(name).resolve())
    says_mnist = (f"mnist/train-images-idx3-ubyte: cannot be read ({says})",)
    refused("run", small_yaml, "data={name: mnist}", "--data-root", ".", says=says_mnist)


SIZES = {
    "clients.count=1000000000000": ("clients.count: is 1000000000000; it should be less than or equal to 10000000",),
    "clients.count=9223372036854775808": ("clients.count: is 9223372036854775808; it should be less than or equal",),
    "iterations=9223372036854775808": ("iterations: is 9223372036854775808; it should be less than 4294967296",),
    "evaluation.every=4294967296": ("evaluation.every: is 4294967296; it should be less than 4294967296",),
    "threads=10000": ("threads: is 10000; it should be less than or equal to 1024",),
    "model.hidden=[1000000000]": (
        "model.hidden is [1000000000]; 75,000,000,010 parameters, of 64 inputs and 10 classes, take 1.2 TB, and this",
        "make the model smaller",
    ),
    "clients.local_steps=4294967295": (
        "clients.local_steps is 4294967295; the samples of a client's local steps take",
    ),
    "server={name: easgd, lr: 0.1, period: 4294967295}": ("server.name is easgd, with 4294967295 local steps;",),
    "server.lr=3.5e38": ("server.lr: is 3.5e+38; it should be less than or equal to 3.4028234663852886e+38",),
    "memory=much": ("memory: is 'much'; it must be a number of bytes, such as 500000000 or 500MB",),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("override", "says"), SIZES.items(), ids=SIZES)
def test_sizes(override: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, override, "--quiet", says=(f"override '{override}': ", *says))
    assert list(small_yaml.parent.iterdir()) == [small_yaml]


@pytest.mark.parametrize("path", ["hand", "fused", "snapshots"])
def test_more_copies_than_memory(
    path: str, small_yaml: Path, refused: Refused, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, small = os.sysconf, {"SC_PHYS_PAGES": 25_000, "SC_PAGE_SIZE": 4096}  # 102 MB
    monkeypatch.setattr(os, "sysconf", lambda name: small.get(str(name)) or real(name))
    words = [small_yaml, "clients.count=20000", "iterations=20000", "model.hidden=[300]", f"path={path}", "--quiet"]
    says = (
        "clients.count",
        "the 20,000 tasks whose passes may be pending"
        if path == "hand"
        else "the 20,001 copies of the parameters that they may",
    )
    refused("run", *words, says=(*says, "this machine has 102 MB of memory; give `memory`, such as memory: 4GB"))
    assert list(small_yaml.parent.iterdir()) == [small_yaml]
    assert command("run", *words, "iterations=100", "--out", "few") == (0, "", "")
    assert command("run", *words, "iterations=100", "memory=20MB", "--out", "some") == (0, "", "")
    assert command("compare", "few", "some")[0] == 0
    if path != "fused":  # what the server keeps for each client counts, too
        count, held, take = {
            "snapshots": (700, "701 copies of the parameters that they may hold", "126 MB"),
            "hand": (1100, "1,100 tasks whose passes may be pending", "110 MB"),
        }[path]
        words += [f"clients.count={count}", f"iterations={count}"]
        full = (
            f"the {held} and the {count:,} arrays that the server keeps for them take {take}, and this machine has 102"
        )
        refused("run", *words, "server={name: ia2sgd, lr: 0.1}", says=(f"{full} MB",))
        assert command("run", *words, "--out", "fits") == (0, "", "")


def test_copies_are_those_of_the_clients_at_work(
    small_yaml: Path, refused: Refused, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle clients hold no parameters; what the server keeps is of all clients that ever took part."""
    real, small = os.sysconf, {"SC_PHYS_PAGES": 25_000, "SC_PAGE_SIZE": 4096}  # 102 MB
    monkeypatch.setattr(os, "sysconf", lambda name: small.get(str(name)) or real(name))
    words = [small_yaml, "clients.count=2000", "iterations=2000", "model.hidden=[300]", "--quiet"]
    assert command("run", *words, "clients.fraction=0.01", "--out", "few") == (0, "", "")
    size = 4 * (64 * 300 + 300 + 300 * 10 + 10)
    for fraction, copies in ((0.9, 1801), (0.7, 1401)):
        says = f"clients.count is 2000; the {copies:,} copies of the parameters that they may hold take"
        takes = f"{copies * size / 1e6:.0f} MB, and this machine has 102 MB of memory; give `memory`"
        refused("run", *words, f"clients.fraction={fraction}", says=(says, takes))
    says = "the 21 copies of the parameters that they may hold and the 2,000 arrays that the server keeps for them take"
    refused("run", *words, "clients.fraction=0.01", "server={name: ia2sgd, lr: 0.1}", says=(says,))
    # Of so many minibatches at once, too.
    words += ["window=2000", "clients.batch_size=16"]
    assert command("run", *words, "clients.fraction=0.01", "--out", "windows") == (0, "", "")
    refused("run", *words, says=("window is 2000; 2,000 minibatches at once take",))
    large = ("window=300", "clients.batch_size=1000")  # of which the samples and activations are the most
    refused("run", *words, *large, says=("window is 300; 300 minibatches at once take",))


def test_epochs_of_too_many_iterations(digits_experiment: dict[str, Any]) -> None:
    """An epoch is four minibatches of 300 of the 1,200 rows."""
    length = {"iterations": None, "epochs": 2**30, "clients": {"count": 8, "batch_size": 300}}
    with pytest.raises(ConfigError, match="epochs is 1073741824; that is 4,294,967,296 iterations, and"):
        prepare(resolve(digits_experiment | length), None)


@pytest.mark.parametrize("name", [".", "..", "....", "-x", ".x", "+x", "a/b", "a b", "'a\n'", "''", "ä" * 101])
def test_names_that_are_no_folders(name: str, small_yaml: Path, refused: Refused) -> None:
    small_yaml.write_text(f"name: {name}\n{BASE}", encoding="utf-8")
    says = "small.yaml:1: name: is '" if name != "''" else "small.yaml:1: name: is ''; it names files"
    refused("run", small_yaml, says=(says, "begin with a letter, a digit or _"))
    assert list(small_yaml.parent.iterdir()) == [small_yaml]


def test_long_names_of_runs(small_yaml: Path, command: Command) -> None:
    """What is swept over stands in a folder's name, whose bytes are limited."""
    Path("λ" * 120).write_text("client\n0\n", encoding="utf-8")
    with small_yaml.open("a", encoding="utf-8") as file:
        file.write(f"dispatcher: {{name: scripted}}\nsweep: {{dispatcher.order: [{{csv: {'λ' * 120}}}, [1]]}}\n")
    assert command("run", small_yaml, "--quiet", "--out", "out") == (0, "", "")
    short, long = sorted(path.name for path in Path("out").iterdir() if path.is_dir())
    assert long.startswith(f"order=csv{'λ' * 95}-")
    assert short.startswith("order=1-")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["data.name=npz:~/x.npz"], "~/x.npz: cannot be read (No such file or directory"),
        (["data.name=text:~/x.txt", "model={name: gpt, width: 32, layers: 1}"], "~/x.txt: cannot be read (No such"),
        (["clients.partition={name: lists, file: '~/x.npz'}"], "~/x.npz: cannot be read (No such file or directory"),
        (["dispatcher={name: scripted, order: {csv: '~/x.csv', column: a}}"], "cannot read ~/x.csv: No such file or"),
        (["dispatcher={name: trace, file: '~/x.csv'}"], "cannot read ~/x.csv: No such file or directory"),
    ],
)
def test_no_home_folder_in_an_experiment(keys: list[str], says: str, small_yaml: Path, refused: Refused) -> None:
    """Its digest has the path, which would be another for each user."""
    refused("run", small_yaml, *keys, says=(says, "; ~ is no home folder in an experiment: write it out"))


def test_options(small_yaml: Path, refused: Refused, command: Command) -> None:
    refused("run", small_yaml, "--data-root", small_yaml, says=(f"{small_yaml}: is no folder; name the data root's",))
    sweep = "sweep={seed: [1, 2]}"
    most = f"jobs is 1000000; it must be 1 at least, and {32 * default_threads()} at most: 32 for each processor"
    refused("run", small_yaml, sweep, "--jobs", 10**6, says=(most,))
    refused("show", "x" * 300, says=("no such file",))
    refused("verify", "x" * 300, says=("is no folder",))
    refused("reproduce", "x" * 300, says=("is no paper",))
    refused("run", "", says=("the experiment's name is empty; name a folder or a file",))
    for words in (
        ("run", small_yaml, "--out", ""), ("run", small_yaml, "--data-root", ""), ("new", ""), ("ls", ""),
        ("calibrate", "x", "--out", ""), ("calibrate", ""), ("calibrate", "x", "--predict", ""), ("verify", ""),
        ("compare", "", "x"), ("compare", "x", ""), ("plot", ""), ("plot", "x", "-o", ""), ("report", "x", ""),
        ("report", "x", "-o", ""), ("export", "x", "--to", "mlflow", "-o", ""), ("export", "", "--to", "mlflow"),
    ):  # fmt: skip
        code, output, messages = command(*words)
        assert (code, output) == (2, ""), words
        assert "it is empty; name a folder or a file" in " ".join(messages.replace("│", " ").split()), words
    assert list(small_yaml.parent.iterdir()) == [small_yaml]


def test_a_header_that_python_cannot_take_apart(small_yaml: Path, refused: Refused) -> None:
    header = b"{'descr': '<f8', 'fortran_order': (False, 'shape': (3,), }".ljust(117) + b"\n"
    with zipfile.ZipFile("odd.npz", "w") as file:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            file.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00v\x00" + header + bytes(24))
    refused("run", small_yaml, "data.name=npz:odd.npz", says=("odd.npz: cannot be read (", "it must be an NPZ file"))


def test_a_folder_whose_name_is_too_long(small_yaml: Path, command: Command) -> None:
    code, _, messages = command("reproduce", ".", "--out", "x" * 300)
    assert (code, "cannot be written (File name too long)" in messages) == (2, True)
    assert list(small_yaml.parent.iterdir()) == [small_yaml]


@pytest.mark.timeout(120)
def test_an_npz_that_claims_too_much(small_yaml: Path, refused: Refused) -> None:
    path = small_yaml.with_name("big.npz")
    path.write_bytes(claiming((10**12, 3)))
    says = "big.npz: x_train is damaged (its header says float64 (1000000000000, 3), 24 TB, and 64 B follow)"
    refused("run", small_yaml, "data.name=npz:big.npz", says=(says,))
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            file.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00v\x00" + header + bytes(64))
            file.filelist[-1].file_size = 10 + len(header) + 24 * 10**12
    says = "big.npz: its arrays take 240 TB, and this machine has"
    refused("run", small_yaml, "data.name=npz:big.npz", says=(says, "save fewer rows, or bytes"))
    assert not small_yaml.with_name("results").exists()


def test_an_npz_of_more_classes_than_memory(small_yaml: Path, refused: Refused) -> None:
    part = {"x": np.zeros((7, 300_000), np.uint8), "y": np.full(7, 2**20 - 1)}
    np.savez("wide.npz", x_train=part["x"], y_train=part["y"], x_test=part["x"], y_test=part["y"])
    says = ("model.hidden is []; 314,573,848,576 parameters, of 300,000 inputs and 1,048,576 classes, take 5.03 TB",)
    refused("run", small_yaml, "data.name=npz:wide.npz", "model.hidden=[]", "clients.batch_size=1", says=says)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({1: 2}, "experiment: key 1 must be a string"),
        ({"seed": {3}}, "experiment: seed is a set; use numbers, strings, lists or mappings"),
        ({"data": {"name": b"digits"}}, "experiment: data.name is a bytes; use numbers"),
        ({"model": {"hidden": [np.float32(3.5)]}}, "experiment: model.hidden.0: is 3.5; it should be a valid integer"),
        ({"name": "a\0"}, r"experiment: name is 'a\\x00'; it must not hold the character"),
    ],
)
def test_dicts(changes: dict[Any, Any], says: str, digits_experiment: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        fredsim.run(digits_experiment | changes, out=tmp_path / "out")
    around: list[Any] = []
    around.append(around)
    with pytest.raises(ConfigError, match=r"experiment: model.hidden.0… is nested more than 50 levels deep"):
        fredsim.run(digits_experiment | {"model": {"hidden": around}}, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_dict_of_numpys_floats_and_tuples(simulate: Callable[..., Result]) -> None:
    plain = simulate({"server": {"name": "asgd", "lr": 0.1}, "model": {"hidden": [3]}})
    other = simulate({"server": {"name": "asgd", "lr": np.float64(0.1)}, "model": {"hidden": (3,)}})
    assert other.config == plain.config
    assert other.summary["digest"] == plain.summary["digest"]
