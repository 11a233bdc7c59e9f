"""Functions that only kernels call, compiled as parts of the kernels.

numba's `njit` optimizes each function by itself, compiles it to machine code, with wrappers by which Python can call
it, and then links and optimizes it again in each of its callers. For a subroutine numba only generates LLVM code. A
kernel is optimized once, with all its subroutines in it. So kernels compile in less than half the time.

Passes that find nothing in them are left out, and an operator of numbers is looked up among numba's many definitions of
it once: that was a fifth of what remained.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba import jit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering
from numba.core.types.functions import BaseFunction

__all__ = ["operators_found_once", "subroutine"]

#: For what a subroutine has none of: `with`, closures, functions that numba inlines, literally(), literal_unroll().
#: Most of these passes also compute anew which variables live where.
LEFT_OUT = {
    "WithLifting", "InlineClosureLikes", "MakeFunctionToJitFunction", "InlineInlinables", "FindLiterallyCalls",
    "LiteralUnroll",
}  # fmt: skip
OPERATORS = {function for function in vars(operator).values() if callable(function)}
_found: dict[tuple[Any, ...], Any] = {}  # signatures, by operator and types of its numbers


class _Library(JITCodeLibrary):
    """A function's LLVM code, which is linked into the code of its callers and never compiled by itself."""

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Generates LLVM code, and registers it for callers."""

    _name = "fredsim_subroutine"

    def run_pass(self, state):
        flags, context = state.flags, state.targetctx
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        state.library = _Library(context.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        # numba identifies the function by a built-in function, a new one for each. Calling it from Python fails.
        entry = [].index
        context.insert_user_function(entry, state["cr"].fndesc, [state.library])
        state["cr"] = state["cr"]._replace(cfunc=entry)
        return True


class _Compiler(CompilerBase):
    """numba's usual compiler passes but for `LEFT_OUT`; the last one is `_Lowering`."""

    def define_pipelines(self):
        manager = PassManager("fredsim_subroutine")
        for stage in (
            DefaultPassBuilder.define_untyped_pipeline(self.state),
            DefaultPassBuilder.define_typed_pipeline(self.state),
            DefaultPassBuilder.define_nopython_lowering_pipeline(self.state),
        ):
            kept = [(one, why) for one, why in stage.passes if one.__name__ not in LEFT_OUT]
            manager.passes += [(_Lowering if one is NativeLowering else one, why) for one, why in kept]
        manager.finalize()
        return [manager]


def subroutine(function=None, *, forceinline=False):
    """Decorate a function, so that kernels and other compiled functions may call it; it divides as C does.

    `forceinline`: LLVM must inline it, that is, make its code part of its callers'.
    """
    decorate = jit(error_model="numpy", forceinline=forceinline, nopython=True, pipeline_class=_Compiler)
    return decorate if function is None else decorate(function)


@contextmanager
def operators_found_once() -> Iterator[None]:
    """Let numba look up, in a `with` block, an operator of the same types of numbers once for this process."""
    usual = BaseFunction.get_call_type

    def get_call_type(self, context, args, kws):
        numbers = self.typing_key in OPERATORS and all(isinstance(one, types.Number | types.Boolean) for one in args)
        if kws or not numbers:
            return usual(self, context, args, kws)
        if (key := (self, args)) not in _found:
            _found[key] = usual(self, context, args, kws)
        return _found[key]

    BaseFunction.get_call_type = get_call_type
    try:
        yield
    finally:
        BaseFunction.get_call_type = usual
