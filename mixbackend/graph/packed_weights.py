"""Packed weights: torch's product with a weight of 8 bits becomes a product, which every backend knows.

Place: a pass of captured graphs (``passes``).
Input and output: the fx graph, changed in place.
``_weight_int8pack_mm(x, weight, scales)`` becomes ``mm(x, weight.t().to(type)) * scales``, the form in which torchao's
weights come. The type is that of ``x`` where it has float32's range; sums of unscaled weights overflow float16.
Invariants: shapes, strides and types as traced; no farther from exact numbers than the kernel is, but for one more
rounding of bfloat16. The kernel itself, which reads beyond rows of a length that is no multiple of its registers',
is not called.
Non-goals: accelerators (their kernels have no such bounds); weights of 4 bits.
"""

from __future__ import annotations

import torch
import torch.fx

from mixbackend.contracts.torch_compat import is_fake
from mixbackend.graph.column_scales import sums_in
from mixbackend.graph.new_nodes import NodeWriter

aten = torch.ops.aten
_PACKED = aten._weight_int8pack_mm.default


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is such a product."""
    return bool(graph_module.graph.find_nodes(op="call_function", target=_PACKED))


def write_products(graph_module: torch.fx.GraphModule) -> int:
    """Write out what can be written out; returns how many products."""
    found = graph_module.graph.find_nodes(op="call_function", target=_PACKED)
    written = sum(_write(graph_module.graph, node) for node in found)
    if written:
        graph_module.recompile()
    return written


def _write(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    operands = [item for item in node.args if isinstance(item, torch.fx.Node)]
    values = [item.meta.get("val") for item in (*operands, node)]
    tensors = [item for item in values if isinstance(item, torch.Tensor) and is_fake(item)]
    if len(operands) != 3 or len(tensors) != 4 or any(item.device.type != "cpu" for item in tensors):
        return False
    left, weight, scales = operands
    dtype = tensors[0].dtype
    if tensors[2].dtype != dtype:
        return False
    computed = sums_in(dtype)

    write = NodeWriter(graph, node)
    with graph.inserting_before(node):
        right = write.converted(write(aten.t.default, weight), computed)
        sums = write(aten.mm.default, write.converted(left, computed), right)
        result = write.converted(write(aten.mul.Tensor, sums, write.converted(scales, computed)), dtype)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    return True
