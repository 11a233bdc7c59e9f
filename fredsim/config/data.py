"""`data`: a data set that is read, by its name, or one that is drawn, with what it is drawn by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer

from fredsim.data.datasets import Dataset, load_dataset, normalized
from fredsim.data.problems import least_squares, quadratic
from fredsim.errors import ConfigError
from fredsim.hyper import Finite, HyperParameters, NonNegative, Positive, PositiveInt, Printable
from fredsim.system.memory import refuse_beyond_memory

__all__ = ["Data", "DataChoice", "LeastSquares", "Quadratic"]

WIDE = 28  # bytes that an entry of least squares takes: as it is drawn, for the optimum, and as kernels read it


class Normalize(HyperParameters):
    """What is taken away from the values of samples, and what they are divided by then: (x − mean) ÷ std."""

    mean: Annotated[Finite | Annotated[list[Finite], Field(min_length=1)], Field(examples=[0.1307])]
    """The mean: a number, or a list of one a channel."""
    std: Annotated[Positive | Annotated[list[Positive], Field(min_length=1)], Field(examples=[0.3081])]
    """The standard deviation: a number, or a list of one a channel."""


class Data(HyperParameters):
    """A data set, and how its training part is divided."""

    name: Annotated[Printable, Field(examples=["digits"])]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of an NPZ file's bytes: filled in where it is null, checked where it is not."""
    train: Annotated[PositiveInt | None, Field(examples=[1000])] = None
    """The first so many rows of the training part; null: 1,200 of digits, 50,000 of mnist, 10,000 of mishchenko, of
    others all but the last sixth."""
    validation: Annotated[Annotated[int, Field(ge=0, lt=2**32)] | None, Field(examples=[200])] = None
    """The last so many rows of the training part; null: 297 of digits, 10,000 of mnist, 1,000 of mishchenko, of others
    the last sixth."""
    normalize: Annotated[Normalize | None, Field(examples=[{"mean": 0.1307, "std": 0.3081}])] = None
    """`{mean, std}`: values are (x − mean) ÷ std in float32; null takes them as they are."""

    @model_serializer(mode="wrap")
    def leave_out(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `normalize`, a later key, where it is not used: configurations and digests stay the same."""
        data: dict[str, Any] = handler(self)
        if self.normalize is None:
            data.pop("normalize", None)
        return data

    def load(self, root: Path, seed: int) -> Dataset:
        """Return the data set. Raises ConfigError, DataError (fredsim.data.datasets.load_dataset)."""
        del seed  # the run's
        data = load_dataset(self.name, self.train, self.validation, root, self.sha256)
        if self.normalize is None:
            return data
        mean, std = (tuple(np.atleast_1d(numbers).tolist()) for numbers in (self.normalize.mean, self.normalize.std))
        return normalized(data, mean, std)


class LeastSquares(HyperParameters):
    """Rows with entries U[0, 1)/√columns, targets a·x of a drawn x, and noise."""

    name: Literal["least_squares"]
    columns: PositiveInt = 400
    """The entries of a row, and so the parameters."""
    noise: NonNegative = 1e-5
    """The standard deviation of what is added to each target."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of the rows and targets; the experiment's own seed does not move them."""
    train: PositiveInt = 10_000
    """The rows to train on."""
    validation: Annotated[int, Field(ge=0, lt=2**32)] = 1000
    """The rows to validate, drawn behind them."""

    def load(self, root: Path, seed: int) -> Dataset:
        """Draw the rows. Raises ConfigError where they do not fit into memory, or are too many."""
        del root, seed
        rows = self.train + self.validation
        if rows >= 2**32:
            given = f"data.train is {self.train} and data.validation {self.validation}"
            raise ConfigError(f"{given}; 2³² rows are too many: lower them")
        what = f"data.train is {self.train} and data.columns {self.columns}; {rows:,} rows take"
        refuse_beyond_memory(WIDE * rows * self.columns, what, "lower one of them")
        return least_squares(self.columns, self.noise, self.seed, self.train, self.validation)


class Quadratic(HyperParameters):
    """½·xᵀA·x − bᵀx, A tridiagonal (−1, 2, −1)/4 and b = (−1, 0, …)/4; gradients with noise of their own."""

    name: Literal["quadratic"]
    size: Annotated[int, Field(ge=2, lt=2**32)] = 1729
    """The variables, and so the parameters."""
    noise: NonNegative = 0.0
    """The standard deviation of what is added to each element of each gradient."""

    def load(self, root: Path, seed: int) -> Dataset:
        """Make it, with the run's seed for the noise. Raises ConfigError where it does not fit into memory."""
        del root
        refuse_beyond_memory(WIDE * self.size, f"data.size is {self.size}; it takes", "lower it")
        return quadratic(self.size, self.noise, seed)


def _kind(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return {"least_squares": "LeastSquares", "quadratic": "Quadratic"}.get(str(name), "Data")


DataChoice = Annotated[
    Annotated[Data, Tag("Data")]
    | Annotated[LeastSquares, Tag("LeastSquares")]
    | Annotated[Quadratic, Tag("Quadratic")],
    Discriminator(_kind),
]
