"""Check memory: how much a check of one call would take, and how a large one is made of small ones.

Place: beside ``execute.verify``, which asks before it computes anything. Input: a region and the arguments of one call.
Output: bytes that are needed at most beside what the call itself has; the call in pieces, where every element of its
results comes of the same element of its inputs.
Method: the values that a graph has at once, counted by their sizes in this call. What a kernel takes for itself while
it runs is not known here and is left room for.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from mixbackend.contracts import Region
from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.torch_compat import is_operator, symbolic_expression, symbolic_hint
from mixbackend.execute.reference import NARROW

_WIDE_BYTES = 8
_NOISE_COPIES = 2
"""Of all results, in float64: squares of how far roundings move them, and what the present draw made of them."""
_ROUNDING_COPIES = 6
"""Of one value, in float64: what rounding it at random takes."""
_CONVERSION = torch.ops.aten._to_copy.default


class CallMemory:
    """Sizes of one call's values.

    Args:
        region: what was called.
        inputs: as they were before.
    """

    def __init__(self, region: Region, inputs: Sequence[Any]) -> None:
        self._region = region
        self._inputs = inputs
        self._graph = region.graph_module.graph
        self._placeholders = list(self._graph.find_nodes(op="placeholder"))
        self._symbols = self._shown_symbols()
        (output,) = self._graph.find_nodes(op="output")
        self._results: tuple[torch.fx.Node, ...] = tuple(output.args[0])
        self._copied = sum(inputs[place].nbytes for place in region.written)

    @property
    def wide(self) -> int:
        """Bytes of a check against float64: eager's results, the reference's, and what it is computed from."""
        eager = sum(self._bytes(node, wide=False) for node in self._results) + self._copied
        exact = sum(self._bytes(node, wide=True) for node in self._results)
        noise = _NOISE_COPIES * exact + _ROUNDING_COPIES * max(
            self._bytes(node, wide=True) for node in self._graph.nodes
        )
        return eager + noise + self._peak(wide=True, kept=True) + _WIDE_BYTES * self._copied

    @property
    def native(self) -> int:
        """Bytes of a check against eager's own results, each of which is let go when it was looked at."""
        return self._peak(wide=False, kept=bool(self._region.written)) + self._copied

    def parts(self, results: Sequence[torch.Tensor], at_most: int) -> Iterator[tuple[list[Any], list[Any]]] | None:
        """The inputs and results of the call in parts of so many bytes of a check; ``None`` where it has no parts."""
        axis = self._axis_of_parts(results)
        if axis is None:
            return None
        shape = max((tuple(value.shape) for value in results), key=len)
        place = len(shape) - axis
        length = shape[axis] * at_most // max(1, self.wide)
        return self._cut(results, place, shape[axis], length) if length else None

    def _cut(
        self, results: Sequence[torch.Tensor], place: int, size: int, length: int
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        for start in range(0, size, length):
            count = min(length, size - start)
            yield tuple([_part(value, place, start, count) for value in values] for values in (self._inputs, results))  # type: ignore[misc]

    def _axis_of_parts(self, results: Sequence[torch.Tensor]) -> int | None:
        """The first axis along which all results can be cut; ``None`` if an op looks at more than one element."""
        shapes = {tuple(value.shape) for value in results}
        if self._region.written or len(shapes) != 1 or not all(map(self._is_one_by_one, self._graph.nodes)):
            return None
        (shape,) = shapes
        values = [value for value in self._inputs if isinstance(value, torch.Tensor)]
        try:
            if torch.broadcast_shapes(shape, *(value.shape for value in values)) != torch.Size(shape):
                return None
        except RuntimeError:
            return None
        return next((axis for axis, size in enumerate(shape) if size > 1), None)

    def _is_one_by_one(self, node: torch.fx.Node) -> bool:
        """Whether each element of an op's result comes of the same element of its operands, as torch declares it."""
        target: Any = node.target
        if node.op in ("placeholder", "output"):
            return True
        if not is_operator(target) or torch.Tag.nondeterministic_seeded in target.tags:
            return False
        if torch.Tag.pointwise not in target.tags and target is not _CONVERSION:
            return False
        operands = [self._shape(source) for source in node.all_input_nodes]
        try:
            return torch.broadcast_shapes(*(shape for shape in operands if shape is not None)) == self._shape(node)
        except (RuntimeError, TypeError):
            return False

    def _peak(self, wide: bool, kept: bool) -> int:
        """The most bytes that are there at once while the graph runs op by op."""
        order = {node: index for index, node in enumerate(self._graph.nodes)}
        ends: dict[torch.fx.Node, int] = {}
        for node in order:
            readers = [order[user] for user in node.users if user.op != "output" or kept]
            root = _storage_of(node)
            ends[root] = max([ends.get(root, 0), order[node], *readers])
        gone: dict[int, int] = {}
        live = peak = 0
        for node, index in order.items():
            size = self._bytes(node, wide) if node is _storage_of(node) else 0
            live += size
            peak = max(peak, live)
            gone[ends.get(node, index)] = gone.get(ends.get(node, index), 0) + size
            live -= gone.pop(index, 0)
        return peak

    def _bytes(self, node: torch.fx.Node, wide: bool) -> int:
        """Of what an op makes; of an input, of its wide copy, where it gets one."""
        if node.op == "placeholder" and not wide:
            return 0
        total = 0
        for value in as_tuple(node.meta.get("val")):
            if not isinstance(value, torch.Tensor):
                continue
            widened = wide and value.dtype in NARROW
            if node.op == "placeholder" and not widened:
                continue
            total += self._elements(value) * (_WIDE_BYTES if widened else value.element_size())
        return total

    def _elements(self, value: torch.Tensor) -> int:
        count = 1
        for size in value.shape:
            known = self._known(size)
            if known is None:
                return self._largest()
            count *= known
        return count

    def _shape(self, node: torch.fx.Node) -> tuple[int | None, ...] | None:
        value = node.meta.get("val")
        return tuple(map(self._known, value.shape)) if isinstance(value, torch.Tensor) else None

    def _known(self, size: int | torch.SymInt) -> int | None:
        """A size in this call; ``None`` if values decide it."""
        if not isinstance(size, torch.SymInt):
            return size
        found = symbolic_expression(size).xreplace(self._symbols)
        if found.free_symbols:
            hint = symbolic_hint(size)
            return None if hint is None else int(hint)
        return int(found)

    def _largest(self) -> int:
        """Elements of the largest input: most ops with sizes that depend on values select of so many."""
        return max((value.numel() for value in self._inputs if isinstance(value, torch.Tensor)), default=0)

    def _shown_symbols(self) -> dict[sympy.Expr, sympy.Expr]:
        """Values of the symbols that the inputs show."""
        found: dict[sympy.Expr, sympy.Expr] = {}
        for node, given in zip(self._placeholders, self._inputs, strict=True):
            traced = node.meta.get("val")
            sizes = (
                zip(traced.shape, given.shape, strict=True) if isinstance(traced, torch.Tensor) else [(traced, given)]
            )
            for size, value in sizes:
                if isinstance(size, torch.SymInt) and symbolic_expression(size).is_Symbol:
                    found[symbolic_expression(size)] = sympy.Integer(int(value))
        return found


def _storage_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node that has the memory of a value: the value itself, or what it is a view of."""
    target: Any = node.target
    if target is operator.getitem or (is_operator(target) and target.is_view):
        return _storage_of(node.all_input_nodes[0])
    return node


def _part(value: Any, place: int, start: int, count: int) -> Any:
    """A part of a tensor along the axis at this place from the last; what is repeated along it stays whole."""
    if not isinstance(value, torch.Tensor) or value.dim() < place or value.shape[-place] == 1:
        return value
    return value.narrow(-place, start, count)
