"""Augmentation of images: which ones are flipped and how they are cropped, drawn for each sample of each gradient.

Both only move values, so nothing is rounded. docs/numerics.md has the draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Integers
from fredsim.numerics.streams import Stream, Streams

__all__ = ["WORDS", "draw_places", "moved", "sample_generator"]

#: The words of a sample, a block of Philox: whether it is flipped, by how many rows and columns it is moved, unused.
WORDS = 4
FLIP, ROW, COLUMN = range(3)


def draw_places(
    streams: Streams, clients: Integers, numbers: Integers, mu: int, *, flip: bool, crop: int
) -> tuple[NDArray[np.bool_], Integers, Integers]:
    """Return which samples of B minibatches are flipped, and where their crops begin, (B, µ) each.

    `clients` (B,) compute the minibatches; `numbers` (B,) count each client's gradients from 0. Without `flip` nothing
    is flipped; crops begin at row and column 0 … 2·crop of the image with a border of `crop`.
    """
    places = np.arange(mu)
    of = {"step": numbers[:, None], "client": clients[:, None]}
    words = streams.blocks(Stream.AUGMENT, places, **of)  # all that are needed, unless one must be drawn again

    def below(n: int, word: int) -> Integers:
        product = words[word].astype(np.uint64) * np.uint64(n)
        if ((product & np.uint64(0xFFFF_FFFF)) < 2**32 % n).any():
            return streams.below(n, Stream.AUGMENT, places * WORDS + word, **of)
        return (product >> np.uint64(32)).astype(np.int64)

    flips = below(2, FLIP) > 0 if flip else np.zeros((len(clients), mu), bool)
    rows, columns = (below(2 * crop + 1, word) for word in (ROW, COLUMN))
    return flips, rows, columns


def moved(images: NDArray[Any], flips: NDArray[np.bool_], rows: Integers, columns: Integers, crop: int) -> NDArray[Any]:
    """Return images (n, …, height, width), each cropped to its own size from itself with a border of +0, then flipped.

    The border is `crop` wide; crop i begins at rows[i], columns[i] of the image with its border. `flips` (n,) says
    which images are mirrored, left to right.
    """
    *_, height, width = images.shape
    out = np.empty_like(images)
    bordered = np.zeros((*images.shape[1:-2], height + 2 * crop, width + 2 * crop), images.dtype)
    inside = bordered[..., crop : crop + height, crop : crop + width]
    for image, one, flip, row, column in zip(images, out, flips, rows.tolist(), columns.tolist(), strict=True):
        inside[...] = image
        cut = bordered[..., row : row + height, column : column + width]
        one[...] = cut[..., ::-1] if flip else cut
    return out


def sample_generator(seed: int, client: int, number: int, place: int) -> np.random.Generator:
    """Return a generator of NumPy's for one sample: the one at `place` of the client's gradient with this number.

    Its bit generator is Philox4x64-10 with key (seed, stream) and counter (0, place, number, client).
    """
    counter = np.array([0, place, number, client], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=np.array([seed, Stream.AUGMENT], np.uint64)))
