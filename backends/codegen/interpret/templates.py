"""The meaning of templates: each as plain torch over whole tensors.

Place: used by both interpreters; what targets make of a template must give the same.
Input: operands as tensors in compute types (``None`` where one is missing) and options. Output: the results, in order.
Non-goals: speed and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from mixbackend.backends.codegen.interpret.indices import Value, Values, evaluate_size
from mixbackend.backends.codegen.interpret.points import Element, Points
from mixbackend.backends.codegen.ir.kernel import BufferView, TemplateKernel
from mixbackend.backends.codegen.ir.scalar import Expr, compute_dtype
from mixbackend.backends.codegen.ir.templates import ATTENTION, ATTENTION_PARTS, PRODUCT, RESULT, TEMPLATES, other
from mixbackend.contracts import IrError

Operands = Sequence[torch.Tensor | None]


def evaluate_template(
    name: str, operands: Operands, options: Sequence[tuple[str, bool | float]], finish: Expr | None = None
) -> tuple[torch.Tensor, ...]:
    """What a template gives; where it gives more columns than there are, the first ones count.

    Raises:
        IrError: there is no such template.
    """
    meaning = _MEANINGS.get(name)
    if meaning is None:
        raise IrError(f"there is no template {name}")
    own = len(TEMPLATES[name].operands)
    results = meaning(operands[:own], dict(options))
    if finish is None:
        return results
    others = [item for item in operands[own:] if item is not None]
    first = cropped(results[0], others[0].shape) if others else results[0]
    return (*_Finish(first, others).evaluate(finish), *results[1:])


def interpret_template(
    kernel: TemplateKernel, buffers: Mapping[str, torch.Tensor], parameters: Mapping[object, Value]
) -> None:
    """Run a template on flat memory.

    Raises:
        IrError: a view leaves its buffer, or a buffer is of another type.
    """
    for item in kernel.buffers:
        if buffers[item.name].dtype != item.dtype:
            raise IrError(f"{item.name} is of type {item.dtype}, got {buffers[item.name].dtype}", where=str(kernel))
    views = [None if view is None else _tensor(view, buffers, parameters) for view in kernel.operands]
    operands = [None if view is None else view.to(compute_dtype(view.dtype)) for view in views]
    results = evaluate_template(kernel.name, operands, kernel.options, kernel.finish)
    for view, result in zip(kernel.results, results, strict=True):
        if view is not None:
            target = _tensor(view, buffers, parameters)
            target.copy_(cropped(result, target.shape))


def cropped(result: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The part of a template's result that there is room for."""
    return result[tuple(slice(size) for size in sizes)]


class _Finish(Points):
    """What is computed of a result and of others, at every point."""

    def __init__(self, result: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
        super().__init__(result.shape, {})
        self._values_of = {RESULT: result, **{other(place): value for place, value in enumerate(others)}}

    def element(self, node: Element, symbols: Values, mask: torch.Tensor | None) -> torch.Tensor:
        """There is no memory."""
        raise IrError("what is computed of a template's result reads memory", where=str(node))

    def local(self, name: str) -> torch.Tensor:
        """The result, or another operand."""
        return self._values_of[name]


def _tensor(view: BufferView, buffers: Mapping[str, torch.Tensor], parameters: Mapping[object, Value]) -> torch.Tensor:
    sizes = [evaluate_size(size, parameters) for size in view.sizes]  # type: ignore[arg-type]
    strides = [evaluate_size(stride, parameters) for stride in view.strides]  # type: ignore[arg-type]
    offset = evaluate_size(view.offset, parameters)  # type: ignore[arg-type]
    memory = buffers[view.buffer]
    if 0 in sizes:
        return memory.new_empty(sizes)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if offset < 0 or last >= memory.numel():
        raise IrError(f"{view} reaches from {offset} to {last}, the buffer has {memory.numel()} elements")
    return memory.as_strided(sizes, strides, memory.storage_offset() + offset)


_EAGERS_LANES = {"AVX512": 16}
"""Fewer scores than that eager looks at one by one, past NaN: where there is nothing else it takes all for hidden."""


def _attention(operands: Operands, options: Mapping[str, bool | float]) -> tuple[torch.Tensor, ...]:
    query, key, value, mask = operands
    assert query is not None and key is not None and value is not None
    scores = (query @ key.transpose(-2, -1)) * options["scale"]
    scores = scores if mask is None else scores + mask
    if options["causal"]:
        after = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(after, -math.inf)
    if not options["zeros"]:
        return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1)
    if key.shape[-2] == 0:
        return query.new_zeros((*query.shape[:-1], value.shape[-1])), query.new_zeros(query.shape[:-1])
    if scores.shape[-1] < _EAGERS_LANES.get(torch.backends.cpu.get_cpu_capability(), 8):
        scores = torch.where(scores.isnan().logical_or(scores == -math.inf).all(-1, True), -math.inf, scores)
    highest = scores.amax(-1, keepdim=True)
    highest = torch.where(highest == -math.inf, 0.0, highest)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    total = torch.where(total == 0, 1.0, total)
    return (weights @ value) / total, (highest + total.log()).squeeze(-1)


def _attention_parts(operands: Operands, options: Mapping[str, bool | float]) -> tuple[torch.Tensor, ...]:
    query, key, value, mask = operands
    assert query is not None and key is not None and value is not None
    scores = (query @ key.transpose(-2, -1)) * options["scale"]
    scores = scores if mask is None else scores + mask
    found = [
        _part(part, some)
        for part, some in zip(
            scores.split(int(options["positions"]), -1), value.split(int(options["positions"]), -2), strict=True
        )
    ]
    sums, largest, total = (torch.stack(items, 3) for items in zip(*found, strict=True))
    return sums, largest, total


def _part(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    largest = scores.amax(-1)
    weights = torch.exp(scores - torch.where(largest == -math.inf, 0.0, largest)[..., None])
    return weights @ values, largest, weights.sum(-1)


def _product(operands: Operands, options: Mapping[str, bool | float]) -> tuple[torch.Tensor, ...]:
    left, packed, bias, scales, offsets = operands
    assert left is not None and packed is not None
    matrix = packed.flatten(1, 3)
    if scales is not None:
        terms = left.shape[3:].numel()
        groups = torch.arange(terms) // int(options["group"])
        matrix = _codes(matrix, int(options["bits"]))[:, :terms].to(left.dtype) * scales[:, groups]
        matrix = matrix if offsets is None else matrix + offsets[:, groups]
    made = left.flatten(3) @ matrix.to(left.dtype).transpose(0, 1).flatten(1)
    return (made if bias is None else made[..., : bias.shape[0]] + bias,)


def _codes(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes as numbers; of 4 bits there are eight in an element."""
    if bits != 4:
        return stored
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (((stored[:, :, None] >> shifts[:, None]) & 15) - 8).flatten(1, 2)


_MEANINGS: Mapping[str, Callable[[Operands, Mapping[str, bool | float]], tuple[torch.Tensor, ...]]] = {
    ATTENTION: _attention,
    ATTENTION_PARTS: _attention_parts,
    PRODUCT: _product,
}
