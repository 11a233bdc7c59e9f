"""The key `clients.partition`: which training rows each client has; one class per name (see docs/shards.md)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from fredsim.data.partitions.dirichlet import dirichlet, dirichlet_of_equal_sizes
from fredsim.data.partitions.lists import read_lists
from fredsim.data.partitions.schemes import Assignment, iid, pathological, sorted_shards
from fredsim.data.partitions.shards import Shards
from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters, PositiveInt, Printable, spelled_out
from fredsim.numerics.streams import Streams
from fredsim.system.files import content_digest

__all__ = ["PARTITIONS", "Iid", "Lists", "Partition", "PartitionChoice", "make_shards", "with_file_digest"]


class Partition(HyperParameters):
    """How the training rows are divided into shards, one for each client."""

    #: Whether the partition depends on the rows' classes.
    by_class: ClassVar[bool] = True
    citation: ClassVar[str] = ""

    def assign(self, labels: Any, clients: int, streams: Streams) -> Shards | None:
        """Return the shards of rows with these labels, int64 (n,); None if all clients share all rows.

        Raises ConfigError if these rows cannot be divided so, DataError for a file that does not fit.
        """
        raise NotImplementedError


class Iid(Partition):
    """All clients share all rows; with `shards`, equal parts of a random order of the rows."""

    by_class = False
    name: Literal["iid"] = "iid"
    shards: bool = False
    """True: a permutation of the rows is cut into one shard per client."""

    def assign(self, labels: Any, clients: int, streams: Streams) -> Shards | None:
        """Cut a permutation of the rows, or return None, if all clients share all rows."""
        return iid(len(labels), clients, streams) if self.shards else None


class Dirichlet(Partition):
    """Each class is divided among clients by proportions from Dirichlet(alpha); or each client's mix is drawn so."""

    citation = "Yurochkin et al. 2019, arXiv:1905.12022"
    name: Literal["dirichlet"]
    alpha: Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)]
    """The concentration: if it is small, a client has few classes; if it is large, all clients have the same mix."""
    min_size: PositiveInt = 1
    """As long as a client has fewer samples than this, everything is drawn again, ten times at most."""
    self_balancing: bool = True
    """Whether a client that has more than n/λ samples gets no samples of the classes after that."""
    equal_sizes: bool = False
    """True: each client draws its label mix, and its samples from that mix; clients may then share samples."""
    size: PositiveInt | None = None
    """With `equal_sizes`, the number of each client's samples; null: n/λ, but at least 1."""

    @model_validator(mode="after")
    def check(self) -> Self:
        """Refuse keys that would have no effect, or contradict each other."""
        if self.size is not None and not self.equal_sizes:
            raise ValueError(f"size is {self.size}; it goes with equal_sizes: true")
        if self.equal_sizes and not self.self_balancing:
            raise ValueError("self_balancing is false; it goes with equal_sizes: false")
        if self.size is not None and self.min_size > self.size:
            raise ValueError(f"min_size is {self.min_size}; it must not exceed size, {self.size}")
        return self

    def assign(self, labels: Any, clients: int, streams: Streams) -> Shards:
        """Draw the shards, or return shards that are drawn when they are needed."""
        if not self.equal_sizes:
            return dirichlet(labels, clients, streams, self.alpha, self.min_size, self_balancing=self.self_balancing)
        size = self.size or max(1, len(labels) // clients)
        if self.min_size > size:
            what = f"the {len(labels):,} training rows are {size} per client; give size, or lower min_size"
            raise ConfigError(f"clients.partition.min_size is {self.min_size}; {what}")
        return dirichlet_of_equal_sizes(labels, clients, streams, self.alpha, size)


class Pathological(Partition):
    """Each client has a few classes; the rows of a class are divided evenly among the clients that have it."""

    citation = "McMahan et al. 2017, arXiv:1602.05629; Li et al. 2022, arXiv:2102.02079"
    name: Literal["pathological"]
    classes: PositiveInt
    """The number of each client's classes."""
    assignment: Assignment = "random"
    """`random`: each client draws its classes; `deterministic`: client i has classes i, i + 1, …;
    `first-deterministic`: client i has class i, and draws the others."""

    def assign(self, labels: Any, clients: int, streams: Streams) -> Shards:
        """Assign classes to clients, and divide the rows of each class."""
        return pathological(labels, clients, streams, self.classes, self.assignment)


class SortedShards(Partition):
    """The rows are sorted by label and cut into pieces, which are assigned to the clients at random."""

    citation = "McMahan et al. 2017, arXiv:1602.05629"
    name: Literal["shards"]
    per_client: PositiveInt
    """The number of pieces of the sorted rows that each client gets."""

    def assign(self, labels: Any, clients: int, streams: Streams) -> Shards:
        """Sort the rows, cut them, and assign the pieces at random."""
        return sorted_shards(labels, clients, streams, self.per_client)


class Lists(Partition):
    """A user's own lists of rows, one for each client."""

    by_class = False
    name: Literal["lists"]
    file: Printable
    """A JSON file with one list of row numbers per client, or an NPZ file with arrays arr_0, arr_1, …"""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The SHA-256 of the file: filled in if it is null, otherwise checked."""

    def assign(self, labels: Any, clients: int, streams: Streams) -> Shards:
        """Read the shards from the file."""
        return read_lists(self.file, self.sha256, len(labels), clients)


PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "pathological": Pathological,
    "shards": SortedShards,
    "lists": Lists,
}


def _spelled_out(value: Any) -> Any:
    return value if isinstance(value, Partition) else spelled_out(value, PARTITIONS)


def _kind(value: Any) -> str:
    name = value["name"] if isinstance(value, dict) else value.name
    return PARTITIONS[name].__name__


AnyPartition = Annotated[
    Annotated[Iid, Tag("Iid")]
    | Annotated[Dirichlet, Tag("Dirichlet")]
    | Annotated[Pathological, Tag("Pathological")]
    | Annotated[SortedShards, Tag("SortedShards")]
    | Annotated[Lists, Tag("Lists")],
    Discriminator(_kind),
]
PartitionChoice = Annotated[
    AnyPartition, BeforeValidator(_spelled_out, json_schema_input_type=AnyPartition | Literal["iid"])
]


def with_file_digest(choice: PartitionChoice) -> PartitionChoice:
    """Return the choice with the SHA-256 of its file filled in, if it has a file and no SHA-256."""
    if isinstance(choice, Lists) and choice.sha256 is None:
        return choice.model_copy(update={"sha256": content_digest(choice.file)})
    return choice


def make_shards(choice: PartitionChoice, labels: Any, clients: int, seed: int) -> Shards | None:
    """Return which client has which rows, given the rows' labels (n,); None if all clients share all rows.

    Raises ConfigError if the partition needs classes that the rows do not have, or is not possible for them; DataError
    for a file.
    """
    if choice.by_class and (labels.dtype.kind not in "iu" or labels.ndim > 1):
        found = f"{labels.dtype}" if labels.ndim == 1 else "several for each row"
        if labels.ndim == 2 and labels.dtype == np.int32:
            found = "one for each token of a sequence"
        what = f"the data set's labels are {found}, not classes"
        raise ConfigError(f"clients.partition is {choice.name}; {what}: choose another data set, or iid")
    if choice.by_class:  # read once, if they are not in memory
        labels = np.asarray(labels)
    return choice.assign(labels, clients, Streams(seed))
