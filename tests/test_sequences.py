"""Data sets of sequences: sums modulo p, the characters of a text, and users' own tokens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fredsim.config.data import Modular
from fredsim.data.datasets import Dataset, load_dataset, normalized
from fredsim.data.problems import modular
from fredsim.data.sequences import IGNORED
from fredsim.errors import ConfigError, DataError
from fredsim.numerics.streams import philox4x32

TEXT = "the cat sat on the mat; la chatte était là.\n" * 3  # 132 characters


def keys(count: int, seed: int) -> list[int]:
    """Return the keys of the sums, from the words of Philox alone: stream 10, client 3."""
    found = []
    for number in range(count):
        block = philox4x32((number // 2, 0, 3, 0), (seed, 10))
        high, low = (int(block[2 * (number % 2) + word]) for word in (0, 1))
        found.append(high << 32 | low)
    return found


@pytest.mark.parametrize(("p", "terms", "seed"), [(5, 2, 0), (3, 3, 7)])
def test_sums_are_all_sums_in_the_order_of_their_keys(p: int, terms: int, seed: int) -> None:
    data = modular(p, terms, seed, 9, 10)
    rows = np.concatenate([part.x for part in (data.train, data.validation, data.test)])
    answers = np.concatenate([part.y for part in (data.train, data.validation, data.test)])
    order = sorted(range(p**terms), key=keys(p**terms, seed).__getitem__)
    expected = [[int(digit) for digit in np.base_repr(number, p).zfill(terms)] for number in order]
    assert rows.tolist() == [[*row, p] for row in expected]
    assert answers.tolist() == [[IGNORED] * terms + [sum(row) % p] for row in expected]
    assert (len(data.train), len(data.validation), len(data.test)) == (9, 10, p**terms - 19)
    assert (data.classes, data.shape, data.ignored, data.sequences) == (p + 1, (terms + 1,), IGNORED, True)
    assert modular(p, terms, seed, 3, 0).train.x.tolist() == rows[:3].tolist()


def test_more_sums_than_there_are() -> None:
    with pytest.raises(ConfigError, match=r"data.train 20 and data.validation 6 are more than the 25 sums of data.p 5"):
        modular(5, 2, 0, 20, 6)


def test_how_many_sums_there_are_by_default() -> None:
    sums = {(2, 1): (1, 0), (2, 2): (2, 1), (5, 2): (12, 6)}
    for (p, terms), counts in sums.items():
        found = Modular(name="modular", p=p, terms=terms).resolved()
        assert (found.train, found.validation) == counts


def test_a_text_is_rows_of_characters_and_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "cat.txt"
    path.write_text(TEXT, encoding="utf-8")
    data = load_dataset(f"text:{path}", None, None, tmp_path, block=6)
    known = sorted(set(TEXT[: 21 * 6 + 1]))
    parts = (data.train, data.validation, data.test)
    assert [len(part) for part in parts] == [16, 3, 2]  # of 21 rows the last tenth, of 19 the last sixth
    x, y = (np.concatenate([getattr(part, name) for part in parts]).reshape(-1) for name in "xy")
    assert "".join(known[token] for token in x) == TEXT[: 21 * 6]
    assert "".join(known[token] for token in y) == TEXT[1 : 21 * 6 + 1]
    assert (data.classes, data.shape, data.ignored) == (len(known), (6,), None)
    assert load_dataset(f"text:{path}", 5, 1, tmp_path, block=6).train.x.tolist() == x.reshape(-1, 6)[:5].tolist()
    path.write_text(TEXT[1:], encoding="utf-8")  # read again
    again = load_dataset(f"text:{path}", None, None, tmp_path, block=6)
    assert "".join(known[token] for token in again.train.x[0]) == TEXT[1:7]
    for end in ("\r\n", "\r"):  # as other systems end lines, and Git for Windows does when it checks out a text
        path.write_bytes(TEXT[1:].replace("\n", end).encode())
        other = load_dataset(f"text:{path}", None, None, tmp_path, block=6)
        assert other.train.x.tolist() == again.train.x.tolist()
        assert other.train.y.tolist() == again.train.y.tolist()
    path.write_text(TEXT[1:], encoding="utf-8-sig")  # as some editors save it: a byte order mark is no character
    marked = load_dataset(f"text:{path}", None, None, tmp_path, block=6)
    assert (marked.classes, marked.train.x.tolist()) == (again.classes, again.train.x.tolist())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read (No such file or directory); it must be a text file in UTF-8"),
        (b"caf\xe9 and more", "is no UTF-8 at byte 3; it must be a text file in UTF-8"),
        (b"eight ch", "has 8 characters, and a row of data.block 8 needs 9, with the one that follows"),
    ],
)
def test_what_is_no_text(content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_dataset(f"text:{path}", None, None, tmp_path, block=8)
    assert says in str(caught.value)


def test_a_text_that_does_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr("fredsim.data.sequences.machine_memory", lambda: 3000)
    says = r"long.txt: its characters take [\d.]+ kB of memory, and this machine has 3 kB; give a shorter text$"
    with pytest.raises(DataError, match=says):
        load_dataset(f"text:{tmp_path / 'long.txt'}", None, None, tmp_path, block=8)


def tokens(path: Path, **changes: object) -> Dataset:
    x = np.arange(24, dtype=np.uint8).reshape(6, 4) % 5
    arrays = {"x_train": x, "y_train": x.astype(int) - 1, "x_test": x[:2], "y_test": x[:2] % 3} | changes
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return load_dataset(f"npz:{path}", None, None, path.parent)


def test_tokens_of_an_npz_stay_as_they_are(tmp_path: Path) -> None:
    data = tokens(tmp_path / "tokens.npz")
    assert data.train.x.tolist() == [[(4 * m + k) % 5 for k in range(4)] for m in range(5)]
    assert data.train.y.tolist() == [[(4 * m + k) % 5 - 1 for k in range(4)] for m in range(5)]
    assert (data.classes, data.ignored, data.shape, data.unused) == (5, IGNORED, (4,), ())
    assert tokens(tmp_path / "all.npz", y_train=np.full((6, 4), 7)).ignored is None
    zeros = {f"{axis}_{part}": np.zeros((n, 4), int) for axis in "xy" for part, n in (("train", 6), ("test", 2))}
    assert tokens(tmp_path / "one.npz", **zeros).classes == 1
    with pytest.raises(ConfigError, match=r"data.normalize is given, and the samples are tokens; leave it out"):
        normalized(data, (0.0,), (1.0,))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x_train": np.full((6, 4), 0.5)}, "x_train holds float64 from 0.5 to 0.5; it must hold integers from 0"),
        ({"x_test": np.full((2, 4), -1)}, "x_test holds int64 from -1 to -1; it must hold integers from 0"),
        ({"y_train": np.full((6, 4), -2)}, "y_train holds int64 from -2 to -2; it must hold integers from -1"),
        ({"y_train": np.zeros((6, 1), int)}, "or (n, T) and (n, T) of tokens; save y_train.ravel()"),
        ({"y_train": np.eye(6, 3) + np.eye(6, 3, -3)}, "of tokens; if these are one-hot rows, save y_train.argmax(1)"),
        (
            {"x_train": np.zeros((9, 6)), "y_train": np.zeros(6, int)},
            "of tokens; if samples are columns, save x_train.T",
        ),
        ({"y_train": np.zeros((6, 3), int)}, r"x_train has shape (6, 4) and y_train (6, 3); expected (n, …) and (n,)"),
        ({"y_test": np.zeros(2, int)}, "y_train has shape (6, 4) and y_test (2,); give both parts one label a row"),
    ],
)
def test_what_are_no_tokens(changes: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        tokens(tmp_path / "bad.npz", **changes)
    assert says in str(caught.value)


def test_a_sums_order_is_no_pattern() -> None:
    """Answers of the training rows are about equally frequent: their order is random."""
    data = modular(11, 2, 3, 60, 0)
    assert max(Counter(data.train.y[:, -1].tolist()).values()) < 15
