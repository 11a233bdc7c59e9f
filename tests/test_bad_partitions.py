"""Partitions that are misspelled, impossible, or of files that do not fit: one message, exit code 2, nothing left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Refused = Callable[..., None]
Command = Callable[..., tuple[int, str, str]]

WRONG: dict[str, tuple[str, ...]] = {
    "dirichelt": ("clients.partition: names 'dirichelt'; did you mean 'dirichlet'? (known: iid, dirichlet, path",),
    "3": ("clients.partition: is 3; it must be a name, or {name: …} with its keys",),
    "{alpha: 1}": ("clients.partition: is {'alpha': 1}, without a name (known: iid",),
    "{name: [iid]}": ("clients.partition: names ['iid']; did you mean 'iid'? (known: iid",),
    "dirichlet": ("clients.partition.alpha: is required",),
    "{name: iid, alpha: 1}": ("clients.partition.alpha: unknown key (known: name, shards)",),
    "{name: dirichlet, alfa: 1}": ("unknown key; did you mean 'alpha'? (known: name, alpha, min_size,",),
    "{name: dirichlet, alpha: 0}": ("clients.partition.alpha: is 0; it should be greater than 0",),
    "{name: dirichlet, alpha: -1.5}": ("clients.partition.alpha: is -1.5; it should be greater than 0",),
    "{name: dirichlet, alpha: 2e5}": ("clients.partition.alpha: is 200000.0; it should be less than or equal to 1000",),
    "{name: dirichlet, alpha: .nan}": ("clients.partition.alpha: is nan; it should be a finite number",),
    "{name: dirichlet, alpha: .inf}": ("clients.partition.alpha: is inf; it should be a finite number",),
    "{name: dirichlet, alpha: 1, size: 4}": ("clients.partition: size is 4; it goes with equal_sizes: true",),
    "{name: dirichlet, alpha: 1, equal_sizes: true, size: 4, min_size: 5}": ("min_size is 5; it must not exceed size",),
    "{name: dirichlet, alpha: 1, equal_sizes: true, self_balancing: false}": (
        "clients.partition: self_balancing is false; it goes with equal_sizes: false",
    ),
    "{name: dirichlet, alpha: 1, min_size: 0}": ("clients.partition.min_size: is 0; it should be greater than 0",),
    "{name: dirichlet, alpha: 1, min_size: 151}": (
        "clients.partition is dirichlet with alpha 1; client",
        "lower clients",
    ),
    "{name: dirichlet, alpha: 1, equal_sizes: true, min_size: 151}": ("clients.partition.min_size is 151; the 1,200",),
    "{name: dirichlet, alpha: 0.05, min_size: 90}": (
        "with fewer than min_size, 90: this was the last of 11 attempts;",
    ),
    "{name: pathological, classes: 11}": ("clients.partition.classes is 11; the training rows have 10 classes",),
    "{name: pathological, classes: 2, assignment: even}": ("assignment: is 'even'; it must be 'random', 'first-",),
    "{name: shards, per_client: 151}": ("clients.partition.per_client is 151; 8 clients need 1208 pieces",),
    "{name: lists}": ("clients.partition.file: is required",),
    "{name: lists, file: gone.json}": ("gone.json: cannot be read (No such file or directory); name a JSON file of",),
    "{name: lists, file: gone.npz}": ("gone.npz: cannot be read (No such file or directory); it must be an NPZ file",),
    "{name: lists, file: .}": (".: cannot be read (it is a folder); name a JSON file",),
}


@pytest.mark.parametrize("partition", WRONG)
def test_a_partition_that_cannot_be(small_yaml: Path, refused: Refused, partition: str) -> None:
    refused("run", small_yaml, f"clients.partition={partition}", says=WRONG[partition])
    assert not Path("results").exists()


def test_more_clients_than_rows(small_yaml: Path, refused: Refused) -> None:
    refused(
        "run", small_yaml, "clients.count=1201", "clients.partition={name: iid, shards: true}",
        says=("clients.count is 1201, and there are 1200 training rows: client 1200 has no data; lower clients.count",),
    )  # fmt: skip
    refused(
        "run", small_yaml, "clients.count=5000", "clients.partition={name: dirichlet, alpha: 1}",
        says=("is the first of ", "clients without data: there are 1,200 training rows", "or give equal_sizes: true"),
    )  # fmt: skip


EIGHT: list[Any] = [[client] for client in range(8)]
LISTS: dict[str, tuple[Any, str]] = {
    "no list": ({"0": [1]}, "holds {'0': [1]}; it must be a JSON file of"),
    "too few": (EIGHT[:7], "holds 7 lists, and clients.count is 8; give one list per client, or clients.count 7"),
    "too many": ([*EIGHT, [1]], "holds 9 lists, and clients.count is 8; give one list per client, or clients.count 9"),
    "empty": ([*EIGHT[:5], [], *EIGHT[6:]], "the list of client 5 is empty; give it a row, or leave the client out"),
    "beyond": (
        [[0, 1200], *EIGHT[1:]],
        "the list of client 0, entry 1, is 1200; rows are 0 … 1199 (data.train is 1200)",
    ),
    "below": ([*EIGHT[:7], [-1]], "the list of client 7, entry 0, is -1; rows are 0 … 1199"),
    "large": ([*EIGHT[:7], [10**30]], f"the list of client 7, entry 0, is {10**30}; rows are 0 … 1199"),
    "fraction": ([*EIGHT[:7], [2, 0.5]], "the list of client 7, entry 1, is 0.5; it must be a row number, an integer"),
    "truth": ([*EIGHT[:7], [True]], "the list of client 7, entry 0, is true; it must be a row number, an integer"),
    "number": ([*EIGHT[:7], 3], "the list of client 7 is 3; it must be a list of row numbers, integers"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_in_json(small_yaml: Path, refused: Refused, name: str) -> None:
    content, says = LISTS[name]
    Path("lists.json").write_text(json.dumps(content), encoding="utf-8")
    refused("run", small_yaml, "clients.partition={name: lists, file: lists.json}", says=(f"lists.json: {says}",))


ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "names": ({f"a{client}": [1] for client in range(8)}, "has an array 'a0' among 8; it must be an NPZ file of"),
    "hole": ({f"arr_{client}": [1] for client in (*range(7), 8)}, "has an array 'arr_8' among 8"),
    "few": ({f"arr_{client}": [1] for client in range(7)}, "holds 7 lists, and clients.count is 8"),
    "floats": ({f"arr_{client}": [1.0] for client in range(8)}, "the list of client 0 is float64 (1,); it must be"),
    "square": ({f"arr_{client}": [[1]] for client in range(8)}, "the list of client 0 is int64 (1, 1); it must be"),
    "beyond": ({f"arr_{client}": [client * 200] for client in range(8)}, "client 6, entry 0, is 1200; rows are 0 …"),
    "objects": ({f"arr_{client}": np.array([None]) for client in range(8)}, "cannot be read (Object arrays"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_lists_in_npz(small_yaml: Path, refused: Refused, name: str) -> None:
    content, says = ARRAYS[name]
    np.savez("lists.npz", **content)
    refused("run", small_yaml, "clients.partition={name: lists, file: lists.npz}", says=("lists.npz: ", says))


@pytest.mark.parametrize("text", ["", "[[0],", "\x80", "[" * 100_000])
def test_what_is_no_json(small_yaml: Path, refused: Refused, text: str) -> None:
    Path("lists.json").write_bytes(text.encode("latin-1"))
    says = ("lists.json: is no JSON (", "name a JSON file of one list of row numbers per client")
    refused("run", small_yaml, "clients.partition={name: lists, file: lists.json}", says=says)


def test_lists_that_have_changed(small_yaml: Path, refused: Refused, command: Command) -> None:
    """A run is of the content that its file had; the file may lie where the run's folder says."""
    Path("lists.json").write_text(json.dumps(EIGHT), encoding="utf-8")
    words = ("run", small_yaml, "clients.partition={name: lists, file: lists.json}", "--quiet", "--out", "one")
    assert command(*words)[0] == 0
    assert command("verify", "one")[0] == 0
    Path("lists.json").write_text(json.dumps(EIGHT[::-1]), encoding="utf-8")
    refused("verify", "one", says=("lists.json: SHA-256 ", "is not clients.partition.sha256", "put the file back"))
    refused("run", "one", "--out", "two", says=("lists.json: SHA-256 ",))
    refused(*words, says=("one",))  # another experiment: its folder is taken
