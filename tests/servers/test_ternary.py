"""Ternary gradients: without bias, their bytes, the synchronous server that sends them, and the keyed store."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fredsim.compressors import QSGD
from fredsim.networks.layout import Layout
from fredsim.numerics import ternary
from fredsim.numerics.streams import Stream, Streams
from fredsim.servers import ParameterStore, TernarySync

Array = NDArray[np.float32]


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def test_the_mean_of_many_draws_is_the_gradient() -> None:
    g, draws = f32(0, -0.0, 1, -1, 0.5, -0.25, 0.001, -1e-5, 0.999, 1e-38), 100_000
    words = Streams(1).words(Stream.COMPRESSION, np.arange(g.size), np.arange(draws)[:, None], 3)
    for s in (ternary.scaler(g), np.float32(3)):  # its own, and one shared with a larger gradient
        values = float(s) * ternary.quantise(g, s, words).astype(np.float64)
        p = np.abs(g.astype(np.float64)) / float(s)
        deviation = float(s) * np.sqrt(p * (1 - p) / draws)
        assert (np.abs(values.mean(axis=0) - g) <= 5 * deviation + 2.0**-24).all()
        assert set(np.unique(values)) == {-float(s), 0.0, float(s)}
        assert (values[:, :2] == 0).all()


def test_gradients_that_were_quantised_before_stay_unbiased() -> None:
    """What a round draws is no draw of the compressor's, though both count their steps from 0."""
    g, steps = f32(1.0, 0.05, -0.4, 0.6), 4000
    layout, streams = Layout((("W", (4,)),)), Streams(3)
    compressor = QSGD(levels=2)
    compressor.init(layout, streams)
    server = TernarySync(lr=1.0)
    server.streams = streams
    server.init(np.zeros(4, np.float32), 1, layout)
    applied = np.zeros((steps, 4))
    for step in range(steps):
        before = server.params.astype(np.float64)
        decoded, _ = compressor.compress(g, 0, step)
        server.apply_update(decoded, 0, step)
        applied[step] = before - server.params
        server.params[...] = 0
    deviation = applied.std(axis=0) / np.sqrt(steps)
    assert (np.abs(applied.mean(axis=0) - g) <= 4 * deviation).all()
    assert deviation[1] > 0


@pytest.mark.parametrize("length", range(34))
def test_pack_and_unpack_are_inverse_at_every_length(length: int) -> None:
    codes = np.random.default_rng(length).integers(-1, 2, length).astype(np.int8)
    packed = ternary.pack(codes)
    assert packed.dtype == np.uint8
    assert packed.shape == (-(-length // 4),)
    np.testing.assert_array_equal(ternary.unpack(packed, length), codes)
    by_hand = [0x55] * len(packed)
    for i, code in enumerate(codes.tolist()):
        by_hand[i // 4] += code << 2 * (i % 4)  # 01 is 0, 00 is −1, 10 is +1
    assert packed.tolist() == by_hand


@settings(max_examples=200)
@given(st.lists(st.sampled_from([-1, 0, 1]), max_size=200))
def test_pack_and_unpack_are_inverse(values: list[int]) -> None:
    codes = np.array(values, np.int8)
    assert ternary.unpack(ternary.pack(codes), len(values)).tolist() == values


@settings(max_examples=200)
@given(st.binary(max_size=20), st.integers(0, 90))
def test_any_bytes_are_decoded_in_one_way_or_refused(data: bytes, count: int) -> None:
    packed = np.frombuffer(data, np.uint8)
    slots = [byte >> shift & 3 for byte in data for shift in (0, 2, 4, 6)]
    right = 3 not in slots and len(data) == -(-count // 4) and set(slots[count:]) <= {1}
    if right:
        assert ternary.unpack(packed, count).tolist() == [slot - 1 for slot in slots[:count]]
        assert ternary.pack(ternary.unpack(packed, count)).tobytes() == data
    else:
        with pytest.raises(ValueError):
            ternary.unpack(packed, count)


def test_wrong_bytes_are_named() -> None:
    for data, count, words in (
        ([0x55, 0x75], 8, "byte 1 holds the code 11"),
        ([0x55, 0x45], 6, "do not hold 01"),
        ([0x55], 5, "1 bytes do not hold 5 values; these take 2"),
        ([0x55, 0x55], 4, "2 bytes do not hold 4 values"),
    ):
        with pytest.raises(ValueError, match=words):
            ternary.unpack(np.array(data, np.uint8), count)


def test_clipping_is_at_the_population_deviation() -> None:
    g = np.random.default_rng(0).standard_normal(1000).astype(np.float32) + np.float32(0.5)
    g[3] = 1e6
    bound = 2.5 * g.astype(np.float64).std()
    np.testing.assert_allclose(ternary.clip(g, 2.5), np.clip(g, -bound, bound), rtol=1e-6)
    assert ternary.clip(g, 2.5)[3] == pytest.approx(bound, rel=1e-6)
    assert ternary.scaler(ternary.clip(g, 2.5)) < ternary.scaler(g)
    assert ternary.clip(np.zeros(5, np.float32), 2.5).tolist() == [0] * 5
    assert ternary.scaler(np.zeros(0, np.float32)) == 0


LAYOUT = Layout((("W", (40,)), ("zero", (6,)), ("one", (1,)), ("outlier", (9,))))


def gradients(clients: int) -> list[Array]:
    rng = np.random.default_rng(0)
    grads = []
    for _ in range(clients):
        g = rng.standard_normal(LAYOUT.size).astype(np.float32)
        g[40:46] = 0
        g[46] = -0.3
        g[47:] *= 1e-6
        g[50] = 2.0**100
        grads.append(g)
    return grads


def one_round(clients: int, **hyper: Any) -> tuple[TernarySync, dict[str, Array]]:
    """Push one round from zero at α = 1; return the server and minus the step, by tensor."""
    server = TernarySync(lr=1.0, **hyper)
    server.streams = Streams(0)
    server.init(np.zeros(LAYOUT.size, np.float32), clients, LAYOUT)
    for client, g in enumerate(gradients(clients)):
        released = list(server.apply_update(g, client, 0).released)
        assert released == (list(range(clients)) if client == clients - 1 else [])
    return server, LAYOUT.split(-server.params)


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 7])
def test_with_a_shared_scaler_a_round_takes_2n_plus_1_values(clients: int) -> None:
    server, steps = one_round(clients)
    grads = [LAYOUT.split(g) for g in gradients(clients)]
    for name, step in steps.items():
        s = max(np.abs(g[name]).max() for g in grads)
        levels = {float((s * np.float32(k)) / np.float32(clients)) for k in range(-clients, clients + 1)}
        assert {abs(x) for x in step.tolist()} <= {abs(x) for x in levels}
        assert len(np.unique(step)) <= 2 * clients + 1
    assert (steps["zero"] == 0).all()
    assert steps["one"] == f32(-0.3)
    assert steps["outlier"].tolist() == [2.0**100 if i == 3 else 0.0 for i in range(9)]
    assert server.store.client(0).pull_parameter("scaler/zero", "max").tolist() == [0]
    assert server.store.pull("codes/zero", "max").tolist() == [0x55, 0x55]


def test_scalers_of_the_clients_own_give_more_values() -> None:
    _, steps = one_round(5, share_scaler=False)
    assert len(np.unique(steps["W"])) > 11


@pytest.mark.parametrize("hyper", [{}, {"share_scaler": False}, {"clip_sigma": 2.5}])
def test_a_gradient_that_is_not_finite_ends_the_run(hyper: dict[str, Any], simulate: Callable[..., Any]) -> None:
    result = simulate({"server": {"name": "ternary_sync", "lr": 1e20, **hyper}, "iterations": 200})
    assert result.summary["status"] == "diverged"
    assert result.summary["updates"] == 1  # finite still, but the next gradients are not
    assert all(np.isfinite(value).all() for value in result.params.values())


def test_the_bytes_of_a_run(simulate: Callable[..., Any]) -> None:
    """64·16, 16, 16·10 and 10 values: a scaler each, two bits a value up, ⌈log₂ 17⌉ = 5 bits down."""
    last = simulate({"server": {"name": "ternary_sync", "lr": 0.1}, "iterations": 80}).metrics.iloc[-1]
    assert last["timestamp"] == 10
    assert last["bytes_pushed"] == 80 * (4 * 4 + 256 + 4 + 40 + 3)
    assert last["bytes_fetched"] == 80 * (4 * 4 + 640 + 10 + 100 + 7)
    own = {"name": "ternary_sync", "lr": 0.1, "share_scaler": False}
    last = simulate({"server": own, "iterations": 80}).metrics.iloc[-1]
    assert last["bytes_fetched"] == 80 * 4 * 1210


def test_a_round_in_windows_is_the_same_round(simulate: Callable[..., Any]) -> None:
    """No more of it is computed together than it lacks."""
    server = {"server": {"name": "ternary_sync", "lr": 0.1}}
    assert simulate({**server, "window": 5}).summary["digest"] == simulate(server).summary["digest"]


def test_the_issues_first_snippet_the_largest_gradient() -> None:
    store = ParameterStore()
    for number, value in enumerate([0.5, 0.75, 0.25]):
        client = store.client(number)
        client.init_parameter(key="max_abs_grad", shape=[1], dtype="float32")
        client.push_parameter(key="max_abs_grad", value=value)
    for number in range(3):
        largest = store.client(number).pull_parameter(key="max_abs_grad", reduce_method="max")
        assert largest.dtype == np.float32
        assert largest.tolist() == [0.75]


def test_the_issues_second_snippet_packed_gradients() -> None:
    """Lowest bits first: 1 is 01 00 00 00, 5 is 01 01 00 00, 8 is 00 10 00 00, 2 is 10 00 00 00."""
    codes = [0, -1, -1, -1, 0, 0, -1, -1, -1, 1, -1, -1, 1, -1, -1, -1]
    store = ParameterStore()
    one, two = store.client(0), store.client(1)
    one.init_parameter(key="quantized_grad", shape=[2, 2], dtype="uint8")
    one.push_parameter(key="quantized_grad", value=[[1, 5], [8, 2]])
    pulled = two.pull_parameter("quantized_grad", "decode_average")
    assert pulled.dtype == np.float32
    assert pulled.tolist() == codes
    two.push_parameter(key="quantized_grad", value=np.full((2, 2), 0x55, np.uint8))  # zeros
    assert one.pull_parameter("quantized_grad", "decode_average").tolist() == [code / 2 for code in codes]
    scaled = one.pull_parameter("quantized_grad", "decode_average", scaler=np.float32(3))
    assert scaled.tolist() == [code * 1.5 for code in codes]
    two.push_parameter(key="quantized_grad", value=[[1, 5], [8, 3]])
    with pytest.raises(ValueError, match="byte 3 holds the code 11"):
        one.pull_parameter("quantized_grad", "decode_average")


def test_the_issue_says_type_for_dtype() -> None:
    client = ParameterStore().client(0)
    client.init_parameter(key="x", shape=[2], type="uint8")
    client.init_parameter(key="x", shape=[2], dtype="uint8")
    with pytest.raises(ValueError, match="uint8"):
        client.init_parameter(key="x", shape=[2], type="float32")
    for both in ({}, {"dtype": "uint8", "type": "uint8"}):
        with pytest.raises(ValueError, match="key 'x': give one of dtype and type"):
            client.init_parameter("x", [2], **both)


def test_sums_and_averages_of_the_store() -> None:
    store = ParameterStore()
    store.init("x", [2], "float32")
    for number, value in enumerate(([1e8, 1.0], [1.0, 2.0], [-1e8, 3.0])):
        store.push(number, "x", f32(*value))
    store.push(1, "x", [1, 5])  # a later value replaces the earlier one, at its place
    assert store.pull("x", "sum").tolist() == [0, 9]  # (1e8 + 1) − 1e8 in float32
    assert store.pull("x", "average").tolist() == [0, 3]
    assert store.pull("x", "max").tolist() == [1e8, 5]
    store.clear("x")
    with pytest.raises(ValueError, match="nothing was pushed under key 'x'"):
        store.pull("x", "sum")


def test_integers_of_the_store_are_summed_exactly_or_refused() -> None:
    store = ParameterStore()
    for key, dtype, shape in (("bytes", "uint8", [2]), ("words", "int32", []), ("long", "uint64", [1])):
        store.init(key, shape, dtype)
    for number in range(300):  # more clients than a byte counts
        store.push(number, "bytes", [0, number == 7])
    for number, value in enumerate((2**31 - 1, -5, 3)):
        store.push(number, "words", value)
        store.push(number, "long", [2**62 + 1])
    assert store.pull("bytes", "sum").tolist() == [0, 1]
    assert store.pull("words", "sum").tolist() == 2**31 - 3
    assert store.pull("long", "sum").tolist() == [3 * 2**62 + 3]
    assert {str(store.pull(key, "sum").dtype) for key in ("bytes", "words", "long")} == {"uint8", "int32", "uint64"}
    store.push(0, "bytes", [200, 0])
    store.push(1, "bytes", [200, 0])
    store.push(1, "words", 5)
    with pytest.raises(ValueError, match="key 'bytes' is uint8, which the sum 400 does not fit; declare a wider"):
        store.pull("bytes", "sum")
    with pytest.raises(ValueError, match=f"key 'words' is int32, which the sum {2**31 + 7} does not fit"):
        store.pull("words", "sum")
    for key in ("bytes", "words"):
        with pytest.raises(ValueError, match=f"key '{key}' is .*, which averages may not fit; declare it as float32"):
            store.pull(key, "average")


def test_mistakes_with_the_store_are_named() -> None:
    store = ParameterStore()
    store.init("x", [2], "float32")
    store.init("x", [2], "float32")
    store.push(0, "x", [1, 2])
    reduction: Any = "median"
    for act, error, words in (
        (lambda: store.push(0, "y", 1), KeyError, r"no key 'y'.*keys: x"),
        (lambda: store.pull("y", "max"), KeyError, "no key 'y'"),
        (lambda: store.init("x", [3], "float32"), ValueError, r"key 'x' is float32 \(2,\) already"),
        (lambda: store.init("x", [2], "uint8"), ValueError, "not uint8"),
        (lambda: store.push(0, "x", [1, 2, 3]), ValueError, r"key 'x' takes \(2,\).*\(3,\)"),
        (lambda: store.pull("x", "decode_average"), ValueError, "float32; decode_average takes packed codes"),
        (lambda: store.pull("x", reduction), ValueError, "'median'; choose max"),
    ):
        with pytest.raises(error, match=words):
            act()
