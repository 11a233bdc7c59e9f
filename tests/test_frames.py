"""Python's stack of frames in one piece."""

import sys

import pytest

from fredsim.system.frames import in_one_piece

resource = pytest.importorskip("resource", reason="this system does not count page faults")


def leaf(a: int, b: int, c: int) -> int:
    return a + b + c


def faults(depth: int) -> int:
    """Return how many pages 500 calls take, this many calls below this one."""
    if depth:
        return faults(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for i in range(500):
        leaf(i, i, i)
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def test_no_call_takes_memory_from_the_system() -> None:
    """A call at the end of a piece does each time, at some of 200 depths."""
    assert max(map(in_one_piece(faults), range(200))) < 50
    if sys.version_info < (3, 13):
        assert max(map(faults, range(200))) >= 500


def test_it_is_the_same_function() -> None:
    assert in_one_piece(leaf)(1, b=2, c=3) == 6
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'c'"):
        in_one_piece(leaf)(1, 2)  # type: ignore[call-arg]
