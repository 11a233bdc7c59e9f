"""How fast this machine is: multiply-adds, √, ÷ and bytes per second of simple loops on a few threads at once.

Each thread has its own arrays, and each rate is the best of several tries: what the processor can do, not what it
usually does. Here a multiply-add may be one fused instruction, which fredsim's roundings do not allow; √ and ÷ are
correctly rounded, as on all sides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["FAR", "Rates", "measure"]

Array = NDArray[np.float32]

IN_L1 = 2048  # floats of one array; two of them fill half of a first-level cache
FAR = 400 * 2**20  # bytes, beyond every cache
TRIES = 9
SECONDS = 0.02  # about the length of a try


@dataclass(frozen=True)
class Rates:
    """Per second, on all threads together."""

    threads: int
    multiply_adds: float
    roots: float
    quotients: float
    near: dict[int, float]  # bytes, by the size of the set that is swept again and again
    far: float  # bytes of a set beyond the caches

    def best_of(self, other: Rates) -> Rates:
        """Return the better of two measurements, rate by rate: what disturbs a rate only ever lowers it."""
        return Rates(
            self.threads,
            max(self.multiply_adds, other.multiply_adds),
            max(self.roots, other.roots),
            max(self.quotients, other.quotients),
            {size: max(rate, other.near[size]) for size, rate in self.near.items()},
            max(self.far, other.far),
        )

    def describe(self) -> str:
        """Return the rates as one sentence."""
        near = ", ".join(f"{rate / 1e9:,.0f} GB over {size / 2**20:.1f} MiB" for size, rate in self.near.items())
        return (
            f"Rates per second with {self.threads} threads: {self.multiply_adds / 1e9:,.0f}·10⁹ multiply-adds, "
            f"{self.roots / 1e9:,.1f}·10⁹ √ and {self.quotients / 1e9:,.1f}·10⁹ ÷ in the first-level cache; "
            f"{near}, {self.far / 1e9:,.0f} GB over {FAR / 2**20:,.0f} MiB."
        )


@njit(nogil=True, fastmath={"contract"})
def multiply_add(x: Array, y: Array, repeats: int) -> None:
    """Do sixteen multiply-adds per element, with one load and one store."""
    a, c = np.float32(0.5), np.float32(0.25)
    for _ in range(repeats):
        for i in range(len(x)):
            p = x[i]
            q = y[i]
            p = p * a + c
            q = q * a + c
            p = p * a + q
            q = q * a + c
            p = p * a + c
            q = q * a + c
            p = p * a + c
            q = q * a + c
            p = p * a + c
            q = q * a + c
            p = p * a + c
            q = q * a + c
            p = p * a + c
            q = q * a + c
            p = p * a + c
            q = q * a + p
            x[i] = p
            y[i] = q


@njit(nogil=True)
def root(x: Array, y: Array, repeats: int) -> None:
    """Compute one √ per element."""
    for _ in range(repeats):
        for i in range(len(x)):
            y[i] = math.sqrt(x[i] + y[i])


@njit(nogil=True, error_model="numpy")
def quotient(x: Array, y: Array, repeats: int) -> None:
    """Compute one ÷ per element."""
    for _ in range(repeats):
        for i in range(len(x)):
            y[i] = x[i] / y[i]


@njit(nogil=True, fastmath={"contract"})
def sweep(x: Array, y: Array, repeats: int) -> None:
    """Read two elements and write one, as an update does."""
    a, c = np.float32(0.5), np.float32(0.5)
    for _ in range(repeats):
        for i in range(len(x)):
            y[i] = a * y[i] + c * x[i]


def measure(threads: int, near: tuple[int, ...]) -> Rates:
    """Return the machine's rates; `near` are the sizes, in bytes, of the sets whose sweeps are timed."""
    with ThreadPoolExecutor(threads) as pool:

        def best(kernel: Callable[[Array, Array, int], None], floats: int) -> float:
            """Return elements per second if each thread has two arrays of this many floats."""
            arrays = [(np.full(floats, 0.7, np.float32), np.full(floats, 1.3, np.float32)) for _ in range(threads)]

            def once(repeats: int) -> float:
                begin = time.perf_counter()
                for done in [pool.submit(kernel, x, y, repeats) for x, y in arrays]:
                    done.result()
                return time.perf_counter() - begin

            once(1)  # compiles
            repeats = max(1, round(SECONDS / max(once(1), 1e-6)))
            repeats = max(1, round(repeats * SECONDS / once(repeats)))
            return threads * floats * repeats / min(once(repeats) for _ in range(TRIES))

        def floats(size: int) -> int:
            return size // (4 * 2 * threads)

        return Rates(
            threads=threads,
            multiply_adds=16 * best(multiply_add, IN_L1),
            roots=best(root, IN_L1),
            quotients=best(quotient, IN_L1),
            near={size: 12 * best(sweep, floats(size)) for size in near},
            far=12 * best(sweep, floats(FAR)),
        )
