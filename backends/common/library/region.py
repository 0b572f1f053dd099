"""Region: from written text to the compiled region of a library backend.

Place: last step of a library backend's ``compile``. Input: a region and the library. Output: ``CompiledRegion`` with a
``bind`` that prepares constants once and closes the same kind of function over them.
Invariants: nothing is derived from weights outside ``bind``; a bound function shares what needed no copy with the
caller, and ``constant_bytes`` counts the rest; the text of the bound function is compiled once per region.
Non-goals: artifacts. Writing and compiling a region takes milliseconds.
"""

from __future__ import annotations

import functools
import itertools
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.backends.common.library.rules import Library
from mixbackend.backends.common.library.writer import Written, write_function
from mixbackend.contracts import BoundRun, CompiledRegion, InputRole, Region, RegionSketch, Unsupported
from mixbackend.contracts.region import BindFunction

_numbers = itertools.count()
_FREE = frozenset({"view", "copy", "factory"})


def compile_region(region: Region, library: Library, label: str) -> CompiledRegion:
    """Compile a region of ops that the library knows.

    Args:
        label: of the backend, for file names in tracebacks.
    """
    written = write_function(region, library, bound=False)
    constants = any(item.role is InputRole.CONSTANT for item in region.inputs)
    return CompiledRegion(
        run=_load(written, label)(),
        bind=_binder(region, library, label) if constants else None,
        source=written.text,
        strides="as_traced" if written.faithful else "unknown",
        notes=(f"{len(region.matches)} fused patterns",) if region.matches else (),
    )


def without_work(sketch: RegionSketch) -> Unsupported | None:
    """The refusal of a region that only moves or renames data: eager does that as well."""
    if any(view.op_class not in _FREE and view.op != "getitem" for view in sketch.views):
        return None
    return Unsupported("region-too-small", "nothing but views and copies")


def _load(written: Written, label: str) -> Callable[..., Any]:
    filename = f"<mixbackend {label} {next(_numbers)}>"
    namespace = dict(written.values)
    exec(compile(written.text, filename, "exec"), namespace)
    linecache.cache[filename] = (len(written.text), None, written.text.splitlines(keepends=True), filename)
    # Out of its own globals: what is let go of is free at once, without a collection of garbage.
    return namespace.pop("make")


def _binder(region: Region, library: Library, label: str) -> BindFunction:
    @functools.cache
    def bound() -> tuple[Written, Callable[..., Any]]:
        written = write_function(region, library, bound=True)
        return written, _load(written, label)

    def bind(constants: Sequence[torch.Tensor | None]) -> BoundRun:
        written, make = bound()
        given = {item.name: value for item, value in zip(region.inputs, constants, strict=True) if value is not None}
        values = _derive(written.derived, given)
        made = [item.derive(values[item.source]) for item in written.prepared]
        packed = sum(isinstance(item, torch.Tensor) and item.is_mkldnn for item in made)
        notes = (f"{packed} weights packed",) if packed else ()
        return BoundRun(make(*made), constant_bytes=_own_bytes(made, list(given.values())), notes=notes)

    return bind


def _derive(nodes: Sequence[torch.fx.Node], given: dict[str, torch.Tensor]) -> dict[str, Any]:
    values: dict[str, Any] = dict(given)
    for node in nodes:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: values[source.name])
        values[node.name] = node.target(*arguments[0], **arguments[1])  # type: ignore[operator]
    return values


def _own_bytes(made: Sequence[Any], given: Sequence[torch.Tensor]) -> int:
    """Bytes of what was made and shares no memory with what was given."""
    shared = {tensor.untyped_storage().data_ptr() for tensor in given}
    own: dict[int, int] = {}
    for value in made:
        if not isinstance(value, torch.Tensor):
            continue
        if value.layout is not torch.strided:
            own[id(value)] = value.numel() * value.element_size()
        elif value.untyped_storage().data_ptr() not in shared:
            own[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    return sum(own.values())
