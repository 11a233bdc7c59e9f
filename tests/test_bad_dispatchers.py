"""A user's own dispatchers, and files of orders, that break their contract: a message, never a traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., None]

MODULE = """
class Chooses:
    def init(self, clients, streams):
        self.clients = clients

    def choose(self, step):
        return self.clients if step == 2 else step


class Everyone(Chooses):
    def hold(self, client):
        pass

    def release(self, client):
        pass


class Unstarted(Everyone):
    def init(self, clients, streams):
        raise SystemExit("not today")


class Stubborn(Everyone):  # the clients that sync holds come again
    def choose(self, step):
        return step % 2


class Clings(Everyone):
    def choose(self, step):
        return step % self.clients

    def hold(self, client):
        raise LookupError("no room")


class Jams(Clings):
    def hold(self, client):
        pass

    def release(self, client):
        raise SystemExit("stuck")


class Timed(Everyone):
    def seconds(self, client, task):
        return 1.0


class Nobody(Everyone):
    def choose(self, step):
        raise IndexError("nobody")


class Whether(Everyone):
    def choose(self, step):
        return step == 0
"""


@pytest.fixture
def faulty(small_yaml: Path) -> Path:
    small_yaml.with_name("faulty.py").write_text(MODULE, encoding="utf-8")
    return small_yaml


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        ("absent_module", None, ("ModuleNotFoundError: No module named 'absent_module'", "it is looked up from")),
        ("raising_module", "\nraise ValueError('no')", ("'raising_module' (ValueError: no, raising_module.py:2)\n",)),
        ("exiting_module", "raise SystemExit('bye')", ("'exiting_module' (SystemExit: bye, exiting_module.py:1)\n",)),
        ("misspelt_module", "def (", ("cannot import 'misspelt_module' (SyntaxError: ", ", misspelt_module.py:1)\n")),
        ("evaluating_module", "\neval('1 +')", ("cannot import 'evaluating_module' (SyntaxError: ", "_module.py:2)\n")),
        ("importing_module", "import absent_module", ("No module named 'absent_module', importing_module.py:1)\n",)),
    ],
)
def test_a_module(module: str, text: str | None, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    if text is not None:
        small_yaml.with_name(f"{module}.py").write_text(text, encoding="utf-8")
    refused("show", small_yaml, f"server.name={module}:Server", says=("server.name: cannot import", *says))


def test_a_dispatcher_without_methods(faulty: Path, refused: Refused) -> None:
    says = ("class 'faulty:Chooses' has no method 'hold'", "a dispatcher needs init, choose, hold, release")
    refused("show", faulty, "dispatcher.name=faulty:Chooses", says=says)


def test_a_dispatcher_that_seems_to_be_a_clock(faulty: Path, refused: Refused) -> None:
    """Its order would silently be another one."""
    says = "class 'faulty:Timed' has a method seconds, as a clock, and a method choose, as a dispatcher without time; "
    for command in ("run", "plan", "show"):
        refused(command, faulty, "dispatcher.name=faulty:Timed", says=(says,))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Everyone", "Everyone, iteration 2, choose: returned 8; ids lie in 0 … 7"),
        ("Whether", "Whether, iteration 0, choose: returned True; ids lie in 0 … 7"),
        ("Nobody", "Nobody, iteration 0, choose: IndexError: nobody (faulty.py:"),
        ("Unstarted", "Unstarted, init: SystemExit: not today (faulty.py:"),
    ],
)
def test_a_dispatcher(name: str, says: str, faulty: Path, refused: Refused) -> None:
    refused("run", faulty, f"dispatcher.name=faulty:{name}", "--quiet", "--out", "results", says=(says,))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Stubborn", "Stubborn, iteration 2, choose: returned client 0, which is held; hold(client) takes it out"),
        ("Clings", "Clings, client 0, iteration 0, hold: LookupError: no room (faulty.py:"),
        ("Jams", "Jams, client 0, iteration 7, release: SystemExit: stuck (faulty.py:"),
    ],
)
def test_a_dispatcher_of_clients_that_are_held(name: str, says: str, faulty: Path, refused: Refused) -> None:
    words = ["server.name=sync", f"dispatcher.name=faulty:{name}", "--quiet", "--out", "results"]
    refused("run", faulty, *words, says=(says,))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, ("dispatcher.order: cannot read order.csv: No such file",)),
        (b"", ("dispatcher.order: order.csv has no column 'client' (columns: none)",)),
        (b"client;n\n0;1\n", ("(columns: client;n); put commas between cells, and points into numbers\n",)),
        (b"who\n0\n", ("dispatcher.order: order.csv has no column 'client' (columns: who)",)),
        (b"client\n0\nx\n", ("order.csv:3: client is 'x'; it must be a client id, an integer",)),
        (b"n,client\n0,1\n1\n", ("order.csv:3: client is null; it must be a client id, an integer",)),
        (b"client\n1_0\n", ("order.csv:2: client is '1_0'; it must be a client id, an integer",)),
        ("client\n0\n\u0663\n".encode(), ("order.csv:3: client is '\u0663'; it must be a client id, an integer",)),
        (b"client\n1.0\n", ("order.csv:2: client is '1.0'; it must be a client id, an integer",)),
        (b"client,n,client\n0,1,2\n", ("order.csv has 2 columns 'client'; keep one of them",)),
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
