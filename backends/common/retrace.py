"""Re-trace: a region's graph once more, with another decomposition table and with symbols of its own.

Place: called inside ``compile`` by backends with a ``Traits.decomposition`` other than ``"none"``.
Input: a ``Region`` and a level. Output: a graph with a placeholder per symbol, and then the same placeholders and
outputs in the same order.
Invariants: the region is only read. The new graph's symbols are its own: whatever a compiler asks about them adds no
guard to the captured graph. Each is a placeholder, as in torch's own graphs: a pass finds it before anything that it
inserts, and guards of a compiler's cache can be asked of it. What was assumed about sizes can be had as conditions on
the region's sizes (``preconditions``). An output shares an input's storage only where the region declares it. Node
metadata is kept.
What the region writes into inputs is written at the end (``written_last``).
Non-goals: sizes that depend on data, other mutation, random ops; no such op reaches a region of a backend that
re-traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
import torch.fx.traceback
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.backends.common.repeats import RepeatsCopied
from mixbackend.backends.common.written_last import WrittenLast
from mixbackend.contracts import Condition, DecompositionLevel, Region, SymbolicSize
from mixbackend.contracts.fresh_sizes import FreshSizes, assumed
from mixbackend.contracts.torch_compat import (
    decomposition_table,
    fresh_fake_mode,
    is_mutating,
    is_operator,
    storage_key,
    symbolic_expression,
    symbolic_kernels,
    tracing_apart,
    written_when_run,
)


@dataclass(frozen=True)
class Retraced:
    """A re-traced region.

    Attributes:
        graph_module: the new graph; ``meta["val"]`` of its nodes are fake values of ``fake_mode``.
        inputs: the fake values of its placeholders, in order; those of the symbols come first.
        fake_mode: owner of the fake values and of the new symbols.
        originals: the region's size behind each new symbol, in the order of their placeholders.
        arguments: makes the graph's arguments of the region's.
    """

    graph_module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    fake_mode: Any
    originals: dict[sympy.Symbol, SymbolicSize]
    arguments: Callable[[Sequence[Any]], list[Any]]

    def preconditions(self) -> tuple[Condition, ...]:
        """What has been assumed about the region's sizes up to now, by tracing or by the code that compiled the graph.

        Raises:
            ValueError: an assumption cannot be stated as a condition.
        """
        return assumed(self.fake_mode, self.originals)

    def output_values(self) -> tuple[torch.Tensor, ...]:
        """Fake values of the outputs."""
        output = next(iter(self.graph_module.graph.find_nodes(op="output")))
        return tuple(node.meta["val"] for node in output.args[0])

    def output_strides(self) -> tuple[tuple[int | sympy.Expr, ...], ...]:
        """Strides of the outputs, in the region's sizes."""
        back = {symbol: size.expression for symbol, size in self.originals.items()}
        return tuple(
            tuple(
                step if isinstance(step, int) else symbolic_expression(step).xreplace(back) for step in value.stride()
            )
            for value in self.output_values()
        )


def retrace_apart(region: Region, level: DecompositionLevel) -> Retraced:
    """Decompose a region's graph to a level under symbols of its own.

    Raises:
        ValueError: the region has sizes that depend on data, or a decomposition mutates.
    """
    fake_mode = fresh_fake_mode()
    sizes = FreshSizes(fake_mode, [item.meta for item in region.inputs])
    with tracing_apart(fake_mode), fake_mode, written_when_run(), symbolic_kernels(bool(sizes.originals)):
        inputs = (*sizes.symbols(), *(sizes.value(item.meta) for item in region.inputs))
        graph_module = make_fx(
            _runner(region, len(sizes.originals)),
            decomposition_table=decomposition_table(level),
            tracing_mode="real",
            _allow_non_fake_inputs=True,
        )(*inputs)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    _refuse_mutation(graph_module, len(region.written))
    return Retraced(graph_module, inputs, fake_mode, sizes.originals, sizes.arguments())


def _runner(region: Region, symbols: int) -> Any:
    """The region as a function of its symbols and inputs; the interpreter carries the node metadata over."""

    def run(*given: Any) -> tuple[torch.Tensor, ...]:
        arguments = given[symbols:]
        with torch.fx.traceback.preserve_node_meta():
            interpreter = WrittenLast if region.written else RepeatsCopied
            results = interpreter(region.graph_module).run(*arguments)
        taken = {storage_key(item) for item in arguments if isinstance(item, torch.Tensor)}
        declared = [output.alias_of is not None for output in region.outputs]
        # A decomposition may return its input where eager copies: the copy is part of the region's meaning.
        return tuple(
            item if may_alias or storage_key(item) not in taken else torch.ops.aten.clone.default(item)
            for item, may_alias in zip(results, declared, strict=True)
        )

    return run


def _refuse_mutation(graph_module: torch.fx.GraphModule, written: int) -> None:
    """Refuse all writes but the last ones, of the inputs that the region writes into."""
    last = [node for node in graph_module.graph.nodes if node.op == "call_function"][-written:] if written else []
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and is_operator(node.target) and is_mutating(node.target):
            if node in last and node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
                continue
            raise ValueError(f"the decomposition contains {node.target}, which writes into its input")
