"""The rows of least squares: drawn from fredsim's own random streams, or as a published experiment drew them."""

from __future__ import annotations

import hashlib

import numpy as np

from fredsim.errors import DataError
from fredsim.numerics.arrays import Array, Floats
from fredsim.numerics.squares import combine_columns
from fredsim.numerics.streams import Stream, Streams, normal_quantile, uniform24

__all__ = ["draw_rows", "mishchenko_rows"]

ELEMENTS_AT_ONCE = 2**18  # how many elements are drawn together, which takes about 100 bytes for each
MATRIX, SOLUTION, TARGETS = range(3)  # what a draw is for; a draw has this in place of the client
#: The published instance: rows, columns, the standard deviation of the targets' noise, NumPy's seed, how many seeds the
#: code draws first, and below which number; then the SHA-256 of the rows and targets as float32.
ROWS, COLUMNS, NOISE, SEED, SEEDS, SEEDS_BELOW = 10_000, 400, 1e-5, 42, 5, 424_242
SHA256 = "c3ae15c9e78988c2ae9787316fa8be63330d6d17500f7306a348716a14de9f08"
#: How many rows are drawn after those of the published instance, for validation and test.
EXTRA_ROWS = 2000


def draw_rows(count: int, columns: int, noise: float, seed: int) -> tuple[Array, Array]:
    """Return rows (count, columns) with entries U[0, 1)/√columns, and targets a·x + N(0, noise²), float32.

    Every draw has its own place in the streams, so that a row does not depend on how many rows there are. Targets
    are computed from the float32 entries and from x ~ N(0, 1), summed in float64 in the order of the entries.
    """
    streams, scale = Streams(seed), np.sqrt(np.float64(columns))
    x = np.empty((count, columns), np.float32)
    blocks = np.arange(-(-columns // 4))
    step = max(1, ELEMENTS_AT_ONCE // columns)
    for begin in range(0, count, step):
        rows = np.arange(begin, min(begin + step, count))[:, None]
        words = np.stack(streams.blocks(Stream.DATA, blocks, rows, MATRIX), axis=-1).reshape(len(rows), -1)[:, :columns]
        x[begin : begin + step] = uniform24(words) / scale
    solution = normal_quantile(streams.run_of_words(Stream.DATA, columns, client=SOLUTION))
    errors = normal_quantile(streams.words(Stream.DATA, 0, np.arange(count), TARGETS)) * noise
    return x, (combine_columns(x.T.astype(np.float64), solution) + errors).astype(np.float32)


def mishchenko_rows() -> tuple[Array, Array]:
    """Return Mishchenko et al.'s rows, followed by EXTRA_ROWS more, float32 (n, 400), and their targets, float32 (n,).

    Mishchenko, Bach, Even and Woodworth 2022, "Asynchronous SGD beats minibatch SGD under arbitrary delays",
    arXiv:2206.07638: entries U[0, 1)/√400, targets of a standard normal solution and noise of 1e-5, from NumPy's
    generator with seed 42, of which the code first takes five seeds (github.com/konstmish/asynchronous_sgd).
    Raises DataError if the installed NumPy draws other numbers.
    """
    random = np.random.default_rng(SEED)
    for _ in range(SEEDS):
        random.choice(SEEDS_BELOW, size=1, replace=False)
    parts: list[tuple[Array, Array]] = []
    solution: Floats | None = None
    for count in (ROWS, EXTRA_ROWS):
        matrix = random.uniform(size=(count, COLUMNS)) / np.sqrt(COLUMNS)
        solution = random.normal(size=COLUMNS) if solution is None else solution
        targets = combine_columns(np.ascontiguousarray(matrix.T), solution) + NOISE * random.normal(size=count)
        parts.append((matrix.astype(np.float32), targets.astype(np.float32)))
    found = hashlib.sha256(parts[0][0].tobytes() + parts[0][1].tobytes()).hexdigest()
    if found != SHA256:
        what = f"NumPy {np.__version__} draws other numbers (SHA-256 {found[:12]}…) than the one it was made with"
        raise DataError(f"mishchenko: {what}; install another NumPy, or take data: {{name: least_squares}}")
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return x, y
