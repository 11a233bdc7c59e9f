"""The reference page of the operators that graphs consist of, and of PyTorch's that become them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from docs.generate.markdown import NOTE, one_line, table
from fredsim.networks.capture.parts import PARTS
from fredsim.networks.capture.tensors import OPERATORS as OF_PYTORCH
from fredsim.numerics.ops.registry import LOSSES, OPERATORS

__all__ = ["operators_page"]

INTRODUCTION = """\
A network that fredsim computes itself is a graph of these operators; `graph.json` in a run's folder has their names and
fields. Shapes leave the samples' axis out; δ is the error of an operator's output.
[numerics](../numerics.md#operators-of-networks) has the order of all sums in one table, and `fredsim/numerics/ops/` the
definitions in NumPy."""


def operators_page() -> str:
    """Return the page."""
    return (
        "\n\n".join(
            [
                "# Operators",
                NOTE,
                INTRODUCTION,
                table(["operator", "fields", "what it is"], _rows(OPERATORS)),
                "## Losses",
                table(["loss", "fields", "what it is"], _rows(LOSSES)),
                "## PyTorch's operators that become these",
                "As torch.export names them, without a namespace; in-place forms (`relu_`) count, too.",
                table(["part", "operators"], _of_pytorch()),
            ]
        )
        + "\n"
    )


def _rows(kinds: dict[str, Any]) -> Iterator[list[str]]:
    for name, kind in kinds.items():
        given = [
            f"`{field.name}`" + ("" if field.default is MISSING else f" ({_shown(field.default)})")
            for field in fields(kind)
        ]
        yield [f"`{name}`", ", ".join(given), _text(kind)]


def _shown(value: Any) -> str:
    """Return a default as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value)


def _text(kind: Any) -> str:
    """Return a docstring on one line, without an example of code."""
    return re.sub(r"\*", r"\\*", one_line(inspect.getdoc(kind) or ""))


def _of_pytorch() -> Iterator[list[str]]:
    for part in PARTS:
        names = sorted(name for name, function in OF_PYTORCH.items() if function.__module__ == part.__name__)
        yield [one_line(part.__doc__ or "").rstrip("."), ", ".join(f"`{name}`" for name in names)]
