"""Ternary gradients on a device: the draws, two bits a value, and back; as fredsim.numerics.ternary."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from fredsim.cuda.arithmetic import Arithmetic
from fredsim.cuda.array import DeviceArray
from fredsim.cuda.device import launch, tile
from fredsim.cuda.trees import BLOCK, pairs
from fredsim.numerics import ternary
from fredsim.numerics.ternary import Draws

__all__ = ["CudaTernary"]


@triton.jit(do_not_specialize=["begin", "step", "client"])
def encode(g, n, s, key, begin, step, client, packed, BLOCK: tl.constexpr):
    """Pack sign(g)·b, b = 1 iff u·s < |g| in float64, u from the word of element begin + i; padding holds 01.

    `key` is Philox's: the stream in its upper half, the seed in its lower. `s` points to the scaler.
    """
    byte = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scaler = tl.load(s).to(tl.float64)
    total = tl.zeros([BLOCK], tl.int32)
    for slot in tl.static_range(4):
        i = 4 * byte + slot
        element = begin + i
        block = element >> 2
        w0, w1, w2, w3 = tl.philox(key, block, tl.zeros_like(block) + step, tl.zeros_like(block) + client, block * 0)
        lane = element & 3
        word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
        u = (word >> 8).to(tl.float64) * (1.0 / 16777216.0)
        x = tl.load(g + i, mask=i < n, other=0.0)
        taken = u * scaler < tl.abs(x).to(tl.float64)
        total |= tl.where(taken & (x > 0.0), 2, tl.where(taken & (x < 0.0), 0, 1)) << (2 * slot)
    tl.store(packed + byte, total.to(tl.uint8), mask=4 * byte < n)


@triton.jit
def decode(packed, n, s, out, BLOCK: tl.constexpr):
    """Write s times each value."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = (tl.load(packed + i // 4, mask=i < n, other=0).to(tl.int32) >> (2 * (i % 4))) & 3
    tl.store(out + i, tl.load(s) * (code - 1).to(tl.float32), mask=i < n)


@triton.jit
def square_blocks(array, n, centre, out, BLOCK: tl.constexpr):
    """Write the sum in float64 of (x − centre)² over each BLOCK elements, a whole subtree each."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    apart = tl.load(array + i, mask=i < n, other=0.0).to(tl.float64) - tl.load(centre)
    tl.store(out + tl.program_id(0) + tl.arange(0, 1), pairs(tl.where(i < n, apart * apart, 0.0), BLOCK))


class CudaTernary:
    """Works on arrays of a device."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic

    def scaler(self, g: Any) -> np.float32:
        """Return max|g|."""
        return np.float32(self._taken(g).abs().max().item())

    def clip(self, g: Any, sigmas: float) -> Any:
        """Clip; σ by the contract's tree in float64."""
        centre = self._arithmetic.on_device([self._arithmetic.mean(g)], torch.float64)
        squares = torch.empty(-(-g.size // BLOCK), dtype=torch.float64, device=centre.device)
        launch(square_blocks, (len(squares),), self._taken(g), g.size, centre, squares, BLOCK=BLOCK)
        return ternary.clipped(g, sigmas * np.sqrt(self._arithmetic.total(squares) / np.float64(g.size)))

    def encode(self, g: Any, s: np.float32, draws: Draws) -> NDArray[np.uint8]:
        """Quantise and pack."""
        scaler, n = self._arithmetic.on_device([s], torch.float32), ternary.packed_size(g.size)
        packed = torch.empty(n, dtype=torch.uint8, device=scaler.device)
        key, block = int(draws.stream) << 32 | draws.streams.seed, tile(n, BLOCK)
        launch(
            encode, (-(-n // block),), self._taken(g), g.size, scaler, key, draws.begin, draws.step, draws.client,
            packed, BLOCK=block,
        )  # fmt: skip
        result: NDArray[np.uint8] = packed.cpu().numpy()
        return result

    def decode(self, packed: NDArray[np.uint8], count: int, s: np.float32) -> Any:
        """Unpack and scale."""
        scaler, codes = self._arithmetic.on_device([s], torch.float32), self._arithmetic.on_device(packed, torch.uint8)
        out, block = torch.empty(count, device=scaler.device), tile(count, BLOCK)
        launch(decode, (-(-count // block),), codes, count, scaler, out, BLOCK=block)
        return DeviceArray(out)

    def _taken(self, g: Any) -> torch.Tensor:
        flat: torch.Tensor = self._arithmetic.taken(g).reshape(-1)
        return flat
