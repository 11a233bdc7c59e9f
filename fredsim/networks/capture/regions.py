"""Parts of a program without gradients, as by torch.no_grad, which torch.export makes programs of their own."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["inline_regions"]

NO_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled


def inline_regions(exported: Any) -> None:
    """Let the nodes of parts without gradients be nodes of the program itself; what leaves such a part is detached.

    A part with another one in it, such as one with gradients, stays as it is.
    """
    graph = exported.graph
    for node in [*graph.nodes]:
        if node.target is not NO_GRADIENTS or node.args[0]:
            continue
        part = getattr(exported.graph_module, node.args[1].target).graph
        if any(inner.op == "get_attr" for inner in part.nodes):
            continue
        given = [inner for inner in part.nodes if inner.op == "placeholder"]
        with graph.inserting_before(node):
            results = graph.graph_copy(part, dict(zip(given, node.args[2:], strict=True)))
            detached = [_detached(graph, result) for result in results]
        for user in [*node.users]:
            user.replace_all_uses_with(detached[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
    exported.graph_module.recompile()


def _detached(graph: Any, result: Any) -> Any:
    """Return a node of a result without its gradient; integers have none."""
    if not result.meta["val"].is_floating_point():
        return result
    node = graph.call_function(torch.ops.aten.detach.default, (result,))
    node.meta = dict(result.meta)
    return node
