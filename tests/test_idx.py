"""The IDX files of MNIST: where they are looked for, how they are fetched, and what damage is found in them.

Small files of the same form stand for the real ones, so that nothing here needs data or a network.
"""

import gzip
import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.data import datasets, idx
from fredsim.data.datasets import load_dataset, unscaled
from fredsim.data.idx import IdxFile
from fredsim.errors import DataError
from fredsim.runs.verify.first_event import first_event

Refused = Callable[..., None]
Files = dict[str, bytes]
Damage = Callable[[bytes], bytes]

FORM = ("data.name=mnist", "data.train=8", "data.validation=4", "--quiet", "--out", "results")
FIRST = "train-images-idx3-ubyte"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """The uncompressed files of a data set of 12 + 5 images of 4×3, which passes for MNIST."""
    known, contents = {}, {}
    for number, (key, file) in enumerate(idx.FILES.items()):
        shape = (12 if key.startswith("train") else 5, *(4, 3)[: len(file.shape) - 1])
        values = (np.arange(np.prod(shape)) * 7 + number) % (256 if key.endswith("x") else 10)
        header = struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape)
        content = header + values.astype(np.uint8).tobytes()
        known[key] = IdxFile(file.name, hashlib.md5(content, usedforsecurity=False).hexdigest(), shape)
        contents[file.name] = content
    monkeypatch.setattr(idx, "FILES", known)
    return contents


def write(folder: Path, files: Files, pack: Damage = gzip.compress, suffix: str = ".gz") -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}{suffix}").write_bytes(pack(content))


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (bytes, "")], ids=["gzipped", "raw"])
def test_layouts(folder: str, pack: Damage, suffix: str, files: Files, tmp_path: Path) -> None:
    write(tmp_path / folder, files, pack, suffix)
    data = load_dataset("mnist", 7, 4, tmp_path)
    assert (data.train.x.shape, data.validation.x.shape, data.test.x.shape) == ((7, 12), (4, 12), (5, 12))
    pixels = np.frombuffer(files[FIRST][16:], np.uint8).reshape(12, 12)
    assert np.array_equal(data.train.x, pixels[:7].astype(np.float32) / np.float32(255))
    assert np.array_equal(data.validation.x, pixels[8:].astype(np.float32) / np.float32(255))
    assert data.test.y.tolist() == list(files["t10k-labels-idx1-ubyte"][8:])
    assert np.array_equal(unscaled(data).train.x, pixels[:7])


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no header": (lambda data: data[:9], "truncated: 9 bytes, too few for a header"),
    "empty": (lambda data: b"", "truncated: 0 bytes"),
    "truncated": (lambda data: data[:-5], "truncated: 155 bytes of 160"),
    "magic number": (lambda data: b"\0\0\x0d\x03" + data[4:], "wrong magic number 0x00000d03; expected 0x00000803"),
    "shape": (
        lambda data: data[:8] + b"\0\0\0\x06" + data[12:],
        "its header gives shape (12, 6, 3); expected (12, 4, 3)",
    ),
    "one bit": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "wrong digest: MD5 "),
    "too long": (lambda data: data + b"\0", "wrong digest: MD5 "),
}
DAMAGES_OF_GZIP: dict[str, tuple[Damage, str]] = {
    "gzip truncated": (lambda data: data[:-12], "cannot be read (Compressed file ended"),
    "no gzip": (lambda data: b"<html>not found</html>", "cannot be read (Not a gzipped file"),
    "gzip header alone": (lambda data: data[:10], "cannot be read (Compressed file ended"),
    "gzip damaged": (lambda data: data[:10] + b"\xff" * (len(data) - 10), "cannot be read (Error -3"),
    "gzip check sum": (lambda data: data[:-8] + b"\0" * 8, "cannot be read (CRC check failed"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (bytes, "")], ids=["gzipped", "raw"])
def test_damage(
    damage: Damage, says: str, pack: Damage, suffix: str, files: Files, small_yaml: Path, refused: Refused
) -> None:
    write(small_yaml.with_name("mnist"), files | {FIRST: damage(files[FIRST])}, pack, suffix)
    path = small_yaml.with_name("mnist") / f"{FIRST}{suffix}"
    refused("run", small_yaml, *FORM, "--data-root", small_yaml.parent, says=(f"{path}: {says}", "delete it"))


@pytest.mark.parametrize(("damage", "says"), DAMAGES_OF_GZIP.values(), ids=DAMAGES_OF_GZIP)
def test_damage_of_a_gzipped_file(
    damage: Damage, says: str, files: Files, small_yaml: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(small_yaml.with_name("mnist"), files)
    path = small_yaml.with_name("mnist") / f"{FIRST}.gz"
    path.write_bytes(damage(path.read_bytes()))
    monkeypatch.setenv("FREDSIM_DATA", str(small_yaml.parent))
    refused("run", small_yaml, *FORM, says=(f"{path}: {says}", "delete it"))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Make these folders the mirrors, each behind a web server of this machine."""
    servers: list[ThreadingHTTPServer] = []

    def begin(*folders: Path) -> None:
        for folder in folders:
            server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
            servers.append(server)
        addresses = tuple(f"http://127.0.0.1:{server.server_port}/" for server in servers)
        monkeypatch.setattr(idx, "MIRRORS", addresses)

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def test_download(files: Files, serve: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "mirror", files)
    serve(tmp_path / "mirror")
    data = load_dataset("mnist", 8, 4, tmp_path / "root")
    assert len(data.train) == 8
    arrived = {path.name: path.read_bytes() for path in (tmp_path / "root" / "mnist").iterdir()}
    assert {name: gzip.decompress(content) for name, content in arrived.items()} == {
        f"{name}.gz": content for name, content in files.items()
    }


def test_download_of_the_real_files(mnist_root: str, serve: Callable[..., None], tmp_path: Path) -> None:
    mirror = Path(mnist_root) / "mnist"
    if not (mirror / f"{FIRST}.gz").is_file():
        pytest.skip("FREDSIM_DATA holds MNIST, but not gzipped")
    serve(mirror)
    assert load_dataset("mnist", 50000, 10000, tmp_path).inputs == 784
    for cached in (datasets._load, datasets._read):
        cached.cache_clear()
    for path in (tmp_path / "mnist").iterdir():
        assert path.read_bytes() == (mirror / path.name).read_bytes()


@pytest.mark.parametrize(
    "damaged",
    [lambda packed: packed[:-9], lambda packed: b"<html>", lambda packed: gzip.compress(b"other"), None],
    ids=["truncated", "another file", "other content", "not found"],
)
def test_a_mirror_that_fails_is_passed_over(
    damaged: Damage | None, files: Files, serve: Callable[..., None], tmp_path: Path
) -> None:
    write(tmp_path / "bad", files if damaged else {}, lambda content: (damaged or bytes)(gzip.compress(content)))
    write(tmp_path / "good", files)
    serve(tmp_path / "bad", tmp_path / "good")
    assert len(load_dataset("mnist", 8, 4, tmp_path / "root").test) == 5
    assert sorted(path.name for path in (tmp_path / "root" / "mnist").iterdir()) == sorted(f"{n}.gz" for n in files)


def test_only_damaged_mirrors(files: Files, serve: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "bad", files, lambda content: gzip.compress(content[:-1]))
    serve(tmp_path / "bad")
    with pytest.raises(DataError, match="could not be downloaded"):
        load_dataset("mnist", 8, 4, tmp_path / "root")
    assert list((tmp_path / "root" / "mnist").iterdir()) == []


def test_a_file_in_place_of_the_folder(tmp_path: Path, serve: Callable[..., None]) -> None:
    """There is no folder from which what has arrived could be removed."""
    serve(tmp_path)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "mnist").write_bytes(b"")
    with pytest.raises(DataError, match=r"mnist: train-images-idx3-ubyte is not in .* and could not be downloaded"):
        load_dataset("mnist", None, None, tmp_path / "root")


def test_no_network_and_no_data(
    files: Files, small_yaml: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/"
    monkeypatch.setattr(idx, "MIRRORS", (closed,))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = small_yaml.parent / "root" / "mnist"
    says = (
        f"mnist: {next(iter(files))} is not in {folder} and could not be downloaded ({closed}: ConnectionError)",
        f"put the four IDX files, gzipped or not, into {folder}",
        "another data root by --data-root or FREDSIM_DATA",
    )
    refused("run", small_yaml, *FORM, "--data-root", folder.parent, says=says)
    assert list(folder.iterdir()) == []
    assert not small_yaml.with_name("results").exists()


def test_a_comparison_finds_the_data_of_both_runs(
    files: Files, small_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they lie: the first event that differs comes of a repetition."""
    roots = []

    def found_there(*given: Any, root: Path, **more: Any) -> str:
        roots.append(root)
        return first_event(*given, root=root, **more)

    monkeypatch.setattr("fredsim.show.comparing.first_event", found_there)
    write(small_yaml.parent / "data" / "mnist", files)
    keys = [key for key in FORM if "=" in key]
    runs = [fredsim.run(small_yaml, [*keys, f"seed={n}"], f"run{n}", data_root="data") for n in (0, 1)]
    (found,) = runs[0].compare(runs[1], data_root="data")
    assert found.endswith("config.yaml: seed is 0 and 1; the parameters differ before the first event")
    assert roots == [Path("data")]
