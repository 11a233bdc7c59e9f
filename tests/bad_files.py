"""Random bad data files: NPZ and IDX files.

If a damaged file can be read, the result must be what was written before the damage.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fredsim
from fredsim.data.idx import FILES, IdxFile
from tests.bad_cases import BASE, Case, Outcome, as_yaml, damaged

__all__ = ["RUN", "SMALL_MNIST", "an_idx_file", "an_npz_file", "claiming"]

RUN = ["run", "x.yaml", "--quiet", "--out", "out"]
Files = Mapping[str, bytes]


def digest_in(folder: Path) -> str:
    return str(json.loads((folder / "out" / "summary.json").read_bytes())["digest"])


@functools.cache
def digest_of(data: str, suffix: str) -> str:
    """Return the digest that an experiment ends with if its data files are intact."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        whole = npz_files() if suffix == "npz" else idx_files()
        for name, content in whole.items():
            path = Path(folder, "mnist" if suffix == "idx" else "", name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        name = json.loads(data)["data"]["name"].replace(":", f":{folder}/")
        experiment = json.loads(data) | {"data": json.loads(data)["data"] | {"name": name}}
        result = fredsim.run(experiment, out=Path(folder, "out"), data_root=folder)
        assert isinstance(result, fredsim.Result)
        return str(result.summary["digest"])


def same_digest(data: Mapping[str, Any], suffix: str) -> Callable[[Outcome], str]:
    """Return a judge: if the damaged file was read, the digest must be that of the intact one."""

    def judge(outcome: Outcome) -> str:
        if outcome.code != 0:
            return ""
        whole, found = digest_of(json.dumps(data), suffix), digest_in(outcome.folder)
        return "" if found == whole else f"it was read, and is not what was written: {found} for {whole}"

    return judge


# NPZ files

NPZ = BASE | {"data": {"name": "npz:data.npz"}}


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y = rng.random((24, 3), np.float32), rng.integers(0, 4, 24)
    return {"x_train": x[:20], "y_train": y[:20], "x_test": x[20:], "y_test": y[20:]}


@functools.cache
def npz_files(packed: bool = False) -> Files:
    buffer = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(buffer, **arrays())
    return {"data.npz": buffer.getvalue()}


def an_npz_file(rng: random.Random) -> Case:
    """Damage an NPZ file, or write an invalid one."""
    files, judge = {"x.yaml": as_yaml(NPZ, "")}, None
    if rng.random() < 0.5:
        content, judge = damaged(rng, npz_files(rng.random() < 0.5)["data.npz"]), same_digest(NPZ, "npz")
    elif rng.random() < 0.4:
        content = other_members(rng)
    else:
        content = odd_arrays(rng)
    return Case("npz", RUN, {**files, "data.npz": content}, judge=judge)


class Evil:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return (open, ("evil", "w"))


def other_members(rng: random.Random) -> bytes:
    """Return an NPZ file with members that are doubled, swapped, renamed, damaged, or something else."""
    with zipfile.ZipFile(io.BytesIO(npz_files()["data.npz"])) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(members))
        name, content = members[at]
        header, values = content[:128], content[128:]
        members[at] = rng.choice(
            (
                (rng.choice((name[:-4], "x", "../x.npy", "/x.npy", ".npy", "a/" + name, name.upper())), content),
                (name, members[rng.randrange(len(members))][1]),
                (name, damaged(rng, content)),
                (name, damaged(rng, header, text=True) + values),
                (name, header.replace(b"<f4", rng.choice((b"|O ", b"<f8", b">f4", b"<i4"))) + values),
                (name, header.replace(b"False", b"True ") + values),
                (name, pickle.dumps(Evil())),
                (name, object_array()),
                (name, b""),
            )
        )
        if rng.random() < 0.2:
            members.append(rng.choice(members))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        import warnings

        with warnings.catch_warnings(action="ignore"):  # about duplicate names
            for name, content in members:
                file.writestr(name, content)
    return buffer.getvalue()


def object_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil()], object), allow_pickle=True)
    return buffer.getvalue()


def odd_arrays(rng: random.Random) -> bytes:
    """Return an NPZ file with arrays that are no data set, or a damaged file."""
    x = rng.choice(("f4", "f8", "u1", "i8", "c16", "U3", "O", "?", "f2", "M8[s]", "V4"))
    shapes = ((), (0,), (20,), (20, 3), (20, 2, 2), (0, 3), (20, 0), (20, 3, 1, 1, 1))
    found = {
        "x_train": np.zeros(rng.choice(((20, 3), rng.choice(shapes))), rng.choice(("f4", x))),
        "y_train": np.zeros(rng.choice((20, 20, 19, 0)), rng.choice(("i8", "i8", "u8", "f4", x))),
        "x_test": np.zeros(rng.choice(((4, 3), rng.choice(shapes))), "f4"),
        "y_test": np.zeros(rng.choice((4, 4, 5)), "i8"),
    }
    with contextlib.suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        found["y_train"].flat[:] = rng.choice((0, 0, 0, 1, -1, 99, 2**20, 2**31))
    with contextlib.suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        found["x_train"].flat[:1] = rng.choice((0, 0, np.nan, np.inf, 1e30))
    if rng.random() < 0.2:
        del found[rng.choice(list(found))]
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **found)
    content = bytearray(buffer.getvalue())
    for _ in range(rng.choice((0, 0, 1, 3))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    if rng.random() < 0.2:
        content = content[: rng.randrange(len(content))]
    if rng.random() < 0.3:
        content = bytearray(claiming(rng.choice(((10**12, 3), (2**62, 3), (2**70,), (-1, 3), (3, 10**9)))))
    return bytes(content)


def claiming(shape: tuple[int, ...]) -> bytes:
    """Return an NPZ file of a few bytes whose header claims an array of this shape."""
    buffer = io.BytesIO()
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    with zipfile.ZipFile(buffer, "w") as file:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            file.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header + b"\0" * 64)
    return buffer.getvalue()


# IDX files

MNIST = BASE | {"data": {"name": "mnist", "train": 12, "validation": 3}}


def small_mnist() -> tuple[dict[str, IdxFile], dict[str, bytes]]:
    """Return descriptions and contents of IDX files of 15 + 5 images of 4×3, by name."""
    known, contents = {}, {}
    for number, (key, file) in enumerate(FILES.items()):
        shape = (15 if key.startswith("train") else 5, *(4, 3)[: len(file.shape) - 1])
        values = (np.arange(np.prod(shape)) * 7 + number) % (256 if key.endswith("x") else 10)
        content = struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape) + values.astype(np.uint8).tobytes()
        known[key] = IdxFile(file.name, hashlib.md5(content, usedforsecurity=False).hexdigest(), shape)
        contents[file.name] = content
    return known, contents


#: A small MNIST in place of fredsim.data.idx.FILES, so that the tests need neither data nor a network.
SMALL_MNIST, IMAGES = small_mnist()


def idx_files() -> Files:
    return IMAGES


@functools.cache
def bomb() -> bytes:
    """Return a small gzip file that unpacks to 64 MiB."""
    return gzip.compress(bytes(2**26), 1)


def an_idx_file(rng: random.Random) -> Case:
    """Damage one of MNIST's files, gzipped or not, or swap two."""
    whole = {name: rng.random() < 0.5 for name in IMAGES}
    files = {name: gzip.compress(content, mtime=0) if whole[name] else content for name, content in IMAGES.items()}
    name, other = rng.sample(list(files), 2)
    what = rng.choice(("bytes", "bytes", "bytes", "inside", "swap", "header", "bomb", "kind"))
    if what == "bytes":
        files[name] = damaged(rng, files[name])
    elif what == "inside":
        whole[name], files[name] = True, gzip.compress(damaged(rng, IMAGES[name]), mtime=0)
    elif what == "swap":
        whole[name], whole[other] = whole[other], whole[name]
        files[name], files[other] = files[other], files[name]
    elif what == "header":
        size = 4 * (1 + len(IMAGES[name]) % 3)
        values = [rng.choice((0, 1, 15, 2**31, 2**32 - 1, 0x803, 0x801, 0xD03)) for _ in range(size // 4)]
        whole[name], files[name] = False, struct.pack(f">{size // 4}I", *values) + IMAGES[name][size:]
    elif what == "bomb":
        whole[name], files[name] = True, rng.choice((bomb(), gzip.compress(IMAGES[name]) + bomb()))
    else:
        whole[name] = not whole[name]
    folder = rng.choice(("mnist", "MNIST/raw"))
    named = {f"{folder}/{name}{'.gz' if whole[name] else ''}": content for name, content in files.items()}
    arguments = [*RUN, "--data-root", "."]
    return Case("idx", arguments, {"x.yaml": as_yaml(MNIST, ""), **named}, judge=same_digest(MNIST, "idx"))
