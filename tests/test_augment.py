"""`data.augment`: training samples changed at random, by draws that depend on nothing but the gradient they are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.data.augment import Augmentation
from fredsim.data.datasets import data_root, load_dataset, unscaled
from fredsim.data.sampling import make_sampler
from fredsim.errors import SimulationError
from fredsim.networks.mlp import Mlp
from fredsim.numerics.augment import draw_places, moved, sample_generator
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.streams import Streams, philox4x32
from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.backends import make_engine
from tests.conftest import needs_cuda
from tests.test_going_on import files_of, stopped

Run = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]

FUNCTION = """
import numpy as np


def noisy(x, generator):
    return x + np.float32(0.125) * generator.integers(0, 3, x.shape).astype(np.float32)


def wider(x, generator):
    return np.concatenate([x, x])


def double(x, generator):
    return x.astype(np.float64)


def infinite(x, generator):
    return x + np.float32(np.inf)


def masked(x, generator):
    return np.ma.MaskedArray(x, x > 0.5)


def alone(sample):
    return sample


def failing(x, generator):
    raise RuntimeError("no such noise")


def token(x, generator, number=4):
    x[generator.integers(len(x))] = number
    return x


def beyond(x, generator):
    return token(x, generator, 5)


def below(x, generator):
    return token(x, generator, -2)


number = 3
"""


@pytest.fixture(autouse=True)
def own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the module `own_noise` in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_noise.py").write_text(FUNCTION)


def augmented(**augment: Any) -> dict[str, Any]:
    data = {"name": "digits", "train": 96, "validation": 40, "augment": augment}
    return {
        "iterations": 40, "data": data, "model": {"hidden": [12]}, "evaluation": {"every": 20},
        "clients": {"count": 5, "batch_size": 3, "sampling": "iid", "local_steps": 2}, "events": False,
    }  # fmt: skip


def by_hand(
    x: NDArray[np.float32], seed: int, client: int, number: int, *, flip: bool, crop: int
) -> NDArray[np.float32]:
    """Return a minibatch of images (µ, h, w), changed as docs/numerics.md says, pixel by pixel."""
    out = np.zeros_like(x)
    _, height, width = x.shape
    for place, image in enumerate(x):
        words = [int(word) for word in philox4x32((place, number, client, 0), (seed, 12))]
        flipped = flip and words[0] >= 2**31
        down, right = ((word * (2 * crop + 1) >> 32) - crop for word in words[1:3])
        for row in range(height):
            for column in range(width):
                source = (row + down, (width - 1 - column if flipped else column) + right)
                if 0 <= source[0] < height and 0 <= source[1] < width:
                    out[place, row, column] = image[source]
    return out


def test_draws_have_their_known_values() -> None:
    flips, rows, columns = draw_places(Streams(7), np.array([3, 0]), np.array([0, 5]), 4, flip=True, crop=2)
    assert flips.astype(int).tolist() == [[1, 1, 1, 1], [0, 1, 0, 0]]
    assert rows.tolist() == [[2, 1, 3, 0], [2, 2, 3, 0]]
    assert columns.tolist() == [[1, 3, 2, 0], [0, 4, 0, 0]]
    for b, (client, number) in enumerate([(3, 0), (0, 5)]):
        for place in range(4):
            words = [int(word) for word in philox4x32((place, number, client, 0), (7, 12))]
            assert flips[b, place] == (words[0] >> 31)
            assert (rows[b, place], columns[b, place]) == (words[1] * 5 >> 32, words[2] * 5 >> 32)
    assert sample_generator(7, 3, 0, 1).integers(0, 100, 4).tolist() == [92, 3, 35, 44]
    still, *places = draw_places(Streams(7), np.array([3]), np.array([0]), 4, flip=False, crop=0)
    assert not still.any()
    assert not np.any(places)


def test_images_are_cropped_then_flipped() -> None:
    image = np.arange(1, 7, dtype=np.float32).reshape(1, 2, 3)
    cropped = moved(image, np.array([False]), np.array([2]), np.array([0]), 1)
    assert cropped.tolist() == [[[0, 4, 5], [0, 0, 0]]]
    assert moved(image, np.array([True]), np.array([2]), np.array([0]), 1).tolist() == [[[5, 4, 0], [0, 0, 0]]]
    channels = np.stack([image, -image], axis=1)
    both = moved(channels, np.array([True]), np.array([1]), np.array([1]), 1)
    assert both.tolist() == [[[[3, 2, 1], [6, 5, 4]], [[-3, -2, -1], [-6, -5, -4]]]]


@pytest.mark.parametrize("alone", [False, True])
def test_a_run_equals_a_plain_loop(alone: bool, simulate: Run) -> None:
    """`alone`: `clip_each_sample`, which here clips nothing, has samples computed one by one, each at place 0."""
    changes = augmented(flip=True, crop=2)
    changes["clients"] = {"count": 3, "batch_size": 4, "sampling": "shuffled"}
    changes["clients"] |= {"clip_each_sample": 1e30} if alone else {}
    changes |= {"seed": 11, "dispatcher": {"name": "round_robin"}, "server": {"name": "asgd", "lr": 0.25}}
    result, lengths = simulate(changes | {"probe": {"every": 1}}), []
    data = load_dataset("digits", 96, 40, data_root())
    model, streams = Mlp((64, 12, 10)), Streams(11)
    theta: NDArray[Any] = model.initial(streams)
    held, sampler = [theta.copy() for _ in range(3)], make_sampler("shuffled", 96, 4, streams)
    for iteration in range(40):
        client, number = iteration % 3, iteration // 3
        rows = sampler.rows(*(np.array([n], np.int64) for n in (iteration, client, number)))[0]
        images = data.train.x[rows].reshape(4, 8, 8)
        if alone:
            each = [by_hand(images[i : i + 1], 11, client, 4 * number + i, flip=True, crop=2) for i in range(4)]
            x = np.concatenate(each)
        else:
            x = by_hand(images, 11, client, number, flip=True, crop=2)
        grad, _ = model.graph.gradient(held[client], x.reshape(4, 64), data.train.y[rows])
        lengths.append(np.linalg.norm(grad.astype(np.float64)))
        theta = theta - np.float32(0.25) * grad
        held[client] = theta.copy()
    assert result.summary["digest"] == model.layout.digest(theta)
    np.testing.assert_allclose(result.probe["gradient_norm"], lengths, rtol=1e-6)  # of samples drawn as the client's


def digest(result: Result) -> tuple[str, list[str]]:
    return result.summary["digest"], result.metrics["digest"].tolist()


def test_bits_depend_on_neither_backend_nor_window_nor_threads(simulate: Run) -> None:
    changes = augmented(flip=True, crop=1, function="own_noise:noisy")
    expected = digest(simulate(changes | {"backend": "numpy", "window": 1}))
    assert digest(simulate(changes)) == expected
    assert digest(simulate(changes | {"window": 4, "threads": 2})) == expected
    assert digest(simulate(changes | {"probe": {"every": 3}, "window": 2})) == expected
    assert digest(simulate(augmented(flip=True, crop=1))) != expected
    plain = augmented()
    del plain["data"]["augment"]
    assert digest(simulate(augmented())) == digest(simulate(plain))


@needs_cuda
def test_a_device_has_the_same_bits(simulate: Run) -> None:
    changes = augmented(flip=True, crop=2) | {"evaluation": {"every": 20, "test": True, "per_client": True}}
    expected, found = simulate(changes), simulate(changes | {"backend": "cuda"})
    assert digest(found) == digest(expected)
    assert found.summary["path"] == "snapshots"
    assert found.metrics["test_loss"].tolist() == expected.metrics["test_loss"].tolist()
    assert (found.folder / "clients.csv").read_text() == (expected.folder / "clients.csv").read_text()


def test_only_training_samples_are_changed(simulate: Run) -> None:
    still = {"server": {"name": "asgd", "lr": 1e-30}, "evaluation": {"every": 20, "test": True, "per_client": True}}
    plain = augmented()
    del plain["data"]["augment"]
    wanted, found = (simulate(changes | still) for changes in (plain, augmented(flip=True, crop=3)))
    for column in ("validation_loss", "validation_error", "test_loss", "test_error"):
        assert found.metrics[column].tolist() == wanted.metrics[column].tolist()
    assert found.metrics["train_loss"].tolist()[1:] != wanted.metrics["train_loss"].tolist()[1:]
    losses = [(result.folder / "clients.csv").read_text() for result in (wanted, found)]
    assert losses[0] == losses[1]


def test_a_run_that_stops_again_and_again_has_the_same_bits(tmp_path: Path, simulate: Run, command: Command) -> None:
    changes = augmented(flip=True, crop=1, function="own_noise:noisy")
    whole = simulate(changes)
    data, status = dict(whole.config), "interrupted"
    while status == "interrupted":
        status, notes = stopped(data, tmp_path / "part", 9)
    assert "continues from the checkpoint" in notes[0]
    assert files_of(tmp_path / "part") == files_of(whole.folder)
    assert command("verify", whole.folder)[:2] == (0, f"{whole.folder}: same bits\n")


@pytest.mark.parametrize(
    ("augment", "says"),
    [
        ("{crop: 8}", "data.augment.crop is 8; it must be less than the images' 8×8"),
        ("{crop: -1}", "data.augment.crop: is -1"),
        ("{flips: true}", "data.augment.flips: unknown key; did you mean 'flip'?"),
        ("own_noise:nothing", "data.augment.function: module 'own_noise' has no 'nothing'"),
        ("own_noise:number", "own_noise:number is a int; it must be a function"),
        ("no_module:f", "data.augment.function: cannot import 'no_module'"),
        ("own_noise:wider", "own_noise:wider gave float32 (2, 8, 8) for a sample that is float32 (1, 8, 8)"),
        ("own_noise:double", "gave float64 (1, 8, 8) for a sample that is float32 (1, 8, 8)"),
        ("own_noise:infinite", "gave a value that is not finite"),
        ("own_noise:masked", "own_noise:masked gave a masked array; give .filled(0)"),
        ("own_noise:alone", "own_noise:alone takes (sample); it must take a sample and a generator"),
        ("own_noise:failing", "own_noise:failing failed: RuntimeError: no such noise (own_noise.py:"),
    ],
)
def test_what_cannot_be_is_refused(refused: Callable[..., None], augment: str, says: str) -> None:
    Path("odd.yaml").write_text(
        "iterations: 5\ndata: {name: digits}\nmodel: {hidden: [4]}\nclients: {count: 2, batch_size: 2}\n"
        "server: {name: asgd, lr: 0.1}\n"
    )
    refused("run", "odd.yaml", f"data.augment={augment}", says=[says])


def tokens(function: str, backend: str) -> dict[str, Any]:
    """Sequences of the tokens 0 … 3, of which a table has the rows 0 … 4, as 4 is a label."""
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 60), ("test", 9)):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = rng.integers(0, 4, (count, 6)), rng.integers(0, 5, (count, 6))
    np.savez("tokens.npz", **arrays)
    return {
        "iterations": 12, "data": {"name": "npz:tokens.npz", "augment": f"own_noise:{function}"}, "backend": backend,
        "model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2},
    }  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "numba", pytest.param("cuda", marks=needs_cuda)])
def test_a_token_that_the_table_lacks(backend: str, simulate: Run) -> None:
    for function, number in (("beyond", 5), ("below", -2)):
        with pytest.raises(SimulationError) as caught:
            simulate(tokens(function, backend))
        what = f"data.augment.function: own_noise:{function} gave the token {number}"
        assert f"{what}; the network's table has the rows 0 … 4" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert digest(simulate(tokens("token", backend))) == digest(simulate(tokens("token", "numpy")))


def test_rows_without_a_shape_of_images_are_not_flipped() -> None:
    with pytest.raises(Exception, match=r"data.augment.flip is for images; samples have the shape \(64,\)"):
        Augmentation((64,), flip=True)


def test_bytes_may_stay_as_they_are(simulate: Run) -> None:
    plain = load_dataset("digits", 96, 40, data_root())
    raw = unscaled(plain)
    assert raw.train.x.tolist() == (plain.train.x * 16).tolist()
    assert raw.train.divisor == 0
    changes = augmented()
    changes["data"] |= {"scale": "none"}
    changes["data"].pop("augment")
    result = simulate(changes)
    assert result.config["data"]["scale"] == "none"
    scaled = dict(changes, data={**changes["data"]})
    del scaled["data"]["scale"]
    assert result.summary["data"] != simulate(scaled).summary["data"]


def test_more_gradients_than_samples_have_room_for() -> None:
    """Each has the draws of its own key, in whichever round its samples are written."""
    data = replace(load_dataset("digits", 96, 40, data_root()), augment=Augmentation((8, 8), crop=2))
    mlp, rng = Mlp((64, 12, 10)), np.random.default_rng(0)
    engine, count = make_engine("numpy", mlp, data, 2, 1), 150
    held, rows = [mlp.initial(Streams(3))] * count, rng.integers(0, 96, (count, 2))
    keys = Keys(3, rng.integers(0, 5, count), np.arange(count))
    grads, losses = engine.gradients(held, rows, keys)
    together = [np.array(grad).tobytes() for grad in grads], losses.tobytes()
    alone = []
    for b in range(count):
        found, its_losses = engine.gradients(held[:1], rows[b : b + 1], keys.part(slice(b, b + 1)))
        alone.append((np.array(found[0]).tobytes(), its_losses.tobytes()))
    assert together == ([grad for grad, _ in alone], b"".join(one for _, one in alone))
