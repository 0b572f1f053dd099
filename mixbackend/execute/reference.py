"""Reference: what a region's results would be in float64, and how far rounding alone takes them.

Place: below ``execute.verify``. Input: a region and the inputs of one call. Output: its outputs with every narrow
floating type widened, then the inputs that it writes.
Rounding noise comes of the same computation, with every value rounded up or down at random to the type that eager has
there, and with what an op sums moved as far as summing it in its type moves it, one term after the other: no result is
nearer to the truth than that, however small it is itself. Where the true value is zero, that is all there is to go by.
Invariants: inputs are not changed; what a region draws comes from torch's generators as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import Region, op_class_of
from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.torch_compat import is_operator, schema_arguments
from mixbackend.execute.eager_loops import Loop, LoopInterpreter
from mixbackend.execute.rounding import NEAREST, RandomRounding

NARROW = (torch.float16, torch.bfloat16, torch.float32)

DRAWS = 4
"""Of rounding noise, where each element of a result has its own."""

_ONE_BY_ONE = frozenset({"pointwise", "view", "copy", "factory", "gather", "sort", "random"})
"""Classes of ops that sum nothing: every element of theirs comes of one element of each operand."""


def wide_results(
    region: Region, inputs: Sequence[Any], rounding: RandomRounding | None = None, loop: Loop | None = None
) -> tuple[torch.Tensor, ...] | None:
    """Outputs in float64, then the inputs that were written; ``None`` where an operator has no such kernel."""
    interpreter = WideInterpreter(region, rounding, loop)
    try:
        result = interpreter.run(*inputs)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return (*result, *(interpreter.written[place] for place in region.written))


@dataclass
class RoundingNoise:
    """How far roundings move each result of a call, over draws of them that are made as they are asked for.

    Attributes:
        region, inputs: what is computed.
        exact: what ``wide_results`` returned.
        rewind: called before each draw, so that the region draws the same random numbers.
        loop: see ``eager_loops``.
    """

    region: Region
    inputs: Sequence[Any]
    exact: Sequence[torch.Tensor]
    rewind: Callable[[], None]
    loop: Loop | None = None
    _squares: list[torch.Tensor] = field(default_factory=list)
    _drawn: int = 0

    def of(self, index: int, draws: int = DRAWS) -> torch.Tensor:
        """The noise of one result, of so many draws or more; zeros where it is no floating one."""
        while self._drawn < draws:
            self._draw()
        return self._squares[index].div(self._drawn).sqrt() * NEAREST

    def _draw(self) -> None:
        self._squares = self._squares or [torch.zeros_like(value, dtype=torch.float64) for value in self.exact]
        self.rewind()
        drawn = wide_results(self.region, self.inputs, RandomRounding(self._drawn), self.loop) or self.exact
        for total, moved, value in zip(self._squares, drawn, self.exact, strict=True):
            if value.is_floating_point():
                total += (moved - value).double().nan_to_num(0.0, 0.0, 0.0).square()
        self._drawn += 1


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in NARROW:
        return value.to(torch.float64)
    return torch.float64 if value in NARROW and isinstance(value, torch.dtype) else value


class WideInterpreter(LoopInterpreter):
    """Runs a graph with every narrow floating dtype argument and result widened.

    Inputs are widened where they are first read, and dropped after their last use; those that the region writes into
    are copies, which stay.
    """

    def __init__(self, region: Region, rounding: RandomRounding | None = None, loop: Loop | None = None) -> None:
        super().__init__(region.graph_module, loop)
        self._rounding = rounding
        self.written: dict[int, torch.Tensor] = {}
        self._places = {str(node.target): place for place, node in enumerate(self.graph.find_nodes(op="placeholder"))}
        self._copied = frozenset(region.written)

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An input, widened."""
        value = super().placeholder(target, args, kwargs)
        wide, place = _widen(value), self._places[str(target)]
        if place in self._copied:
            self.written[place] = wide = wide.clone() if wide is value else wide
        return wide

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one op, some in the dtypes of the graph."""
        if means_its_dtype(n):
            arguments, keywords = self._operands(n, _as_traced)
            return torch.fx.node.map_aggregate(n.target(*arguments, **keywords), _widen)  # type: ignore[operator]
        if n.target is torch.ops.aten.gelu.default:
            return self._rounded(self._gelu(n), n)
        value: Any = _in_float64(n) if _has_default_type(n) else super().run_node(n)
        return self._rounded(value if self._rounding is None or not _sums(n) else self._summed(n, value), n)

    def _gelu(self, node: torch.fx.Node) -> Any:
        """As torch defines it. Far below 0, eager sums 1 and what is nearly -1, and keeps no digit of the difference,
        in float64 either: the exact value is right there, and eager as far off as what it adds to 1 is rounded."""
        arguments, keywords = self._operands(node, lambda value, source: _widen(value))
        value: torch.Tensor = arguments[0]
        if keywords.get("approximate", "none") == "tanh":
            twice = torch.sigmoid((value + 0.044715 * value**3) * math.sqrt(8.0 / math.pi)) * 2
        else:
            twice = torch.special.erfc(value * -math.sqrt(0.5))
        dtype = _floating_type(node)
        if self._rounding is not None and dtype is not None:
            # 16 bits are computed in 32.
            twice = self._rounding(twice - 1, torch.promote_types(dtype, torch.float32)) + 1
        return value * twice * 0.5

    def _summed(self, node: torch.fx.Node, exact: Any) -> Any:
        """What an op sums, as far off as its terms are: errors that cancel each other in exact arithmetic, as those of
        centred values do when they are summed, need not do so in a computer's."""
        sizes = [value.numel() for value in as_tuple(exact) if isinstance(value, torch.Tensor)]
        move = partial(self._moved, smallest=max(1, min(sizes, default=1)))
        arguments, keywords = self._operands(node, move)
        moved = self.call_function(node.target, arguments, keywords)
        if isinstance(exact, (tuple, list)):
            return tuple(map(self._apart, moved, exact))
        return self._apart(moved, exact)

    def _apart(self, moved: Any, exact: Any) -> Any:
        if self._rounding is None or not isinstance(exact, torch.Tensor) or self._is_written(moved):
            return moved
        return self._rounding.apart(moved, exact)

    def _operands(self, node: torch.fx.Node, change: Callable[[Any, torch.fx.Node], Any]) -> tuple[Any, Any]:
        """An op's arguments and keywords, with every operand changed."""
        sources = {source: change(self.env[source], source) for source in node.all_input_nodes}
        return torch.fx.node.map_arg((node.args, node.kwargs), sources.__getitem__)  # type: ignore[return-value]

    def _moved(self, value: Any, source: torch.fx.Node, smallest: int) -> Any:
        """An operand of a sum, each element moved; written inputs stay the tensors they are.

        Args:
            smallest: so many elements the smallest result has.
        """
        dtype = _floating_type(source)
        if self._rounding is None or dtype is None or value.dtype is not torch.float64 or self._is_written(value):
            return value
        if not value.numel():
            return value
        # Sums of 16 bits are made in 32.
        summed_in = dtype if dtype is torch.float64 else torch.float32
        return self._rounding.moved(value, summed_in, max(1.0, value.numel() / smallest))

    def _rounded(self, value: Any, node: torch.fx.Node) -> Any:
        """What an op computed, rounded to the type that eager has there."""
        dtype = _floating_type(node)
        if self._rounding is None or node.op != "call_function" or dtype is None:
            return value
        if value.dtype is not torch.float64 or self._is_written(value):
            return value
        return self._rounding(value, dtype)

    def _is_written(self, value: torch.Tensor) -> bool:
        return any(value is written for written in self.written.values())

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operator with wide arguments."""
        wide_args = torch.fx.node.map_aggregate(args, _widen)
        wide_kwargs = torch.fx.node.map_aggregate(kwargs, _widen)
        result = super().call_function(target, wide_args, wide_kwargs)  # type: ignore[arg-type]
        return torch.fx.node.map_aggregate(result, _widen)


def _has_default_type(node: torch.fx.Node) -> bool:
    """Whether an op makes numbers of nothing, in torch's default type because it names none (``linspace``)."""
    if node.op != "call_function" or not is_operator(node.target) or node.all_input_nodes:
        return False
    takes_dtype = any(argument.name == "dtype" for argument in schema_arguments(node.target))
    return takes_dtype and node.kwargs.get("dtype") is None and _floating_type(node) in NARROW


def _in_float64(node: torch.fx.Node) -> Any:
    target: Any = node.target
    return target(*node.args, **{**node.kwargs, "dtype": torch.float64})


def means_its_dtype(node: torch.fx.Node) -> bool:
    """Whether an op does something else with wider numbers: kernels of attention on a GPU misread them without a word,
    which random number an element gets depends on its dtype, and bits that are read as another type are other bits."""
    target: Any = node.target
    if not is_operator(target):
        return False
    if op_class_of(str(target)) == "attention":
        return _is_on_gpu(node)
    return torch.Tag.nondeterministic_seeded in target.tags or target is torch.ops.aten.view.dtype


def _sums(node: torch.fx.Node) -> bool:
    """Whether an op sums several numbers for one of its own. Which of equal ones is the largest is no sum: ops that
    return places or truths beside are none."""
    if not is_operator(node.target) or op_class_of(str(node.target)) in _ONE_BY_ONE:
        return False
    values = [value for value in as_tuple(node.meta.get("val")) if isinstance(value, torch.Tensor)]
    return all(value.is_floating_point() for value in values)


def _floating_type(node: torch.fx.Node) -> torch.dtype | None:
    """The type that a node's tensor has in the graph, if it is a floating one."""
    traced = node.meta.get("val")
    return traced.dtype if isinstance(traced, torch.Tensor) and traced.is_floating_point() else None


def _is_on_gpu(node: torch.fx.Node) -> bool:
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in values)


def _as_traced(value: Any, node: torch.fx.Node) -> Any:
    traced = node.meta.get("val")
    return value.to(traced.dtype) if isinstance(value, torch.Tensor) and isinstance(traced, torch.Tensor) else value
