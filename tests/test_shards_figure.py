"""`fredsim plot --kind shards`: bubbles, shades and the table hold the numbers of who has which labels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fredsim.config.partition import PARTITIONS, make_shards
from fredsim.data.datasets import data_root, load_dataset
from fredsim.runs.folder import label_counts as label_counts_module
from fredsim.runs.folder.label_counts import label_counts
from fredsim.runs.folder.results import Result
from fredsim.show.plots import draw

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

DIRICHLET = {"name": "dirichlet", "alpha": 0.3}


def counts_of(partition: dict[str, Any], clients: int, seed: int = 0) -> NDArray[np.int64]:
    """How many rows of each label each client has, row by row."""
    labels = load_dataset("digits", None, None, data_root()).train.y
    choice: Any = PARTITIONS[partition["name"]].model_validate(partition)
    shards: Any = make_shards(choice, labels, clients, seed)
    counts = np.zeros((clients, 10), np.int64)
    for who, sizes, rows in shards.blocks():
        for client, row in zip(np.repeat(who, sizes), rows, strict=True):
            counts[client, labels[row]] += 1
    return counts


def run(command: Command, small_yaml: Path, *words: str) -> None:
    assert command("run", small_yaml, "iterations=2", "--quiet", *words)[0] == 0


def test_bubbles(small_yaml: Path, command: Command, drawn: list[Figure]) -> None:
    """A panel a partition; of two seeds the first. Areas are as samples."""
    partitions = "[iid, {name: iid, shards: true}, {name: dirichlet, alpha: 0.3}, {name: dirichlet, alpha: 5}]"
    run(command, small_yaml, f"sweep={{seed: [0, 1], clients.partition: {partitions}}}", "--out", "out")
    drawn.clear()
    code, output, _ = command("plot", "out", "--kind", "shards", "-o", "shards.png")
    assert code == 0
    axes = drawn[0].axes
    titles = ["i.i.d., shared samples", "i.i.d., own samples", "Dirichlet, alpha 0.3", "Dirichlet, alpha 5"]
    assert [one.get_title() for one in axes] == titles
    (bubbles,) = (found for found in axes[2].collections if isinstance(found, PathCollection))
    counts, offsets, areas = counts_of(DIRICHLET, 8), np.asarray(bubbles.get_offsets()), bubbles.get_sizes()
    assert {(int(x), int(y)) for x, y in offsets} == {*map(tuple, np.argwhere(counts).tolist())}
    expected = [counts[int(x), int(y)] / counts.max() * areas.max() for x, y in offsets]
    np.testing.assert_allclose(areas, expected)
    assert (axes[2].get_xlim(), axes[2].get_ylim()) == ((-0.5, 7.5), (-0.5, 9.5))  # a cell a client and label
    (legend,) = drawn[0].legends
    assert legend.get_title().get_text() == "samples"
    for circle, text in zip(legend.get_lines(), legend.get_texts(), strict=True):  # it has the area of so many
        diameter = circle.get_markersize() + circle.get_markeredgewidth()
        assert diameter**2 == pytest.approx(areas.max() / counts.max() * float(text.get_text().replace("\u2009", "")))
    table = pd.read_csv("shards-table.csv").set_index("panel")
    row: Any = table.loc["dirichlet, alpha 0.3"]
    sizes = counts.sum(axis=1)
    mixes = counts / sizes[:, None]
    assert row[["clients", "smallest", "median size", "largest"]].tolist() == [
        8, sizes.min(), np.median(sizes), sizes.max(),
    ]  # fmt: skip
    assert row["labels a client"] == (counts > 0).sum() / 8
    assert row["share of its first label"] == pytest.approx(mixes.max(axis=1).mean())
    distance = np.mean([abs(mix - counts.sum(axis=0) / 1200).sum() / 2 for mix in mixes])
    assert row["distance"] == pytest.approx(distance)
    shared: Any = table.loc["iid, shared samples"]
    assert shared[["smallest", "largest", "distance"]].tolist() == [1200, 1200, 0]
    assert "such as seeds, it is the first" in Path("shards-table.md").read_text(encoding="utf-8")
    assert "shards.png" in output


def test_a_heat_map_of_many(
    small_yaml: Path, command: Command, drawn: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are clients, sorted by their first label; of very many some are shown."""
    run(command, small_yaml, "clients.count=60", "clients.partition={name: dirichlet, alpha: 0.3}", "--out", "out")
    counts = counts_of(DIRICHLET, 60)
    for most, shown in ((10_000, range(60)), (20, range(0, 60, 3))):
        monkeypatch.setattr(label_counts_module, "MOST_CLIENTS", most)
        drawn.clear()
        assert command("plot", "out", "--kind", "shards", "-o", "many.pdf")[0] == 0
        if most == 20:  # few enough for bubbles
            assert not drawn[0].axes[0].images
            continue
        (image,) = drawn[0].axes[0].images
        assert drawn[0].axes[0].get_xlabel() == "clients, by their most frequent label"
        found = np.asarray(image.get_array()).T
        shares = counts[list(shown)] / counts[list(shown)].sum(axis=1, keepdims=True)
        assert sorted(found.tolist()) == sorted(shares.tolist())
        firsts = found.argmax(axis=1)
        assert (np.diff(firsts) >= 0).all()
        assert all((np.diff(found[firsts == label].max(axis=1)) <= 0).all() for label in range(10))


OWN_LOSS = """
def squares(output, y):
    e = output - y[:, None]
    return (e * e).mean(axis=1), 2 * e
"""
LOSSES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "one does not count": ({"name": "cross_entropy", "ignore_index": -100}, lambda y: np.where(y == 0, -100, y)),
    "of an own loss": ("own_losses:squares", lambda y: y - 5),
}


@pytest.mark.usefixtures("small_yaml")
@pytest.mark.parametrize("keys", [{}, {"equal_sizes": True, "size": 12}], ids=str)
@pytest.mark.parametrize(("loss", "change"), LOSSES.values(), ids=LOSSES)
def test_labels_that_a_loss_makes_fit(
    loss: Any, change: Callable[[Any], Any], keys: dict[str, Any], simulate: Callable[..., Result]
) -> None:
    """Those of the digits in the same order, some of them negative: clients hold the same rows, as the axis says."""
    digits = load_dataset("digits", None, None, data_root())
    x, y = (np.concatenate([getattr(part, a) for part in (digits.train, digits.validation)]) for a in "xy")
    np.savez("some.npz", x_train=x, y_train=change(y), x_test=digits.test.x, y_test=change(digits.test.y))
    Path("own_losses.py").write_text(OWN_LOSS, encoding="utf-8")
    partition = DIRICHLET | keys
    clients = {"count": 8, "batch_size": 4, "partition": partition}
    data = {"name": "npz:some.npz", "train": len(digits.train), "validation": len(digits.validation)}
    result = simulate({"data": data, "loss": loss, "clients": clients, "server": {"name": "asgd", "lr": 1e-3}})
    held = label_counts(result)
    assert held.labels.tolist() == change(np.arange(10)).tolist()
    assert held.counts.tolist() == counts_of(partition, 8, result.config["seed"]).tolist()
    figure = draw([result], "shards")[0]
    sizes = [int(text.get_text()) for text in figure.legends[0].get_texts()]
    assert sizes[0] == held.counts.max()
    assert sizes[-1] == 1 or not keys  # a tenth of 12 samples at most
    axes = figure.axes[0]
    rows = [row for row in axes.get_yticks() if 0 <= row <= 9]
    texts = [axes.yaxis.get_major_formatter()(row).replace("\u2212", "-") for row in rows]
    assert [int(text) for text in texts] == [change(np.arange(10))[int(row)] for row in rows]


def test_what_does_not_go_with_it(small_yaml: Path, command: Command, refused: Refused, drawn: list[Figure]) -> None:
    """And it may be among the figures of an experiment."""
    run(command, small_yaml, "clients.partition={name: shards, per_client: 2}", "--out", "out", "seed=3")
    for words, says in (
        (["--by", "seed"], "--by: is given; a figure of the kind shards has a panel a partition, use panel"),
        (["--log"], "--log: is given; it goes with figures of the other kinds"),
        (["--y", "train_loss"], "--y: is given; it goes with figures of the kind curves or ends"),
    ):
        refused("plot", "out", "--kind", "shards", *words, says=(says,))
    drawn.clear()
    assert command("run", small_yaml, "figures=[{name: who, kind: shards}]", "iterations=2", "--out", "two")[0] == 0
    assert Path("two/who.png").is_file()
