"""A kernel's arguments go by name, on both sides of a call; its constants can be others than those of its text."""

from types import ModuleType

import numpy as np
import pytest

from fredsim.jit.cache import make_module
from fredsim.jit.kernel import specialise
from fredsim.jit.team import Team

# A kernel of a test is made from its text, under whose digest it is cached: a changed test is compiled anew.
SCALE = """
from fredsim.jit.kernel import Fields, kernel
from fredsim.jit.pointers import doubles, floats, item, put

SOURCE = Fields(count=int, values=floats)


@kernel(factor=int, source=SOURCE, out=doubles)
def scale(rank, size, barrier, a):
    for i in range(rank, a.source.count, size):
        put(a.out, i, item(a.source.values, i) * a.FACTOR)
"""


def scaling(field: str) -> ModuleType:
    return make_module(SCALE.replace("FACTOR", field), "a test's scaling")


def test_names_say_what_is_what() -> None:
    module, values, out = scaling("factor"), np.arange(5, dtype=np.float32), np.zeros(5)
    with Team(2) as team:
        arguments = module.scale.pack(out=out, source=module.SOURCE.pack(values=values, count=5), factor=3)
        team.run(module.scale, arguments)
        assert out.tolist() == [0, 3, 6, 9, 12]
        arguments.set(factor=-1, source=module.SOURCE.pack(count=2, values=values + 1))
        team.run(module.scale, arguments)
        assert out.tolist() == [-1, -2, 6, 9, 12]
        arguments.factor = 2
        team.run(module.scale, arguments)
        assert out.tolist() == [2, 4, 6, 9, 12]


def test_what_is_forgotten_or_misspelt_is_refused() -> None:
    module, values, out = scaling("factor"), np.zeros(5, np.float32), np.zeros(5)
    source = module.SOURCE.pack(count=5, values=values)
    with pytest.raises(TypeError, match=r"missing: \['source'\]; unknown: \['sauce'\]"):
        module.scale.pack(factor=1, sauce=source, out=out)
    with pytest.raises(TypeError, match="argument out is an array of float32; the kernel reads float64"):
        module.scale.pack(factor=1, source=source, out=values)
    with pytest.raises(AttributeError, match="facter"):
        module.scale.pack(factor=1, source=source, out=out).facter = 2
    with pytest.raises(Exception, match="facter"):
        scaling("facter").scale.address  # noqa: B018  compiled


WIDTH = """
from fredsim.jit.subroutine import subroutine
WIDTH   =   3;  OTHER = 5

@subroutine
def width(): return WIDTH + OTHER
"""
WRITE = """
from GENERAL import width
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import int64s, put

WIDTH = 3


@kernel(out=int64s)
def write(rank, size, barrier, a):
    put(a.out, 0, width())
    put(a.out, 1, WIDTH)
"""


def test_constants_are_others_however_the_text_is_written() -> None:
    """In the module that is asked for and in what it has from those before it; the general modules stay."""
    general = make_module(WIDTH, "a test's width").__name__
    module = make_module(WRITE.replace("GENERAL", general), "a test's writing")
    special = specialise([general, module.__name__], WIDTH=7)
    assert special.WIDTH == 7
    with Team(1) as team:
        for one, expected in ((module, [8, 3]), (special, [12, 7]), (module, [8, 3])):
            out = np.zeros(2, np.int64)
            team.run(one.write, one.write.pack(out=out))
            assert out.tolist() == expected


def test_copies_for_the_same_constants_share_what_they_have_from_modules_before_them() -> None:
    """So it is compiled once; with other constants it is another."""
    general = make_module(WIDTH + "SHARED = 1\n", "a test's shared width").__name__
    write = WRITE.replace("GENERAL", general)
    modules = [make_module(write + f"\nNUMBER = {number}\n", "a test's writing").__name__ for number in (1, 2)]
    one, other, wide = (specialise([general, modules[i]], WIDTH=width) for i, width in ((0, 7), (1, 7), (1, 9)))
    assert one.width is other.width
    assert one.write is not other.write
    assert wide.width is not one.width
    with Team(1) as team:
        for module, expected in ((one, [12, 7]), (other, [12, 7]), (wide, [14, 9])):
            out = np.zeros(2, np.int64)
            team.run(module.write, module.write.pack(out=out))
            assert out.tolist() == expected
