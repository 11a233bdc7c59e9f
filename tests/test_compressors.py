"""Compressors: what each promises of one push, and whole simulations against the plain loop."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.compressors import COMPRESSORS, EF21, QSGD, Compressor, ErrorFeedbackSign, Sign, Ternary, TopK
from fredsim.errors import ConfigError
from fredsim.networks.layout import Layout
from fredsim.numerics.streams import Stream, Streams
from fredsim.runs.folder.results import Result

Simulate = Callable[..., Result]
Refused = Callable[..., None]
Array = NDArray[np.float32]
LAYOUT = Layout((("W1", (7, 9)), ("b1", (9,)), ("W2", (3, 2))))
PARTS = [slice(0, 63), slice(63, 72), slice(72, 78)]


MADE = [QSGD, Ternary, Sign, ErrorFeedbackSign, lambda: TopK(k=5), lambda: EF21(inner={"name": "top_k", "k": 5})]


def started(compressor: Compressor, layout: Layout = LAYOUT, seed: int = 7) -> Compressor:
    compressor.init(layout, Streams(seed))
    return compressor


def pushes(count: int = 1) -> list[Array]:
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal((count, 78)).astype(np.float32)
    drawn[:, 63:72] *= np.float32(1e-4)  # tensors of different sizes
    drawn[:, ::11] = 0
    return list(drawn)


@pytest.mark.parametrize("levels", [1, 4, 15])
def test_qsgd(levels: int) -> None:
    """Unbiased; each value on one of the two levels around it, so not further off than ‖g‖/s."""
    (g,), compressor = pushes(), started(QSGD(levels=levels))
    drawn = np.stack([compressor.compress(g, 3, step)[0] for step in range(2000)])
    bits = {1: 2, 4: 4, 15: 5}[levels]
    assert compressor.compress(g, 3, 0)[1] == sum(4 + (n * bits + 7) // 8 for n in (63, 9, 6))
    for part in PARTS:
        norm = np.linalg.norm(g[part].astype(np.float64))
        assert np.abs(drawn[:, part] - g[part]).max() <= norm / levels * (1 + 1e-6)
        deviation = drawn[:, part].mean(axis=0) - g[part]
        assert np.abs(deviation).max() < 5 * norm / levels / 2 / np.sqrt(2000)
        steps = drawn[:, part].astype(np.float64) / norm * levels
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-5)
    assert (drawn[:, ::11] == 0).all()
    assert (drawn[0] != drawn[1]).any()
    assert (compressor.compress(g, 4, 0)[0] != drawn[0]).any()  # each client draws for itself
    np.testing.assert_array_equal(compressor.compress(g, 3, 0)[0], drawn[0])


def test_qsgd_of_one_value_is_exact() -> None:
    one = started(QSGD(levels=4), Layout((("b", (5,)),)))
    g = np.array([0, 0, -3.7, 0, 0], np.float32)
    for step in range(50):
        np.testing.assert_allclose(one.compress(g, 0, step)[0], g, rtol=1e-6)


@pytest.mark.parametrize("clip_sigma", [None, 1.5])
def test_ternary(clip_sigma: float | None) -> None:
    """−s, 0 or s with the contract's draws: taken iff u·s < |g|."""
    (g,), compressor = pushes(), started(Ternary(clip_sigma=clip_sigma))
    drawn = []
    for step in range(1500):
        out, size = compressor.compress(g, 2, step)
        assert size == 3 * 4 + 16 + 3 + 2
        drawn.append(out)
    for part in PARTS:
        x = g[part].astype(np.float64)
        clipped = x if clip_sigma is None else np.clip(x, -clip_sigma * x.std(), clip_sigma * x.std())
        s = np.abs(clipped).max()
        elements = np.arange(part.start, part.stop)
        u = Streams(7).uniform(Stream.COMPRESSION, elements, 8, 2)
        np.testing.assert_allclose(drawn[8][part], s * np.sign(clipped) * (u * s < np.abs(clipped)), rtol=1e-6)
        mean = np.mean([out[part] for out in drawn], axis=0)
        assert np.abs(mean - clipped).max() < 5 * s / 2 / np.sqrt(1500)
        assert len(np.unique(np.abs([out[part] for out in drawn]))) <= 2


def test_signs() -> None:
    (g,) = pushes()
    out, size = started(Sign()).compress(g, 0, 0)
    np.testing.assert_array_equal(out, np.sign(g))
    assert size == 16 + 3 + 2
    assert not np.signbit(out[::11]).any()


def test_error_feedback_sign() -> None:
    """Δ = (‖p‖₁/d)·sign(p) of each tensor, p = g + e; what is left of all pushes is the error."""
    compressor, errors = started(ErrorFeedbackSign()), np.zeros((2, 78))
    sent, given = np.zeros((2, 78)), np.zeros((2, 78))
    for step, g in enumerate(pushes(60)):
        client = step % 3 % 2
        out, size = compressor.compress(g, client, step)
        assert size == 3 * 4 + 16 + 3 + 2
        p = errors[client] + g
        for part in PARTS:
            np.testing.assert_allclose(out[part], np.abs(p[part]).mean() * np.sign(p[part]), rtol=1e-3, atol=1e-9)
        errors[client] = p - out
        sent[client] += out
        given[client] += g
    np.testing.assert_allclose(sent + errors, given, atol=1e-4)
    fresh = started(ErrorFeedbackSign()).compress(pushes()[0], 0, 0)[0]
    np.testing.assert_array_equal(started(compressor).compress(pushes()[0], 0, 0)[0], fresh)  # nothing remembered


@pytest.mark.parametrize(("k", "count"), [(1, 1), (10, 10), (77, 77), (0.1, 7), (0.001, 1), (0.999, 77)])
def test_top_k_with_memory(k: float, count: int) -> None:
    """What was sent and what is left make up what was pushed, for each client."""
    compressor = started(TopK(k=k))
    left = np.zeros((2, 78), np.float32)
    for step, g in enumerate(pushes(40)):
        client = step % 3 % 2
        before, p = g.copy(), left[client] + g
        out, size = compressor.compress(g, client, step)
        np.testing.assert_array_equal(g, before)
        assert size == 8 * count
        order = sorted(range(78), key=lambda i: (-abs(p[i]), i))[:count]
        expected = np.zeros(78, np.float32)
        expected[order] = p[order]
        np.testing.assert_array_equal(out, expected)
        left[client] = p - out


def test_the_first_of_equal_magnitudes_are_sent() -> None:
    compressor = started(TopK(k=3), Layout((("b", (6,)),)))
    g = np.array([1, -2, 2, 2, -2, 0.5], np.float32)
    assert compressor.compress(g, 0, 0)[0].tolist() == [0, -2, 2, 2, 0, 0]
    assert compressor.compress(g, 0, 1)[0].tolist() == [2, -2, 0, 0, -4, 0]  # of 2, −2, 2, 2, −4, 1
    assert compressor.compress(np.zeros(6, np.float32), 1, 2)[0].tolist() == [0] * 6


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_hidden(make: Callable[[], Compressor], bad: float) -> None:
    (g,), compressor = pushes(), started(make())
    g[70] = bad
    for step in range(2):
        out, _ = compressor.compress(g, 0, step)
        if isinstance(compressor, Sign) and np.isinf(bad):
            assert out[70] == np.sign(bad)
        elif step == 0:
            assert not np.isfinite(out).all()
        assert out.dtype == np.float32


@pytest.mark.parametrize("make", MADE)
def test_zeros_stay_zeros(make: Callable[[], Compressor]) -> None:
    out, size = started(make()).compress(np.zeros(78, np.float32), 0, 0)
    assert out.dtype == np.float32
    assert size > 0
    assert not out.any()


ALL: list[dict[str, Any]] = [
    {"name": "ternary"},
    {"name": "qsgd", "levels": 4},
    {"name": "sign"},
    {"name": "error_feedback_sign"},
    {"name": "top_k", "k": 40},
    {"name": "ef21", "inner": {"name": "top_k", "k": 40}},
]
TWO_BITS = 256 + 4 + 40 + 3  # of 1,024, 16, 160 and 10 values
SIZES = [16 + TWO_BITS, 16 + 512 + 8 + 80 + 5, TWO_BITS, 16 + TWO_BITS, 320, 320]


@pytest.mark.parametrize(("compress", "size"), list(zip(ALL, SIZES, strict=True)), ids=lambda x: str(x))
def test_bytes_in_a_run(simulate: Simulate, compress: dict[str, Any], size: int) -> None:
    gates = {"push": {"every": 2}, "dropped_push": "skip"}
    last = simulate({"compress": compress, "dispatcher": gates}).metrics.iloc[-1]
    assert last["bytes_pushed"] == size * last["pushes"]
    assert last["potential_pushes"] == 50
    assert 10 < last["pushes"] <= 25
    assert last["bytes_fetched"] == 50 * 4840


def test_every_compressor_is_tested() -> None:
    assert {choice["name"] for choice in ALL} == set(COMPRESSORS)


@pytest.mark.parametrize("dropped", ["reapply", "skip", "accumulate", "average"])
@pytest.mark.parametrize("name", ["sign", "top_k", "ternary"])
def test_a_run_against_the_plain_loop(simulate: Simulate, plain: ModuleType, name: str, dropped: str) -> None:
    """The server gets what is decoded; a push that the gate drops is not compressed and touches no memory."""
    world, asked = plain.World(), [0] * 8
    left: dict[int, Array] = {}

    def compress(g: Array, client: int, step: int) -> tuple[Array, int]:
        if name == "sign":
            return np.sign(g), 303
        if name == "ternary":
            out = np.zeros_like(g)
            for part in world.parts:
                s = np.abs(g[part]).max()
                u = world.streams.uniform(Stream.COMPRESSION, np.arange(part.start, part.stop), step, client)
                out[part] = s * np.where(u * np.float64(s) < np.abs(g[part]), np.sign(g[part]), np.float32(0))
            return out, 319
        p = g + left.get(client, np.float32(0))
        out = np.zeros_like(p)
        order = sorted(range(len(p)), key=lambda i: (-abs(p[i]), i))[:40]
        out[order] = p[order]
        left[client] = p - out
        return out, 320

    def push(*asks: Any) -> bool:
        client = int(asks[1])
        asked[client] += 1
        return asked[client] % 2 == 0

    rows = world.run(40, plain.PlainSASGD(world.start, 0.05), push=push, dropped=dropped, compress=compress)
    choice = {"name": name} | ({"k": 40} if name == "top_k" else {})
    gates = {"push": {"every": 2}, "dropped_push": dropped}
    sasgd = {"server": {"name": "sasgd", "lr": 0.05}, "dispatcher": gates, "compress": choice}
    plain.check(simulate({"iterations": 40, "evaluation": {"every": 1}, **sasgd}), rows)


@pytest.mark.parametrize("k", [1210, 100])
def test_top_k_of_everything_is_asgd(simulate: Simulate, k: float) -> None:
    run = simulate({"compress": {"name": "top_k", "k": k}})
    same = run.summary["digest"] == simulate({}).summary["digest"]
    assert same == (k == 1210)


@pytest.mark.parametrize("compress", ALL, ids=lambda choice: choice["name"])
@pytest.mark.parametrize("lr", [1e13, 3e38])
def test_a_run_that_diverges(simulate: Simulate, compress: dict[str, Any], lr: float) -> None:
    result = simulate({"iterations": 300, "server": {"name": "asgd", "lr": lr}, "compress": compress})
    if compress["name"] == "sign" and lr == 1e13:
        assert result.summary["status"] == "finished"  # steps of one size: nothing overflows
    else:
        assert result.summary["status"] == "diverged"
    assert all(np.isfinite(array).all() for array in result.params.values())


@pytest.mark.parametrize("gate", ["{bandwidth_aware: {c: 0.1, per: tensor}}", "{budget: 100}"])
def test_gates_of_tensors_do_not_go_with_compression(gate: str, small_yaml: Path, refused: Refused) -> None:
    fasgd = ("server={name: fasgd, lr: 0.005}", "compress={name: sign}")
    says = ("compress is given; a push that passes tensor by tensor cannot be compressed as one",)
    refused("show", small_yaml, *fasgd, f"dispatcher.push={gate}", says=says)


BAD = {
    "{name: zip}": (
        "compress.name: unknown compressor 'zip'",
        "known: ef21, error_feedback_sign, qsgd, sign, ternary, top_k",
    ),
    "{name: topk}": ("did you mean 'top_k'?",),
    "sign": ("compress: is 'sign'; it must be a mapping",),
    "{name: qsgd, levels: 0}": ("compress.levels: is 0",),
    "{name: qsgd, level: 3}": ("compress.level: unknown key; did you mean 'levels'?",),
    "{name: top_k}": ("compress.k: is required",),
    "{name: top_k, k: 0}": ("compress.k: is 0",),
    "{name: top_k, k: 1.5}": ("compress.k: is 1.5",),
    "{name: ternary, clip_sigma: -1}": ("compress.clip_sigma: is -1",),
    "{name: ef21}": ("compress.inner: is required",),
    "{name: ef21, inner: top_k}": ("compress.inner: is 'top_k'; it must be a mapping",),
    "{name: ef21, inner: {name: topk, k: 3}}": ("compress.inner.name: is 'topk'; did you mean 'top_k'?",),
    "{name: ef21, inner: {name: ef21, inner: {name: sign}}}": ("compress.inner.name: is 'ef21'", "known: error_feed"),
    "{name: ef21, inner: {name: top_k, k: 0}}": ("compress.inner.k: is 0",),
    "{name: ef21, inner: {name: top_k, kk: 3}}": ("compress.inner.kk: unknown key; did you mean 'k'? (known: k)",),
    "{name: 'halving:Half'}": ("compress.name: class 'halving:Half' has no method 'compress'; a compressor needs",),
}


@pytest.mark.parametrize(("choice", "says"), BAD.items(), ids=BAD)
def test_bad_choices(choice: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    small_yaml.with_name("halving.py").write_text("class Half:\n    def init(self, layout, streams):\n        pass\n")
    refused("show", small_yaml, f"compress={choice}", says=says)


def test_a_server_that_encodes_pushes_itself_takes_no_compressor(small_yaml: Path, refused: Refused) -> None:
    """Else its bytes would be those of the compressor, and not of what is exchanged."""
    words = ("server={name: ternary_sync, lr: 0.1}", "compress={name: top_k, k: 0.01}")
    refused("run", small_yaml, *words, "--out", "results", says=("compress is given", "bytes_pushed", "leave compress"))


def test_more_values_than_there_are(small_yaml: Path, refused: Refused) -> None:
    says = ("compress.k is 1211; there are only 1210 parameters",)
    refused("run", small_yaml, "compress={name: top_k, k: 1211}", "--quiet", "--out", "results", says=says)
    with pytest.raises(ConfigError):
        started(TopK(k=79))


def test_a_users_compressor(simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doubling.py").write_text(
        "class Twice:\n"
        "    def __init__(self, factor=2, bytes=17):\n"
        "        self.factor, self.bytes = factor, bytes\n"
        "    def init(self, layout, streams):\n"
        "        self.size = layout.size\n"
        "    def compress(self, push, client, step):\n"
        "        return push * type(push[0])(self.factor), self.bytes\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for choice, lr in (({}, 0.2), ({"factor": 0.5, "bytes": 1}, 0.05)):
        run = simulate({"compress": {"name": "doubling:Twice", **choice}})
        assert run.summary["digest"] == simulate({"server": {"name": "asgd", "lr": lr}}).summary["digest"]
        assert run.summary["bytes_pushed"] == 50 * choice.get("bytes", 17)
