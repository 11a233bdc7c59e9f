"""AveragedSGD in its torch mode: a transcription of torch's step, fused as torch computes it and as the server does."""

import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.servers import AveragedSGD

Array = NDArray[np.float32]
SIZE = 256  # whole vectors: torch's loops may treat a rest another way
Multiply = Callable[[Any, Any, Any], Array]

CASES: dict[str, dict[str, float]] = {
    "defaults of the server": {"t0": 0.0},
    "t0 crossed": {"t0": 100.0, "lambd": 0.05},
    "decay": {"t0": 100.0, "l2": 0.05},
    "no lambd": {"t0": 10.0, "lambd": 0.0, "alpha": 0.5},
    "no lambd, decay": {"t0": 10.0, "lambd": 0.0, "l2": 1e-3},
    "never averages": {"t0": 1e6, "lambd": 0.01, "l2": 0.01},
    "fast decay": {"t0": 3.0, "lambd": 2.0, "alpha": 1.0, "lr": 0.1},
}


def fused(a: Any, b: Any, c: Any) -> Array:
    """a·b + c in float32 with one rounding.

    The product is exact in float64; the sum is rounded to odd there, so that rounding once more to float32 is right.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c = np.broadcast_to(np.asarray(c, np.float64), product.shape)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0), bits + step, bits)
    rounded: Array = odd.view(np.float64).astype(np.float32)
    return rounded


def apart(a: Any, b: Any, c: Any) -> Array:
    """a·b + c in float32 with two roundings."""
    return np.asarray(np.float32(1) * a * b + c, np.float32)


def exactly_rounded(x: Fraction) -> np.float32:
    near = np.float32(float(x))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda y: (abs(Fraction(float(y)) - x), int(y.view(np.uint32)) & 1))


def test_the_emulated_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3000)).astype(np.float32)
    near = -(a * b)  # sums that cancel, and sums of very different sizes
    for c in (near, np.nextafter(near, np.float32(9)), (a * rng.choice([1e-9, 1, 1e9], 3000)).astype(np.float32)):
        expected = [
            exactly_rounded(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
            for x, y, z in zip(a, b, c, strict=True)
        ]
        np.testing.assert_array_equal(fused(a, b, c), np.array(expected))
    halfway = np.float32(1 + 2**-12)  # its square ends at 2⁻²⁴, half an ulp: what is added decides
    assert fused(halfway, halfway, np.float32(2**-60)) > fused(halfway, halfway, np.float32(-(2**-60)))


def transcribed(multiply_add: Multiply, start: Array, grads: list[Array], case: dict[str, float]) -> Iterator[Any]:
    """torch.optim.ASGD's step, statement by statement; η and μ are float32 tensors there."""
    f = np.float32
    lr, lambd, alpha = case.get("lr", 0.01), case.get("lambd", 1e-4), case.get("alpha", 0.75)
    p, ax, eta, mu = start.copy(), start.copy(), f(lr), f(1)
    for step, g in enumerate(grads, start=1):
        if case.get("l2", 0.0):
            g = multiply_add(p, f(case["l2"]), g)
        p = p * f(1 - lambd * float(eta))
        p = multiply_add(g, -eta, p)
        ax = p.copy() if mu == 1 else ax + (p - ax) * mu
        eta = f(lr / (1 + lambd * lr * step) ** alpha)
        mu = f(1 / max(1, step - case["t0"]))
        yield p, ax


def pushes(count: int = 1000) -> tuple[Array, list[Array]]:
    rng = np.random.default_rng(1)
    start = rng.standard_normal(SIZE).astype(np.float32)
    return start, [rng.standard_normal(SIZE).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_server_is_the_transcription_with_its_roundings_apart(case: dict[str, float]) -> None:
    start, grads = pushes()
    server = AveragedSGD(**{"lr": 0.01, "mode": "torch", **case})
    server.init(start, 1)
    for step, (p, ax) in enumerate(transcribed(apart, start, grads, case)):
        server.apply_update(grads[step], 0, step)
        assert server.params.tobytes() == p.tobytes(), step
        assert server.averaged_params.tobytes() == ax.tobytes(), step


def by_torch(start: Array, grads: list[Array], case: dict[str, float]) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever importing it says
        torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.ASGD(
        [p], lr=case.get("lr", 0.01), lambd=case.get("lambd", 1e-4), alpha=case.get("alpha", 0.75), t0=case["t0"],
        weight_decay=case.get("l2", 0.0), foreach=False,
    )  # fmt: skip
    for g in grads:
        p.grad = torch.from_numpy(g.copy())
        optimizer.step()
        yield p.detach().numpy(), optimizer.state[p]["ax"].numpy()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_torch_is_the_transcription_with_its_multiply_add_fused(case: dict[str, float]) -> None:
    start, grads = pushes()
    both = zip(by_torch(start, grads, case), transcribed(fused, start, grads, case), strict=True)
    for step, ((p, ax), (mine, average)) in enumerate(both):
        assert p.tobytes() == mine.tobytes(), step
        assert ax.tobytes() == average.tobytes(), step


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_server_stays_with_torch(case: dict[str, float]) -> None:
    start, grads = pushes()
    server = AveragedSGD(**{"lr": 0.01, "mode": "torch", **case})
    server.init(start, 1)
    differs = False
    for step, (p, ax) in enumerate(by_torch(start, grads, case)):
        server.apply_update(grads[step], 0, step)
        bound = 1e-6 * np.abs(p).max()
        assert np.abs(server.params - p).max() <= bound, step
        assert np.abs(server.averaged_params - ax).max() <= bound, step
        differs |= server.params.tobytes() != p.tobytes()
    assert differs  # the roundings of the two are not the same


def test_polyak_and_torch_average_what_they_say() -> None:
    """With t₀ = 0 torch's lagging μ leaves the first iterate out; polyak's mean has all of them."""
    start, grads = pushes(20)
    for mode, first in (("polyak", 0), ("torch", 1)):
        server = AveragedSGD(lr=0.1, mode=mode, lambd=0.0)
        server.init(start, 1)
        iterates = []
        for step, g in enumerate(grads):
            server.apply_update(g, 0, step)
            iterates.append(server.params.astype(np.float64))
        np.testing.assert_allclose(server.averaged_params, np.mean(iterates[first:], axis=0), rtol=0, atol=1e-6)
        other = np.abs(server.averaged_params - np.mean(iterates[1 - first :], axis=0)).max()
        assert other > 1e-3
