"""Strides of results: fake values lie as eager's results do, for every operator that works element by element."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

import mixbackend
from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.torch_compat import MISLAID, composite_implicit, fresh_fake_mode, pure_operators, rerun_fake
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten
SHAPE = (2, 3, 4)

Make = Callable[[tuple[int, ...]], torch.Tensor]
ROW: Make = lambda shape: torch.rand(shape)  # noqa: E731 - one expression
LAYOUTS: dict[str, Make] = {
    "row": ROW,
    "transposed": lambda shape: ROW(shape[::-1]).permute(2, 1, 0),
    "permuted": lambda shape: ROW((shape[1], shape[0], shape[2])).transpose(0, 1),
    "expanded": lambda shape: ROW((1, *shape[1:])).expand(shape),
    "stepped": lambda shape: ROW((*shape[:-1], 2 * shape[-1]))[..., ::2],
    "one row": lambda shape: ROW((1, *shape[1:])),
    "one column": lambda shape: ROW((*shape[:-1], 1)),
    "scalar": lambda shape: ROW(()),
    "lower": lambda shape: ROW(shape[:0:-1]).t(),
}
FEW = ("row", "transposed", "expanded", "scalar")
FULL = ("row", "transposed", "expanded", "stepped")
"""Where gradients are laid out like one of three operands: no other has fewer elements."""
TYPES = {"float32": (torch.float32,) * 3, "mixed": (torch.int64, torch.float64, torch.float32)}
PLAIN = {"number": 1.5, "int": 0, "bool": False, "float": 1.0}
COPIES = {"aten.lift_fresh_copy.default", "aten.copy.default"}


def numbers_of_tensors(operator: Any) -> int:
    return sum(str(item.type) == "Tensor" for item in operator._schema.arguments)


def call(operator: Any, tensors: list[torch.Tensor]) -> tuple[Any, ...]:
    """Arguments with these tensors; numbers as they come."""
    given, arguments = iter(tensors), []
    for item in operator._schema.arguments:
        if item.kwarg_only:
            break
        if str(item.type) == "Tensor":
            arguments.append(next(given))
        elif item.has_default_value():
            arguments.append(item.default_value)
        else:
            arguments.append(PLAIN.get(str(item.type)))
    return tuple(arguments)


def elementwise(count: int) -> list[Any]:
    """Operators of so many tensors that a graph can hold."""
    found = {operator for operator in pure_operators() if torch.Tag.pointwise in operator.tags} | MISLAID
    kept = (item for item in found if not composite_implicit(item) and numbers_of_tensors(item) == count)
    return sorted((item for item in kept if str(item) not in COPIES), key=str)


def steps(value: Any) -> list[int | None] | None:
    """Strides where they mean something."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return None
    return [step if size > 1 else None for size, step in zip(value.shape, value.stride(), strict=True)]


def samples(operator: Any) -> Iterator[list[torch.Tensor]]:
    count = numbers_of_tensors(operator)
    few = FULL if "_backward" in str(operator) else FEW
    for types in TYPES.values():
        for names in itertools.product(LAYOUTS if count < 3 else few, repeat=count):
            yield [LAYOUTS[name](SHAPE).to(dtype) for name, dtype in zip(names, types, strict=False)]


def misstated(operator: Any, inputs: list[torch.Tensor], mode: Any) -> str:
    """What is stated otherwise than eager has it."""
    arguments = call(operator, inputs)
    try:
        eager = operator(*arguments)
        with torch.no_grad():
            faked = tree_map_only(torch.Tensor, lambda value: mode.from_tensor(value, static_shapes=True), arguments)
            stated = rerun_fake(operator, faked, {})
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return ""
    if [item.shape for item in as_tuple(stated)] != [item.shape for item in as_tuple(eager)]:
        return ""  # of operands that no gradient has
    mine, true = (list(map(steps, as_tuple(value))) for value in (stated, eager))
    return "" if mine == true else f"{operator}: {[item.stride() for item in inputs]}: {mine}, eager {true}"


@pytest.mark.sampled(9)
@pytest.mark.parametrize("operator", [*elementwise(1), *elementwise(2), *elementwise(3)], ids=str)
def test_fake_results_lie_as_eagers(operator):
    mode = fresh_fake_mode()
    found = [misstated(operator, inputs, mode) for inputs in samples(operator)]
    assert not any(found), next(filter(None, found))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("operator", sorted(MISLAID, key=str), ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_state_them(operator, dynamic):
    """Also where the pass does not look, because everything lies row by row."""
    for names in (("transposed", "row"), ("expanded", "permuted"), ("one column", "one row"), ("row", "lower")):
        inputs = [LAYOUTS[name](SHAPE) for name in (*names, "row")[: numbers_of_tensors(operator)]]
        arguments = call(operator, inputs)
        places = [place for place, item in enumerate(arguments) if isinstance(item, torch.Tensor)]

        def function(*tensors: torch.Tensor) -> Any:
            given = dict(zip(places, tensors, strict=True))  # noqa: B023 - called in this turn
            return operator(*(given.get(place, item) for place, item in enumerate(arguments)))  # noqa: B023

        try:
            eager = as_tuple(function(*inputs))[0]
        except RuntimeError:
            continue
        module, _ = trace_graph(lambda *tensors: as_tuple(function(*tensors))[0], inputs, dynamic=dynamic)
        (output,) = module.graph.find_nodes(op="output")
        stated = output.args[0][0].meta["val"]
        if stated.dim() != eager.dim():
            continue  # of operands that no gradient has
        hints = [step if isinstance(step, int) else step.node.hint for step in stated.stride()]
        true = [own if size == 1 else step for size, step, own in zip(eager.shape, eager.stride(), hints, strict=True)]
        assert hints == true


def follows(value: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    signed = torch.copysign(value, other)
    return signed, signed * 2, signed.transpose(0, 1), torch.xlogy(other, value).reshape(-1, 2).exp()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_lie_as_eagers(dynamic):
    """What is computed of a result that was stated wrongly is stated anew."""
    inputs = torch.rand(7, 6, 4).permute(2, 1, 0), torch.rand(4, 6, 7).permute(0, 1, 2)
    compiled = torch.compile(follows, backend=mixbackend.auto({"backends": ["codegen", "eager"]}), dynamic=dynamic)
    for result, eager in zip(compiled(*inputs), follows(*inputs), strict=True):
        torch.testing.assert_close(result, eager)
        assert result.stride() == eager.stride()
