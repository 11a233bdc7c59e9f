"""Functions that only kernels call, compiled as parts of these.

numba's `njit` optimizes every function by itself, makes machine code of it, and wrappers by which Python can call it;
then it links and optimizes the function again in each of its callers. Of a subroutine numba makes LLVM code alone, and
a kernel is optimized once, with all its subroutines in it: kernels compile in less than half the time.
"""

from __future__ import annotations

from numba import jit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering

__all__ = ["subroutine"]


class _Library(JITCodeLibrary):
    """A function's LLVM code, which is linked into its callers' as it is and never becomes machine code itself."""

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Makes LLVM code, and lets callers find it."""

    _name = "fredsim_subroutine"

    def run_pass(self, state):
        flags, context = state.flags, state.targetctx
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        state.library = _Library(context.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        # By this callers know it: numba wants a built-in function, of each another. Python code that calls it fails.
        entry = [].index
        context.insert_user_function(entry, state["cr"].fndesc, [state.library])
        state["cr"] = state["cr"]._replace(cfunc=entry)
        return True


class _Compiler(CompilerBase):
    """numba's usual passes, the last of which is ours."""

    def define_pipelines(self):
        manager = PassManager("fredsim_subroutine")
        for stage in (
            DefaultPassBuilder.define_untyped_pipeline(self.state),
            DefaultPassBuilder.define_typed_pipeline(self.state),
            DefaultPassBuilder.define_nopython_lowering_pipeline(self.state),
        ):
            manager.passes += [(_Lowering if one is NativeLowering else one, why) for one, why in stage.passes]
        manager.finalize()
        return [manager]


def subroutine(function=None, *, forceinline=False):
    """Make a function one that kernels, and other compiled functions, may call; it divides as C does.

    `forceinline`: its code becomes part of its callers' whatever LLVM thinks of it.
    """
    decorate = jit(error_model="numpy", forceinline=forceinline, nopython=True, pipeline_class=_Compiler)
    return decorate if function is None else decorate(function)
