"""Templates as C++ text: each is a call of a header of its own.

Place: beside ``printer``, for kernels that are templates.
Input: a ``TemplateKernel`` that the target says it has. Output: a function like those of the printer.
Invariants: the text depends on the kernel alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from mixbackend.backends.codegen.ir.grammar import walk
from mixbackend.backends.codegen.ir.kernel import BufferView, TemplateKernel
from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, Local, cost_of
from mixbackend.backends.codegen.ir.templates import ATTENTION, PRODUCT, RESULT, other
from mixbackend.backends.codegen.targets.cpp.literals import STORAGE, function_head, literal
from mixbackend.backends.codegen.targets.cpp.scopes import INDENT
from mixbackend.backends.codegen.targets.cpp.values import FUNCTIONS

BRIEF = 6.0
"""Cost of what is computed of a product's sums alone, up to which it stands once for each register."""


def print_template(kernel: TemplateKernel, name: str) -> str:
    """The function of a template."""
    lines = [f"const i64 {symbol} = parameters[{place}];" for place, symbol in enumerate(kernel.parameters)]
    for place, buffer in enumerate(kernel.buffers):
        kind = f"const {STORAGE[buffer.dtype]}*" if buffer.access == "read" else f"{STORAGE[buffer.dtype]}*"
        lines.append(f"{kind} const {buffer.name} = reinterpret_cast<{kind}>(buffers[{place}]);")
    header, body = PRINTERS[kernel.name](kernel)
    inside = "".join(f"{INDENT}{line}\n" for line in [*lines, *body])
    return f'#include "{header}"\n{function_head(name)}\n{inside}}}\n'


def _attention(kernel: TemplateKernel) -> tuple[str, list[str]]:
    query, key, value, mask = kernel.operands
    output, logarithm = kernel.results
    assert query is not None and key is not None and value is not None
    options = dict(kernel.options)
    types = {item.name: STORAGE[item.dtype] for item in kernel.buffers}
    stored, masked = types[query.buffer], "float" if mask is None else types[mask.buffer]
    sizes = [*query.sizes[:3], key.sizes[2], query.sizes[3], value.sizes[3]]
    views = [_view(view, 4) for view in (query, key, value, mask, output)]
    scale = literal(options["scale"], torch.float32)
    zeros = literal(bool(options["zeros"]), torch.bool)
    fields = ", ".join([*map(str, sizes), *views, _view(logarithm, 4), scale, zeros])
    flags = [str(mask is not None).lower(), str(bool(options["causal"])).lower()]
    return "attention.hpp", [
        f"const Attention<{stored}, {masked}> given = {{{fields}}};",
        f"return attend<{', '.join(flags)}>(*team, given);",
    ]


def _product(kernel: TemplateKernel) -> tuple[str, list[str]]:
    left, packed, bias, scales, offsets, *others = kernel.operands
    (output,) = kernel.results
    assert left is not None and packed is not None and output is not None
    rows, columns = f"{{{left.buffer} + {left.offset}, {_strides(left, (0, 1, 2, 5))}}}", output.sizes[3]
    fields = [
        *map(str, (*left.sizes, columns)),
        f"{rows}, {_strides(left, (3, 4))}",
        _view(bias, 1)[1:-1],
        _view(output, 4),
    ]
    stored = next(STORAGE[item.dtype] for item in kernel.buffers if item.name == packed.buffer)
    matrix, options = f"{packed.buffer} + {packed.offset}", dict(kernel.options)
    given = f"const PackedProduct<{stored}> given = {{{{{', '.join(fields)}}}, {matrix}}};"
    if scales is not None:
        stored = "nibbles" if options["bits"] == 4 else stored
        codes = f"reinterpret_cast<const {stored}*>({matrix})"
        groups = ", ".join([*(_pointer(view) for view in (scales, offsets)), str(int(options["group"]))])
        given = f"const GroupedProduct<{stored}> given = {{{{{', '.join(fields)}}}, {codes}, {groups}}};"
    width = f"{int(options['width'])} / lanes"
    if kernel.finish is None:
        return "product.hpp", [given, f"return multiply<{width}>(*team, given);"]
    cost = cost_of(kernel.finish)
    brief = literal(cost <= BRIEF, torch.bool)
    function = [
        "[](Vec<float> result, auto other) {",
        *(INDENT + line for line in _finish(kernel.finish, len(others))),
        "});",
    ]
    if not others:
        call = f"return multiply_alone<{width}, {brief}>(*team, given, {function[0]}"
        return "product.hpp", [given, call, *function[1:]]
    views = ", ".join(_view(view, 4) for view in others)
    call = f"return multiply<{width}>(*team, given, others, {function[0]}"
    return "product.hpp", [given, f"const Matrix<const float> others[] = {{{views}}};", call, *function[1:]]


def _finish(expression: Expr, others: int) -> list[str]:
    """What is computed of a result, one value a line."""
    places = {RESULT: RESULT, **{other(number): f"other({number})" for number in range(others)}}
    lines: list[str] = []
    names: dict[Expr, str] = {}
    for node in walk(expression):
        names[node] = f"t{len(names)}"
        lines.append(f"const auto {names[node]} = {_finished(node, names, places)};")
    return [*lines, f"return {names[expression]};"]


def _finished(node: Expr, names: Mapping[Expr, str], places: Mapping[str, str]) -> str:
    if isinstance(node, Constant):
        return f"broadcast<float>({literal(node.value, node.dtype)})"
    if isinstance(node, Local):
        return places[node.name]
    assert isinstance(node, Apply), f"{type(node).__name__} is computed of a result"
    return f"{FUNCTIONS[node.op]}({', '.join(names[argument] for argument in node.arguments)})"


def _strides(view: BufferView, places: Sequence[int]) -> str:
    return ", ".join(str(view.strides[place]) for place in places)


def _pointer(view: BufferView | None) -> str:
    return "nullptr" if view is None else f"{view.buffer} + {view.offset}"


def _view(view: BufferView | None, rank: int) -> str:
    """Pointer and strides; missing tensors are null, missing strides 0."""
    if view is None:
        return f"{{nullptr{', 0' * rank}}}"
    strides = [*map(str, view.strides), *["0"] * (rank - len(view.strides))]
    return f"{{{view.buffer} + {view.offset}, {', '.join(strides)}}}"


PRINTERS: Mapping[str, Callable[[TemplateKernel], tuple[str, list[str]]]] = {
    ATTENTION: _attention,
    PRODUCT: _product,
}
"""By template: the header to include, and the lines of the function's body."""
