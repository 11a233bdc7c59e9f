"""What `fredsim list` prints: what there is, a name and a few lines each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from fredsim.compressors import COMPRESSORS
from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.gates import GATES
from fredsim.servers import SERVERS
from fredsim.servers.schedules import SCHEDULES

__all__ = ["LISTINGS", "default_of"]

Entries = Iterator[tuple[str, list[str]]]


def _classes(known: Mapping[str, Any]) -> Callable[[], Entries]:
    """Return a listing of classes: the idea, the hyper-parameters with their defaults, the citation."""

    def listing() -> Entries:
        for name, found in known.items():
            citation = getattr(found, "citation", "")
            yield name, [line for line in (found.idea, _hyper(found.Hyper), citation) if line]

    return listing


def _hyper(model: Any) -> str:
    fields = {name: field for name, field in model.model_fields.items() if name != "name"}
    return ", ".join(name if field.is_required() else f"{name}={default_of(field)}" for name, field in fields.items())


def default_of(field: FieldInfo) -> str:
    """Return the default of a hyper-parameter, as YAML has it."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "null"
    return str(default).lower() if isinstance(default, bool) else str(default)


def schedules() -> Entries:
    """Each learning-rate schedule."""
    for name, schedule in SCHEDULES.items():
        yield name, [(schedule.__doc__ or "").partition("\n")[0], _hyper(schedule)]


def models() -> Entries:
    """Each model; those of PyTorch are not imported for it."""
    yield (
        "mlp",
        ["a multilayer perceptron with ReLU; without hidden layers softmax regression", "hidden=[200], init=he"],
    )
    yield "torch:PACKAGE.MODULE:FACTORY", ["your own PyTorch module: docs/models.md", "device=cpu"]
    yield "torch:fredsim.zoo:lenet", ["Caffe's LeNet", "device=cpu", "Wen et al. 2017, TernGrad, arXiv:1705.07878"]
    yield (
        "torch:fredsim.zoo:resnet",
        [
            "a residual network for small images, with GroupNorm",
            "depth=8, width=16, device=cpu",
            "He et al. 2016, arXiv:1512.03385; Wu and He 2018, arXiv:1803.08494",
        ],
    )


def datasets() -> Entries:
    """Each data set."""
    yield "digits", ["1,797 images of 8x8, embedded: 1,200 train, 297 validate, 300 test"]
    yield "mnist", ["60,000 + 10,000 images of 28x28: 50,000 train, 10,000 validate, 10,000 test"]
    yield "npz:PATH", ["your arrays x_train, y_train, x_test, y_test"]
    yield "torchvision:CLASS", ["images of torchvision.datasets, such as torchvision:FashionMNIST, torchvision:CIFAR10"]


def experiments() -> Entries:
    """Each experiment that comes with fredsim, by the name that `fredsim run` takes, with its first comment line."""
    folder = Path(str(resources.files("fredsim") / "experiments"))
    for path in sorted(folder.rglob("*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        yield path.relative_to(folder).with_suffix("").as_posix(), [first.removeprefix("# ")]


LISTINGS: dict[str, Callable[[], Entries]] = {
    "servers": _classes(SERVERS),
    "dispatchers": _classes(DISPATCHERS),
    "gates": _classes(GATES),
    "compressors": _classes(COMPRESSORS),
    "schedules": schedules,
    "models": models,
    "datasets": datasets,
    "experiments": experiments,
}
