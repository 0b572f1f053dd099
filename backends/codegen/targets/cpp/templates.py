"""Templates as C++ text: each is a call of a header of its own.

Place: beside ``printer``, for kernels that are templates.
Input: a ``TemplateKernel`` that the target says it has. Output: a function like those of the printer.
Invariants: the text depends on the kernel alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from mixbackend.backends.codegen.ir.kernel import BufferView, TemplateKernel
from mixbackend.backends.codegen.ir.templates import ATTENTION, PRODUCT
from mixbackend.backends.codegen.targets.cpp.literals import STORAGE, literal
from mixbackend.backends.codegen.targets.cpp.scopes import INDENT

_ARGUMENTS = "char** buffers, const i64* parameters, const double* numbers"


def print_template(kernel: TemplateKernel, name: str) -> str:
    """The function of a template."""
    lines = [f"const i64 {symbol} = parameters[{place}];" for place, symbol in enumerate(kernel.parameters)]
    for place, buffer in enumerate(kernel.buffers):
        kind = f"const {STORAGE[buffer.dtype]}*" if buffer.access == "read" else f"{STORAGE[buffer.dtype]}*"
        lines.append(f"{kind} const {buffer.name} = reinterpret_cast<{kind}>(buffers[{place}]);")
    header, body = PRINTERS[kernel.name](kernel)
    inside = "".join(f"{INDENT}{line}\n" for line in [*lines, *body])
    return f'#include "{header}"\nextern "C" void {name}({_ARGUMENTS}) {{\n{inside}}}\n'


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
        f"attend<{', '.join(flags)}>(given);",
    ]


def _product(kernel: TemplateKernel) -> tuple[str, list[str]]:
    left, packed, bias = kernel.operands
    (output,) = kernel.results
    assert left is not None and packed is not None and output is not None
    sizes = [*left.sizes, output.sizes[2]]
    views = [_fields(left, 3), f"{packed.buffer} + {packed.offset}", _fields(bias, 1), _fields(output, 3)]
    width = int(dict(kernel.options)["width"])
    return "product.hpp", [
        f"const Product given = {{{', '.join([*map(str, sizes), *views])}}};",
        f"multiply<{width} / lanes>(given);",
    ]


def _fields(view: BufferView | None, rank: int) -> str:
    return _view(view, rank)[1:-1]


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
