"""A user's own classes and files that break their contract: a message, never a traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., None]

MODULE = """
import numpy as np
from fredsim.servers import Reply


class Plain:
    def __init__(self, lr):
        self.lr = np.float32(lr)

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        self.params -= self.lr * grad


class WithoutInit:
    def apply_update(self, grad, client_id, timestamp):
        pass


class WithoutUpdate:
    def init(self, params, clients):
        pass


class Refuses(Plain):
    def __init__(self, lr):
        raise ValueError("the moon is full")


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


class Everyone:
    def init(self, clients, streams):
        self.clients = clients

    def choose(self, step):
        return self.clients if step == 2 else step

    def hold(self, client):
        pass

    def release(self, client):
        pass


class Nobody(Everyone):
    def choose(self, step):
        raise IndexError("nobody")


def function(lr):
    return Plain(lr)
"""

CLASSES = {
    "WithoutInit": ("class 'faulty:WithoutInit' has no method 'init'", "a server needs init, apply_update"),
    "WithoutUpdate": ("class 'faulty:WithoutUpdate' has no method 'apply_update'", "a server needs init, apply_update"),
    "Plian": ("server.name: module 'faulty' has no 'Plian'", "did you mean 'Plain'?"),
    "function": ("server.name: 'faulty:function' is a function; it must be a class",),
    "Refuses": ("server: faulty:Refuses(lr) failed: ValueError: the moon is full",),
    "Raises": ("Raises, client ", ", iteration ", ", apply_update: ZeroDivisionError: three (faulty.py:35)"),
    "Double": ("Double, init, params: is float64 (1210,); it must be float32 (1210,)",),
    "Short": ("Short, init, params: is float32 (1209,); it must be float32 (1210,)",),
    "Nothing": ("Nothing, init, params: is NoneType; it must be float32 (1210,)",),
    "Widens": ("Widens, client 7, iteration 0, params: is float64 (1210,); it must be float32 (1210,)",),
    "Starts": ("Starts, init: KeyError: 'start' (faulty.py:",),
    "Answers": ("Answers, client 7, iteration 0, apply_update: returned 5; it must return None or a Reply",),
    "Frees": ("Frees, client 7, iteration 0, reply: names client 99; ids lie in 0 … 7",),
    "Later": (", params: is float32 (1209,); it must be float32 (1210,)",),
    "Hands": ("Hands, client 7, iteration 0, what fetch returns: is list; it must be float32 (1210,)",),
}


@pytest.fixture
def faulty(small_yaml: Path) -> Path:
    small_yaml.with_name("faulty.py").write_text(MODULE, encoding="utf-8")
    return small_yaml


@pytest.mark.parametrize(("name", "says"), CLASSES.items(), ids=CLASSES)
def test_a_server(name: str, says: tuple[str, ...], faulty: Path, refused: Refused) -> None:
    refused("run", faulty, f"server.name=faulty:{name}", "--quiet", "--out", "results", says=says)


@pytest.mark.parametrize(
    ("server", "says"),
    {
        "{name: 'faulty:Plain'}": ("server.lr: is required",),
        "{name: 'faulty:Plain', lr: 1, beta: 2}": ("server.beta: unknown key", "known: lr"),
    }.items(),
)
def test_its_hyper_parameters(server: str, says: tuple[str, ...], faulty: Path, refused: Refused) -> None:
    refused("show", faulty, f"server={server}", says=(f"override 'server={server}'", *says))


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        ("absent_module", None, ("ModuleNotFoundError: No module named 'absent_module'", "it is looked up from")),
        ("raising_module", "raise ValueError('no')", ("cannot import 'raising_module' (ValueError: no)",)),
        ("misspelt_module", "def (", ("cannot import 'misspelt_module' (SyntaxError: ", "line 1")),
        ("importing_module", "import absent_module", ("No module named 'absent_module'",)),
    ],
)
def test_a_module(module: str, text: str | None, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    if text is not None:
        small_yaml.with_name(f"{module}.py").write_text(text, encoding="utf-8")
    refused("show", small_yaml, f"server.name={module}:Server", says=("server.name: cannot import", *says))


def test_a_dispatcher_without_methods(faulty: Path, refused: Refused) -> None:
    says = ("class 'faulty:Plain' has no method 'choose'", "a dispatcher needs init, choose, hold, release")
    refused("show", faulty, "dispatcher.name=faulty:Plain", says=says)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Everyone", "Everyone, iteration 2, choose: returned 8; ids lie in 0 … 7"),
        ("Nobody", "Nobody, iteration 0, choose: IndexError: nobody (faulty.py:"),
    ],
)
def test_a_dispatcher(name: str, says: str, faulty: Path, refused: Refused) -> None:
    refused("run", faulty, f"dispatcher.name=faulty:{name}", "--quiet", "--out", "results", says=(says,))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, ("dispatcher.order: cannot read order.csv: No such file",)),
        (b"", ("dispatcher.order: order.csv has no column 'client' (columns: none)",)),
        (b"who\n0\n", ("dispatcher.order: order.csv has no column 'client' (columns: who)",)),
        (b"client\n0\nx\n", ("order.csv:3: client is 'x'; it must be a client id, an integer",)),
        (b"n,client\n0,1\n1\n", ("order.csv:3: client is None; it must be a client id, an integer",)),
        (b"client\n", ("order.csv: column 'client' is empty; name clients",)),
        (b"client\n\xff\xfe\n", ("order.csv is not a CSV file in UTF-8",)),
        (b"client\n0\n8\n", ("dispatcher.order names client 8; ids lie in 0 … 7",)),
    ],
)
def test_a_scripted_order(content: bytes | None, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    if content is not None:
        small_yaml.with_name("order.csv").write_bytes(content)
    override = "dispatcher={name: scripted, order: {csv: order.csv}}"
    refused("show", small_yaml, override, says=(f"override '{override}': dispatcher.order", *says))
