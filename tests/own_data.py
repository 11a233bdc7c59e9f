"""Data sets of a user's own, right and wrong, which tests write into a module `own_sets`."""

SETS = '''
import random

import numpy as np


class Blobs:
    """Points around one of three places."""

    shape = (5,)
    dtype = "float32"
    count = 90

    def __init__(self, file="", spread=0.5):
        rng = np.random.default_rng(0)
        self.y = rng.integers(0, 3, self.count + 30)
        self.x = (rng.normal(size=(self.count + 30, 5)) * spread + self.y[:, None]).astype(np.float32)
        if file:
            self.x += np.load(file)

    def len(self, part):
        return {"train": self.count, "test": 30}.get(part, 0)

    def rows(self, part, numbers):
        begin = self.count if part == "test" else 0
        return self.x[numbers + begin], self.y[numbers + begin]


class WithValidation(Blobs):
    def len(self, part):
        return {"train": 60, "validation": 30, "test": 30}[part]

    def rows(self, part, numbers):
        begin = {"train": 0, "validation": 60, "test": 90}[part]
        return self.x[numbers + begin], self.y[numbers + begin]


class Known(Blobs):
    classes = 3


class Unsigned(Blobs):
    __signature__ = 0  # Python cannot tell what it takes, as of a class of C++ or Cython


class Counted(Known):
    """Notes how many rows are asked for at once."""

    asked = []

    def rows(self, part, numbers):
        self.asked.append(len(numbers))
        return super().rows(part, numbers)


class Opened(Blobs):
    """Reads a file that nothing names; notes how often it is made."""

    made = []

    def __init__(self):
        self.made.append(1)
        super().__init__("shift.npy")


class Filed(Opened):
    files = ["shift.npy"]


class Long(Blobs):
    """Numbers with unused bytes between them, which are not always the same."""

    dtype = np.longdouble

    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x.astype(np.longdouble), y


class Bytes(Blobs):
    shape = (1, 4, 4)
    dtype = np.uint8

    def rows(self, part, numbers):
        _, y = super().rows(part, numbers)
        return (numbers[:, None] * 7 % 200 + 3 * np.arange(16)).astype(np.uint8).reshape(-1, 1, 4, 4), y


class Sentences(Blobs):
    """Overlapping rows of a text of numbers, of which each predicts the next."""

    shape = (6,)
    dtype = "int32"
    classes = 10

    def rows(self, part, numbers):
        text = np.arange(200) ** 2 % 11
        places = numbers[:, None] + np.arange(6) + (100 if part == "test" else 0)
        return text[places].astype(np.int32), text[places + 1]


class Rising(Blobs):
    """Sequences of which the later rows have the higher tokens; −100 at the end of every second one."""

    shape = (4,)
    dtype = "int32"

    def rows(self, part, numbers):
        x = (numbers[:, None] + np.arange(4)).astype(np.int32)
        y = x + 1
        y[numbers % 2 == 1, -1] = -100
        return x, y


class Following(Rising):
    """Gives higher targets after its rows were read once."""

    later = 0

    def rows(self, part, numbers):
        x, _ = super().rows(part, numbers)
        return x, x + 1 + self.later


class Marked(Blobs):
    """Points of which the later rows have the higher classes, and every second row has −100."""

    def rows(self, part, numbers):
        return super().rows(part, numbers)[0], np.where(numbers % 2 == 1, -100, numbers // 13)


class MarkedOfSeven(Marked):
    classes = 7


class Maps(Marked):
    """A class at each place."""

    shape = (2, 3)

    def rows(self, part, numbers):
        y = super().rows(part, numbers)[1][:, None, None] + np.zeros((2, 3), int)
        return y.astype(np.float32), y


class CountedSentences(Counted, Sentences):
    classes = 10


class Integers(Blobs):
    dtype = np.int64

    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return abs(10 * x).astype(np.int64), y


class Grids(Blobs):
    """Integers at places of two axes, with a class each."""

    shape = (2, 2)
    dtype = np.int64

    def rows(self, part, numbers):
        x = numbers[:, None, None] % 3 + np.zeros((2, 2), np.int64)
        return x, x


class Words(Blobs):
    """Tokens from 0 to 11, with one label each; those to test on are higher."""

    shape = (5,)
    dtype = "int32"
    highest = 11

    def rows(self, part, numbers):
        x = (numbers[:, None] * 3 + np.arange(5)) % (12 if part == "test" else 9)
        return np.minimum(x, self.highest).astype(np.int32), self.y[numbers] % 2


class Later(Words):
    """Gives other tokens after its rows were tried."""

    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x + self.later, y

    later = np.int32(0)


class BelowZero(Words):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x - 1, y


class Doubled(Blobs):
    """Labels with gaps."""

    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x, 2 * y


class Drawn(Blobs):
    """Points that are shifted by what it draws from shared generators."""

    def __init__(self):
        super().__init__()
        self.x += np.float32(np.random.random() + random.random())


class NumbersToTest(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x, y if part == "train" else y / 2


class PairsToTest(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x, y if part == "train" else np.stack([y, y], axis=1)


class Named(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x, np.array(["a", "b", "c"])[y]


class TooMany(Blobs):
    def len(self, part):
        return 2**31


class Shorter(Blobs):
    def len(self, part):
        return super().len(part) * 2


class Fewer(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return (x[:-1], y[:-1]) if len(x) > 2 else (x, y)


class Ragged(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return ([[0.0] * (5 + (n == 40)) for n in numbers], y) if 40 in numbers else (x, y)


class OtherWidth(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return (np.zeros((len(x), 6), np.float32), y) if 40 in numbers else (x, y)


class Objects(Blobs):
    dtype = object


class Wider(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x.astype(np.float64), y


class NoNumber(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        x[numbers == 41] = np.nan
        return x, y


class Restless(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x + np.float32(np.random.rand()), y


class TooManyClasses(Known):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x, y + 3 * (numbers == 42)


class Negative(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x, y - 3 * (numbers == 42)


class Masked(Blobs):
    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return np.ma.MaskedArray(x, x > 2), y


class Exiting(Blobs):
    def rows(self, part, numbers):
        raise SystemExit(0)


class Sorted(Blobs):
    def rows(self, part, numbers):
        numbers.sort()
        return super().rows(part, numbers)


class Grown(Blobs):
    """Rows that depend on how many are asked for at once."""

    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return x + np.float32(len(numbers) > 2), y


class Unshaped(Blobs):
    @property
    def shape(self):
        raise SystemExit(0)


class Unfiled(Blobs):
    @property
    def files(self):
        raise SystemExit(0)


class Alone(Blobs):
    def rows(self, part, numbers):
        return super().rows(part, numbers)[0]


class Raising(Blobs):
    def rows(self, part, numbers):
        if 40 in numbers:
            raise OSError("the disk is on fire")
        return super().rows(part, numbers)


class Empty(Blobs):
    def len(self, part):
        return 0


class Fraction(Blobs):
    def len(self, part):
        return 2.5


class Table(Blobs):
    """Points whose columns lie one after the other in memory, as those of a table of pandas do."""

    count = 1300

    def rows(self, part, numbers):
        x, y = super().rows(part, numbers)
        return np.asfortranarray(x), np.asfortranarray(np.stack([y, y * y], axis=1).astype(np.float32))


class NoRows:
    shape, dtype = (5,), "float32"

    def len(self, part):
        return 4


class NoShape(Blobs):
    shape = ()


class Halves(Blobs):
    shape = (4.5,)


class Missing(Blobs):
    files = ["nowhere.bin"]


class Failing(Blobs):
    def __init__(self):
        raise RuntimeError("no such corpus")


class Asking(Blobs):
    def __init__(self, split):
        super().__init__()


number = 5
'''

TORCH = '''
import numpy as np
import torch
from own_sets import Blobs


class Items(torch.utils.data.Dataset):
    """The same points as PyTorch's data sets give them."""

    def __init__(self, split):
        self.part, self.inner = split, Blobs()

    def __len__(self):
        return self.inner.len(self.part)

    def __getitem__(self, i):
        x, y = self.inner.rows(self.part, np.array([i]))
        return torch.tensor(x[0]), int(y[0])


class OnlyOne(Items):
    def __init__(self):
        super().__init__("train")


class Unsigned(OnlyOne):
    __signature__ = 0  # Python cannot tell what it takes, as of a class of C++ or Cython


class Lying(Items):
    def __len__(self):
        return 500


class Half(Items):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x.bfloat16(), y


class Trained(Items):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x.requires_grad_(), y


class Singles(Items):
    def __getitem__(self, i):
        return super().__getitem__(i)[0]


class Objects(Items):
    def __getitem__(self, i):
        return object(), 0


class Mixed(Items):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return (x[:4] if i == 50 else x), y


class Types(Items):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return (x.double() if i == 50 else x), y


class MaskedItems(Items):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return np.ma.MaskedArray(x.numpy(), x.numpy() > 2), y


class Noisy(Items):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + torch.rand(5), y
'''
