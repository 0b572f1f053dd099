"""Statements as C++, for every copy of the current point.

Place: below the printer of loops.
Input: statements and the copies they are printed for. Output: lines in the current block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import flatten
from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry, KernelLoop, Let, Nest, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Apply, Expr
from mixbackend.backends.codegen.ir.stages import ScanKind
from mixbackend.backends.codegen.targets.cpp.accumulators import Accumulator
from mixbackend.backends.codegen.targets.cpp.literals import compute_type, highest, literal, lowest
from mixbackend.backends.codegen.targets.cpp.memory import Memory, store
from mixbackend.backends.codegen.targets.cpp.points import Lane, PointPrinter
from mixbackend.backends.codegen.targets.cpp.scopes import Value
from mixbackend.backends.codegen.targets.cpp.values import ValuePrinter


class StatementPrinter:
    """Prints statements.

    Attributes:
        lanes: copies to print for.
        running: whether lanes count the ordered loop.
        accumulators: of the reduction that is open, by first name.
    """

    def __init__(self, nest: Nest, point: PointPrinter, memory: Memory, running: bool = False) -> None:
        self.running = running
        self._nest = nest
        self._point = point
        self._memory = memory
        self._values = ValuePrinter(point, memory)
        self.lanes: tuple[Lane, ...] = (Lane(),)
        self.accumulators: Mapping[str, Accumulator] = {}

    def print(self, statements: Sequence[Statement]) -> None:
        """All statements, copy after copy."""
        for lane in self.lanes:
            self._point.lane = lane
            for statement in statements:
                self._statement(statement)
        self._point.lane = self.lanes[0]

    def define(self, name: str, text: str, dtype: torch.dtype, copy: int) -> None:
        """Name a result that statements know as a ``Local``."""
        stack = self._point.stack
        varying = self._point.lane.vector is not None
        value = stack.define(("result", name, copy), text, Value("", dtype, stack.depth, varying))
        self._values.locals[name, copy] = value

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Store):
            self._store(statement)
            return
        if isinstance(statement, Accumulate) and statement.kind == "sum":
            for product in _products(statement.value):
                self._accumulate(statement, self._values.value(product))
            return
        value = self._values.value(statement.value)
        if isinstance(statement, Let):
            self._values.locals[statement.name, self._point.lane.copy] = value
        elif isinstance(statement, Accumulate):
            self._accumulate(statement, value)
        else:
            self._carry(statement, value)

    def _store(self, statement: Store) -> None:
        value = self._values.value(statement.value)
        mask = None if statement.mask is None else self._values.value(statement.mask)
        bound = self._values.bound(statement.bindings)
        store(self._point, self._memory, statement, value, bound, mask)

    # -- reductions -----------------------------------------------------------------------------------------------

    def _accumulate(self, statement: Accumulate, value: Value) -> None:
        accumulator = self.accumulators[statement.names[0]]
        lane = self._point.lane
        masked = accumulator.shape.across and lane.count is not None
        active = self._point.active() if masked else ""
        position = self._position() if statement.kind in ("argmax", "argmin") else ""
        self._point.stack.emit(*accumulator.update(lane.copy, self._point.broadcast(value), position, active))

    def _position(self) -> str:
        """Row-major position over the reduced loops."""
        loops: Iterable[KernelLoop] = self._nest.reduced
        position = sympy.sympify(flatten([loop.index for loop in loops], [loop.extent for loop in loops]))
        if self._point.lane.vector is None:
            return f"i64({self._point.text(position)})"
        return self._point.lanes_text(position)

    # -- running results ------------------------------------------------------------------------------------------

    def start_carries(self) -> None:
        """Declare running results, before the ordered loop."""
        carries = [item for item in (*self._nest.body, *self._nest.finish) if isinstance(item, Carry)]
        for number, item in enumerate(carries):
            for lane in self.lanes:
                is_vector = self.running or lane.vector is not None
                self._point.stack.emit(_declared(item, f"c{number}_{lane.copy}", is_vector))

    def _carry(self, statement: Carry, value: Value) -> None:
        carries = [item for item in (*self._nest.body, *self._nest.finish) if isinstance(item, Carry)]
        name = f"c{carries.index(statement)}_{self._point.lane.copy}"
        running = _carry_dtype(statement)
        text = self._point.broadcast(value)
        if running != value.dtype:
            text = f"convert<double>({text})"
        result = name
        if self.running:
            result = f"running_{statement.kind}({name}, {text}, {_start(statement)})"
        else:
            self._point.stack.emit(f"{name} = {_CARRY[statement.kind]}({name}, {text});")
        if running != value.dtype:
            result = f"convert<{compute_type(value.dtype)}>({result})"
        self.define(statement.name, result, value.dtype, self._point.lane.copy)


def _products(value: Expr) -> tuple[Expr, ...]:
    """Products that a folded value is the sum of: added one by one they are fused with their additions."""
    if isinstance(value, Apply) and value.op == "add" and value.dtype.is_floating_point:
        parts = tuple(part for argument in value.arguments for part in _products(argument))
        return parts if all(isinstance(part, Apply) and part.op == "mul" for part in parts) else (value,)
    return (value,)


_CARRY: Mapping[ScanKind, str] = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "logsumexp": "log_add_exp",
}


def _carry_dtype(statement: Carry) -> torch.dtype:
    """Running sums are kept in float64; a product in the type of its values, as eager keeps it.

    The values of 16-bit types are float32: a product that has left their range does not come back.
    """
    dtype = statement.value.dtype
    return torch.float64 if statement.kind in ("sum", "logsumexp") and dtype.is_floating_point else dtype


def _start(statement: Carry) -> str:
    """The result of nothing."""
    dtype = _carry_dtype(statement)
    if statement.kind in ("max", "logsumexp"):
        return lowest(dtype)
    if statement.kind == "min":
        return highest(dtype)
    return literal(0 if statement.kind == "sum" else 1, dtype)


def _declared(statement: Carry, name: str, vector: bool) -> str:
    kind, start = compute_type(_carry_dtype(statement)), _start(statement)
    return f"Vec<{kind}> {name} = broadcast<{kind}>({start});" if vector else f"{kind} {name} = {start};"
