"""An experiment that is not valid: exit code 2, and a message that names place, key, value and remedy."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

import fredsim
from fredsim.config.figures.options import KINDS
from fredsim.config.registry import KNOWN
from fredsim.dispatchers.distributions import Distributions
from fredsim.errors import closest
from fredsim.servers.schedules import SCHEDULES

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

BASE = """\
iterations: 50
data: {name: digits}
clients: {count: 4, batch_size: 2}
server: {name: asgd, lr: 0.1}
"""

FILES = {
    "a misspelt key": (
        BASE.replace("batch_size", "batch_sise"),
        ("bad.yaml:3", "clients.batch_sise", "did you mean 'batch_size'?", "known: count, batch_size, sampling"),
    ),
    "a misspelt key at the top": (BASE + "backnd: numpy\n", ("bad.yaml:5: backnd", "did you mean 'backend'?")),
    "a wrong type": (BASE.replace("50", "many"), ("bad.yaml:1: iterations: is 'many'", "valid integer")),
    "not YAML": ("a: [1, 2\nb: 3\n", ("bad.yaml:2:2: not valid YAML: expected ',' or ']'",)),
    "a control character": ("a: 1\nb: \x07\n", ("bad.yaml:2:4: not valid YAML", "special characters")),
    "duplicate keys": ("seed: 1\ndata: {}\nseed: 2\n", ('bad.yaml:3:1: not valid YAML: found duplicate key "seed"',)),
    "two documents": ("seed: 1\n---\nseed: 2\n", ("bad.yaml:2:1: not valid YAML",)),
    "empty": ("", ("bad.yaml: is empty", "must hold a mapping")),
    "only a comment": ("# nothing\n", ("bad.yaml: is empty", "must hold a mapping")),
    "a list": ("- a\n- b\n", ("bad.yaml: holds a list", "must hold a mapping")),
    "a single value": ("digits\n", ("bad.yaml: holds a single value", "must hold a mapping")),
    "a date": ("seed: 1\nname: 2020-01-01\n", ("bad.yaml:2: name is a date; use numbers, strings, lists or mappings",)),
    "a key that is a number": ("1: 2\n", ("bad.yaml:1: key 1 must be a string; quote it",)),
    "no length": (
        BASE.replace("iterations: 50\n", ""),
        ("bad.yaml: iterations: is missing; give one of iterations, updates, epochs and seconds",),
    ),
    "two lengths": (
        BASE + "epochs: 2\n",
        ("bad.yaml:1: iterations: both iterations and epochs are given; give one of",),
    ),
    "a part that is missing": ("iterations: 1\n", ("data: is required", "clients: is required", "server: is required")),
    "sweep is a list": (BASE + "sweep: [1, 2]\n", ("bad.yaml:5: sweep: must map each key to a list of values",)),
    "an axis is no list": (BASE + "sweep: {seed: 3}\n", ("bad.yaml:5: sweep: must map each key to a list",)),
    "an axis is empty": (BASE + "sweep:\n  seed: []\n", ("bad.yaml:6: seed: is swept over an empty list",)),
    "cases is a mapping": (BASE + "cases: {seed: 1}\n", ("bad.yaml:5: cases: must be a list of mappings",)),
    "cases is empty": (BASE + "cases: []\n", ("bad.yaml:5: cases: must be a list of mappings",)),
    "a case is no mapping": (BASE + "cases: [1]\n", ("bad.yaml:5: cases: must be a list of mappings",)),
    "a key in both": (
        BASE + "cases:\n  - {seed: 1}\nsweep:\n  seed: [2]\n",
        ("bad.yaml:8: 'seed' is swept, and 'seed' stands in cases; keep one of them",),
    ),
    "a case whose keys say two things": (
        BASE + "cases:\n  - {server: {name: sasgd, lr: 0.5}, server.lr: 0.1}\n",
        ("bad.yaml:5: cases: one has 'server.lr' and 'server'; keep one of them",),
    ),
    "a case whose second key takes the place of the first": (
        BASE + "cases:\n  - {server.lr: 0.1, server: {name: sasgd}}\n",
        ("bad.yaml:5: cases: one has 'server' and 'server.lr'; keep one of them",),
    ),
    "a key within one of the other's": (
        BASE + "cases:\n  - {clients.count: 1}\nsweep:\n  clients: [{count: 3, batch_size: 1}]\n",
        ("bad.yaml:8: 'clients' is swept, and 'clients.count' stands in cases",),
    ),
    "an axis that another holds": (
        BASE + "sweep:\n  server: [{name: sasgd}, {name: asgd, lr: 0.1}]\n  server.lr: [0.1]\n",
        ("bad.yaml:7: 'server.lr' is swept, and 'server' is swept too; keep one of them",),
    ),
    "an axis before one that holds it": (
        BASE + "sweep:\n  server.lr: [0.1]\n  server: [{name: sasgd}]\n",
        ("bad.yaml:7: 'server' is swept, and 'server.lr' is swept too; keep one of them",),
    ),
    "a bad value in a sweep": (
        BASE + "sweep:\n  seed: [0, 1]\n  server.lr: [0.1, -0.2]\n",
        ("bad.yaml:7: server.lr: is -0.2; it should be greater than 0",),
    ),
    "a bad value within a swept mapping": (
        BASE + "sweep:\n  server:\n    - {name: asgd, lr: 0.1}\n    - {name: sasgd, lrr: 0.1}\n",
        ("bad.yaml:8: server.lrr: unknown key", "did you mean 'lr'?"),
    ),
    "a bad key in a case": (
        BASE + "cases:\n  - {seed: 1}\n  - {clients.cuont: 1}\n",
        ("bad.yaml:7: clients.cuont: unknown key", "did you mean 'count'?"),
    ),
}


@pytest.mark.parametrize(("text", "says"), FILES.values(), ids=FILES)
def test_a_file(text: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    small_yaml.with_name("bad.yaml").write_text(text, encoding="utf-8")
    refused("show", "bad.yaml", says=says)


OVERRIDES = {
    "clients.count=0": ("clients.count: is 0", "greater than 0"),
    "clients.count=-3": ("clients.count: is -3", "greater than 0"),
    "clients.count=1.5": ("clients.count: is 1.5", "valid integer"),
    "clients.count=true": ("clients.count: is true", "valid integer"),
    "clients.batch_size=0": ("clients.batch_size: is 0", "greater than 0"),
    "clients.batch_size=1201": ("clients.batch_size is 1201", "must not exceed the 1200 training rows (data.train)"),
    "clients=4": (
        "clients: is 4; it must be a mapping of keys to values, such as clients: {count: 32, batch_size: 4}\n",
    ),
    "clients.sampling=idd": ("clients.sampling: is 'idd'", "'sequential', 'iid' or 'shuffled'"),
    "iterations=0": ("iterations: is 0", "greater than 0"),
    "seed=-1": ("seed: is -1", "greater than or equal to 0"),
    "seed=4294967296": ("seed: is 4294967296", "less than 4294967296"),
    "seed=a": ("seed: is 'a'", "valid integer"),
    "name=../elsewhere": ("name: is '../elsewhere'; it names files: begin with a letter",),
    "backend=numpi": ("backend: is 'numpi'", "'auto', 'numpy', 'numba' or 'cuda'"),
    "server.name=asgf": ("server.name: unknown server 'asgf'", "did you mean 'asgd'?", "known: adagrad, adam, asgd"),
    "server.name=..servers:ASGD": ("'..servers:ASGD' must have the form package.module:Class",),
    "server.name=servers:ASGD:lr": ("'servers:ASGD:lr' must have the form package.module:Class",),
    "server=asgd": ("server: is 'asgd'", "must be a mapping"),
    "server.lr=fast": ("server.lr: is 'fast'", "valid number"),
    "server.lr=0": ("server.lr: is 0", "greater than 0"),
    "server.lr=.inf": ("server.lr: is inf", "finite number"),
    "server.lr=.nan": ("server.lr: is nan", "finite number"),
    "sweeep={seed: [0]}": ("sweeep: unknown key; did you mean 'sweep'? (known: name, seed, iterations, ", "select)"),
    "lr=0.1": ("lr: unknown key; did you mean 'server.lr'?",),
    "evaluation={name: sgd}": ("evaluation.name: unknown key (known: every, unit, test, per_client",),
    "clients.local_steps={name: sgd}": (
        "fastest: is required",
        "clients.local_steps.name: unknown key (known: fast",
    ),
    "count=4": ("count: unknown key; did you mean 'clients.count'?",),
    "dispatcher.push={name: 'a:B', k: 2}": ("a gate's name is its key: write {'a:B': {k: 2}}",),
    "server.lrr=1": ("server.lrr: unknown key", "did you mean 'lr'?"),
    "server={name: fasgd, lr: 0.1, gamma: 1}": ("server.gamma: is 1; it should be less than 1",),
    "server={name: fasgd, lr: 0.1, beta: 1.0}": ("server.beta: is 1.0; it should be less than 1",),
    "server={name: fasgd, lr: 0.1, eps: 1.0e-46}": (
        "server.eps: is 1e-46; it should be greater than or equal to 1.1754943508222875e-38",
    ),
    "server={name: soft_sync, lr: 0.1, n: 9}": ("server.n is 9", "must not exceed clients.count, 8"),
    "server={name: soft_sync, lr: 0.1}": ("server.n: is required",),
    "server={name: sync, lr: 0.1, aggregate: 9}": ("server.aggregate is 9", "must not exceed clients.count, 8"),
    "server={name: sync, inner: {name: [adam, asgd], lr: 0.1}}": ("server.inner.name: is ['adam', 'asgd'] (known: ",),
    "server={name: sync, inner: {name: asgd, lr: 0.1, self: 1}}": (
        "server.inner.self: unknown key (known: lr, weight_decay)",
    ),
    "server={name: sync, inner: {name: asgd, lr: 0.1, cls: 1}}": ("server.inner.cls: unknown key (known: lr, weight_",),
    "server={name: sync, inner: {name: momentum, lr: 0.1, self: 1}}": ("server.inner.self: unknown key",),
    "server={name: sync, inner: {name: adam, lr: 0.1, beta3: 1}}": (
        ": server.inner.beta3: unknown key; did you mean 'beta2'? (known: lr, weight_decay, beta1, beta2, eps)",
    ),
    "server={name: sync, inner: {name: asgd, lr: {name: step, base: 1, factor: 0.5, evry: 3}}}": (
        ": server.inner.lr.evry: unknown key; did you mean 'every'?",
    ),
    "server={name: sync, inner: {lr: 0.1}}": ("server.inner.name: is required (known: adagrad, adam,",),
    "server={name: sync, inner: {'name:asgd': null, lr: 0.1}}": (
        "server.inner.name: is required; write name: asgd, with a space after the colon",
    ),
    "server={name: sync, inner: {name: fasgd, lr: 0.1, gamma: 3}}": (
        ": server.inner.gamma: is 3; it should be less than 1",
    ),
    "server={name: sync, inner: {name: sync, lr: 0.1}}": ("server.inner.name: is 'sync'; it must be a server that",),
    "server={name: sync, inner: {name: bfasgd, lr: 0.1}}": ("server.inner.name: is 'bfasgd', whose gates stand",),
    "data={name: 'mishchenko:'}": ("data.name: unknown data set 'mishchenko:'",),
    "average={name: 'mine:Average'}": ("average.name: unknown average 'mine:Average' (known: window)",),
    "server={name: rescaled, lr: 0.1, times: [1, 2]}": ("server.times has 2 values", "give one per client, 8"),
    "server={name: rescaled, lr: 0.1, times: known}": ("server.times: is 'known'", "must be measured, or a list"),
    "server={name: mindflayer, lr: 0.1, trials: [1, 2]}": ("server.trials has 2 values", "give one per client, 8"),
    "server={name: mindflayer, lr: 0.1, trials: [0, 0, 0, 0, 0, 0, 0, 0]}": ("server.trials are all 0",),
    "server={name: mindflayer, lr: 0.1, probability: [0.5]}": (
        "server.probability has 1 values",
        "give one per client",
    ),
    "server={name: mindflayer, lr: 0.1, probability: half}": ("server.probability: is 'half'", "must be measured"),
    "server={name: mindflayer, lr: 0.1, probability: 0}": ("server.probability: is 0", "greater than 0"),
    "dispatcher.name=unifrom": ("unknown dispatcher 'unifrom'", "did you mean 'uniform'?", "known: clock, round_robin"),
    "dispatcher.foo=1": ("dispatcher.foo: unknown key", "known: none"),
    "dispatcher.wait=perhaps": ("dispatcher.wait: is 'perhaps'", "valid boolean"),
    "dispatcher={name: scripted, order: [0, 8]}": ("dispatcher.order names client 8", "ids lie in 0 … 7"),
    "dispatcher={name: scripted, order: [-1]}": ("dispatcher.order names client -1", "ids lie in 0 … 7"),
    "dispatcher={name: scripted, order: []}": ("dispatcher.order: is []; it should have at least 1 item",),
    "dispatcher={name: weighted, weights: [1, 0]}": ("dispatcher.weights.1: is 0", "greater than 0"),
    "dispatcher={name: weighted, weights: [1, -2]}": ("dispatcher.weights.1: is -2", "greater than 0"),
    "dispatcher={name: weighted, weights: [1, .inf]}": ("dispatcher.weights.1: is inf", "finite number"),
    "dispatcher={name: weighted, weights: [1,1,1,1,1,1,1,1,1]}": ("has 9 values; give at most one per client, 8",),
    "data.name=mnits": ("data.name: unknown data set 'mnits'", "did you mean 'mnist'?", "digits, mnist, npz:PATH"),
    "data.name=digits:8": ("data.name: unknown data set 'digits:8'", "digits, mnist, npz:PATH"),
    "model.hidden=8": ("model.hidden: is 8", "valid list: write [8]"),
    'figures="a\\nb"': ("figures: is 'a\\nb'; it should be a valid list\n",),
    "model.hidden=true": ("model.hidden: is true; it should be a valid list, such as hidden: [64, 32]\n",),
    "iterations=1e3": ("iterations: is 1000.0", "valid integer: write 1000"),
    "server.lr=0,1": ("server.lr: is '0,1'", "valid number: write 0.1"),
    "model.hidden=[8, 0]": ("model.hidden.1: is 0", "greater than 0"),
    "model.init=hee": ("model.init: is 'hee'", "'he', 'glorot', 'torch', 'zeros' or 'normal'"),
    "model.init={name: normal, std: -1}": ("model.init.std: is -1", "greater than or equal to 0"),
    "evaluation.every=0": ("evaluation.every: is 0", "greater than 0"),
    "evaluation.unit=day": ("evaluation.unit: is 'day'", "'iterations', 'updates', 'epochs' or 'seconds'"),
    "iterations.x=3": ("iterations.x: iterations is 50; it must be a mapping",),
    "seed": ("must have the form KEY=VALUE, without spaces around =, such as server.lr=0.01",),
    "=3": ("must have the form KEY=VALUE",),
    "server..lr=3": ("must have the form KEY=VALUE",),
    "seed=[1": (":1:3: not valid YAML",),
    "sweep=3": ("sweep: must map each key to a list of values",),
    "sweep.seed=[1]": ("there is no axis seed to replace; give the sweep", "such as 'sweep={seed: [1]}'"),
    f"sweep.x={[1] * 200}": ("there is no axis x to replace", "such as 'sweep={x: […]}'"),
    "cases.seed=1": ("to replace an axis write its key alone, such as seed=[0,1]",),
    f"data.sha256={'a' * 64}": ("data.sha256: is aaa", "digits is no file whose content it could be: leave it out"),
    f"{'a.' * 50}b=1": ("its key has 51 parts; 50 are the most",),
    f"{'a.' * 600}b=1": ("its key has 601 parts; 50 are the most",),
    f"clients.{'a' * 201}=1": ("must be of 1 to 200 printable characters",),
    "cases=[1]": ("cases: must be a list of mappings",),
    "clints.count=3": ("'clints.count=3': clints: unknown key; did you mean 'clients'?",),
}


@pytest.mark.parametrize(("override", "says"), OVERRIDES.items(), ids=OVERRIDES)
def test_an_override(override: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    refused("show", small_yaml, override, says=(f"override '{override[:90]}", *says))


def test_a_misspelt_key_is_not_missed_as_well(
    small_yaml: Path, own_server: Callable[..., str], command: Callable[..., tuple[int, str, str]]
) -> None:
    Path("own_misspelt.py").write_text(own_server(), encoding="utf-8")
    for override, says in {
        "clients={count: 4, bach_size: 2}": "clients.bach_size: unknown key; did you mean 'batch_size'?",
        "server={name: fasgd, lrr: 0.1}": "server.lrr: unknown key; did you mean 'lr'?",
        "server={name: 'own_misspelt:Plain', lrr: 0.1}": "server.lrr: unknown key; did you mean 'lr'?",
    }.items():
        code, _, messages = command("show", small_yaml, override)
        assert code == 2
        assert says in messages
        assert "is required" not in messages
    _, _, messages = command("show", small_yaml, "server={name: fasgd, q: 1}")
    assert "server.lr: is required" in messages  # nothing says that q was meant to be lr


def test_what_another_class_left_over(small_yaml: Path, own_server: Callable[..., str], refused: Refused) -> None:
    text = small_yaml.read_text(encoding="utf-8").replace("name: asgd", "name: downpour, limit: 3")
    small_yaml.write_text(text, encoding="utf-8")
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "limit" in one)
    says = (
        f"small.yaml:{line}: server.limit: unknown key of server asgd (override 'server.name=asgd') (known: lr, weight"
    )
    refused("show", small_yaml, "server.name=asgd", says=(says, "; give server={name: asgd, lr: …}"))
    small_yaml.write_text(text.replace("lr: 0.1", "lr: -1"), encoding="utf-8")
    refused("show", small_yaml, "server.name=asgd", says=("server.lr: is -1; it should be greater than 0\n",))
    Path("own_rest.py").write_text(own_server().replace("self, lr", "self, rate"), encoding="utf-8")
    says, remedy = "server.limit: unknown key of server own_rest:Plain (", "give server={name: own_rest:Plain, rate: …}"
    refused("show", small_yaml, "server.name=own_rest:Plain", says=(says, remedy))


@pytest.mark.parametrize(
    "override",
    [
        "clients.batch_size=1200",  # all the training rows
        "server={name: fasgd, lr: 0.1, eps: 1.1754943508222875e-38, gamma: 0.99999, beta: 0}",
        "name=_",
        "server.lr=3.4028234663852886e+38",
    ],
)
def test_what_is_just_right(override: str, small_yaml: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    code, _, messages = command("show", small_yaml, override)
    assert (code, messages) == (0, "")


@pytest.mark.parametrize(
    ("override", "says"),
    {
        "server.lr=-1": ("server.lr: is -1",),
        "seed=[]": ("seed: is swept over an empty list",),
        "seed=[a, 1]": ("seed: is 'a'",),
        "sweep.seed=[1]": ("to replace an axis write its key alone, such as seed=[0,1]",),
        "sweep.server.lr=0.1": ("there is no axis server.lr to replace", "'sweep={server.lr: [0.1]}'"),
        "clients.count.x=1": ("clients.count is 8; it must be a mapping",),
    }.items(),
)
def test_an_override_of_a_sweep(override: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    small_yaml.write_text(
        small_yaml.read_text(encoding="utf-8") + "sweep: {seed: [0, 1], server: [{name: asgd, lr: 0.2}]}\n",
        encoding="utf-8",
    )
    refused("show", small_yaml, override, says=(f"override '{override}'", *says))


@pytest.mark.parametrize("server", ["{name: sync, lr: 0.1}", "{name: soft_sync, lr: 0.1, n: 2}"])
def test_no_wait_with_a_server_that_holds(server: str, small_yaml: Path, refused: Refused) -> None:
    says = ("override 'dispatcher.wait=false'", "dispatcher.wait is false", "holds its clients, so they must wait")
    refused("show", small_yaml, f"server={server}", "dispatcher.wait=false", says=says)


def test_files_that_cannot_be_read(small_yaml: Path, refused: Refused) -> None:
    refused("run", "absent.yaml", says=("absent.yaml: no such file", "fredsim list experiments"))
    refused("run", "quikstart", says=("quikstart: no such file", "did you mean 'quickstart'? `fredsim list"))
    with pytest.raises(fredsim.FredsimError, match="overrides: is 'seed=1'; it must be a list of strings, such as"):
        fredsim.run(small_yaml, overrides="seed=1")
    refused("run", small_yaml.parent, says=(f"{small_yaml.parent}: cannot be read", "name a YAML file"))
    small_yaml.write_bytes(b"name: \xff\xfe\n")
    refused("run", small_yaml, says=(f"{small_yaml}: cannot be read", "save it as UTF-8"))


def test_digits_of_other_scripts(small_yaml: Path, command: Command, refused: Refused) -> None:
    """Numbers are written as Python writes them; a metric top٣ was computed, and its run could not be read again."""
    for memory in ("٣", "'１GB'", "3 ＭＢ"):
        what = f"memory: is '{memory.strip(chr(39))}'; it must be a number of bytes, such as 500000000"
        refused("show", small_yaml, f"memory={memory}", says=(what,))
    for metric in ("top٣", "top1٣"):
        refused("show", small_yaml, f"evaluation.metrics=[{metric}]", says=(metric, "did you mean 'top5'"))
    for name, values in {"--jobs": ("٣", "1_0"), "--checkpoint": ("١", "1_000.5")}.items():
        for value in values:
            code, _, messages = command("run", small_yaml, name, value, "--out", "out")
            assert (code, f"'{value}' is n" in messages) == (2, True), messages
    assert not Path("out").exists()
    assert command("run", small_yaml, "iterations=2", "--jobs", 1, "--out", "out", "--quiet")[0] == 0


def test_nothing_is_written_for_a_refused_experiment(small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, "server.lr=-1", "--out", "results", says=("server.lr: is -1",))
    assert list(small_yaml.parent.iterdir()) == [small_yaml]


def test_in_a_process_of_its_own(small_yaml: Path) -> None:
    words = [sys.executable, "-m", "fredsim", "run", str(small_yaml), "server.lr=-1"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: override 'server.lr=-1': server.lr: is -1; it should be greater than 0\n"


@pytest.mark.parametrize("first", ["server.lr=0.1", "clients.batch_size=8", "seed=1", "sweep={seed: [0, 1]}"])
def test_an_override_in_the_place_of_the_file(first: str, small_yaml: Path, command: Command) -> None:
    """No experiment of a like name is proposed; a file of such a name is one."""
    for name in ("run", "show", "plan", "cite"):
        words = (first, *([] if name == "show" else [small_yaml]))
        message = f"error: {first}: is an override; name the file or the experiment before it\n"
        assert command(name, *words) == (2, "", message)
    if "{" not in first:
        small_yaml.rename(first)
        assert command("show", first)[0] == 0


Bounds = tuple[list[float], list[float]]
SHARE: Bounds = ([-0.01, 1.0], [0.0, 0.99])
COUNT: Bounds = ([0, -1, 2**32], [1, 2**32 - 1])
#: By a hyper-parameter, or one of a class: values just beyond its bounds, and the last ones within.
BOUNDS: dict[str, Bounds] = {
    **dict.fromkeys(("lr", "server_lr", "base", "clip_sigma", "bytes", "sd", "mean"), ([0.0, -0.1], [1e-30])),
    "eps": ([0.0, -1e-9], [1e-30]),  # what is divided by, or lets pass what is 0
    **dict.fromkeys(("gap_aware.c", "average_staleness.staleness", "step.factor"), ([0.0, -0.1], [1e-30])),
    **dict.fromkeys(("weight_decay", "t0", "l1", "l2", "kappa", "lambda0", "lambd", "power"), ([-1e-9], [0.0])),
    **dict.fromkeys(("bandwidth_aware.c", "c_push", "c_fetch", "final", "rate", "fedasync.a"), ([-1e-9], [0.0])),
    **dict.fromkeys(("beta", "beta1", "beta2", "gamma", "momentum", "decay", "shift"), SHARE),
    **dict.fromkeys(("buffer", "batch", "threshold", "max_delay", "n", "n_push", "n_fetch", "period", "tau_c"), COUNT),
    **dict.fromkeys(("aggregate", "levels", "min_window", "max_window", "every.k", "every", "steps"), COUNT),
    **dict.fromkeys(("activation", "bernoulli.p"), ([-0.01, 1.01], [0.0, 1.0])),
    **dict.fromkeys(("mixing", "probability", "spread"), ([0.0, 1.01], [1e-30, 1.0])),
    "easgd.alpha": ([0.0, 1.0], [1e-30, 0.99]),
    "averaged.alpha": ([-1e-9], [0.0]),
    "throttle.q": ([0.99], [1.0]),
    "top_k.k": ([0, 0.0, -1, 1.0, 2**32], [1, 1e-30, 0.99]),
    "cv": ([0.0, 10.1], [0.001, 10.0]),
    "sigma": ([0.0, 10.1], [1e-30, 10.0]),
    "pareto.alpha": ([1.0, 1000.1], [1.001, 1000.0]),
}


def test_the_bounds_of_each_number() -> None:
    """Those of the classes that come with fredsim, of schedules and of distributions."""
    models = [(name, cls.Hyper) for kind in KNOWN.values() for name, cls in kind.items()]
    drawn = [(get_args(one.model_fields["name"].annotation)[0], one) for one in get_args(Distributions)]
    asked = set()
    for name, model in [*models, *SCHEDULES.items(), *drawn]:
        for key in model.model_fields:
            if found := next((one for one in (f"{name}.{key}", key) if one in BOUNDS), None):
                beyond, within = BOUNDS[found]
                asked.add(found)
                for value, right in [*((value, False) for value in beyond), *((value, True) for value in within)]:
                    with pytest.raises(ValidationError) as caught:
                        model.model_validate({key: value, "no such key": 0})
                    assert right == all(problem["loc"][0] != key for problem in caught.value.errors()), (name, value)
    assert asked == BOUNDS.keys()


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("pie", None),
        ("copy", "copies"),
        ("curve", "curves"),
        ("matrx", "matrix"),
        ("time", "timeline"),
        ("wait", "waits"),
    ],
)
def test_a_name_that_is_far_off_is_not_proposed(word: str, near: str | None) -> None:
    assert closest(word, KINDS) == near


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
@pytest.mark.parametrize("target", ["loop.yaml", "gone.yaml"])
def test_a_link_to_nothing_is_named(target: str, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(target)
    refused("run", path, says=(f"loop.yaml: is a symbolic link to '{target}', and no file is there",))
