"""Every kernel compiles for real devices, on a machine without one, to instructions that round as the contract says."""

import functools
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from fredsim.numerics import elementary
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.rules import Rule
from fredsim.servers.fasgd import RULES as FASGD
from tests.servers.conftest import build
from tests.servers.variants import VARIANTS

pytest.importorskip("cuda.bindings.nvrtc", reason="NVIDIA's cuda-bindings are not installed")

from cuda.bindings import nvrtc as library

from fredsim.cuda import nvrtc
from fredsim.cuda.kernels import FAMILIES, FOLDER, Unit, unit_of
from fredsim.cuda.rules import unit_of_rule

OLD, NEW = 75, 90  # T4, which has no asynchronous copies, and H100

#: The instructions on floats that a kernel may consist of. One that is rounded by itself (.rn) is never fused later.
EXACT = re.compile(
    r"(add|sub|mul|div|sqrt|rcp)\.rn\.f(32|64)|(abs|neg|min|max)\.f(32|64)|(setp\.\w+|selp|slct)\.f(32|64)"
    r"|cvt\.f64\.f32|cvt\.rn\.f32\.f64|cvt\.rn\.f(32|64)\.[su](8|16|32|64)|cvt\.rzi\.(s64|f64)\.f64"
    r"|(ld|st|mov|ldu)\.[\w.]*f(32|64)"
)
ENTRY = re.compile(r"^\.visible \.entry (\w+)\(.*?^\}$", re.MULTILINE | re.DOTALL)


@functools.cache
def rules_of_servers() -> list[Rule]:
    """Return the rules that servers compile."""
    rules: dict[Rule, None] = {}

    class Operations(NumpyOperations):
        """Notes which rules servers compile."""

        def compile_rule(self, rule: Rule) -> Any:
            rules[rule] = None
            return super().compile_rule(rule)

    for variant in VARIANTS.values():
        server = build(variant)
        getattr(server, "server", server).operations = Operations()
        server.init(np.zeros(300, np.float32), 6)
    assert len(rules) > 20
    return [*rules]


def units(capability: int) -> Iterator[Unit]:
    """Give the units of all families, and those of all servers' rules; of the latter, two suffice for old devices.

    They are all of three sources (rule.cu, rule_thin.cu, rule_wide.cu), in which nothing depends on the device but the
    rule does.
    """
    yield from map(unit_of, FAMILIES)
    old = capability == OLD
    yield from map(unit_of_rule, rules_of_servers()[: 1 if old else None])
    for mu in (8,) if old else (1, 2, 4, 8):
        yield unit_of_rule(FASGD["std"], mu)
    yield unit_of_rule(FASGD["std"], 4, 4)


class Compiled(NamedTuple):
    """The PTX of every unit for a device, by what it is of, and what the compiler says."""

    capability: int
    texts: Mapping[str, str]
    said: str


@pytest.fixture(scope="module")
def needs_nvrtc() -> None:
    """Skip without the library."""
    try:
        nvrtc.version()
    except Exception as error:  # cuda-bindings may raise anything then
        pytest.skip(f"NVRTC is not installed: {str(error).partition(chr(10))[0]}")


@pytest.fixture(scope="module", params=[pytest.param(OLD, marks=pytest.mark.slow), NEW])
def compiled(request: pytest.FixtureRequest, needs_nvrtc: None) -> Compiled:
    """The PTX for a device."""
    del needs_nvrtc
    texts: dict[str, str] = {}
    said, destroy = b"", library.nvrtcDestroyProgram

    def noted(program: Any) -> Any:
        nonlocal said
        said += nvrtc._text(program, library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog).rstrip(b"\0")
        return destroy(program)

    with patch.object(library, "nvrtcDestroyProgram", noted):
        for unit in units(request.param):
            text = nvrtc.compile_unit(unit, request.param).ptx.decode()
            texts[unit.purpose] = texts.get(unit.purpose, "") + text  # a rule has several units
    return Compiled(request.param, texts, said.decode())


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
    ld.global.f32 %f1, [%rd1];
    mad.lo.s32 %r1, %r2, %r3, %r4;
    sqrt.approx.ftz.f32 %f1, %f2;
    cvt.rn.f16.f32 %h1, %f1;
    ex2.approx.f32 %f1, %f2;
    """
    assert inexact(text) == {
        "fma.rn.f32", "div.full.f32", "add.f64", "mul.rn.ftz.f32", "sqrt.approx.ftz.f32", "cvt.rn.f16.f32",
        "ex2.approx.f32",
    }  # fmt: skip


def test_every_kernel_of_the_sources_compiles(compiled: Compiled) -> None:
    found = {name for text in compiled.texts.values() for name in ENTRY.findall(text)}
    assert found == {name for unit in units(compiled.capability) for name in unit.kernels}
    written = [path.read_text(encoding="utf-8").count("\nKERNEL(") for path in FOLDER.rglob("*.cu")]
    assert len(found) == sum(written) > 30


def test_what_the_compiler_warns_of(compiled: Compiled) -> None:
    """Only of arguments that a rule does not use (177)."""
    assert set(re.findall(r"warning #(\d+)", compiled.said)) <= {"177"}


def of_other_letters(θ: Any, g: Any, η: Any) -> Any:
    """A rule of one's own."""
    Δ = η * g
    return θ - Δ


@pytest.mark.usefixtures("needs_nvrtc")
def test_a_rule_whose_names_have_letters_beyond_ascii() -> None:
    """As Python allows it, and the other backends: NVRTC does not."""
    found = nvrtc.compile_unit(unit_of_rule(Rule(of_other_letters)), NEW).ptx.decode()
    assert ENTRY.findall(found) == ["apply", "apply_runs"]
    assert inexact(found) == set()


def test_every_instruction_rounds_as_the_contract_says(compiled: Compiled) -> None:
    assert {name: found for name, text in compiled.texts.items() if (found := inexact(text))} == {}


def test_what_would_be_fused_is_not(compiled: Compiled) -> None:
    """Dense layers are products and sums: as many of one as of the other, and no instruction that is both."""
    text = compiled.texts["dense"]
    assert text.count("add.rn.f32") >= text.count("mul.rn.f32") > 1000


def test_constants_of_exp_and_log_keep_all_their_bits(compiled: Compiled) -> None:
    constants = (
        elementary.INVERSE_LN2, elementary.LN2_HIGH, elementary.LN2_LOW, elementary.SQRT2,
        *elementary.EXP_POLYNOMIAL, *elementary.LOG_POLYNOMIAL,
    )  # fmt: skip
    literals = {literal.lower() for literal in re.findall(r"0d([0-9A-Fa-f]{16})", compiled.texts["losses"])}
    for value in constants:  # the compiler may subtract −x for adding x
        either = {struct.pack(">d", sign * value).hex() for sign in (1.0, -1.0)}
        assert either & literals, value
