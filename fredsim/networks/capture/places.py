"""Parts of a tensor by places that are known: other orders, repeated elements, and padding by an image's own pixels."""

from __future__ import annotations

from collections.abc import Sequence

from fredsim.networks.capture.tensors import Fixed, Tensor, named, traced
from fredsim.networks.capture.values import Builder, Size, Traced, UnsupportedError
from fredsim.networks.capture.views import axis_of, cat, full, ordered

__all__ = ["taken"]

MOST = 256  # the most parts that a tensor is put together from


def taken(to: Builder, x: Tensor, dim: int, places: Sequence[int]) -> Tensor:
    """Return the elements of these places along a dimension, neighbours together."""
    found = traced(to, x)
    if found.sizes[dim].batch:
        raise UnsupportedError("takes some of the samples, or puts them in another order")
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    if len(runs) > MOST:
        raise UnsupportedError(f"takes {len(runs)} parts of a tensor one by one; {MOST} at most", "embedding")
    return cat(to, [to.sliced(found, dim, begin, end) for begin, end in runs], dim)


@named("flip")
def flip(to: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        found = traced(to, x)
        at = axis_of(dim, len(found.dims))
        x = taken(to, found, at, range(found.sizes[at].count)[::-1])
    return x


@named("roll")
def roll(to: Builder, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        raise UnsupportedError("has no dims")
    for by, dim in zip(shifts, dims, strict=True):
        found = traced(to, x)
        at = axis_of(dim, len(found.dims))
        count = found.sizes[at].count
        x = taken(to, found, at, [(i - by) % count for i in range(count)])
    return x


@named("index")
def index(to: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    ((at, one), *more) = [(at, one) for at, one in enumerate(indices) if one is not None]
    if more:
        raise UnsupportedError("has indices along several dimensions")
    return index_select(to, x, at, one)


@named("index_select")
def index_select(to: Builder, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not isinstance(index, Fixed) or index.batch is not None:
        raise UnsupportedError("chooses elements by numbers that depend on samples", "embedding")
    found = traced(to, x)
    at = axis_of(dim, len(found.dims))
    places = [int(place) % found.sizes[at].count for place in index.values.reshape(-1)]
    if not places:
        raise UnsupportedError("takes no element")
    chosen = traced(to, taken(to, found, at, places))
    return to.viewed(chosen, [*chosen.sizes[:at], *map(Size, index.values.shape), *chosen.sizes[at + 1 :]])


def around(mode: str, count: int, before: int, after: int) -> list[int]:
    """Return the places that padding of this kind has, with those of the tensor itself, along one dimension."""
    places = range(-before, count + after)
    if mode == "circular":
        return [place % count for place in places]
    if mode == "replicate":
        return [min(max(place, 0), count - 1) for place in places]
    return [count - 1 - abs(count - 1 - abs(place)) for place in places]


@named("pad")
def pad(to: Builder, x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        found = traced(to, x)
        at = len(found.dims) - 1 - i
        count = found.sizes[at].count
        if mode != "constant":
            x = taken(to, found, at, around(mode, count, before, after))
            continue
        kept = to.sliced(found, at, max(0, -before), count - max(0, -after)) if min(before, after) < 0 else found
        x = cat(to, [*_edge(kept, at, before, value), kept, *_edge(kept, at, after, value)], at)
    return x


def _edge(x: Traced, at: int, width: int, value: float | None) -> list[Tensor]:
    """Return what lies beside a tensor, if anything does."""
    sizes = [Size(width) if i == at else size for i, size in enumerate(x.sizes)]
    return [full(sizes, value or 0.0)] if width > 0 else []


@named(*(f"{name}_pad{count}d" for name in ("reflection", "replication") for count in (1, 2, 3)))
def pad_by_pixels(to: Builder, x: Tensor, padding: Sequence[int], kind: str) -> Tensor:
    return pad(to, x, padding, "reflect" if kind.startswith("reflection") else "replicate")


@named("constant_pad_nd")
def constant_pad(
    to: Builder, x: Tensor, pad_: Sequence[int] = (), value: float = 0.0, **given: Sequence[int]
) -> Tensor:
    return pad(to, x, given.get("pad", pad_), value=value)


@named("pixel_shuffle")
def pixel_shuffle(to: Builder, x: Tensor, upscale_factor: int, out: Sequence[Size]) -> Tensor:
    found, r = traced(to, x), Size(upscale_factor)
    lead, (channels, rows, columns) = found.sizes[:-3], found.sizes[-3:]
    count = Size(channels.count // upscale_factor**2)
    apart, first = to.viewed(found, [*lead, count, r, r, rows, columns]), len(lead)
    order = [*range(first), *(first + i for i in (0, 3, 1, 4, 2))]
    return to.viewed(traced(to, ordered(to, apart, order)), out)


@named("pixel_unshuffle")
def pixel_unshuffle(to: Builder, x: Tensor, downscale_factor: int, out: Sequence[Size]) -> Tensor:
    found, r = traced(to, x), Size(downscale_factor)
    lead, (channels, _, _) = found.sizes[:-3], found.sizes[-3:]
    apart, first = to.viewed(found, [*lead, channels, out[-2], r, out[-1], r]), len(lead)
    order = [*range(first), *(first + i for i in (0, 2, 4, 1, 3))]
    return to.viewed(traced(to, ordered(to, apart, order)), out)


@named("channel_shuffle")
def channel_shuffle(to: Builder, x: Tensor, groups: int, out: Sequence[Size]) -> Tensor:
    found = traced(to, x)
    n, channels, *rest = found.sizes
    apart = to.viewed(found, [n, Size(groups), Size(channels.count // groups), *rest])
    return to.viewed(traced(to, ordered(to, apart, [0, 2, 1, *range(3, len(apart.dims))])), out)
