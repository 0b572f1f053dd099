"""Memory: results that stay, results written whole and lying apart, inputs that are let go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.certify.tested import NotAsked, Problem, Tested, eager_refuses, named
from mixbackend.certify.variants import other_values
from mixbackend.contracts import Region
from mixbackend.contracts.torch_compat import deterministic_without_a_word, storages_in_use, storages_of

_POISONS = (0xFF, 0x7B)
"""Bytes of which NaN, minus one or large numbers are made: what is left of them in a result is not zero."""
_PIECES = 8
"""Of each size: what the allocator gives out next."""


def kept_results(tested: Tested) -> Problem | None:
    """A result is not written by later calls."""
    later = other_values(tested.region, tested.case.inputs)
    if later is None or eager_refuses(tested.region, later):
        later = [value.zero_() if _is_floating(value) else value for value in tested.inputs()]
        if refusal := eager_refuses(tested.region, later):
            raise NotAsked(f"eager refuses other values: {refusal}")
    first = tested.call(tested.inputs())
    before = [value.clone() for value in first]
    shared = _addresses(first)
    second = tested.call(later)
    if any(not _same_bits(mine, copy) for mine, copy in zip(first, before, strict=True)):
        return Problem("kept results", "the second call changed the results of the first")
    own = [output.alias_of is None for output in tested.region.outputs]
    if any(address in shared for address, is_own in zip(_addresses(second), own, strict=True) if is_own and address):
        return Problem("kept results", "the second call returned the memory of the first one's results")
    return None


def poisoned_memory(tested: Tested) -> Problem | None:
    """Results do not depend on what memory held before: all of them is written."""
    for poison in _POISONS:
        inputs = tested.inputs()

        def run(given: list[Any], poison: int = poison) -> Sequence[torch.Tensor]:
            with deterministic_without_a_word():
                _poison(tested.region, given, poison)
                return tested.compiled.run(given)

        problem = tested.judged(inputs, run)
        if problem is not None:
            return named("poisoned memory", problem, "where fresh memory is not zero")
    return None


def depends_on_memory(tested: Tested) -> bool:
    """Whether results are others where torch fills what it allocates."""
    plain = tested.call(tested.inputs())
    with deterministic_without_a_word():
        filled = tested.call(tested.inputs())
    return not all(map(_same_bits, plain, filled))


def aliasing(tested: Tested) -> Problem | None:
    """Results lie in memory of their own, apart from inputs and from one another, unless eager's share theirs."""
    inputs = tested.inputs()
    outputs = tested.call(inputs)
    roots = _roots(tested.region)
    entered = [_range(value) for value in inputs]
    for place, (value, output) in enumerate(zip(outputs, tested.region.outputs, strict=True)):
        mine = _range(value)
        sharing = [
            item.name
            for other, (item, taken) in enumerate(zip(tested.region.inputs, entered, strict=True))
            if _meet(mine, taken) and roots[output.name] != roots[item.name] and output.alias_of != other
        ]
        if sharing:
            return Problem("aliasing", f"output {place} lies in the memory of input {sharing[0]}")
        for other in range(place):
            apart = roots[tested.region.outputs[other].name] != roots[output.name]
            if apart and _meet(mine, _range(outputs[other])):
                return Problem("aliasing", f"outputs {other} and {place} share memory")
    return None


def kept_inputs(tested: Tested) -> Problem | None:
    """Once results are dropped, nothing holds the inputs of a call."""
    inputs = tested.inputs()
    held = storages_of(inputs)
    if not held:
        raise NotAsked("it has no tensors as inputs")
    outputs = tested.call(inputs)
    outputs.clear()
    inputs.clear()
    if storages_in_use(held):
        return Problem("kept inputs", "an input is held after the call: memory that its user cannot free")
    return None


def _poison(region: Region, inputs: Sequence[Any], byte: int) -> None:
    """Fill what the allocator will give out next for pieces as large as the results and inputs."""
    sizes = {value.numel() * value.element_size() for value in inputs if isinstance(value, torch.Tensor)}
    sizes |= {output.meta.bytes() for output in region.outputs}
    pieces = [torch.empty(size, dtype=torch.uint8).fill_(byte) for size in sorted(sizes) for _ in range(_PIECES)]
    pieces.clear()


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    # Torch compares no complex numbers of half precision.
    if not one.is_complex() and torch.equal(one, other):
        return True
    flat = (value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for value in (one, other))
    return torch.equal(*flat)


def _addresses(values: Sequence[torch.Tensor]) -> list[int]:
    return [value.data_ptr() if value.numel() else 0 for value in values]


def _range(value: Any) -> tuple[int, int]:
    """Addresses from the first byte to behind the last."""
    if not isinstance(value, torch.Tensor) or value.numel() == 0 or value.layout is not torch.strided:
        return (0, 0)
    steps = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    return value.data_ptr(), value.data_ptr() + (steps + 1) * value.element_size()


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def _roots(region: Region) -> dict[str, str]:
    """For every value of a region, the first value that has its memory in eager."""
    roots = {item.name: item.name for item in region.inputs}
    for view in region.views:
        source = view.node.aliased()
        is_part = view.node.op == "getitem"
        # What takes a result of several apart gives a tensor of its own, unless the results are views.
        shared = roots.get(source, source) if source is not None else view.node.name
        own = is_part and shared == source
        roots[view.node.name] = view.node.name if own else shared
    return roots
