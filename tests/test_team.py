"""A team of threads: each reads what the others wrote before a barrier. It ends, also after an interrupt."""

import ctypes
import threading
import time

import numpy as np
import pytest

from fredsim.jit.cache import make_module
from fredsim.jit.team import ASLEEP, FIRST_TRIAL, LAST_TRIAL, RANKS, SHARE, STRIDE, TRIAL, Pace, Team

# A kernel of a test is made from its text, under whose digest it is cached: a changed test is compiled anew.
RING = """
from fredsim.jit.kernel import kernel
from fredsim.jit.team import barrier_wait
from fredsim.jit.pointers import int64s, item, put


@kernel(rounds=int, values=int64s, found=int64s)
def ring(rank, size, barrier, a):
    for turn in range(a.rounds):
        put(a.values, rank, 1000 * turn + rank)
        barrier_wait(size, barrier)
        put(a.found, turn * size + rank, item(a.values, (rank + 1) % size))
        barrier_wait(size, barrier)
"""


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("pause", [0.0, 0.0005, 0.02])  # threads still spin, may just go to sleep, sleep
def test_a_team_meets_again_and_again(size: int, pause: float) -> None:
    """Whoever comes late to a meeting, each thread reads what its neighbour wrote before it."""
    ring = make_module(RING, "a test's ring").ring
    with Team(size) as team:
        assert team.size == size
        for rounds in (*range(1, 30), 200):
            values, found = np.full(size, -1), np.full((rounds, size), -1)
            team.run(ring, ring.pack(rounds=rounds, values=values, found=found))
            expected = 1000 * np.arange(rounds)[:, None] + (np.arange(size) + 1) % size
            np.testing.assert_array_equal(found, expected)
            values, found = np.full(size, -1), np.full((rounds, 1), -1)
            team.run_alone(ring, ring.pack(rounds=rounds, values=values, found=found))
            np.testing.assert_array_equal(found[:, 0], 1000 * np.arange(rounds))
            time.sleep(pause)


@pytest.mark.parametrize("size", [2, 5])
def test_threads_of_pytorch_meet_too(size: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    from fredsim.native.threads import LIBRARY, pytorch_team

    team = pytorch_team(size)
    if not hasattr(ctypes.CDLL(str(LIBRARY)), "GOMP_parallel"):
        assert team.size == 1
        pytest.skip("this PyTorch does not use GCC's OpenMP")
    assert team.size == size
    ring = make_module(RING, "a test's ring").ring
    before, known = torch.get_num_threads(), threading.active_count()
    for rounds in (1, 2, 100):
        torch.ones(200_000).mul_(2)  # on these threads
        values, found = np.full(size, -1), np.full((rounds, size), -1)
        team.run(ring, ring.pack(rounds=rounds, values=values, found=found))
        expected = 1000 * np.arange(rounds)[:, None] + (np.arange(size) + 1) % size
        np.testing.assert_array_equal(found, expected)
    assert (torch.get_num_threads(), threading.active_count()) == (before, known)
    assert team.seconds > 0
    team.close()


def test_without_gccs_openmp_one_thread_works(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    from fredsim.native import threads

    assert threads.pytorch_team(1).size == 1
    monkeypatch.setattr(threads, "LIBRARY", "nowhere.so")
    assert threads.pytorch_team(3).size == 1
    monkeypatch.setattr(threads, "CDLL", lambda _: object())  # a library without these functions
    assert threads.pytorch_team(3).size == 1


def test_teams_side_by_side() -> None:
    ring = make_module(RING, "a test's ring").ring
    with Team(2) as one, Team(3) as other:
        for _ in range(100):
            for team in (one, other):
                found = np.full((3, team.size), -1)
                team.run(ring, ring.pack(rounds=3, values=np.zeros(team.size, np.int64), found=found))
                assert found[2, 0] == 2000 + 1
        one.close()
        one.close()  # a second time does nothing
        found = np.full((1, 3), -1)
        other.run(ring, ring.pack(rounds=1, values=np.zeros(3, np.int64), found=found))
        assert found.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("place", ["before", "between", "after"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_team_ends_after_an_interrupt(size: int, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while sleeping threads are woken, or when they are awake but rank 0 has not joined them."""
    ring = make_module(RING, "a test's ring").ring
    found = np.full((1, size), -1)
    team = Team(size)
    wake, threads = team._wake, team._threads

    def interrupted() -> None:
        if place == "between":  # the flag of rank 1 says that it was woken, which it was not
            team._board[RANKS + STRIDE + ASLEEP] = 0
        elif place == "after":
            wake()
        raise KeyboardInterrupt

    monkeypatch.setattr(team, "_wake", interrupted)
    with pytest.raises(KeyboardInterrupt):
        team.run(ring, ring.pack(rounds=1, values=np.zeros(size, np.int64), found=found))
    closing = threading.Thread(target=team.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert not any(thread.is_alive() for thread in threads)
    assert found.tolist() == [[*range(1, size), 0]]  # the call was done


def calls(pace: Pace, count: int, split: float, alone: float) -> list[bool]:
    """Return which of so many calls were split, if they take so long one way and the other."""
    found = []
    for _ in range(count):
        found.append(pace.next())
        pace.note(split if found[-1] else alone)
    return found


@pytest.mark.parametrize("threads", [2, 16, 64])
def test_trials_take_a_small_part_of_the_time(threads: int) -> None:
    """Alone, a call of a network that scales takes as many times as long as there are threads."""
    pace = Pace()
    first = calls(pace, 1000, 1.0, threads).count(False) * threads
    assert 0 < first <= TRIAL * threads + 1000 / SHARE
    later = calls(pace, 100_000, 1.0, threads).count(False) * threads
    assert 0 < later <= 1.01 * 100_000 / SHARE
    found = calls(pace, 2 * LAST_TRIAL, 10.0 * threads, threads)  # a processor is lost in a run that goes on for long
    assert found[-1] is False


def test_calls_are_split_while_that_takes_less_time() -> None:
    """The other way is tried again and again, ever more rarely while it is worse."""
    pace = Pace()
    assert calls(pace, FIRST_TRIAL, 1.0, 1.8) == [True] * FIRST_TRIAL
    assert calls(pace, TRIAL, 1.0, 1.8) == [False] * TRIAL
    many = calls(pace, 10 * LAST_TRIAL, 1.0, 1.8)
    assert many[0]
    assert 0 < many.count(False) < 0.01 * len(many)
    many = calls(pace, 3 * LAST_TRIAL, 100.0, 1.8)  # another program takes a processor
    assert many[-100:].count(False) >= 98
    many = calls(pace, 3 * LAST_TRIAL, 1.0, 1.8)  # it has ended
    assert many[-100:].count(True) >= 98
    assert calls(Pace(), LAST_TRIAL, 1.0, 0.95)[-1]  # a difference that may be chance changes nothing
