"""Compile every kernel that the backend `cuda` launches, without a device.

    python -m tests.compile_kernels 90 FOLDER      # writes FOLDER/NAME-NUMBER.ptx

The engine itself runs, on tensors in this machine's memory, but its kernels are only compiled, not launched: with the
types, constants, tiles and options for a device of the given compute capability.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from fredsim.cuda import device
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.mlp import Mlp
from fredsim.numerics.streams import Stream, Streams
from fredsim.numerics.ternary import Draws
from tests.servers.conftest import build
from tests.servers.variants import VARIANTS


class Device:
    """The interface of a device that Triton needs for compiling."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, number: int) -> int:
        return number


def compile_instead(folder: Path) -> None:
    """Make every launch only compile its kernel, and write each new kernel's PTX to a file."""
    run, seen = JITFunction.run, set()

    def compile_only(self: Any, *arguments: Any, **options: Any) -> None:
        compiled = run(self, *arguments, **{**options, "warmup": True})
        if compiled.hash not in seen:
            seen.add(compiled.hash)
            (folder / f"{self.__name__}-{len(seen)}.ptx").write_text(compiled.asm["ptx"], encoding="utf-8")

    JITFunction.run = compile_only


def gradients(sizes: tuple[int, ...], mu: int) -> None:
    """Launch the kernels of minibatches of µ samples and of an evaluation."""
    from fredsim.cuda.engine import CudaEngine

    split = Split(np.zeros((3, sizes[0]), np.float32), np.zeros(3, np.int64))
    model = Mlp(sizes)
    engine = CudaEngine(model, Dataset(split, split, split, sizes[-1]), mu)
    engine.gradients([engine.zeros(model.layout.size)] * 2, np.zeros((2, mu), np.int64))
    engine.evaluate(engine.zeros(model.layout.size), "validation")


def linear_models() -> None:
    """Launch the kernels of least squares and of quadratics, each with a small and a large problem."""
    from fredsim.cuda.squares_engine import CudaLeastSquares, CudaQuadratic
    from fredsim.data.problems import least_squares, quadratic

    for columns, mu in ((1, 1), (400, 256)):
        data = least_squares(columns, 0.0, 0, 300, 3)
        engine = CudaLeastSquares(data, mu)
        engine.gradients([engine.zeros(columns)] * 2, np.zeros((2, mu), np.int64))
        engine.evaluate(engine.zeros(columns), "validation")
    for size, noise in ((2, 0.0), (1729, 0.1)):
        functions = CudaQuadratic(quadratic(size, noise, 0))
        functions.gradients([functions.zeros(size)] * 2, np.zeros((2, 1), np.int64))


def servers() -> None:
    """Launch every server's rules, and the operations on whole arrays."""
    from fredsim.cuda.operations import CudaOperations

    operations = CudaOperations()
    for variant in VARIANTS.values():
        server = build(variant)
        getattr(server, "server", server).operations = operations
        server.init(np.zeros(300, np.float32), 6)
    for size in (1, 5000):
        array = operations.zeros(size)
        operations.mean(array)
        operations.ternary.clip(array, 2.5)
        packed = operations.ternary.encode(array, np.float32(1), Draws(Streams(1), Stream.COMPRESSION, 1, 1, 1))
        operations.ternary.decode(packed, size, np.float32(1))


def main() -> None:
    capability, folder = int(sys.argv[1]), Path(sys.argv[2])
    triton.runtime.driver.set_active(Device(capability))
    device.device, device.name = lambda: torch.device("cpu"), lambda: "none"
    compile_instead(folder)
    for sizes, mu in (
        ((1, 1, 1, 2), 1),  # Triton compiles arguments of 1 as constants
        ((784, 200, 10), 8),
        ((64, 10), 16),
        ((784, 200, 10), 5000),  # a minibatch of subtrees at two levels
    ):
        gradients(sizes, mu)
    linear_models()
    servers()


if __name__ == "__main__":
    main()
