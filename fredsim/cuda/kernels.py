"""The kernels: their source texts, the structures that they take, and how each is compiled, once, for a machine.

The sources are CUDA C++ (fredsim/cuda/sources), one file an operator family. A machine (fredsim.cuda.machines) compiles
a text: NVRTC for a device, a C++ compiler to emulate one.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fredsim.numerics import elementary
from fredsim.numerics.ops import pointwise

__all__ = ["COMBINATIONS", "FAMILIES", "FOLDER", "Kernel", "Unit", "make_unit", "unit_of"]

FOLDER = Path(__file__).parent / "sources"
#: The files of kernels that need nothing made for them; a rule's needs the rule (fredsim.cuda.rules).
FAMILIES = (
    "arrays", "dense", "gradients", "losses", "outputs", "squares", "sums", "ternary", "networks/attention",
    "networks/convolution", "networks/copies", "networks/dropout", "networks/embedding", "networks/linear",
    "networks/losses", "networks/means", "networks/norms", "networks/pointwise", "networks/pooling",
)  # fmt: skip
#: What is made of two values, in networks/pointwise.
COMBINATIONS = ("sum", "product", "larger", "smaller", "share_of_larger", "share_of_smaller", "kept")
TYPES = {"i64": np.int64, "int": np.int32, "float": np.float32, "double": np.float64}

DEFINED = re.compile(r"^#define (\w+) (\d+)$", re.MULTILINE)
STRUCTURE = re.compile(r"^struct (\w+) \{(.*?)^\};", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s*(?:const )?(\w+)((?:\s*\*|\s*const\b)*)\s+(\w+)(?:\[([\w\s*]+)\])?;", re.MULTILINE)
KERNEL = re.compile(r"^KERNEL\((\w+), (\w+), (\d+), ([\d+*() ]+)\)", re.MULTILINE)
INCLUDED = re.compile(r'^#include "(\S+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Kernel:
    """A kernel of a unit: its name, its structure's dtype, the threads and the bytes of shared memory of a block."""

    name: str
    arguments: np.dtype[Any]
    threads: int
    shared: int


@dataclass(frozen=True, eq=False)
class Unit:
    """What is compiled together: one text, in which all included files stand, and its kernels by name."""

    purpose: str
    text: str
    kernels: dict[str, Kernel]


@functools.cache
def unit_of(family: str) -> Unit:
    """Return the unit of one of FAMILIES."""
    return make_unit(family, (FOLDER / f"{family}.cu").read_text(encoding="utf-8"))


def make_unit(purpose: str, source: str) -> Unit:
    """Return the unit of a source text that includes files of the folder."""
    seen: set[str] = {"emulate.h"}  # included by the emulation alone, which puts it there itself

    def included(found: re.Match[str]) -> str:
        name = found.group(1)
        if name == "emulate.h":
            return found.group()
        if name in seen:
            return ""
        seen.add(name)
        text = GENERATED[name]() if name in GENERATED else (FOLDER / name).read_text(encoding="utf-8")
        return INCLUDED.sub(included, text)

    text = INCLUDED.sub(included, source)
    sizes = {name: int(value) for name, value in DEFINED.findall(text)}
    structures: dict[str, np.dtype[Any]] = {}
    for name, body in STRUCTURE.findall(text):
        structures[name] = _structure(body, sizes, structures)
    kernels = {
        name: Kernel(name, structures[arguments], int(threads), _number(shared))
        for name, arguments, threads, shared in KERNEL.findall(text)
    }
    return Unit(purpose, text, kernels)


def constants() -> str:
    """Return the text of constants.h: those of fredsim.numerics.elementary, to the last bit."""
    low, high = (f"{np.float32(x).item().hex()}f" for x in elementary.EXP32_RANGE)
    values = {"EXP32_LOW": low, "EXP32_HIGH": high}
    values |= {"EXP64_LOW": elementary.EXP64_RANGE[0].hex(), "EXP64_HIGH": elementary.EXP64_RANGE[1].hex()}
    for name in (
        "INVERSE_LN2", "LN2_HIGH", "LN2_LOW", "SQRT2", "TWO_BY_ROOT_PI", "LOG1P_SMALL", "HALF_PI", "HALF_PI_HIGH",
        "HALF_PI_LOW", "TWO_BY_PI", "TURNED_OFTEN",
    ):  # fmt: skip
        values[name] = getattr(elementary, name).hex()
    for name in ("ROOT_HALF", "ROOT_2_BY_PI", "ROOT_1_BY_2PI", "GELU_CUBIC", "ELU_SMALL"):
        values[name] = getattr(pointwise, name).hex()
    values |= {"GELU_CUBIC_3": (3.0 * pointwise.GELU_CUBIC).hex()}
    values |= {"THIRD": (1.0 / 3.0).hex(), "TWO_FIFTEENTHS": (2.0 / 15.0).hex()}
    for name in ("EXP", "LOG", "SIN", "COS"):
        polynomial = getattr(elementary, f"{name}_POLYNOMIAL")
        values |= {f"{name}{number}": value.hex() for number, value in enumerate(polynomial, start=1)}
    values |= {"MANTISSA": f"{elementary.MANTISSA:#x}ll", "ONE_BITS": f"{elementary.ONE_BITS:#x}ll"}
    lines = [f"#define {name} ({value})\n" for name, value in values.items()]
    for name in ("ERF_SERIES", "ERFC_POLYNOMIAL", "TWO_BY_PI_PARTS"):
        lines += [f"#define {name} {', '.join(number.hex() for number in getattr(elementary, name))}\n"]
    return "".join(lines)


def functions() -> str:
    """Return the text of functions.h: numbers of the activations, of those that a field chooses, of COMBINATIONS."""
    names = (*pointwise.ACTIVATIONS, "gelu_tanh", "flat_sqrt")
    kinds = {"Function": names, "Combination": COMBINATIONS}
    return "".join(f"enum {kind} {{ {', '.join(each).upper()} }};\n" for kind, each in kinds.items())


#: What makes the files that are not in the folder.
GENERATED = {"constants.h": constants, "functions.h": functions}


def _structure(body: str, sizes: dict[str, int], known: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of a structure from the text of its fields; pointers are addresses, int64.

    A field may be one of the `known` structures.
    """
    fields: list[tuple[Any, ...]] = []
    for kind, stars, name, count in FIELD.findall(re.sub(r"//.*", "", body)):
        element = np.int64 if "*" in stars else TYPES.get(kind) or known[kind]
        shape = _number(re.sub(r"[A-Z]\w*", lambda found: str(sizes[found.group()]), count)) if count else 0
        fields.append((name, element, (shape,)) if shape else (name, element))
    return np.dtype(fields, align=True)


def _number(text: str) -> int:
    """Return the value of an expression of sums and products of whole numbers."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return int(node.value)  # type: ignore[arg-type]
        assert isinstance(node, ast.BinOp)
        left, right = value(node.left), value(node.right)
        return left + right if isinstance(node.op, ast.Add) else left * right

    return value(ast.parse(text.strip(), mode="eval").body)
