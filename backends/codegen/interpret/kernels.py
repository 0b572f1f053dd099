"""The meaning of kernels: run a ``Kernel`` on flat memory with torch.

Place: the oracle for what ``schedule`` builds and for what targets compile.
Input: a kernel, flat tensors for its buffers, values of its parameters and numbers. Output: changed buffers.
Invariants: all points of open order run side by side, statement by statement, ``ordered`` loops step by step; a kernel
with a result that depends on an open order is an error (``memory`` watches every access).
Non-goals: speed beyond a few hundred thousand points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch

from mixbackend.backends.codegen.interpret.folds import combine, fold
from mixbackend.backends.codegen.interpret.indices import Value, Values, evaluate_index, evaluate_size
from mixbackend.backends.codegen.interpret.memory import Memory, Owners, garbage
from mixbackend.backends.codegen.interpret.points import Element, Points, as_positions, find_outside
from mixbackend.backends.codegen.interpret.table import PointTable, numbered, one_point
from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry, Kernel, Let, Nest, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Read
from mixbackend.contracts import IrError


@torch.no_grad()
def interpret_kernel(
    kernel: Kernel,
    buffers: Mapping[str, torch.Tensor],
    parameters: Mapping[sympy.Symbol, int],
    numbers: Mapping[sympy.Symbol, float],
) -> None:
    """Run a kernel.

    Args:
        buffers: flat memory of every buffer parameter, of its type; written in place.
        parameters, numbers: value of every parameter and number.

    Raises:
        IrError: it reads or writes out of range or what was not written, or depends on an order that is open.
    """
    known: dict[sympy.Symbol, Value] = {**parameters, **numbers}
    outer = one_point().extended(kernel.outer, known).as_outer()
    memory: dict[str, Memory] = {}
    for item in kernel.buffers:
        data = buffers[item.name]
        if data.dtype != item.dtype:
            raise IrError(f"{item.name} is of type {item.dtype}, got {data.dtype}", where=str(kernel))
        memory[item.name] = Memory(item.name, data, item.access)
    for scratch in kernel.scratch:
        elements = evaluate_size(scratch.elements, known) * outer.count
        memory[scratch.name] = Memory(scratch.name, garbage(elements, scratch.dtype), "write", outer.count)
    for nest in kernel.nests:
        for touched in memory.values():
            touched.start_nest()
        _NestRun(kernel, nest, memory, known).run(outer)


class _NestPoints(Points):
    """Points of a nest as a grid: points of ``loops`` times points of ``reduced``."""

    def __init__(
        self,
        shape: Sequence[int],
        values: Values,
        owners: Owners,
        memory: Mapping[str, Memory],
        names: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__(shape, values)
        self._owners = owners
        self._memory = memory
        self._names = names

    def flat(self, value: torch.Tensor) -> torch.Tensor:
        """A value at every point, in order."""
        return self.whole(value).reshape(-1)

    @property
    def owners(self) -> Owners:
        """What makes an access at every point, in order."""
        return Owners(self.flat(self._owners.outer.unsqueeze(1)), self.flat(self._owners.lane.unsqueeze(1)))

    def local(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise IrError(f"the local value {name} is used before it is computed")
        return self._names[name]

    def element(self, node: Element, symbols: Values, mask: torch.Tensor | None) -> torch.Tensor:
        if not isinstance(node, Read):
            raise IrError(f"a kernel loads a tensor, it may only read buffers: {node}")
        memory = find_memory(self._memory, node.buffer)
        offsets, wanted = self.places(memory, node.offset, symbols, mask)
        read = memory.read(offsets[wanted], self.owners.chosen(wanted)).to(node.dtype)
        result = torch.full(offsets.shape, node.other, dtype=node.dtype)
        result[wanted] = read
        return result.reshape(self.shape)

    def places(
        self, memory: Memory, offset: sympy.Expr, symbols: Values, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Offset at every point, and whether it counts there; those that count are in range."""
        position = as_positions(evaluate_index(offset, symbols))
        wrong, _ = find_outside([position], [memory.elements], None if mask is None else self.whole(mask))
        if wrong and position.expand(self.shape).numel() > 0:
            raise IrError(f"{memory.name} has {memory.elements} elements, {offset} = {wrong[0]} is out of range")
        wanted = torch.ones((), dtype=torch.bool) if mask is None else mask
        return self.flat(position), self.flat(wanted)


def find_memory(memory: Mapping[str, Memory], name: str) -> Memory:
    """A buffer or scratch by name."""
    if name not in memory:
        raise IrError(f"there is no buffer {name}")
    return memory[name]


class _NestRun:
    """One nest: runs its points, keeps what its loops carry."""

    def __init__(self, kernel: Kernel, nest: Nest, memory: Mapping[str, Memory], known: Values) -> None:
        self._kernel = kernel
        self._nest = nest
        self._memory = memory
        self._known = known
        self._lanes = 0
        self._carried: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def run(self, outer: PointTable) -> None:
        """Run all points below the outer points."""
        table = outer.extended(self._nest.loops, self._known)
        ordered = [loop.index for loop in self._nest.loops if loop.mode == "ordered"]
        table = table.with_lanes([loop.index for loop in self._nest.loops if loop.mode != "ordered"])
        self._lanes = int(table.lane.max()) + 1 if table.count else 0
        used = {symbol for loop in self._nest.reduced for symbol in loop.extent.free_symbols}
        ragged = [symbol for symbol in table.columns if symbol in used]
        for step in table.split(ordered):
            for part in step.split(ragged):
                self._run_points(part, ragged)

    def _run_points(self, table: PointTable, uniform: Sequence[sympy.Symbol]) -> None:
        """Run points that agree in the extents of ``reduced``."""
        if table.count == 0:
            return
        common = {symbol: int(table.columns[symbol][0]) for symbol in uniform}
        reduced = one_point().extended(self._nest.reduced, {**self._known, **common})
        rows = {symbol: column.unsqueeze(1) for symbol, column in table.columns.items()}
        names: dict[str, torch.Tensor] = {}
        results: dict[str, torch.Tensor] = {}
        body = _NestPoints(
            (table.count, reduced.count),
            {**self._known, **rows, **reduced.columns},
            table.owners,
            self._memory,
            names,
        )
        for statement in self._nest.body:
            self._run(statement, body, table, names, results)
        finish = _NestPoints((table.count, 1), {**self._known, **rows}, table.owners, self._memory, results)
        for statement in self._nest.finish:
            self._run(statement, finish, table, results, results)

    def _run(
        self,
        statement: Statement,
        points: _NestPoints,
        table: PointTable,
        names: dict[str, torch.Tensor],
        results: dict[str, torch.Tensor],
    ) -> None:
        try:
            match statement:
                case Let():
                    (names[statement.name],) = points.evaluate(statement.value)
                case Accumulate():
                    (value,) = points.evaluate(statement.value)
                    folded = fold(statement.kind, points.whole(value))
                    results.update(
                        {name: item.unsqueeze(1) for name, item in zip(statement.names, folded, strict=True)}
                    )
                case Carry():
                    (value,) = points.evaluate(statement.value)
                    names[statement.name] = self._carry(statement, points.whole(value), table)
                case Store():
                    self._store(statement, points)
        except IrError as error:
            place = [error.where, str(statement), f"of {self._nest}", f"of {self._kernel}"]
            raise IrError(error.what, where="\n".join(filter(None, place))) from error

    def _carry(self, statement: Carry, value: torch.Tensor, table: PointTable) -> torch.Tensor:
        """One step of a scan: every lane goes on from its own running result."""
        if statement.name not in self._carried:
            fresh = torch.zeros(self._lanes, dtype=value.dtype), torch.zeros(self._lanes, dtype=torch.bool)
            self._carried[statement.name] = fresh
        running, started = self._carried[statement.name]
        flat, lane = value.squeeze(1), table.lane
        result = torch.where(started[lane], combine(statement.kind, running[lane], flat), flat)
        running[lane] = result
        started[lane] = True
        return result.unsqueeze(1)

    def _store(self, statement: Store, points: _NestPoints) -> None:
        mask = () if statement.mask is None else (statement.mask,)
        bound = tuple(value for _, value in statement.bindings)
        value, *rest = points.evaluate(statement.value, *mask, *bound)
        memory = find_memory(self._memory, statement.buffer)
        symbols = points.bound(statement.bindings, dict(zip(bound, rest[len(mask) :], strict=True)))
        offsets, wanted = points.places(memory, statement.offset, symbols, rest[0] if mask else None)
        places, owners = offsets[wanted], points.owners.chosen(wanted)
        if statement.mode != "set" and not statement.atomic:
            self._check_vector(statement, points, wanted, places)
        memory.write(places, points.flat(value)[wanted], statement.mode, statement.atomic, owners)

    def _check_vector(self, statement: Store, points: _NestPoints, wanted: torch.Tensor, places: torch.Tensor) -> None:
        """Lanes of a vector load, combine and store together: two of them must not combine with one element."""
        loops = (*self._nest.loops, *self._nest.reduced)
        vector = [loop.index for loop in loops if loop.mode == "vector"]
        if not vector or places.numel() == 0:
            return
        indices = [loop.index for loop in (*self._kernel.outer, *loops) if loop.index not in vector]
        columns = [points.flat(as_positions(points.values[index]))[wanted] for index in indices]
        numbers, count = numbered([*columns, places])
        if count < numbers.numel():
            raise IrError(f"lanes of a vector {statement.mode} to one element of {statement.buffer}")
