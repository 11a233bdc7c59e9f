"""`fredsim list` names what there is."""

from collections.abc import Callable

from fredsim.compressors import COMPRESSORS
from fredsim.datasets import DATASETS
from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.gates import GATES
from fredsim.servers import SERVERS
from fredsim.servers.schedules import SCHEDULES

Command = Callable[..., tuple[int, str, str]]


def test_list(command: Command) -> None:
    code, output, messages = command("list")
    assert (code, messages) == (0, "")
    lines = [line.split()[0] for line in output.splitlines()]
    names = [
        *SERVERS,
        *DISPATCHERS,
        *GATES,
        *COMPRESSORS,
        *SCHEDULES,
        "digits",
        "mnist",
        "npz:PATH",
        "quickstart",
        "fasgd/fig1",
    ]
    assert [name for name in names if name not in lines] == []
    assert {line.partition(":")[0] for line in lines} >= set(DATASETS)
    for what, known in (("dispatchers", DISPATCHERS), ("servers", SERVERS)):
        code, output, messages = command("list", what)
        named = [line.split()[0] for line in output.splitlines() if not line.startswith(" ")]
        assert (code, named, messages) == (0, list(known), "")
    for server in SERVERS.values():  # the idea, the citation, and every hyper-parameter
        assert server.idea in output
        assert server.citation in output
        assert all(name in output for name in server.Hyper.model_fields)
    assert command("list", "everything")[0] == 2
