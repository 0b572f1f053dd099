"""Reads and stores as C++.

Place: used by the printer of values (reads) and of statements (stores).
Values of 16-bit floating types that are only moved are not converted: ``moved_as_bits`` makes them 16-bit integers, and
a pointer to elements that are accessed so is printed as one to integers.
Invariants: nothing outside the lanes in use and the mask is touched. Memory that the nest writes is read where the
program reads it, everything else as early as it can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from mixbackend.backends.codegen.ir.kernel import Nest, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, Read
from mixbackend.backends.codegen.targets.cpp.literals import compute_type, literal
from mixbackend.backends.codegen.targets.cpp.points import Access, Bound, PointPrinter
from mixbackend.backends.codegen.targets.cpp.scopes import Value

_HALF = (torch.float16, torch.bfloat16)
_COMBINE = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}
_COMBINE_BOOL = {"add": "or_", "mul": "and_", "max": "or_", "min": "and_"}


@dataclass(frozen=True)
class Memory:
    """What a nest touches.

    Attributes:
        dtypes: storage type of each buffer and scratch.
        stored: those that the nest writes.
    """

    dtypes: Mapping[str, torch.dtype]
    stored: frozenset[str]


def moved_as_bits(nest: Nest, memory: Memory) -> Nest:
    """Before and after, where both buffers hold bfloat16::

    y[i] = where(m[i], x[i]: float32, 1.0)      ->      y[i] = where(m[i], x[i]: int16, 0x3f80)
    """

    def statement(item: Statement) -> Statement:
        if not isinstance(item, Store) or item.mode != "set" or memory.dtypes[item.buffer] not in _HALF:
            return item
        bits = _bits_of(item.value, memory.dtypes[item.buffer], memory)
        return item if bits is None or isinstance(bits, Constant) else replace(item, value=bits)

    return replace(nest, body=tuple(map(statement, nest.body)), finish=tuple(map(statement, nest.finish)))


def _bits_of(value: Expr, dtype: torch.dtype, memory: Memory) -> Expr | None:
    """What a value is as an element of a type, as an integer; ``None`` if it is more than chosen among elements."""
    if isinstance(value, Constant):
        return Constant(torch.int16, _bits(value.value, dtype))
    if isinstance(value, Read) and memory.dtypes[value.buffer] == dtype:
        return replace(value, dtype=torch.int16, other=_bits(value.other, dtype))
    if not isinstance(value, Apply) or value.op != "where":
        return None
    condition, *choices = value.arguments
    bits = [_bits_of(choice, dtype, memory) for choice in choices]
    if any(item is None for item in bits):
        return None
    return Apply(torch.int16, "where", (condition, *(item for item in bits if item is not None)))


def _bits(number: float, dtype: torch.dtype) -> int:
    return int(torch.tensor(number, dtype=torch.float64).to(dtype).view(torch.int16).item())


def pointer_text(memory: Memory, buffer: str, dtype: torch.dtype, offset: str) -> str:
    """Pointer to elements of a buffer that are loaded or stored as values of a type."""
    text = buffer if offset == "0" else f"{buffer} + {offset}"
    return f"bits_at({text})" if dtype == torch.int16 and memory.dtypes[buffer] in _HALF else text


def read(point: PointPrinter, memory: Memory, node: Read, bound: Bound, mask: Value | None) -> Value:
    """The value of a read."""
    parts = [*bound.values(), *(() if mask is None else (mask,))]
    depth = max([point.depth(node.offset, bound), *(part.depth for part in parts)])
    buffers = frozenset().union(*(part.buffers for part in parts)) | ({node.buffer} & memory.stored)
    access = point.access(node.offset, bound)
    varying = access.kind != "same" or (mask is not None and mask.varying)
    pointer = pointer_text(memory, node.buffer, node.dtype, access.start)
    text = _read_text(point, node, access, pointer, mask)
    otherwise = point.constant(0, node.dtype, varying)
    return point.name(node, text, node.dtype, depth, varying, buffers, otherwise)


def _read_text(point: PointPrinter, node: Read, access: Access, pointer: str, mask: Value | None) -> str:
    other = literal(node.other, node.dtype)
    if mask is None or not mask.varying:
        if access.kind == "same":
            text = f"load_flag({pointer})" if node.dtype == torch.bool else f"load_scalar<{_type(node)}>({pointer})"
            return text if mask is None else f"({mask.text} ? {text} : {other})"
        text = _load(node.dtype, access, pointer, point.lane.count)
        return text if mask is None else f"({mask.text} ? {text} : {point.constant(node.other, node.dtype, True)})"
    lanes = _active_mask(point, mask)
    if _is_even(access, node.dtype):
        return f"load_even_masked<{_type(node)}>({pointer}, {lanes}, {other})"
    if access.kind == "contiguous":
        return f"{_name('load', '_masked', node.dtype)}({pointer}, {lanes}, {other})"
    offsets = _offsets(point, access)
    return f"{_name('load', '_gather_masked', node.dtype)}({pointer}, {offsets}, {lanes}, {other})"


def _load(dtype: torch.dtype, access: Access, pointer: str, count: str | None) -> str:
    """A load of all lanes, or the first of them."""
    form = {"contiguous": "", "strided": "_strided", "gathered": "_gather"}[access.kind]
    arguments = [pointer]
    if _is_even(access, dtype):
        form = "_even"
    elif access.step == "-1" and count is None and _has_one_register(dtype):
        form = "_backwards"
    elif access.kind == "strided":
        arguments.append(access.step)
    if access.offsets is not None:
        arguments.append(access.offsets.text)
    if count is not None:
        form, arguments = f"{form}_partial", [*arguments, count]
    return f"{_name('load', form, dtype)}({', '.join(arguments)})"


def store(point: PointPrinter, memory: Memory, node: Store, value: Value, bound: Bound, mask: Value | None) -> None:
    """Print a store."""
    access = point.access(node.offset, bound)
    pointer = pointer_text(memory, node.buffer, value.dtype, access.start)
    if point.lane.vector is None:
        line = _scalar_store(node, pointer, value)
    else:
        line = _vector_store(point, node, access, pointer, value, mask)
    if mask is not None and not mask.varying:
        line = f"if ({mask.text}) {line}"
    point.stack.emit(line)
    point.stack.forget(node.buffer)


def _scalar_store(node: Store, pointer: str, value: Value) -> str:
    if node.mode == "set":
        return f"store_scalar({pointer}, {value.text});"
    # What is in memory is combined in the type of the value: 16-bit floats are widened first.
    function, compute = _combine(node, value), compute_type(value.dtype)
    if node.atomic:
        return f"atomic_update({pointer}, [=]({compute} old) {{ return {function}(old, {value.text}); }});"
    old = f"load_flag({pointer})" if value.dtype == torch.bool else f"load_scalar<{compute}>({pointer})"
    return f"store_scalar({pointer}, {function}({old}, {value.text}));"


def _vector_store(
    point: PointPrinter, node: Store, access: Access, pointer: str, value: Value, mask: Value | None
) -> str:
    text, count = point.broadcast(value), point.lane.count
    lanes = None if mask is None or not mask.varying else _active_mask(point, mask)
    if node.mode != "set":
        # Lanes that are not stored may hold anything: where all are in memory, all are loaded.
        masked = f"{_name('load', '_gather_masked', value.dtype)}({pointer}, {_offsets(point, access)}, {lanes}, 0)"
        old = _load(value.dtype, access, pointer, count) if lanes is None else masked
        text = f"{_combine(node, value)}({old}, {text})"
    if value.dtype == torch.bool:
        text = f"ones_of({text})"
    if access.kind == "gathered":
        assert access.offsets is not None
        function = "scatter_lanes" if lanes is None else "scatter_masked"
        return f"{function}({pointer}, {access.offsets.text}, {text}, {lanes or count or 'lanes'});"
    form = "store_strided" if access.kind == "strided" else "store"
    arguments = [pointer, access.step, text] if access.kind == "strided" else [pointer, text]
    if lanes is not None:
        return f"{form}_masked({', '.join(arguments)}, {lanes});"
    if count is not None:
        return f"{form}_partial({', '.join(arguments)}, {count});"
    return f"{form}({', '.join(arguments)});"


def _combine(node: Store, value: Value) -> str:
    return (_COMBINE_BOOL if value.dtype == torch.bool else _COMBINE)[node.mode]


def _is_even(access: Access, dtype: torch.dtype) -> bool:
    return access.step == "2" and _has_one_register(dtype)


def _has_one_register(dtype: torch.dtype) -> bool:
    return compute_type(dtype) in ("float", "i32")


def _offsets(point: PointPrinter, access: Access) -> str:
    if access.offsets is not None:
        return access.offsets.text
    step = {"same": "0", "contiguous": "1"}.get(access.kind, access.step)
    return f"mul(iota<i64>(0), broadcast<i64>({step}))"


def _active_mask(point: PointPrinter, mask: Value) -> str:
    return mask.text if point.lane.count is None else f"and_({mask.text}, {point.active()})"


def _name(function: str, form: str, dtype: torch.dtype) -> str:
    return f"{function}_mask{form}" if dtype == torch.bool else f"{function}{form}<{compute_type(dtype)}>"


def _type(node: Read) -> str:
    return compute_type(node.dtype)
