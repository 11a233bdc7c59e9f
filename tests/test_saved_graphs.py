"""Graphs as JSON: equal texts of equal graphs, the same graph again, and one clear error for whatever else is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from fredsim.networks.captured import CapturedNetwork, lacking_rows, table_rows
from fredsim.networks.graph import Graph, Node
from fredsim.networks.initial import initial_parameters
from fredsim.networks.layout import Layout
from fredsim.networks.mlp import Mlp
from fredsim.networks.saved import graph_of_text, text_of_graph
from fredsim.networks.zoo.gpt import gpt
from fredsim.networks.zoo.vgg import vgg
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import Scale
from fredsim.numerics.ops.registry import LOSSES, OPERATORS
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Cat, Reshape, Slice
from fredsim.numerics.streams import Streams
from tests.random_graphs import Builder


def masked() -> Graph:
    """Attention with a mask and dropout, a constant, and a tensor that two nodes share."""
    layout = Layout((("places", (3, 2)), ("unused", ())))
    place = (("weight", "places"),)
    hidden = tuple(tuple(j > i + 1 for j in range(3)) for i in range(3))
    nodes = (
        Node(Parameter((3, 2)), (0,), place),
        Node(Constant.of(np.array([[0.1, -2.0]], np.float32)), (0,)),
        Node(Add(), (1, 2)), Node(Add(), (0, 3)),
        Node(Attention(masked=hidden, scale=0.3, dropout=0.25), (4, 4, 4)),
        Node(Scale(1 / 3), (5,)), Node(Dropout(0.5), (6,)),
    )  # fmt: skip
    return Graph((3, 2), (3,), nodes, CrossEntropy(0.1, ignored=-1), layout)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: Mlp((6, 4, 3)).graph,
    "vgg": lambda: vgg(3, (1, 8, 8), [4, 6]),
    "gpt": lambda: gpt(11, (5,), 8, 1, 2),
    "masked": masked,
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_read_as_it_was_written(name: str) -> None:
    graph, again = GRAPHS[name](), GRAPHS[name]()
    text = text_of_graph(graph)
    assert text == text_of_graph(again)
    assert graph_of_text(text.encode()) == graph
    assert text_of_graph(graph) == text_of_graph(again)
    assert json.loads(text)["nodes"][0].keys() == {"operator", "inputs", "tensors", "fields"}


def test_whole_numbers_and_floats_of_one_value_have_one_text() -> None:
    layout = Layout((("w", (2,)),))
    one, other = (
        Graph(
            (2,), (), (Node(Parameter((2,)), (0,), (("weight", "w"),)), Node(Scale(by), (1,))), CrossEntropy(), layout
        )
        for by in (2, 2.0)
    )
    assert one == other
    assert text_of_graph(one) == text_of_graph(other)


def test_fields_that_were_added_later_are_left_out_where_they_have_their_default() -> None:
    """So the text of an earlier network is what it was."""
    layout = Layout((("w", (2, 1, 1, 1)),))
    for has in (False, True):
        operator = Conv2d(2, (1, 1), bias=False, dilation=(1, 2 if has else 1))
        nodes = Node(operator, (0,), (("weight", "w"),)), Node(Reshape((-1,)), (1,))
        text = text_of_graph(Graph((1, 1, 1), (), nodes, CrossEntropy(), layout))
        assert ("dilation" in text) is has
        assert "flat" not in text
        assert graph_of_text(text.encode()).nodes == nodes


def test_a_name_with_spaces_is_read_as_it_was_written() -> None:
    """As those of `nn.ModuleDict({"head one": …})` are."""
    layout = Layout((("head one.weight", (2, 1)), ("~", (2,))))
    nodes = (Node(Linear(2, layout="out_in"), (0,), (("weight", "head one.weight"), ("bias", "~"))),)
    graph = Graph((1,), (), nodes, CrossEntropy(), layout)
    assert graph_of_text(text_of_graph(graph).encode()) == graph


def test_a_label_that_does_not_count_may_be_any_integer() -> None:
    graph = replace(Mlp((6, 4, 3)).graph, loss=CrossEntropy(ignored=-100))
    assert graph_of_text(text_of_graph(graph).encode()) == graph


def of(kind: type[Any], root: type[Any]) -> set[type[Any]]:
    """Return the dataclasses below a class that come with fredsim."""
    below = {each for sub in kind.__subclasses__() for each in of(sub, root) | {sub}}
    return {each for each in below if is_dataclass(each) and _comes_with_fredsim(each)}


def _comes_with_fredsim(kind: type[Any]) -> bool:
    return kind.__module__.startswith("fredsim.numerics.ops") and not kind.__name__.startswith("_")


def test_every_operator_and_loss_has_a_name() -> None:
    assert set(OPERATORS.values()) == of(Operator, Operator)
    assert set(LOSSES.values()) == of(Loss, Loss)
    for kind in (*OPERATORS.values(), *LOSSES.values()):
        assert {field.name for field in fields(kind)}.isdisjoint({"operator", "inputs", "tensors"})  # type: ignore[arg-type]


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    document = json.loads(text_of_graph(Mlp((6, 4, 3)).graph))
    change(document)
    return json.dumps(document).encode()


def node(number: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["nodes"][number].update(values)


def conv(**values: Any) -> Callable[[dict[str, Any]], None]:
    """Make the second node a convolution with these fields."""
    usual = {"outputs": 2, "kernel": [3, 3], "stride": [1, 1], "padding": [0, 0], "groups": 1, "bias": False}
    return node(1, operator="conv2d", fields=usual | values)


BAD: dict[str, tuple[bytes | Callable[[dict[str, Any]], None], str]] = {
    "nothing": (b"", "Expecting value"),
    "no text": (b"\xff\xfe", "can't decode"),
    "a list": (b"[]", "it: Input should be an object"),
    "deep": (b"[" * 100_000, "nested too deep"),
    "a key twice": (b'{"format": 1, "format": 2}', "the key 'format' twice"),
    "a huge number": (b'{"version": 1' + b"0" * 5000 + b"}", "out of range"),
    "another format": (lambda d: d.update(format="onnx"), "it is 'onnx', version 1; this fredsim reads version 1"),
    "a later version": (lambda d: d.update(version=2), "version 2; this fredsim reads version 1"),
    "a further key": (lambda d: d.update(code="import os"), "code: Extra inputs are not permitted"),
    "an unknown operator": (node(0, operator="os.system"), "node 1: unknown operator 'os.system'; a newer fredsim"),
    "a further field": (node(1, fields={"shell": 1}), "node 2: relu: shell: Extra inputs are not permitted"),
    "a missing field": (node(0, fields={}), "node 1: linear: outputs: Field required"),
    "a text for a number": (node(0, fields={"outputs": "4"}), "linear: outputs: Input should be a valid integer"),
    "true for a number": (node(0, fields={"outputs": True}), "outputs: Input should be a valid integer"),
    "a float for a number": (node(0, fields={"outputs": 4.0}), "outputs: Input should be a valid integer"),
    "another word": (node(0, fields={"outputs": 4, "layout": "x"}), "layout: Input should be 'in_out' or 'out_in'"),
    "a stride of 0": (conv(stride=[0, 1]), "node 2: conv2d: stride is 0; it must lie in 1 … 2147483647"),
    "no groups": (conv(groups=0), "node 2: conv2d: groups is 0; it must lie in 1"),
    "a negative padding": (conv(padding=[-4, 0]), "padding is -4; it must lie in 0"),
    "a huge kernel": (conv(kernel=[2**40, 1]), "kernel is 1099511627776; it must lie in 1 … 2147483647"),
    "three sizes": (conv(kernel=[1, 2, 3]), "node 2: conv2d: kernel: Tuple should have at most 2 items"),
    "an image of vectors": (conv(), "its parts do not fit: conv2d: takes samples of shape (channels, rows, columns)"),
    "p of 2": (node(1, operator="dropout", fields={"p": 2.0}), "node 2: dropout: p is 2.0; it must be at least 0"),
    "no number": (node(1, operator="scale", fields={"by": None}), "node 2: scale: by: Input should be a valid number"),
    "inputs to come": (node(0, inputs=[3]), "its parts do not fit: node 1: takes values (3,), which are not"),
    "an input of before": (node(1, inputs=[-1]), "nodes.1.inputs.0: Input should be greater than or equal to 0"),
    "two inputs": (node(1, inputs=[0, 1]), "node 2: relu takes 1 inputs, not 2"),
    "no inputs": (node(1, operator="cat", fields={"axis": 0}, inputs=[]), "node 2: cat takes some inputs, not 0"),
    "an unknown tensor": (node(0, tensors={"weight": "W9", "bias": "b1"}), "its parts do not fit: node 1: takes the"),
    "an odd name": (lambda d: d["tensors"].append(["a\nb", [1]]), "tensors.4.0: String should match pattern"),
    "a tensor twice": (lambda d: d["tensors"].append(["W1", [1]]), "it has the tensor 'W1' twice"),
    "one of many tensors twice": (
        lambda d: d["tensors"].extend([f"x{i % 299_999}", [1]] for i in range(300_000)), "it has the tensor 'x0' twice",
    ),
    "a negative size": (lambda d: d["tensors"].append(["x", [-1]]), "tensors.4.1.0: Input should be greater"),
    "huge tensors": (lambda d: d["tensors"].append(["x", [2**30, 2**30]]), "elements, which are too many"),
    "many axes": (lambda d: d.update(sample=[1] * 17), "sample: Tuple should have at most 16 items"),
    "a huge value": (
        lambda d: d["nodes"].insert(0, {"operator": "constant", "inputs": [0], "fields": {"sizes": [2**20, 2**20],
                                                                                       "data": ""}}),
        "node 1: constant: 0 bytes are no float32 of shape (1048576, 1048576)",
    ),
    "no base64": (
        lambda d: d["nodes"].insert(0, {"operator": "constant", "inputs": [0], "fields": {"sizes": [1], "data": "*"}}),
        "node 1: constant: data: Data should be valid base64",
    ),
    "no nodes": (lambda d: d.update(nodes=[]), "it has no nodes"),
    "another loss": (lambda d: d["loss"].update(name="hinge"), "loss: unknown loss 'hinge'"),
    "a loss that does not fit": (lambda d: d.update(target=[4]), "its parts do not fit: cross_entropy: takes outputs"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_whatever_else_is_read_is_one_clear_error(name: str) -> None:
    given, says = BAD[name]
    with pytest.raises(ValueError) as caught:
        graph_of_text(given if isinstance(given, bytes) else changed(given))
    text = str(caught.value)
    assert says in text
    assert "\n" not in text
    assert len(text) < 400


def test_damaged_bytes_are_no_other_graph_and_no_other_error() -> None:
    text, rng = text_of_graph(masked()).encode(), np.random.default_rng(0)
    graph = masked()
    for _ in range(300):
        damaged = bytearray(text)
        for place in rng.integers(0, len(text), rng.integers(1, 4)):
            damaged[place] = rng.integers(32, 127)
        try:
            found = graph_of_text(bytes(damaged))
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert isinstance(found, Graph)
            assert found != graph or bytes(damaged) == text or json.loads(damaged) == json.loads(text)


def test_a_captured_network_is_kept_in_two_files() -> None:
    graph = gpt(11, (5,), 8, 1, 2)
    params = initial_parameters(graph, Streams(3), "torch")
    network = CapturedNetwork(graph, params, {"weights.pt": "0" * 64}, ["a remark"])
    files = network.saved()
    assert list(files) == ["graph.json", "initial.safetensors"]
    again = CapturedNetwork.of_files(files["graph.json"], files["initial.safetensors"], code={"mine": "1"})
    assert again.graph == graph
    assert again.initial(Streams(0)).tobytes() == params.tobytes()
    assert again.saved() == files
    assert (again.numerics, again.code, list(again.remarks(params))) == ("portable", {"mine": "1"}, [])
    other = CapturedNetwork(masked(), np.zeros(7, np.float32)).saved()
    with pytest.raises(ValueError, match=r"^initial.safetensors: its tensors are not those of graph.json$"):
        CapturedNetwork.of_files(files["graph.json"], other["initial.safetensors"])
    with pytest.raises(ValueError, match=r"^initial.safetensors: it holds no arrays that can be read"):
        CapturedNetwork.of_files(files["graph.json"], b"no")
    with pytest.raises(ValueError, match=r"^graph.json: Expecting value"):
        CapturedNetwork.of_files(b"", files["initial.safetensors"])


def test_facts_of_graphs() -> None:
    assert masked().draws
    assert not gpt(11, (5,)).draws
    inside, beyond = np.array([[0, 10]]), np.array([[0.0, 11.0]])
    assert lacking_rows(gpt(11, (5,)), inside) == ""  # although there are 5 places
    assert lacking_rows(gpt(11, (5,)), inside, beyond) == "has a table of 11 rows; samples choose the rows 0 … 11"
    assert lacking_rows(masked(), beyond) == ""
    joined = Builder(2)
    joined.add(Cat(0), 0, 0)
    joined.add(Embedding(5, 3))
    assert table_rows(joined.graph(MeanSquaredError(), (4, 3))) == 5  # of samples joined to something
    assert lacking_rows(joined.graph(MeanSquaredError(), (4, 3)), np.array([[4, 4]])) == ""
    assert "choose the rows 0 … 5" in lacking_rows(joined.graph(MeanSquaredError(), (4, 3)), np.array([[0, 5]]))
    ends = Builder(4)  # the last and the first of four, before a row that is no sample's
    last, first = ends.add(Slice(0, 3, 4), 0), ends.add(Slice(0, 0, 1), 0)
    ends.add(Cat(0), last, first, ends.add(Constant.of(np.array([2])), 0))
    ends.add(Embedding(5, 3))
    both = ends.graph(MeanSquaredError(), (3, 3))
    assert table_rows(both) is None
    assert lacking_rows(both, np.array([[4, 9, -1, 0]])) == ""
    assert "choose the rows 0 … 7" in lacking_rows(both, np.array([[7, 0, 0, 0]]))
    assert "choose the rows -1 … 0" in lacking_rows(both, np.array([[0, 0, 0, -1]]))
    parts = Builder(4)
    parts.add(Slice(0, 1, 4))
    parts.add(Embedding(5, 3))
    graph = parts.graph(MeanSquaredError(), (3, 3))
    assert table_rows(graph) is None  # other places may have a table of their own
    assert lacking_rows(graph, np.array([[9, 0, 4, 1]])) == ""
    assert lacking_rows(graph, np.array([[0, 0, 4, 5]])) == "has a table of 5 rows; samples choose the rows 0 … 5"
