"""Every kernel compiles for real devices, on a machine without one, to instructions that round as the contract says."""

import ast
import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fredsim.numerics import elementary

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).parents[1]
CAPABILITIES = [80, 90]  # A100 and H100; both compile side by side

#: The instructions on floats that a kernel may consist of. One that is rounded by itself (.rn) is never fused later.
EXACT = re.compile(
    r"(add|sub|mul|div|sqrt)\.rn\.f(32|64)|(abs|neg|min|max)\.f(32|64)|(setp\.\w+|selp)\.f(32|64)"
    r"|cvt\.f64\.f32|cvt\.rn\.f32\.f64|cvt\.rn\.f(32|64)\.[su](32|64)|cvt\.rzi\.s64\.f64"
)

Texts = Mapping[int, Mapping[str, str]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """The PTX of every kernel by capability and file."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    folders = {capability: tmp_path_factory.mktemp(f"sm{capability}") for capability in CAPABILITIES}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.compile_kernels", str(capability), str(folder)],
            cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        )
        for capability, folder in folders.items()
    ]  # fmt: skip
    for process in running:
        _, messages = process.communicate(timeout=500)
        assert process.returncode == 0, messages
    return {
        capability: {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ptx"))}
        for capability, folder in folders.items()
    }


def launched() -> set[str]:
    """Return the names of the kernels: what asks for its place in the grid, and the one generated from a rule."""
    names = {"apply"}
    for path in (ROOT / "fredsim" / "cuda").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "tl.program_id" in ast.unparse(node):
                names.add(node.name)
    return names


def inexact(text: str) -> set[str]:
    """Return the instructions of a PTX text that touch floats and are not among those allowed."""
    instructions = re.findall(r"^\s*(?:@!?%p\d+\s+)?\{?\s*([a-z]\w*(?:\.\w+)+)", text, flags=re.MULTILINE)
    floating = {x for x in instructions if re.search(r"\.(b?f16|tf32|f32|f64|ftz|approx|full|sat)|^(fma|mad\.f)", x)}
    return {x for x in floating if not EXACT.fullmatch(x)}


def test_the_search_sees_what_must_not_be_there() -> None:
    text = """
    add.rn.f32  %f1, %f2, %f3;
    @%p1 fma.rn.f32     %f1, %f2, %f3, %f4;
    { div.full.f32 %f1, %f2, %f3; }
    add.f64 %fd1, %fd2, %fd3;
    mul.rn.ftz.f32 %f1, %f2, %f3;
    mad.lo.s32 %r1, %r2, %r3, %r4;
    sqrt.approx.ftz.f32 %f1, %f2;
    cvt.rn.f16.f32 %h1, %f1;
    ex2.approx.f32 %f1, %f2;
    """
    assert inexact(text) == {
        "fma.rn.f32", "div.full.f32", "add.f64", "mul.rn.ftz.f32", "sqrt.approx.ftz.f32", "cvt.rn.f16.f32",
        "ex2.approx.f32",
    }  # fmt: skip


def test_every_kernel_compiles(compiled: Texts) -> None:
    for capability in CAPABILITIES:
        assert {name.partition("-")[0] for name in compiled[capability]} == launched()
        for name, text in compiled[capability].items():
            assert f".target sm_{capability}" in text, name


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_instruction_rounds_as_the_contract_says(compiled: Texts, capability: int) -> None:
    assert {name: found for name, text in compiled[capability].items() if (found := inexact(text))} == {}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_constants_of_exp_and_log_keep_all_their_bits(compiled: Texts, capability: int) -> None:
    constants = (
        elementary.INVERSE_LN2, elementary.LN2_HIGH, elementary.LN2_LOW, elementary.SQRT2,
        *elementary.EXP_POLYNOMIAL, *elementary.LOG_POLYNOMIAL,
    )  # fmt: skip
    texts = [text for name, text in compiled[capability].items() if name.startswith("softmax_cross_entropy")]
    assert len(texts) >= 2
    for text in texts:
        literals = {literal.lower() for literal in re.findall(r"0d([0-9A-Fa-f]{16})", text)}
        for value in constants:  # the compiler may subtract −x for adding x
            either = {struct.pack(">d", sign * value).hex() for sign in (1.0, -1.0)}
            assert either & literals, value
