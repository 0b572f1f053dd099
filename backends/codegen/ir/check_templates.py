"""Checker of templates, as stages and as kernels.

Place: called by the checkers of stage graphs and kernels.
Input: a template. Output: problems with what it takes and gives, held against its form in ``templates``.
Non-goals: views out of range; the interpreter finds those.
"""

from __future__ import annotations

from collections.abc import Sequence

from mixbackend.backends.codegen.ir.check_expressions import Scope, check_expression, check_index
from mixbackend.backends.codegen.ir.errors import Problems
from mixbackend.backends.codegen.ir.grammar import walk
from mixbackend.backends.codegen.ir.kernel import BufferView, TemplateKernel
from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Local
from mixbackend.backends.codegen.ir.stages import Loop, Operand, Template
from mixbackend.backends.codegen.ir.templates import RESULT, TEMPLATES, TemplateForm, is_place, linear, other
from mixbackend.backends.codegen.ir.text import listing


def check_template(stage: Template, scope: Scope) -> None:
    """Check a template among stages; its loops and the types of its targets are checked with those of other stages."""
    form = _form(stage, scope)
    if form is None:
        return
    _check_ranks(form, [None if item is None else item.loops for item in stage.operands], scope)
    _check_finish(form, stage, scope)
    for operand in stage.operands:
        if operand is not None:
            _check_operand(operand, scope)
    for (name, rank), result in zip(form.results, stage.results, strict=True):
        scope.expect(len(result.loops) == rank, f"{name} has {rank} dimensions, not {len(result.loops)}")
        for part in result.index:
            check_index(part, scope)
            factors = linear(part, [loop.index for loop in result.loops])
            scope.expect(factors is not None, f"{name} is stored at {part}, which is not linear")


def check_template_kernel(kernel: TemplateKernel) -> None:
    """Check a template as a kernel.

    Raises:
        IrError: it breaks a rule.
    """
    problems = Problems()
    scope = Scope(problems, kernel, frozenset(kernel.parameters), frozenset(), {}, {})
    form = _form(kernel, scope)
    if form is not None:
        _check_ranks(form, [None if view is None else view.sizes for view in kernel.operands], scope)
        _check_finish(form, kernel, scope)
        for (name, rank), view in zip(form.results, kernel.results, strict=True):
            scope.expect(view is None or len(view.sizes) == rank, f"{name} has {rank} dimensions")
    count = len(set(kernel.parameters))
    scope.expect(count == len(kernel.parameters), f"two parameters have one name: {listing(kernel.parameters)}")
    scope.expect(not kernel.numbers, "a template has no numbers")
    named = [view.buffer for view in kernel.views]
    scope.expect([item.name for item in kernel.buffers] == named, "there is one buffer for every view, in order")
    operands = sum(view is not None for view in kernel.operands)
    for place, buffer in enumerate(kernel.buffers):
        wanted = "read" if place < operands else "write"
        scope.expect(buffer.access == wanted, f"{buffer.name} is there to {wanted}")
    for view in kernel.views:
        _check_view(view, scope)
    problems.raise_all("kernel")


def _form(item: Template | TemplateKernel, scope: Scope) -> TemplateForm | None:
    """The form of a template, if it has one and as many parts as it says."""
    form = TEMPLATES.get(item.name)
    if not scope.expect(form is not None, f"there is no template {item.name}") or form is None:
        return None
    options = tuple(name for name, _ in item.options)
    scope.expect(
        options == form.options, f"{item.name} has the options {listing(form.options)}, not {listing(options)}"
    )
    others = len(item.operands) - len(form.operands)
    fits = others >= 0 and (others == 0 or item.finish is not None) and len(item.results) == len(form.results)
    return form if scope.expect(fits, f"{item.name} has other operands and results") else None


def _check_ranks(form: TemplateForm, operands: Sequence[Sequence[object] | None], scope: Scope) -> None:
    rank_of_result = form.results[0][1]
    others = [(other(place), rank_of_result) for place in range(len(operands) - len(form.operands))]
    for (name, rank), dimensions in zip([*form.operands, *others], operands, strict=True):
        if dimensions is None:
            scope.expect(name in form.optional, f"{name} is missing")
            continue
        scope.expect(len(dimensions) == rank, f"{name} has {rank} dimensions, not {len(dimensions)}")


def _check_finish(form: TemplateForm, item: Template | TemplateKernel, scope: Scope) -> None:
    """Check what is computed of a result: it reads nothing but it and the operands beyond the form."""
    if item.finish is None:
        return
    scope.expect(form.finished, f"nothing is computed of what {item.name} makes")
    known = {RESULT, *(other(place) for place in range(len(item.operands) - len(form.operands)))}
    for node in walk(item.finish):
        if isinstance(node, Local):
            scope.expect(node.name in known, f"{node.name} is no operand")
        else:
            scope.expect(isinstance(node, (Apply, Constant)), f"{node} is computed of a result")


def _check_operand(operand: Operand, scope: Scope) -> None:
    loops: tuple[Loop, ...] = operand.loops
    check_expression(operand.value, scope)
    scope.expect(is_place(operand.value, loops), f"{operand.value} is no tensor in memory")


def _check_view(view: BufferView, scope: Scope) -> None:
    scope.expect(len(view.sizes) == len(view.strides), f"{view.buffer} needs as many strides as sizes")
    for expression in (*view.sizes, *view.strides, view.offset):
        check_index(expression, scope)
