"""The data sets as a run sees them: shapes, values, splits."""

import gzip
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest

import fredsim
from fredsim.data import datasets, idx, squares
from fredsim.data.datasets import Dataset, data_root, load_dataset, normalized, unscaled
from fredsim.errors import ConfigError, DataError
from fredsim.runs.folder.results import Result

Refused = Callable[..., None]
FIRST_LABELS = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
FIRST_TEST_LABELS = [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Let go of the data sets that are kept for the next run: MNIST takes 220 MB."""
    yield
    for cached in (datasets._load, datasets._read):
        cached.cache_clear()


def sizes(data: Dataset) -> tuple[int, int, int]:
    return len(data.train), len(data.validation), len(data.test)


def check_types(data: Dataset) -> None:
    for part in (data.train, data.validation, data.test):
        assert (part.x.dtype.name, part.y.dtype.name) == ("float32", "int64")
        assert part.x.min() >= 0
        assert part.x.max() <= 1


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: b"",
        lambda whole: whole[:-100],
        lambda whole: b"0,1\n",
        lambda whole: gzip.compress(b"0,1\n"),
        lambda whole: gzip.compress(b"0,1\n2\n"),
    ],
)
def test_digits_that_are_damaged(
    change: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "digits.gz"
    path.write_bytes(change(datasets.DIGITS.read_bytes()))
    monkeypatch.setattr(datasets, "DIGITS", path)
    for cached in (datasets._load, datasets._read):
        cached.cache_clear()
    with pytest.raises(DataError, match=r"digits.gz: .*; install fredsim again"):
        load_dataset("digits", None, None, tmp_path)


def test_digits(tmp_path: Path) -> None:
    data = load_dataset("digits", None, None, tmp_path)
    assert (sizes(data), data.inputs, data.shape, data.classes) == ((1200, 297, 300), 64, (1, 8, 8), 10)
    check_types(data)
    assert (data.train.x[0] * 16).reshape(8, 8)[1].tolist() == [0, 0, 13, 15, 10, 15, 5, 0]
    assert np.array_equal(np.unique(data.train.x), np.arange(17, dtype=np.float32) / np.float32(16))
    assert data.train.y[:10].tolist() == list(range(10))
    assert data.test.y[:10].tolist() == [6, 3, 2, 1, 7, 4, 6, 3, 1, 3]


def test_mishchenko_takes_all_rows_that_its_publication_has(tmp_path: Path) -> None:
    """And 1,000 each to validate and to test on, drawn after them."""
    data = load_dataset("mishchenko", None, None, tmp_path)
    assert (sizes(data), data.inputs) == ((10_000, 1_000, 1_000), 400)


def test_a_numpy_that_draws_other_numbers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squares, "SEED", 43)
    with pytest.raises(DataError, match=r"^mishchenko: NumPy .* draws other numbers .*; install another NumPy, or "):
        squares.mishchenko_rows()


def test_the_training_rows_come_first_and_the_validation_rows_last(tmp_path: Path) -> None:
    usual = load_dataset("digits", None, None, tmp_path)
    other = load_dataset("digits", 900, 350, tmp_path)
    assert sizes(other) == (900, 350, 300)
    assert np.array_equal(other.train.x, usual.train.x[:900])
    assert np.array_equal(other.validation.x[-297:], usual.validation.x)
    assert np.array_equal(other.validation.x[:53], usual.train.x[1147:])
    whole = load_dataset("digits", 1497, 0, tmp_path)
    assert sizes(whole) == (1497, 0, 300)
    assert np.array_equal(whole.train.x[1200:], usual.validation.x)
    with pytest.raises(ConfigError, match=r"data.train 1400 and data.validation 297 overlap: .* 1497 rows; lower one"):
        load_dataset("digits", 1400, None, tmp_path)
    assert sizes(load_dataset("digits", None, 400, tmp_path)) == (1097, 400, 300)
    assert sizes(load_dataset("digits", None, 20, tmp_path)) == (1200, 20, 300)


def test_more_validation_rows_leave_fewer_to_train_on(simulate: Callable[..., Result], tmp_path: Path) -> None:
    given = {"data": {"name": "digits", "validation": 400}}
    assert simulate(given).config["data"] == simulate({"data": given["data"] | {"train": 1097}}).config["data"]
    x, y = np.zeros((36, 2), np.float32), np.arange(36) % 2
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    for validation, train in ((3, 30), (12, 24), (35, 1)):
        assert sizes(load_dataset(f"npz:{tmp_path / 'few.npz'}", None, validation, tmp_path)) == (train, validation, 36)


def test_overlap_on_the_command_line(small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, "data.train=1400", says=("data.train 1400 and data.validation 297 overlap", "lower one"))
    for rows in (1497, 2000):
        says = f"data.train 1200 and data.validation {rows} overlap: the training part has 1497 rows"
        refused("run", small_yaml, f"data.validation={rows}", says=(says,))


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [("/a", "/b", "/a"), (None, "/b", "/b"), (None, "", None), (None, None, None)],
)
def test_data_root(
    given: str | None, variable: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: f"/cache/{name}")
    monkeypatch.delenv("FREDSIM_DATA", raising=False)
    if variable is not None:
        monkeypatch.setenv("FREDSIM_DATA", variable)
    assert data_root(given) == Path(expected or "/cache/fredsim/data")


def check_mnist(data: Dataset) -> None:
    assert (sizes(data), data.inputs, data.shape, data.classes) == ((50000, 10000, 10000), 784, (1, 28, 28), 10)
    check_types(data)
    assert np.flatnonzero(data.train.x[0])[:3].tolist() == [152, 153, 154]
    assert np.array_equal(data.train.x[0, 152:157], np.array([3, 18, 18, 18, 126], np.float32) / np.float32(255))
    assert (data.train.x[0] * 255).sum() == 27525
    assert data.train.y[:10].tolist() == FIRST_LABELS
    assert data.test.y[:10].tolist() == FIRST_TEST_LABELS
    assert np.bincount(data.train.y).tolist() == [4932, 5678, 4968, 5101, 4859, 4506, 4951, 5175, 4842, 4988]


def test_mnist(mnist_root: str) -> None:
    check_mnist(load_dataset("mnist", None, None, Path(mnist_root)))


def contents(root: str) -> dict[str, bytes]:
    found = {}
    for file in idx.FILES.values():
        path = idx.find_idx(file, Path(root))
        found[file.name] = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return found


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_mnist_uncompressed(folder: str, mnist_root: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    for name, content in contents(mnist_root).items():
        (tmp_path / folder / name).write_bytes(content)
    check_mnist(load_dataset("mnist", None, None, tmp_path))


def write_npz(path: Path, x_type: type = np.uint8, y_type: type = np.int64, **changes: object) -> None:
    """Write 12 + 2 samples of 3×2 in 4 classes; a change of None leaves the array out."""
    arrays: dict[str, object] = {}
    for part, count in (("train", 12), ("test", 2)):
        arrays[f"x_{part}"] = (np.arange(count * 6) * 3).reshape(count, 3, 2).astype(x_type)
        arrays[f"y_{part}"] = (np.arange(count) % 4).astype(y_type)
    np.savez(path, **{key: value for key, value in (arrays | changes).items() if value is not None})  # type: ignore[arg-type]


@pytest.mark.parametrize("y_type", [np.int64, np.uint8, np.uint64])
@pytest.mark.parametrize(
    ("x_type", "divisor"), [(np.uint8, 255), (np.int32, 1), (np.float32, 1), (np.float64, 1), (np.bool_, None)]
)
def test_npz(x_type: type, divisor: int | None, y_type: type, tmp_path: Path) -> None:
    write_npz(tmp_path / "data.npz", x_type, y_type)
    data = load_dataset(f"npz:{tmp_path / 'data.npz'}", None, None, tmp_path)
    assert (sizes(data), data.inputs, data.shape, data.classes) == (
        (10, 2, 2),
        6,
        (3, 2),
        4,
    )  # the last sixth validates
    assert (data.train.x.dtype.name, data.train.y.dtype.name) == ("float32", "int64")
    values = np.arange(60, dtype=np.float32) * np.float32(3)
    expected = (values != 0).astype(np.float32) if divisor is None else values / np.float32(divisor)
    assert np.array_equal(data.train.x.reshape(-1), expected)
    assert data.validation.y.tolist() == [2, 3]
    assert sizes(load_dataset(f"npz:{tmp_path / 'data.npz'}", 5, 7, tmp_path)) == (5, 7, 2)


@pytest.mark.parametrize("x_type", [np.uint8, np.int32, np.float32])
def test_samples_as_they_are_in_the_file(x_type: type, tmp_path: Path) -> None:
    write_npz(tmp_path / "data.npz", x_type)
    data = unscaled(load_dataset(f"npz:{tmp_path / 'data.npz'}", 10, 2, tmp_path))
    assert data.train.x.reshape(-1).tolist() == [3.0 * k if x_type != np.uint8 else 3 * k % 256 for k in range(60)]
    assert (data.train.x.dtype.name, data.train.divisor) == ("float32", 0)


def test_values_less_their_mean_over_their_standard_deviation(tmp_path: Path, small_yaml: Path) -> None:
    path = tmp_path / "data.npz"
    write_npz(path, x_train=(np.arange(144) % 7).reshape(12, 3, 2, 2), x_test=np.arange(24).reshape(2, 3, 2, 2))
    plain = load_dataset(f"npz:{path}", None, None, tmp_path)
    means, stds = [0.5, 1.25, -2.0], [0.3, 1.5, 2.0]
    for mean, std in (([0.1307], [0.3081]), (means, stds), ([0.1], stds), (means, [0.3])):
        found = normalized(plain, tuple(mean), tuple(std))
        assert normalized(plain, tuple(mean), tuple(std)) is found  # the runs of a sweep share it
        for part in ("train", "validation", "test"):
            x, other = getattr(plain, part).x, getattr(found, part).x
            for channel in range(3):
                here = slice(4 * channel, 4 * channel + 4)
                minus, by = (np.float32(numbers[channel % len(numbers)]) for numbers in (mean, std))
                assert np.array_equal(other[:, here], (x[:, here] - minus) / by)
            assert other.dtype == np.float32
            assert getattr(found, part).y is getattr(plain, part).y
    none = normalized(load_dataset(f"npz:{path}", 12, 0, tmp_path), tuple(means), tuple(stds))
    assert (none.validation.x.shape, none.validation.x.dtype.name) == ((0, 12), "float32")
    key = "data.normalize={mean: 0.3, std: 0.37}"
    runs = [fredsim.run(small_yaml, [key, f"backend={backend}"], out=backend) for backend in ("numba", "numpy")]
    plainly = fredsim.run(small_yaml, ["data.normalize=null"], out="plain")
    assert len({run.summary["digest"] for run in runs}) == 1
    assert runs[0].summary["data"] != plainly.summary["data"]
    assert "normalize" not in plainly.config["data"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{mean: 0.1, std: 0}", "data.normalize.std: is 0; it should be greater than 0"),
        ("{mean: [0.1, 2], std: 1}", "data.normalize.mean has 2 numbers, and a sample 1 channel"),
        ("{mean: 0.1, std: [1, 2, 3]}", "data.normalize.std has 3 numbers"),
        ("{mean: 0.1, std: 1e-45}", "data.normalize.std is [1e-45]; a value is not finite in float32 then"),
        ("{mean: .nan, std: 1}", "data.normalize.mean: is nan; it should be a finite number"),
        ("{mean: 1}", "data.normalize.std: is required"),
    ],
)
def test_normalization_that_cannot_be(given: str, says: str, small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, f"data.normalize={given}", "--quiet", says=(says,))


def test_normalization_of_images_with_their_channels_last(small_yaml: Path, refused: Refused) -> None:
    x = np.zeros((9, 6, 5, 3))
    np.savez("last.npz", x_train=x, y_train=np.arange(9), x_test=x, y_test=np.arange(9))
    data = "data={name: 'npz:last.npz', normalize: {mean: [0.1, 0.2, 0.3], std: 1}}"
    says = ("and a sample 6 channels (its shape is (6, 5, 3))", "with their channels first: x.transpose(0, 3, 1, 2)")
    refused("run", small_yaml, data, "--quiet", says=says)
    with pytest.raises(ConfigError, match=r"has 2 numbers, .*; give one number, or one per channel$"):
        normalized(load_dataset("npz:last.npz", None, None, Path()), (0.1, 0.2), (1.0,))


def test_npz_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    write_npz(path)
    assert load_dataset(f"npz:{path}", None, None, tmp_path).classes == 4
    write_npz(path, y_train=np.full(12, 6), x_test=np.zeros((0, 6)), y_test=np.zeros(0, np.int64))
    assert load_dataset(f"npz:{path}", None, None, tmp_path).classes == 7


@pytest.mark.parametrize("kind", ["npz", "text"])
def test_data_that_is_not_what_its_digest_says(kind: str, tmp_path: Path) -> None:
    path, block = tmp_path / f"own.{kind}", 8 * (kind == "text")

    def written(rows: int) -> str:
        if kind == "npz":
            write_npz(path, x_test=np.zeros((rows, 3, 2), np.uint8), y_test=np.zeros(rows, np.int64))
        else:
            path.write_text("ab" * (900 + rows), encoding="utf-8")
        return hashlib.sha256(path.read_bytes()).hexdigest()

    before = written(1)
    assert len(load_dataset(f"{kind}:{path}", None, None, tmp_path, before, block).train)
    now = written(2)
    says = f"^{path}: SHA-256 {now} is not data.sha256, {before}; put the file back, or change the key$"
    with pytest.raises(DataError, match=says):
        load_dataset(f"{kind}:{path}", None, None, tmp_path, before, block)


DAMAGES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "an array missing": ({"y_test": None}, ("has no array 'y_test' (arrays: x_train, y_train, x_test)", "numpy.savez")),
    "objects": ({"x_train": np.array([{}] * 12, object)}, ("cannot be read (Object arrays", "numpy.savez")),
    "labels below 0": ({"y_train": np.full(12, -1)}, ("y_train holds int64 from -1 to -1", "integers from 0")),
    "labels too large": ({"y_test": np.full(2, 2**63, np.uint64)}, ("y_test holds uint64 from 9223", "integers from")),
    "labels that are no integers": ({"y_train": np.zeros(12)}, ("y_train holds float64", "integers from 0")),
    "labels that are too few": (
        {"y_train": np.zeros(11, int)},
        ("shape (12, 3, 2) and y_train (11,); expected (n, …)",),
    ),
    "NaN": ({"x_train": np.full((12, 6), np.nan)}, ("x_train holds a value that is not finite in float32", "remove")),
    "beyond float32": ({"x_test": np.full((2, 6), 1e300)}, ("x_test holds a value that is not finite in float32",)),
    "strings": ({"x_train": np.full((12, 6), "a")}, ("x_train holds <U1; it must hold real numbers",)),
    "complex numbers": ({"x_train": np.zeros((12, 6), complex)}, ("x_train holds complex128; it must hold real",)),
    "samples of two lengths": ({"x_test": np.zeros((2, 5))}, ("6 values in x_train and 5 in x_test; they must agree",)),
    "axes in another order": (
        {"x_test": np.zeros((2, 2, 3), np.uint8)},
        ("x_train has shape (12, 3, 2) and x_test (2, 2, 3); give the axes of a sample in one order",),
    ),
    "samples of no length": ({"x_train": np.zeros((12, 0))}, ("shape (12, 0) and y_train (12,); expected (n, …)",)),
    "no training rows": ({"x_train": np.zeros((0, 6)), "y_train": np.zeros(0, int)}, ("x_train has no rows",)),
}


@pytest.mark.parametrize(("changes", "says"), DAMAGES.values(), ids=DAMAGES)
def test_bad_npz(changes: dict[str, object], says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    write_npz(small_yaml.with_name("bad.npz"), **changes)  # type: ignore[arg-type]
    refused("run", small_yaml, "data.name=npz:bad.npz", "--quiet", says=("bad.npz: ", *says))
    assert not small_yaml.with_name("results").exists()


@pytest.mark.parametrize("shape", [(2, 6), (2, 1, 3, 2), (2, 3, 1, 2)])
def test_an_npz_whose_parts_have_the_same_samples_in_other_shapes(
    shape: tuple[int, ...], small_yaml: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    write_npz(small_yaml.with_name("own.npz"), x_test=np.zeros(shape, np.uint8))
    assert command("run", small_yaml, "data.name=npz:own.npz", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read (No such file"), (b"", "is no NPZ file"), (b"text", "is no NPZ file")],
)
def test_no_npz(content: bytes | None, says: str, small_yaml: Path, refused: Refused) -> None:
    if content is not None:
        small_yaml.with_name("bad.npz").write_bytes(content)
    refused("run", small_yaml, "data.name=npz:bad.npz", says=(f"bad.npz: {says}", "must be an NPZ file"))


def test_damaged_npz(small_yaml: Path, refused: Refused) -> None:
    path = small_yaml.with_name("bad.npz")
    write_npz(path)
    content = bytearray(path.read_bytes())
    content[150] ^= 0xFF
    for damaged, says in ((content, "Bad CRC-32"), (content[:-30], "a truncated one")):
        path.write_bytes(damaged)
        refused("run", small_yaml, "data.name=npz:bad.npz", says=("bad.npz: ", says, "must be an NPZ file"))


def test_a_minibatch_larger_than_the_training_rows_of_an_npz(small_yaml: Path, refused: Refused) -> None:
    write_npz(small_yaml.with_name("data.npz"))
    says = ("clients.batch_size is 11; it must not exceed the 10 training rows (data.train)",)
    refused("run", small_yaml, "data.name=npz:data.npz", "clients.batch_size=11", says=says)


def test_an_npz_of_bytes_and_of_numbers(
    small_yaml: Path, refused: Refused, command: Callable[..., tuple[int, str, str]]
) -> None:
    """Bytes alone are divided by 255; a part without rows is of no type."""
    x, y = np.zeros((12, 3)), np.arange(12) % 2
    np.savez("mixed.npz", x_train=x.astype(np.uint8), y_train=y, x_test=x, y_test=y)
    data = "data={name: npz:mixed.npz, train: 8, validation: 4}"
    says = "mixed.npz: x_train holds uint8 and x_test float64; save both as bytes (uint8)"
    refused("run", small_yaml, data, says=(says,))
    parts: dict[str, tuple[Any, Any]] = {"bytes": (x.astype(np.uint8), x[:0]), "numbers": (x.astype(np.float32), x)}
    for name, (train, test) in parts.items():
        np.savez(f"{name}.npz", x_train=train, y_train=y, x_test=test, y_test=y[: len(test)])
        assert command("run", small_yaml, data.replace("mixed", name), "--quiet", "--out", name)[0] == 0
