"""What has changed in a user's object since its start: another one, just started, that gets its state goes on alike."""

import random
from collections import deque
from typing import Any

import numpy as np

from fredsim.errors import SimulationError
from fredsim.plugins.state.states import note_start, put_state, take_state
from tests.test_states import Same

ATTRIBUTES = "abcd"
CUTS = (np.s_[1:], np.s_[:2], np.s_[::2], np.s_[:])


class Helper:
    """Has another value."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Own:
    """Does not say its state."""


def started(seed: int) -> Own:
    """Make an object of arrays, views, containers and a helper, each of which may be in several places."""
    rng, pool = random.Random(seed), list[Any]()

    def value(depth: int = 0) -> Any:
        what = rng.randrange(9)
        arrays = [one for one in pool if isinstance(one, np.ndarray)]
        if what < 2 and pool:
            return rng.choice(pool)
        if what == 2 and arrays:
            made: Any = rng.choice(arrays)[rng.choice(CUTS)]
        elif what < 6 or depth > 2:
            made = np.zeros(rng.choice([2, 4, 5]))
        elif what == 6:
            made = [value(depth + 1) for _ in range(rng.randrange(3))]
        elif what == 7 and depth:
            made = tuple(value(depth + 1) for _ in range(rng.randrange(3)))
        elif what == 7:
            made = {name: value(depth + 1) for name in rng.sample("xyz", rng.randrange(3))}
        else:
            made = deque((value(depth + 1) for _ in range(rng.randrange(3))), rng.choice([None, 3]))
        pool.append(made)
        return made

    made = Own()
    for name in ATTRIBUTES:
        setattr(made, name, value())
    if rng.random() < 0.3:
        made.e = Helper(rng.choice(pool))  # type: ignore[attr-defined]
    note_start(made)
    return made


def parts_of(found: Own) -> list[Any]:
    """Return the arrays and containers in an object, in an order that depends on what it holds alone."""
    parts, met, left = list[Any](), set[int](), [value for _, value in sorted(vars(found).items())]
    while left:
        value = left.pop(0)
        if isinstance(value, Helper):
            left.append(value.value)
        elif isinstance(value, np.ndarray | list | tuple | dict | deque) and id(value) not in met:
            met.add(id(value))
            parts.append(value)
            left += value.values() if isinstance(value, dict) else () if isinstance(value, np.ndarray) else value
    return parts


def change(found: Own, rng: random.Random) -> None:
    """Change one thing in an object: numbers, what an attribute refers to, if it stays, or what a container holds."""
    parts, what = parts_of(found), rng.randrange(10)
    i, j = rng.randrange(10**6), rng.randrange(10**6)
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    containers: list[Any] = [part for part in parts if isinstance(part, list | dict | deque)]
    one = arrays[i % len(arrays)] if arrays else np.zeros(2)
    holder: Any = containers[j % len(containers)] if containers else []
    if what < 2 and one.size:
        one[j % one.size] += 1
    elif what == 2 and parts:
        setattr(found, ATTRIBUTES[i % 4], parts[j % len(parts)])
    elif what == 3:
        setattr(found, ATTRIBUTES[j % 4], one[CUTS[j % len(CUTS)]])
    elif what == 4 and isinstance(holder, dict):
        holder["xyzw"[i % 4]] = one
    elif what == 4:
        holder.append(one)
    elif what == 5 and isinstance(holder, dict):
        holder.pop("xyz"[i % 3], None)
    elif what == 5 and holder:
        holder.pop()
    elif what == 6 and not isinstance(holder, dict):
        holder.reverse()
    elif what == 7:
        setattr(found, ATTRIBUTES[i % 4], np.zeros(3))
    elif what == 8:
        setattr(found, ATTRIBUTES[i % 4], one.copy())
    elif what == 9:
        vars(found).pop(ATTRIBUTES[i % 4], None)


def compare(one: Own, two: Own) -> None:
    """Compare two objects, and what is in their helpers."""
    plain = Own(), Own()
    for found, copy in zip((one, two), plain, strict=True):
        vars(copy).update({n: v.value if isinstance(v, Helper) else v for n, v in vars(found).items()})
    Same(*plain)


def test_it_goes_on_as_one_that_never_stopped() -> None:
    taken = 0
    for seed in range(100):
        found, fresh, rng = started(seed), started(seed), random.Random(seed)
        for _ in range(rng.randrange(5)):
            change(found, rng)
        try:
            state = take_state(found)
        except SimulationError:
            continue
        taken += 1
        put_state(fresh, state)
        compare(found, fresh)
        for one in (found, fresh):
            after = random.Random(seed + 1)
            for _ in range(4):
                change(one, after)
        compare(found, fresh)
    assert taken > 80
