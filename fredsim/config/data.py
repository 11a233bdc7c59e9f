"""The key `data`: a data set that is read, given by its name, or one that is drawn, given by its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer

from fredsim.data.datasets import Dataset, load_dataset, normalized
from fredsim.data.problems import least_squares, quadratic
from fredsim.errors import ConfigError
from fredsim.hyper import Finite, HyperParameters, NonNegative, Positive, PositiveInt, Printable
from fredsim.system.memory import refuse_beyond_memory

__all__ = ["Data", "DataChoice", "LeastSquares", "Quadratic"]

#: The memory for one entry of least squares, or one variable of a quadratic: while it is drawn, for the optimum, and as
#: kernels read it.
BYTES_PER_ENTRY = 28


class Normalize(HyperParameters):
    """How the values of samples are normalized: (x − mean) ÷ std."""

    mean: Annotated[Finite | Annotated[list[Finite], Field(min_length=1)], Field(examples=[0.1307])]
    """The mean: a number, or a list with one per channel."""
    std: Annotated[Positive | Annotated[list[Positive], Field(min_length=1)], Field(examples=[0.3081])]
    """The standard deviation: a number, or a list with one per channel."""


class AnyData(HyperParameters):
    """What every choice of data says."""

    has_rows: ClassVar[bool] = True
    """Whether there are rows, of which minibatches consist."""


class Data(AnyData):
    """A data set, and how its training part is divided."""

    name: Annotated[Printable, Field(examples=["digits"])]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The SHA-256 of an NPZ file: filled in if it is null, otherwise checked."""
    train: Annotated[PositiveInt | None, Field(examples=[1000])] = None
    """The number of rows to train on, the first of the training part; null: 1,200 of digits, 50,000 of mnist, 10,000 of
    mishchenko, all but the last sixth of others."""
    validation: Annotated[Annotated[int, Field(ge=0, lt=2**32)] | None, Field(examples=[200])] = None
    """The number of rows to validate on, the last of the training part; null: 297 of digits, 10,000 of mnist, 1,000 of
    mishchenko, the last sixth of others."""
    normalize: Annotated[Normalize | None, Field(examples=[{"mean": 0.1307, "std": 0.3081}])] = None
    """`{mean, std}`: values become (x − mean) ÷ std in float32; null leaves them as they are."""

    @model_serializer(mode="wrap")
    def leave_out(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `normalize`, a later key, if it is null, so that earlier configurations keep their digests."""
        data: dict[str, Any] = handler(self)
        if self.normalize is None:
            data.pop("normalize", None)
        return data

    def load(self, root: Path, seed: int) -> Dataset:
        """Return the data set. Raises ConfigError, DataError (fredsim.data.datasets.load_dataset)."""
        del seed  # the run's seed, which does not affect data that is read
        data = load_dataset(self.name, self.train, self.validation, root, self.sha256)
        if self.normalize is None:
            return data
        mean, std = (tuple(np.atleast_1d(numbers).tolist()) for numbers in (self.normalize.mean, self.normalize.std))
        return normalized(data, mean, std)


class LeastSquares(AnyData):
    """Rows a with entries U[0, 1)/√columns, and targets a·x plus noise, for an x that is drawn, too."""

    name: Literal["least_squares"]
    columns: PositiveInt = 400
    """The number of a row's entries, and so of parameters."""
    noise: NonNegative = 1e-5
    """The standard deviation of the noise that is added to each target."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """The seed of the rows and targets, which do not depend on the experiment's seed."""
    train: PositiveInt = 10_000
    """The number of rows to train on."""
    validation: Annotated[int, Field(ge=0, lt=2**32)] = 1000
    """The number of rows to validate on, drawn after those to train on."""

    def load(self, root: Path, seed: int) -> Dataset:
        """Draw the rows. Raises ConfigError if they do not fit into memory, or are too many."""
        del root, seed
        rows = self.train + self.validation
        if rows >= 2**32:
            sizes = f"data.train is {self.train} and data.validation {self.validation}"
            raise ConfigError(f"{sizes}; 2³² rows are too many: lower them")
        what = f"data.train is {self.train} and data.columns {self.columns}; {rows:,} rows take"
        refuse_beyond_memory(BYTES_PER_ENTRY * rows * self.columns, what, "lower one of them")
        return least_squares(self.columns, self.noise, self.seed, self.train, self.validation)


class Quadratic(AnyData):
    """½·xᵀA·x − bᵀx, with A tridiagonal (−1, 2, −1)/4 and b = (−1, 0, …)/4; each gradient has noise of its own."""

    has_rows = False

    name: Literal["quadratic"]
    size: Annotated[int, Field(ge=2, lt=2**32)] = 1729
    """The number of variables, and so of parameters."""
    noise: NonNegative = 0.0
    """The standard deviation of the noise that is added to each element of each gradient."""

    def load(self, root: Path, seed: int) -> Dataset:
        """Make the quadratic, with the run's seed for its noise. Raises ConfigError if it does not fit into memory."""
        del root
        refuse_beyond_memory(BYTES_PER_ENTRY * self.size, f"data.size is {self.size}; it takes", "lower it")
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
