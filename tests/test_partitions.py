"""Who has which rows: every partition beside its definition in plain Python, and beside the laws of what is drawn."""

import math
from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fredsim.config.partition import PARTITIONS, make_shards
from fredsim.data.datasets import data_root, load_dataset
from fredsim.data.partitions import dirichlet as dirichlet_module
from fredsim.data.partitions.dirichlet import EqualShards
from fredsim.data.partitions.shards import Shards, ShardTable
from fredsim.errors import ConfigError
from fredsim.numerics.distributions import Distribution, draw
from fredsim.numerics.streams import Stream, Streams

Lists = list[list[int]]
SEED = 11
LABELS = load_dataset("digits", 313, None, data_root()).train.y


def shards_of(name: str, clients: int, labels: NDArray[np.int64] = LABELS, seed: int = SEED, **keys: Any) -> Shards:
    choice: Any = PARTITIONS[name].model_validate({"name": name, **keys})
    found = make_shards(choice, labels, clients, seed)
    assert found is not None
    return found


def lists_of(shards: Shards) -> Lists:
    found: Lists = []
    for clients, sizes, rows in shards.blocks():
        assert [len(found) + i for i in range(len(clients))] == clients.tolist()
        ends = np.cumsum(sizes)
        found += [rows[end - size : end].tolist() for size, end in zip(sizes, ends, strict=True)]
    return found


def word(element: int, step: int = 0, client: int = 0, attempt: int = 0) -> int:
    return int(Streams(SEED).words(Stream.PARTITION, element, step, client, attempt))


def permutation(count: int, client: int = 0) -> list[int]:
    return sorted(range(count), key=lambda i: (word(2 * i, 0, client) << 32 | word(2 * i + 1, 0, client), i))


def cut(things: Sequence[int], parts: int) -> Lists:
    """The first parts are longer by one where it does not divide."""
    short, longer = divmod(len(things), parts)
    sizes = [short + 1] * longer + [short] * (parts - longer)
    return [list(things[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(parts)]


def rows_of(label: int) -> list[int]:
    return [row for row, one in enumerate(LABELS) if one == label]


@pytest.mark.parametrize("clients", [1, 7, 313])
def test_iid(clients: int) -> None:
    assert lists_of(shards_of("iid", clients, shards=True)) == cut(permutation(313), clients)


@pytest.mark.parametrize(("clients", "per_client"), [(7, 2), (20, 3), (313, 1)])
def test_shards(clients: int, per_client: int) -> None:
    """McMahan et al.: sorted by label, cut, and each client is dealt so many pieces."""
    pieces = cut([row for label in range(10) for row in rows_of(label)], clients * per_client)
    dealt = permutation(clients * per_client)
    expected = [
        sorted(row for piece in dealt[i * per_client : (i + 1) * per_client] for row in pieces[piece])
        for i in range(clients)
    ]
    assert lists_of(shards_of("shards", clients, per_client=per_client)) == expected


@pytest.mark.parametrize("classes", [1, 3, 10])
@pytest.mark.parametrize("assignment", ["random", "first-deterministic", "deterministic"])
def test_pathological(classes: int, assignment: str) -> None:
    chosen = []
    for client in range(12):
        drawn = permutation(10, client)
        if assignment == "first-deterministic":
            drawn = [client % 10, *(label for label in drawn if label != client % 10)]
        if assignment == "deterministic":
            drawn = [(client + i) % 10 for i in range(10)]
        chosen.append(set(drawn[:classes]))
    expected: Lists = [[] for _ in chosen]
    for label in range(10):
        takers = [client for client, labels in enumerate(chosen) if label in labels]
        for client, part in zip(takers, cut(rows_of(label), len(takers)) if takers else [], strict=True):
            expected[client] += part
    found = lists_of(shards_of("pathological", 12, classes=classes, assignment=assignment))
    assert found == [sorted(rows) for rows in expected]
    assert [len({int(LABELS[row]) for row in rows}) for rows in found] == [classes] * 12


def draws(alpha: float, steps: Iterable[int], clients: Iterable[int]) -> list[float]:
    """Gamma draws of shape α: those of shape α + 1, times u^(1/α)."""
    found = []
    for step, client in zip(steps, clients, strict=True):
        larger = float(draw(Distribution("gamma", (alpha + 1, 1.0)), Streams(SEED), Stream.PARTITION, step, client)[0])
        found.append(larger * ((word(8, step, client) + 0.5) / 2**32) ** (1 / alpha))
    return found


@pytest.mark.parametrize(
    ("alpha", "min_size", "balanced"), [(0.3, 1, True), (0.3, 1, False), (2.0, 18, True), (1.0, 13, False)]
)
def test_dirichlet(alpha: float, min_size: int, balanced: bool) -> None:
    """Yurochkin et al.: each class by proportions; the whole again while a client has too few."""
    clients = 13
    for attempt in range(11):
        expected: Lists = [[] for _ in range(clients)]
        for label in range(10):
            weights = draws(alpha, [10 * attempt + label] * clients, range(clients))
            if balanced:
                weights = [
                    0.0 if len(own) > 313 / clients else weight for own, weight in zip(expected, weights, strict=True)
                ]
            rows = rows_of(label)
            ends = [math.floor(sum(weights[: i + 1]) / sum(weights) * len(rows)) for i in range(clients - 1)]
            for own, begin, end in zip(expected, [0, *ends], [*ends, len(rows)], strict=True):
                own += rows[begin:end]
        if min(map(len, expected)) >= min_size:
            break
    assert (attempt > 0) == (min_size > 1)  # it is tried
    found = shards_of("dirichlet", clients, alpha=alpha, min_size=min_size, self_balancing=balanced)
    assert lists_of(found) == [sorted(own) for own in expected]


@pytest.mark.parametrize("together", [2**20, 64])
def test_dirichlet_of_equal_sizes(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    """Whether it is written down or drawn when asked for, a few at a time."""
    monkeypatch.setattr(dirichlet_module, "BLOCK_ROWS", together)
    alpha, size, clients = 0.5, 9, 17
    expected: Lists = []
    for client in range(clients):
        weights = draws(alpha, range(10), [client] * 10)
        rows = []
        for place in range(size):
            u = (word(12, place, client) + 0.5) / 2**32 * sum(weights)
            label = next(label for label in range(10) if u < sum(weights[: label + 1]))
            its, attempt = rows_of(label), 0
            while word(13, place, client, attempt) * len(its) % 2**32 < 2**32 % len(its):
                attempt += 1
            rows.append(its[word(13, place, client, attempt) * len(its) >> 32])
        expected.append(rows)
    found = shards_of("dirichlet", clients, alpha=alpha, equal_sizes=True, size=size)
    assert isinstance(found, ShardTable if together == 2**20 else EqualShards)
    assert lists_of(found) == expected
    assert lists_of(shards_of("dirichlet", clients, alpha=alpha, equal_sizes=True))[3][:size] == expected[3]  # size 18
    # In any order and company, and again: what is kept of mixes is not seen.
    monkeypatch.setattr(dirichlet_module, "MOST_CACHED", 30)
    shards, rng = EqualShards(LABELS, clients, Streams(SEED), alpha, size), np.random.default_rng(0)
    for _ in range(20):
        who, where = rng.integers(0, clients, (40, 1)), rng.integers(0, size, (40, 3))
        chosen = [[expected[c][p] for p in places] for (c,), places in zip(who, where, strict=True)]
        assert shards.rows(who, where).tolist() == chosen


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "iid", "shards": True},
        {"name": "dirichlet", "alpha": 0.4},
        {"name": "dirichlet", "alpha": 100.0, "self_balancing": False},
        {"name": "pathological", "classes": 4, "assignment": "deterministic"},
        {"name": "shards", "per_client": 2},
    ],
    ids=str,
)
def test_a_row_has_one_client(keys: dict[str, Any]) -> None:
    found = lists_of(shards_of(clients=12, **keys))
    assert sorted(row for rows in found for row in rows) == list(range(313))
    other = lists_of(shards_of(clients=12, seed=1, **keys))
    assert (found == other) == (keys.get("assignment") == "deterministic")


def test_proportions_are_dirichlet() -> None:
    """Two samples of each of many clients: P(a, a) = α(α + 1)/(Kα(Kα + 1)), P(a, b) = α²/(Kα(Kα + 1))."""
    alpha, labels = 0.5, np.repeat(np.arange(3), [5, 50, 500])
    shards = shards_of("dirichlet", 20_000, labels, alpha=alpha, equal_sizes=True, size=2)
    pairs = labels[shards.rows(np.arange(20_000)[:, None], np.arange(2))]
    seen = np.bincount(3 * pairs[:, 0] + pairs[:, 1], minlength=9)
    whole = 3 * alpha * (3 * alpha + 1)
    expected = [20_000 * alpha * (alpha + (a == b)) / whole for a in range(3) for b in range(3)]
    assert stats.chisquare(seen, expected).pvalue > 0.001
    rows = Counts(shards.rows(np.arange(20_000), np.zeros(1, np.int64)).tolist())
    within = [rows[row] for row in range(5, 55)]  # of one label each row alike
    assert stats.chisquare(within).pvalue > 0.001


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_shares_of_a_class_are_beta(alpha: float) -> None:
    """A client's share of a class is Beta(α, (λ − 1)α); classes are drawn apart."""
    labels = np.repeat(np.arange(40), 30_000)
    shards = shards_of("dirichlet", 8, labels, alpha=alpha, self_balancing=False)
    shares = np.array([np.bincount(rows, minlength=40) / 3e4 for rows in (labels[rows] for rows in lists_of(shards))])
    assert stats.kstest(shares[:4].reshape(-1), stats.beta(alpha, 7 * alpha).cdf).pvalue > 0.001
    assert abs(np.corrcoef(shares[0], shares[1])[0, 1] + 1 / 7) < 0.4


def test_classes_of_a_client_are_drawn_alike() -> None:
    """Each pair of classes as often as any other."""
    labels = np.repeat(np.arange(4), 5_000)
    found = lists_of(shards_of("pathological", 3_000, labels, classes=2))
    pairs = Counts(tuple(sorted({int(labels[row]) for row in rows})) for rows in found)
    assert len(pairs) == 6
    assert stats.chisquare(list(pairs.values())).pvalue > 0.001


@pytest.mark.parametrize("alpha", [0.04, 3.0])
def test_scores_are_those_of_the_contract(alpha: float) -> None:
    """s = α·log G + log U, with G of shape α + 1 and scale 1, U = (u32 + ½)·2⁻³²."""
    steps, clients = (values.reshape(-1) for values in np.indices((5, 9)))
    expected = []
    for step, client in zip(steps.tolist(), clients.tolist(), strict=True):
        larger = float(draw(Distribution("gamma", (alpha + 1, 1.0)), Streams(SEED), Stream.PARTITION, step, client)[0])
        expected.append(alpha * math.log(larger) + math.log((word(8, step, client) + 0.5) / 2**32))
    found = dirichlet_module._log_scores(Streams(SEED), alpha, steps, clients)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_an_extreme_concentration_is_no_overflow() -> None:
    """A client has one class where α is tiny; all have the same where it is huge."""
    for alpha in (5e-324, 1e-300, 1e-6):
        found = lists_of(shards_of("dirichlet", 400, alpha=alpha, equal_sizes=True, size=40))
        firsts = Counts(int(LABELS[rows[0]]) for rows in found)
        assert [len({int(LABELS[row]) for row in rows}) for rows in found] == [1] * 400
        assert stats.chisquare([firsts[label] for label in range(10)]).pvalue > 0.001
    equal = shards_of("dirichlet", 5, np.zeros(1000, np.int64), alpha=1e5)
    assert set(equal.sizes(np.arange(5)).tolist()) <= {198, 199, 200, 201, 202}


@pytest.mark.parametrize(
    ("clients", "keys", "says"),
    [
        (400, {"name": "iid", "shards": True}, "clients.count is 400, and there are 313 training rows"),
        (400, {"name": "dirichlet", "alpha": 1.0}, "data: there are 313 training rows; lower clients.count, raise"),
        (
            9,
            {"name": "dirichlet", "alpha": 0.01, "min_size": 20},
            "min_size, 20: this was the last of 11 attempts; lower clients.count or min_size, raise alpha",
        ),
        (9, {"name": "dirichlet", "alpha": 1.0, "equal_sizes": True, "min_size": 99}, "min_size is 99; the 313 train"),
        (400, {"name": "dirichlet", "alpha": 1.0, "equal_sizes": True, "min_size": 2}, "rows are 1 per client; give"),
        (9, {"name": "pathological", "classes": 11}, "classes is 11; the training rows have 10 classes: lower it"),
        (99, {"name": "pathological", "classes": 3}, "clients.partition.classes is 3; "),
        (200, {"name": "pathological", "classes": 2}, "200 clients with as many classes need 400 rows at least"),
        (80, {"name": "shards", "per_client": 4}, "per_client is 4; 80 clients need 320 pieces"),
    ],
    ids=str,
)
def test_what_cannot_be_had(clients: int, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=r"^clients\.partition") as raised:
        shards_of(clients=clients, **keys)
    assert says in str(raised.value)


def test_clients_without_data_are_counted() -> None:
    with pytest.raises(ConfigError, match=r"client (\d+) is the first of ([\d,]+) clients without data") as raised:
        shards_of("dirichlet", 400, alpha=1.0, self_balancing=False)
    words = str(raised.value).split()
    sizes = np.zeros(400, int)
    for label in range(10):
        sums = np.cumsum(draws(1.0, [label] * 400, range(400)))
        sizes += np.diff(np.floor(sums / sums[-1] * len(rows_of(label))).astype(int), prepend=0)
    empty = np.flatnonzero(sizes == 0)
    assert (words[words.index("client") + 1], words[words.index("clients") - 1]) == (str(empty[0]), str(len(empty)))


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "dirichlet", "alpha": 0.4},
        {"name": "dirichlet", "alpha": 0.4, "equal_sizes": True, "size": 9},
        {"name": "pathological", "classes": 3},
        {"name": "shards", "per_client": 2},
    ],
    ids=str,
)
def test_labels_may_be_any_integers(keys: dict[str, Any]) -> None:
    """Such as −1 and 1 of a loss of one's own, or one that does not count: their order alone matters."""
    expected = lists_of(shards_of(clients=7, **keys))
    for labels in (LABELS - 100, 3 * LABELS - 1, 10**12 * (LABELS - 4), (LABELS - 5).astype(np.int32)):
        assert lists_of(shards_of(clients=7, labels=labels, **keys)) == expected


def test_labels_that_are_no_classes() -> None:
    keys: Any
    for keys in ({"name": "dirichlet", "alpha": 1.0}, {"name": "shards", "per_client": 1}):
        choice: Any = PARTITIONS[keys["name"]].model_validate(keys)
        with pytest.raises(ConfigError, match="labels are float32, not classes"):
            make_shards(choice, LABELS.astype(np.float32), 3, 0)
    assert lists_of(shards_of("iid", 3, LABELS.astype(np.float32), shards=True))
