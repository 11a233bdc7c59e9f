"""Drawn images: a glyph of each class, at a random place among other patches, with noise, from fredsim's own streams.

Everything is in integers, so that the images have the same bits on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.streams import Stream, Streams

__all__ = ["GLYPH", "draw_glyphs", "draw_images", "draw_places"]

GLYPH = 7  # the height and the width of a glyph, in pixels
#: What a draw is for; a draw has this in place of the client (fredsim.data.squares and fredsim.data.sequences have the
#: others). Images have that of their part: of training, validation and test.
GLYPHS, PARTS = 4, (5, 6, 7)
BRIGHT, DARK, PLACES = 0, 1, 2  # the words of an image: its two levels, then the rows and columns of its patches

WORDS_AT_ONCE = 2**18  # how many words are drawn together, which takes about 100 bytes for each


def draw_glyphs(classes: int, seed: int) -> NDArray[np.bool_]:
    """Return a glyph of random bits for each class, bool (classes, GLYPH, GLYPH)."""
    words = Streams(seed).words(Stream.DATA, np.arange(GLYPH * GLYPH), np.arange(classes)[:, None], GLYPHS)
    return _bits(words).reshape(classes, GLYPH, GLYPH)


def draw_images(
    count: int, part: int, classes: int, size: int, clutter: int, noise: float, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the first `count` images of a part (0 training, 1 validation, 2 test), uint8 (n, size, size), and labels.

    Image i has the class i mod classes. Its glyph covers part of `clutter` patches of bits of its own; all lie at
    random places of an empty image. Then each pixel is inverted with the probability `noise`, and pixels that are set
    get the image's bright level, of 192 … 255, the others its dark level, of 0 … 63. An image does not depend on how
    many there are.
    """
    glyphs, labels = draw_glyphs(classes, seed), np.arange(count, dtype=np.int64) % classes
    images = np.empty((count, size, size), np.uint8)
    step = max(1, WORDS_AT_ONCE // (size * size + (clutter + 1) * GLYPH * GLYPH))
    for begin in range(0, count, step):
        some = slice(begin, min(begin + step, count))
        numbers = np.arange(some.start, some.stop)
        images[some] = _drawn(numbers, part, glyphs[labels[some]], size, clutter, noise, seed)
    return images, labels


def draw_places(numbers: NDArray[np.int64], part: int, size: int, clutter: int, seed: int) -> NDArray[np.int64]:
    """Return the row and column of each patch of the images of these numbers, (n, clutter + 1, 2); last the glyph's."""
    elements = PLACES + np.arange(2 * (clutter + 1))
    places = Streams(seed).below(size - GLYPH + 1, Stream.DATA, elements, numbers[:, None], PARTS[part])
    return places.reshape(len(numbers), clutter + 1, 2)


def _drawn(
    numbers: NDArray[np.int64], part: int, glyphs: NDArray[np.bool_], size: int, clutter: int, noise: float,
    seed: int,
) -> NDArray[np.uint8]:  # fmt: skip
    """Return the images of these numbers, with these glyphs: words of levels, places, bits of patches, and noise."""
    count = len(numbers)
    bits = PLACES + 2 * (clutter + 1)  # where words of the patches begin; after them, those of the pixels
    pixels = bits + clutter * GLYPH * GLYPH
    words = _words(Streams(seed), PARTS[part], numbers, pixels + size * size)
    places = draw_places(numbers, part, size, clutter, seed)
    patches = _bits(words[:, bits:pixels]).reshape(count, clutter, GLYPH, GLYPH)
    patches = np.concatenate([patches, glyphs[:, None]], axis=1)  # the glyph is the last, so that nothing covers it
    inside, rows = np.arange(GLYPH), np.arange(count)[:, None, None]
    drawn = np.zeros((count, size, size), bool)
    for number in range(clutter + 1):
        row, column = places[:, number, 0], places[:, number, 1]
        drawn[rows, (row[:, None] + inside)[:, :, None], (column[:, None] + inside)[:, None, :]] = patches[:, number]
    drawn ^= (words[:, pixels:] < np.uint64(noise * 2.0**32)).reshape(drawn.shape)
    bright, dark = (words[:, [which]] >> np.uint32(26) for which in (BRIGHT, DARK))
    levels = np.where(drawn.reshape(count, -1), bright + np.uint32(192), dark)
    return levels.astype(np.uint8).reshape(drawn.shape)


def _words(streams: Streams, client: int, numbers: NDArray[np.int64], count: int) -> NDArray[np.uint32]:
    """Return the first `count` words of each image, uint32 (n, count)."""
    blocks = np.arange(-(-count // 4))
    words = np.stack(streams.blocks(Stream.DATA, blocks, numbers[:, None], client), axis=-1)
    return words.reshape(len(numbers), -1)[:, :count]


def _bits(words: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return the highest bit of each word."""
    return words >= np.uint32(2**31)
