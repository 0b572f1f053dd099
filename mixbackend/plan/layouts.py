"""Layouts: a captured graph once more, with its convolutions on channels-last images.

Place: between normalise and describe; ``layout_choice`` decides which of the two graphs is used.
Input: a captured fx graph with fake values. Output: a copy of it, or the joint graph itself, rewritten.
Convolution kernels are faster, often twice as fast, on images with innermost channels, and most operators keep the
layout that they are given. So each image that is not channels-last gets an explicit ``clone`` before a convolution,
and the values behind it are worked out anew on fake tensors: torch's own rules say which layouts follow.
Invariants: every value is what it was; graph outputs, and what is read by operators with a meaning or random numbers
that depend on strides, have the traced strides (by an explicit copy back); names of nodes stay; no guard is added;
weights are left as they are. All copies are ordinary ops, so that they are placed and priced like others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch.fx.node import map_arg

from mixbackend.contracts import OpNode, OpTag, TensorMeta, hint_of, op_class_of
from mixbackend.contracts.describe_op import as_tuple, describe_op, value_meta
from mixbackend.contracts.rate_rows import is_channels_last
from mixbackend.contracts.torch_compat import rerun_fake
from mixbackend.graph.copies import copy_module

aten = torch.ops.aten

_IMAGES: dict[Any, tuple[int, ...]] = {
    aten.convolution.default: (0,),
    aten.convolution_backward.default: (0, 1),
}
"""Positions of the images among the arguments of convolutions."""
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_FREE_CLASSES = frozenset(
    "pointwise convolution pooling normalization reduction softmax copy view matmul factory".split()
)
_FREE_BY_NAME = frozenset({"aten.slice_backward.default", "aten.select_backward.default", "getitem"})
_READS_STRIDES_BY_NAME = frozenset(
    {
        "aten.roll.default",
        "aten.view.dtype",
        "aten.view_as_real.default",
        "aten.view_as_complex.default",
        "aten._unsafe_view.default",
        "aten.fractional_max_pool2d_backward.default",
    }
)
_ROW_MAJOR_BESIDE_PROCESSORS = frozenset({"aten.native_group_norm.default", "aten.native_group_norm_backward.default"})
"""Their kernels for GPUs refuse any other image, which fake ones do not tell; those for processors take both."""
_GROUP_NORM_BACKWARD = aten.native_group_norm_backward.default
"""For processors it takes a gradient and an image that lie alike (else it is wrong), and a channels-last image only if
it computes a gradient of it (else it ends the process)."""
_READS_SIZES = (aten.sym_size.int, aten.sym_numel.default)
_FIXED = frozenset(OpTag) - {OpTag.VIEW, OpTag.MULTI_OUTPUT}
_RESHAPES = (aten.reshape.default, aten.view.default)
_ORIGIN = ("nn_module_stack", "fwd_nn_module_stack", "stack_trace", "seq_nr")


@dataclass(frozen=True)
class Relaid:
    """A graph in another layout.

    Attributes:
        module: the graph.
        conversions: how many copies from one layout to another it contains that the traced graph does not.
    """

    module: torch.fx.GraphModule
    conversions: int


def channels_last_copy(graph_module: torch.fx.GraphModule) -> Relaid | None:
    """A copy of a graph with channels-last convolutions; ``None`` if there is nothing to change, or no way to."""
    if not any(map(reads_misplaced_images, graph_module.graph.nodes)):
        return None
    module = copy_module(graph_module)
    try:
        return Relaid(module, make_channels_last(module))
    except RelayoutError:
        return None


def reads_misplaced_images(node: torch.fx.Node) -> bool:
    """Whether a node is a convolution of images that are not channels-last."""
    return bool(_misplaced(node))


def make_channels_last(graph_module: torch.fx.GraphModule) -> int:
    """Give the convolutions of a graph channels-last images, in place; returns the number of conversions.

    Raises:
        RelayoutError: a convolution does not take them; the graph is then half rewritten.
    """
    rewriter = _Rewriter(graph_module.graph)
    rewriter.run()
    graph_module.recompile()
    return rewriter.conversions


class RelayoutError(Exception):
    """A convolution does not take the layout; its graph stays as traced."""


class _Rewriter:
    """One walk over a graph in execution order."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.conversions = 0
        self._graph = graph
        self._traced: dict[torch.fx.Node, Any] = {}
        """Fake values as traced, of the nodes with a changed layout."""
        self._relaid: dict[torch.fx.Node, torch.fx.Node] = {}
        self._images: set[torch.fx.Node] = set()
        self._restored: dict[torch.fx.Node, torch.fx.Node] = {}

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node.op == "output":
                self._restore_arguments(node)
            if node.op != "call_function" or node.target in _READS_SIZES:
                continue
            for image in _misplaced(node):
                node.replace_input_with(image, self._channels_last(image, node))
            if not any(source in self._traced or source in self._images for source in node.all_input_nodes):
                continue
            if _is_free(describe_op(node)) and _is_taken(node) and self._propagate(node):
                continue
            if node.target in _IMAGES:
                raise RelayoutError(f"{node.target} %{node.name}")
            self._restore_arguments(node)

    def _propagate(self, node: torch.fx.Node) -> bool:
        """Work out a node's value from those of its inputs; false if it cannot take them."""
        traced = node.meta["val"]
        try:
            # A reshape that cannot be a view would copy silently: a copy back is one that costs see.
            target = aten.view.default if node.target in _RESHAPES else node.target
            value = _rerun(target, node.args, node.kwargs)  # type: ignore[arg-type]
        except Exception:
            # Fake kernels raise what they like; the op then reads what it read when it was traced.
            return False
        if not _same_form(value, traced):
            return False
        if any(map(_moved, _metas(value), _metas(traced))):
            self._traced[node] = traced
            node.meta["val"] = value
        return True

    def _channels_last(self, image: torch.fx.Node, reader: torch.fx.Node) -> torch.fx.Node:
        if image not in self._relaid:
            options = {"memory_format": _FORMATS[image.meta["val"].dim()]}
            self._relaid[image] = self._insert(reader, image, aten.clone.default, (image,), options)
            self._images.add(self._relaid[image])
            self.conversions += 1
        return self._relaid[image]

    def _restore_arguments(self, node: torch.fx.Node) -> None:
        for source in node.all_input_nodes:
            if source in self._traced:
                node.replace_input_with(source, self._as_traced(source, node))

    def _as_traced(self, source: torch.fx.Node, reader: torch.fx.Node) -> torch.fx.Node:
        """The value of a node in its traced layout."""
        if source not in self._traced:
            return source
        if source not in self._restored:
            self._restored[source] = self._restore(source, reader)
        return self._restored[source]

    def _restore(self, source: torch.fx.Node, reader: torch.fx.Node) -> torch.fx.Node:
        traced = self._traced[source]
        order = _dense_order(value_meta(traced)) if isinstance(traced, torch.Tensor) else None
        if order is None or _shows_all(source):
            # A view with gaps, several values, or what shares a copy: the op once more, on what it read as traced.
            return self._repeat(source, reader)
        self.conversions += 1
        contiguous = {"memory_format": torch.contiguous_format}
        if order == list(range(len(order))):
            return self._insert(reader, source, aten.clone.default, (source,), contiguous)
        turned = self._insert(reader, source, aten.permute.default, (source, order))
        copied = self._insert(reader, source, aten.clone.default, (turned,), contiguous)
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return self._insert(reader, source, aten.permute.default, (copied, inverse))

    def _repeat(self, source: torch.fx.Node, reader: torch.fx.Node) -> torch.fx.Node:
        arguments = map_arg((source.args, source.kwargs), lambda node: self._as_traced(node, reader))
        with self._graph.inserting_before(reader):
            repeated = self._graph.create_node("call_function", source.target, *arguments)
        repeated.meta = {**source.meta, "val": self._traced[source]}
        return repeated

    def _insert(
        self,
        reader: torch.fx.Node,
        origin: torch.fx.Node,
        target: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any] | None = None,
    ) -> torch.fx.Node:
        with self._graph.inserting_before(reader):
            node = self._graph.call_function(target, arguments, options or {})
        donor = reader if reader.op == "call_function" else origin
        node.meta = {key: donor.meta[key] for key in _ORIGIN if key in donor.meta}
        node.meta["val"] = _rerun(target, node.args, node.kwargs)
        return node


def _shows_all(node: torch.fx.Node) -> bool:
    """Whether a node is a view of one whole value."""
    if OpTag.VIEW not in describe_op(node).tags or len(node.all_input_nodes) != 1:
        return False
    shown, whole = value_meta(node.meta["val"]), value_meta(node.all_input_nodes[0].meta["val"])
    return isinstance(shown, TensorMeta) and isinstance(whole, TensorMeta) and shown.elements() == whole.elements()


def _misplaced(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The images that a convolution reads and that are not channels-last."""
    images = [node.args[place] for place in _IMAGES.get(node.target, ())] if node.op == "call_function" else []
    return [image for image in images if isinstance(image, torch.fx.Node) and _needs_conversion(image.meta["val"])]


def _needs_conversion(value: torch.Tensor) -> bool:
    meta = value_meta(value)
    if not isinstance(meta, TensorMeta) or meta.rank not in _FORMATS or meta.elements() == 0:
        return False
    pixels = meta.elements() // (hint_of(meta.shape[0]) * hint_of(meta.shape[1]))
    if pixels == 1:
        # Both layouts at once; torch reads it as either.
        return False
    if hint_of(meta.shape[1]) == 1:
        # Row-major as well, and torch takes it for that unless the strides of its one channel say otherwise.
        return hint_of(meta.stride[1]) != 1
    return not is_channels_last(meta)


def _is_free(node: OpNode) -> bool:
    """Whether an op computes the same from any strides, and leaves torch to choose those of its result."""
    if node.tags & _FIXED or node.op in _READS_STRIDES_BY_NAME:
        return False
    if node.op in _ROW_MAJOR_BESIDE_PROCESSORS and not _on_processor(node):
        return False
    return node.op in _FREE_BY_NAME or (node.op.startswith("aten.") and op_class_of(node.op) in _FREE_CLASSES)


def _is_taken(node: torch.fx.Node) -> bool:
    """Whether an op is right on images that lie as its inputs do."""
    if node.target is not _GROUP_NORM_BACKWARD:
        return True
    gradient, image = (is_channels_last(value_meta(source.meta["val"])) for source in node.args[:2])  # type: ignore
    return gradient == image and (not image or node.args[-1][0] is True)  # type: ignore[index]


def _on_processor(node: OpNode) -> bool:
    return all(meta.device.type == "cpu" for meta in node.outputs if isinstance(meta, TensorMeta))


def _rerun(target: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    values, keywords = map_arg((arguments, options), lambda node: node.meta["val"])
    return values[0][values[1]] if target is operator.getitem else rerun_fake(target, values, keywords)


def _metas(value: Any) -> tuple[Any, ...]:
    return tuple(value_meta(item) for item in as_tuple(value))


def _same_form(value: Any, traced: Any) -> bool:
    """Whether two values agree in everything but strides."""
    new, old = _metas(value), _metas(traced)
    if len(new) != len(old):
        return False
    return all(_form(one) == _form(other) for one, other in zip(new, old, strict=True))


def _form(meta: Any) -> Any:
    return replace(meta, stride=()) if isinstance(meta, TensorMeta) else None


def _moved(new: Any, old: Any) -> bool:
    """Whether strides differ where they mean something."""
    if not isinstance(new, TensorMeta) or new.elements() == 0:
        return False
    triples = zip(new.shape, new.stride, old.stride, strict=True)
    return any(hint_of(size) != 1 and one != other for size, one, other in triples)


def _dense_order(meta: Any) -> list[int] | None:
    """Dimensions from outermost to innermost in memory; ``None`` if memory between them is left out or shared."""
    order = sorted(range(meta.rank), key=lambda index: (-hint_of(meta.stride[index]), index))
    expected = 1
    for index in reversed(order):
        extent = hint_of(meta.shape[index])
        if extent != 1 and hint_of(meta.stride[index]) != expected:
            return None
        expected *= extent
    return order
