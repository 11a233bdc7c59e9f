"""Walks what torch.export traced, and builds the graph that computes the same."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fredsim.errors import one_line
from fredsim.networks.capture import parts  # noqa: F401  whose functions are in OPERATORS once they are imported
from fredsim.networks.capture.tensors import OPERATORS, Fixed, Given, Result
from fredsim.networks.capture.values import Builder, Size, Traced, UnsupportedError
from fredsim.networks.graph import Node
from fredsim.numerics.ops.operator import Shape

__all__ = ["Program"]

IGNORED = ("_assert_", "sym_", "_check")  # operators that compute nothing
CASTS = {"to", "_to_copy", "type_as"}
BY_NUMBER = {"embedding", "index", "index_select"}  # take elements by integers
#: Operators whose result for one sample says what it is for many.
FILLS = {"zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "expand", "broadcast_to", "repeat"}
#: Arguments that change no number here; training normalizes by the minibatch's own statistics.
HARMLESS = {
    "memory_format", "device", "layout", "pin_memory", "non_blocking", "copy", "generator", "dtype",
    "cudnn_enabled", "cudnn_enable", "momentum", "running_mean", "running_var",
}  # fmt: skip
#: Arguments of views and the like, which the shape of their result says.
BY_SHAPE = {
    "size", "shape", "sizes", "start_dim", "end_dim", "dim", "other", "output_padding", "split_size", "split_sizes",
    "chunks", "sections", "indices", "indices_or_sections", "output_size", "implicit",
}  # fmt: skip
RENAMED = {
    "self": "x",
    "input": "x",
    "min": "low",
    "max": "high",
    "ord": "order",
    "mat2": "other",
}  # arguments whose names Python or a reader would take for others'

#: Operators whose results need not be float32: integers are numbers of rows.
OF_INTEGERS = {
    *CASTS, "view", "reshape", "flatten", "ravel", "unflatten", "unsqueeze", "squeeze", "contiguous", "clone", "select",
    "slice", "narrow", "expand", "permute", "transpose", "alias", "split", "chunk", "unbind", "t", "cat",
    "stack", "pad", "constant_pad_nd", "zeros_like", "ones_like", "full_like",
}  # fmt: skip
#: Operators whose second result are places: the functions return None for it.
WITH_PLACES = {"max", "min", "adaptive_max_pool1d", "adaptive_max_pool2d", "max_pool2d_with_indices"}
#: What a function may raise for arguments that it was not written for.
UNKNOWN_CALL = (ValueError, TypeError, LookupError, AttributeError, AssertionError, NotImplementedError)
#: What to use instead of operators that are outside of the set, where something of it does the same or nearly so.
INSTEAD = {
    **dict.fromkeys(("softshrink", "hardshrink", "threshold"), "relu"),
    "rrelu": "leaky_relu",
    "conv3d": "conv2d", "conv_transpose1d": "conv_transpose2d", "conv_transpose3d": "conv_transpose2d",
    **{f"{kind}_pool3d": f"{kind}_pool2d" for kind in ("avg", "max", "adaptive_avg", "adaptive_max")},
    "upsample_trilinear3d": "upsample_bilinear2d",
    "alpha_dropout": "dropout", "feature_alpha_dropout": "feature_dropout",
    "embedding_bag": "embedding, and mean", "one_hot": "embedding",
    "im2col": "conv2d",
    "fill": "masked_fill",
    **dict.fromkeys(("linalg_matmul", "linalg_multi_dot", "chain_matmul", "mv", "addmv", "addbmm"), "matmul"),
    **dict.fromkeys(("bilinear", "tensordot", "inner", "outer", "addr", "dot", "linalg_vecdot"), "einsum"),
    **dict.fromkeys(("addcmul", "lerp"), "mul, and add"), "addcdiv": "div, and add",
    **dict.fromkeys(("hstack", "vstack", "dstack", "column_stack"), "cat"),
    **dict.fromkeys(("hsplit", "vsplit", "dsplit"), "split"),
    **dict.fromkeys(("fliplr", "flipud", "rot90"), "flip"), "tile": "repeat", "broadcast_tensors": "broadcast_to",
    "fmax": "maximum", "fmin": "minimum", "aminmax": "amin, and amax",
    "var_mean": "var, and mean", "std_mean": "std, and mean",
    **dict.fromkeys(("linalg_norm", "pairwise_distance", "cosine_similarity"), "linalg_vector_norm"),
    **dict.fromkeys(("exp2", "sinh", "cosh"), "exp"), "logaddexp": "logsumexp", "logit": "log", "hypot": "sqrt",
    "special_expit": "sigmoid",
    **{f"special_{name}": name for name in ("softmax", "log_softmax", "logsumexp", "expm1", "log1p")},
}  # fmt: skip


class Program:
    """An exported program of a module, whose first input are the samples."""

    def __init__(self, exported: Any, module: Any) -> None:
        self._exported, self._module = exported, module
        self._nodes: list[Any] = list(exported.graph.nodes)
        first = {id(value): name for name, value in (*module.named_parameters(), *module.named_buffers())}
        every = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
        #: The first name of each parameter and buffer, which others may share.
        self._names = {name: first[id(value)] for named in every for name, value in named}

    def nodes(self, sample: Shape, tensors: dict[str, Shape]) -> tuple[Node, ...]:
        """Return the nodes of the graph. Raises UnsupportedError, which names the operator and its layer."""
        value = self._walked(Builder(sample, tensors))
        # Weights of attention that are also used elsewhere are dropped once.
        if self._to.needed(value) & set(self._to.fused):
            value = self._walked(Builder(sample, tensors, apart=True))
        kept = self._to.needed(value)
        #: Of each batch norm, in the order of the nodes, whose running statistics follow it; see Builder.running.
        self.running = [norms for norm, norms in sorted(self._to.running.items()) if norm in kept]
        nodes = self._to.pruned(value)
        if not nodes:
            raise UnsupportedError("returns the sample itself")
        return nodes

    def _walked(self, to: Builder) -> int:
        """Add the nodes of the graph, and others; return the value of the output."""
        self._to, self._known = to, dict[Any, Any]()
        self._symbol, needed = None, self._needed()
        for node in self._nodes:
            if node in needed and node.op == "placeholder":
                try:
                    self._known[node] = self._placeholder(node)
                except UNKNOWN_CALL as error:
                    text = f"takes something that fredsim does not know ({type(error).__name__}: {one_line(error)})"
                    raise UnsupportedError(text[:200]) from error
            elif node in needed and node.op == "call_function":
                try:
                    self._call(node)
                except UnsupportedError as error:
                    raise UnsupportedError(self._where(node, str(error)), error.instead) from error
                except UNKNOWN_CALL as error:
                    text = f"is called in a way that fredsim does not know ({type(error).__name__}: {one_line(error)})"
                    raise UnsupportedError(self._where(node, text[:200])) from error
        (output,) = self._outputs()
        result = self._known[output]
        if not isinstance(result, Traced) or result.batch is None:
            raise UnsupportedError("has an output that does not depend on the sample")
        return self._to.sample_first(result)

    def _outputs(self) -> list[Any]:
        """Return the node of the output. Raises UnsupportedError if there are several, or another than a tensor."""
        (found,) = self._nodes[-1].args
        if len(found) != 1 or not self._exported.call_spec.out_spec.is_leaf():
            remedy = "let forward return the logits alone, or join what a loss of your own needs, as by torch.cat"
            raise UnsupportedError(f"returns more than one tensor; {remedy}", native=False)
        if not isinstance(found[0], torch.fx.Node):
            raise UnsupportedError("returns a constant")
        return list(found)

    def _roots(self) -> dict[Any, Any]:
        """Return, by node, the node that has allocated the memory of its result, as far as schemas say it."""
        roots: dict[Any, Any] = {}
        for node in self._nodes:
            schema = getattr(node.target, "_schema", None)
            views = node.target is operator.getitem or (schema and any(r.alias_info for r in schema.returns))
            source = node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else None
            roots[node] = roots[source] if views and source is not None else node
        return roots

    def _needed(self) -> set[Any]:
        """Return the nodes that the output depends on, also through memory that others write to."""
        self._memory = self._roots()
        needed: set[Any] = set()
        waiting = self._outputs()
        while waiting:
            while waiting:
                node = waiting.pop()
                if node not in needed:
                    needed.add(node)
                    waiting += node.all_input_nodes
            used = {self._memory[node] for node in needed}
            waiting = [
                node for node in self._nodes if node not in needed and _writes(node) and self._memory[node] in used
            ]
        return needed

    def _placeholder(self, node: Any) -> Any:
        spec = next(spec for spec in self._exported.graph_signature.input_specs if spec.arg.name == node.name)
        kind, target = spec.kind.name, spec.target
        if kind == "PARAMETER":
            name = self._names[target]
            return Given(name, tuple(self._module.get_parameter(name).shape))
        if kind == "USER_INPUT":
            self._symbol = node.meta["val"].shape[0].node.expr
            return self._to.traced(0)
        if kind == "BUFFER" and target in self._names:
            name = self._names[target]
            return replace(self._fixed(self._module.get_buffer(name)), name=name)
        return self._fixed(self._exported.constants[target])

    @staticmethod
    def _fixed(value: Any) -> Fixed:
        if value.dtype in {torch.bfloat16, torch.complex64, torch.complex128}:
            raise UnsupportedError(f"has a constant of {value.dtype}")
        return Fixed(value.detach().cpu().resolve_neg().numpy())

    def _size(self, size: Any) -> Size:
        """Return a size that may depend on the number of samples."""
        if isinstance(size, int):
            return Size(size)
        expression = size.node.expr
        if expression.free_symbols != {self._symbol}:
            raise UnsupportedError("has a size that depends on data, as with a mask of bools, whose places are known")
        count = expression.subs(self._symbol, 1)
        if expression != count * self._symbol:
            raise UnsupportedError(f"has a size of {expression} for {self._symbol} samples, which mixes them")
        return Size(int(count), batch=True)

    def _argument(self, value: Any) -> Any:
        """Return an argument of a call: tensors as they are known, and sizes as numbers."""
        if isinstance(value, list | tuple):
            return [self._argument(each) for each in value]
        if not isinstance(value, torch.fx.Node):
            return value
        if value in self._known:
            return self._known[value]
        held = value.meta["val"]
        if isinstance(held, torch.SymInt | int):
            size = self._size(held)
            return size if size.batch else size.count
        raise UnsupportedError("takes a number that depends on data")

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            values, index = node.args
            if self._known[values][index] is None:
                raise UnsupportedError("takes the places of the largest, integers that depend on samples")
            self._known[node] = self._known[values][index]
            return
        name = _name(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
                return
            raise UnsupportedError(_of_higher_order(name))
        if name.startswith(IGNORED) or isinstance(node.meta.get("val"), torch.SymInt):
            return
        arguments = self._bound(node)
        result = self._folded(node, arguments)
        if result is None:
            result = self._built(node, name.removesuffix("_") if _writes(node) else name, arguments)
        if _writes(node):
            self._write(node, result)
        self._known[node] = result

    def _bound(self, node: Any) -> dict[str, Any]:
        """Return the arguments by the names of the schema, and defaults."""
        found: dict[str, Any] = {}
        for i, argument in enumerate(node.target._schema.arguments):
            key = RENAMED.get(argument.name, argument.name)
            if i < len(node.args):
                found[key] = self._argument(node.args[i])
            elif argument.name in node.kwargs:
                found[key] = self._argument(node.kwargs[argument.name])
            else:
                found[key] = argument.default_value
        return found

    def _folded(self, node: Any, arguments: Mapping[str, Any]) -> Any:
        """Return the result of an operator on constants alone, which PyTorch computes now; None of another."""
        given = list(_flat(arguments.values()))
        if any(isinstance(x, Traced | Given) or (isinstance(x, Fixed) and x.batch is not None) for x in given):
            return None
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise UnsupportedError("draws random numbers; only dropout may", "dropout")
        sizes = [x for x in given if isinstance(x, Size)]
        batch = None
        if sizes:
            value = node.meta["val"]
            found = [self._size(size) for size in value.shape]
            places = [i for i, size in enumerate(found) if size == Size(1, batch=True)]
            if len(places) != 1 or len(sizes) != 1 or _name(node) not in FILLS:
                raise UnsupportedError("depends on the number of samples")
            (batch,) = places
        with torch.no_grad():
            args = [_tensors(self._argument(x)) for x in node.args]
            kwargs = {key: _tensors(self._argument(x)) for key, x in node.kwargs.items()}
            result = node.target(*args, **kwargs)
        if isinstance(result, list | tuple):
            return tuple(self._fixed(x) for x in result)
        return Fixed(self._fixed(result).values, batch)

    def _built(self, node: Any, name: str, arguments: dict[str, Any]) -> Result:
        """Return the result of an operator that depends on samples or parameters."""
        if torch.Tag.nondeterministic_seeded in node.target.tags and name not in OPERATORS.keys() | INSTEAD.keys():
            raise UnsupportedError("draws random numbers; only dropout may", "dropout")
        if node.target.namespace != "aten" or name not in OPERATORS.keys() | CASTS:
            raise UnsupportedError("is not among the operators that fredsim computes itself", INSTEAD.get(name, ""))
        self._check_type(node, name)
        if name not in BY_NUMBER:
            self._check_integers(node)
        if name in CASTS:
            found: Result = arguments["x"]
            if isinstance(found, Fixed):
                floats = node.meta["val"].is_floating_point()
                return replace(found, values=found.values.astype(np.float32 if floats else np.int64))
            return found
        if name == "view" and isinstance(arguments.get("dtype"), torch.dtype):
            raise UnsupportedError("reads the bits of numbers as another type")
        if name != "embedding":  # whose integers are numbers of rows
            arguments = {key: _as_floats(value) for key, value in arguments.items()}
        function = OPERATORS[name]
        known = inspect.signature(function).parameters
        extra = {"out": self._shape(node), "parts": self._shape(node), "kind": name}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
        given = {key: value for key, value in (arguments | extra).items() if key in known}
        if "out" not in known and any(isinstance(value, Size) for value in _flat(arguments.values())):
            raise UnsupportedError("depends on the number of samples")
        if takes_any:
            given |= {key: value for key, value in arguments.items() if key not in known}
        else:
            by_shape = BY_SHAPE if {"out", "parts"} & known.keys() else set()
            self._check_others(node, arguments, known.keys() | by_shape)
        return function(self._to, **given)

    def _shape(self, node: Any) -> Any:
        """Return the sizes of a result, or of each of several."""
        value = node.meta["val"]
        if isinstance(value, list | tuple):
            return [[self._size(size) for size in each.shape] for each in value]
        return [self._size(size) for size in value.shape]

    @staticmethod
    def _check_others(node: Any, arguments: Mapping[str, Any], known: Container[str]) -> None:
        """Raise UnsupportedError if an argument that a function does not take has an unusual value."""
        for argument in node.target._schema.arguments:
            key = RENAMED.get(argument.name, argument.name)
            value, usual = arguments[key], argument.default_value
            if key in known or key in HARMLESS or value is None or value is False or value == usual:
                continue
            if key == "dilation" and set(value) == {1}:
                continue
            raise UnsupportedError(f"has {key}={value}")

    def _check_integers(self, node: Any) -> None:
        """Raise UnsupportedError if an operator makes floats of integers that samples are or have been cut off to."""
        value = node.meta["val"]
        if not (value[0] if isinstance(value, list | tuple) else value).is_floating_point():
            return
        for given in node.all_input_nodes:
            its, found = given.meta["val"], self._known.get(given)
            integers = isinstance(its, torch.Tensor) and not its.is_floating_point()
            if integers and isinstance(found, Traced) and self._to.of_samples(found.value):
                raise UnsupportedError("makes floats of integers", "embedding")

    @staticmethod
    def _check_type(node: Any, name: str) -> None:
        value = node.meta["val"]
        several = list(value) if isinstance(value, list | tuple) else [value]
        for each in several[: 1 if name in WITH_PLACES else None]:
            integers = name in OF_INTEGERS and each.dtype in {torch.int64, torch.int32, torch.uint8, torch.int16}
            if each.dtype != torch.float32 and not integers:
                raise UnsupportedError(f"gives {each.dtype}; fredsim computes with torch.float32")

    def _write(self, node: Any, result: Any) -> None:
        """Let a tensor that an operator has changed in place have its new value, under all its names."""
        target = node.args[0]
        before, own = self._known[target], self._memory[target]
        if own.op == "placeholder" and not isinstance(before, Traced):
            raise UnsupportedError("changes a parameter or a buffer that it uses")
        position = {each: i for i, each in enumerate(self._nodes)}
        for other, root in self._memory.items():
            if root is not own or other is node or other not in self._known:
                continue
            if other is target or self._known[other] == before:
                self._known[other] = result
            elif any(position[user] > position[node] for user in other.users):
                raise UnsupportedError(
                    "changes a tensor in place of which another view is used later; do not change in place"
                )

    def _where(self, node: Any, text: str) -> str:
        """Return the text about a call with the names of its operator and its layer."""
        name = _name(node)
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path, kind = stack[-1] if stack else ("", "")
        kind = (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
        layer = f"its layer '{path.partition('@')[0]}' ({kind})" if path else "its forward"
        return f"uses {name} in {layer}, which {text}"


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _as_floats(value: Any) -> Any:
    """Return an argument in which constant integers are floats, as PyTorch takes them beside floats."""
    if isinstance(value, list):
        return [_as_floats(each) for each in value]
    if isinstance(value, Fixed) and value.values.dtype.kind in "iu":
        return Fixed(value.values.astype(np.float32), value.batch)
    return value


def _tensors(value: Any) -> Any:
    """Return an argument for PyTorch, for one sample."""
    if isinstance(value, list):
        return [_tensors(each) for each in value]
    if isinstance(value, Size):
        return value.count
    return torch.from_numpy(np.array(value.values)) if isinstance(value, Fixed) else value


def _writes(node: Any) -> bool:
    """Return whether an operator changes its first argument."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema and schema.arguments and (info := schema.arguments[0].alias_info) and info.is_write)


def _name(node: Any) -> str:
    """Return the name of an operator without its kind and overload."""
    if isinstance(node.target, torch._ops.OpOverload):
        namespace, _, name = node.target._schema.name.partition("::")
        return str(name) if namespace == "aten" else f"{namespace}::{name}"
    found: Any = getattr(node.target, "__name__", node.target)
    return str(found)


def _of_higher_order(name: str) -> str:
    if "grad_enabled" in name:
        return "computes a part of it without gradients (torch.no_grad)"
    if "autocast" in name:
        return "computes a part of it with other types (torch.autocast)"
    if "batch_dim" in name:
        return "is of torch.func.vmap; compute all samples at once"
    return "is not among the operators that fredsim computes itself"
