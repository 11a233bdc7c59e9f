"""What `fredsim list` prints: a line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from fredsim.dispatchers import DISPATCHERS
from fredsim.document import read_document
from fredsim.servers import SERVERS

__all__ = ["LISTINGS"]

Lines = Iterator[tuple[str, str]]


def servers() -> Lines:
    """Each server with its idea, hyper-parameters, defaults and citation."""
    for name, server in SERVERS.items():
        yield name, f"{server.idea}; {_hyper(server.Hyper)}. {server.citation}"


def dispatchers() -> Lines:
    """Each dispatcher with its idea and hyper-parameters."""
    for name, dispatcher in DISPATCHERS.items():
        hyper = _hyper(dispatcher.Hyper)
        yield name, f"{dispatcher.idea}{f'; {hyper}' if hyper else ''}"


def datasets() -> Lines:
    """Each data set."""
    yield "digits", "1,797 images of 8x8, embedded: 1,200 train, 297 validate, 300 test"
    yield "mnist", "60,000 + 10,000 images of 28x28: 50,000 train, 10,000 validate, 10,000 test"
    yield "npz:PATH", "your arrays x_train, y_train, x_test, y_test"


def experiments() -> Lines:
    """Each experiment that comes with fredsim, by the name `fredsim run` takes, with its first comment line."""
    folder = Path(str(resources.files("fredsim") / "experiments"))
    for path in sorted(folder.rglob("*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        name = read_document(path).data.get("name", path.stem)
        yield (
            path.relative_to(folder).with_suffix("").as_posix(),
            first.removeprefix("# ") if first.startswith("#") else name,
        )


def _hyper(model: type) -> str:
    parts = []
    for name, field in model.model_fields.items():  # type: ignore[attr-defined]
        parts.append(name if field.is_required() else f"{name}={'null' if field.default is None else field.default}")
    return ", ".join(parts)


LISTINGS: dict[str, Callable[[], Lines]] = {
    "servers": servers,
    "dispatchers": dispatchers,
    "datasets": datasets,
    "experiments": experiments,
}
