"""Users' modules whose classes keep a count in an odd place, and compute with it: each run must begin with a fresh one.

Case i is always the same. `PLACES` are statements that keep the count and leave the next one in `n`, from 1; those of
`OF_OBJECTS` keep it in the object itself, so that a run can continue from a checkpoint.
"""

from __future__ import annotations

import random
import textwrap
from typing import Any

__all__ = ["OF_OBJECTS", "PLACES", "UNSEEN", "case", "of_function"]

#: Anywhere but in the object.
PLACES = {
    "attribute of the class": "type(self).count = n = type(self).count + 1",
    "attribute of a base": "Kept.count = n = Kept.count + 1",
    "list of the class": "self.items.append(0); n = len(self.items)",
    "array of the class": "self.array[...] += 1; n = int(self.array[0])",
    "generator of the class": "n = int(self.rng.integers(1, 9))",
    "iterator of the class": "n = next(self.counter)",
    "metaclass": "type(type(self)).count = n = type(type(self)).count + 1",
    "global variable": "global COUNT; COUNT = n = COUNT + 1",
    "global variable by name": "globals()['COUNT'] = n = COUNT + 1",
    "global dict": "STORE['n'] = n = STORE.get('n', 0) + 1",
    "global object": "OBJECT.n = n = OBJECT.n + 1",
    "global generator": "n = int(RNG.integers(1, 9))",
    "closure": "n = COUNTING()",
    "default": "n = grows()",
    "default by name": "n = grows_by_name()",
    "attribute of a function": "grows.n = n = grows.n + 1",
    "cache": "n = len(cached()); cached().append(0)",
    "other module": "helper.COUNT = n = helper.COUNT + 1",
    "function of another module": "n = helper.count()",
    "thread": "LOCAL.n = n = getattr(LOCAL, 'n', 0) + 1",
    "context": "n = CONTEXT.get() + 1; CONTEXT.set(n)",
    "decimal context": "decimal.getcontext().prec += 1; n = decimal.getcontext().prec - 27",
    "environment": "os.environ['FREDSIM_ODD'] = str(n := int(os.environ.get('FREDSIM_ODD', 0)) + 1)",
    "builtins": "builtins.odd = n = getattr(builtins, 'odd', 0) + 1",
    "NumPy": "np.odd = n = getattr(np, 'odd', 0) + 1",
    "NumPy's generator": "n = int(np.random.randint(1, 9))",
    "Python's generator": "n = random.randint(1, 9)",
    "sys": "sys.odd = n = getattr(sys, 'odd', 0) + 1",
    "module of its own": "n = sys.modules.setdefault('odd_module', OBJECT).n = OBJECT.n + 1",
    "class of fredsim's": "fredsim.servers.ASGD.odd = n = getattr(fredsim.servers.ASGD, 'odd', 0) + 1",
    "property": "n = self.growing",
    "global generator under way": "n = next(UNDER_WAY)",
    "global file": "n = int(next(LINES))",
    "global variable with underscores": "globals()['__odd__'] = n = __odd__ + 1",
    "attribute of the class with underscores": "Kept.__odd__ = n = Kept.__odd__ + 1",
    "module imported in the method": "import LATE; LATE.COUNT += 1; n = LATE.COUNT",
    "class of an object from another module": "type(SHARED).n += 1; n = SHARED.n",
}
#: Those that a checkpoint cannot see: they are in no object, class or module of the user's.
UNSEEN = {"environment", "builtins", "NumPy", "sys", "module of its own", "class of fredsim's", "cache"}
#: In the object, by ways that reading the code does not show.
OF_OBJECTS = {
    "attribute": "self.count = n = self.count + 1",
    "setattr": "n = self.count + 1; setattr(self, 'count', n)",
    "dict": "vars(self)['count'] = n = self.count + 1",
    "object": "n = self.count + 1; object.__setattr__(self, 'count', n)",
    "nested": "n = self.nested()",
    "decorated": "n = self.decorated()",
    "made later": "self.later = n = getattr(self, 'later', 0) + 1",
    "list": "self.own_items.append(0); n = len(self.own_items)",
    "array": "self.own_array[...] += 1; n = int(self.own_array[0])",
    "generator": "n = int(self.own_rng.integers(1, 9))",
    "deleted": "n = 2 if hasattr(self, 'first') else 1; hasattr(self, 'first') and delattr(self, 'first')",
    "iterator": "n = next(self.own_counter)",
    "closure": "n = self.own_closure()",
    "under way": "n = next(self.under_way)",
    "set": "self.own_set.add(len(self.own_set)); n = len(self.own_set)",
    "object of its own": "self.own_object.n = n = self.own_object.n + 1",
    "class of its object": "type(self.own_object).n += 1; n = self.own_object.n",
    "number of ctypes": "self.own_number.value += 1; n = self.own_number.value",
    "text in memory": "self.own_text.write('x'); n = len(self.own_text.getvalue())",
    "name with a dot": "vars(self)['odd.count'] = n = vars(self)['odd.count'] + 1",
}
#: What an object begins with for them; for all others, a number.
KEPT = {
    "list": "self.own_items = []",
    "array": "self.own_array = np.zeros(1)",
    "generator": "self.own_rng = np.random.default_rng(2)",
    "deleted": "self.first = 1",
    "iterator": "self.own_counter = itertools.count(1)",
    "closure": "self.own_closure = counting()",
    "under way": "self.under_way = (i for i in range(1, 10**6))",
    "set": "self.own_set = set()",
    "object of its own": "self.own_object = Object()",
    "class of its object": "self.own_object = Object()",
    "number of ctypes": "self.own_number = ctypes.c_int(0)",
    "text in memory": "self.own_text = io.StringIO()",
    "name with a dot": "vars(self)['odd.count'] = 0",
}
MODULE = """
import builtins
import contextvars
import ctypes
import decimal
import functools
import io
import itertools
import os
import random
import sys
import threading

import numpy as np

import fredsim
import {helper} as helper
from fredsim.servers import SERVERS
from {helper} import SHARED

np.random.seed(5)
random.seed(5)
__odd__ = 0
COUNT, STORE, RNG = 0, {{}}, np.random.default_rng(4)
UNDER_WAY, LINES = (i for i in range(1, 10**6)), open(__file__.removesuffix(".py") + ".txt")
LOCAL, CONTEXT = threading.local(), contextvars.ContextVar("odd", default=0)


class Object:
    n = 0


OBJECT = Object()


def counting():
    n = 0

    def count():
        nonlocal n
        n += 1
        return n

    return count


COUNTING = counting()


def grows(items=[]):
    items.append(0)
    return len(items)


def grows_by_name(*, items=[]):
    items.append(0)
    return len(items)


grows.n = 0


@functools.cache
def cached():
    return [0]


def counted(method):
    def wrapped(self):
        self.count += 1
        return self.count

    return wrapped


class Meta(type):
    count = 0


class Kept(metaclass=Meta):
    count, array, rng = 0, np.zeros(1), np.random.default_rng(3)
    items, counter, grown, __odd__ = [], itertools.count(1), 0, 0

    @property
    def growing(self):
        Kept.grown += 1
        return Kept.grown

    def nested(self):
        def add():
            self.count += 1

        add()
        return self.count

    @counted
    def decorated(self):
        pass

    def keep(self):
        {kept}

    def next(self):
        {place}
        return n


class Server(Kept, {base}):
    def init(self, params, clients{layout}):
{start}
        self.keep()

    def apply_update(self, grad, client_id, timestamp):
{step}


class Dispatcher(Kept):
    def init(self, clients, streams):
        self.clients = clients
        self.keep()

    def choose(self, step):
        return (step * 3 + self.next()) % self.clients

    def hold(self, client):
        pass

    def release(self, client):
        pass


class Gate(Kept):
    def init(self, clients, tensors, streams, stream):
        self.keep()

    def passes(self, step, client, statistics):
        return self.next() % 3 > 0


class Compressor(Kept):
    def init(self, layout, streams):
        self.keep()

    def compress(self, push, client, step):
        return push / np.float32(1 + self.next()), 400

    def cancelled(self, client):
        pass


class Optimizer(Kept):
    def __init__(self, lr):
        self.lr = np.float32(lr)
        self.keep()

    def begin(self, client, params):
        pass

    def step(self, client, params, grad, k):
        return params - self.lr / np.float32(1 + self.next()) * grad


KEEPER = Kept()
KEEPER.keep()


def metric(output, y):
    return KEEPER.next()


def augment(x, generator):
    return x / np.float32(1 + KEEPER.next())


def schedule(t):
    return 0.1 / (1 + KEEPER.next())
"""
HELPER = """
COUNT = 0


class Shared:
    n = 0


SHARED = Shared()


def count():
    global COUNT
    COUNT += 1
    return COUNT
"""
#: Bases of the server: alone, or of fredsim's, by the hyper-parameters.
BASES: list[dict[str, Any]] = [
    {}, {"name": "asgd", "lr": 0.05}, {"name": "fasgd", "lr": 0.01}, {"name": "sync", "lr": 0.05},
    {"name": "fedbuff", "lr": 0.05, "buffer": 2}, {"name": "dcasgd", "lr": 0.01}, {"name": "adam", "lr": 0.003},
    {"name": "rennala", "lr": 0.05, "batch": 3}, {"name": "sasgd", "lr": 0.05},
]  # fmt: skip


#: The kinds of classes that keep a count, besides servers.
CHANGES = ("dispatcher", "gate", "compressor", "optimizer")
LOCAL = {"count": 4, "batch_size": 2, "sampling": "iid", "local_steps": 2}


def case(number: int, places: dict[str, str]) -> tuple[dict[str, str], dict[str, Any], str]:
    """Return the files of a case, the changes of an experiment that use them, and the place."""
    rng = random.Random(number)
    place, kind = rng.choice(list(places)), rng.choice(["server", "server", *CHANGES])
    base = rng.choice(BASES) if kind == "server" else {}
    files, changes = _module(f"odd_{number}", places[place], KEPT.get(place, "self.count = self.count"), base)
    return files, changes[kind], place


def of_function(kind: str, place: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the files of a user's function, `metric`, `augment` or `schedule`, and the changes that use it."""
    files, changes = _module(
        "odd_function", (PLACES | OF_OBJECTS)[place], KEPT.get(place, "self.count = self.count"), {}
    )
    return files, changes[kind]


def _module(name: str, place: str, kept: str, base: dict[str, Any]) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return the files of a module, and by kind the changes of an experiment that use it."""
    if base:
        more = {
            "base": f"SERVERS[{base['name']!r}]", "layout": ", layout=None",
            "start": "super().init(params, clients, layout)",
            "step": "return super().apply_update(grad / np.float32(1 + self.next()), client_id, timestamp)",
        }  # fmt: skip
    else:
        more = {
            "base": "object", "layout": "", "start": "self.params = params.copy()",
            "step": "self.params -= np.float32(0.1 / (1 + self.next())) * grad",
        }  # fmt: skip
    helper = name.replace("odd_", "odd_helper_")
    more |= {key: textwrap.indent(more[key], " " * 8) for key in ("start", "step")}
    late = name.replace("odd_", "odd_late_")
    more |= {"place": place.replace("LATE", late), "kept": kept}
    files = {
        f"{name}.py": MODULE.format(helper=helper, **more),
        f"{helper}.py": HELPER,
        f"{late}.py": "COUNT = 0\n",
        f"{name}.txt": "1\n2\n3\n4\n5\n" * 999,
    }
    usual: dict[str, Any] = {"server": {"name": "asgd", "lr": 0.05}}
    changes: dict[str, dict[str, Any]] = {
        "server": {"server": {**base, "name": f"{name}:Server"}},
        "dispatcher": usual | {"dispatcher": {"name": f"{name}:Dispatcher"}},
        "gate": usual | {"dispatcher": {"push": {f"{name}:Gate": {}}}},
        "compressor": usual | {"compress": {"name": f"{name}:Compressor"}},
        "optimizer": usual | {"clients": LOCAL | {"optimizer": {"name": f"{name}:Optimizer", "lr": 0.05}}},
        "metric": usual | {"evaluation": {"every": 5, "metrics": [f"{name}:metric"]}},
        "augment": usual | {"data": {"name": "digits", "train": 60, "validation": 20, "augment": f"{name}:augment"}},
        "schedule": {"server": {"name": "asgd", "lr": {"name": f"{name}:schedule"}}},
    }
    return files, changes
