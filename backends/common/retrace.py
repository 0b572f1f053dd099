"""Re-trace: a region's graph once more, with another decomposition table and with symbols of its own.

Place: called inside ``compile`` by backends whose ``Traits.decomposition`` is not ``"none"``.
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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
import torch.fx.traceback
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.backends.common.repeats import RepeatsCopied
from mixbackend.backends.common.written_last import WrittenLast
from mixbackend.contracts import Condition, DecompositionLevel, Region, RegionInput, SymbolicSize, TensorMeta
from mixbackend.contracts.torch_compat import (
    assumptions,
    decomposition_table,
    fresh_fake_mode,
    fresh_symbol,
    is_mutating,
    is_operator,
    storage_key,
    symbolic_expression,
    symbolic_integer,
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
        """What has been assumed about the region's sizes up to now, by tracing or by whoever compiled the graph.

        Raises:
            ValueError: an assumption cannot be stated as a condition.
        """
        bounds = {symbol: (size.lower, size.upper) for symbol, size in self.originals.items()}
        return tuple(_condition(guard, self.originals) for guard in assumptions(self.fake_mode, bounds))

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
    sizes = _FreshSizes(fake_mode, region.inputs)
    with tracing_apart(fake_mode), fake_mode, written_when_run(), symbolic_kernels(bool(sizes.originals)):
        inputs = (*sizes.symbols(), *(sizes.value(item) for item in region.inputs))
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


class _FreshSizes:
    """Values of a fake mode that look like a region's inputs, under new symbols."""

    def __init__(self, fake_mode: Any, inputs: Sequence[RegionInput]) -> None:
        self._fake_mode = fake_mode
        self._renamed: dict[sympy.Expr, sympy.Symbol] = {}
        self._places: list[str] = []
        self.originals: dict[sympy.Symbol, SymbolicSize] = {}
        shown = [*_sizes(inputs)]
        for place, size in shown:
            if size.expression.is_Symbol:
                self._rename(place, size)
        for place, size in shown:
            # A whole expression gets a symbol where its own symbols never enter the region.
            if not all(symbol in self._renamed for symbol in size.expression.free_symbols):
                self._rename(place, size)

    def symbols(self) -> tuple[Any, ...]:
        """The new symbols as numbers."""
        return tuple(symbolic_integer(self._fake_mode, symbol, size.hint) for symbol, size in self.originals.items())

    def arguments(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Reads the new symbols off a call's inputs, and puts them before these."""
        if not self._places:
            return list
        # As text, since it is asked in every call of a region; nothing but places and axes is in it.
        made: Callable[[Sequence[Any]], list[Any]] = eval(f"lambda inputs: [{', '.join(self._places)}, *inputs]")
        return made

    def value(self, item: RegionInput) -> Any:
        """A fake tensor or number for one region input."""
        meta = item.meta
        if isinstance(meta, TensorMeta):
            shape = [self.number(size) for size in meta.shape]
            stride = [self.number(step) for step in meta.stride]
            return torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
        if meta is None:
            raise ValueError(f"input {item.name} of the region is neither a tensor nor a number")
        return self.number(meta)

    def number(self, size: Any) -> Any:
        """A size of the region under the new symbols; plain numbers stay."""
        if not isinstance(size, SymbolicSize):
            return size
        if size.expression in self._renamed:
            return symbolic_integer(self._fake_mode, self._renamed[size.expression], size.hint)
        return symbolic_integer(self._fake_mode, size.expression.xreplace(self._renamed), size.hint)

    def _rename(self, place: str, size: SymbolicSize) -> None:
        """Give a size a symbol, and say where a call's inputs show it."""
        if size.expression in self._renamed:
            return
        if size.hint is None or not size.expression.is_integer:
            raise ValueError(f"size {size} depends on data")
        name = f"region_size_{len(self._renamed)}"
        new = fresh_symbol(self._fake_mode, name, size.hint, size.lower, size.upper)
        symbol = symbolic_expression(new)
        self._renamed[size.expression] = symbol
        self.originals[symbol] = size
        self._places.append(place)


def _sizes(inputs: Sequence[RegionInput]) -> Iterator[tuple[str, SymbolicSize]]:
    """Symbolic sizes of inputs with the text that reads them; strides are read where nothing else shows a size."""
    texts: list[tuple[str, Any]] = []
    for place, item in enumerate(inputs):
        if isinstance(item.meta, TensorMeta):
            texts += [(f"inputs[{place}].size({axis})", size) for axis, size in enumerate(item.meta.shape)]
        else:
            texts.append((f"inputs[{place}]", item.meta))
    for place, item in enumerate(inputs):
        if isinstance(item.meta, TensorMeta):
            texts += [(f"inputs[{place}].stride({axis})", step) for axis, step in enumerate(item.meta.stride)]
    yield from ((text, size) for text, size in texts if isinstance(size, SymbolicSize))


def _condition(guard: sympy.Basic, originals: dict[sympy.Symbol, SymbolicSize]) -> Condition:
    """A guard as a condition; ``a < b`` becomes ``b - a at least 1``."""
    back = {symbol: size.expression for symbol, size in originals.items()}
    hints = {symbol: sympy.Integer(size.hint) for symbol, size in originals.items()}

    def size_of(expression: sympy.Expr) -> SymbolicSize:
        return SymbolicSize(expression.xreplace(back), int(expression.xreplace(hints)), lower=-(2**62))

    match guard:
        case sympy.Eq(args=(left, right)):
            return Condition(size_of(left - right), "equal", 0)
        case sympy.Ne(args=(left, right)):
            return Condition(size_of(left - right), "other_than", 0)
        case sympy.Le(args=(left, right)) | sympy.Ge(args=(right, left)):
            return Condition(size_of(right - left), "at_least", 0)
        case sympy.Lt(args=(left, right)) | sympy.Gt(args=(right, left)):
            return Condition(size_of(right - left), "at_least", 1)
    raise ValueError(f"the compiler assumed {guard}, which cannot be stated as a condition on the region's sizes")
