"""The compiled kernels give the oracle's bits, whatever the shapes, the batch and the threads."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fredsim.compute.graph_engine import GraphEngine, NumpyBackendOperations
from fredsim.compute.storage import Limits
from fredsim.data.datasets import Dataset, Split
from fredsim.jit.cache import make_module
from fredsim.jit.team import MIN_WORK, Team
from fredsim.kernels.arrays.operations import ONE_THREAD_FLOATS, NumbaOperations
from fredsim.kernels.arrays.reductions import BLOCK, mean64
from fredsim.kernels.mlp import pending
from fredsim.kernels.mlp.engine import NumbaEngine
from fredsim.kernels.mlp.sparse_rows import is_coded, pack_split, rows_in_cache
from fredsim.networks.mlp import Mlp
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.numerics.oracle import mean64 as expected_mean
from fredsim.servers.asgd import ASGD
from tests.random_graphs import UNTOUCHED


def dataset(inputs: int, classes: int, seed: int = 0, rows: int = 60) -> Dataset:
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((rows, inputs)) < 0.4, rng.random((rows, inputs)), 0).astype(np.float32)
    y = rng.integers(0, classes, rows)
    return Dataset(Split(x[:50], y[:50]), Split(x[50:57], y[50:57]), Split(x[57:], y[57:]), classes)


def held(size: int, batches: int, std: float, seed: int = 0) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    padded = (rng.standard_normal((batches, size + MARGIN)) * std).astype(np.float32)
    padded[:, size:] = np.nan  # what a kernel may read but must not use
    return [row[:size] for row in padded]


@settings(max_examples=40)
@given(
    hidden=st.lists(st.integers(1, 130), max_size=3),
    inputs=st.integers(1, 40),
    classes=st.integers(2, 20),
    mu=st.sampled_from([1, 2, 3, 4, 5, 8, 13, 32, 50, 64, 65, 130, 257, 330, 600]),
    batches=st.integers(1, 4),
    threads=st.integers(1, 3),
    std=st.sampled_from([0.05, 1.0, 30.0]),
)
def test_gradients_and_evaluation(
    hidden: list[int], inputs: int, classes: int, mu: int, batches: int, threads: int, std: float
) -> None:
    """Of inputs that are coded, and, for two sizes of minibatches, of others."""
    model, data = Mlp((inputs, *hidden, classes)), dataset(inputs, classes)
    params = held(model.layout.size, batches, std)
    rows = np.random.default_rng(1).integers(0, 50, (batches, mu))
    small = mu not in {13, 130}
    few = 2**20 if mu % 2 else 0  # else the different values are found as those of many inputs are
    rows_of = "fredsim.kernels.mlp.sparse_rows"
    with patch(f"{rows_of}.MAX_CODES", 2**16 if small else 0), patch(f"{rows_of}.FEW", few):
        assert is_coded(data.train) == small
        assert is_coded(data.test) == small
        assert is_coded(data.validation) == small
    with patch(f"{rows_of}.L1_BYTES", 1 if mu % 3 else 2**15):  # of which few rows, or all
        oracle, kernels = GraphEngine(model.graph, data), NumbaEngine(model, data, mu, threads)
    try:
        expected, expected_losses = oracle.gradients(params, rows)
        found, losses = kernels.gradients(params, rows)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
        np.testing.assert_array_equal(losses.view(np.uint32), expected_losses.view(np.uint32))
        assert kernels.evaluate(params[0], "validation") == oracle.evaluate(params[0], "validation")
        assert kernels.evaluate(params[0], "test") == oracle.evaluate(params[0], "test")
        ours, theirs = (engine.outcomes(params[0], "train") for engine in (oracle, kernels))
        assert ours[0].tobytes() == theirs[0].tobytes()
        np.testing.assert_array_equal(ours[1], theirs[1])
    finally:
        kernels.close()


@pytest.mark.parametrize("hidden", [1, 3, 15])
def test_no_thread_writes_into_the_rows_of_another(hidden: int) -> None:
    """Nor beyond the gradient: in a layer narrower than a vector, with rows of +0, and more threads than processors."""
    inputs = -(-MIN_WORK // hidden)
    model, data = Mlp((inputs, hidden, 2)), dataset(inputs, 2)
    oracle, kernels = GraphEngine(model.graph, data), NumbaEngine(model, data, 1, 7)
    params = held(model.layout.size, 1, 1.0)
    try:
        for row in range(10):
            rows = np.full((1, 1), row)
            expected = oracle.gradients(params, rows)[0].view(np.uint32)
            for _ in range(30):
                np.testing.assert_array_equal(kernels.gradients(params, rows)[0].view(np.uint32), expected)
    finally:
        kernels.close()


@pytest.mark.parametrize("mu", [16, 24, 40, 57, 64, 100, 128])
@pytest.mark.parametrize("hidden", [5, 120])
def test_every_pattern_of_blocks_in_which_an_input_is_not_zero(mu: int, hidden: int) -> None:
    """Input k is not zero in blocks of eight samples by the bits of k; in the second 64 samples by other ones."""
    rng = np.random.default_rng(mu)
    patterns = np.stack([np.arange(256), rng.permutation(256)])  # (groups, inputs)
    active = patterns[:, None, :] >> np.arange(8)[:, None] & 1  # (groups, blocks, inputs)
    x = np.repeat(active.reshape(16, 256), 8, axis=0) * (rng.random((128, 256)) + 0.1)
    split = Split(x.astype(np.float32), rng.integers(0, 4, 128))
    model, data = Mlp((256, hidden, 4)), Dataset(split, split, split, 4)
    params, rows = held(model.layout.size, 1, 0.2, mu), np.arange(mu)[None]
    expected, _ = GraphEngine(model.graph, data).gradients(params, rows)
    for threads in (1, 2):
        kernels = NumbaEngine(model, data, mu, threads)
        try:
            found, _ = kernels.gradients(params, rows)
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
        finally:
            kernels.close()


@pytest.mark.parametrize("room", [2**22, 4000, 1], ids=["all together", "some together", "one by one"])
def test_windows_of_any_length_one_after_another(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine keeps its work space: what a longer window left there must not show."""
    monkeypatch.setattr(pending, "WORKSPACE_BYTES", room)
    model, data = Mlp((9, 20, 4)), dataset(9, 4)
    oracle, kernels = GraphEngine(model.graph, data), NumbaEngine(model, data, 5, 2)
    try:
        for seed, batches in enumerate((3, 1, 0, 5, 2)):
            params = held(model.layout.size, batches, 1.0, seed)
            rows = np.random.default_rng(seed).integers(0, 50, (batches, 5))
            for found, expected in zip(kernels.gradients(params, rows), oracle.gradients(params, rows), strict=True):
                np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    finally:
        kernels.close()


def test_workspace_does_not_grow_with_the_window() -> None:
    """Large minibatches of a small network: a window has as many as have gradients of four megabytes together."""
    model, data = Mlp((400, 4)), dataset(400, 4)
    kernels = NumbaEngine(model, data, 512, 1)
    try:
        kernels.gradients(held(model.layout.size, 100, 1.0), np.zeros((100, 512), np.int64))
        arrays = [array for array in kernels._arguments._values.values() if isinstance(array, np.ndarray)]
    finally:
        kernels.close()
    each = 4 * 512 * 401  # the inputs of one minibatch
    assert each < sum(array.nbytes for array in arrays) < 8 * each


def test_a_window_that_is_asked_for_takes_no_more_memory_than_there_may_be() -> None:
    """On the path `hand`, where each thread lays out the inputs of a window's minibatches."""
    model, data = Mlp((784, 10)), dataset(784, 4)
    kernels = NumbaEngine(model, data, 4096, 2)
    try:
        executor = kernels.hand_executor(ASGD.rule, np.zeros(model.layout.size, np.float32), [], 1, Limits(window=64))
        assert executor._arguments._values["factors"].nbytes < 2**26
    finally:
        kernels.close()


def far_apart(scratch: Any) -> NDArray[np.int32]:
    """Let the workspace of threads, SCRATCH, lie MARGIN floats farther apart; return what lies between, UNTOUCHED."""
    own = scratch.stride
    memory = aligned(len(scratch._values["memory"]), own + MARGIN)
    memory.view(np.int32)[...] = UNTOUCHED
    scratch.set(memory=memory, stride=own + MARGIN)
    return memory.view(np.int32)[:, own:]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("hidden", "mu"), [((64, 64), 130), ((16, 90), 65)])
def test_no_thread_writes_behind_its_workspace(hidden: tuple[int, ...], mu: int, threads: int) -> None:
    """On the path `hand`, on `fused`, and for whole gradients: rows of the widest layer fill it. Bits are right."""
    model, data = Mlp((20, *hidden, 10)), dataset(20, 10)
    (params,), rows = held(model.layout.size, 1, 0.5), np.random.default_rng(2).integers(0, 50, (1, mu))
    (grad,), losses = GraphEngine(model.graph, data).gradients([params], rows)
    expected, alpha = (params - np.float32(0.1) * grad).view(np.int32), np.full((1, 1), 0.1, np.float32)
    kernels = NumbaEngine(model, data, mu, threads)
    try:
        hand = kernels.hand_executor(ASGD.rule, params, [], 1, Limits())
        between = [far_apart(hand._arguments._values["scratch"])]
        none, first = np.full(1, -1), np.zeros(1, np.int64)
        hand.advance(none, first, none, rows.astype(np.int32), alpha)
        found = hand.advance(first, none, none, rows.astype(np.int32), alpha)
        assert found[1] == 1
        np.testing.assert_array_equal(found[0].view(np.int32), losses.view(np.int32))
        theta = aligned(model.layout.size + MARGIN)[: model.layout.size]
        hand.copy_to(theta, [])
        np.testing.assert_array_equal(theta.view(np.int32), expected)

        theta[...] = params
        fused = kernels.fused_executor(ASGD.rule, [theta], "", 1)
        between.append(far_apart(fused._pass_arguments._values["scratch"]))
        fused.run_passes([0], [theta], rows)
        fused.prepare([0], alpha, np.full((1, 2), np.inf), [None])
        fused.apply(0, 1)
        np.testing.assert_array_equal(theta.view(np.int32), expected)

        kernels._allocate(1)
        between.append(far_apart(kernels._arguments._values["scratch"]))
        np.testing.assert_array_equal(kernels.gradients([params], rows)[0][0].view(np.int32), grad.view(np.int32))
    finally:
        kernels.close()
    assert all((part == UNTOUCHED).all() for part in between)


LENGTHS = sorted({*range(1, 70), 1023, 1024, 1025, 2047, 2048, 2049, 3072, 4095, 4096, 4097, 5000, 159_010})


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_means_are_the_oracles(threads: int) -> None:
    rng = np.random.default_rng(threads)
    lengths = [*LENGTHS, *rng.integers(70, 5001, 150).tolist()]
    with Team(threads) as team:
        for n in lengths:
            scale = np.exp(rng.uniform(-40, 40, n))  # so that another order of additions would show
            values = np.append(rng.standard_normal(n) * scale, np.full(40, np.nan)).astype(np.float32)[:n]
            scratch, result = np.full((threads, 2 * BLOCK), np.nan), np.empty(1)
            sums = np.full(-(-n // BLOCK) + 1, np.nan)
            for run in (team.run, team.run_alone):
                result[0] = np.nan
                run(mean64, mean64.pack(array=values, count=n, sums=sums, scratch=scratch, result=result))
                assert result[0] == expected_mean(values), n


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_a_copy_that_says_whether_all_is_finite(threads: int) -> None:
    operations = NumbaOperations(threads) if threads else NumpyBackendOperations()
    for size in (1, 15, 16, 17, 100):
        array = np.linspace(-1e38, 3e38, size, dtype=np.float32)
        out = np.full(size + 1, 7, np.float32)
        assert operations.duplicate_finite(array, out[:size])
        assert operations.finite(array)
        np.testing.assert_array_equal(out, [*array, 7])
        for place in range(size):
            for bad in (np.nan, np.inf, -np.inf):
                other = array.copy()
                other[place] = bad
                assert not operations.duplicate_finite(other, out[:size])
                assert not operations.finite(other)
                np.testing.assert_array_equal(out, [*other, 7])
    operations.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_large_array_is_checked_by_all_threads(threads: int) -> None:
    operations, size = NumbaOperations(threads), ONE_THREAD_FLOATS + 77
    array = np.zeros(2 * size, np.float32)[::2]  # also if its elements do not follow each other
    assert operations.finite(array)
    for place in (0, size // 2 - 64, size // 2 + 64, size - 100, size - 1):
        array[place] = np.inf
        assert not operations.finite(array)
        assert not operations.finite(array.copy())
        out = np.empty(size, np.float32)
        assert not operations.duplicate_finite(array, out)
        np.testing.assert_array_equal(out, array)
        array[place] = 0
    operations.close()


def test_an_engine_measures_what_its_array_holds_now() -> None:
    model, data = Mlp((3, 2)), dataset(3, 2)
    engine, rng = NumbaEngine(model, data, 1, 2), np.random.default_rng(0)
    try:
        for n in (10, 30_000):
            values = rng.standard_normal(n).astype(np.float32)
            for array in (values, values, values[1:], values):
                assert engine.mean(array) == expected_mean(array)
                array *= np.float32(1.7)
    finally:
        engine.close()
    assert np.isnan(expected_mean(np.array([1.0, np.nan], np.float32)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0), (4, 3, 2)])
def test_aligned(shape: tuple[int, ...], dtype: type) -> None:
    arrays = [aligned(*shape, dtype=dtype) for _ in range(20)]
    for number, array in enumerate(arrays):
        assert array.shape == shape
        assert array.dtype == np.dtype(dtype)
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0 or array.size == 0
        assert not array.any()
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(arrays))  # none shares its memory


COMBINE = """
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats
from fredsim.kernels.mlp.sparse_rows import DATA
from fredsim.kernels.mlp.dense import combine


@kernel(data=DATA, count=int, weights=floats, width=int, out=floats, fresh=int)
def run(rank, size, barrier, a):
    combine(a.data, 0, a.count, a.weights, 0, a.width, a.width, a.out, 0, a.fresh != 0)
"""


@pytest.mark.parametrize("fresh", [True, False])
def test_rows_are_combined_and_nothing_else_is_touched(fresh: bool) -> None:
    """Of any number of columns, against a plain loop; what is behind the last vector stays."""
    rng, run = np.random.default_rng(0), make_module(COMBINE, "a test of combined rows").run
    column, value = np.array([0, 3, 4]), rng.standard_normal(3).astype(np.float32)
    x = np.zeros((1, 5), np.float32)
    x[0, column] = value
    data = pack_split(Split(x, np.zeros(1, np.int64)), 5)
    with Team(1) as team:
        for width in range(1, 260):
            weights = rng.standard_normal(5 * width + 256).astype(np.float32)
            out = np.full(width + 160, 7, np.float32)
            expected = np.zeros(width, np.float32) if fresh else out[:width].copy()
            for k, one in zip(column, value, strict=True):
                expected += one * weights[k * width : (k + 1) * width]
            given = {"data": data, "count": 3, "weights": weights, "width": width}
            team.run(run, run.pack(**given, out=out, fresh=fresh))
            np.testing.assert_array_equal(out[:width], expected)
            assert (out[-(-width // 16) * 16 :] == 7).all(), width


def test_rows_that_stay_in_the_cache() -> None:
    """The first-level cache has 32 KiB: of one sample's nonzero inputs, the rows of 208 floats that fit are 39."""
    x, labels = np.ones((50, 100), np.float32), np.zeros(50, np.int64)
    assert rows_in_cache(Split(x, labels), 208) == 39
    assert rows_in_cache(Split(x, labels), 4096) == 8
    assert rows_in_cache(Split(np.where(np.arange(100) % 5 == 0, x, 0), labels), 208) == 5 * 39
    assert rows_in_cache(Split(0 * x, labels), 208) >= 100
    assert rows_in_cache(Split(x[:0], labels[:0]), 208) == 39


def test_as_many_values_and_columns_as_can_be_coded() -> None:
    rng, run = np.random.default_rng(0), make_module(COMBINE, "a test of combined rows").run
    most = 2**16
    values = (rng.permutation(most + 2) + 1).astype(np.float32) / np.float32(most)

    def split(*shape: int) -> Split:
        return Split(values[: np.prod(shape)].reshape(shape), np.zeros(shape[0], np.int64))

    full, weights = split(1, most), rng.standard_normal(most + 256).astype(np.float32)
    assert is_coded(full)
    out = np.zeros(16, np.float32)
    given = {"data": pack_split(full, most), "count": most, "weights": weights, "width": 1}
    with Team(1) as team:
        team.run(run, run.pack(**given, out=out, fresh=True))
    assert out[0] == np.add.accumulate(values[:most] * weights[:most])[-1]
    assert not is_coded(split(2, most // 2 + 1))  # two values more
    assert not is_coded(Split(np.ones((1, most + 1), np.float32), np.zeros(1, np.int64)))  # a column more
