"""A user's own classes and files that break their contract: a message, never a traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fredsim
from fredsim.errors import SimulationError
from fredsim.plugins.guarded import Guarded

Refused = Callable[..., None]

MODULE = """
from fredsim.servers import Reply, Server
from fredsim.servers.base import Rated


class WithoutInit:
    def apply_update(self, grad, client_id, timestamp):
        pass


class WithoutUpdate:
    def init(self, params, clients):
        pass


class Refuses(Plain):
    def __init__(self, lr):
        raise ValueError("the moon is full")


class Quits(Plain):
    def __init__(self, lr):
        raise SystemExit(7)


class Raises(Plain):
    def apply_update(self, grad, client_id, timestamp):
        if timestamp == 3:
            raise ZeroDivisionError("three")
        super().apply_update(grad, client_id, timestamp)


class Double(Plain):
    def init(self, params, clients):
        self.params = params.astype(np.float64)


class Short(Plain):
    def init(self, params, clients):
        self.params = params[1:]


class Nothing(Plain):
    def init(self, params, clients):
        pass


class Widens(Plain):
    def apply_update(self, grad, client_id, timestamp):
        self.params = self.params.astype(np.float64)


class WidensAtFetches(Plain):
    def fetch(self, client_id):
        fetched = self.params.astype(np.float32)
        self.params = fetched.astype(np.float64)
        return fetched


class Starts(Plain):
    def init(self, params, clients):
        raise KeyError("start")


class Answers(Plain):
    def apply_update(self, grad, client_id, timestamp):
        return 5


class Frees(Plain):
    def apply_update(self, grad, client_id, timestamp):
        return Reply((client_id, 99))


class Later(Plain):
    def apply_update(self, grad, client_id, timestamp):
        if timestamp == 3:
            self.params = self.params[1:]


class Hands(Plain):
    def fetch(self, client_id):
        return self.params.tolist()


class AtTheEnd(Plain):
    def apply_update(self, grad, client_id, timestamp):
        return Reply((client_id, 8))


class Restarts(Plain):
    holds = True

    def apply_update(self, grad, client_id, timestamp):
        return Reply((client_id,), (0,))


class Uncountable(Plain):
    def apply_update(self, grad, client_id, timestamp):
        return Reply(5)


class Exits(Plain):
    def apply_update(self, grad, client_id, timestamp):
        if timestamp == 3:
            raise SystemExit("gone")


class Generates(Plain):
    def apply_update(self, grad, client_id, timestamp):
        raise GeneratorExit


class ExitsInInit(Plain):
    def init(self, params, clients):
        raise SystemExit(0)


class Hides(Plain):
    pushed = 0

    def apply_update(self, grad, client_id, timestamp):
        self.pushed += 1

    @property
    def params(self):
        return self._params if self.pushed < 3 else 1 / 0

    @params.setter
    def params(self, params):
        self._params = params


class Weighs(Plain):
    def bytes_pushed(self):
        return "heavy"


class WeighsNothing(Plain):
    def bytes_fetched(self):
        return 0


class CannotWeigh(Plain):
    def bytes_fetched(self):
        raise SystemExit("scales")


class Averages(Plain):
    @property
    def averaged_params(self):
        return self.params[1:]


class CannotAverage(Plain):
    @property
    def averaged_params(self):
        return 1 / 0


class Nonsense(Plain):
    pushes = "nonsense"


class Delta(Plain):
    pushes = "delta"

    def rate(self):
        return self.alpha


class Backward(Delta):
    alpha = -0.5


class Vague(Delta):
    alpha = "small"


class Lost(Delta):
    alpha = float("nan")


class Raising(Delta):
    @property
    def alpha(self):
        raise SystemExit(3)


class Flat(Plain):
    v = 0.5


class Falls(Plain):
    timestamp = 0

    def apply_update(self, grad, client_id, timestamp):
        self.timestamp = 1 if self.timestamp == 0 else self.timestamp - 1


class Jumps(Plain):
    timestamp = 0

    def apply_update(self, grad, client_id, timestamp):
        self.timestamp += 2


class Twice(Plain):
    def apply_update(self, grad, client_id, timestamp):
        return Reply((client_id, client_id))


class RestartsItself(Plain):
    holds = cancels = True

    def apply_update(self, grad, client_id, timestamp):
        return Reply((), (client_id,))


class Guesses(Plain):
    def proxies(self, client_id, timestamp):
        return {"staleness": 1.0}


class Numbers(Plain):
    def proxies(self, client_id, timestamp):
        return {1: 1.0}


class Steps(Plain):
    local_steps = "many"


class Settles(Plain):
    def gates(self):
        return {"pull": "always"}


class Mistakes(Plain):
    def gates(self):
        return {"push": 7}


class Drops(Plain):
    def gates(self):
        return {"dropped_push": "forget"}


class Holds(Plain):
    holds = True

    def pushes_until_release(self):
        return 0.5


class Derived(Server):
    Hyper = Rated

    def apply_update(self, grad, client_id, timestamp):
        self.params = self.params.astype(np.float64)


class Forgets(Server):
    Hyper = Rated

    def apply_update(self, grad, client_id, timestamp):
        with np.errstate(all="ignore"):
            self.params = self.params * np.float32(1e9)
        self.timestamp += 1


class Misses(Plain):
    def apply_update(self, grad, client_id):
        pass


class Deep(Plain):
    def apply_update(self, grad, client_id, timestamp):
        np.linalg.inv(np.zeros((2, 2)))


class DerivedInit(Server):
    Hyper = Rated

    def init(self, params, clients, layout=None):
        raise SystemExit("not today")


def function(lr):
    return Plain(lr)
"""

CLASSES = {
    "WithoutInit": ("class 'faulty:WithoutInit' has no method 'init'", "a server needs init, apply_update"),
    "WithoutUpdate": ("class 'faulty:WithoutUpdate' has no method 'apply_update'", "a server needs init, apply_update"),
    "Plian": ("server.name: module 'faulty' has no 'Plian'", "did you mean 'Plain'?"),
    "function": ("server.name: 'faulty:function' is a function; it must be a class",),
    "Quits": ("server: faulty:Quits(lr) failed: SystemExit: 7",),
    "Refuses": ("server: faulty:Refuses(lr) failed: ValueError: the moon is full",),
    "Raises": ("Raises, client ", ", iteration ", ", apply_update: ZeroDivisionError: three (faulty.py:43)"),
    "Double": ("params: is float64 (1210,); it must be float32 (1210,); a float64 took part: give np.float32 numbers",),
    "Short": ("Short, init, params: is float32 (1209,); it must be float32 (1210,)",),
    "Nothing": ("Nothing, init, params: is NoneType; it must be float32 (1210,): nothing has set it",),
    "Widens": ("Widens, client 7, iteration 0, params: is float64 (1210,); it must be float32 (1210,)",),
    "WidensAtFetches": ("WidensAtFetches, client ", "params: is float64 (1210,); it must be float32 (1210,)"),
    "Starts": ("Starts, init: KeyError: 'start' (faulty.py:",),
    "Answers": ("Answers, client 7, iteration 0, apply_update: returned 5; it must return None or a Reply",),
    "Frees": ("Frees, client 7, iteration 0, reply: names client 99; ids lie in 0 … 7",),
    "Later": (", params: is float32 (1209,); it must be float32 (1210,)",),
    "AtTheEnd": ("AtTheEnd, client 7, iteration 0, reply: names client 8; ids lie in 0 … 7",),
    "Restarts": ("reply: restarts clients; a server that may do so declares cancels = True",),
    "Uncountable": ("Uncountable, client 7, iteration 0, reply: TypeError: 'int' object is not iterable",),
    "Exits": ("Exits, client ", ", iteration ", ", apply_update: SystemExit: gone (faulty.py:"),
    "Generates": ("Generates, client 7, iteration 0, apply_update: GeneratorExit: ",),
    "ExitsInInit": ("ExitsInInit, init: SystemExit: 0 (faulty.py:",),
    "Hides": ("Hides, client ", ", iteration 2, params: ZeroDivisionError: division by zero (faulty.py:"),
    "Weighs": ("iteration 0, what bytes_pushed returns: is 'heavy'; it must be an integer, 1 at least",),
    "WeighsNothing": ("WeighsNothing, client 7, iteration 0, what bytes_fetched returns: is 0; it must be an integer",),
    "CannotWeigh": ("CannotWeigh, client 7, iteration 0, bytes_fetched: SystemExit: scales (faulty.py:",),
    "Averages": ("Averages, init, averaged_params: is float32 (1209,); it must be float32 (1210,)",),
    "CannotAverage": ("CannotAverage, init, averaged_params: ZeroDivisionError: division by zero (faulty.py:",),
    "Nonsense": ("Nonsense, pushes: is 'nonsense'; it must be one of gradient, delta, params",),
    "Backward": ("Backward, iteration 0, the learning rate that rate returns: is -0.5; it must be a number, 0",),
    "Vague": ("Vague, iteration 0, the learning rate that rate returns: is 'small'; it must be a number",),
    "Lost": ("Lost, iteration 0, the learning rate that rate returns: is nan; it must be a number",),
    "Raising": ("Raising, iteration 0, rate: SystemExit: 3 (faulty.py:",),
    "Jumps": ("Jumps, client ", "iteration 0, timestamp: is 2 after 0; it must be that, or one more"),
    "Twice": ("Twice, client 7, iteration 0, reply: names a client twice; it fetches once",),
    "RestartsItself": ("reply: restarts client 7, which waits; to let it continue, name it in released",),
    "Falls": ("Falls, client ", "iteration 1, timestamp: is 0 after 1; it must be that, or one more"),
    "Steps": ("Steps, local_steps: is 'many'; it must be an integer, 1 at least",),
    "Settles": (
        "Settles, gates: returned {'pull': 'always'}; it must return a dict of push, fetch, dropped_push, rep",
    ),
    "Mistakes": ("Mistakes, gates, push: is 7; it must be always, or one name with its hyper-parameters",),
    "Drops": ("Drops, gates, dropped_push: is 'forget'; it must be one of reapply, skip, accumulate, average",),
    "Holds": ("Holds, init, what pushes_until_release returns: is 0.5; it must be an integer, 1 at least",),
    "Derived": ("Derived, client 7, iteration 0, params: is float64 (1210,); it must be float32 (1210,)",),
    "Misses": (
        "apply_update: is apply_update(self, grad, client_id) (faulty.py:",
        "); it must be apply_update(self, grad, client_id, timestamp)",
    ),
    "Deep": ("iteration 0, apply_update: LinAlgError: Singular matrix (faulty.py:",),
    "DerivedInit": ("DerivedInit, init: SystemExit: not today (faulty.py:",),
    "Hands": ("Hands, client 7, iteration 0, what fetch returns: is list; it must be float32 (1210,)",),
}


@pytest.fixture
def faulty(small_yaml: Path, own_server: Callable[..., str]) -> Path:
    small_yaml.with_name("faulty.py").write_text(own_server() + MODULE, encoding="utf-8")
    return small_yaml


@pytest.mark.parametrize(("name", "says"), CLASSES.items(), ids=CLASSES)
def test_a_server(name: str, says: tuple[str, ...], faulty: Path, refused: Refused) -> None:
    refused("run", faulty, f"server.name=faulty:{name}", "--quiet", "--out", "results", says=says)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        (
            "Flat",
            ["dispatcher.fetch={bandwidth_aware: {c: 1.0}}"],
            "Flat, client 7, iteration 0, v: is float; it must be float32 (1210,)",
        ),
        ("Guesses", ["probe.every=2"], "iteration 1, proxies: names 'staleness', which is another column of probe.csv"),
        ("Numbers", ["probe.every=2"], "iteration 1, proxies: returned {1: 1.0}; it must return a dict of names"),
    ],
)
def test_a_server_that_is_asked(name: str, words: list[str], says: str, faulty: Path, refused: Refused) -> None:
    refused("run", faulty, f"server.name=faulty:{name}", *words, "--quiet", "--out", "results", says=(says,))


def test_what_diverges_diverges(faulty: Path) -> None:
    """Of a class over Server, too, that does not say whether its parameters are finite."""
    summary = fredsim.run(faulty, ["server.name=faulty:Forgets"], out="results").summary
    assert (summary["status"], summary["iterations"]) == ("diverged", 4)


def test_a_sweep_goes_on(faulty: Path, refused: Refused) -> None:
    names = ["Exits", "Generates", "ExitsInInit", "Nonsense", "Plain"]
    axis = f"sweep={{server.name: [{', '.join(f'faulty:{name}' for name in names)}], seed: [0]}}"
    says = [f"name=faulty_{name}" for name in names[:4]]
    refused("run", faulty, axis, "--quiet", "--out", "results", says=("failed: Exits, client ", *says))
    results = fredsim.load("results")
    assert results.runs["status"].tolist() == ["failed"] * 4 + ["finished"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("server", "says"),
    {
        "{name: 'faulty:Plain'}": ("server.lr: is required",),
        "{name: 'faulty:Plain', lr: 1, beta: 2}": ("server.beta: unknown key", "known: lr"),
    }.items(),
)
def test_its_hyper_parameters(server: str, says: tuple[str, ...], faulty: Path, refused: Refused) -> None:
    refused("show", faulty, f"server={server}", says=(f"override 'server={server}'", *says))


def test_the_most_that_a_count_may_be() -> None:
    guarded = Guarded(object())
    guarded.check_count(2**40, "it")
    with pytest.raises(SimulationError, match=r"^object, it: is 1099511627777; it must be an integer, 2⁴⁰ at most$"):
        guarded.check_count(2**40 + 1, "it")


def test_an_interrupt_within_a_method_ends_everything() -> None:
    """A first Ctrl-C only asks a run to stop; a second one raises this, which is no failure of the class's."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guarded(object()).guard("apply_update", interrupted)
