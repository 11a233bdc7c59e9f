"""Changes training samples at random before gradients are computed from them: the key `data.augment`.

What is drawn depends on the run's seed, the client, the number of the client's gradient and the sample's place in the
minibatch, and on nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import ConfigError, SimulationError
from fredsim.numerics.augment import draw_places, moved, sample_generator
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.streams import Streams
from fredsim.plugins.failures import described, failing
from fredsim.plugins.modules import import_callable, parameters_of

__all__ = ["Augmentation", "find_function"]

Function = Callable[[NDArray[Any], "np.random.Generator"], Any]

FORM = "package.module:function"


def find_function(name: str) -> Function:
    """Return the user's function of this name. Raises ConfigError if there is none, or it takes something else."""
    found = import_callable(name, FORM, "data.augment.function", "a function (sample, generator)")
    if (known := parameters_of(found)) is not None:
        try:
            inspect.Signature([*known.values()]).bind("sample", "generator")
        except TypeError:
            what = f"{name} takes ({', '.join(known)}); it must take a sample and a generator"
            raise ConfigError(f"data.augment.function: {what}") from None
    return found


@dataclass(frozen=True, eq=False)
class Augmentation:
    """How samples of this shape are changed: cropped, flipped, then given to a user's function, if one is named."""

    shape: tuple[int, ...]
    flip: bool = False
    crop: int = 0
    function: str = ""

    def __post_init__(self) -> None:
        """Import the function. Raises ConfigError if samples are not images, or no larger than the crop."""
        self._function  # noqa: B018  a run notes which version of the user's code it has before its first gradient
        if not (self.flip or self.crop):
            return
        key = "flip" if self.flip else "crop"
        if len(self.shape) not in {2, 3}:
            what = f"samples have the shape {self.shape}, and images (height, width) or (channels, height, width)"
            raise ConfigError(f"data.augment.{key} is for images; {what}: leave it out, or give the samples that shape")
        if self.crop >= min(self.shape[-2:]):
            height, width = self.shape[-2:]
            what = f"data.augment.crop is {self.crop}; it must be less than the images' {height}×{width}"
            which = "(channels, height, width)" if len(self.shape) == 3 else "(height, width)"
            raise ConfigError(f"{what}: samples have the shape {self.shape}, that is {which}")

    @cached_property
    def _function(self) -> Function | None:
        return find_function(self.function) if self.function else None

    def __call__(self, x: NDArray[Any], keys: Keys, mu: int) -> NDArray[Any]:
        """Return B·µ samples changed: those of B minibatches, (B·µ, inputs), of the gradients with these keys."""
        images = x.reshape(len(x), *self.shape)
        if self.flip or self.crop:
            streams = Streams(keys.seed)
            flips, rows, columns = draw_places(streams, keys.clients, keys.numbers, mu, flip=self.flip, crop=self.crop)
            images = moved(images, flips.reshape(-1), rows.reshape(-1), columns.reshape(-1), self.crop)
        if self._function is not None:
            changed, number = np.empty_like(images), next(self._calls)
            for place, image in enumerate(images):
                own = keys.one(place // mu)
                drawn = own.seed, own.client, own.number, place % mu
                changed[place] = self._changed(image.copy(), sample_generator(*drawn))
                if place == number % len(images) and (number < 8 or number % 32 == 0):
                    self._check_again(image.copy(), sample_generator(*drawn), changed[place])
            images = changed
        return images.reshape(x.shape)

    def check(self, x: NDArray[Any], rows: int | None) -> None:
        """Raise SimulationError if changed samples choose a row that the network's table of so many rows lacks."""
        if rows is not None and x.size and not 0 <= x.min() <= x.max() < rows:
            bad = x[(x < 0) | (x >= rows)][0]
            what = f"data.augment.function: {self.function} gave the token {bad:g}"
            raise SimulationError(f"{what}; the network's table has the rows 0 … {rows - 1}")

    @cached_property
    def _calls(self) -> Iterator[int]:
        return count()

    def _check_again(self, image: NDArray[Any], generator: np.random.Generator, first: NDArray[Any]) -> None:
        """Raise SimulationError if the user's function makes something else of a sample the second time."""
        if self._changed(image, generator).tobytes() != first.tobytes():
            what = f"data.augment.function: {self.function} gave another sample for the same one and the same draws"
            raise SimulationError(f"{what}; let it draw from its generator alone, and keep nothing from call to call")

    def _changed(self, image: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
        """Return what the user's function makes of a sample. Raises SimulationError unless it is such a sample."""
        assert self._function is not None
        what, shape, dtype = f"data.augment.function: {self.function}", image.shape, image.dtype
        with failing(lambda error: SimulationError(f"{what} failed: {described(error)}")):
            given = self._function(image, generator)
            found = np.asarray(given)
        if isinstance(given, np.ma.MaskedArray):
            raise SimulationError(f"{what} gave a masked array; give .filled(0), or another value for what is masked")
        if found.shape != shape or found.dtype != dtype:
            gave = f"{found.dtype} {found.shape} for a sample that is {dtype} {shape}"
            raise SimulationError(f"{what} gave {gave}; it must return such a sample")
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise SimulationError(f"{what} gave a value that is not finite; it must return finite numbers")
        return found
