"""Lowering: the ops of a region become stages, one rule each.

Place: first step of the code generator; ``schedule`` takes its ``StageGraph``.
Input: a region (its op views, inputs and outputs; never its fx graph). Output: a ``StageGraph``.
Invariants: every op defines its result as one stage, or as a view; what to inline is not decided here. Names are those
of the graph's nodes, so a stage can be traced to its op. Every result has the type and sizes that torch promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import all_index_expressions
from mixbackend.backends.codegen.ir.indices import index_symbol
from mixbackend.backends.codegen.ir.scalar import Bindings, Expr, Load, OperandTypeError, cast, compute_dtype
from mixbackend.backends.codegen.ir.stages import (
    OFFSET,
    SEED,
    Concatenate,
    Loop,
    Map,
    Operand,
    Part,
    Reduce,
    ReductionKind,
    Scan,
    ScanKind,
    Scatter,
    Stage,
    StridedInput,
    Template,
    TensorType,
    WriteMode,
)
from mixbackend.backends.codegen.ir.stages import Result as TemplateResult
from mixbackend.backends.codegen.ir.templates import is_place
from mixbackend.backends.codegen.lower.rules import RULES, RefusedError
from mixbackend.backends.codegen.lower.sizes import import_size
from mixbackend.backends.codegen.lower.tensor import Index, StridedView, Tensor
from mixbackend.contracts import (
    InputView,
    NodeRef,
    OpView,
    SymbolicSize,
    TensorMeta,
)

ValueFunction = Callable[[Index], Expr]
Result: TypeAlias = Tensor | tuple[Tensor | None, ...]

TAKE_APART = "getitem"
"""Operator that takes one of several results of an op: nothing to lower."""
STORAGE_TYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)
"""Types of tensors that stages are made of."""


class Lowering:
    """What a rule works with: the current op, and constructors of stages.

    Attributes:
        view: the op being lowered; its output metas tell a rule the sizes and types torch promises.
        ranges: sizes of all loop indices made so far.
        draws: how far the ops so far move the offset of torch's generator on.

    Args:
        drawing_threads: that torch's kernels for random numbers have at most; ``None`` where nothing draws as they do.
    """

    def __init__(self, drawing_threads: int | None = None) -> None:
        self.drawing_threads = drawing_threads
        self.draws: sympy.Expr = sympy.Integer(0)
        self.view: OpView | None = None
        self.ranges: dict[sympy.Symbol, sympy.Expr] = {}
        self.types: dict[str, TensorType] = {}
        self.stages: list[Stage] = []
        self._values: dict[str, Any] = {}
        self._contents: dict[str, str] = {}
        self._fixed: set[str] = set()
        self._named: dict[str, int] = {}

    # -- inputs and ops -------------------------------------------------------------------------------------------

    def bind(self, name: str, value: Any) -> None:
        """Make a value known under the name of a graph node."""
        self._values[name] = value

    def input(self, name: str, meta: TensorMeta) -> StridedInput:
        """Declare a tensor that the region reads."""
        sizes = tuple(map(import_size, meta.shape))
        strides = tuple(map(import_size, meta.stride))
        self.types[name] = TensorType(sizes, meta.dtype)
        view = StridedView(name, strides, sympy.Integer(0))
        self.bind(name, Tensor(sizes, meta.dtype, self._reader(name, meta.dtype), view))
        return StridedInput(name, self.types[name], strides)

    @property
    def contents(self) -> dict[str, str]:
        """Inputs that were written into, with the tensor that each holds now."""
        return dict(self._contents)

    def write_input(self, name: str, value: Tensor) -> None:
        """Let an input hold other values from now on, for everything that reads it or a view of it.

        Args:
            name: of the input.
            value: a stage's result.
        """
        before = dict(self._contents)
        for node in self._values.keys() - self._fixed:
            self._values[node] = self._as_before(self._values[node], before)
            self._fixed.add(node)
        load = value.at((sympy.Integer(0),) * value.rank)
        assert isinstance(load, Load)
        self._contents[name] = load.tensor

    def _as_before(self, value: Any, contents: dict[str, str]) -> Any:
        """A value that no write changes any more; views of inputs are left as they are."""
        if isinstance(value, tuple):
            return tuple(self._as_before(item, contents) for item in value)
        if not isinstance(value, Tensor) or value.strided is not None:
            return value

        def at(index: Index) -> Expr:
            now, self._contents = self._contents, contents
            try:
                return value.at(index)
            finally:
                self._contents = now

        return replace(value, at=at)

    @property
    def random_state(self) -> tuple[StridedInput, ...]:
        """The state of torch's generator, as inputs; declared where it is first asked for."""
        one = TensorType((sympy.Integer(1),), torch.int64)
        return tuple(StridedInput(name, self.types.setdefault(name, one), one.sizes) for name in (SEED, OFFSET))

    def lower(self, view: OpView) -> None:
        """Lower one op and bind its result.

        Raises:
            RefusedError: no rule, or its rule does not cover this use.
        """
        self.view = view
        if view.op == TAKE_APART:
            self.bind(view.node.name, self._argument(view.argument("self"))[view.argument("index")])
            return
        function = RULES.get(view.op)
        if function is None:
            raise RefusedError("unknown-op", f"no lowering rule for {view.op}")
        for meta in (*view.input_tensors, *view.output_tensors):
            if meta.dtype not in STORAGE_TYPES:
                raise RefusedError("dtype", f"{meta.dtype} has no compute type")
        for item in view.inputs:
            if item.name not in self._values:
                self._bind_number(item)
        arguments = {name: self._argument(value) for name, value in view.node.arguments}
        try:
            result = function(self, **arguments)
        except OperandTypeError as error:
            raise RefusedError("dtype", f"{view.op}: {error}") from error
        self._check(result)
        self.bind(view.node.name, result)

    def lower_match(self, views: Sequence[OpView], function: Callable[[Lowering, Sequence[OpView]], Result]) -> None:
        """Lower the ops of a pattern as one and bind the result of the last.

        Raises:
            RefusedError: the function does not cover this use.
        """
        self.view = views[-1]
        result = function(self, views)
        self._check(result)
        self.bind(self.view.node.name, result)

    def value(self, name: str) -> Any:
        """What a node's name is bound to."""
        return self._values[name]

    def _bind_number(self, item: InputView) -> None:
        """A number that the graph computes from sizes: an expression over the symbols that come in."""
        if not isinstance(item.meta, (int, SymbolicSize)):
            raise RefusedError("argument", f"{item.name} is a number that only the run knows")
        self.bind(item.name, import_size(item.meta))

    def _check(self, result: Result) -> None:
        """Hold a result against what torch promised; a difference is an error in the rule."""
        assert self.view is not None
        results = result if isinstance(result, tuple) else (result,)
        for tensor, meta in zip(results, self.view.outputs, strict=False):
            if not isinstance(tensor, Tensor) or not isinstance(meta, TensorMeta):
                continue
            agrees = tensor.rank == meta.rank and tensor.dtype == meta.dtype
            for own, size in zip(tensor.sizes, meta.shape, strict=agrees):
                agrees = agrees and (own == size or not own.is_Integer or not isinstance(size, int))
            if not agrees:
                found = f"{tensor.dtype}{list(tensor.sizes)}"
                raise RefusedError("backend-error", f"the rule of {self.view.op} gives {found}, torch promises {meta}")

    def _argument(self, value: Any) -> Any:
        if isinstance(value, NodeRef):
            return self._values[value.name]
        if isinstance(value, SymbolicSize):
            return import_size(value)
        if isinstance(value, tuple):
            return tuple(self._argument(item) for item in value)
        return value

    # -- the current op -------------------------------------------------------------------------------------------

    @property
    def output(self) -> TensorMeta:
        """Meta of the current op's first tensor output."""
        assert self.view is not None
        return self.view.output_tensors[0]

    @property
    def output_dtype(self) -> torch.dtype:
        """Storage type of the current op's first tensor output."""
        return self.output.dtype

    @property
    def output_sizes(self) -> Index:
        """Sizes of the current op's first tensor output."""
        return tuple(map(import_size, self.output.shape))

    def captured_size(self, size: sympy.Expr) -> int | None:
        """What a size was when the graph was captured, if the current op's tensors show it.

        It says how torch answered a question that it keeps as a guard, and nothing else about later calls.
        """
        assert self.view is not None
        if size.is_Integer:
            return int(size)
        for meta in (*self.view.input_tensors, *self.view.output_tensors):
            for known in meta.shape:
                if isinstance(known, SymbolicSize) and known.hint is not None and import_size(known) == size:
                    return known.hint
        return None

    def stage_name(self) -> str:
        """A fresh name for a stage of the current op: the node's own, then numbered."""
        assert self.view is not None
        base = self.view.node.name
        count = self._named.get(base, 0)
        self._named[base] = count + 1
        return base if count == 0 else f"{base}.{count}"

    # -- constructors of stages -----------------------------------------------------------------------------------

    def map(self, sizes: Sequence[Any], dtype: torch.dtype, value: ValueFunction, apart: bool = False) -> Tensor:
        """A tensor computed point by point; converts the value to the compute type of ``dtype`` if needed.

        Args:
            apart: see ``Map``.
        """
        name, loops = self.stage_name(), self.loops(sizes)
        expression = self.cast(value(_indices(loops)), compute_dtype(dtype))
        return self._define(Map(name, loops, expression, self._origins(), apart), loops, dtype)

    def lazy(self, sizes: Sequence[Any], dtype: torch.dtype, value: ValueFunction) -> Tensor:
        """A tensor without a stage: computed where it is read. For views and cheap values."""
        return Tensor(tuple(map(sympy.sympify, sizes)), dtype, value)

    def reduce(
        self,
        kind: ReductionKind,
        sizes: Sequence[Any],
        reduced: Sequence[Any],
        value: Callable[[Index, Index], Expr],
        dtypes: Sequence[torch.dtype],
    ) -> tuple[Tensor, ...]:
        """Fold ``value(index, reduced_index)`` over ``reduced``; one tensor of ``sizes`` per result of the kind.

        Args:
            dtypes: storage type of each result; its compute type must be the accumulator's (int64 for positions).
        """
        loops, inner = self.loops(sizes), self.loops(reduced)
        base = self.stage_name()
        names = [base if place == 0 else f"{base}.r{place}" for place in range(len(dtypes))]
        folded = value(_indices(loops), _indices(inner))
        stage = Reduce(tuple(names), loops, inner, kind, folded, self._origins())
        self.stages.append(stage)
        return tuple(self._declare(name, loops, dtype) for name, dtype in zip(names, dtypes, strict=True))

    def scan(self, kind: ScanKind, sizes: Sequence[Any], axis: int, value: ValueFunction, dtype: torch.dtype) -> Tensor:
        """Fold along ``axis``, every intermediate result kept."""
        name, loops = self.stage_name(), self.loops(sizes)
        expression = self.cast(value(_indices(loops)), compute_dtype(dtype))
        return self._define(Scan(name, loops, axis, kind, expression, self._origins()), loops, dtype)

    def concatenate(
        self, sizes: Sequence[Any], axis: int, parts: Sequence[tuple[Any, ValueFunction]], dtype: torch.dtype
    ) -> Tensor:
        """Put parts together along ``axis``; each part is its size there and its value at an index of its own."""
        name, loops = self.stage_name(), self.loops(sizes)
        start, pieces = sympy.Integer(0), []
        for size, value in parts:
            size = sympy.sympify(size)
            self.ranges[loops[axis].index] = size
            pieces.append(Part(size, start, self.cast(value(_indices(loops)), compute_dtype(dtype))))
            start = start + size
        self.ranges[loops[axis].index] = loops[axis].size
        return self._define(Concatenate(name, loops, axis, tuple(pieces), self._origins()), loops, dtype)

    def scatter(
        self,
        sizes: Sequence[Any],
        dtype: torch.dtype,
        base: ValueFunction,
        updates: Sequence[Any],
        destination: Callable[[Index], tuple[Index, Bindings]],
        value: ValueFunction,
        mode: WriteMode = "set",
        mask: ValueFunction | None = None,
    ) -> Tensor:
        """Start from ``base`` over ``sizes``, then write ``value`` of every index over ``updates`` to its destination.

        Args:
            destination: index of the target and the symbols in it that are bound to run-time integers.
            mask: which updates to make; ``None`` for all.
        """
        name, target_loops, loops = self.stage_name(), self.loops(sizes), self.loops(updates)
        place, bindings = destination(_indices(loops))
        stage = Scatter(
            target=name,
            target_loops=target_loops,
            base=self.cast(base(_indices(target_loops)), compute_dtype(dtype)),
            loops=loops,
            destination=tuple(map(sympy.sympify, place)),
            value=self.cast(value(_indices(loops)), compute_dtype(dtype)),
            mode=mode,
            bindings=bindings,
            mask=None if mask is None else mask(_indices(loops)),
            origins=self._origins(),
        )
        return self._define(stage, target_loops, dtype)

    def template(
        self,
        name: str,
        operands: Sequence[Tensor | None],
        results: Sequence[tuple[Sequence[Any], torch.dtype]],
        options: Sequence[tuple[str, bool | float]],
    ) -> tuple[Tensor, ...]:
        """Tensors that a template makes of whole tensors; an operand that is no tensor in memory is computed first.

        Args:
            results: sizes and storage type of each.
        """
        placed = tuple(None if tensor is None else self._operand(tensor) for tensor in operands)
        made, tensors = [], []
        for sizes, dtype in results:
            loops, target = self.loops(sizes), self.stage_name()
            made.append(TemplateResult(target, loops, _indices(loops)))
            tensors.append(self._declare(target, loops, dtype))
        self.stages.append(Template(name, placed, tuple(made), tuple(options), self._origins()))
        return tuple(tensors)

    def _operand(self, tensor: Tensor) -> Operand:
        loops = self.loops(tensor.sizes)
        index = _indices(loops)
        value = tensor.at(index)
        if is_place(value, loops) and isinstance(value, Load) and self.types[value.tensor].dtype == tensor.dtype:
            return Operand(loops, value)
        # Along dimensions that the value does not depend on, one element is enough.
        used = _symbols_in(value)
        sizes = [loop.size if loop.index in used else sympy.Integer(1) for loop in loops]
        load = self.map(sizes, tensor.dtype, tensor.at).at(
            tuple(place if place in used else sympy.Integer(0) for place in index)
        )
        assert isinstance(load, Load)
        return Operand(loops, load)

    # -- pieces of expressions ------------------------------------------------------------------------------------

    def loops(self, sizes: Sequence[Any]) -> tuple[Loop, ...]:
        """Fresh loops over sizes."""
        made = []
        for size in sizes:
            index = index_symbol(f"i{len(self.ranges)}")
            self.ranges[index] = sympy.sympify(size)
            made.append(Loop(index, self.ranges[index]))
        return tuple(made)

    def bound_symbol(self, size: Any) -> sympy.Symbol:
        """A fresh symbol for a run-time integer below ``size``, to be used in an index with a binding."""
        symbol = index_symbol(f"v{len(self.ranges)}")
        self.ranges[symbol] = sympy.sympify(size)
        return symbol

    def cast(self, value: Expr, dtype: torch.dtype) -> Expr:
        """Convert to a compute type, as torch converts."""
        return cast(value, dtype)

    def in_type(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor, stored in another type if it has one."""
        return tensor if tensor.dtype == dtype else self.map(tensor.sizes, dtype, tensor.at)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _define(self, stage: Any, loops: Sequence[Loop], dtype: torch.dtype) -> Tensor:
        self.stages.append(stage)
        return self._declare(stage.target, loops, dtype)

    def _declare(self, name: str, loops: Sequence[Loop], dtype: torch.dtype) -> Tensor:
        sizes = tuple(loop.size for loop in loops)
        self.types[name] = TensorType(sizes, dtype)
        return Tensor(sizes, dtype, self._reader(name, dtype))

    def _reader(self, name: str, dtype: torch.dtype) -> ValueFunction:
        return lambda index: Load(
            compute_dtype(dtype), self._contents.get(name, name), tuple(map(sympy.sympify, index))
        )

    def _origins(self) -> tuple[str, ...]:
        return () if self.view is None else (self.view.node.name,)


def _indices(loops: Sequence[Loop]) -> Index:
    return tuple(loop.index for loop in loops)


def _symbols_in(value: Expr) -> set[sympy.Symbol]:
    """Symbols of all indices in an expression."""
    return {symbol for part in all_index_expressions(value) for symbol in part.free_symbols}
