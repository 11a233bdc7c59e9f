"""Kernel that quantises gradients to −1, 0 and +1 at random and packs them: fredsim.numerics.ternary.quantise, pack."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, item, put, uint8s
from fredsim.jit.team import Team
from fredsim.kernels.arrays.streams import philox, uniform24
from fredsim.numerics import ternary
from fredsim.numerics.arrays import Array
from fredsim.numerics.ternary import Draws

__all__ = ["NumbaTernary", "encode"]


@kernel(g=floats, count=int, scaler=floats, seed=int, stream=int, begin=int, step=int, client=int, packed=uint8s)
def encode(rank, size, barrier, a):
    """Pack sign(g[i])·b, i < count, at two bits each; b = 1 iff u·s < |g[i]| in float64, else 0.

    u is uniform in [0, 1), from the word of element begin + i of the stream; `scaler` (1,) is s. Codes: 00 is −1, 01 is
    0, 10 is +1; the unused slots of the last byte hold 01. `packed` is uint8 (⌈count/4⌉,).
    """
    scaler, k0, k1 = np.float64(item(a.scaler, 0)), np.uint64(a.seed), np.uint64(a.stream)
    count = (a.count + 3) // 4
    known = np.int64(-1)
    w0 = w1 = w2 = w3 = np.uint64(0)
    for byte in range(count * rank // size, count * (rank + 1) // size):
        total = np.uint8(0)
        for slot in range(4):
            i = 4 * byte + slot
            code = np.uint8(1)
            if i < a.count:
                element = a.begin + i
                if element >> 2 != known:
                    known = element >> 2
                    w0, w1, w2, w3 = philox(known, a.step, a.client, 0, k0, k1)
                lane = element & 3
                word = w0 if lane == 0 else w1 if lane == 1 else w2 if lane == 2 else w3
                x = item(a.g, i)
                if uniform24(word) * scaler < np.float64(abs(x)):
                    code = np.uint8(2) if x > 0.0 else np.uint8(0)
            total |= code << np.uint8(2 * slot)
        put(a.packed, byte, np.uint8(total))


class NumbaTernary(ternary.NumpyTernary):
    """Quantises and packs on a team of threads; the rest is NumPy's."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def encode(self, g: Array, s: np.float32, draws: Draws) -> NDArray[np.uint8]:
        """Return a tensor (n,) quantised with the scaler s and packed; see fredsim.numerics.ternary.Ternary."""
        g, scaler = np.ascontiguousarray(g), np.array([s], np.float32)
        packed = np.empty(ternary.packed_size(g.size), np.uint8)
        arguments = encode.pack(
            g=g, count=g.size, scaler=scaler, seed=draws.streams.seed, stream=draws.stream, begin=draws.begin,
            step=draws.step, client=draws.client, packed=packed,
        )  # fmt: skip
        self._team.run(encode, arguments)
        return packed
