"""In place: what a kernel writes into an input, and what that input held before, become one buffer.

Place: after ``build``, before ``assemble``.
Input: a kernel with two buffers for an input ``x`` and the tensor written into it, ``x.new``.
Output: the same with one. What would store an element where it was read from is dropped, so that an update of some rows
of a large buffer touches those rows only.
Invariants: the kernel reads ``x`` only at points before they are written, see ``write_inputs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mixbackend.backends.codegen.ir.kernel import AnyKernel, BufferParameter, Nest, Statement, Store, TemplateKernel
from mixbackend.backends.codegen.ir.scalar import Read
from mixbackend.backends.codegen.schedule.draft import Draft, on_buffers
from mixbackend.backends.codegen.schedule.finished import work_of
from mixbackend.backends.codegen.schedule.templates import renamed_buffers
from mixbackend.backends.codegen.targets.target import TargetTraits


def in_place(kernel: AnyKernel, homes: Mapping[str, str], traits: TargetTraits) -> AnyKernel | None:
    """The kernel on memory that there is; ``None`` if nothing is left to do.

    Args:
        homes: inputs that are written into, by the tensor that is.
    """
    if not any(buffer.name in homes for buffer in kernel.buffers):
        return kernel
    if isinstance(kernel, TemplateKernel):
        return renamed_buffers(kernel, homes)
    nests = tuple(nest for nest in (_nest(nest, homes) for nest in kernel.nests) if nest.body or nest.finish)
    if not nests:
        return None
    buffers: dict[str, BufferParameter] = {}
    for buffer in kernel.buffers:
        name = homes.get(buffer.name, buffer.name)
        is_read = buffer.access == "read" and buffers.get(name, buffer).access == "read"
        is_input = name in homes.values()
        access = "read" if is_read else "update" if is_input else buffer.access
        buffers[name] = BufferParameter(name, buffer.dtype, access)
    dtypes = {name: buffer.dtype for name, buffer in buffers.items()}
    dtypes.update((item.name, item.dtype) for item in kernel.scratch)
    work = work_of(Draft(kernel.outer, nests, kernel.scratch, dtypes), traits)
    return replace(kernel, buffers=tuple(buffers.values()), nests=nests, work=work)


def _nest(nest: Nest, homes: Mapping[str, str]) -> Nest:
    moved = on_buffers(nest, homes)
    body, finish = (tuple(item for item in part if not _changes_nothing(item)) for part in (moved.body, moved.finish))
    return replace(moved, body=body, finish=finish)


def _changes_nothing(statement: Statement) -> bool:
    """Whether a statement stores an element where it was just read."""
    if not isinstance(statement, Store) or not isinstance(statement.value, Read):
        return False
    value = statement.value
    is_plain = statement.mode == "set" and not statement.bindings and not value.bindings and value.mask is None
    return is_plain and (value.buffer, value.offset) == (statement.buffer, statement.offset)
