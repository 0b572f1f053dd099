"""What ``torch.export`` hands over.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat.operators import composite_implicit


def decomposed_as_compiled(program: Any) -> Any:
    """An exported program in functional form, its ops taken apart as far as AOTAutograd does it under torch.compile:
    those that are defined by other ops on every device, and no others."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return program.run_decompositions(_composites())


@functools.cache
def _composites() -> dict[Any, Callable[..., Any]]:
    table = torch.export.default_decompositions()
    entries = table.materialize() if hasattr(table, "materialize") else table
    return {operator: function for operator, function in entries.items() if composite_implicit(operator)}


def aoti_packaged(program: Any, path: str) -> str:
    """Compile an exported program by AOTInductor into a file, and return its path."""
    from torch._inductor import aoti_compile_and_package

    return str(aoti_compile_and_package(program, package_path=path))


def aoti_loaded(path: str) -> Callable[..., Any]:
    """What AOTInductor compiled into a file."""
    from torch._inductor import aoti_load_package

    return aoti_load_package(path)  # type: ignore[no-any-return]


def forward_names(program: Any) -> tuple[str, ...]:
    """Names of the parameters of the exported ``forward``, in their order; empty where torch does not say."""
    calls = getattr(program, "module_call_graph", None) or ()
    signature = getattr(calls[0], "signature", None) if calls else None
    return tuple(getattr(signature, "forward_arg_names", None) or ())


def tree_children(spec: Any) -> tuple[Any, Any, list[Any]] | None:
    """Class, context and children of a node of a pytree's form; ``None`` for a leaf."""
    if spec.is_leaf() if hasattr(spec, "is_leaf") else spec.type is None:
        return None
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    return spec.type, spec.context, list(children)


def tensor_checks(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Nodes by which export asserts types and devices of values that it traced: its own inputs' are checked anyway."""
    name = getattr(torch.ops.aten, "_assert_tensor_metadata", None)
    if name is not None:
        yield from graph.find_nodes(op="call_function", target=name.default)
