"""Philox against the published vectors, and the draws made from it."""

from statistics import NormalDist

import numpy as np
import pytest

from fredsim.networks.linear import Linear
from fredsim.numerics.squares import quadratic_noise
from fredsim.numerics.streams import Stream, Streams, normal_quantile, philox4x32

# Random123's known answers for philox4x32-10: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_vectors(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert tuple(int(word) for word in philox4x32(counter, key)) == expected


def test_a_word_depends_on_its_counter_alone() -> None:
    streams = Streams(7)
    many = streams.words(Stream.IID, np.arange(40), step=3, client=2)
    assert [int(streams.words(Stream.IID, e, 3, 2)) for e in range(40)] == many.tolist()
    assert streams.run_of_words(Stream.IID, 40, 3, 2).tolist() == many.tolist()
    assert [word for n in range(10) for word in streams.block(Stream.IID, n, 3, 2)] == many.tolist()
    assert int(many[5]) == int(philox4x32((1, 3, 2, 0), (7, int(Stream.IID)))[1])
    for other in (
        streams.words(Stream.SHUFFLE, np.arange(40), 3, 2),
        Streams(8).words(Stream.IID, np.arange(40), 3, 2),
    ):
        assert not (many == other).any()


@pytest.mark.parametrize("count", [0, 1, 2**16, 2**17 + 5])
def test_parts_of_words_are_the_whole(count: int) -> None:
    """Also what is made from them: the noise of a quadratic, and a linear model's initial parameters."""
    streams = Streams(7)
    drawn, ends = np.zeros(count, np.uint32), [0]
    for part, words in streams.parts_of_words(Stream.NOISE, count, 3, 2):
        assert part.start == ends[-1]
        assert part.stop - part.start == len(words) <= 2**16
        drawn[part] = words
        ends.append(part.stop)
    assert ends[-1] == count
    np.testing.assert_array_equal(drawn, streams.words(Stream.NOISE, np.arange(count), 3, 2))
    noise = (normal_quantile(drawn) * 0.5).astype(np.float32)
    np.testing.assert_array_equal(quadratic_noise(streams, count, client=2, number=3, sd=0.5), noise)
    first = normal_quantile(streams.words(Stream.PARAMETERS, np.arange(count), 0)) * 0.25
    np.testing.assert_array_equal(Linear(count, "normal", 0.25).initial(streams), first.astype(np.float32))


def test_integers_are_unbiased_and_redrawn() -> None:
    streams = Streams(1)
    n = 3 * 2**30  # a quarter of all words is biased
    drawn = streams.below(n, Stream.IID, np.arange(4000))
    assert drawn.min() >= 0
    assert drawn.max() < n
    words = streams.words(Stream.IID, np.arange(4000)).astype(np.uint64)
    redrawn = (words * np.uint64(n) & np.uint64(0xFFFFFFFF)) < np.uint64(2**32 % n)
    assert 800 < redrawn.sum() < 1200
    kept = ~redrawn
    assert (drawn[kept] == (words[kept] * np.uint64(n) >> np.uint64(32)).astype(np.int64)).all()
    assert abs(np.mean(drawn < n // 3) - 1 / 3) < 0.03
    counts = np.bincount(streams.below(7, Stream.IID, np.arange(70_000)), minlength=7)
    assert np.abs(counts - 10_000).max() < 400
    small = [streams.below64(3 * 2**62, Stream.DISPATCH, step) for step in range(2000)]
    assert abs(sum(x < 2**62 for x in small) / 2000 - 1 / 3) < 0.04


def plain_block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 in plain integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for number in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        w0, w1 = (k0 + number * 0x9E3779B9) % 2**32, (k1 + number * 0xBB67AE85) % 2**32
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ w0, p1 % 2**32, (p0 >> 32) ^ c3 ^ w1, p0 % 2**32
    return c0, c1, c2, c3


def plain_below(n: int, seed: int, stream: int, element: int, step: int, client: int, bits: int = 32) -> list[int]:
    """The integers of attempts 0, 1, … up to the first whose product is not biased: that one is the draw."""
    found: list[int] = []
    while True:
        block = plain_block((element // 4, step, client, len(found)), (seed, stream))
        product = (block[element % 4] if bits == 32 else block[0] << 32 | block[1]) * n
        found.append(product >> bits)
        if product % 2**bits >= 2**bits % n:
            return found


def test_a_biased_word_is_redrawn_and_nothing_else() -> None:
    """Counters found by search: of a thousand, one word in 14 million is biased."""
    for n, seed, stream, element, step, client, attempts in (
        (1000, 0, Stream.IID, 1_101_591, 7, 3, 2),
        (1000, 6, Stream.DISPATCH, 0, 978_623, 0, 2),
        (1000, 6, Stream.DISPATCH, 0, 978_622, 0, 1),
        (2**31 + 1, 1, Stream.IID, 8, 0, 0, 7),
    ):
        found = plain_below(n, seed, stream, element, step, client)
        assert len(found) == attempts
        assert len(set(found)) == attempts  # so that each attempt can be told from the others
        drawn = Streams(seed).below(n, stream, element, step, client)
        assert (drawn.shape, int(drawn)) == ((), found[-1])
        beside = Streams(seed).below(n, stream, [element, element + 1], step, client)
        assert beside.tolist() == [found[-1], plain_below(n, seed, stream, element + 1, step, client)[-1]]
    n = 3 * 2**62
    found64 = [plain_below(n, 1, Stream.DISPATCH, 0, step, 0, bits=64) for step in range(40)]
    assert max(map(len, found64)) > 2
    assert [Streams(1).below64(n, Stream.DISPATCH, step) for step in range(40)] == [found[-1] for found in found64]


def test_uniform_is_a_multiple_of_two_to_the_minus_24() -> None:
    u = Streams(0).uniform(Stream.PUSH_GATE, 0, np.arange(10_000))
    assert ((u >= 0) & (u < 1)).all()
    assert (u * 2**24 == np.floor(u * 2**24)).all()
    assert abs(u.mean() - 0.5) < 0.01


def test_normal_quantile_is_as241() -> None:
    words = np.concatenate([[0, 1, 2**32 - 1, 2**31], np.arange(0, 2**32, 7_654_321)]).astype(np.uint32)
    exact = [NormalDist().inv_cdf((int(word) + 0.5) / 2**32) for word in words]
    np.testing.assert_allclose(normal_quantile(words), exact, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_outside_its_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="4294967295"):
        Streams(seed)


def test_64_bit_integers_of_many_steps_are_those_of_each() -> None:
    streams, steps = Streams(5), np.arange(7, 1500)
    for n in (1, 3, 2**32 - 5, 2**44 - 7, 3 * 2**61 + 1, 2**63 - 1):  # of 3·2⁶¹ a quarter is redrawn
        one_by_one = [streams.below64(n, Stream.DISPATCH, step) for step in steps.tolist()]
        assert streams.all_below64(n, Stream.DISPATCH, steps).tolist() == one_by_one
