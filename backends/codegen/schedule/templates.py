"""Templates as kernels: operands and results as views of buffers.

Place: ``build`` makes them of groups with a template; ``in_place`` and ``assemble`` finish them as other kernels.
Input: a template and the layouts of the tensors it touches. Output: a ``TemplateKernel`` in terms of tensors and sizes;
in canonical form every size, stride and offset is a parameter of its own, so that all sizes and layouts share a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import sympy

from mixbackend.backends.codegen.ir.indices import without_digits
from mixbackend.backends.codegen.ir.kernel import BufferParameter, BufferView, TemplateKernel
from mixbackend.backends.codegen.ir.stages import Loop, Template
from mixbackend.backends.codegen.ir.templates import is_packed_product, linear
from mixbackend.backends.codegen.schedule.group import Layout
from mixbackend.backends.codegen.schedule.parameters import CanonicalKernel


def template_kernel(stage: Template, layouts: Mapping[str, Layout]) -> TemplateKernel:
    """The kernel of a template, on buffers with the names of tensors.

    Raises:
        ValueError: an operand or a result is no view of a tensor, or a product would not write row by row.
    """
    operands = [
        None if item is None else _view(item.value.tensor, item.loops, item.value.index, layouts)
        for item in stage.operands
    ]
    results = [
        None if item.target is None else _view(item.target, item.loops, item.index, layouts) for item in stage.results
    ]
    buffers = [*_buffers(operands, layouts, "read"), *_buffers(results, layouts, "write")]
    views = [view for view in (*operands, *results) if view is not None]
    symbols = {symbol for view in views for item in _expressions(view) for symbol in item.free_symbols}
    parameters = tuple(sorted(symbols, key=str))
    if is_packed_product(stage) and not all(view is None or _has_neighbouring_columns(view) for view in results):
        raise ValueError(f"columns of {stage.results[0].target} are no neighbours")
    return TemplateKernel(
        parameters, tuple(buffers), stage.name, stage.options, tuple(operands), tuple(results), stage.finish
    )


def renamed_buffers(kernel: TemplateKernel, names: Mapping[str, str]) -> TemplateKernel:
    """The kernel on other buffers."""
    buffers = tuple(replace(item, name=names.get(item.name, item.name)) for item in kernel.buffers)
    return _on_buffers(kernel, buffers)


def canonical_template(kernel: TemplateKernel) -> CanonicalKernel:
    """Bring a template into canonical form."""
    buffers = tuple(replace(item, name=f"b{place}") for place, item in enumerate(kernel.buffers))
    values: list[sympy.Expr] = []
    symbols: list[sympy.Symbol] = []

    def parameter(value: sympy.Expr) -> sympy.Symbol:
        values.append(value)
        symbols.append(sympy.Symbol(f"p{len(symbols)}", integer=True, nonnegative=True))
        return symbols[-1]

    def parametrised(view: BufferView | None) -> BufferView | None:
        if view is None:
            return None
        sizes, strides = tuple(map(parameter, view.sizes)), tuple(map(parameter, view.strides))
        return BufferView(view.buffer, sizes, strides, parameter(view.offset))

    named = _on_buffers(kernel, buffers)
    operands, results = tuple(map(parametrised, named.operands)), tuple(map(parametrised, named.results))
    made = replace(named, parameters=tuple(symbols), operands=operands, results=results)
    return CanonicalKernel(made, tuple(item.name for item in kernel.buffers), tuple(values), ())


def _on_buffers(kernel: TemplateKernel, buffers: tuple[BufferParameter, ...]) -> TemplateKernel:
    names = iter(buffers)

    def moved(view: BufferView | None) -> BufferView | None:
        return None if view is None else replace(view, buffer=next(names).name)

    operands, results = tuple(map(moved, kernel.operands)), tuple(map(moved, kernel.results))
    return replace(kernel, buffers=buffers, operands=operands, results=results)


def _view(
    tensor: str, loops: tuple[Loop, ...], index: tuple[sympy.Expr, ...], layouts: Mapping[str, Layout]
) -> BufferView:
    """Where an element lies, dimension by dimension of the loops."""
    position = sympy.Add(*(part * stride for part, stride in zip(index, layouts[tensor].strides, strict=True)))
    # What a product made in three dimensions may be read in other pieces: they lie one behind the other.
    found = linear(without_digits(position), [loop.index for loop in loops])
    if found is None:
        raise ValueError(f"{tensor} at {index} is no view")
    factors, offset = found
    sizes = tuple(loop.size for loop in loops)
    return BufferView(tensor, sizes, tuple(factors[loop.index] for loop in loops), offset)


def _has_neighbouring_columns(view: BufferView) -> bool:
    return bool(view.strides[-1] == 1 or view.sizes[-1] == 1)


def _buffers(
    views: list[BufferView | None], layouts: Mapping[str, Layout], access: Literal["read", "write"]
) -> Iterator[BufferParameter]:
    for view in views:
        if view is not None:
            yield BufferParameter(view.buffer, layouts[view.buffer].type.dtype, access)


def _expressions(view: BufferView) -> tuple[sympy.Expr, ...]:
    return (*view.sizes, *view.strides, view.offset)
