"""The names that an experiment may use, by kind (servers, gates, models, …), as `fredsim list` prints them.

`fredsim list` itself prints them from names.json (fredsim.show.catalogue.names), which is made from what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fredsim.compressors import COMPRESSORS
from fredsim.config.data import Data, Glyphs, LeastSquares, Modular, Quadratic, Text
from fredsim.config.document import heading_of
from fredsim.config.experiment import LinearChoice, MlpChoice, TorchChoice
from fredsim.config.partition import PARTITIONS
from fredsim.config.registry import KNOWN
from fredsim.config.shipped import shipped
from fredsim.config.zoo import GptChoice, LenetChoice, ResnetChoice, VggChoice
from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.gates import GATES
from fredsim.plugins.state.states import user_classes
from fredsim.servers import SERVERS
from fredsim.servers.schedules import SCHEDULES

__all__ = ["LISTINGS", "MODELS", "PUBLISHED_DATA", "Entry", "default_of"]


@dataclass(frozen=True)
class Entry:
    """A name's meaning in one line; the pydantic model of its hyper-parameters; where it was published.

    `takes`, if given, is printed in place of the model's hyper-parameters.
    """

    idea: str
    model: type[BaseModel] | None = None
    citation: str = ""
    takes: str | None = None

    @property
    def lines(self) -> list[str]:
        """The lines that `fredsim list` prints beside the name: idea, hyper-parameters with defaults, citation."""
        takes = _hyper(self.model) if self.takes is None and self.model else self.takes
        return [line for line in (self.idea, takes, self.citation) if line]


Entries = Mapping[str, Entry]


def own_text(found: Any, name: str) -> str:
    """Return the text that a class or a function has under a name, such as its citation, or an empty one.

    A user's class does not inherit the text of the class of fredsim's that it is derived from.
    """
    owners = (user_classes(found) or found.__mro__) if isinstance(found, type) else (found,)
    texts = [getattr(one, "__dict__", {}) for one in owners]
    return next((str(one[name]) for one in texts if name in one), "")


def _hyper(model: type[BaseModel]) -> str:
    fields = {name: field for name, field in model.model_fields.items() if name != "name"}
    return ", ".join(name if field.is_required() else f"{name}={default_of(field)}" for name, field in fields.items())


def default_of(field: FieldInfo) -> str:
    """Return the default of a hyper-parameter as it is written in YAML, or `required`."""
    if field.is_required():
        return "required"
    return _written(field.get_default(call_default_factory=True))


def _written(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, BaseModel):
        return f"{{{', '.join(f'{key}: {_written(getattr(value, key))}' for key in type(value).model_fields)}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


MODELS = {
    "mlp": Entry("a multilayer perceptron with ReLU; without hidden layers softmax regression", MlpChoice),
    "linear": Entry(
        "a linear model without a bias and its squared error, for least squares and quadratics", LinearChoice
    ),
    "lenet": Entry("Caffe's LeNet, for images of at least 16x16", LenetChoice, LenetChoice.citation),
    "resnet": Entry("a residual network for small images, with GroupNorm", ResnetChoice, ResnetChoice.citation),
    "vgg": Entry("convolutions with batch norm and max pooling, for small images", VggChoice, VggChoice.citation),
    "gpt": Entry("a decoder-only transformer, for sequences of tokens", GptChoice, GptChoice.citation),
    "torch:PACKAGE.MODULE:FACTORY": Entry("your own PyTorch module: docs/models.md", TorchChoice, takes="device=cpu"),
    "torch:fredsim.zoo:lenet": Entry(
        "Caffe's LeNet", TorchChoice, "Wen et al. 2017, TernGrad, arXiv:1705.07878", "device=cpu"
    ),
    "torch:fredsim.zoo:resnet": Entry(
        "a residual network for small images, with GroupNorm",
        TorchChoice,
        "He et al. 2016, arXiv:1512.03385; Wu and He 2018, arXiv:1803.08494",
        "depth=8, width=16, device=cpu",
    ),
    "torch:fredsim.zoo:vgg": Entry("vgg as a PyTorch module", TorchChoice, VggChoice.citation, "widths, device=cpu"),
    "torch:fredsim.zoo:gpt": Entry(
        "gpt as a PyTorch module", TorchChoice, GptChoice.citation, "width=64, layers=2, heads=4, device=cpu"
    ),
}
DATASETS = {
    "digits": "1,797 images of 8x8, embedded: 1,200 train, 297 validate, 300 test",
    "mnist": "60,000 + 10,000 images of 28x28: 50,000 train, 10,000 validate, 10,000 test",
    "npz:PATH": "your arrays x_train, y_train, x_test, y_test",
    "npy:FOLDER": "your files x_train.npy, y_train.npy, …, which may be larger than the memory",
    "python:MODULE:CLASS": "a class of your own, which gives samples by their numbers",
    "torch:MODULE:DATASET": "a torch.utils.data.Dataset",
    "torchvision:CLASS": "images of torchvision.datasets, such as torchvision:FashionMNIST, torchvision:CIFAR10",
}
#: Citations of data sets, by name; torchvision's by `torchvision:CLASS`.
PUBLISHED_DATA = {
    "digits": "Alpaydin and Kaynak 1998; Pedregosa et al. 2011 (the copy that is embedded)",
    "mnist": "LeCun et al. 1998",
    "torchvision:MNIST": "LeCun et al. 1998",
    "torchvision:FashionMNIST": "Xiao et al. 2017, arXiv:1708.07747",
    "torchvision:KMNIST": "Clanuwat et al. 2018, arXiv:1812.01718",
    "torchvision:EMNIST": "Cohen et al. 2017, arXiv:1702.05373",
    "torchvision:CIFAR10": "Krizhevsky 2009",
    "torchvision:CIFAR100": "Krizhevsky 2009",
    "torchvision:SVHN": "Netzer et al. 2011",
}
OTHER_DATA = {
    "text:PATH": Entry(
        "the characters of your text file, in rows of `block`; of each the next is predicted", Text, takes="block=64"
    ),
    "modular": Entry(
        "sums modulo p that are drawn, as sequences: a, b, =, and the answer is predicted",
        Modular,
        "Power et al. 2022, Grokking, arXiv:2201.02177",
    ),
    "glyphs": Entry(
        "images that are drawn: a glyph of each class at a random place among other patches, with noise", Glyphs
    ),
    "least_squares": Entry("rows and targets that are drawn: U[0, 1)/√columns, a·x and noise", LeastSquares),
    "mishchenko": Entry(
        "least squares as published: 10,000 rows of 400, drawn by NumPy's generator",
        Data,
        "Mishchenko et al. 2022, arXiv:2206.07638",
        "",
    ),
    "quadratic": Entry(
        "a tridiagonal quadratic, whose gradients have noise of their own",
        Quadratic,
        "Maranjyan et al. 2025, Ringmaster ASGD, arXiv:2501.16168",
    ),
}


def experiments() -> Entries:
    """Return the experiments that come with fredsim, each with its first comment line."""
    headings = {name: heading_of(path.read_text(encoding="utf-8")) for name, path in shipped().items()}
    return {name: Entry(text.partition("\n")[0].removeprefix("# ")) for name, text in headings.items()}


def _of_classes(classes: Mapping[str, Any]) -> Entries:
    return {name: Entry(found.idea, found.Hyper, own_text(found, "citation")) for name, found in classes.items()}


LISTINGS: dict[str, Callable[[], Entries]] = {
    "servers": lambda: _of_classes(SERVERS),
    "dispatchers": lambda: _of_classes(DISPATCHERS),
    "gates": lambda: _of_classes(GATES),
    "compressors": lambda: _of_classes(COMPRESSORS),
    "averages": lambda: _of_classes(KNOWN["average"]),
    "optimizers": lambda: _of_classes(KNOWN["optimizer"]),
    "schedules": lambda: {
        name: Entry((found.__doc__ or "").partition("\n")[0], found) for name, found in SCHEDULES.items()
    },
    "partitions": lambda: {
        name: Entry((found.__doc__ or "").partition("\n")[0], found, found.citation)
        for name, found in PARTITIONS.items()
    },
    "models": lambda: MODELS,
    "datasets": lambda: (
        {name: Entry(idea, Data, PUBLISHED_DATA.get(name, ""), takes="") for name, idea in DATASETS.items()}
        | OTHER_DATA
    ),
    "experiments": experiments,
}
