"""What looks wrong with a data set although it can be learned from: each remark says what was found, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fredsim.data.datasets import Dataset
from fredsim.data.on_demand import OnDemand
from fredsim.plugins.failures import channels_remedy

__all__ = ["about_channels", "about_images", "about_labels", "about_samples"]

MOST_NAMED = 5  # the most labels that a remark names
FEW = 100  # test rows may be training rows, too, up to one of so many: large collections of images have a few


def about_labels(name: str, data: Dataset) -> Iterator[str]:
    """Yield remarks on the labels of a data set; `name` is its name in them."""
    if data.unused:
        outputs = f"{len(data.unused):,} of the {data.classes:,} outputs"
        which = f"no row has the label {_listed(data.unused)}, so {outputs} belong to no class"
        yield f"{name}: {which}; number the labels 0, 1, 2, …, without gaps"
    if isinstance(data.train.y, OnDemand):  # it would take a pass over the data
        return
    if data.classes and len(found := np.unique(data.train.y)) == 1:
        what = f"the {len(data.train):,} training rows have one label, {found[0]}, so there is nothing to learn"
        yield f"{name}: {what}; take rows of several classes (data.train), in random order"


def about_samples(name: str, data: Dataset, *, scaled: bool) -> Iterator[str]:
    """Yield remarks on the samples of a user's data set; `scaled`: the experiment scales them, or its model may."""
    if data.train.integers and not scaled:
        what = f"x_train holds {data.train.integers}; only bytes (uint8) are divided, by 255, other integers stay as"
        yield f"{name}: {what} they are; divide them, or give data.normalize"
    x = data.train.x
    constant = int((x == x[0]).all(axis=0).sum())
    if len(x) > 1 and 2 * constant > data.inputs:
        what = f"{constant:,} of the {data.inputs:,} values of a sample are the same in all {len(x):,} training rows"
        yield f"{name}: {what}; check how x_train was made"
    if zeros := int((~x.any(axis=1)).sum()):
        yield f"{name}: {zeros:,} of the {len(x):,} training rows hold nothing but 0; check how x_train was made"
    labels = np.unique(data.train.y) if data.classes else np.zeros(0)
    known = {hash(row.tobytes()) for row in x}
    for part, split in (("validation", data.validation), ("test", data.test)):
        if len(labels) > 1 and (new := np.setdiff1d(split.y, labels).tolist()):
            what = f"{part} rows have the label {_listed(new)}, which no training row has"
            yield f"{name}: {what}; put the rows into random order, or train on more of them (data.train)"
        again = sum(hash(row.tobytes()) in known for row in split.x)
        if again and FEW * again >= len(split):
            what = f"{again:,} of the {len(split):,} {part} rows are training rows, too"
            yield f"{name}: {what}, so their error says little about new data; take them out of one of the two"


def about_channels(name: str, shape: tuple[int, ...], numbers: int) -> Iterator[str]:
    """Yield a remark if it is doubtful whether the first axis of samples of this shape is the channels'.

    `numbers`: how many numbers data.normalize has, one for each place of that axis.
    """
    if numbers > 1 and any(length in {1, 3} for length in shape[1:]) and (numbers != 3 or 3 in shape[1:]):
        what = f"a sample has the shape {shape}, and data.normalize one number for each of its first axis"
        yield f"{name}: {what}; if another axis is that of the channels, save the samples with the channels first"


def about_images(name: str, shape: tuple[int, ...], key: str) -> Iterator[str]:
    """Yield a remark if images of this shape seem to have their channels last; `key`: that of what takes them first."""
    if remedy := channels_remedy(shape):
        what = f"a sample has the shape {shape}, which {key} takes as {shape[0]} channels of {shape[1]}×{shape[2]}"
        yield f"{name}: {what}{remedy}"


def _listed(labels: Sequence[int]) -> str:
    named = ", ".join(map(str, labels[:MOST_NAMED]))
    return f"{named} and {len(labels) - MOST_NAMED:,} more" if len(labels) > MOST_NAMED else named
