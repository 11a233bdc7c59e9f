"""The key `data`: a data set that is read, given by its name, or one that is drawn, given by its parameters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
)

from fredsim.config.document import Problems
from fredsim.config.registry import argument_problems
from fredsim.config.sections import Section
from fredsim.data.augment import Augmentation, find_function
from fredsim.data.datasets import (
    DATASETS,
    DEFAULT_ROWS,
    Dataset,
    check_dataset,
    file_digest,
    normalized,
    read_dataset,
    unscaled,
    usual_train,
)
from fredsim.data.glyphs import GLYPH
from fredsim.data.npy_datasets import load_folder
from fredsim.data.own import PREFIXES, digest_of_named, find_own, load_own
from fredsim.data.problems import TEST_IMAGES, glyphs, least_squares, modular, of_problem, quadratic
from fredsim.data.targets import Targets
from fredsim.errors import ConfigError, DataError
from fredsim.hyper import Finite, HyperParameters, NonNegative, Positive, PositiveInt, Printable, check_printable
from fredsim.system.memory import refuse_beyond_memory

__all__ = [
    "AnyData", "Data", "DataChoice", "DataRead", "Glyphs", "LeastSquares", "Modular", "OfProblem", "OwnData",
    "Quadratic", "Text",
]  # fmt: skip

#: The memory for one entry of least squares, or one variable of a quadratic: while it is drawn, for the optimum, and as
#: kernels read it.
BYTES_PER_ENTRY = 28
#: The memory for one sum modulo p while it is drawn: its words, its key, its place; and for one of its tokens.
BYTES_PER_SUM, BYTES_PER_TOKEN = 100, 24
#: The memory for one pixel of a drawn image: its byte, its number, and as kernels read it; and for its label.
BYTES_PER_PIXEL, BYTES_PER_LABEL = 9, 32


class Normalize(HyperParameters):
    """How the values of samples are normalized: (x − mean) ÷ std."""

    mean: Annotated[Finite | Annotated[list[Finite], Field(min_length=1)], Field(examples=[0.1307])]
    """The mean: a number, or a list with one per channel."""
    std: Annotated[Positive | Annotated[list[Positive], Field(min_length=1)], Field(examples=[0.3081])]
    """The standard deviation: a number, or a list with one per channel."""


class Augment(HyperParameters):
    """How training samples are changed at random before a gradient is computed from them."""

    flip: bool = False
    """Whether half of the images are mirrored, left to right."""
    crop: Annotated[int, Field(ge=0, lt=2**15, examples=[4])] = 0
    """Images get a border of this many zeros, and are cropped to their own size at a random place."""
    function: Annotated[Printable | None, Field(examples=["my_data:noise"])] = None
    """A function of your own, package.module:function, of a sample and a NumPy generator; it returns the sample."""

    def of(self, dataset: Dataset) -> Dataset:
        """Return the data set, of which training samples are changed so. Raises ConfigError."""
        if not (self.flip or self.crop or self.function):
            return dataset
        return replace(dataset, augment=Augmentation(dataset.sample, self.flip, self.crop, self.function or ""))


def _spelled_out(value: Any) -> Any:
    return {"function": value} if isinstance(value, str) else value


AugmentChoice = Annotated[Augment, BeforeValidator(_spelled_out, json_schema_input_type=Augment | Printable)]


class AnyData(Section):
    """What every choice of data says."""

    has_rows: ClassVar[bool] = True
    """Whether there are rows, of which minibatches consist."""

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Return the data set; `seed` is the run's, and `targets` what its loss takes, if that is known.

        Raises ConfigError, DataError if it cannot be had.
        """
        raise NotImplementedError

    def resolved(self) -> Self:
        """Return the choice with what it leaves open filled in, as far as that is known before it is loaded."""
        return self

    @property
    def user_code(self) -> bool:
        """Whether it names code of the user's."""
        return False

    def problems(self) -> Problems:
        """Import the user's code that it names; return what is wrong with the keys. Raises ConfigError."""
        return []


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**32)]  # or a seed


class DataRead(AnyData):
    """Data that is read, and how its training part is divided."""

    name: Printable
    sha256: Sha256 | None = None
    """The SHA-256 of the file: filled in if it is null, otherwise checked."""
    train: PositiveInt | None = None
    """The number of rows to train on, the first of the training part."""
    validation: Count | None = None
    """The number of rows to validate on, the last of the training part."""

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        """Refuse unknown names; what other keys there are depends on it."""
        try:
            check_dataset(name)
        except ConfigError as error:
            raise ValueError(str(error).removeprefix("data.name: ")) from None
        return name

    def resolved(self) -> Self:
        """Fill in the usual numbers of rows, and the SHA-256 of the file."""
        usual = dict(zip(("train", "validation"), rows := DEFAULT_ROWS.get(self.name, ()), strict=False))
        if rows and self.validation is not None:
            usual["train"] = usual_train(rows[0], sum(rows), self.validation)
        known = usual | {"sha256": file_digest(self.name)}
        return type(self)(**known | self.model_dump(exclude_none=True))


class Data(DataRead):
    """A data set, and how its training part is divided."""

    later = ("normalize", "scale", "augment")

    name: Annotated[Printable, Field(examples=["digits"])]
    sha256: Sha256 | None = None
    """The SHA-256 of an NPZ file, or of what `sha256sum` prints of NPY files: filled in if null, otherwise checked."""
    train: Annotated[PositiveInt | None, Field(examples=[1000])] = None
    """The number of rows to train on, the first of the training part; null: 1,200 of digits, 50,000 of mnist, 10,000 of
    mishchenko, all but the last sixth of others; fewer if `validation` takes more than what is left."""
    validation: Annotated[Count | None, Field(examples=[200])] = None
    """The number of rows to validate on, the last of the training part; null: 297 of digits, 10,000 of mnist, 1,000 of
    mishchenko, the last sixth of others."""
    normalize: Annotated[Normalize | None, Field(examples=[{"mean": 0.1307, "std": 0.3081}])] = None
    """`{mean, std}`: values become (x − mean) ÷ std in float32; null leaves them as they are."""
    scale: Literal["none"] | None = None
    """`none`: bytes stay the numbers that they are; null: they are divided by 255, and the levels of digits by 16."""
    augment: Annotated[AugmentChoice | None, Field(examples=[{"flip": True, "crop": 4}])] = None
    """`{flip: true, crop: 4}`, or the name of your own function: how training samples are changed at random before a
    gradient is computed from them (docs/data.md); null: not at all."""

    @property
    def user_code(self) -> bool:
        """Whether a function of the user's changes samples."""
        return self.augment is not None and self.augment.function is not None

    def problems(self) -> Problems:
        """Import the function that changes samples; return what is wrong with the keys."""
        if self.augment is not None and self.augment.function is not None:
            find_function(self.augment.function)
        if self.sha256 is not None and (kind := self.name.partition(":")[0]) in DATASETS and kind not in {"npy", "npz"}:
            return [(("sha256",), f"is {self.sha256}; {self.name} is no file whose content it could be: leave it out")]
        return []

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Return the data set. Raises ConfigError, DataError (fredsim.data.datasets.read_dataset)."""
        load = load_folder if self.name.startswith("npy:") else read_dataset
        wanted = targets or Targets()
        as_wanted: dict[str, Any] = {"ignored": wanted.ignored, "numbers": wanted.of_numbers}
        data = load(self.name, self.train, self.validation, root, self.sha256, **as_wanted)
        if self.scale is not None:
            data = unscaled(data)
        if self.normalize is not None:
            numbers = (self.normalize.mean, self.normalize.std)
            data = normalized(data, *(tuple(np.atleast_1d(values).tolist()) for values in numbers))
        return data if self.augment is None else self.augment.of(data)


class OwnData(DataRead):
    """A data set by a class of your own, or a data set of PyTorch's; other keys are keyword arguments of the class."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")
    later = ("scale", "augment")

    name: Annotated[
        str, Field(pattern="^(python|torch):", examples=["python:my_data:Points"]), AfterValidator(check_printable)
    ]
    sha256: Sha256 | None = None
    """The SHA-256 of the file that other keys name, or of what `sha256sum` prints of several: filled in if it is null,
    otherwise checked."""
    train: Annotated[PositiveInt | None, Field(examples=[1000])] = None
    """The number of rows to train on, the first of the training part; null: all, or all but the last sixth if the class
    has no part for validation."""
    validation: Annotated[Count | None, Field(examples=[200])] = None
    """The number of rows to validate on: the first of the part for validation, all of them if null, or, without such a
    part, the last of the training part."""
    scale: Literal["none"] | None = None
    """`none`: bytes stay the numbers that they are; null: they are divided by 255."""
    augment: Annotated[AugmentChoice | None, Field(examples=[{"flip": True, "crop": 4}])] = None
    """How training samples are changed at random before a gradient is computed from them (docs/data.md)."""

    @property
    def user_code(self) -> bool:
        """Whether it names code of the user's: always."""
        return True

    @property
    def hyper(self) -> dict[str, Any]:
        """The keyword arguments of the class."""
        return dict(self.model_extra or {})

    def problems(self) -> Problems:
        """Import the class; return what is wrong with its arguments."""
        if self.augment is not None and self.augment.function is not None:
            find_function(self.augment.function)
        own = find_own(self.name)
        given = {"train", "split", "part"} if self.name.startswith("torch:") else ()
        return argument_problems(own, self.hyper, given)

    def resolved(self) -> Self:
        """Fill in the SHA-256 of the files that keys name."""
        return self.model_copy(update={"sha256": digest_of_named(self.hyper)}) if self.sha256 is None else self

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Make the data set. Raises ConfigError, DataError (fredsim.data.own)."""
        if self.sha256 is not None and (found := digest_of_named(self.hyper)) != self.sha256:
            what = f"SHA-256 of the files that data names, {found}, is not data.sha256, {self.sha256}"
            raise DataError(f"{self.name}: the {what}; put the files back, or change the key")
        wanted = targets or Targets()
        rows = self.train, self.validation
        data = load_own(self.name, self.hyper, *rows, wanted.ignored, numbers=wanted.of_numbers)
        data = data if self.scale is None else unscaled(data)
        return data if self.augment is None else self.augment.of(data)


class Text(DataRead):
    """The characters of a text file in UTF-8, in rows; the target of a character is the one that follows."""

    name: Annotated[str, Field(pattern="^text:", examples=["text:book.txt"]), AfterValidator(check_printable)]
    sha256: Sha256 | None = None
    """The SHA-256 of the file: filled in if it is null, otherwise checked."""
    block: PositiveInt = 64
    """The number of characters of a row."""
    train: Annotated[PositiveInt | None, Field(examples=[1000])] = None
    """The number of rows to train on, the first of the text; null: all but the last tenth, and of these the last
    sixth."""
    validation: Annotated[Count | None, Field(examples=[200])] = None
    """The number of rows to validate on, the last before the last tenth, which is for testing; null: a sixth of the
    rows up to there."""

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Read the text. Raises ConfigError, DataError (fredsim.data.datasets.read_dataset)."""
        return read_dataset(self.name, self.train, self.validation, root, self.sha256, self.block)


class Modular(AnyData):
    """Sums modulo p as sequences: tokens a, b and "=", after which the answer is to be predicted."""

    name: Literal["modular"]
    p: Annotated[int, Field(ge=2, le=65536)] = 97
    """What the sums are taken modulo; the tokens are 0 … p − 1 and p, which stands for "="."""
    terms: Annotated[int, Field(ge=1, le=32)] = 2
    """The number of terms of a sum; a row has one token more."""
    seed: Count = 0
    """The seed of the order of the sums, which does not depend on the experiment's seed."""
    train: Annotated[PositiveInt | None, Field(examples=[4000])] = None
    """The number of sums to train on; null: half of them."""
    validation: Annotated[Count | None, Field(examples=[1000])] = None
    """The number of sums to validate on; null: half of those that are left. The others are for testing."""

    def resolved(self) -> Self:
        """Fill in the numbers of rows."""
        count = self.p**self.terms
        train = count // 2 if self.train is None else self.train
        validation = max(0, count - train) // 2 if self.validation is None else self.validation
        return self.model_copy(update={"train": train, "validation": validation})

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Draw the order of the sums. Raises ConfigError if they do not fit into memory, or are too many."""
        count = self.p**self.terms
        if count >= 2**31:
            what = f"data.p is {self.p} and data.terms {self.terms}; {count:,} sums are too many"
            raise ConfigError(f"{what}: lower one of them")
        what = f"data.p is {self.p} and data.terms {self.terms}; {count:,} sums take"
        refuse_beyond_memory(count * (BYTES_PER_SUM + BYTES_PER_TOKEN * self.terms), what, "lower one of them")
        known = self.resolved()
        return modular(self.p, self.terms, self.seed, known.train or 1, known.validation or 0)


class Glyphs(AnyData):
    """Drawn images: each class has a glyph of 7×7 random bits, which lies at a random place among other patches."""

    name: Literal["glyphs"]
    classes: Annotated[int, Field(ge=2, le=1000)] = 10
    """The number of classes, each with a glyph of its own."""
    size: Annotated[int, Field(ge=GLYPH, le=1024)] = 12
    """The height and the width of an image, in pixels; 7 at least, those of a glyph."""
    clutter: Annotated[int, Field(ge=0, le=100)] = 2
    """The number of other 7×7 patches in an image, of random bits of its own, which the glyph may cover."""
    noise: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """The probability with which a pixel is inverted."""
    seed: Count = 0
    """The seed of the glyphs and images, which do not depend on the experiment's seed."""
    train: PositiveInt = 8000
    """The number of images to train on."""
    validation: Count = 1000
    """The number of images to validate on; 1,000 others are for testing."""

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Draw the images. Raises ConfigError if they do not fit into memory."""
        images = self.train + self.validation + TEST_IMAGES
        what = f"data.train is {self.train} and data.size {self.size}; {images:,} images take"
        refuse_beyond_memory(images * (BYTES_PER_LABEL + BYTES_PER_PIXEL * self.size**2), what, "lower one of them")
        of_images = (self.classes, self.size, self.clutter, self.noise, self.seed)
        return glyphs(*of_images, self.train, self.validation)


class LeastSquares(AnyData):
    """Rows a with entries U[0, 1)/√columns, and targets a·x plus noise, for an x that is drawn, too."""

    name: Literal["least_squares"]
    columns: PositiveInt = 400
    """The number of a row's entries, and so of parameters."""
    noise: NonNegative = 1e-5
    """The standard deviation of the noise that is added to each target."""
    seed: Count = 0
    """The seed of the rows and targets, which do not depend on the experiment's seed."""
    train: PositiveInt = 10_000
    """The number of rows to train on."""
    validation: Count = 1000
    """The number of rows to validate on, drawn after those to train on."""

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Draw the rows. Raises ConfigError if they do not fit into memory, or are too many."""
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

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Make the quadratic, with the run's seed for its noise. Raises ConfigError if it does not fit into memory."""
        refuse_beyond_memory(BYTES_PER_ENTRY * self.size, f"data.size is {self.size}; it takes", "lower it")
        return quadratic(self.size, self.noise, seed)


class OfProblem(AnyData):
    """What stands for data beside the key `problem`: none. Nobody can write it."""

    has_rows = False

    name: Literal["problem"] = "problem"

    @property
    def user_code(self) -> bool:
        """Whether it names code of the user's: `problem` does."""
        return True

    def load(self, root: Path, seed: int, targets: Targets | None = None) -> Dataset:
        """Return data without rows."""
        return of_problem()


def _kind(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    known = {"glyphs": "Glyphs", "least_squares": "LeastSquares", "modular": "Modular", "quadratic": "Quadratic"}
    if str(name).startswith(PREFIXES):
        return "OwnData"
    return "Text" if str(name).startswith("text:") else known.get(str(name), "Data")


DataChoice = Annotated[
    Annotated[Data, Tag("Data")]
    | Annotated[Glyphs, Tag("Glyphs")]
    | Annotated[LeastSquares, Tag("LeastSquares")]
    | Annotated[Modular, Tag("Modular")]
    | Annotated[OwnData, Tag("OwnData")]
    | Annotated[Quadratic, Tag("Quadratic")]
    | Annotated[Text, Tag("Text")],
    Discriminator(_kind),
]
