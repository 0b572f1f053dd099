"""Fold: batch normalisation in inference into the convolution before it.

Place: a pass of ``passes.constant_passes``, before ``split``, on inference graphs with constant weights.
Input and output: the fx graph, changed in place. Afterwards the scaled weights are nodes that depend on weights alone;
``split`` has them computed once.
The algorithm: with ``s = gamma / sqrt(variance + eps)``, ``norm(conv(x, w) + b)`` is
``conv(x, w s) + (b - mean) s + beta`` (Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018).
Invariants: shapes, strides and dtypes as traced; computed in float32 at least; a convolution with other readers stays.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, cast

import torch
import torch.fx

from mixbackend.contracts.torch_compat import fake_tensor

aten = torch.ops.aten
_CONVOLUTION = aten.convolution.default
_NORMS = (aten._native_batch_norm_legit_no_training.default,)


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is a batch normalisation."""
    return any(graph_module.graph.find_nodes(op="call_function", target=target) for target in _NORMS)


def fold_batch_norms(graph_module: torch.fx.GraphModule, constants: frozenset[str]) -> int:
    """Fold what can be folded.

    Args:
        graph_module: captured inference graph with fake values in ``meta["val"]``.
        constants: names of nodes with constant values.

    Returns:
        How many normalisations were folded.
    """
    folded = 0
    for target in _NORMS:
        for norm in graph_module.graph.find_nodes(op="call_function", target=target):
            folded += _fold(graph_module.graph, norm, constants)
    if folded:
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()
    return folded


def _fold(graph: torch.fx.Graph, norm: torch.fx.Node, constants: frozenset[str]) -> bool:
    convolution, gamma, beta, mean, variance, _momentum, epsilon = cast(tuple[Any, ...], norm.args)
    if not isinstance(convolution, torch.fx.Node) or not _is_foldable(convolution, norm):
        return False
    weight, bias = cast(tuple[Any, ...], convolution.args)[1:3]
    parameters = [weight, bias, gamma, beta, mean, variance]
    if any(item is not None and not _is_constant(item, constants) for item in parameters):
        return False
    with graph.inserting_before(convolution):
        write = _Writer(graph, norm)
        scale = write(aten.rsqrt.default, write(aten.add.Scalar, write.wide(variance), epsilon))
        if gamma is not None:
            scale = write(aten.mul.Tensor, scale, write.wide(gamma))
        shift = write(aten.neg.default, write.wide(mean))
        if bias is not None:
            shift = write(aten.add.Tensor, write.wide(bias), shift)
        shift = write(aten.mul.Tensor, shift, scale)
        if beta is not None:
            shift = write(aten.add.Tensor, shift, write.wide(beta))
        value = _value(weight)
        rows = write(aten.reshape.default, scale, [-1] + [1] * (value.dim() - 1))
        scaled = write(aten.mul.Tensor, write.wide(weight), rows)
        convolution.update_arg(1, write.like(scaled, value.dtype))
        convolution.update_arg(2, write.like(shift, value.dtype))
    for part in list(norm.users):
        part.replace_all_uses_with(convolution)
    return True


def _is_foldable(convolution: torch.fx.Node, norm: torch.fx.Node) -> bool:
    """A plain convolution that only this norm reads; only the norm's first result is used; both are of one dtype."""
    if convolution.target is not _CONVOLUTION or convolution.args[6] or list(convolution.users) != [norm]:
        return False
    if any(part.target is not operator.getitem or part.args[1] != 0 for part in norm.users):
        return False
    value, result = _value(convolution), _value(norm)[0]
    return bool(value.dtype == result.dtype and value.stride() == result.stride())


def _is_constant(item: Any, constants: frozenset[str]) -> bool:
    return isinstance(item, torch.fx.Node) and item.name in constants


def _value(node: Any) -> Any:
    return node.meta["val"]


class _Writer:
    """Adds nodes with fake values; they count to the module of the norm.

    All but ``reshape`` work element by element, and have the form of their first argument. To state that runs nothing
    on fake values, for which Dynamo would be imported where a package is loaded.
    """

    def __init__(self, graph: torch.fx.Graph, norm: torch.fx.Node) -> None:
        self._graph = graph
        self._meta = {key: value for key, value in norm.meta.items() if key != "val"}
        self._mode = _value(norm)[0].fake_mode

    def __call__(self, target: Any, *arguments: Any) -> torch.fx.Node:
        types = [_value(item).dtype for item in arguments if isinstance(item, torch.fx.Node)]
        return self._written(target, arguments, functools.reduce(torch.promote_types, types), {})

    def wide(self, node: torch.fx.Node) -> torch.fx.Node:
        """In float32, where it is narrower."""
        return self.like(node, torch.promote_types(_value(node).dtype, torch.float32))

    def like(self, node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        if _value(node).dtype == dtype:
            return node
        return self._written(aten._to_copy.default, (node,), dtype, {"dtype": dtype})

    def _written(
        self, target: Any, arguments: tuple[Any, ...], dtype: torch.dtype, options: dict[str, Any]
    ) -> torch.fx.Node:
        node = self._graph.call_function(target, arguments, options)
        first = _value(arguments[0])
        form = torch.empty_strided(first.shape, first.stride(), dtype=dtype, device="meta")
        form = form.reshape(arguments[1]) if target is aten.reshape.default else torch.empty_like(form)
        node.meta = {**self._meta, "val": fake_tensor(self._mode, form.shape, form.stride(), dtype, first.device)}
        return node
