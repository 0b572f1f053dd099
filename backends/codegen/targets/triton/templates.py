"""Templates as Triton text.

Place: used by ``printing``, for kernels that are templates. Input: a ``TemplateKernel`` and what is known of its
parameters. Output: a ``Text`` and a number of blocks. The function takes the kernel's buffers, then the parameters that
are not known when compiling.
Invariants: as of every kernel: scores and sums are in float32, and NaN goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy

from mixbackend.backends.codegen.ir.kernel import BufferView, TemplateKernel
from mixbackend.backends.codegen.ir.templates import ATTENTION_PARTS
from mixbackend.backends.codegen.targets.triton.dtypes import NAMES, POINTERS
from mixbackend.backends.codegen.targets.triton.indices import index_text
from mixbackend.backends.codegen.targets.triton.text import FUNCTION, Text

AT_ONCE = 8192
"""Elements of keys that a block holds at once, and as many of values."""
OF_THREAD = 32
"""Of them those of a thread."""


@dataclass(frozen=True)
class PrintedTemplate:
    """A template as text.

    Attributes:
        kernel: with numbers for the parameters that are known.
        blocks: their number.
    """

    kernel: TemplateKernel
    text: Text
    blocks: sympy.Expr


def print_template(kernel: TemplateKernel, given: Sequence[int | None]) -> PrintedTemplate:
    """A template's text.

    Args:
        given: value of each parameter, ``None`` for those that depend on symbolic sizes.
    """
    special = _specialised(kernel, given)
    assert kernel.name == ATTENTION_PARTS, f"no text for the template {kernel.name}"
    attention = _AttentionParts(special)
    signature = [(item.name, POINTERS[item.dtype]) for item in special.buffers]
    signature += [(symbol.name, "i64") for symbol in special.parameters]
    names = ", ".join(name for name, _ in signature)
    lines = "".join(f"    {line}\n" for line in ("begin()", *attention.lines()))
    text = Text(f"@triton.jit\ndef {FUNCTION}({names}):\n{lines}\n", tuple(signature), attention.warps)
    return PrintedTemplate(special, text, attention.blocks)


def _specialised(kernel: TemplateKernel, given: Sequence[int | None]) -> TemplateKernel:
    pairs = list(zip(kernel.parameters, given, strict=True))
    values = {symbol: sympy.Integer(value) for symbol, value in pairs if value is not None}

    def known(view: BufferView | None) -> BufferView | None:
        if view is None:
            return None
        sizes, strides = (tuple(part.xreplace(values) for part in parts) for parts in (view.sizes, view.strides))
        return replace(view, sizes=sizes, strides=strides, offset=view.offset.xreplace(values))

    return replace(
        kernel,
        parameters=tuple(symbol for symbol, value in pairs if value is None),
        operands=tuple(map(known, kernel.operands)),
        results=tuple(map(known, kernel.results)),
    )


class _AttentionParts:
    """The template ``attention_parts``: a block has one part of the keys, and all heads of their group.

    Args:
        kernel: with known sizes.
    """

    def __init__(self, kernel: TemplateKernel) -> None:
        query, key, value, self._mask = kernel.operands
        sums, largest, total = kernel.results
        assert query is not None and key is not None and value is not None, "they are not optional"
        assert sums is not None and largest is not None and total is not None, "a rule asks for all of them"
        self._query, self._key, self._value = query, key, value
        self._results = sums, largest, total
        self._stored = {item.name: item.dtype for item in kernel.buffers}
        options = dict(kernel.options)
        self._scale, self._length = float(options["scale"]), int(options["positions"])
        _, self._groups, self._heads, self._width = map(int, query.sizes)
        self._positions, self._depth = int(value.sizes[2]), int(value.sizes[3])
        self._parts = int(sums.sizes[3])
        self._columns, self._features = _power(self._width), _power(self._depth)
        self._step = min(self._length, max(16, AT_ONCE // max(self._columns, self._features)))
        self.blocks = query.sizes[0] * self._groups * self._parts
        self.warps = max(1, min(8, self._step * max(self._columns, self._features) // (32 * OF_THREAD)))

    def lines(self) -> Iterator[str]:
        """Of the function's body."""
        yield "block = tl.program_id(0).to(tl.int64)"
        yield f"part = block % {self._parts}"
        yield f"group = (block // {self._parts}) % {self._groups}"
        yield f"batch = block // {self._parts * self._groups}"
        yield "alone = tl.arange(0, 1)"
        yield f"column = tl.arange(0, {self._columns})"
        yield f"feature = tl.arange(0, {self._features})"
        for head in range(self._heads):
            place = _place(self._query, "batch", "group", head, "column")
            inside = _guard([f"column < {self._width}"] if self._columns != self._width else [])
            yield f"query{head} = tl.load({place}{inside}).to(tl.float32)"
            yield f'largest{head} = tl.full([1], float("-inf"), tl.float32)'
            yield f"total{head} = tl.full([1], 0.0, tl.float32)"
            yield f"sums{head} = tl.full([{self._features}], 0.0, tl.float32)"
        if self._step == self._length:
            yield f"first = part * {self._length}"
            yield from self._some()
        else:
            yield f"for first in range(part * {self._length}, (part + 1) * {self._length}, {self._step}):"
            yield from (f"    {line}" for line in self._some())
        yield from self._stores()

    def _some(self) -> Iterator[str]:
        """Lines that add a step of positions to what was found."""
        is_whole = self._positions % self._step == 0 and self._positions % self._length == 0
        yield f"position = first + tl.arange(0, {self._step})"
        inside = [] if is_whole else ["inside"]
        if not is_whole:
            yield f"inside = position < {self._positions}"
        for name, view, along, size in (
            ("keys", self._key, "column", self._width),
            ("values", self._value, "feature", self._depth),
        ):
            place = _place(view, "batch", "group", "position[:, None]", f"{along}[None, :]")
            guards = [f"{item}[:, None]" for item in inside]
            guards += [f"({along}[None, :] < {size})"] if _power(size) != size else []
            yield f"{name} = tl.load({place}{_guard(guards)}).to(tl.float32)"
        for head in range(self._heads):
            yield from self._head(head, inside)

    def _head(self, head: int, inside: list[str]) -> Iterator[str]:
        yield f"score = tl.sum(keys * query{head}[None, :], 1) * {self._scale!r}"
        if self._mask is not None:
            place = _place(self._mask, "batch", "group", head, "position")
            yield f"score = score + tl.load({place}{_guard(inside)}).to(tl.float32)"
        if inside:
            yield 'score = tl.where(inside, score, float("-inf"))'
        yield f"highest = maximum(largest{head}, tl.reduce(score, 0, maximum))"
        yield 'beside = tl.where(highest == float("-inf"), 0.0, highest)'
        yield "weight = libdevice.exp(score - beside)"
        yield f"before = libdevice.exp(largest{head} - beside)"
        yield f"total{head} = total{head} * before + tl.sum(weight, 0)"
        yield f"sums{head} = sums{head} * before + tl.sum(weight[:, None] * values, 0)"
        yield f"largest{head} = highest"

    def _stores(self) -> Iterator[str]:
        sums, largest, total = self._results
        inside = f", mask=feature < {self._depth}" if self._features != self._depth else ""
        for head in range(self._heads):
            place = _place(sums, "batch", "group", head, "part", "feature")
            yield f"tl.store({place}, sums{head}.to({self._type(sums)}){inside})"
            for name, view in (("largest", largest), ("total", total)):
                place = _place(view, "batch", "group", head, "part")
                yield f"tl.store({place} + alone, {name}{head}.to({self._type(view)}))"

    def _type(self, view: BufferView) -> str:
        return NAMES[self._stored[view.buffer]]


def _place(view: BufferView, *index: str | int) -> str:
    """Where an element of a view lies; the indices are told from left to right."""
    terms = [index_text(view.offset, {})]
    for part, stride, size in zip(index, view.strides, view.sizes, strict=True):
        if size != 1 or not str(part).isdigit():
            terms.append(f"{part} * {index_text(stride, {})}")
    return f"{view.buffer} + ({' + '.join(terms)})"


def _guard(conditions: Sequence[str]) -> str:
    return f", mask={' & '.join(conditions)}, other=0" if conditions else ""


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
